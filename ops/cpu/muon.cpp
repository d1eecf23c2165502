// One update of a matrix by Muon (Jordan et al., "Muon: an optimizer for hidden layers in neural networks", 2024):
//   g := g / |g|                              ours: else one large gradient is the direction for a hundred updates
//   m := mu m + (1 - mu) g
//   x := (1 - mu) g + mu m                    momentum one step ahead (Nesterov)
//   x := what of x is left if all its singular values become about 1
//   p := p - size sqrt(max(rows, columns)) x - decay p
// Gradients of a matrix have a few large singular values and many small ones; this way all directions move alike. If x
// has full rank and singular values 1, its squares add up to min(rows, columns), so their root mean square is
// 1 / sqrt(max(rows, columns)) and that of the step is `size` for matrices of any shape.
//
// The singular values s of x = U S V^T are changed without finding them (Newton-Schulz): with A = x x^T = U S^2 U^T,
//   a x + (b A + c A^2) x = U (a S + b S^3 + c S^5) V^T.
// First x is divided by its Frobenius norm, so that no s exceeds 1. The coefficients make small s grow as fast as the
// large ones allow, a = 3.4445 times; the price is that s does not go to 1 but moves about between 0.68 and 1.2, which
// matters little. After five times every s that began above 0.0015 lies there. x^T x is the smaller one where rows
// exceed columns, and then x stands on its left.
#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/cpu/loops.h"
#include "ops/cpu/parallel.h"
#include "ops/cpu/scratch.h"
#include "ops/kernels/elementwise.h"
#include "ops/kernels/linear.h"
#include "ops/kernels/optimizers.h"

namespace runnel {
namespace {

// y = a x + b z; y may be one of them.
void combine(float* y, float a, const float* x, float b, const float* z, int64_t n) {
  map(
      y, n, [a, b](Lanes p, Lanes q) RUNNEL_INLINE { return a * p + b * q; }, x, z);
}

// y = x / |x|, with |x|^2; y may be x.
void normalise(float* y, const float* x, float square, int64_t n) {
  cpu::scale(y, x, static_cast<float>(1 / (std::sqrt(static_cast<double>(square)) + 1e-12)), n);
}

void normalise(float* x, int64_t n) {
  float squares[2];
  const RAdamTensor tensor{nullptr, nullptr, nullptr, x, n};
  cpu::sums_of_squares(squares, &tensor, 1);
  normalise(x, x, squares[0], n);
}

void make_orthogonal(float* x, int64_t rows, int64_t columns) {
  const auto [a, b, c] = newton_schulz;
  const int64_t n = rows * columns, side = std::min(rows, columns);
  const bool tall = rows > columns;
  const Scratch gram(side * side), gram2(side * side), product(n);
  normalise(x, n);
  for (int i = 0; i < newton_schulz_steps; ++i) {
    cpu::matmul(gram.data(), x, x, 1, side, side, n / side, tall, !tall, false);
    cpu::matmul(gram2.data(), gram.data(), gram.data(), 1, side, side, side, false, false, false);
    combine(gram.data(), b, gram.data(), c, gram2.data(), side * side);
    cpu::matmul(product.data(), tall ? x : gram.data(), tall ? gram.data() : x, 1, rows, columns, side, false, false,
                false);
    combine(x, a, x, 1, product.data(), n);
  }
}

void update(const MuonMatrix& matrix, float square, const float* rates, double mu) {
  const auto& [parameter, m, gradient, rows, columns] = matrix;
  const int64_t n = rows * columns;
  if (n == 0) return;
  const float momentum = static_cast<float>(mu), rest = static_cast<float>(1 - mu);
  const Scratch memory(n);
  float* const x = memory.data();
  normalise(x, gradient, square, n);
  combine(m, momentum, m, rest, x, n);
  combine(x, momentum, m, rest, x, n);
  make_orthogonal(x, rows, columns);
  const float size = rates[0] * std::sqrt(static_cast<float>(std::max(rows, columns))), decay = rates[1];
  map(
      parameter, n, [=](Lanes weight, Lanes change) RUNNEL_INLINE { return weight - (size * change + decay * weight); },
      parameter, x);
}

}  // namespace

// A thread takes whole matrices: small products lose more to waiting than they gain from helpers, and the result does
// not depend on the number of threads.
void cpu::muon_step(const MuonMatrix* matrices, int64_t count, const float* squares, const float* all_squares,
                    const float* rates, double momentum) {
  if (!std::isfinite(all_squares[0])) return;
  FirstError error;
#pragma omp parallel for schedule(dynamic)
  for (int64_t i = 0; i < count; ++i) error.guard([&] { update(matrices[i], squares[i], rates, momentum); });
  error.rethrow();
}

}  // namespace runnel
