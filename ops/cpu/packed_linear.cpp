// Linear layers for few rows. With many rows a product is compute-bound; with few it is bound by reading w, so w is
// laid out to be read once, sequentially, and the sums stay in registers.
#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "engine/check.h"
#include "engine/numerics.h"
#include "ops/cpu/panels.h"
#include "ops/kernels.h"
#include "ops/ops.h"

namespace runnel {
namespace {

constexpr int64_t prefetched = 24;  // rows of a panel: what the processor itself fetches ahead ends with each page

// An operand of a panel's product: one float32 number, or two neighbours of a row as bfloat16.
using Pair = uint32_t;

RUNNEL_INLINE inline void multiply_add(Lanes& sum, float x, const Lanes& w) { sum += x * w; }
RUNNEL_INLINE inline void multiply_add(Lanes& sum, Pair x, const BitLanes& w) {
#if defined(__AVX512BF16__)
  const auto bits = [](const auto& v) RUNNEL_INLINE { return std::bit_cast<__m512bh>(v); };
  sum = _mm512_dpbf16_ps(sum, bits(BitLanes{} + x), bits(w));
#else  // bfloat16 is the upper half of a float
  sum += std::bit_cast<float>(x << 16) * std::bit_cast<Lanes>(w << 16);
  sum += std::bit_cast<float>(x & 0xffff0000) * std::bit_cast<Lanes>(w & 0xffff0000);
#endif
}

// y[r,:] = activation(x[r,:] w + b) for `rows` rows, `x_stride` apart, and a panel w [depth][columns], whose sums
// stay in registers. Of the columns the first n are wanted.
template <int rows, class Number, class Vector>
void packed_product(float* y, int64_t y_stride, const Number* x, int64_t x_stride, const Vector* w, const float* b,
                    int64_t depth, int64_t n, Activation activation) {
  Lanes sums[rows][2] = {};
  for (int64_t k = 0; k < depth; ++k) {
    const Vector w0 = w[2 * k], w1 = w[2 * k + 1];
    __builtin_prefetch(w + 2 * (k + prefetched));
    __builtin_prefetch(w + 2 * (k + prefetched) + 1);
#pragma GCC unroll 12
    for (int r = 0; r < rows; ++r) {
      multiply_add(sums[r][0], x[r * x_stride + k], w0);
      multiply_add(sums[r][1], x[r * x_stride + k], w1);
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 2
    for (int64_t half = 0; half < 2; ++half) {
      const int64_t count = n - half * lanes;
      if (count <= 0) continue;
      Lanes sum = sums[r][half] + load(b + half * lanes, count);
      if (activation == Activation::relu) sum = sum > 0 ? sum : Lanes{};
      store(y + r * y_stride + half * lanes, sum, count);
    }
}

template <class Number, class Vector>
void packed_product_of(int64_t rows, float* y, int64_t y_stride, const Number* x, int64_t x_stride, const Vector* w,
                       const float* b, int64_t depth, int64_t n, Activation activation) {
  constexpr auto products = []<int... r>(std::integer_sequence<int, r...>) {
    return std::array{&packed_product<r + 1, Number, Vector>...};
  }
  (std::make_integer_sequence<int, most_block_rows>());
  products[static_cast<size_t>(rows - 1)](y, y_stride, x, x_stride, w, b, depth, n, activation);
}

int64_t packed_depth(int64_t in, bool rounded) { return rounded ? (in + 1) / 2 : in; }

}  // namespace

// To the nearest, ties to even.
void cpu::round_to_bf16(uint16_t* to, const float* from, int64_t n) {
  int64_t i = 0;
#if defined(__AVX512BF16__)
  for (; i + lanes <= n; i += lanes) {
    const __m256bh rounded = _mm512_cvtneps_pbh(_mm512_loadu_ps(from + i));
    std::memcpy(to + i, &rounded, sizeof rounded);
  }
#endif
  // The upper half of the bits, rounded. An infinity stays one, NaN stays NaN.
  for (; i < n; i += lanes) {
    const BitLanes bits = std::bit_cast<BitLanes>(load(from + i, n - i));
    const BitLanes rounded = bits + 0x7fff + (bits >> 16 & 1);
    const BitLanes upper = ((bits & 0x7fffffff) > 0x7f800000 ? bits | 0x400000 : rounded) >> 16;
    for (int64_t j = 0; j < std::min(lanes, n - i); ++j) to[i + j] = static_cast<uint16_t>(upper[j]);
  }
}

// In bf16, two neighbours along `in` lie side by side: [out/columns][in/2][columns][2].
void cpu::pack_linear(float* panels_of_w, const float* w, int64_t out, int64_t in, bool rounded) {
  const int64_t depth = packed_depth(in, rounded), even = 2 * depth;
  const Scratch panel(rounded ? even * panel_columns : 0), pairs(rounded ? even * panel_columns : 0);
  for (int64_t j = 0; j < panels(out); ++j, panels_of_w += depth * panel_columns) {
    if (!rounded) {
      pack_panel(panels_of_w, w, in, out, true, j);
      continue;
    }
    // The second half of the last pair, if in is odd.
    clear(panel.data() + (even - 2) * panel_columns, 2 * panel_columns);
    pack_panel(panel.data(), w, in, out, true, j);
    for (int64_t k = 0; k < even; ++k)
      for (int64_t column = 0; column < panel_columns; ++column)
        pairs.data()[(k / 2 * panel_columns + column) * 2 + k % 2] = panel.data()[k * panel_columns + column];
    round_to_bf16(reinterpret_cast<uint16_t*>(panels_of_w), pairs.data(), even * panel_columns);
  }
}

void cpu::packed_linear(const PackedLayer* layers, int64_t count, const float* x, int64_t rows, int64_t in,
                        bool rounded, Activation activation) {
  const int64_t depth = packed_depth(in, rounded);
  // Between the rows of x, in 4-byte words. Not a power of two, or twelve rows would compete for the same few lines of
  // the cache.
  const int64_t stride = depth + lanes;
  const Scratch left(rows * stride);
  for (int64_t r = 0; r < rows; ++r) {
    float* const row = left.data() + r * stride;
    if (rounded) {
      clear(row + depth - 1, 1);  // the second half of the last pair, if in is odd
      round_to_bf16(reinterpret_cast<uint16_t*>(row), x + r * in, in);
    } else {
      copy_numbers(row, x + r * in, in);
    }
  }
  int64_t all_panels = 0;
  for (int64_t l = 0; l < count; ++l) all_panels += panels(layers[l].out);
  const int64_t blocks = (rows + most_block_rows - 1) / most_block_rows;
  const int64_t block = (rows + blocks - 1) / blocks;  // 64 rows: six times 11 or less, not five times 12 and then 4
#pragma omp parallel for schedule(static)
  for (int64_t panel = 0; panel < all_panels; ++panel) {
    const PackedLayer* layer = layers;
    int64_t j = panel;
    for (; j >= panels(layer->out); ++layer) j -= panels(layer->out);
    const int64_t column = j * panel_columns;
    for (int64_t r = 0; r < rows; r += block) {
      const auto multiply = [&]<class Number, class Vector>(const Number* numbers, const Vector* w) {
        packed_product_of(std::min(rows - r, block), layer->y + r * layer->out + column, layer->out,
                          numbers + r * stride, stride, w + j * depth * 2, layer->b + column, depth,
                          layer->out - column, activation);
      };
      if (rounded)
        multiply(reinterpret_cast<const Pair*>(left.data()), reinterpret_cast<const BitLanes*>(layer->panels));
      else
        multiply(static_cast<const float*>(left.data()), reinterpret_cast<const Lanes*>(layer->panels));
    }
  }
}

#if RUNNEL_ONCE

PackedLinear::PackedLinear(const Tensor& w, const Tensor& b) : w_(w), b_(b) {
  check(w.shape().rank() == 2, "linear: w ", w.shape(), " is not a matrix");
  check(b.shape() == Shape{w.shape()[0]}, "linear: b ", b.shape(), " does not match w ", w.shape());
  if (w.device() != Device::cpu) return;
  const int64_t out = w.shape()[0], in = w.shape()[1];
  rounded_ = precision() == Precision::bf16;
  panels_ = Tensor(Shape{packed_linear_size(out, in, rounded_)});
  CPU_DISPATCH(pack_linear(panels_.data(), w.data(), out, in, rounded_));
}

std::vector<Tensor> linear(const Tensor& x, std::span<const PackedLinear> layers, Activation activation) {
  std::vector<Tensor> y;
  std::vector<PackedLayer> packed;
  for (const PackedLinear& layer : layers) {
    const Shape& w = layer.w_.shape();
    device_of("linear", x, layer.w_);
    check(x.shape().rank() >= 1 && x.shape()[-1] == w[1], "linear: x ", x.shape(), " does not match w ", w);
    if (!layer.panels_ || w[1] == 0) {
      y.push_back(linear(x, layer.w_, layer.b_, activation));
      continue;
    }
    y.emplace_back(x.shape().with_last(w[0]));
    packed.push_back({y.back().data(), layer.panels_.data(), layer.b_.data(), w[0]});
  }
  if (packed.empty() || x.size() == 0) return y;
  const int64_t in = x.shape()[-1];
  CPU_DISPATCH(
      packed_linear(packed.data(), std::ssize(packed), x.data(), x.size() / in, in, layers[0].rounded_, activation));
  return y;
}

#endif

}  // namespace runnel
