// Token embedding and positional encoding, concatenated: a row of the result is a row of the table, then a row of the
// code.
#include <vector>

#include "engine/check.h"
#include "engine/tape.h"
#include "ops/checks.h"
#include "ops/kernels/layers.h"
#include "ops/layers.h"

namespace runnel {

Tensor embedding(const Indices& tokens, const Tensor& table, const Tensor& code, Dropout dropout,
                 const Indices& first) {
  const Device device = device_of("embedding", table, tokens, code, first);
  check(tokens.shape().rank() == 2, "embedding: tokens ", tokens.shape(), " are not [B,L]");
  check(table.shape().rank() == 2, "embedding: table ", table.shape(), " is not [V,D]");
  const int64_t batch = tokens.shape()[0], length = tokens.shape()[1];
  const int64_t vocabulary = table.shape()[0], d = table.shape()[1];
  refuse_gradient("embedding", "code", code);
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

}  // namespace runnel
