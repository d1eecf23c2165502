// Softmax attention of a block of queries and a block of keys: what softmax_attention.cpp, which has the derivation,
// block_sparse_attention.cpp and biased_softmax_attention.cpp share.
#pragma once
#include <algorithm>
#include <limits>

#include "ops/cpu/attention/online_softmax.h"
#include "ops/cpu/sequences.h"
#include "ops/kernels/attention_sizes.h"

namespace runnel {
namespace {

constexpr int64_t block_size = 2 * tile;  // queries, and keys

template <class T>
SequenceRows<T> of_queries(const AttentionSizes& s, T* x, int64_t n, int64_t width) {  // q, y and their gradients
  return rows_of_sequence(x, n, s.length, s.heads, width, block_size);
}
template <class T>
SequenceRows<T> of_keys(const AttentionSizes& s, T* x, int64_t n, int64_t width) {
  return rows_of_sequence(x, n, s.key_length, s.heads, width, block_size);
}

// The matrices of a block of queries and a block of keys, which one thread works in.
struct SoftmaxBlock {
  int64_t e, m;  // padded
  Arena memory;
  Matrix q = memory.matrix(block_size, e), qt = memory.matrix(e, block_size), k = memory.matrix(block_size, e);
  Matrix v = memory.matrix(block_size, m), g = memory.matrix(block_size, m), gt = memory.matrix(m, block_size);
  Matrix p = memory.matrix(block_size, block_size), w = memory.matrix(block_size, block_size);
  Matrix y = memory.matrix(block_size, m), dq = memory.matrix(block_size, e), dk = memory.matrix(block_size, e);
  Matrix dv = memory.matrix(block_size, m);
  Matrix largest = memory.matrix(1, block_size), total = memory.matrix(1, block_size),
         factor = memory.matrix(1, block_size);
  Matrix f = memory.matrix(block_size, block_size),
         ft = memory.matrix(block_size, block_size);  // what dropout multiplies p with, or a bias
  Matrix d;                                           // d_i of each query of a sequence, in the backward pass

  static int64_t floats(const AttentionSizes& s, int64_t queries = 0) {
    return block_size * (5 * padded(s.e) + 5 * padded(s.m) + 4 * block_size + 3) + padded(queries);
  }
  SoftmaxBlock(const AttentionSizes& s, float* own, int64_t queries = 0)
      : e(padded(s.e)), m(padded(s.m)), memory(own), d(memory.matrix(1, padded(queries))) {}
  RunningSoftmax softmax() const { return {largest.row(0), total.row(0), factor.row(0), block_size}; }
};

// Of scores whose row j is key position(j), and whose columns are queries from `first` on: hides keys from `end` on
// and, if causal, later ones.
template <class Position>
void hide(const Matrix& p, Position position, int64_t end, int64_t first, bool causal) {
  for (int64_t j = 0; j < block_size; ++j) {
    const int64_t key = position(j);
    const int64_t seen_from = key >= end ? block_size : causal ? std::clamp<int64_t>(key - first, 0, block_size) : 0;
    set_all(p.row(j), hidden_score, seen_from);
  }
}

// --- forward: begin with some queries, add keys (loaded as b.k and b.v), end -----------------------------------------

void begin_queries(SoftmaxBlock& b, const SequenceRows<const float>& q, int64_t first, int64_t count, float scale) {
  load(b.q, q, first, count, [scale](Lanes x) RUNNEL_INLINE { return scale * x; });
  transpose(b.qt, b.q);
  b.y.clear();
  b.total.clear();
  set_all(b.largest.row(0), hidden_score, block_size);
}
// hide_some() hides scores b.p; drop_some() may drop weights b.p.
template <class Hide, class Drop>
void add_keys(SoftmaxBlock& b, Hide hide_some, Drop drop_some) {
  multiply(b.p, b.k, b.qt, Store::set);
  hide_some();
  advance_softmax(b.softmax(), b.p, block_size);
  drop_some();
  for (int64_t i = 0; i < block_size; ++i)
    for (int64_t c = 0; c < b.m / lanes; ++c) b.y.lanes_of(i)[c] *= b.factor.row(0)[i];
  multiply_transposed(b.y, b.p, b.v, Store::add);
}
// y, and l: infinity for a query that has seen no key, so that its weights are 0 in the backward pass.
void end_queries(const SoftmaxBlock& b, const SequenceRows<float>& y, float* l, int64_t first, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const float total = b.total.row(0)[i], inverse = total > 0 ? 1 / total : 0;
    map(
        y(first + i), y.width, [inverse](Lanes sum) RUNNEL_INLINE { return sum * inverse; }, b.y.row(i));
    l[first + i] = total > 0 ? b.largest.row(0)[i] + log(splat(total))[0] : std::numeric_limits<float>::infinity();
  }
}

// --- backward --------------------------------------------------------------------------------------------------------

// What one sequence brings to the backward pass.
struct SoftmaxSequence {
  SequenceRows<const float> q, k, v, dy;
  SequenceRows<float> dq;
  const float* l;
  int64_t n, key_end;

  SoftmaxSequence(const AttentionSizes& s, const float* q_data, const float* k_data, const float* v_data,
                  const float* dy_data, float* dq_data, const float* l_data, const int32_t* lengths, int64_t number)
      : q(of_queries(s, q_data, number, s.e)),
        k(of_keys(s, k_data, number, s.e)),
        v(of_keys(s, v_data, number, s.m)),
        dy(of_queries(s, dy_data, number, s.m)),
        dq(of_queries(s, dq_data, number, s.e)),
        l(l_data + number * s.length),
        n(number),
        key_end(seen_keys(lengths, s, number)) {}
};

// d_i of all queries -> b.d, and dq = 0.
void begin_sequence(SoftmaxBlock& b, const AttentionSizes& s, const SoftmaxSequence& x, const float* y) {
  const auto y_n = of_queries(s, y, x.n, s.m);
  for (int64_t i = 0; i < s.length; ++i) {
    b.d.row(0)[i] = dot(x.dy(i), y_n(i), s.m);
    clear(x.dq(i), s.e);
  }
}
void load_queries(SoftmaxBlock& b, const SoftmaxSequence& x, int64_t first, int64_t count, float scale) {
  load(b.q, x.q, first, count, [scale](Lanes number) RUNNEL_INLINE { return scale * number; });
  load(b.g, x.dy, first, count);
  transpose(b.qt, b.q);
  transpose(b.gt, b.g);
}
// The weights p_ij -> b.p and the slopes s_ij -> b.w, from the queries and keys that are loaded. hide_some() hides
// scores b.p; drop_some(matrix) may drop.
template <class Hide, class Drop>
void weights_and_slopes(SoftmaxBlock& b, const SoftmaxSequence& x, int64_t first, int64_t count, Hide hide_some,
                        Drop drop_some) {
  float l[block_size] = {}, d[block_size] = {};
  copy_numbers(l, x.l + first, count);
  copy_numbers(d, b.d.row(0) + first, count);
  multiply(b.p, b.k, b.qt, Store::set);
  hide_some();
  multiply(b.w, b.v, b.gt, Store::set);
  drop_some(b.w);
  for (int64_t j = 0; j < block_size; ++j)
    for (int64_t c = 0; c < block_size / lanes; ++c) {
      Lanes &p = b.p.lanes_of(j)[c], &w = b.w.lanes_of(j)[c];
      p = exp(p - load(l + c * lanes));
      w = p * (w - load(d + c * lanes));
    }
  drop_some(b.p);
}
// dq += scale b.dq
void add_to_dq(const SoftmaxBlock& b, const SoftmaxSequence& x, int64_t first, int64_t count, float scale) {
  for (int64_t i = 0; i < count; ++i) {
    float* const to = x.dq(first + i);
    map(
        to, x.dq.width, [scale](Lanes sum, Lanes dq) RUNNEL_INLINE { return sum + scale * dq; }, to, b.dq.row(i));
  }
}

}  // namespace
}  // namespace runnel
