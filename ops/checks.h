// Checks of arguments that several ops share.
#pragma once
#include "engine/check.h"
#include "engine/random.h"
#include "engine/tensor.h"

namespace runnel {

// Throws unless 0 <= p < 1; every op with dropout calls it.
void check_dropout(const char* op, const Dropout& dropout);

// Throws unless lengths are empty or one number in [0, longest] for each sequence.
inline void check_lengths(const char* op, const Indices& lengths, int64_t sequences, int64_t longest) {
  if (!lengths) return;
  check(lengths.shape() == Shape{sequences}, op, ": lengths ", lengths.shape(), " are not one number for each of ",
        sequences, " sequences");
  if (lengths.device() == Device::cpu)
    for (int64_t b = 0; b < sequences; ++b)
      check(lengths.data()[b] >= 0 && lengths.data()[b] <= longest, op, ": length ", lengths.data()[b], " of sequence ",
            b, " is not in [0, ", longest, "]");
}

// Throws unless there is one key for each row to draw from, `name` in messages. Returns their device.
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
