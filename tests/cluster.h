// Sandboxes that start the program in several processes.
#pragma once
#include <cstdlib>
#include <string>

#include "engine/device.h"
#include "tests/folder.h"
#include "tests/program.h"

namespace runnel::test {

// A sandbox in which mpirun starts the program. It may be run by root, and with more processes than there are cores.
// Converts to false, and counts a skip, if there is no mpirun or the program was built without MPI.
struct Cluster : Sandbox {
  Cluster() {
    const bool is_built_in = run("--version").out.find("MPI        not") == std::string::npos;
    executable = "/usr/bin/mpirun";
    if (!is_built_in || !fs::exists(executable)) {
      executable.clear();
      MESSAGE("skipped: 1 test, there is no MPI (libopenmpi-dev, openmpi-bin)");
    }
    for (const char* allowed : {"OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM",
                                "OMPI_MCA_rmaps_base_oversubscribe", "OMPI_MCA_mpi_yield_when_idle"})
      setenv(allowed, "1", 1);
    setenv("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe", 1);  // the same for Open MPI 5
    setenv("LSAN_OPTIONS", "detect_leaks=0", 1);                           // Open MPI leaves some memory
  }
  explicit operator bool() const { return !executable.empty(); }
  static std::string on(int count, const std::string& words) {
    return "--bind-to none -n " + std::to_string(count) + " " + program() + " " + words;
  }
  void succeed(int count, const std::string& words) const {
    const Result result = run(on(count, words));
    CAPTURE(words);
    CAPTURE(result.out);
    CAPTURE(result.err);
    REQUIRE(result.status == 0);
    CHECK(result.out.find_first_of("\r\x1b") == std::string::npos);  // mpirun gives each a terminal
  }
  std::string last(const std::string& run_folder) const { return read(folder / run_folder / "last.safetensors"); }
};

// Whether the emulator can connect processes that have a GPU each.
inline bool has_gpus() {
  if (!cuda_is_emulated()) return false;
  const bool has_nccl = std::system((program() + " --version | grep -q 'NCCL       NCCL'").c_str()) == 0;
  if (!has_nccl) MESSAGE("skipped: 1 test, there is no NCCL (libnccl-dev)");
  return has_nccl;
}

// A sandbox that starts processes and tells each its number in the environment, as torchrun does.
struct Torchrun : Sandbox {
  Torchrun() { executable = "/bin/sh"; }
  // A script that starts them. Their numbers are in pids. The exit status is that of the first that fails.
  std::string script(int count, const std::string& words) const {
    std::string text;
    for (int rank = 0; rank < count; ++rank)
      text += "RANK=" + std::to_string(rank) + " LOCAL_RANK=" + std::to_string(rank) +
              " WORLD_SIZE=" + std::to_string(count) + " LOCAL_WORLD_SIZE=" + std::to_string(count) +
              " MASTER_ADDR=localhost MASTER_PORT=" + std::to_string(20000 + getpid() % 20000) + " " + program() + " " +
              words + " &\npids=\"$pids $!\"\n";
    write_bytes(folder / "start.sh", text + "echo $pids > pids\nfor pid in $pids; do wait $pid || exit $?; done\n");
    return "start.sh";
  }
};

// Two processes train to the same checkpoint and metrics as one: runs 1 and 2 in the sandbox.
inline void check_same_from_two(const Cluster& box, const std::string& task) {
  const std::string flags =
      task + " --heads 2 --threads 1 --quiet --batch 4 --steps 4 --log-every 1 --evaluate-every 2 --overwrite --out ";
  for (const int count : {1, 2}) box.succeed(count, flags + std::to_string(count));
  CHECK(box.last("2") == box.last("1"));
  CHECK(untimed(box.folder / "2" / "metrics.csv") == untimed(box.folder / "1" / "metrics.csv"));
}

}  // namespace runnel::test
