// The CUDA runtime over the memory of the host. A stream is a queue of closures that runs only when something waits for
// it; the seed draws the order between streams. So what was not waited for has not happened. A captured graph is such
// queues, kept: one for each stream that took part.
#include "runtime.h"

#include <sys/mman.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <thread>

namespace {

struct Moment {  // one record of an event
  bool passed = false;
  std::chrono::steady_clock::time_point time{};
};

struct Item {  // of a stream
  simt::Work work;
  std::shared_ptr<const Moment> after{};
  bool is_ready() const { return !after || after->passed; }
};

struct Captured {
  std::vector<std::deque<Item>> branches{1};
  std::vector<std::shared_ptr<Moment>> moments;
  std::vector<std::shared_ptr<void>> memory;  // allocated while capturing
};

struct Capture {
  bool relaxed;
  bool invalidated = false, ended = false;
  Captured captured{};
  std::vector<CUstream_st*> streams{};  // of each branch; the first began the capture
  std::vector<size_t> joined{};         // so many items of each branch come before an event that the first waits for
};

}  // namespace

struct CUgraph_st {
  Captured captured;
};
struct CUgraphExec_st {
  std::shared_ptr<const Captured> captured;
  bool frees_on_launch;
};
struct CUstream_st {
  std::deque<Item> queue;
  std::shared_ptr<Capture> capture;
  size_t branch = 0;  // of the capture
};
struct CUevent_st {
  std::shared_ptr<Moment> moment;
  std::shared_ptr<Capture> capture;
  size_t branch = 0, position = 0;  // in the capture
};
struct CUmemPoolHandle_st {};

namespace {

using simt::enqueue;
using simt::fail;
using simt::fault;
using simt::Work;

constexpr size_t longest_queue = 1024;
#if RUNNEL_WITH_ADDRESS_SANITIZER
constexpr size_t gap = 0;
#else
constexpr size_t gap = 1;  // so that the end of one block is not the beginning of the next
#endif

struct Block {
  size_t bytes;
  bool usable;  // else freed on its stream, but kept by a graph
  bool of_graph;
};

struct Pool {  // in bytes
  size_t used = 0;
  size_t reserved = 0;  // the most that was ever used since it was trimmed: it gives nothing back by itself
  void take(size_t bytes) { reserved = std::max(reserved, used += bytes); }
};

// Never destroyed: the last to free memory may be a static object of the program.
auto& device_memory = *new std::map<const char*, Block>;  // by address
auto& null_stream = *new CUstream_st;
auto& streams = *new std::vector<CUstream_st*>{&null_stream};
Pool stream_pool, graph_pool;                  // the second: what graphs allocate
bool device_at_work = false;                   // otherwise device memory is poisoned for AddressSanitizer
std::map<const void*, size_t> dynamic_shared;  // by kernel: what cudaFuncSetAttribute allows
CUmemPoolHandle_st default_pool;
cudaError_t last_error = cudaSuccess;

// SIMT_FAULT: "unsupported" has no kernels for the device, "busy" is in use by another process, "no-pools" and
// "refused-pools" cannot allocate in the order of a stream, "lost:N" fails for good with the N-th launch, "idle"
// launches nothing.
bool is_lost() {
  static const size_t last = fault().starts_with("lost:") ? std::stoull(fault().substr(5)) : SIZE_MAX;
  return simt::launches() >= last;
}

void check_thread() {
  static const std::thread::id first = std::this_thread::get_id();
  if (std::this_thread::get_id() != first) fail("CUDA is called from a second thread; the emulator has no locks");
}

cudaError_t result(cudaError_t error) {
  check_thread();
  if (is_lost()) return cudaErrorLaunchFailure;
  if (error != cudaSuccess) last_error = error;
  return error;
}

size_t total_memory() {
  const char* text = std::getenv("SIMT_MEMORY");
  return text ? std::strtoull(text, nullptr, 10) : size_t{8} << 30;
}

// What differs between devices, from the environment or drawn by the seed. Seed 0 has the smallest shared memory of all
// supported devices, that of compute capability 12.0.
int device_size(const char* name, std::initializer_list<int> of_seeds) {
  const char* text = std::getenv(name);
  return text ? std::atoi(text) : of_seeds.begin()[simt::seed() % of_seeds.size()];
}
int multiprocessors() {
  static const int count = device_size("SIMT_MULTIPROCESSORS", {4, 132, 1});
  return count;
}
int shared_limit() {  // bytes per block
  static const int bytes = 1024 * device_size("SIMT_SHARED", {99, 227});
  return bytes;
}

bool no_device() { return std::getenv("SIMT_NO_DEVICE") != nullptr; }

CUstream_st* at(cudaStream_t stream) {
  return stream == nullptr || stream == cudaStreamLegacy || stream == cudaStreamPerThread ? &null_stream : stream;
}

// --- running what is queued ---

class DeviceAtWork {
 public:
  DeviceAtWork() {
    if (!outermost_) return;
    device_at_work = true;
    for (const auto& [begin, block] : device_memory)
      if (block.usable) simt::permit(begin, block.bytes);
  }
  ~DeviceAtWork() {
    if (!outermost_) return;
    device_at_work = false;
    for (const auto& [begin, block] : device_memory) simt::forbid(begin, block.bytes);
  }
  DeviceAtWork(const DeviceAtWork&) = delete;
  DeviceAtWork& operator=(const DeviceAtWork&) = delete;

 private:
  const bool outermost_ = !device_at_work;
};

// Runs the first item of one of the queues; false if all are empty.
bool run_one(const std::vector<std::deque<Item>*>& queues) {
  std::vector<std::deque<Item>*> ready;
  for (std::deque<Item>* queue : queues)
    if (!queue->empty() && queue->front().is_ready()) ready.push_back(queue);
  if (ready.empty()) return false;
  std::deque<Item>& queue = *(simt::seed() == 0   ? ready.front()
                              : simt::seed() == 1 ? ready.back()
                                                  : ready[simt::next_random() % ready.size()]);
  const Item item = std::move(queue.front());
  queue.pop_front();
  if (item.work) item.work();
  return true;
}

void run_one() {
  std::vector<std::deque<Item>*> queues;
  for (CUstream_st* stream : streams) queues.push_back(&stream->queue);
  if (!run_one(queues)) fail("what is waited for is on no stream");
}

template <class Condition>
void run_until(Condition holds) {
  check_thread();
  const DeviceAtWork at_work;
  while (!holds()) run_one();
}

void run_all() {
  run_until([] {
    for (const CUstream_st* stream : streams)
      if (!stream->queue.empty()) return false;
    return true;
  });
}

// Whether a capture forbids the call; if so, the capture is lost.
bool forbidden_by_capture(bool also_if_relaxed = true) {
  bool forbidden = false;
  for (CUstream_st* stream : streams)
    if (stream->capture && (also_if_relaxed || !stream->capture->relaxed))
      forbidden = stream->capture->invalidated = true;
  return forbidden;
}

// --- device memory ---

const std::pair<const char* const, Block>* block_of(const void* address) {
  auto after = device_memory.upper_bound(static_cast<const char*>(address));
  if (after == device_memory.begin()) return nullptr;
  const auto& entry = *--after;
  return static_cast<const char*>(address) <= entry.first + entry.second.bytes ? &entry : nullptr;
}

bool on_device(const void* begin, size_t bytes) {
  const auto* block = block_of(begin);
  return block && static_cast<const char*>(begin) + bytes <= block->first + block->second.bytes;
}

// Whether it is an address that only the host can read. Not counted are those below 4 GiB, since numbers may look like
// them, and in mappings of more than a TiB, which are the sanitizers' shadow memory.
bool on_host(uintptr_t address) {
  constexpr uintptr_t page = 4096;
  unsigned char resident = 0;
  if (address < uintptr_t{1} << 32 || address >> 47 || block_of(reinterpret_cast<const void*>(address)) ||
      mincore(reinterpret_cast<void*>(address / page * page), 1, &resident))
    return false;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    unsigned long begin = 0, end = 0;
    char readable = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx %c", &begin, &end, &readable) == 3 && address >= begin && address < end)
      return readable == 'r' && end - begin < uintptr_t{1} << 40;
  }
  return false;
}

void set_usable(void* memory, bool usable) {
  Block& block = device_memory.at(static_cast<const char*>(memory));
  block.usable = usable;
  if (usable && device_at_work)
    simt::permit(memory, block.bytes);
  else
    simt::forbid(memory, block.bytes);
}

Pool& pool_of(const Block& block) { return block.of_graph ? graph_pool : stream_pool; }

// Null when out of memory.
void* allocate(size_t bytes, bool of_graph = false) {
  check_thread();
  if (bytes > total_memory() - std::min(stream_pool.used + graph_pool.used, total_memory())) return nullptr;
  void* memory = nullptr;
  if (posix_memalign(&memory, 256, bytes + gap)) return nullptr;
  simt::make_undefined(memory, bytes);
  const Block& block = device_memory[static_cast<char*>(memory)] = {bytes, true, of_graph};
  pool_of(block).take(bytes);
  set_usable(memory, !of_graph);
  return memory;
}

void release(void* memory) {
  const auto block = device_memory.find(static_cast<char*>(memory));
  if (block == device_memory.end()) fail("%p is freed, but is no device memory (freed twice?)", memory);
  simt::permit(memory, block->second.bytes);
  pool_of(block->second).used -= block->second.bytes;
  device_memory.erase(block);
  std::free(memory);
}

// The last graph that holds the memory is gone: if it has not been freed, it is ordinary memory now.
void release_by_graph(void* memory) {
  Block& block = device_memory.at(static_cast<char*>(memory));
  if (!block.usable) return release(memory);
  graph_pool.used -= block.bytes;
  block.of_graph = false;
  stream_pool.take(block.bytes);
}

void run_graph(const Captured& graph, bool frees_on_launch) {
  for (const std::shared_ptr<void>& memory : graph.memory) {
    if (device_memory.at(static_cast<char*>(memory.get())).usable && !frees_on_launch)
      fail("a graph is launched again, but memory that it allocates has not been freed since");
    set_usable(memory.get(), false);
  }
  for (const std::shared_ptr<Moment>& moment : graph.moments) moment->passed = false;
  std::vector<std::deque<Item>> branches = graph.branches;
  std::vector<std::deque<Item>*> queues;
  for (std::deque<Item>& branch : branches) queues.push_back(&branch);
  while (run_one(queues)) {
  }
}

// --- errors ---

struct ErrorWords {
  cudaError_t error;
  const char* name;
  const char* words;
};
constexpr ErrorWords errors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    {cudaErrorDevicesUnavailable, "cudaErrorDevicesUnavailable", "CUDA-capable device(s) is/are busy or unavailable"},
    {cudaErrorNoKernelImageForDevice, "cudaErrorNoKernelImageForDevice",
     "no kernel image is available for execution on the device"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorIllegalState, "cudaErrorIllegalState", "the operation cannot be performed in the present state"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
     "operation not permitted when stream is capturing"},
    {cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated",
     "operation failed due to a previous error during capture"},
    {cudaErrorStreamCaptureUnjoined, "cudaErrorStreamCaptureUnjoined", "capturing stream has unjoined work"},
    {cudaErrorStreamCaptureIsolation, "cudaErrorStreamCaptureIsolation",
     "dependency created on uncaptured work in another stream"},
    {cudaErrorCapturedEvent, "cudaErrorCapturedEvent",
     "operation not permitted on an event last recorded in a capturing stream"},
};
const ErrorWords& words_of(cudaError_t error) {
  for (const ErrorWords& known : errors)
    if (known.error == error) return known;
  static constexpr ErrorWords unknown{cudaErrorUnknown, "cudaErrorUnknown", "an error unknown to the emulator"};
  return unknown;
}

}  // namespace

namespace simt {

std::set<std::string>& launched() {
  struct Names : std::set<std::string> {
    ~Names() {
      const char* path = std::getenv("SIMT_LAUNCHED");
      if (!path) return;
      std::string text;
      for (const std::string& name : *this) text += name + '\n';
      std::ofstream(path, std::ios::app) << text << std::flush;
    }
  };
  static Names names;
  return names;
}

std::string fault() {
  const char* const text = std::getenv("SIMT_FAULT");
  return text ? text : "";
}

size_t& launches() {
  static size_t count = 0;
  return count;
}

cudaError_t enqueue(cudaStream_t stream, Work work) {
  check_thread();
  CUstream_st* s = at(stream);
  if (s->capture) {
    s->capture->captured.branches[s->branch].push_back({std::move(work)});
    return cudaSuccess;
  }
  if (s == &null_stream || !null_stream.queue.empty()) run_all();  // it is ordered with all others
  if (s->queue.size() == longest_queue) run_until([s] { return s->queue.empty(); });
  s->queue.push_back({std::move(work)});
  return cudaSuccess;
}

bool is_capturing(cudaStream_t stream) { return at(stream)->capture != nullptr; }

void require_device_memory(const std::vector<const void*>& pointers, const char* where) {
  for (size_t i = 0; i < pointers.size(); ++i)
    if (pointers[i] && !block_of(pointers[i]))
      fail("pointer %zu of %s is no device memory (a host pointer, or freed?)", i, where);
}

// At the launch only: of memory that is freed before the kernel runs, AddressSanitizer's report says more.
void check_struct(const void* kernel, size_t argument, const void* value, size_t bytes) {
  for (size_t at = 0; at + sizeof(uintptr_t) <= bytes; at += sizeof(uintptr_t)) {
    uintptr_t word = 0;
    std::memcpy(&word, static_cast<const char*>(value) + at, sizeof word);
    if (on_host(word))
      fail(
          "the pointer at byte %zu of argument %zu, a struct, is no device memory (a host pointer, or freed?): kernel "
          "%s",
          at, argument, Symbol(kernel).text);
  }
}

cudaError_t enqueue_kernel(const cudaLaunchConfig_t& config, const void* kernel, Call call) {
  const dim3 blocks = config.gridDim, threads = config.blockDim;
  const size_t n = size_t{threads.x} * threads.y * threads.z;
  if (n == 0 || n > 1024 || threads.x > 1024 || threads.y > 1024 || threads.z > 64)
    return result(cudaErrorInvalidConfiguration);
  if (!blocks.x || !blocks.y || !blocks.z || blocks.x > 0x7fffffffu || blocks.y > 65535 || blocks.z > 65535)
    return result(cudaErrorInvalidConfiguration);
  const auto allowed = dynamic_shared.find(kernel);
  if (config.dynamicSmemBytes > (allowed == dynamic_shared.end() ? 48 * 1024 : allowed->second))
    return result(cudaErrorInvalidValue);
  require_device_memory(call.pointers, "a kernel's arguments");
  ++launches();
  if (is_lost()) return result(cudaErrorLaunchFailure);
  if (fault() == "idle") return enqueue(config.stream, {});
  const Grid grid{blocks, threads, config.dynamicSmemBytes, kernel};
  return enqueue(config.stream, [grid, call = std::move(call)] {
    require_device_memory(call.pointers, "a kernel's arguments, now that it runs,");
    run_grid(grid, call);
  });
}

void describe_device_memory(const void* address) {
  const auto* block = block_of(address);
  if (!block) return;
  std::fprintf(stderr, "simt: byte %td of device memory with %zu bytes%s\n",
               static_cast<const char*>(address) - block->first, block->second.bytes,
               !device_at_work         ? ", touched by the host"
               : !block->second.usable ? ", freed on its stream"
                                       : "");
}

}  // namespace simt

extern "C" {

// --- devices ---

cudaError_t cudaGetDeviceCount(int* count) {
  *count = no_device() ? 0 : 1;
  return no_device() ? result(cudaErrorNoDevice) : cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return result(no_device() ? cudaErrorNoDevice : cudaSuccess);
}

cudaError_t cudaSetDevice(int device) {
  if (fault() == "busy") return result(cudaErrorDevicesUnavailable);
  return result(no_device() ? cudaErrorNoDevice : device != 0 ? cudaErrorInvalidDevice : cudaSuccess);
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  *properties = {};
  if (no_device() || device != 0) return result(no_device() ? cudaErrorNoDevice : cudaErrorInvalidDevice);
  std::strcpy(properties->name, "CUDA emulator on the CPU (tests/simt)");
  properties->major = 12;
  properties->multiProcessorCount = multiprocessors();
  properties->warpSize = warpSize;
  properties->maxThreadsPerBlock = 1024;
  properties->sharedMemPerBlock = 48 * 1024;
  properties->sharedMemPerBlockOptin = static_cast<size_t>(shared_limit());
  properties->totalGlobalMem = total_memory();
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  if (no_device() || device != 0) return result(no_device() ? cudaErrorNoDevice : cudaErrorInvalidDevice);
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount:
      *value = multiprocessors();
      break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = shared_limit();
      break;
    case cudaDevAttrComputeCapabilityMajor:
      *value = 12;
      break;
    case cudaDevAttrComputeCapabilityMinor:
      *value = 0;
      break;
    case cudaDevAttrMemoryPoolsSupported:
      *value = fault() != "no-pools";
      break;
    default:
      fail("cudaDeviceGetAttribute: attribute %d has no value in the emulator", static_cast<int>(attribute));
  }
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
  if (forbidden_by_capture()) return result(cudaErrorStreamCaptureUnsupported);
  run_all();
  return result(cudaSuccess);
}

// --- errors ---

cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
cudaError_t cudaPeekAtLastError() { return last_error; }
const char* cudaGetErrorName(cudaError_t error) { return words_of(error).name; }
const char* cudaGetErrorString(cudaError_t error) { return words_of(error).words; }

// --- kernels ---

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t*, const void*, void**) {
  fail("cudaLaunchKernelExC erases the types of the arguments: use cudaLaunchKernelEx");
}

cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value) {
  if (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize) {
    if (value < 0 || value > shared_limit()) return result(cudaErrorInvalidValue);
    dynamic_shared[kernel] = static_cast<size_t>(value);
  }
  return result(cudaSuccess);
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* kernel) {
  if (fault() == "unsupported") return result(cudaErrorNoKernelImageForDevice);
  *attributes = {};
  attributes->maxThreadsPerBlock = 1024;
  const auto allowed = dynamic_shared.find(kernel);
  attributes->maxDynamicSharedSizeBytes =
      allowed == dynamic_shared.end() ? 48 * 1024 : static_cast<int>(allowed->second);
  return result(cudaSuccess);
}

// --- memory ---

cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total) {
  *total = total_memory();
  *free_bytes = *total - std::min(stream_pool.reserved + graph_pool.reserved, *total);
  return result(cudaSuccess);
}

cudaError_t cudaMalloc(void** memory, size_t bytes) {
  *memory = nullptr;
  if (forbidden_by_capture(false)) return result(cudaErrorStreamCaptureUnsupported);
  if (bytes == 0) return result(cudaSuccess);
  *memory = allocate(bytes);
  return result(*memory ? cudaSuccess : cudaErrorMemoryAllocation);
}

cudaError_t cudaFree(void* memory) {
  if (forbidden_by_capture(false)) return result(cudaErrorStreamCaptureUnsupported);
  run_all();
  if (memory) release(memory);
  return result(cudaSuccess);
}

// While capturing, the graph owns the memory, and its contents are undefined again at each launch.
cudaError_t cudaMallocAsync(void** memory, size_t bytes, cudaStream_t stream) {
  *memory = nullptr;
  if (fault() == "no-pools" || fault() == "refused-pools") return result(cudaErrorNotSupported);
  if (bytes == 0) return result(cudaSuccess);
  CUstream_st* s = at(stream);
  *memory = allocate(bytes, s->capture != nullptr);
  if (!*memory && !s->capture) {
    run_all();  // what is queued may free some
    *memory = allocate(bytes);
  }
  if (!*memory) return result(cudaErrorMemoryAllocation);
  if (s->capture) {
    s->capture->captured.memory.emplace_back(*memory, release_by_graph);
    return enqueue(stream, [memory = *memory, bytes] {
      set_usable(memory, true);
      simt::make_undefined(memory, bytes);
    });
  }
  return result(cudaSuccess);
}

cudaError_t cudaFreeAsync(void* memory, cudaStream_t stream) {
  if (!memory) return result(cudaSuccess);
  const auto block = device_memory.find(static_cast<char*>(memory));
  if (block == device_memory.end()) return result(cudaErrorInvalidValue);
  if (block->second.of_graph) return enqueue(stream, [memory] { set_usable(memory, false); });
  if (at(stream)->capture) return result(cudaErrorInvalidValue);  // a graph can free only what graphs allocate
  return enqueue(stream, [memory] { release(memory); });
}

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int) {
  *pool = &default_pool;
  return result(no_device() ? cudaErrorNoDevice : cudaSuccess);
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) { return result(cudaSuccess); }

cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t, cudaMemPoolAttr attribute, void* value) {
  if (attribute != cudaMemPoolAttrReservedMemCurrent && attribute != cudaMemPoolAttrUsedMemCurrent)
    return result(cudaErrorInvalidValue);
  *static_cast<uint64_t*>(value) = attribute == cudaMemPoolAttrUsedMemCurrent ? stream_pool.used : stream_pool.reserved;
  return result(cudaSuccess);
}

cudaError_t cudaMemPoolTrimTo(cudaMemPool_t, size_t least) {
  stream_pool.reserved = std::max(stream_pool.used, std::min(stream_pool.reserved, least));
  return result(cudaSuccess);
}

// Host memory is read at once: what CUDA does with memory that is not page-locked. In a graph it would be accessed at
// each launch, when it may be gone.
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  if (bytes == 0) return result(cudaSuccess);
  const bool to_device = on_device(to, bytes), from_device = on_device(from, bytes);
  if ((block_of(to) && !to_device) || (block_of(from) && !from_device))
    return result(cudaErrorInvalidValue);  // too long
  if (kind != cudaMemcpyDefault &&
      (to_device != (kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice) ||
       from_device != (kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice)))
    return result(cudaErrorInvalidValue);
  if (at(stream)->capture && !(from_device && to_device)) {
    at(stream)->capture->invalidated = true;
    return result(cudaErrorStreamCaptureUnsupported);
  }
  ++simt::launches();
  if (from_device) return enqueue(stream, [=] { std::memcpy(to, from, bytes); });
  const char* begin = static_cast<const char*>(from);
  return enqueue(stream, [to, staged = std::vector<char>(begin, begin + bytes)] {
    std::memcpy(to, staged.data(), staged.size());
  });
}

cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t stream) {
  if (bytes == 0) return result(cudaSuccess);
  if (!on_device(memory, bytes)) return result(cudaErrorInvalidValue);
  ++simt::launches();
  return enqueue(stream, [=] { std::memset(memory, value, bytes); });
}

// --- streams and events ---

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = nullptr;
  if (no_device()) return result(cudaErrorNoDevice);
  streams.push_back(*stream = new CUstream_st);
  return result(cudaSuccess);
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  CUstream_st* s = at(stream);
  if (s->capture) {
    s->capture->invalidated = true;
    return result(cudaErrorStreamCaptureUnsupported);
  }
  run_until([s] { return s->queue.empty(); });
  return result(cudaSuccess);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  run_until([stream] { return stream->queue.empty(); });
  std::erase(streams, stream);
  delete stream;
  return result(cudaSuccess);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new CUevent_st;
  return result(cudaSuccess);
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return result(cudaSuccess);
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const CUstream_st* s = at(stream);
  event->capture = s->capture;
  event->moment = std::make_shared<Moment>();
  const cudaError_t status = enqueue(stream, [moment = event->moment] {
    moment->passed = true;
    moment->time = std::chrono::steady_clock::now();
  });
  if (s->capture) {
    event->branch = s->branch;
    event->position = s->capture->captured.branches[s->branch].size();
    s->capture->captured.moments.push_back(event->moment);
  }
  return status;
}

// A stream that waits for an event of a capture takes part in it from then on.
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  if (!event->moment) return result(cudaSuccess);
  CUstream_st* s = at(stream);
  const std::shared_ptr<Capture>& capture = event->capture;
  if (capture && capture->ended) return result(cudaErrorCapturedEvent);
  if (s->capture && s->capture != capture) {
    s->capture->invalidated = true;
    return result(cudaErrorStreamCaptureIsolation);
  }
  if (!capture) {
    enqueue(stream, {});
    s->queue.back().after = event->moment;
    return result(cudaSuccess);
  }
  if (!s->capture) {
    s->capture = capture;
    s->branch = capture->streams.size();
    capture->streams.push_back(s);
    capture->joined.push_back(0);
    capture->captured.branches.emplace_back();
  }
  capture->captured.branches[s->branch].push_back({{}, event->moment});
  if (s->branch == 0) capture->joined[event->branch] = std::max(capture->joined[event->branch], event->position);
  return result(cudaSuccess);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (event->capture) return result(cudaErrorCapturedEvent);
  if (event->moment) run_until([moment = event->moment] { return moment->passed; });
  return result(cudaSuccess);
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  if (start->capture || end->capture) return result(cudaErrorCapturedEvent);
  if (!start->moment || !end->moment) return result(cudaErrorInvalidValue);
  if (!start->moment->passed || !end->moment->passed) return result(cudaErrorNotReady);
  *milliseconds = std::chrono::duration<float, std::milli>(end->moment->time - start->moment->time).count();
  return result(cudaSuccess);
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  return enqueue(stream, [function, data] { function(data); });
}

// --- graphs ---

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  CUstream_st* s = at(stream);
  if (s == &null_stream) return result(cudaErrorStreamCaptureUnsupported);
  if (s->capture) return result(cudaErrorIllegalState);
  s->capture = std::make_shared<Capture>(Capture{.relaxed = mode == cudaStreamCaptureModeRelaxed});
  s->capture->streams.push_back(s);
  s->capture->joined.push_back(0);
  s->branch = 0;
  return result(cudaSuccess);
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = nullptr;
  CUstream_st* s = at(stream);
  if (!s->capture || s->branch != 0) return result(cudaErrorIllegalState);
  const std::shared_ptr<Capture> capture = s->capture;
  capture->ended = true;
  for (CUstream_st* taking_part : capture->streams) taking_part->capture = nullptr;
  if (capture->invalidated) return result(cudaErrorStreamCaptureInvalidated);
  for (size_t i = 1; i < capture->joined.size(); ++i)
    if (capture->joined[i] < capture->captured.branches[i].size()) return result(cudaErrorStreamCaptureUnjoined);
  *graph = new CUgraph_st{std::move(capture->captured)};
  return result(cudaSuccess);
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  const CUstream_st* s = at(stream);
  *status = !s->capture               ? cudaStreamCaptureStatusNone
            : s->capture->invalidated ? cudaStreamCaptureStatusInvalidated
                                      : cudaStreamCaptureStatusActive;
  return result(cudaSuccess);
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long flags) {
  *exec = new CUgraphExec_st{std::make_shared<const Captured>(graph->captured),
                             (flags & cudaGraphInstantiateFlagAutoFreeOnLaunch) != 0};
  return result(cudaSuccess);
}
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long flags) {
  return cudaGraphInstantiate(exec, graph, flags);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  return enqueue(stream, [captured = exec->captured, frees = exec->frees_on_launch] { run_graph(*captured, frees); });
}

cudaError_t cudaDeviceGraphMemTrim(int) {
  graph_pool.reserved = graph_pool.used;
  return result(cudaSuccess);
}

cudaError_t cudaDeviceGetGraphMemAttribute(int, cudaGraphMemAttributeType attribute, void* value) {
  if (attribute != cudaGraphMemAttrReservedMemCurrent && attribute != cudaGraphMemAttrUsedMemCurrent)
    return result(cudaErrorInvalidValue);
  *static_cast<uint64_t*>(value) = attribute == cudaGraphMemAttrUsedMemCurrent ? graph_pool.used : graph_pool.reserved;
  return result(cudaSuccess);
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return result(cudaSuccess);
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  delete exec;
  return result(cudaSuccess);
}

}  // extern "C"
