// Softmax attention to listed blocks of keys: local attention, Sparse Transformer, BigBird, Longformer. The arithmetic
// is that of softmax_attention.cpp, in blocks of 64 queries and of 64 keys which are gathered from the listed blocks
// one after another: key t of a list lies in its block t / n, n being the positions of a block. Only the last block of
// a sequence can be shorter, and it is the last of its list. A band hides some keys of the listed blocks. Lists may
// depend on the length of a sequence.
#include <tuple>
#include <utility>
#include <vector>

#include "ops/cpu/attention/softmax_block.h"
#include "ops/kernels/lra.h"

namespace runnel {
namespace {

// The keys that query block r of a sequence with so many keys sees: those before `end`, of the blocks in its list.
class KeyList {
 public:
  KeyList(const BlockLists& pattern, const AttentionSizes& s, int64_t keys, int64_t r, int64_t end)
      : block_(pattern.key_block) {
    if (pattern.by_length) r += blocks_of(keys, block_) * blocks_of(s.length, pattern.query_block);
    list_ = pattern.keys + pattern.first_key[r];
    int64_t blocks = pattern.first_key[r + 1] - pattern.first_key[r];
    while (blocks > 0 && list_[blocks - 1] * block_ >= end) --blocks;
    if (blocks > 0) count_ = (blocks - 1) * block_ + std::min(block_, end - list_[blocks - 1] * block_);
  }
  int64_t count() const { return count_; }
  int64_t operator[](int64_t t) const { return list_[t / block_] * block_ + t % block_; }

 private:
  int64_t block_, count_ = 0;
  const int32_t* list_;
};

// Up to 64 of them.
struct GatheredKeys {
  int64_t count, positions[block_size];
  GatheredKeys(const KeyList& list, int64_t first) : count(std::min(block_size, list.count() - first)) {
    for (int64_t j = 0; j < block_size; ++j) positions[j] = j < count ? list[first + j] : nobody;
  }
  int64_t operator()(int64_t j) const { return positions[j]; }
  void load_rows(const Matrix& to, const SequenceRows<const float>& from) const {
    if (count < to.rows || from.width < to.columns) to.clear();
    for (int64_t j = 0; j < count; ++j) copy_numbers(to.row(j), from(positions[j]), from.width);
  }
  static constexpr int64_t nobody = std::numeric_limits<int64_t>::max();
};

// Of scores as `hide` takes them: hides keys outside of the band.
void hide_outside(const std::optional<Band>& band, const Matrix& p, const GatheredKeys& keys, int64_t first) {
  if (!band) return;
  for (int64_t j = 0; j < keys.count; ++j) {
    if (keys(j) < band->global) continue;
    const int64_t begin = std::clamp<int64_t>(keys(j) - band->reach - first, 0, block_size);
    const int64_t end = std::clamp<int64_t>(keys(j) + band->reach + 1 - first, 0, block_size);
    set_all(p.row(j), hidden_score, begin);
    set_all(p.row(j) + end, hidden_score, block_size - end);
  }
}

// Queries are taken up to 64 at a time, all of one block of the pattern.
struct QueryRange {
  int64_t r, first, count;
};
int64_t ranges_of_block(const BlockLists& pattern) { return blocks_of(pattern.query_block, block_size); }
int64_t query_ranges(const BlockLists& pattern, const AttentionSizes& s) {
  return blocks_of(s.length, pattern.query_block) * ranges_of_block(pattern);
}
QueryRange query_range(const BlockLists& pattern, const AttentionSizes& s, int64_t number) {
  const int64_t r = number / ranges_of_block(pattern);
  const int64_t first = r * pattern.query_block + number % ranges_of_block(pattern) * block_size;
  const int64_t end = std::min((r + 1) * pattern.query_block, s.length);
  return {r, first, std::clamp<int64_t>(end - first, 0, block_size)};
}
int64_t key_end(const AttentionSizes& s, int64_t keys, const QueryRange& range) {
  return s.causal ? std::min(keys, range.first + range.count) : keys;
}

}  // namespace

// Threads share the ranges of queries.
void cpu::block_sparse_attention_forward(float* y, float* l, const float* q, const float* k, const float* v,
                                         BlockLists pattern, const int32_t* lengths, AttentionSizes s) {
  const ThreadScratch scratch(SoftmaxBlock::floats(s));
#pragma omp parallel
  {
    SoftmaxBlock b(s, scratch.this_thread());
#pragma omp for collapse(2) schedule(dynamic)
    for (int64_t n = 0; n < s.sequences(); ++n)
      for (int64_t number = 0; number < query_ranges(pattern, s); ++number) {
        const QueryRange range = query_range(pattern, s, number);
        if (range.count == 0) continue;
        const int64_t seen = seen_keys(lengths, s, n), end = key_end(s, seen, range);
        const KeyList list(pattern, s, seen, range.r, end);
        begin_queries(b, of_queries(s, q, n, s.e), range.first, range.count, score_scale(s));
        for (int64_t t = 0; t < list.count(); t += block_size) {
          const GatheredKeys keys(list, t);
          keys.load_rows(b.k, of_keys(s, k, n, s.e));
          keys.load_rows(b.v, of_keys(s, v, n, s.m));
          add_keys(
              b,
              [&] {
                hide(b.p, keys, end, range.first, s.causal);
                hide_outside(pattern.band, b.p, keys, range.first);
              },
              [] {});
        }
        end_queries(b, of_queries(s, y, n, s.m), l + n * s.length, range.first, range.count);
      }
  }
}

// Threads share the sequences.
void cpu::block_sparse_attention_backward(float* dq, float* dk, float* dv, const float* dy, const float* y,
                                          const float* l, const float* q, const float* k, const float* v,
                                          BlockLists pattern, const int32_t* lengths, AttentionSizes s) {
  const float scale = score_scale(s);
  const ThreadScratch scratch(SoftmaxBlock::floats(s, s.length));
#pragma omp parallel
  {
    SoftmaxBlock b(s, scratch.this_thread(), s.length);
#pragma omp for schedule(static)
    for (int64_t n = 0; n < s.sequences(); ++n) {
      const SoftmaxSequence x(s, q, k, v, dy, dq, l, lengths, n);
      begin_sequence(b, s, x, y);
      const auto dk_n = of_keys(s, dk, n, s.e), dv_n = of_keys(s, dv, n, s.m);
      for (int64_t j = 0; j < s.key_length; ++j) {
        clear(dk_n(j), s.e);
        clear(dv_n(j), s.m);
      }
      for (int64_t number = 0; number < query_ranges(pattern, s); ++number) {
        const QueryRange range = query_range(pattern, s, number);
        if (range.count == 0) continue;
        const int64_t end = key_end(s, x.key_end, range);
        const KeyList list(pattern, s, x.key_end, range.r, end);
        load_queries(b, x, range.first, range.count, scale);
        b.dq.clear();
        for (int64_t t = 0; t < list.count(); t += block_size) {
          const GatheredKeys keys(list, t);
          keys.load_rows(b.k, x.k);
          keys.load_rows(b.v, x.v);
          weights_and_slopes(
              b, x, range.first, range.count,
              [&] {
                hide(b.p, keys, end, range.first, s.causal);
                hide_outside(pattern.band, b.p, keys, range.first);
              },
              [](const Matrix&) {});
          multiply(b.dv, b.p, b.g, Store::set);
          multiply(b.dk, b.w, b.q, Store::set);
          multiply_transposed(b.dq, b.w, b.k, Store::add);
          for (int64_t j = 0; j < keys.count; ++j) {
            add_scaled(dk_n(keys(j)), 1, b.dk.row(j), s.e);
            add_scaled(dv_n(keys(j)), 1, b.dv.row(j), s.m);
          }
        }
        add_to_dq(b, x, range.first, range.count, scale);
      }
    }
  }
}

}  // namespace runnel
