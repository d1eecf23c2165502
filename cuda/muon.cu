// Muon; the update is derived in ops/cpu/muon.cpp.
//
// Nearly all of it is products of small matrices, which leave most of a GPU idle: so all matrices of one shape are
// updated together, up to 64 in a launch. Between the products there is a formula per element; the norms by which
// is divided stay on the device.
#include <cmath>
#include <map>
#include <utility>
#include <vector>

#include "cuda/cublas.h"
#include "cuda/map.h"
#include "cuda/temporary.h"
#include "ops/kernels/elementwise.h"
#include "ops/kernels/optimizers.h"

namespace runnel::cuda {
namespace {

constexpr int64_t max_matrices = 64;
struct Matrices {  // of one shape
  MuonMatrix at[max_matrices];
  int32_t number[max_matrices];  // of each gradient's squared norm
};

// over_fours(n) for each matrix.
Grid by_matrices(int64_t n, int64_t count) {
  Grid grid = over_fours(n);
  grid.blocks.y = static_cast<unsigned>(count);
  return grid;
}

__device__ float inverse_norm(float square) {
  return static_cast<float>(1 / (sqrt(static_cast<double>(square)) + 1e-12));
}

// m = momentum m + rest g / |g|,  x = momentum m + rest g / |g|.
// m stays as it is if the gradients are not finite.
// Launch: y: matrices, x: over_fours(n), each several times. Owns: element i of m and x [matrices,n]. Shared: none.
__global__ void momentum_kernel(float* x, Matrices matrices, const float* squares, const float* all_squares,
                                float momentum, float rest, int64_t n) {
  float* const m = matrices.at[blockIdx.y].m;
  const float* const gradient = matrices.at[blockIdx.y].gradient;
  const float scale = inverse_norm(squares[matrices.number[blockIdx.y]]);
  const bool is_finite = std::isfinite(all_squares[0]);
  for (int64_t i = first_element(); i < n; i += element_step()) {
    const float g = scale * gradient[i], mi = momentum * m[i] + rest * g;
    if (is_finite) m[i] = mi;
    x[blockIdx.y * n + i] = momentum * mi + rest * g;
  }
}

// x = x / |x|.
// Launch: y: matrices, x: over_fours(n). Owns: element i of x [matrices,n]. Shared: none.
__global__ void normalise_kernel(float* x, const float* squares, int64_t n) {
  const float scale = inverse_norm(squares[blockIdx.y]);
  float* const own = x + blockIdx.y * n;
  map(
      own, n, [scale](float xi) { return scale * xi; }, Elements{own});
}

// Launch: y: matrices, x: over_fours(n). Owns: parameter[i]. Shared: none.
__global__ void update_kernel(Matrices matrices, const float* x, const float* all_squares, const float* rates,
                              float scale, int64_t n) {
  if (!std::isfinite(all_squares[0])) return;
  float* const parameter = matrices.at[blockIdx.y].parameter;
  const float size = scale * rates[0], decay = rates[1];
  map(
      parameter, n, [size, decay](float pi, float xi) { return pi - (size * xi + decay * pi); }, Elements{parameter},
      Elements{x + blockIdx.y * n});
}

// y = factor op(a) op(b) + added_factor added for `count` matrices.
void multiply(float* y, float factor, const float* a, const float* b, int64_t m, int64_t n, int64_t k, bool transpose_a,
              bool transpose_b, int64_t count, float added_factor = 0, const float* added = nullptr) {
  ProductOptions options;
  options.batch = count;
  options.factor = factor;
  options.added = added;
  options.added_factor = added_factor;
  product(y, a, b, m, n, k, transpose_a, transpose_b, options);
}

// x [count,rows,columns], five times x = (b A + c A A) x + a x with A = x x^T, or x (...) and A = x^T x if x is tall.
// Returns where the result lies: in x or in y.
float* make_orthogonal(float* x, float* y, int64_t count, int64_t rows, int64_t columns) {
  const auto [a, b, c] = newton_schulz;
  const int64_t side = std::min(rows, columns), other = std::max(rows, columns);
  const bool tall = rows > columns;
  const Temporary<float> gram(count * side * side), polynomial(count * side * side);
  for (int i = 0; i < newton_schulz_steps; ++i) {
    multiply(gram.data(), 1, x, x, side, side, other, tall, !tall, count);
    multiply(polynomial.data(), c, gram.data(), gram.data(), side, side, side, false, false, count, b, gram.data());
    multiply(y, 1, tall ? x : polynomial.data(), tall ? polynomial.data() : x, rows, columns, side, false, false, count,
             a, x);
    std::swap(x, y);
  }
  return x;
}

void update(const Matrices& matrices, int64_t count, const float* squares, const float* all_squares, const float* rates,
            double mu) {
  const int64_t rows = matrices.at[0].rows, columns = matrices.at[0].columns, n = rows * columns;
  const float momentum = static_cast<float>(mu), rest = static_cast<float>(1 - mu);
  const Temporary<float> x(count * n), y(count * n), squares_of_x(count + 1);
  launch("muon_step", momentum_kernel, by_matrices(n, count), x.data(), matrices, squares, all_squares, momentum, rest,
         n);
  std::vector<RAdamTensor> all_x;  // of which only the gradients are read
  for (int64_t i = 0; i < count; ++i) all_x.push_back({nullptr, nullptr, nullptr, x.data() + i * n, n});
  sums_of_squares(squares_of_x.data(), all_x.data(), count);
  launch("muon_step", normalise_kernel, by_matrices(n, count), x.data(), squares_of_x.data(), n);
  const float* const direction = make_orthogonal(x.data(), y.data(), count, rows, columns);
  launch("muon_step", update_kernel, by_matrices(n, count), matrices, direction, all_squares, rates,
         std::sqrt(static_cast<float>(std::max(rows, columns))), n);
}

}  // namespace

void muon_step(const MuonMatrix* matrices, int64_t count, const float* squares, const float* all_squares,
               const float* rates, double momentum) {
  std::map<std::pair<int64_t, int64_t>, std::vector<int64_t>> by_shape;
  for (int64_t i = 0; i < count; ++i)
    if (matrices[i].rows * matrices[i].columns > 0) by_shape[{matrices[i].rows, matrices[i].columns}].push_back(i);
  for (const auto& [shape, all] : by_shape)
    for (size_t first = 0; first < all.size(); first += max_matrices) {
      Matrices group{};
      const size_t size = std::min<size_t>(max_matrices, all.size() - first);
      for (size_t i = 0; i < size; ++i) {
        group.number[i] = static_cast<int32_t>(all[first + i]);
        group.at[i] = matrices[all[first + i]];
      }
      update(group, static_cast<int64_t>(size), squares, all_squares, rates, momentum);
    }
}

}  // namespace runnel::cuda
