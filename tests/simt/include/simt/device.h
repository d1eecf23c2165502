// What CUDA adds to C++ inside a kernel, for a host compiler: every CUDA thread is a fibre, and one OS thread runs them
// all.
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <set>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#ifdef __CUDACC__
#error "simt/device.h stands in for the device; nvcc must not see it"
#endif

#define __launch_bounds__(...)
// Lanes that meet in a collective operation of a warp must have come to it by the same calls: so the compiler may
// neither copy a call for threads of different branches nor merge the calls of two branches. For clang that is an
// attribute; g++ gets options (CMakeLists.txt).
#if defined(__clang__)
#define SIMT_CONVERGENT __attribute__((convergent, nomerge))
#else
#define SIMT_CONVERGENT
#endif
#undef __device__
#define __device__ SIMT_CONVERGENT
#define SIMT_INLINE inline __attribute__((always_inline))

// The scheduler writes them at every switch. Variables and not macros: cudaLaunchConfig_t has members of these names.
extern uint3 threadIdx;
extern uint3 blockIdx;
extern dim3 blockDim;
extern dim3 gridDim;
inline constexpr int warpSize = 32;

namespace simt {

struct Where {  // of the caller, as a default argument; std::source_location is not in clang 14, which clang-tidy uses
  const char* file;
  unsigned line;
  static constexpr Where current(const char* f = __builtin_FILE(), unsigned l = __builtin_LINE()) { return {f, l}; }
};

// --- barriers and collective operations (scheduler.cpp) ---

enum class Vote { none, count, all, any };
int block_barrier(int predicate, Vote vote, Where where);

// Each lane passes `in` and `out`; the last lane to arrive computes all outputs.
struct Warp {
  const void* in[32];
  void* out[32];
};
enum class WarpOp { sync, shuffle, ballot, mma, ldmatrix };
using WarpFunction = void (*)(const Warp& warp, uint32_t mask);
SIMT_CONVERGENT void warp_meeting(WarpOp op, uint32_t mask, const void* in, void* out, WarpFunction function,
                                  Where where);

struct Lookup {  // a lane's argument of a shuffle
  uint64_t value;
  int source;  // the lane it reads from
};
void shuffle_lanes(const Warp& warp, uint32_t mask);
void ballot_lanes(const Warp& warp, uint32_t mask);
int lane();

template <class T>
SIMT_INLINE T shuffle(uint32_t mask, T value, int source, Where where) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 8);
  Lookup in{0, source};
  std::memcpy(&in.value, &value, sizeof(T));
  uint64_t out = 0;
  warp_meeting(WarpOp::shuffle, mask, &in, &out, shuffle_lanes, where);
  std::memcpy(&value, &out, sizeof(T));
  return value;
}

// --- shared memory and asynchronous copies (scheduler.cpp) ---

// The next array of the block's shared memory. All threads take the same arrays in the same order.
void* shared_take(size_t bytes, size_t alignment);
void copy_async(void* shared, const void* global, int bytes);
void copy_async_commit();
void copy_async_wait(int pending);

// --- tensor cores (mma.cpp), with the fragments of the PTX ISA ---

SIMT_CONVERGENT void mma_m16n8k8_tf32(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                                      Where where = Where::current());
SIMT_CONVERGENT void mma_m16n8k16_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                                       Where where = Where::current());

SIMT_CONVERGENT void exchange_rows(const uint32_t* (&rows)[4], const void* row, Where where);
SIMT_INLINE void ldmatrix_x4(uint32_t (&x)[4], const void* row, Where where = Where::current()) {
  const uint32_t* rows[4];
  exchange_rows(rows, row, where);
  for (int i = 0; i < 4; ++i) x[i] = rows[i][lane() % 4];  // here, where sanitizers see that the kernel reads
}

// --- launches (runtime.cpp) ---

struct Call {  // a kernel with its arguments
  std::function<void()> run;
  std::vector<const void*> pointers;  // among the arguments
};
cudaError_t enqueue_kernel(const cudaLaunchConfig_t& config, const void* kernel, Call call);
// Each thread calls it before the kernel, with the frame of the function that calls the kernel.
void start_thread(const void* frame);
// Fails if a struct, the argument with this number, holds a pointer to memory of the host.
void check_struct(const void* kernel, size_t argument, const void* value, size_t bytes);
// The names passed to launch() so far, and "matmul" for cuBLAS: a test compares them with the device contract. When the
// process ends, they are appended to the file $SIMT_LAUNCHED, one on a line.
std::set<std::string>& launched();
size_t& launches();  // kernels, matrix products, copies and fills that were put on a stream or into a graph

// NVIDIA's template erases the types of the arguments; this one keeps them.
template <class... Parameters, class... Arguments>
cudaError_t launch(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...), Arguments&&... arguments) {
  static_assert((std::is_trivially_copyable_v<Parameters> && ...), "kernel arguments are copied bytewise");
  static_assert((!std::is_reference_v<Parameters> && ...), "a kernel parameter cannot be a reference");
  static_assert((sizeof(Parameters) + ... + 0) <= 4096, "kernel arguments take at most 4 KiB");
  const std::tuple<Parameters...> values(static_cast<Parameters>(std::forward<Arguments>(arguments))...);
  const auto call_kernel = [kernel](const auto&... value) {
    start_thread(__builtin_frame_address(0));
    kernel(value...);
  };
  Call call{[call_kernel, values] { std::apply(call_kernel, values); }, {}};
  size_t argument = 0;
  const auto add_pointers = [&call, &argument, kernel](const auto& value) {
    using Type = std::decay_t<decltype(value)>;
    if constexpr (std::is_convertible_v<Type, const void*>) call.pointers.push_back(value);
#if __has_builtin(__builtin_clear_padding)  // which clang 14 lacks; what was on the stack before may lie in padding
    if constexpr (std::is_class_v<Type>) {
      Type copy = value;
      __builtin_clear_padding(&copy);
      check_struct(reinterpret_cast<const void*>(kernel), argument, &copy, sizeof copy);
    }
#endif
    ++argument;
  };
  std::apply([&add_pointers](const auto&... value) { (add_pointers(value), ...); }, values);
  return enqueue_kernel(*config, reinterpret_cast<const void*>(kernel), std::move(call));
}

}  // namespace simt

#define cudaLaunchKernelEx(...) ::simt::launch(__VA_ARGS__)

// --- barriers ---

inline void __syncthreads(simt::Where where = simt::Where::current()) {
  simt::block_barrier(0, simt::Vote::none, where);
}
inline int __syncthreads_count(int predicate, simt::Where where = simt::Where::current()) {
  return simt::block_barrier(predicate != 0, simt::Vote::count, where);
}
inline int __syncthreads_and(int predicate, simt::Where where = simt::Where::current()) {
  return simt::block_barrier(predicate != 0, simt::Vote::all, where);
}
inline int __syncthreads_or(int predicate, simt::Where where = simt::Where::current()) {
  return simt::block_barrier(predicate != 0, simt::Vote::any, where);
}
SIMT_INLINE void __syncwarp(unsigned mask = 0xffffffffu, simt::Where where = simt::Where::current()) {
  simt::warp_meeting(simt::WarpOp::sync, mask, nullptr, nullptr, nullptr, where);
}

// --- shuffles and votes ---

template <class T>
SIMT_INLINE T __shfl_sync(unsigned mask, T value, int source, int width = 32,
                          simt::Where where = simt::Where::current()) {
  return simt::shuffle(mask, value, (simt::lane() & ~(width - 1)) + (source & (width - 1)), where);
}
template <class T>
SIMT_INLINE T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32,
                             simt::Where where = simt::Where::current()) {
  const int lane = simt::lane(), source = lane - static_cast<int>(delta);
  return simt::shuffle(mask, value, source < (lane & ~(width - 1)) ? lane : source, where);
}
template <class T>
SIMT_INLINE T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32,
                               simt::Where where = simt::Where::current()) {
  const int lane = simt::lane(), source = lane + static_cast<int>(delta);
  return simt::shuffle(mask, value, source > (lane | (width - 1)) ? lane : source, where);
}
template <class T>
SIMT_INLINE T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32,
                              simt::Where where = simt::Where::current()) {
  const int lane = simt::lane(), source = lane ^ bits;
  return simt::shuffle(mask, value, source > (lane | (width - 1)) ? lane : source, where);
}
SIMT_INLINE unsigned __ballot_sync(unsigned mask, int predicate, simt::Where where = simt::Where::current()) {
  uint32_t in = predicate != 0, out = 0;
  simt::warp_meeting(simt::WarpOp::ballot, mask, &in, &out, simt::ballot_lanes, where);
  return out;
}
SIMT_INLINE int __any_sync(unsigned mask, int predicate, simt::Where where = simt::Where::current()) {
  return __ballot_sync(mask, predicate, where) != 0;
}
SIMT_INLINE int __all_sync(unsigned mask, int predicate, simt::Where where = simt::Where::current()) {
  return __ballot_sync(mask, predicate, where) == mask;
}

// --- loads, bits, arithmetic ---

template <class T>
T __ldg(const T* p) {
  return *p;
}
template <class T>
T __ldcs(const T* p) {
  return *p;
}
template <class T>
void __stcs(T* p, T value) {
  *p = value;
}
inline float __fdividef(float a, float b) { return a / b; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float __frcp_rn(float a) { return 1.0f / a; }
inline float rsqrtf(float a) { return 1.0f / std::sqrt(a); }
inline double cospi(double a) { return std::cos(3.14159265358979323846 * a); }
template <class T>
constexpr T min(T a, T b) {
  return b < a ? b : a;
}
template <class T>
constexpr T max(T a, T b) {
  return a < b ? b : a;
}
inline int __popc(unsigned value) { return std::popcount(value); }
inline int __clz(int value) { return std::countl_zero(static_cast<unsigned>(value)); }
inline int __ffs(int value) { return value ? std::countr_zero(static_cast<unsigned>(value)) + 1 : 0; }
inline unsigned __umulhi(unsigned a, unsigned b) { return static_cast<unsigned>(uint64_t{a} * b >> 32); }
inline unsigned __float_as_uint(float value) { return std::bit_cast<unsigned>(value); }
inline float __uint_as_float(unsigned bits) { return std::bit_cast<float>(bits); }
inline int __float_as_int(float value) { return std::bit_cast<int>(value); }
inline float __int_as_float(int bits) { return std::bit_cast<float>(bits); }
namespace simt {
unsigned seed();
// A GPU's functions differ from the host's in the last place: with a seed, by up to one unit, the same for the same x.
// But limits, and the values at 0 and 1, are exact.
inline float inexact(float y, float x) {
  if (seed() == 0 || std::abs(y) == 0 || std::abs(y) == 1 || y == 2 || !std::isfinite(y)) return y;
  const uint32_t bits = std::bit_cast<uint32_t>(y);
  switch ((std::bit_cast<uint32_t>(x) + uint64_t{seed()} * 0xd2511f53) * 0x9e3779b97f4a7c15 >> 62) {
    case 0:
      return std::bit_cast<float>(bits + 1);
    case 1:
      return std::bit_cast<float>(bits - 1);
    default:
      return y;
  }
}
inline float inexact_expf(float x) { return inexact(::expf(x), x); }
inline float inexact_logf(float x) { return inexact(::logf(x), x); }
inline float inexact_erfcf(float x) { return inexact(::erfcf(x), x); }
inline float inexact_expm1f(float x) { return inexact(::expm1f(x), x); }
inline float inexact_log1pf(float x) { return inexact(::log1pf(x), x); }
}  // namespace simt
#define expf(x) simt::inexact_expf(x)
#define logf(x) simt::inexact_logf(x)
#define erfcf(x) simt::inexact_erfcf(x)
#define expm1f(x) simt::inexact_expm1f(x)
#define log1pf(x) simt::inexact_log1pf(x)
// Macros, because glibc's <math.h> declares functions of these names and exports none.
#define __expf(x) expf(x)
#define __logf(x) logf(x)
#define __sinf(x) (::sinf(x))
#define __cosf(x) (::cosf(x))
#define __powf(x, y) (::powf(x, y))
