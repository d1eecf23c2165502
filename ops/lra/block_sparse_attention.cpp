// Softmax attention to listed blocks of keys: local attention, Sparse Transformer, BigBird, Longformer.
#include <limits>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/check.h"
#include "engine/tape.h"
#include "ops/attention/arguments.h"
#include "ops/kernels/lra.h"
#include "ops/lra/attention.h"

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

Tensor block_sparse_attention(const Tensor& q, const Tensor& k, const Tensor& v, const BlockPattern& pattern,
                              const AttentionMask& mask) {
  const char* const op = "block_sparse_attention";
  const AttentionSizes s = check_attention(op, q, k, v, mask);
  device_of(op, q, pattern.first_key, pattern.keys, pattern.first_query, pattern.queries);
  const int64_t patterns = pattern.by_length ? blocks_of(s.key_length, pattern.key_block) + 1 : 1;
  const auto check_blocks = [&](const char* name, const Tensor& x, const Indices& first, int64_t positions) {
    check(first.size() - 1 == patterns * blocks_of(x.shape()[1], positions), op, ": a pattern of ", first.size() - 1,
          " blocks of ", positions, " does not match ", name, " ", x.shape());
  };
  check_blocks("q", q, pattern.first_key, pattern.query_block);
  check_blocks("k", k, pattern.first_query, pattern.key_block);

  const Indices lengths = mask.lengths;
  const auto lists = [](const BlockPattern& p) {
    return BlockLists{p.query_block,    p.key_block, p.first_key.data(), p.keys.data(), p.first_query.data(),
                      p.queries.data(), p.band,      p.by_length};
  };
  Tensor y(q.shape().with_last(s.m), q.device()), l(Shape{s.batch, s.heads, s.length}, q.device());
  DISPATCH(q.device(), block_sparse_attention_forward(y.data(), l.data(), q.data(), k.data(), v.data(), lists(pattern),
                                                      lengths.data(), s));
  return record(op, {q, k, v}, y, [=](const Tensor& dy) -> std::vector<Tensor> {
    std::vector<Tensor> d = gradients_like({q, k, v});
    DISPATCH(q.device(),
             block_sparse_attention_backward(d[0].data(), d[1].data(), d[2].data(), dy.data(), y.data(), l.data(),
                                             q.data(), k.data(), v.data(), lists(pattern), lengths.data(), s));
    return d;
  });
}

}  // namespace runnel
