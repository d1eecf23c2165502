#include "datasets/recall_task.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "datasets/batch.h"
#include "engine/check.h"

namespace runnel {

RecallBatch RecallTask::batch(Key key, int64_t size, int64_t length, int64_t pairs, int64_t first) const {
  const int64_t keys = vocabulary / 2 - 1, gaps = (length - 2 * pairs) / 2;
  check(pairs >= 1 && pairs <= keys, "recall task: ", pairs, " pairs; a vocabulary of ", vocabulary, " has ", keys,
        " keys");
  check(4 * pairs <= length, "recall task: ", length, " positions are too few for ", pairs, " pairs and their keys (",
        4 * pairs, " are enough)");
  std::vector<int32_t> tokens, places, values;
  for (int64_t b = 0; b < size; ++b) {
    const Key own = key.fold(static_cast<uint64_t>(first + b));
    const auto begin = static_cast<int64_t>(tokens.size());
    const std::vector<int64_t> some_keys = shuffled(keys, own.fold(0)),
                               some_values = shuffled(vocabulary - vocabulary / 2, own.fold(1));
    std::vector<char> is_asked(static_cast<size_t>(vocabulary));
    for (int64_t n = 0; n < pairs; ++n) is_asked[static_cast<size_t>(1 + some_keys[static_cast<size_t>(n)])] = true;
    for (int64_t t = 0; t < length; ++t) {
      const uint32_t token = own.below(static_cast<uint64_t>(t), static_cast<uint32_t>(vocabulary));
      tokens.push_back(is_asked[token] ? 0 : static_cast<int32_t>(token));
    }
    // The N places with the largest log weight + Gumbel number are such a draw.
    std::vector<double> rank;
    for (int64_t g = 1; g <= gaps; ++g)
      rank.push_back(-0.99 * std::log(g) - std::log(-std::log(own.fold(2).uniform(static_cast<uint64_t>(g)))));
    std::vector<int64_t> order(rank.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::sort(order, std::greater<>(), [&](int64_t g) { return rank[static_cast<size_t>(g)]; });
    for (int64_t n = 0; n < pairs; ++n) {
      const auto pair_key = static_cast<int32_t>(1 + some_keys[static_cast<size_t>(n)]);
      const auto value = static_cast<int32_t>(vocabulary / 2 + some_values[static_cast<size_t>(n)]);
      const int64_t place = begin + 2 * pairs + 2 * order[static_cast<size_t>(n)];
      tokens[static_cast<size_t>(begin + 2 * n)] = tokens[static_cast<size_t>(place)] = pair_key;
      tokens[static_cast<size_t>(begin + 2 * n + 1)] = value;
      places.push_back(static_cast<int32_t>(place));
      values.push_back(value);
    }
  }
  const Shape asked{size * pairs};
  return {Indices(Shape{size, length}, tokens), Indices(asked, places), Indices(asked, values)};
}

}  // namespace runnel
