// Token embedding and positional encoding, concatenated: a row of the result is a row of the table, then a row of the
// code. The gradient of the table is a sum over tokens; each thread owns some of its columns, so every sum is added in
// the order of the tokens, without atomics.
#include "ops/cpu/dropout.h"
#include "ops/cpu/scratch.h"
#include "ops/kernels/layers.h"

namespace runnel {

void cpu::embedding_forward(float* y, const int32_t* tokens, const float* table, const float* code,
                            const int32_t* first, int64_t batch, int64_t length, int64_t d, int64_t p,
                            Dropout dropout) {
  const int64_t from = first ? first[0] : 0;
  parallel_rows(batch * length, d + p, [=](int64_t r) {
    float* const row = y + r * (d + p);
    copy_numbers(row, table + tokens[r] * d, d);
    if (p > 0) copy_numbers(row + d, code + (from + r % length) * p, p);
    apply_dropout(row, row, r * (d + p), d + p, dropout);
  });
}

void cpu::embedding_backward(float* dtable, const float* dy, const int32_t* tokens, int64_t batch, int64_t length,
                             int64_t vocabulary, int64_t d, int64_t p, Dropout dropout) {
  constexpr int64_t width = 64;  // columns that a thread takes at a time
  clear(dtable, vocabulary * d);
  parallel_pieces(d, width, batch * length * d >= parallel_from, [=](int64_t column, int64_t count) {
    for (int64_t r = 0; r < batch * length; ++r) {
      float piece[width];
      const int64_t begin = r * (d + p) + column;
      apply_dropout(piece, dy + begin, begin, count, dropout);
      accumulate(dtable + tokens[r] * d + column, piece, count);
    }
  });
}

}  // namespace runnel
