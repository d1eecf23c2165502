// Token embedding and positional encoding, concatenated: a row of the result is a row of the table, then a row of the
// code. The gradient of the table is a sum over tokens; each thread owns some of its columns, so every sum is added in
// the order of the tokens, without atomics.
#include "engine/check.h"
#include "ops/checks.h"
#include "ops/cpu/dropout.h"
#include "ops/cpu/scratch.h"
#include "ops/kernels.h"
#include "ops/ops.h"

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

#if RUNNEL_ONCE

Tensor embedding(const Indices& tokens, const Tensor& table, const Tensor& code, Dropout dropout,
                 const Indices& first) {
  const Device device = device_of("embedding", table, tokens, code, first);
  check(tokens.shape().rank() == 2, "embedding: tokens ", tokens.shape(), " are not [B,L]");
  check(table.shape().rank() == 2, "embedding: table ", table.shape(), " is not [V,D]");
  const int64_t batch = tokens.shape()[0], length = tokens.shape()[1];
  const int64_t vocabulary = table.shape()[0], d = table.shape()[1];
  check(!code || code.shape().rank() == 2, "embedding: code ", code.shape(), " is not [length,D]");
  const int64_t p = code ? code.shape()[1] : 0;
  check(!first || first.size() == 1, "embedding: first ", first.shape(), " is not one position");
  if (device == Device::cpu) {  // looking at them elsewhere would wait for the device
    const int64_t from = first ? first.data()[0] : 0;
    check(from >= 0 && (!code || from + length <= code.shape()[0]), "embedding: code ", code.shape(),
          " has no row for each of the positions ", from, " to ", from + length - 1);
    for (const int32_t token : tokens.to_vector())
      check(token >= 0 && token < vocabulary, "embedding: token ", token, " is not in table ", table.shape());
  }
  check_dropout("embedding", dropout);

  Tensor y(Shape{batch, length, d + p}, device);
  DISPATCH(device, embedding_forward(y.data(), tokens.data(), table.data(), code.data(), first.data(), batch, length, d,
                                     p, dropout));
  return record("embedding", {table}, y,
                [tokens, batch, length, vocabulary, d, p, dropout](const Tensor& dy) -> std::vector<Tensor> {
                  Tensor dtable(Shape{vocabulary, d}, dy.device());
                  DISPATCH(dy.device(), embedding_backward(dtable.data(), dy.data(), tokens.data(), batch, length,
                                                           vocabulary, d, p, dropout));
                  return {dtable};
                });
}

#endif

}  // namespace runnel
