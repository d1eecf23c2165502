#include "apps/processes/launcher.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "apps/processes/mpi_communicator.h"
#include "apps/processes/nccl_communicator.h"
#include "apps/training/communicator.h"
#include "engine/check.h"
#include "engine/device.h"

namespace runnel {
namespace {

// Each launcher tells each of its processes how many there are, which one it is, and something that only a process has
// that it has started: a setting that was left in the environment, or an image of a container, does not have all three.
struct Launcher {
  const char *name, *size, *rank;
  std::vector<const char*> others;
};
const std::vector<Launcher>& launchers() {
  static const std::vector<Launcher> all{
      {"mpirun", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", {"PMIX_RANK"}},  // Open MPI
      {"mpirun", "PMI_SIZE", "PMI_RANK", {"PMI_FD"}},                             // MPICH, and srun --mpi=pmi2
      {"torchrun", "WORLD_SIZE", "RANK", {"LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}},
      {"srun", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID", {"SLURM_STEP_ID"}}};
  return all;
}

int64_t integer_in(const char* variable) {
  const char* const text = std::getenv(variable);
  return text ? std::atoll(text) : 0;
}

// The first variable that a process of this launcher has, and this one has not.
const char* missing(const Launcher& launcher) {
  for (const char* variable : launcher.others)
    if (!std::getenv(variable)) return variable;
  return std::getenv(launcher.rank) ? nullptr : launcher.rank;
}

// A program that is started in the shell of `srun --pty` inherits the variables of that task without being one: the
// task itself is the process SLURM_TASK_PID.
bool is_in_shell_of_srun(const Launcher& launcher) {
  return launcher.name == std::string("srun") && std::getenv("SLURM_PTY_PORT") &&
         integer_in("SLURM_TASK_PID") != getpid();
}

// That has started this process, or null.
const Launcher* launcher() {
  static const Launcher* const found = [] {
    const auto is_it = [](const Launcher& l) { return std::getenv(l.size) && !missing(l) && !is_in_shell_of_srun(l); };
    const auto first = std::ranges::find_if(launchers(), is_it);
    return first == launchers().end() ? nullptr : &*first;
  }();
  return found;
}

bool is_torchrun(const Launcher& launcher) { return launcher.name == std::string("torchrun"); }

int number(const char* name, int least, int most) {
  const std::string text = std::getenv(name);
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  check(error == std::errc() && end == text.data() + text.size() && value >= least && value <= most, name, "=", text,
        " is not a number from ", least, " to ", most, "; torchrun sets it for each process");
  return value;
}

// torchrun itself listens on MASTER_PORT.
void tell_nccl_where_rank_0_is() {
  const std::string address = std::getenv("MASTER_ADDR"), port = std::to_string(number("MASTER_PORT", 1, 65534) + 1);
  const bool is_ipv6 = address.find(':') != std::string::npos;
  setenv("NCCL_COMM_ID", ((is_ipv6 ? "[" + address + "]" : address) + ":" + port).c_str(), false);
}

// Those that torchrun has started. It only tells them where rank 0 is, which is enough for NCCL; until GPUs are
// connected they exchange nothing.
class TorchrunProcesses : public Communicator {
 public:
  TorchrunProcesses() {
    size_ = number("WORLD_SIZE", 1, 1 << 20);
    rank_ = number("RANK", 0, size_ - 1);
    on_host_ = number("LOCAL_WORLD_SIZE", 1, size_);
    rank_on_host_ = number("LOCAL_RANK", 0, on_host_ - 1);
    tell_nccl_where_rank_0_is();
  }
  void broadcast(void*, size_t, int) override { refuse(); }
  void start_sum(float*, int64_t, SumOptions) override { refuse(); }
  void copy(const std::vector<Copy>&) override { refuse(); }
  bool needs_gpus() const override { return true; }
  void connect_gpus() override {
    if constexpr (with_cuda) set_processes(cuda::connect_gpus(shared_from_this()));
  }
  bool all_end_together() override {
    if (rank_ > 0) std::this_thread::sleep_for(std::chrono::seconds(3));
    return false;
  }

 protected:
  std::string gather(const std::string&) override { refuse(); }

 private:
  [[noreturn]] static void refuse() {
    fail("torchrun connects processes on GPUs only; give --device cuda, or start them with mpirun");
  }
};

// This process, which its launcher has started as one of several, or as one; or nobody has.
struct StartedProcess : Communicator {
  explicit StartedProcess(const Launcher* by) {
    if (!by) return;
    rank_ = std::max(static_cast<int>(integer_in(by->rank)), 0);
    launched_ = by->name != std::string("srun");  // which also starts shells, and single programs
  }
  // A launcher ends the others when one ends with an error; rank 0 goes first.
  bool all_end_together() override {
    if (!launcher()) return true;
    if (rank_ > 0) std::this_thread::sleep_for(std::chrono::seconds(3));
    return rank_ == 0;
  }
  void connect() override {
    if (!launcher()) return name_what_is_missing();
    const auto until_the_end = shared_from_this();
    const int64_t count = integer_in(launcher()->size);
    if (is_torchrun(*launcher()) && count != 1)
      set_processes(std::make_shared<TorchrunProcesses>());
    else if (is_torchrun(*launcher()))
      tell_nccl_where_rank_0_is();
    else if (count > 1)
      set_processes(connect_by_mpi(count, launcher()->size));
    check(std::has_single_bit(static_cast<unsigned>(processes().size())), "started as ", count,
          " processes: their number must be a power of two");
  }
  // A single one that was launched exchanges by NCCL, too, so that NCCL can be tried on one GPU.
  void connect_gpus() override {
    if constexpr (with_cuda)
      if (launched_ && cuda::has_nccl()) set_processes(cuda::connect_gpus(shared_from_this()));
  }

 private:
  static void name_what_is_missing() {
    for (const Launcher& l : launchers())
      if (integer_in(l.size) > 1 && missing(l))
        fmt::print(stderr,
                   "runnel: {}={} is set, as by {}, but not {}: no launcher has started this process, which computes "
                   "by itself; unset {}\n",
                   l.size, integer_in(l.size), l.name, missing(l), l.size);
  }
};

}  // namespace

void find_launcher() { set_processes(std::make_shared<StartedProcess>(launcher())); }

std::string version_of_libraries() {
  return "\nMPI        " + mpi_version() + (with_cuda ? "\nNCCL       " + cuda::nccl_version() : "");
}

}  // namespace runnel
