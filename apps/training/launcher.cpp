#include "apps/training/launcher.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <string>
#include <system_error>
#include <thread>

#include "apps/training/mpi_communicator.h"
#include "engine/check.h"
#include "engine/communicator.h"

namespace runnel {
namespace {

// What torchrun tells each process.
std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  check(value, "RANK and WORLD_SIZE are set, as by torchrun, but not ", name,
        "; start processes with torchrun --no-python, or with mpirun");
  return value;
}
int number(const char* name, int least, int most) {
  const std::string text = variable(name);
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  check(error == std::errc() && end == text.data() + text.size() && value >= least && value <= most, name, "=", text,
        " is not a number from ", least, " to ", most, "; torchrun sets it for each process");
  return value;
}

// torchrun itself listens on MASTER_PORT.
void tell_nccl_where_rank_0_is() {
  const std::string address = variable("MASTER_ADDR"), port = std::to_string(number("MASTER_PORT", 1, 65534) + 1);
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
  void broadcast(void*, size_t, int) override { need_gpus(); }
  void start_sum(float*, int64_t, SumOptions) override { need_gpus(); }
  void copy(const std::vector<Copy>&) override { need_gpus(); }
  // When one ends with an error, torchrun ends the others; rank 0 goes first.
  bool all_end_together() override {
    if (rank_ > 0) std::this_thread::sleep_for(std::chrono::seconds(3));
    return false;
  }

 protected:
  std::string gather(const std::string&) override { need_gpus(); }

 private:
  [[noreturn]] static void need_gpus() {
    fail("torchrun connects processes on GPUs only; give --device cuda, or start them with mpirun");
  }
};

// A job of one process. It needs nothing from its launcher, but with torchrun connects itself by the same way as
// several.
struct OneProcess : Communicator {
  explicit OneProcess(bool of_torchrun) {
    launched_ = true;
    if (of_torchrun && std::getenv("MASTER_ADDR") && std::getenv("MASTER_PORT")) tell_nccl_where_rank_0_is();
  }
};

}  // namespace

void connect_processes() {
  // How many processes mpirun (Open MPI's, MPICH's) or srun says that it has started. An interactive shell of Slurm's
  // is a task, too, so one of srun's may be anything.
  int64_t count = 1;
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"})
    if (const char* const value = std::getenv(name)) count = std::max(count, int64_t{std::atoll(value)});
  const bool of_mpirun = std::getenv("OMPI_COMM_WORLD_SIZE") || std::getenv("PMI_SIZE");
  const char* const of_torchrun = std::getenv("RANK") ? std::getenv("WORLD_SIZE") : nullptr;
  if (count > 1)
    set_processes(connect_by_mpi(count));
  else if (of_torchrun && of_torchrun != std::string("1"))
    set_processes(std::make_shared<TorchrunProcesses>());
  else if (of_torchrun || of_mpirun)
    set_processes(std::make_shared<OneProcess>(of_torchrun));
  const int size = processes().size();
  check(std::has_single_bit(static_cast<unsigned>(size)), "started as ", size,
        " processes: their number must be a power of two");
}

}  // namespace runnel
