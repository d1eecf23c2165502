// Processes that have a GPU each, connected by NCCL (apps/training/communicator.h). Its library is opened when the
// first GPU is connected: many machines have it in one of Python's packages only, and one GPU by itself does not need
// it.
//
// Messages have a stream of their own, on which all processes put the same operations in the same order. It waits for
// the kernels that compute the data to send; kernels after finish() wait for it. So messages travel while the backward
// pass goes on. Both waits are events, which a graph can capture.
#include "apps/processes/nccl_communicator.h"
#include "apps/processes/tree_sum.h"
#include "cuda/launch.h"
#include "cuda/map.h"
#include "cuda/temporary.h"
#include "engine/cuda_backend.h"

#if RUNNEL_WITH_NCCL
#include <dlfcn.h>
#include <nccl.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <thread>
#endif

namespace runnel::cuda {

#if RUNNEL_WITH_NCCL
namespace {

// Launch: over(n), both. Owns: y[i]. Shared: none. x are bfloat16 numbers, of which the upper halves are sent.
__global__ void pack_bf16_kernel(uint16_t* y, const float* x, int64_t n) {
  for (int64_t i = first_element(); i < n; i += element_step())
    y[i] = static_cast<uint16_t>(__float_as_uint(x[i]) >> 16);
}
__global__ void unpack_bf16_kernel(float* y, const uint16_t* x, int64_t n) {
  for (int64_t i = first_element(); i < n; i += element_step()) y[i] = __uint_as_float(uint32_t{x[i]} << 16);
}

#define RUNNEL_NCCL_FUNCTIONS(f)                                                                          \
  f(AllGather) f(AllReduce) f(Broadcast) f(CommAbort) f(CommDestroy) f(CommGetAsyncError) f(CommInitRank) \
      f(GetErrorString) f(GetLastError) f(GetUniqueId) f(GetVersion) f(GroupEnd) f(GroupStart) f(Recv) f(Send)

struct Nccl {
#define RUNNEL_POINTER(name) decltype(&nccl##name) name = nullptr;
  RUNNEL_NCCL_FUNCTIONS(RUNNEL_POINTER)
#undef RUNNEL_POINTER
  std::string problem;  // why it cannot be used; empty if it can
};

Nccl open_nccl() {
  Nccl all;
#ifdef __CUDACC__
  void* const library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    all.problem = std::string("NCCL's library libnccl.so.2, which connects processes on GPUs, is not found (") +
                  dlerror() +
                  "); install libnccl2 (NVIDIA's packages), or add the folder nvidia/nccl/lib of Python's package "
                  "nvidia-nccl-cu13 to LD_LIBRARY_PATH";
    return all;
  }
#define RUNNEL_LOOK_UP(name)                                                        \
  all.name = reinterpret_cast<decltype(&nccl##name)>(dlsym(library, "nccl" #name)); \
  if (!all.name) all.problem = "NCCL's library libnccl.so.2 has no nccl" #name "; install version 2.13 or later";
#else  // the emulator's is part of the program
#define RUNNEL_LOOK_UP(name) all.name = nccl##name;
#endif
  RUNNEL_NCCL_FUNCTIONS(RUNNEL_LOOK_UP)
#undef RUNNEL_LOOK_UP
  return all;
}

const Nccl& opened() {
  static const Nccl all = open_nccl();
  return all;
}

const Nccl& nccl() {
  check(opened().problem.empty(), opened().problem);
  return opened();
}

void check_nccl(ncclResult_t status, const char* what) {
  if (status == ncclSuccess) return;
  const char* const details = nccl().GetLastError(nullptr);
  fail(what, ": ", nccl().GetErrorString(status), details && *details ? std::string(" (") + details + ")" : "",
       "; NCCL_DEBUG=INFO in the environment says more");
}

// Floats in a message, 4 MiB: over NVLink, shorter ones take as long. A sum is of twice as many.
constexpr int64_t half = 1 << 20;

class NcclCommunicator : public Communicator {
 public:
  explicit NcclCommunicator(std::shared_ptr<Communicator> launcher)
      : Communicator(*launcher), launcher_(std::move(launcher)), received_(half), packed_(2 * half) {
    floats_at_once_ = 2 * half;
    // Where rank 0 waits for the others: NCCL chooses that and the launcher tells, or all know it from the environment.
    const bool all_know = std::getenv("NCCL_COMM_ID");
    ncclUniqueId id{};
    if (rank_ == 0 || all_know) check_nccl(nccl().GetUniqueId(&id), "ncclGetUniqueId");
    if (!all_know) launcher_->broadcast(&id, sizeof id);
    check_nccl(nccl().CommInitRank(&comm_, size_, id, rank_), "connecting the GPUs");
    check_cuda(cudaStreamCreateWithFlags(&messages_, cudaStreamNonBlocking), "cudaStreamCreate");
    check_cuda(cudaEventCreateWithFlags(&computed_, cudaEventDisableTiming), "cudaEventCreate");
    check_cuda(cudaEventCreateWithFlags(&received_all_, cudaEventDisableTiming), "cudaEventCreate");
    guard_ = std::thread([this] { watch(); });
  }
  ~NcclCommunicator() override {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      ends_ = true;
    }
    end_.notify_all();
    guard_.join();
    if (!fails_) static_cast<void>(cudaStreamSynchronize(messages_));
    static_cast<void>(fails_ ? nccl().CommAbort(comm_) : nccl().CommDestroy(comm_));
    static_cast<void>(cudaEventDestroy(computed_));
    static_cast<void>(cudaEventDestroy(received_all_));
    static_cast<void>(cudaStreamDestroy(messages_));
  }

  void broadcast(void* data, size_t bytes, int from) override {
    const OnStream scope = after_kernels();
    const Temporary<char> memory(static_cast<int64_t>(bytes));
    if (rank_ == from) cuda::copy(memory.data(), data, bytes, false);
    check_nccl(nccl().Broadcast(memory.data(), memory.data(), bytes, ncclUint8, from, comm_, messages_),
               "ncclBroadcast");
    cuda::copy(data, memory.data(), bytes, true);
  }

  void start_sum(float* x, int64_t n, SumOptions options) override {
    const OnStream scope = after_kernels();
    if (options.any_order) {
      check_nccl(nccl().AllReduce(x, x, static_cast<size_t>(n), ncclFloat32, ncclSum, comm_, messages_),
                 "ncclAllReduce");
      return;
    }
    for (const Exchange& step : tree_exchanges(rank_, size_, n)) {
      const float* const out = x + step.sent.first;
      float* const to = x + step.received.first;
      float* const in = step.adds ? received_.data() : to;
      const int64_t count = step.received.count;
      if (options.bf16) {
        uint16_t* const packed_in = packed_.data() + half;
        launch("pack_bf16", pack_bf16_kernel, over(step.sent.count), packed_.data(), out, step.sent.count);
        exchange(step, packed_.data(), packed_in, ncclBfloat16);
        launch("unpack_bf16", unpack_bf16_kernel, over(count), in, packed_in, count);
      } else {
        exchange(step, out, in, ncclFloat32);
      }
      if (step.adds) (options.bf16 ? accumulate_bf16 : accumulate)(to, to, in, count);
    }
  }
  void copy(const std::vector<Copy>& copies) override {
    {
      const OnStream scope = after_kernels();
      check_nccl(nccl().GroupStart(), "ncclGroupStart");
      for (const auto& [x, n, from] : copies)
        check_nccl(nccl().Broadcast(x, x, static_cast<size_t>(n), ncclFloat32, from, comm_, messages_),
                   "ncclBroadcast");
      check_nccl(nccl().GroupEnd(), "ncclBroadcast");
    }
    finish();
  }
  void finish() override {
    check_cuda(cudaEventRecord(received_all_, messages_), "cudaEventRecord");
    check_cuda(cudaStreamWaitEvent(stream(), received_all_, 0), "cudaStreamWaitEvent");
  }

  bool all_end_together() override {
    fails_ = true;
    return launcher_->all_end_together();
  }

 protected:
  std::string gather(const std::string& bytes) override {
    std::string all(bytes.size() * static_cast<size_t>(size_), '\0');
    if (all.empty()) return all;
    const OnStream scope = after_kernels();
    const Temporary<char> memory(static_cast<int64_t>(all.size()));
    char* const own = memory.data() + bytes.size() * static_cast<size_t>(rank_);
    cuda::copy(own, bytes.data(), bytes.size(), false);
    check_nccl(nccl().AllGather(own, memory.data(), bytes.size(), ncclUint8, comm_, messages_), "ncclAllGather");
    cuda::copy(all.data(), memory.data(), all.size(), true);
    return all;
  }
  void end_others(int status) override { launcher_->end_all(status); }

 private:
  // Later work on the stream waits for the kernels that were launched so far.
  OnStream after_kernels() {
    check_cuda(cudaEventRecord(computed_, stream()), "cudaEventRecord");
    check_cuda(cudaStreamWaitEvent(messages_, computed_, 0), "cudaStreamWaitEvent");
    return OnStream(messages_);
  }

  void exchange(const Exchange& step, const void* out, void* in, ncclDataType_t type) {
    const auto sent = static_cast<size_t>(step.sent.count), received = static_cast<size_t>(step.received.count);
    check_nccl(nccl().GroupStart(), "ncclGroupStart");
    if (sent) check_nccl(nccl().Send(out, sent, type, step.neighbour, comm_, messages_), "ncclSend");
    if (received) check_nccl(nccl().Recv(in, received, type, step.neighbour, comm_, messages_), "ncclRecv");
    check_nccl(nccl().GroupEnd(), "ncclSend and ncclRecv");
  }

  // A GPU that waits for a process that is gone waits for ever. Whoever started the processes ends those of its host;
  // those of others end themselves.
  void watch() {
    std::unique_lock<std::mutex> lock(mutex_);
    const auto ends_within = [&](int seconds) {
      return end_.wait_for(lock, std::chrono::seconds(seconds), [this] { return ends_; });
    };
    while (!ends_within(1)) {
      ncclResult_t state = ncclSuccess;
      static_cast<void>(nccl().CommGetAsyncError(comm_, &state));
      if (state == ncclSuccess || ends_within(5)) continue;
      const std::string sentence = "runnel: " + name() +
                                   " has lost another process (NCCL: " + nccl().GetErrorString(state) +
                                   "); start all again with --resume\n";
      static_cast<void>(!write(STDERR_FILENO, sentence.data(), sentence.size()));
      _exit(1);
    }
  }

  const std::shared_ptr<Communicator> launcher_;
  const Temporary<float> received_;
  const Temporary<uint16_t> packed_;  // [2,half]: sent, received
  ncclComm_t comm_ = nullptr;
  cudaStream_t messages_ = nullptr;
  cudaEvent_t computed_ = nullptr, received_all_ = nullptr;
  bool fails_ = false;
  std::mutex mutex_;
  std::condition_variable end_;
  bool ends_ = false;
  std::thread guard_;
};

}  // namespace

std::shared_ptr<Communicator> connect_gpus(std::shared_ptr<Communicator> launcher) {
  return std::make_shared<NcclCommunicator>(std::move(launcher));
}

bool has_nccl() { return opened().problem.empty(); }

std::string nccl_version() {
  if (!has_nccl()) return "no libnccl.so.2";
  int version = 0;
  check_nccl(nccl().GetVersion(&version), "ncclGetVersion");
  return "NCCL " + std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

#else

std::shared_ptr<Communicator> connect_gpus(std::shared_ptr<Communicator>) {
  fail(
      "this build has no NCCL, which connects processes on GPUs; install libnccl-dev (NVIDIA's packages) and build "
      "again, or give --device cpu");
}

bool has_nccl() { return false; }
std::string nccl_version() { return "no NCCL"; }

#endif

}  // namespace runnel::cuda
