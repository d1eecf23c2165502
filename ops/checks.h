// Checks of arguments that several ops share.
#pragma once
#include "engine/check.h"
#include "engine/random.h"
#include "engine/tensor.h"

namespace runnel {

// Throws unless 0 <= p < 1; every op with dropout calls it.
void check_dropout(const char* op, const Dropout& dropout);

// Throws unless there is one key for each row of what is drawn from, `name` in messages. Returns their device.
inline Device check_draw(const char* op, const char* name, const Tensor& from, const Keys& keys, float temperature,
                         const Indices& position) {
  const Device device = device_of(op, from, keys, position);
  check(keys.size() * from.shape()[-1] == from.size(), op, ": ", keys.size(), " keys do not match ", name, " ",
        from.shape());
  check(!position || position.size() == 1, op, ": position ", position.shape(), " is not one number");
  check(temperature > 0, op, ": the temperature ", temperature, " is not positive");
  return device;
}

}  // namespace runnel
