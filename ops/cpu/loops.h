// Loops over vectors, and how threads share them.
#pragma once
#include <algorithm>
#include <atomic>

#include "engine/threads.h"
#include "ops/cpu/vector.h"

namespace runnel {

// Within with_helpers (ops/helpers.h), on the thread that called it: other threads wait for its loops.
bool has_helpers();
// share(loop, i, n) once for each i < n, n being the number of those threads and this one, by any of them; returns when
// all are done. It must not throw. Loops within a share are not shared.
using LoopShare = void (*)(const void* loop, int64_t i, int64_t n);
void run_with_helpers(LoopShare share, const void* loop);

namespace {

// Below, waking the threads costs more than they save, above all where other programs use the cores and threads wait
// for one that does not run.
constexpr int64_t parallel_from = 1 << 15;           // elements
constexpr int64_t parallel_from_products = 1 << 20;  // of matrix products: multiplications

// y[i] = f(x[i], ...) for i < n, where f takes and gives vectors.
template <class F, class... X>
RUNNEL_INLINE inline void map(float* y, int64_t n, F f, const X*... x) {
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) store(y + i, f(load(x + i)...));
  if (i < n) store(y + i, f(load(x + i, n - i)...), n - i);
}

// map by non-temporal stores, if y and n are whole vectors.
template <class F, class... X>
RUNNEL_INLINE inline void map_non_temporal(float* y, int64_t n, F f, const X*... x) {
  if (n % lanes != 0 || reinterpret_cast<uintptr_t>(y) % sizeof(Lanes) != 0) return map(y, n, f, x...);
  for (int64_t i = 0; i < n; i += lanes) store_non_temporal(y + i, f(load(x + i)...));
}

// n results of 2 MiB or more leave the second-level cache before they are read: non-temporal stores are for these.
inline bool exceeds_cache(int64_t n) { return n >= 1 << 19; }
inline void copy_result(float* to, const float* from, int64_t n, bool non_temporal) {
  const auto same = [](Lanes x) RUNNEL_INLINE { return x; };
  non_temporal ? map_non_temporal(to, n, same, from) : map(to, n, same, from);
}

// sum[i] += x[i] for i < n
RUNNEL_INLINE inline void accumulate(float* sum, const float* x, int64_t n) {
  map(
      sum, n, [](Lanes a, Lanes b) RUNNEL_INLINE { return a + b; }, sum, x);
}

// sum of f(x[i], ...) for i < n. Two sums, since an addition takes several cycles. f(0, ...) is 0, or n a multiple of
// lanes.
template <class F, class... X>
RUNNEL_INLINE inline float map_sum(int64_t n, F f, const X*... x) {
  Lanes even{}, odd{};
  int64_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    even += f(load(x + i)...);
    odd += f(load(x + i + lanes)...);
  }
  for (; i < n; i += lanes) even += f(load(x + i, n - i)...);
  return lane_sum(even + odd);
}

constexpr float minus_infinity = -std::numeric_limits<float>::infinity();
// The largest of x[i] for i < n.
RUNNEL_INLINE inline float map_max(int64_t n, const float* x) {
  Lanes highest = splat(minus_infinity);
  for (int64_t i = 0; i < n; i += lanes) highest = max(highest, load(x + i, n - i, splat(minus_infinity)));
  return lane_max(highest);
}

RUNNEL_INLINE inline float dot(const float* a, const float* b, int64_t n) {
  return map_sum(
      n, [](Lanes p, Lanes q) RUNNEL_INLINE { return p * q; }, a, b);
}
// sum[i] += factor x[i] for i < n
RUNNEL_INLINE inline void add_scaled(float* sum, float factor, const float* x, int64_t n) {
  map(
      sum, n, [factor](Lanes a, Lanes b) RUNNEL_INLINE { return a + factor * b; }, sum, x);
}
RUNNEL_INLINE inline void set_all(float* y, float x, int64_t n) {
  map(y, n, [all = splat(x)]() RUNNEL_INLINE { return all; });
}

// How threads share a loop: in equal ranges; or on demand, where each takes the next few when it has finished its last:
// for long work, since with equal ranges all would wait for a thread whose core another program uses.
enum class Share { equal, on_demand };

// Threads that share a loop: one if there is too little work for several, or in a parallel region without helpers.
inline int64_t loop_threads(bool is_enough) {
  return is_enough && (!omp_in_parallel() || has_helpers()) ? omp_get_max_threads() : 1;
}

// work(i) for each i < count: by all threads if there is enough of it for several, with helpers or in a parallel
// region; else without one, since in libgomp even a region of one thread ends with a system call.
template <Share share = Share::equal, class Work>
inline void parallel_for(int64_t count, bool is_enough, Work work) {
  const auto some = [&work](int64_t begin, int64_t end) RUNNEL_NOINLINE {
    for (int64_t i = begin; i < end; ++i) work(i);
  };
  if (count < 2 || loop_threads(is_enough) == 1) return some(0, count);
  [[maybe_unused]] std::atomic<int64_t> next{0};
  const auto share_of = [&](int64_t thread, int64_t threads) {
    if constexpr (share == Share::equal) {
      some(count * thread / threads, count * (thread + 1) / threads);
    } else {
      const int64_t few = std::max<int64_t>(1, count / (int64_t{8} * threads));
      for (int64_t begin; (begin = next.fetch_add(few, std::memory_order_relaxed)) < count;)
        some(begin, std::min(begin + few, count));
    }
  };
  if (has_helpers())
    return run_with_helpers([](const void* loop, int64_t thread,
                               int64_t threads) { (*static_cast<const decltype(share_of)*>(loop))(thread, threads); },
                            &share_of);
#pragma omp parallel
  share_of(omp_get_thread_num(), omp_get_num_threads());
}

// work(begin, count) for pieces of n elements, of `piece` elements each but the last.
template <class Work>
inline void parallel_pieces(int64_t n, int64_t piece, bool is_enough, Work work) {
  parallel_for((n + piece - 1) / piece, is_enough, [=](int64_t i) { work(i * piece, std::min(piece, n - i * piece)); });
}

// map, shared by all threads.
template <class F, class... X>
inline void parallel_map(float* y, int64_t n, F f, const X*... x) {
  constexpr int64_t piece = 1 << 12;
  parallel_pieces(n, piece, n >= parallel_from,
                  [=](int64_t begin, int64_t count) { map(y + begin, count, f, (x + begin)...); });
}

// work(r) for each of `rows` rows of n elements.
template <class Work>
inline void parallel_rows(int64_t rows, int64_t n, Work work) {
  parallel_for(rows, rows * n >= parallel_from, work);
}

// Rows in at most `most` parts of at least `least` rows, equal but the last, which depend on their number only: sums of
// each part, added in the order of the parts, are the same bytes with any number of threads.
struct RowParts {
  int64_t rows, each, count;
  RowParts(int64_t all, int64_t most, int64_t least)
      : rows(all), each(std::max(least, (all + most - 1) / most)), count((all + each - 1) / each) {}
  int64_t begin(int64_t part) const { return part * each; }
  int64_t end(int64_t part) const { return std::min((part + 1) * each, rows); }
};

}  // namespace
}  // namespace runnel
