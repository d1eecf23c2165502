// Softmax attention with a bias that is added to the scores,
//
//   x_ij = q_i . k_j / sqrt(E) + b_ij,
//
// or without q and k: x_ij = b_ij. The arithmetic is that of softmax_attention.cpp, in blocks of 64 queries and 64
// keys. The slopes s_ij are the gradient of the scores, so that of the bias, too; where a batch shares the bias, their
// sum over the batch.
#include "ops/cpu/attention/softmax_block.h"

#include "ops/kernels/lra.h"

namespace runnel {
namespace {

// Rows of the bias of sequence n, from column `key` on.
SequenceRows<const float> bias_rows(const AttentionBias& bias, const AttentionSizes& s, int64_t n, int64_t key,
                                    int64_t count) {
  const int64_t matrix = bias.is_shared ? n % s.heads : n;
  return {bias.data + matrix * bias.rows * bias.columns + key, bias.columns, count, block_size * bias.columns};
}

// Of scores whose rows are `count` keys from `key` on and whose columns are queries from `first` on: adds the bias, and
// hides what lies past these keys.
void add_bias(const SoftmaxBlock& b, const AttentionBias& bias, const AttentionSizes& s, int64_t n, int64_t first,
              int64_t key, int64_t count) {
  load(b.f, bias_rows(bias, s, n, key, count), first, std::min(block_size, s.length - first));
  transpose(b.ft, b.f);
  for (int64_t j = 0; j < count; ++j) accumulate(b.p.row(j), b.ft.row(j), block_size);
  for (int64_t j = count; j < block_size; ++j) set_all(b.p.row(j), hidden_score, block_size);
}

}  // namespace

// Threads share the blocks of queries.
void cpu::biased_softmax_attention_forward(float* y, float* l, const float* q, const float* k, const float* v,
                                           AttentionBias bias, const int32_t* lengths, AttentionSizes s) {
  const ThreadScratch scratch(SoftmaxBlock::floats(s));
#pragma omp parallel
  {
    SoftmaxBlock b(s, scratch.this_thread());
#pragma omp for collapse(2) schedule(dynamic)
    for (int64_t n = 0; n < s.sequences(); ++n)
      for (int64_t first = 0; first < s.length; first += block_size) {
        const int64_t queries = std::min(block_size, s.length - first), end = seen_keys(lengths, s, n);
        begin_queries(b, of_queries(s, q, n, s.e), first, queries, score_scale(s));
        for (int64_t key = 0; key < end; key += block_size) {
          const int64_t keys = std::min(block_size, end - key);
          load(b.k, of_keys(s, k, n, s.e), key, keys);
          load(b.v, of_keys(s, v, n, s.m), key, keys);
          add_keys(
              b, [&] { add_bias(b, bias, s, n, first, key, keys); }, [] {});
        }
        end_queries(b, of_queries(s, y, n, s.m), l + n * s.length, first, queries);
      }
  }
}

// Threads share the matrices of the bias, each with the sequences that have it.
void cpu::biased_softmax_attention_backward(float* dq, float* dk, float* dv, float* dbias, const float* dy,
                                            const float* y, const float* l, const float* q, const float* k,
                                            const float* v, AttentionBias bias, const int32_t* lengths,
                                            AttentionSizes s) {
  const float scale = score_scale(s);
  const int64_t matrices = bias.is_shared ? s.heads : s.sequences(), numbers = bias.rows * bias.columns;
  const ThreadScratch scratch(SoftmaxBlock::floats(s, s.length));
#pragma omp parallel
  {
    SoftmaxBlock b(s, scratch.this_thread(), s.length);
#pragma omp for schedule(dynamic)
    for (int64_t matrix = 0; matrix < matrices; ++matrix) {
      float* const db = dbias ? dbias + matrix * numbers : nullptr;
      if (db) clear(db, numbers);
      for (int64_t n = matrix; n < s.sequences(); n += matrices) {
        const SoftmaxSequence x(s, q, k, v, dy, dq, l, lengths, n);
        begin_sequence(b, s, x, y);
        const auto dk_n = of_keys(s, dk, n, s.e), dv_n = of_keys(s, dv, n, s.m);
        for (int64_t key = 0; key < s.key_length; key += block_size) {
          const int64_t count = std::min(block_size, s.key_length - key);
          const int64_t seen = std::clamp<int64_t>(x.key_end - key, 0, count);
          b.dk.clear();
          b.dv.clear();
          if (seen > 0) {
            load(b.k, x.k, key, seen);
            load(b.v, x.v, key, seen);
            for (int64_t first = 0; first < s.length; first += block_size) {
              const int64_t queries = std::min(block_size, s.length - first);
              load_queries(b, x, first, queries, scale);
              weights_and_slopes(
                  b, x, first, queries, [&] { add_bias(b, bias, s, n, first, key, seen); }, [](const Matrix&) {});
              multiply(b.dv, b.p, b.g, Store::add);
              multiply(b.dk, b.w, b.q, Store::add);
              multiply_transposed(b.dq, b.w, b.k, Store::set);
              add_to_dq(b, x, first, queries, scale);
              if (!db) continue;
              transpose(b.ft, b.w);
              for (int64_t i = 0; i < queries; ++i)
                accumulate(db + (first + i) * bias.columns + key, b.ft.row(i), seen);
            }
          }
          for (int64_t j = 0; j < count; ++j) {
            copy_numbers(dk_n(key + j), b.dk.row(j), s.e);
            copy_numbers(dv_n(key + j), b.dv.row(j), s.m);
          }
        }
      }
    }
  }
}

}  // namespace runnel
