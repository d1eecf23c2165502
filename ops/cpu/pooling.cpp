// From sequences to one vector each, and from pairs of vectors to features of the pair: how classifiers end.
//
// mean_positions: y[b] = sum_{l < n_b} x[b,l] / n_b, so that dx[b,l] = dy[b] / n_b for l < n_b, and 0 at padding.
// pair_features of a = x[2b] and b = x[2b+1]: (a, b, a b, a - b), with dy = (g, h, p, d):
//   da = g + p b + d,   db = h + p a - d.
#include "ops/cpu/loops.h"
#include "ops/cpu/scratch.h"
#include "ops/kernels/sums.h"

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

void cpu::pair_features_forward(float* y, const float* x, int64_t pairs, int64_t d) {
  parallel_rows(pairs, 4 * d, [=](int64_t i) {
    const float *const a = x + 2 * i * d, *const b = a + d;
    float* const features = y + 4 * i * d;
    copy_numbers(features, a, 2 * d);
    map(
        features + 2 * d, d, [](Lanes p, Lanes q) RUNNEL_INLINE { return p * q; }, a, b);
    map(
        features + 3 * d, d, [](Lanes p, Lanes q) RUNNEL_INLINE { return p - q; }, a, b);
  });
}

void cpu::pair_features_backward(float* dx, const float* dy, const float* x, int64_t pairs, int64_t d) {
  parallel_rows(pairs, 4 * d, [=](int64_t i) {
    const float *const a = x + 2 * i * d, *const b = a + d;
    const float *const g = dy + 4 * i * d, *const product = g + 2 * d, *const difference = g + 3 * d;
    map(
        dx + 2 * i * d, d, [](Lanes own, Lanes p, Lanes other, Lanes e) RUNNEL_INLINE { return own + p * other + e; },
        g, product, b, difference);
    map(
        dx + (2 * i + 1) * d, d,
        [](Lanes own, Lanes p, Lanes other, Lanes e) RUNNEL_INLINE { return own + p * other - e; }, g + d, product, a,
        difference);
  });
}

}  // namespace runnel
