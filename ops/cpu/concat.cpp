// Columns of two tensors side by side; the second one may be shared by the batch, as what is learned for each position
// is. Its gradient is then the sum over the batch, in the order of the batch.
#include "ops/cpu/loops.h"
#include "ops/cpu/scratch.h"
#include "ops/kernels/shapes.h"

namespace runnel {

void cpu::concat_forward(float* y, const float* a, const float* b, int64_t rows, int64_t period, int64_t m, int64_t n) {
  parallel_rows(rows, m + n, [=](int64_t r) {
    copy_numbers(y + r * (m + n), a + r * m, m);
    copy_numbers(y + r * (m + n) + m, b + r % period * n, n);
  });
}

// Each thread owns some rows of b, and the rows of a that stand beside them.
void cpu::concat_backward(float* da, float* db, const float* dy, int64_t rows, int64_t period, int64_t rows_b,
                          int64_t m, int64_t n) {
  parallel_for(rows_b, rows * (m + n) >= parallel_from, [=](int64_t r) {
    clear(db + r * n, n);
    if (r >= period) return;
    for (int64_t i = r; i < rows; i += period) {
      copy_numbers(da + i * m, dy + i * (m + n), m);
      accumulate(db + r * n, dy + i * (m + n) + m, n);
    }
  });
}

}  // namespace runnel
