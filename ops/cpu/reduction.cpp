// Sums, largest numbers and running sums over the middle axis of [outer,n,inner], and the softmax of rows:
//   y = e^x / sum e^x,       dx = y (dy - sum y dy)
//   y = x - log sum e^x,     dx = dy - e^y sum dy
#include "ops/cpu/loops.h"
#include "ops/cpu/scratch.h"
#include "ops/kernels/reductions.h"

namespace runnel {
namespace {

double row_sum(const float* x, int64_t n) {
  DoubleLanes sums{};
  int64_t i = 0;
  for (; i + double_lanes <= n; i += double_lanes) sums += load_double(x + i);
  double s = lane_sum(sums);
  for (; i < n; ++i) s += static_cast<double>(x[i]);
  return s;
}

}  // namespace

// Each number of y belongs to one thread, which adds in the order of the axis: the same bytes with any number of
// threads. With columns behind the axis, a thread takes 64 of them, four cache lines of every row.
void cpu::sum(float* y, const float* x, int64_t outer, int64_t n, int64_t inner) {
  if (inner == 1) return parallel_rows(outer, n, [=](int64_t o) { y[o] = static_cast<float>(row_sum(x + o * n, n)); });
  constexpr int64_t width = 64;
  const int64_t pieces = (inner + width - 1) / width;
  parallel_for(outer * pieces, outer * n * inner >= parallel_from, [=](int64_t i) {
    const int64_t o = i / pieces, first = i % pieces * width, count = std::min(width, inner - first);
    float sums[width] = {};
    for (int64_t j = 0; j < n; ++j) accumulate(sums, x + (o * n + j) * inner + first, count);
    copy_numbers(y + o * inner + first, sums, count);
  });
}

void cpu::max_forward(float* y, int32_t* index, const float* x, int64_t outer, int64_t n, int64_t inner) {
  parallel_rows(outer, n * inner, [=](int64_t o) {
    float* const largest = y + o * inner;
    int32_t* const at = index + o * inner;
    copy_numbers(largest, x + o * n * inner, inner);
    for (int64_t i = 0; i < inner; ++i) at[i] = 0;
    for (int64_t j = 1; j < n; ++j)
      for (int64_t i = 0; i < inner; ++i) {
        const float xi = x[(o * n + j) * inner + i];
        if (!(xi > largest[i]) && (xi == xi || largest[i] != largest[i])) continue;  // NaN comes first
        largest[i] = xi;
        at[i] = static_cast<int32_t>(j);
      }
  });
}

void cpu::max_backward(float* dx, const float* dy, const int32_t* index, int64_t outer, int64_t n, int64_t inner) {
  clear(dx, outer * n * inner);
  parallel_rows(outer, n * inner, [=](int64_t o) {
    for (int64_t i = o * inner; i < (o + 1) * inner; ++i) dx[(o * n + index[i]) * inner + i - o * inner] = dy[i];
  });
}

void cpu::cumulative_sum(float* y, const float* x, int64_t outer, int64_t n, int64_t inner, bool reverse) {
  const Scratch sums(outer * inner);
  clear(sums.data(), outer * inner);
  parallel_rows(outer, n * inner, [=, &sums](int64_t o) {
    float* const sum = sums.data() + o * inner;
    for (int64_t i = 0; i < n; ++i) {
      const int64_t row = (o * n + (reverse ? n - 1 - i : i)) * inner;
      accumulate(sum, x + row, inner);
      copy_numbers(y + row, sum, inner);
    }
  });
}

void cpu::softmax_forward(float* y, const float* x, int64_t rows, int64_t n, bool is_log) {
  parallel_rows(rows, 8 * n, [=](int64_t r) {
    const float* const xr = x + r * n;
    float* const yr = y + r * n;
    const float largest = map_max(n, xr);
    map(
        yr, n, [largest](Lanes v) RUNNEL_INLINE { return exp(v - largest); }, xr);
    const float total = static_cast<float>(row_sum(yr, n));
    if (is_log) {
      const float shift = largest + log(splat(total))[0];
      map(
          yr, n, [shift](Lanes v) RUNNEL_INLINE { return v - shift; }, xr);
    } else {
      map(
          yr, n, [total](Lanes v) RUNNEL_INLINE { return v / total; }, yr);
    }
  });
}

void cpu::softmax_backward(float* dx, const float* dy, const float* y, int64_t rows, int64_t n, bool is_log) {
  parallel_rows(rows, 4 * n, [=](int64_t r) {
    const float *const g = dy + r * n, *const yr = y + r * n;
    if (is_log) {
      const float total = static_cast<float>(row_sum(g, n));
      map(
          dx + r * n, n, [total](Lanes gi, Lanes yi) RUNNEL_INLINE { return gi - exp(yi) * total; }, g, yr);
    } else {
      const float total = dot(g, yr, n);
      map(
          dx + r * n, n, [total](Lanes gi, Lanes yi) RUNNEL_INLINE { return yi * (gi - total); }, g, yr);
    }
  });
}

}  // namespace runnel
