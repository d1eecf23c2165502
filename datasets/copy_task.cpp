#include "datasets/copy_task.h"

#include <vector>

#include "engine/check.h"

namespace runnel {

CopyBatch CopyTask::batch(Key key, int64_t size, Device device, int64_t first) const {
  check(length >= 5, "copy task: a length of ", length,
        " leaves no room for a sequence, a separator and a copy (5 does)");
  check(symbols >= 1 && symbols < INT32_MAX, "copy task: ", symbols, " symbols; at least 1 is needed");
  check(size >= 0, "copy task: a batch of ", size, " sequences");
  const int64_t shortest = length / 4, longest = (length - 1) / 2 - 1;

  std::vector<int32_t> tokens(static_cast<size_t>(size * length)), targets(tokens.size());
  std::vector<float> mask(tokens.size());
  int64_t counted_positions = 0;
  for (int64_t b = 0; b < size; ++b) {
    int32_t* const x = tokens.data() + b * length;
    int32_t* const y = targets.data() + b * length;
    const Key sequence = key.fold(static_cast<uint64_t>(first + b));
    const int64_t n = shortest + sequence.below(0, static_cast<uint32_t>(longest - shortest + 1));
    for (int64_t t = 0; t < n; ++t) {
      const uint32_t symbol = sequence.below(static_cast<uint64_t>(t) + 1, static_cast<uint32_t>(symbols));
      x[t] = x[n + 1 + t] = static_cast<int32_t>(symbol) + 1;
    }
    for (int64_t t = 0; t + 1 < length; ++t) y[t] = x[t + 1];
    for (int64_t t = n - 1; t < 2 * n; ++t) mask[static_cast<size_t>(b * length + t)] = 1;
    counted_positions += n + 1;
  }
  const Shape shape{size, length};
  return {Indices(shape, tokens, device), Indices(shape, targets, device), Tensor(shape, mask, device),
          static_cast<double>(counted_positions)};
}

}  // namespace runnel
