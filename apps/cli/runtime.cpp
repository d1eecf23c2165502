#include "apps/cli/runtime.h"

#include <fmt/format.h>
#include <omp.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "apps/cli/terminal.h"
#include "apps/cli/version.h"
#include "apps/training/communicator.h"
#include "engine/check.h"
#include "engine/file.h"
#include "engine/host.h"
#include "engine/text.h"
#include "ops/numerics.h"

namespace runnel {

Settings RuntimeOptions::list() {
  Choices precisions{"auto", "f32", "tf32", "bf16"};
  std::string rounding = "rounding of the operands of matrix products; auto: tf32 on CUDA, ";
  if (decodes()) {
    precisions.push_back("int8");
    rounding += "bf16 if the processor has it, else f32; int8: the weights as 8-bit integers, on the CPU";
  } else {
    rounding += "bf16 if the processor is faster with it, else f32";
  }
  return {{"device", &device, one_of({"auto", "cpu", "cuda", "cuda:N"}),
           "device to compute on; auto: a GPU if there is one; cuda:1: the second GPU", OldFiles::have_it, true},
          {"precision", &precision, one_of(precisions), rounding, OldFiles::have_it, true},
          {"threads", &threads, in_range(0, 1024), "CPU threads; 0: all cores", OldFiles::have_it, true},
          {"seed", &seed, in_range(0), "random seed"}};
}

void RuntimeOptions::prepare() {
  set_quiet(quiet);
  processes().connect();
  const Communicator& all = processes();
  check<UsageError>(all.processes_on_host() == 1 || !device.starts_with("cuda:"), "--device ", device,
                    ": of several processes on a host, each has the GPU of its number; give --device cuda");
  if (device.starts_with("cuda:"))
    choose_cuda_device(std::stoi(device.substr(5)));
  else if (all.size() > 1 && device != "cpu")  // a launcher may show each process no other GPU than its own
    choose_cuda_device(all.rank_on_host() % std::max(cuda_devices(), 1));
  const std::string problem = device == "cpu" ? "" : why_unavailable(Device::cuda);
  if (device == "auto") device = problem.empty() && !cuda_is_emulated() ? "cuda" : "cpu";
  check(device == "cpu" || problem.empty(), "--device ", device, ": ", problem);
  const bool cuda = chosen_device() == Device::cuda;
  if (cuda && cuda_is_emulated())
    fmt::print(stderr,
               "this build has no GPU support: an emulator runs the CUDA kernels on the CPU, many times slower\n");
  if (precision == "auto") precision = cuda ? "tf32" : (decodes() ? has_bf16() : is_bf16_faster()) ? "bf16" : "f32";
  check<UsageError>(cuda || precision != "tf32", "--precision tf32 is for --device cuda; give f32 or bf16");
  check<UsageError>(!cuda || precision != "int8", "--precision int8 is for --device cpu; give f32, tf32 or bf16");
  set_precision(precision == "bf16"   ? Precision::bf16
                : precision == "tf32" ? Precision::tf32
                : precision == "int8" ? Precision::int8
                                      : Precision::f32,
                chosen_device());
  // The cores that the launcher has bound this process to, or its share of the host's; a CPU quota is shared, too.
  const int64_t cores = omp_get_num_procs(), of_host = sysconf(_SC_NPROCESSORS_ONLN), on_host = all.processes_on_host();
  const int64_t quota = quota_of_cores(), share = std::min(cores < of_host ? cores : cores / on_host, quota / on_host);
  if (threads == 0) threads = std::getenv("OMP_NUM_THREADS") ? omp_get_max_threads() : std::max<int64_t>(share, 1);
  if (on_host > 1 && cores * on_host < of_host)
    fmt::print(stderr,
               "runnel: the launcher has bound each of {} processes to {} of {} cores; mpirun --bind-to none leaves "
               "them all\n",
               on_host, cores, of_host);
  // Under OMP_THREAD_LIMIT a team is smaller than was requested, and oneDNN leaves the missing threads' part undone.
  threads = std::min<int64_t>(threads, omp_get_thread_limit());
  omp_set_num_threads(static_cast<int>(threads));
  if (const int64_t granted = std::min(cores, quota); threads > granted)
    fmt::print(stderr, "runnel: {} threads on {} cores, which is slower than a thread for each core\n", threads,
               granted);
  double load = 0;  // of the last minute
  if (!cuda && threads > 1 && getloadavg(&load, 1) == 1) fmt::print(stderr, "{}", about_load(load, of_host));
  const nlohmann::json numerics{{"version", program_text()},
                                {"device", cuda ? model_name(Device::cuda) : "cpu"},
                                {"instruction set", name(instruction_set())},
                                {"precision", precision}};
  const bool exchanges = !cuda || !processes().needs_gpus();
  if (exchanges) check_that_all_agree(numerics);
  if (cuda) processes().connect_gpus();
  if (!exchanges) check_that_all_agree(numerics);
}

void name_left_out(const std::string& sentence, const std::vector<std::string>& all,
                   const std::filesystem::path& list) {
  constexpr size_t few = 5;
  std::string lines, place;
  for (const std::string& one : all) lines += shown(one) + "\n";
  if (all.size() > few && !list.empty()) try {
      write_atomically(list, {lines});
      place = "; all are in " + list.string();
    } catch (const Error&) {  // then all are named here
    }
  warn("runnel: " + shown(sentence + place) + "\n");
  for (size_t i = 0; i < (place.empty() ? all.size() : few); ++i) warn("  " + shown(all[i]) + "\n");
}

std::string about_load(double load, int64_t cores) {
  if (load <= 1.5 * static_cast<double>(cores)) return "";
  return fmt::format("runnel: this machine is busy, with a load average of {:.1f} on {} cores: all takes longer\n",
                     load, cores);
}

}  // namespace runnel
