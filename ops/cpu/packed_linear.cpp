// Linear layers for few rows. With many rows a product is compute-bound; with few it is bound by reading w, so w is
// laid out to be read once, sequentially, and the sums stay in registers.
#if defined(__AVX512BF16__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <utility>
#include <vector>

#include "engine/check.h"
#include "engine/numerics.h"
#include "ops/cpu/gemm.h"
#include "ops/cpu/small_matrix.h"
#include "ops/kernels.h"
#include "ops/ops.h"

namespace runnel {
namespace {

using cpu::Lanes, cpu::lanes;

constexpr int64_t panel_columns = 2 * lanes;
constexpr int64_t prefetched = 24;  // rows of a panel: what the processor itself fetches ahead ends with each page

// An operand of a panel's product: one float32 number, or two neighbours of a row as bfloat16.
using Pair = uint32_t;
using Pairs = uint32_t __attribute__((vector_size(lanes * sizeof(uint32_t))));

void multiply_add(Lanes& sum, float x, const Lanes& w) { sum += x * w; }
void multiply_add(Lanes& sum, Pair x, const Pairs& w) {
#if defined(__AVX512BF16__)
  const auto bits = [](const auto& v) { return std::bit_cast<__m512bh>(v); };
  sum = _mm512_dpbf16_ps(sum, bits(Pairs{} + x), bits(w));
#else  // bfloat16 is the upper half of a float
  sum += std::bit_cast<float>(x << 16) * reinterpret_cast<Lanes>(w << 16);
  sum += std::bit_cast<float>(x & 0xffff0000) * reinterpret_cast<Lanes>(w & 0xffff0000);
#endif
}

// y[r,:] = activation(x[r,:] w + b) for `rows` rows, `x_stride` apart, and a panel w [depth][columns], whose sums
// stay in registers. Of the columns the first n are wanted.
template <int rows, class Number, class Vector>
void panel_product(float* y, int64_t y_stride, const Number* x, int64_t x_stride, const Vector* w, const float* b,
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
    for (int half = 0; half < 2; ++half) {
      Lanes bias{}, sum = sums[r][half];
      const int64_t count = std::clamp<int64_t>(n - half * lanes, 0, lanes);
      std::memcpy(&bias, b + half * lanes, static_cast<size_t>(count) * sizeof(float));
      sum += bias;
      if (activation == Activation::relu) sum = sum > 0 ? sum : Lanes{};
      std::memcpy(y + r * y_stride + half * lanes, &sum, static_cast<size_t>(count) * sizeof(float));
    }
}

}  // namespace

// w^T in panels [out/columns][in][columns], each read sequentially by one thread. In bf16, two neighbours along `in`
// lie side by side: [out/columns][in/2][columns][2].
class cpu::PackedColumns {
 public:
  // Two sums for each, two vectors of w and one of x fit into the registers.
  static constexpr int64_t most_rows = cpu::registers == 32 ? 12 : 6;

  PackedColumns(const float* w, int64_t out, int64_t in)
      : out_(out),
        in_(in),
        rounded_(precision() == Precision::bf16),
        depth_(rounded_ ? (in + 1) / 2 : in),
        panels_(static_cast<size_t>(panels() * depth_ * panel_columns) * sizeof(float), Device::cpu) {
    const int64_t group = rounded_ ? 2 : 1;
    std::vector<float> panel(static_cast<size_t>(depth_ * group * panel_columns));
    float* to = static_cast<float*>(panels_.data());
    for (int64_t i = 0; i < panels(); ++i, to += depth_ * panel_columns) {
      for (int64_t k = 0; k < depth_ * group; ++k)
        for (int64_t j = 0; j < panel_columns; ++j) {
          const int64_t column = i * panel_columns + j;
          panel[static_cast<size_t>((k / group * panel_columns + j) * group + k % group)] =
              column < out && k < in ? w[column * in + k] : 0;
        }
      if (rounded_)
        round_to_bf16(to, panel.data(), static_cast<int64_t>(panel.size()));
      else
        std::copy(panel.begin(), panel.end(), to);
    }
  }

  int64_t panels() const { return (out_ + panel_columns - 1) / panel_columns; }
  // Distance between the rows of what `pack` writes, in 4-byte words. Not a power of two, or twelve rows of x would
  // compete for the same few lines of the cache.
  int64_t stride() const { return depth_ + lanes; }

  // x [rows,in] -> the left operand [rows,stride()]
  void pack(float* to, const float* x, int64_t rows) const {
    for (int64_t r = 0; r < rows; ++r) {
      float* row = to + r * stride();
      if (rounded_) {
        std::memset(row + depth_ - 1, 0, sizeof(Pair));  // the second half of the last pair, if in is odd
        round_to_bf16(row, x + r * in_, in_);
      } else {
        std::copy_n(x + r * in_, in_, row);
      }
    }
  }

  // Panel i of y [rows,out], for at most most_rows rows of the left operand.
  void multiply(float* y, const float* x, const float* b, int64_t rows, int64_t i, Activation activation) const {
    if (rounded_)
      multiply_by<Pair, Pairs>(y, x, b, rows, i, activation);
    else
      multiply_by<float, Lanes>(y, x, b, rows, i, activation);
  }

 private:
  template <class Number, class Vector>
  void multiply_by(float* y, const float* x, const float* b, int64_t rows, int64_t i, Activation activation) const {
    constexpr auto products = []<int... n>(std::integer_sequence<int, n...>) {
      return std::array{&panel_product<n + 1, Number, Vector>...};
    }
    (std::make_integer_sequence<int, most_rows>());
    const int64_t column = i * panel_columns;
    const auto* w = static_cast<const Vector*>(panels_.data()) + i * depth_ * 2;
    products[static_cast<size_t>(rows - 1)](y + column, out_, reinterpret_cast<const Number*>(x), stride(), w,
                                            b + column, depth_, std::min(panel_columns, out_ - column), activation);
  }

  int64_t out_, in_;
  bool rounded_;
  int64_t depth_;
  Storage panels_;
};

PackedLinear::PackedLinear(const Tensor& w, const Tensor& b) : w_(w), b_(b) {
  check(w.shape().rank() == 2, "linear: w ", w.shape(), " is not a matrix");
  check(b.shape() == Shape{w.shape()[0]}, "linear: b ", b.shape(), " does not match w ", w.shape());
  if (w.device() == Device::cpu) columns_ = std::make_shared<cpu::PackedColumns>(w.data(), w.shape()[0], w.shape()[1]);
}

std::vector<Tensor> linear(const Tensor& x, std::span<const PackedLinear> layers, Activation activation) {
  std::vector<Tensor> y;
  std::vector<std::pair<size_t, int64_t>> work;  // layer, panel
  for (const PackedLinear& layer : layers) {
    const Shape& w = layer.w_.shape();
    device_of("linear", x, layer.w_);
    check(x.shape().rank() >= 1 && x.shape()[-1] == w[1], "linear: x ", x.shape(), " does not match w ", w);
    if (!layer.columns_ || w[1] == 0) {
      y.push_back(linear(x, layer.w_, layer.b_, activation));
      continue;
    }
    for (int64_t i = 0; i < layer.columns_->panels(); ++i) work.emplace_back(y.size(), i);
    y.emplace_back(x.shape().with_last(w[0]));
  }
  if (work.empty() || x.size() == 0) return y;
  const int64_t rows = x.size() / x.shape()[-1], stride = layers[0].columns_->stride();
  Tensor left(Shape{rows, stride});
  layers[0].columns_->pack(left.data(), x.data(), rows);  // the same for all: they have the same `in`
  const int64_t blocks = (rows + cpu::PackedColumns::most_rows - 1) / cpu::PackedColumns::most_rows;
  const int64_t block = (rows + blocks - 1) / blocks;  // 64 rows: six times 11 or less, not five times 12 and then 4
#pragma omp parallel for schedule(static)
  for (size_t n = 0; n < work.size(); ++n) {
    const auto [l, panel] = work[n];
    const int64_t out = y[l].shape()[-1];
    for (int64_t r = 0; r < rows; r += block)
      layers[l].columns_->multiply(y[l].data() + r * out, left.data() + r * stride, layers[l].b_.data(),
                                   std::min(rows - r, block), panel, activation);
  }
  return y;
}

}  // namespace runnel
