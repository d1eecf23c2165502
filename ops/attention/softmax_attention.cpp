// Softmax attention (eq. 2), and its decoding step with a KV cache. The rule keeps q, k, v, y and a number for each
// query and head, so memory grows with L and not with its square.
#include <limits>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/check.h"
#include "engine/tape.h"
#include "ops/attention/arguments.h"
#include "ops/checks.h"
#include "ops/kernels/softmax_attention.h"
#include "ops/softmax_attention.h"

namespace runnel {
namespace {

// Lists one after another, and where each begins.
std::pair<Indices, Indices> flattened(const std::vector<std::vector<int32_t>>& lists, Device device) {
  std::vector<int32_t> first{0}, all;
  for (const std::vector<int32_t>& list : lists) {
    all.insert(all.end(), list.begin(), list.end());
    first.push_back(static_cast<int32_t>(all.size()));
  }
  return {Indices(Shape{std::ssize(first)}, first, device), Indices(Shape{std::ssize(all)}, all, device)};
}

void check_bias(const char* op, const Tensor& bias, const AttentionSizes& s) {
  const Shape& shape = bias.shape();
  check(shape.rank() == 3 || (shape.rank() == 4 && shape[0] == s.batch), op, ": bias ", shape,
        " is neither [H,rows,columns] nor [B,H,rows,columns] with B ", s.batch);
  check(shape[-3] == s.heads && shape[-2] >= s.length && shape[-1] >= s.key_length, op, ": bias ", shape,
        " does not cover ", s.heads, " heads, ", s.length, " queries and ", s.key_length, " keys");
}

void check_pattern(const char* op, const Tensor& q, const Tensor& k, const SoftmaxOptions& options) {
  const BlockPattern& pattern = *options.pattern;
  device_of(op, q, pattern.first_key, pattern.keys, pattern.first_query, pattern.queries);
  const int64_t patterns = pattern.by_length ? blocks_of(k.shape()[1], pattern.key_block) + 1 : 1;
  const auto check_blocks = [&](const char* name, const Tensor& x, const Indices& first, int64_t positions) {
    check(first.size() - 1 == patterns * blocks_of(x.shape()[1], positions), op, ": a pattern of ", first.size() - 1,
          " blocks of ", positions, " does not match ", name, " ", x.shape());
  };
  check_blocks("q", q, pattern.first_key, pattern.query_block);
  check_blocks("k", k, pattern.first_query, pattern.key_block);
}

SoftmaxSettings settings_of(const SoftmaxOptions& options) {
  SoftmaxSettings settings{.dropout = options.dropout};
  if (const Tensor& b = options.bias) settings.bias = {b.data(), b.shape()[-2], b.shape()[-1], b.shape().rank() == 3};
  if (const auto& p = options.pattern)
    settings.pattern = {p->query_block,    p->key_block, p->first_key.data(), p->keys.data(), p->first_query.data(),
                        p->queries.data(), p->band,      p->by_length};
  return settings;
}

}  // namespace

BlockPattern::BlockPattern(int64_t query_positions, int64_t key_positions,
                           const std::vector<std::vector<int32_t>>& seen, int64_t key_blocks, Device device,
                           std::optional<Band> only, bool of_length)
    : query_block(query_positions), key_block(key_positions), band(only), by_length(of_length) {
  check(query_block > 0 && key_block > 0, "block pattern: blocks of ", query_block, " queries and ", key_block,
        " keys");
  constexpr int64_t most = std::numeric_limits<int32_t>::max();
  check(!band || (band->reach >= 0 && band->reach <= most && band->global >= 0 && band->global <= most),
        "block pattern: a band with a reach of ", band ? band->reach : 0, " and ", band ? band->global : 0,
        " global keys");
  const size_t all_keys = static_cast<size_t>(key_blocks), patterns = by_length ? all_keys + 1 : 1;
  check(seen.size() % patterns == 0, "block pattern: ", seen.size(), " lists for ", patterns, " numbers of key blocks");
  const size_t query_blocks = seen.size() / patterns;
  std::vector<std::vector<int32_t>> seen_by(patterns * all_keys);
  for (size_t row = 0; row < seen.size(); ++row) {
    const size_t r = row % query_blocks, first = row / query_blocks * all_keys;
    for (size_t i = 0; i < seen[row].size(); ++i) {
      const int32_t c = seen[row][i];
      check(c >= 0 && c < key_blocks, "block pattern: query block ", r, " sees key block ", c, " of ", key_blocks);
      check(i == 0 || seen[row][i - 1] < c, "block pattern: the key blocks of query block ", r, " are not ascending");
      seen_by[first + static_cast<size_t>(c)].push_back(static_cast<int32_t>(r));
    }
  }
  std::tie(first_key, keys) = flattened(seen, device);
  std::tie(first_query, queries) = flattened(seen_by, device);
}

Tensor softmax_attention(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionMask& mask,
                         const SoftmaxOptions& options) {
  const char* const op = "softmax_attention";
  const bool has_scores = q || k || !options.bias;
  check(has_scores || v.shape().rank() == 4, op, ": v ", v.shape(), " is not [B,S,H,M]");
  AttentionSizes s = has_scores ? check_attention(op, q, k, v, mask) : check_attention(op, v, v, v, mask);
  if (!has_scores) s.e = 0;
  check_dropout(op, options.dropout);
  check((options.dropout.p > 0) + bool(options.bias) + bool(options.pattern) <= 1, op,
        ": dropout, a bias and a pattern of blocks exclude each other");
  const Device device = device_of(op, v, options.bias);
  if (options.bias) check_bias(op, options.bias, s);
  if (options.pattern) check_pattern(op, q, k, options);

  const Indices lengths = mask.lengths;
  Tensor y(Shape{s.batch, s.length, s.heads, s.m}, device), l(Shape{s.batch, s.heads, s.length}, device);
  DISPATCH(device, softmax_attention_forward(y.data(), l.data(), q.data(), k.data(), v.data(), lengths.data(), s,
                                             settings_of(options)));
  return record(op, {q, k, v, options.bias}, y, [=](const Tensor& dy) -> std::vector<Tensor> {
    std::vector<Tensor> d =
        has_scores ? gradients_like({q, k, v}) : std::vector{Tensor(), Tensor(), Tensor(v.shape(), device)};
    d.push_back(options.bias.wants_grad() ? Tensor(options.bias.shape(), device) : Tensor());
    DISPATCH(device, softmax_attention_backward(d[0].data(), d[1].data(), d[2].data(), d[3].data(), dy.data(), y.data(),
                                                l.data(), q.data(), k.data(), v.data(), lengths.data(), s,
                                                settings_of(options)));
    return d;
  });
}

Tensor softmax_attention_step(const Tensor& q, const Tensor& k, const Tensor& v, KeyValueCache& cache,
                              const Indices& position) {
  const char* const op = "softmax_attention_step";
  AttentionSizes s = check_attention_step(op, q, k, v);
  check(cache.k.shape().rank() == 4 && cache.v.shape().rank() == 4, op, ": the cache is empty");
  s.key_length = cache.v.shape()[2];
  check(cache.k.shape() == Shape{s.batch, s.heads, s.e, s.key_length} &&
            cache.v.shape() == Shape{s.batch, s.heads, s.key_length, s.m},
        op, ": a cache of k ", cache.k.shape(), " and v ", cache.v.shape(), " does not match q ", q.shape(), " and v ",
        v.shape());
  check(position.size() == 1, op, ": position ", position.shape(), " is not one number");
  device_of(op, q, k, v, cache.k, cache.v, position);
  if (q.device() == Device::cpu)
    check(position.data()[0] >= 0 && (cache.wraps || position.data()[0] < s.key_length), op, ": position ",
          position.data()[0], " is not in a cache of ", s.key_length);
  check(q.device() == Device::cpu || s.m <= 256, op, ": v ", v.shape(), " has more than 256 columns");
  Tensor y(v.shape(), v.device());
  DISPATCH(q.device(), softmax_attention_step(y.data(), cache.k.data(), cache.v.data(), q.data(), k.data(), v.data(),
                                              position.data(), s));
  return y;
}

}  // namespace runnel
