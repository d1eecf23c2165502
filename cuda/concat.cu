// Columns of two tensors side by side: see ops/cpu/concat.cpp.
#include "cuda/launch.h"
#include "ops/kernels/shapes.h"

namespace runnel::cuda {
namespace {

// Launch: a thread per element. Owns: an element of y.
__global__ void concat_forward_kernel(float* y, const float* a, const float* b, int64_t rows, int64_t period, int64_t m,
                                      int64_t n) {
  for (int64_t i = first_element(); i < rows * (m + n); i += element_step()) {
    const int64_t r = i / (m + n), c = i % (m + n);
    y[i] = c < m ? a[r * m + c] : b[r % period * n + c - m];
  }
}

// Launch: a thread per element. Owns: an element of da, then one of db.
__global__ void concat_backward_kernel(float* da, float* db, const float* dy, int64_t rows, int64_t period,
                                       int64_t rows_b, int64_t m, int64_t n) {
  for (int64_t i = first_element(); i < rows * m; i += element_step()) da[i] = dy[i / m * (m + n) + i % m];
  for (int64_t i = first_element(); i < rows_b * n; i += element_step()) {
    float sum = 0;
    if (i / n < period)
      for (int64_t r = i / n; r < rows; r += period) sum += dy[r * (m + n) + m + i % n];
    db[i] = sum;
  }
}

}  // namespace

void concat_forward(float* y, const float* a, const float* b, int64_t rows, int64_t period, int64_t m, int64_t n) {
  launch("concat_forward", concat_forward_kernel, over(rows * (m + n)), y, a, b, rows, period, m, n);
}

void concat_backward(float* da, float* db, const float* dy, int64_t rows, int64_t period, int64_t rows_b, int64_t m,
                     int64_t n) {
  launch("concat_backward", concat_backward_kernel, over(std::max(rows * m, rows_b * n)), da, db, dy, rows, period,
         rows_b, m, n);
}

}  // namespace runnel::cuda
