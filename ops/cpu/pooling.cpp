// The mean over the positions of each sequence: y[b] = sum_{l < n_b} x[b,l] / n_b, so that dx[b,l] = dy[b] / n_b for l
// < n_b, and 0 at padding.
#include "ops/cpu/loops.h"
#include "ops/kernels/reductions.h"

namespace runnel {
namespace {

int64_t valid_positions(const int32_t* lengths, int64_t b, int64_t length) { return lengths ? lengths[b] : length; }

}  // namespace

// Threads share the sequences and pieces of their columns.
void cpu::mean_positions_forward(float* y, const float* x, const int32_t* lengths, int64_t batch, int64_t length,
                                 int64_t d) {
  constexpr int64_t width = 64;  // columns at a time: four cache lines of every row
  const int64_t pieces = (d + width - 1) / width;
  parallel_for(batch * pieces, batch * length * d >= parallel_from, [=](int64_t i) {
    const int64_t b = i / pieces, first = i % pieces * width, count = std::min(width, d - first);
    const int64_t valid = valid_positions(lengths, b, length);
    float sums[width] = {};
    for (int64_t l = 0; l < valid; ++l) accumulate(sums, x + (b * length + l) * d + first, count);
    const float inverse = valid ? 1 / static_cast<float>(valid) : 0;
    map(
        y + b * d + first, count, [inverse](Lanes sum) RUNNEL_INLINE { return inverse * sum; }, sums);
  });
}

void cpu::mean_positions_backward(float* dx, const float* dy, const int32_t* lengths, int64_t batch, int64_t length,
                                  int64_t d) {
  parallel_rows(batch * length, d, [=](int64_t row) {
    const int64_t b = row / length, valid = valid_positions(lengths, b, length);
    const float factor = row % length < valid ? 1 / static_cast<float>(valid) : 0;
    map(
        dx + row * d, d, [factor](Lanes g) RUNNEL_INLINE { return factor * g; }, dy + b * d);
  });
}

}  // namespace runnel
