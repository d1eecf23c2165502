// Muon, one matrix after another; the update is derived in ops/muon.cpp.
//
// Nearly all of it is products of matrices; what stands between them is a formula per element. The norm by which x is
// divided stays on the device.
#include <cmath>

#include "cuda/map.h"
#include "cuda/temporary.h"
#include "ops/kernels.h"

namespace runnel::cuda {
namespace {

// Launch: over_fours(n). Owns: y[i] = a x[i] + b z[i]. Shared: none.
__global__ void combine_kernel(float* y, float a, const float* x, float b, const float* z, int64_t n) {
  map(
      y, n, [a, b](float xi, float zi) { return a * xi + b * zi; }, Elements{x}, Elements{z});
}

// Launch: over_fours(n). Owns: y[i]. Shared: none.
__global__ void normalise_kernel(float* y, const float* x, const float* square, int64_t n) {
  const float scale = static_cast<float>(1 / (sqrt(static_cast<double>(square[0])) + 1e-12));
  map(
      y, n, [scale](float xi) { return scale * xi; }, Elements{x});
}

// Launch: over_fours(n). Owns: parameter[i]. Shared: none.
__global__ void update_kernel(float* parameter, const float* x, float size, float decay, int64_t n) {
  map(
      parameter, n, [size, decay](float pi, float xi) { return pi - (size * xi + decay * pi); }, Elements{parameter},
      Elements{x});
}

void combine(float* y, float a, const float* x, float b, const float* z, int64_t n) {
  launch("muon_step", combine_kernel, over_fours(n), y, a, x, b, z, n);
}

void normalise(float* y, const float* x, int64_t n) {
  const Temporary<float> squares(2);
  const RAdamTensor tensor{nullptr, nullptr, nullptr, x, n};
  sums_of_squares(squares.data(), &tensor, 1);
  launch("muon_step", normalise_kernel, over_fours(n), y, x, squares.data(), n);
}

void make_orthogonal(float* x, int64_t rows, int64_t columns) {
  const auto [a, b, c] = newton_schulz;
  const int64_t n = rows * columns, side = std::min(rows, columns);
  const bool tall = rows > columns;
  const Temporary<float> gram(side * side), gram2(side * side), product(n);
  normalise(x, x, n);
  for (int i = 0; i < newton_schulz_steps; ++i) {
    matmul(gram.data(), x, x, side, side, n / side, tall, !tall);
    matmul(gram2.data(), gram.data(), gram.data(), side, side, side, false, false);
    combine(gram.data(), b, gram.data(), c, gram2.data(), side * side);
    matmul(product.data(), tall ? x : gram.data(), tall ? gram.data() : x, rows, columns, side, false, false);
    combine(x, a, x, 1, product.data(), n);
  }
}

void update(const MuonMatrix& matrix, const MuonStep& step) {
  const int64_t n = matrix.rows * matrix.columns;
  if (n == 0) return;
  const float momentum = static_cast<float>(step.momentum), rest = static_cast<float>(1 - step.momentum);
  const Temporary<float> x(n);
  normalise(x.data(), matrix.gradient, n);
  combine(matrix.m, momentum, matrix.m, rest, x.data(), n);
  combine(x.data(), momentum, matrix.m, rest, x.data(), n);
  make_orthogonal(x.data(), matrix.rows, matrix.columns);
  const double size = step.size * std::sqrt(static_cast<double>(std::max(matrix.rows, matrix.columns)));
  launch("muon_step", update_kernel, over_fours(n), matrix.parameter, x.data(), static_cast<float>(size),
         static_cast<float>(step.decay), n);
}

}  // namespace

void muon_step(const MuonMatrix* matrices, int64_t count, MuonStep step) {
  for (int64_t i = 0; i < count; ++i) update(matrices[i], step);
}

}  // namespace runnel::cuda
