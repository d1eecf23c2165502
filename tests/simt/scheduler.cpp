// Runs one block at a time; every CUDA thread is a fibre that runs until it must wait. The seed draws which fibre
// continues, so that orders differ between seeds and each can be repeated.
//
// To ThreadSanitizer each fibre is a thread, ordered with others only where this file says so. A barrier is a release
// on arrival and an acquire on leaving, on two alternating addresses: with a single one, arrivals at the next barrier
// would seem to precede the leaving of this one. So accesses that a missing barrier leaves unordered are reported as a
// race. This file itself is compiled without sanitizers: all fibres share its state, and switching them takes most of
// the time of many kernels. Its types live in an unnamed namespace, so that the linker does not put instrumented copies
// of the library's templates here. What it copies for kernels is checked in memcpy, which the sanitizers intercept.
#include "scheduler.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sys/mman.h>
#include <cfenv>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>

#include <algorithm>
#include <array>
#include <deque>
#include <memory>
#include <numeric>
#include <string_view>
#include <vector>

#if RUNNEL_WITH_THREAD_SANITIZER
#include <sanitizer/tsan_interface.h>
extern "C" {  // no header of GCC has them
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
}
#endif
#if RUNNEL_WITH_ADDRESS_SANITIZER || RUNNEL_WITH_THREAD_SANITIZER
#include <sanitizer/common_interface_defs.h>
#define SIMT_SYMBOLS 1
#endif

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

// Pushes the registers that a function must preserve, keeps the stack pointer in *save, and goes on where `to` was
// left.
extern "C" void simt_switch_stack(void** save, void* to);
asm(R"(
.text
.globl simt_switch_stack
.type simt_switch_stack,@function
simt_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp,(%rdi)
  movq %rsi,%rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size simt_switch_stack,.-simt_switch_stack
.section .note.GNU-stack,"",@progbits
.text
)");

namespace simt {
namespace {

#if RUNNEL_WITH_ADDRESS_SANITIZER
constexpr size_t stack_bytes = 256 * 1024;  // frames with red zones
#else
constexpr size_t stack_bytes = 64 * 1024;
#endif
constexpr size_t page = 4096;
constexpr size_t red_zone = 128;   // bytes between two arrays of shared memory
constexpr size_t max_arrays = 16;  // of shared memory

struct Copy {
  void* to;
  const void* from;
  int bytes;
};
struct Copies {
  std::vector<Copy> list;
};

struct Frame {  // of a function, on its stack: what -fno-omit-frame-pointer promises
  const Frame* caller;
  const char* returns_to;
};

enum class State { ready, at_barrier, in_warp_meeting, returned };

struct Fibre {
  void* stack_pointer = nullptr;
  char* stack = nullptr;
  size_t stack_size = 0;
  void* address_fake_stack = nullptr;  // AddressSanitizer's, while the fibre waits
  void* thread_fibre = nullptr;        // ThreadSanitizer's
  uint3 index{};                       // threadIdx
  unsigned number = 0;                 // of the thread in its block
  State state = State::returned;
  Where where{"", 0};                // it waits
  size_t taken = 0;                  // arrays of shared memory
  const Frame* outermost = nullptr;  // of the function that calls the kernel
  uint64_t priority = 0;
  Copies open;                   // asynchronous copies not committed
  std::deque<Copies> committed;  // oldest first
};

struct Meeting {  // the lanes of one mask at one collective operation
  uint32_t mask = 0, arrived = 0;
  WarpOp op{};
  Where where{"", 0};
  const Frame* frame = nullptr;  // of the first lane to arrive
  Warp data{};
  std::array<Fibre*, 32> waiting{};
};
struct WarpState {
  uint32_t returned = 0;  // lanes
  unsigned generation = 0;
  char sync[2]{};
  std::vector<Meeting> meetings;
};

struct Array {
  char* begin;
  size_t bytes;
};

Fibre main_fibre;
Fibre* current = &main_fibre;
std::vector<std::unique_ptr<Fibre>> fibres;

// The running kernel and its block.
const Grid* running = nullptr;
const Call* running_call = nullptr;
std::vector<Fibre*> threads;  // by number
std::vector<Fibre*> ready;    // the next one is at the back
std::vector<WarpState> warps;
size_t alive = 0, arrived = 0;  // threads, and those at the barrier
unsigned generation = 0;        // of the barrier
int vote_result[2];
Where barrier_where{"", 0};
char barrier_sync[2], start_sync, end_sync;

char* shared_memory = nullptr;
size_t shared_used = 0;   // with red zones
size_t shared_asked = 0;  // as the device would count
std::vector<Array> arrays;

#if RUNNEL_WITH_THREAD_SANITIZER
void acquire(void* address) { __tsan_acquire(address); }
void release(void* address) { __tsan_release(address); }
struct Unseen {  // ThreadSanitizer intercepts memcpy and operator new even here; the scheduler's are no races
  Unseen() {
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  }
  ~Unseen() {
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
  }
};
#else
void acquire(void*) {}
void release(void*) {}
struct Unseen {
  Unseen() {}
};
#endif

const char* file_name(const Where& where) {
  const char* slash = std::strrchr(where.file, '/');
  return slash ? slash + 1 : where.file;
}

bool same(const Where& a, const Where& b) {
  return a.line == b.line && (a.file == b.file || std::strcmp(a.file, b.file) == 0);
}

void print_position() {
  if (!running) return;
  std::fprintf(stderr, "  in kernel %s,\n  block (%u,%u,%u), thread (%u,%u,%u), seed %u\n",
               Symbol(running->kernel).text, blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z,
               seed());
}

// --- fibres ---

void switch_to(Fibre* to) {
  Fibre* from = current;
  if (from == to) return;
  current = to;
  threadIdx = to->index;
#if RUNNEL_WITH_ADDRESS_SANITIZER
  __sanitizer_start_switch_fiber(&from->address_fake_stack, to->stack, to->stack_size);
#endif
#if RUNNEL_WITH_THREAD_SANITIZER
  __tsan_switch_to_fiber(to->thread_fibre, __tsan_switch_to_fiber_no_sync);
#endif
  simt_switch_stack(&from->stack_pointer, to->stack_pointer);
#if RUNNEL_WITH_ADDRESS_SANITIZER
  __sanitizer_finish_switch_fiber(current->address_fake_stack, nullptr, nullptr);
#endif
}

[[noreturn]] void deadlock() {
  for (const Fibre* thread : threads)
    if (thread->state == State::returned)
      std::fprintf(stderr, "  thread %u has returned\n", thread->number);
    else
      std::fprintf(stderr, "  thread %u waits at %s:%u\n", thread->number, file_name(thread->where),
                   thread->where.line);
  fail("no thread of the block can go on: a barrier or a warp's operation that not all reach, see above");
}

bool by_priority() { return seed() >= 2 && seed() % 2 == 1; }
bool lower(const Fibre* a, const Fibre* b) { return a->priority < b->priority; }

void run_next() {
  if (ready.empty()) deadlock();
  if (by_priority())
    std::pop_heap(ready.begin(), ready.end(), lower);
  else if (seed() >= 2)
    std::swap(ready[next_random() % ready.size()], ready.back());
  Fibre* next = ready.back();
  ready.pop_back();
  switch_to(next);
}

void make_ready(Fibre* const* list, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    Fibre* fibre = list[seed() == 0 ? n - 1 - i : i];
    if (!fibre) continue;
    fibre->state = State::ready;
    ready.push_back(fibre);
    if (by_priority()) std::push_heap(ready.begin(), ready.end(), lower);
  }
}

void leave_block() {
  Fibre& me = *current;
  if (!me.open.list.empty() || !me.committed.empty())
    fail("thread %u returns with asynchronous copies that it never waited for", me.number);
  me.state = State::returned;
  --alive;
  release(&end_sync);
  WarpState& warp = warps[me.number / 32];
  warp.returned |= 1u << me.number % 32;
  for (const Meeting& meeting : warp.meetings)
    if (meeting.mask & warp.returned)
      fail("thread %u returns while lanes of its warp wait for it at %s:%u", me.number, file_name(meeting.where),
           meeting.where.line);
  if (arrived)
    fail("thread %u returns while others wait at the barrier at %s:%u", me.number, file_name(barrier_where),
         barrier_where.line);
  if (alive == 0)
    switch_to(&main_fibre);
  else
    run_next();
}

void fibre_main() {
#if RUNNEL_WITH_ADDRESS_SANITIZER
  __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
#endif
  for (;;) {  // a thread of one block after another
    acquire(&start_sync);
    running_call->run();
    leave_block();
  }
}

void add_fibre() {
  auto fibre = std::make_unique<Fibre>();
  const size_t size = stack_bytes + page;
  void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED || mprotect(memory, page, PROT_NONE)) fail("no memory for the stack of a fibre");
  char* base = static_cast<char*>(memory);
  fibre->stack = base + page;
  fibre->stack_size = stack_bytes;
  // Staggers the tops of the stacks, which would otherwise share one set of the cache.
  void** top = reinterpret_cast<void**>(base + size - fibres.size() * 320 % page);
  *--top = nullptr;  // the return address of fibre_main, which aligns its frame
  *--top = reinterpret_cast<void*>(&fibre_main);
  for (int i = 0; i < 6; ++i) *--top = nullptr;  // registers
  fibre->stack_pointer = top;
#if RUNNEL_WITH_THREAD_SANITIZER
  fibre->thread_fibre = __tsan_create_fiber(0);
#endif
  fibres.push_back(std::move(fibre));
}

// --- a grid ---

// With SIMT_TRAP set: arithmetic on a signalling NaN stops the program.
void trapped(int, siginfo_t* info, void*) {
  fail("arithmetic on memory that nobody wrote (or an invalid operation, such as 0 / 0) at %s",
       Symbol(static_cast<const char*>(info->si_addr) - 1).text);
}

void initialise() {
  static bool done = false;
  if (std::exchange(done, true)) return;
  pthread_attr_t attributes;
  void* lowest = nullptr;
  pthread_getattr_np(pthread_self(), &attributes);
  pthread_attr_getstack(&attributes, &lowest, &main_fibre.stack_size);
  pthread_attr_destroy(&attributes);
  main_fibre.stack = static_cast<char*>(lowest);
#if RUNNEL_WITH_THREAD_SANITIZER
  main_fibre.thread_fibre = __tsan_get_current_fiber();
#endif
  struct sigaction action {};
  action.sa_sigaction = trapped;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGFPE, &action, nullptr);
}

struct TrapInvalid {
  bool on = std::getenv("SIMT_TRAP") != nullptr;
  TrapInvalid() {
    std::feclearexcept(FE_ALL_EXCEPT);
    if (on) feenableexcept(FE_INVALID);
  }
  ~TrapInvalid() {
    if (on) fedisableexcept(FE_INVALID);
  }
};

// Shared memory of several blocks, a wave. For ThreadSanitizer the blocks of a wave are not ordered, so that it sees
// races between blocks; each then has memory of its own, or their use of the same would look like a race.
class SharedMemory {
 public:
  SharedMemory(size_t bytes, size_t blocks)
      : bytes_(bytes ? (bytes / red_zone + 1 + max_arrays * 2) * red_zone : 0) {  // so that each block's is aligned
#if RUNNEL_WITH_THREAD_SANITIZER
    wave_ = std::clamp<size_t>((size_t{64} << 20) / (bytes_ + 1), 1, blocks);
#else
    (void)blocks;
#endif
    memory_ = static_cast<char*>(::operator new (wave_* bytes_, std::align_val_t{red_zone}));
  }
  ~SharedMemory() {
    permit(memory_, wave_ * bytes_);
    ::operator delete (memory_, std::align_val_t{red_zone});
  }
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  size_t wave() const { return wave_; }
  void start_wave() {
    permit(memory_, wave_ * bytes_);
    make_undefined(memory_, wave_ * bytes_);
    forbid(memory_, wave_ * bytes_);
  }
  void start_block(size_t in_wave) {
    shared_memory = memory_ + in_wave * bytes_;
    shared_used = shared_asked = 0;
    arrays.clear();
  }

 private:
  size_t bytes_, wave_ = 1;
  char* memory_;
};

std::vector<size_t> order_of(size_t blocks) {
  std::vector<size_t> order(blocks);
  std::iota(order.begin(), order.end(), size_t{0});
  if (seed() == 1) std::reverse(order.begin(), order.end());
  if (seed() >= 2)
    for (size_t i = blocks; i > 1; --i) std::swap(order[i - 1], order[next_random() % i]);
  return order;
}

uint3 position(size_t i, const dim3& size) {
  return {static_cast<unsigned>(i % size.x), static_cast<unsigned>(i / size.x % size.y),
          static_cast<unsigned>(i / size.x / size.y)};
}

// turn: how many blocks of the grid ran before.
void run_block([[maybe_unused]] size_t turn) {
  const size_t n = threads.size();
  warps.assign((n + 31) / 32, {});
  if (n % 32) warps.back().returned = ~0u << n % 32;  // lanes that do not exist
  arrived = 0;
  alive = n;
  uint64_t warp_priority = 0;
  for (size_t i = 0; i < n; ++i) {
    if (i % 32 == 0) warp_priority = next_random() << 32;
#if RUNNEL_WITH_THREAD_SANITIZER
    // Not the same fibre for the same thread of the next block: accesses of one fibre are ordered.
    Fibre* fibre = fibres[(i + turn * 37) % fibres.size()].get();
#else
    Fibre* fibre = fibres[i].get();
#endif
    fibre->index = position(i, running->threads);
    fibre->number = static_cast<unsigned>(i);
    fibre->taken = 0;
    fibre->priority = warp_priority | (next_random() & 0xffffffffu);
#if RUNNEL_WITH_THREAD_SANITIZER
    char name[96];
    std::snprintf(name, sizeof name, "block (%u,%u,%u) thread (%u,%u,%u)", blockIdx.x, blockIdx.y, blockIdx.z,
                  fibre->index.x, fibre->index.y, fibre->index.z);
    __tsan_set_fiber_name(fibre->thread_fibre, name);
#endif
    threads[i] = fibre;
  }
  ready.clear();
  make_ready(threads.data(), n);
  run_next();
}

// --- the environment's seed ---

unsigned environment_seed() {
  const char* text = std::getenv("SIMT_SEED");
  return text ? static_cast<unsigned>(std::strtoul(text, nullptr, 10)) : 0;
}
uint64_t random_state = 0x9e3779b97f4a7c15u * (environment_seed() + 1);

}  // namespace

unsigned seed() {
  static const unsigned value = environment_seed();
  return value;
}

uint64_t next_random() {  // xorshift
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  return random_state >> 11;
}

Symbol::Symbol(const void* address) {
#if defined(SIMT_SYMBOLS)
  __sanitizer_symbolize_pc(const_cast<char*>(static_cast<const char*>(address)) + 1, "%f %S", text, sizeof text);
#else
  Dl_info info{};
  dladdr(address, &info);
  std::snprintf(text, sizeof text, "%s+%#zx (addr2line -Cfe names it)", info.dli_fname ? info.dli_fname : "?",
                static_cast<size_t>(static_cast<const char*>(address) - static_cast<const char*>(info.dli_fbase)));
#endif
}

void fail(const char* format, ...) {
  fedisableexcept(FE_INVALID);
  va_list arguments;
  va_start(arguments, format);
  std::fprintf(stderr, "simt: error: ");
  std::vfprintf(stderr, format, arguments);
  std::fprintf(stderr, "\n");
  va_end(arguments);
  print_position();
#if defined(SIMT_SYMBOLS)
  __sanitizer_print_stack_trace();
#endif
  std::abort();
}

void make_undefined(void* memory, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) static_cast<unsigned char*>(memory)[i] = i % 2 ? 0x7f : 0xa0;
}

void run_grid(const Grid& grid, const Call& call) {
  initialise();
  if (running) fail("a kernel launches a kernel");
  running = &grid;
  running_call = &call;
  gridDim = grid.blocks;
  blockDim = grid.threads;
  const size_t blocks = size_t{grid.blocks.x} * grid.blocks.y * grid.blocks.z;
  threads.assign(size_t{grid.threads.x} * grid.threads.y * grid.threads.z, nullptr);
  while (fibres.size() < threads.size()) add_fibre();
  const TrapInvalid trap;
  SharedMemory shared(grid.shared_bytes, blocks);
  const std::vector<size_t> order = order_of(blocks);
  for (size_t turn = 0; turn < blocks; ++turn) {
    if (turn % shared.wave() == 0) {
      shared.start_wave();
      release(&start_sync);
    }
    blockIdx = position(order[turn], grid.blocks);
    shared.start_block(turn % shared.wave());
    run_block(turn);
    if ((turn + 1) % shared.wave() == 0 || turn + 1 == blocks) acquire(&end_sync);
  }
  running = nullptr;
}

// --- what kernels call ---

int lane() { return static_cast<int>(current->number % 32); }

int block_barrier(int predicate, Vote vote, Where where) {
  const Unseen unseen;
  if (!running) fail("__syncthreads outside a kernel");
  if (alive != threads.size())
    fail("__syncthreads at %s:%u after threads of the block have returned", file_name(where), where.line);
  int& result = vote_result[generation % 2];
  char* sync = &barrier_sync[generation % 2];
  if (arrived == 0) {
    barrier_where = where;
    result = vote == Vote::all;
  } else if (!same(barrier_where, where)) {
    fail("threads of one block at different barriers: %s:%u and %s:%u", file_name(barrier_where), barrier_where.line,
         file_name(where), where.line);
  }
  if (vote == Vote::count) result += predicate;
  if (vote == Vote::all) result &= predicate;
  if (vote == Vote::any) result |= predicate;
  release(sync);
  current->state = State::at_barrier;
  current->where = where;
  if (++arrived == threads.size()) {
    arrived = 0;
    ++generation;
    make_ready(threads.data(), threads.size());
  }
  run_next();
  acquire(sync);
  return result;
}

void start_thread(const void* frame) { current->outermost = static_cast<const Frame*>(frame); }

void warp_meeting(WarpOp op, uint32_t mask, const void* in, void* out, WarpFunction function, Where where) {
  const Frame* const frame = static_cast<const Frame*>(__builtin_frame_address(0));
  const Unseen unseen;
  if (!running) fail("an operation of a warp outside a kernel");
  const unsigned me = current->number % 32;
  WarpState& warp = warps[current->number / 32];
  if (!(mask >> me & 1)) fail("%s:%u: lane %u is not in its own mask %08x", file_name(where), where.line, me, mask);
  if (mask & warp.returned)
    fail("%s:%u: the mask %08x names lanes that have returned or do not exist: %08x", file_name(where), where.line,
         mask, mask & warp.returned);
  Meeting* meeting = nullptr;
  for (Meeting& other : warp.meetings) {
    if (!(other.mask & mask)) continue;
    if (other.mask != mask || other.op != op || !same(other.where, where))
      fail("lanes of one warp at different operations: %s:%u (mask %08x) and %s:%u (mask %08x)", file_name(other.where),
           other.where.line, other.mask, file_name(where), where.line, mask);
    // The other lane's stack is still there. As long as the return addresses are the same, so are the frames'
    // functions.
    for (const Frame *mine = frame, *its = other.frame; mine != current->outermost;
         mine = mine->caller, its = its->caller)
      if (mine->returns_to != its->returns_to)
        fail("lanes of one warp at %s:%u, but in two copies of it or by two calls, at\n  %s and\n  %s",
             file_name(where), where.line, Symbol(its->returns_to - 1).text, Symbol(mine->returns_to - 1).text);
    meeting = &other;
  }
  if (!meeting) {
    meeting = &warp.meetings.emplace_back();
    meeting->mask = mask;
    meeting->op = op;
    meeting->where = where;
    meeting->frame = frame;
  }
  meeting->arrived |= 1u << me;
  meeting->data.in[me] = in;
  meeting->data.out[me] = out;
  meeting->waiting[me] = current;
  current->state = State::in_warp_meeting;
  current->where = where;
  const bool orders = op == WarpOp::sync;  // shuffles and votes do not order memory
  char* sync = &warp.sync[warp.generation % 2];
  if (orders) release(sync);
  if (meeting->arrived == mask) {
    if (function) function(meeting->data, mask);
    make_ready(meeting->waiting.data(), 32);
    if (orders) ++warp.generation;
    *meeting = warp.meetings.back();
    warp.meetings.pop_back();
  }
  run_next();
  if (orders) acquire(sync);
}

void shuffle_lanes(const Warp& warp, uint32_t mask) {
  for (int i = 0; i < 32; ++i) {
    if (!(mask >> i & 1)) continue;
    const int source = static_cast<const Lookup*>(warp.in[i])->source;
    if (!(mask >> source & 1)) fail("shuffle: lane %d reads lane %d, which is not in the mask %08x", i, source, mask);
    *static_cast<uint64_t*>(warp.out[i]) = static_cast<const Lookup*>(warp.in[source])->value;
  }
}

void ballot_lanes(const Warp& warp, uint32_t mask) {
  uint32_t all = 0;
  for (int i = 0; i < 32; ++i)
    if (mask >> i & 1) all |= *static_cast<const uint32_t*>(warp.in[i]) << i;
  for (int i = 0; i < 32; ++i)
    if (mask >> i & 1) *static_cast<uint32_t*>(warp.out[i]) = all;
}

void* shared_take(size_t bytes, size_t alignment) {
  const size_t i = current->taken++;
  if (i == arrays.size()) {
    shared_asked = (shared_asked + alignment - 1) / alignment * alignment + bytes;
    if (shared_asked > running->shared_bytes)
      fail("the kernel takes %zu bytes of shared memory, its launch gave %zu", shared_asked, running->shared_bytes);
    if (i == max_arrays) fail("more than %zu arrays of shared memory", max_arrays);
    shared_used = (shared_used + red_zone - 1) / red_zone * red_zone;
    arrays.push_back({shared_memory + shared_used, bytes});
    permit(arrays.back().begin, bytes);
    shared_used += bytes + red_zone;
  } else if (arrays[i].bytes != bytes) {
    fail("threads take different shared memory: array %zu has %zu bytes in one and %zu in another", i, arrays[i].bytes,
         bytes);
  }
  return arrays[i].begin;
}

bool is_shared(const void* address) {
  const char* const byte = static_cast<const char*>(address);
  return byte >= shared_memory && byte < shared_memory + shared_used;
}

// The bytes move at the wait; until then the destination is undefined and, for AddressSanitizer, not to be touched. The
// copy made here is for the sanitizers, which then see both ends of it used by this thread at this line.
void copy_async(void* shared, const void* global, int bytes) {
  const size_t n = static_cast<size_t>(bytes);
  if (reinterpret_cast<uintptr_t>(shared) % n || reinterpret_cast<uintptr_t>(global) % n)
    fail("an asynchronous copy of %d bytes is not aligned", bytes);
  std::memcpy(shared, global, n);
  make_undefined(shared, n);
  if (n >= 8) forbid(shared, n);  // the grain of AddressSanitizer
  current->open.list.push_back({shared, global, bytes});
}

void copy_async_commit() {
  current->committed.push_back(std::move(current->open));
  current->open.list.clear();
}

void copy_async_wait(int pending) {
  for (; current->committed.size() > static_cast<size_t>(pending); current->committed.pop_front())
    for (const Copy& copy : current->committed.front().list) {
      permit(copy.to, static_cast<size_t>(copy.bytes));
      std::memcpy(copy.to, copy.from, static_cast<size_t>(copy.bytes));
    }
}

}  // namespace simt

#if RUNNEL_WITH_ADDRESS_SANITIZER
// AddressSanitizer calls it at the beginning of a report.
extern "C" void __asan_on_error() {
  using namespace simt;
  const char* address = static_cast<const char*>(__asan_get_report_address());
  describe_device_memory(address);
  if (!running) return;
  for (const Fibre* thread : threads) {
    const auto describe = [&](const Copies& copies) {
      for (const Copy& copy : copies.list)
        if (address >= copy.to && address < static_cast<const char*>(copy.to) + copy.bytes)
          std::fprintf(stderr, "simt: thread %u has not waited for its asynchronous copy to this address\n",
                       thread->number);
    };
    describe(thread->open);
    for (const Copies& group : thread->committed) describe(group);
  }
  for (size_t i = arrays.size(); i-- > 0;)
    if (address >= arrays[i].begin && address < arrays[i].begin + arrays[i].bytes + 2 * red_zone) {
      std::fprintf(stderr, "simt: byte %td of array %zu of shared memory, which has %zu bytes\n",
                   address - arrays[i].begin, i, arrays[i].bytes);
      break;
    }
  print_position();
}
#endif
