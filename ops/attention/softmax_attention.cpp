// Softmax attention in blocks (eq. 2), whose memory grows with L and not with its square.
//
// Forward, a block of queries goes over the blocks of keys from the left, with the largest score m_i so far and the sum
// n_i of the exponentials ("online softmax", Milakov and Gimelshein 2018):
//
//   x_ij = q_i . k_j / sqrt(E),   m' = max(m, max_j x_ij),   p_ij = e^(x_ij - m')
//   n' = n e^(m - m') + sum_j p_ij,   y' = y e^(m - m') + sum_j p_ij v_j
//
// and at the end y_i = y' / n'. Beside y it keeps l_i = m_i + log n_i, so that backward finds p_ij = e^(x_ij - l_i)
// again:
//
//   dv_j = sum_i p_ij dy_i,   s_ij = p_ij (dy_i . v_j - d_i),   d_i = sum_j p_ij dy_i . v_j = dy_i . y_i
//   dq_i = sum_j s_ij k_j / sqrt(E),   dk_j = sum_i s_ij q_i / sqrt(E)
//
// Dropout of the weights leaves l and d as they are: with the factors f_ij, 0 or 1 / (1 - p), that are drawn again in
// the backward pass,
//
//   y_i = sum_j f_ij p_ij v_j,   dv_j = sum_i f_ij p_ij dy_i,   s_ij = p_ij (f_ij dy_i . v_j - d_i)
#include <algorithm>

#include "engine/check.h"
#include "ops/attention/arguments.h"
#include "ops/attention/online_softmax.h"
#include "ops/checks.h"
#include "ops/cpu/dropout.h"
#include "ops/cpu/sequences.h"
#include "ops/kernels.h"
#include "ops/ops.h"

namespace runnel {
namespace {

constexpr int64_t block = 2 * tile;  // queries, and keys

template <class T>
SequenceRows<T> of_queries(const AttentionSizes& s, T* x, int64_t n, int64_t width) {  // q, y and their gradients
  return rows_of_sequence(x, n, s.length, s.heads, width, block);
}
template <class T>
SequenceRows<T> of_keys(const AttentionSizes& s, T* x, int64_t n, int64_t width) {
  return rows_of_sequence(x, n, s.key_length, s.heads, width, block);
}
// Some query before position `queries_end` sees keys in [0, key_end), and none sees others.
int64_t key_end(const AttentionSizes& s, const int32_t* lengths, int64_t n, int64_t queries_end) {
  const int64_t own = seen_keys(lengths, s, n);
  return s.causal ? std::min(own, queries_end) : own;
}

// The matrices of a block of queries and a block of keys, which one thread works in.
struct SoftmaxBlock {
  int64_t e, m;  // padded
  Carver memory;
  Matrix q = memory.matrix(block, e), qt = memory.matrix(e, block), k = memory.matrix(block, e);
  Matrix v = memory.matrix(block, m), g = memory.matrix(block, m), gt = memory.matrix(m, block);
  Matrix p = memory.matrix(block, block), w = memory.matrix(block, block);
  Matrix y = memory.matrix(block, m), dq = memory.matrix(block, e), dk = memory.matrix(block, e);
  Matrix dv = memory.matrix(block, m);
  Matrix largest = memory.matrix(1, block), total = memory.matrix(1, block), factor = memory.matrix(1, block);
  Matrix f = memory.matrix(block, block), ft = memory.matrix(block, block);  // what dropout multiplies p with
  Matrix d;  // d_i of each query of a sequence, in the backward pass

  static int64_t floats(const AttentionSizes& s, int64_t queries = 0) {
    return block * (5 * padded(s.e) + 5 * padded(s.m) + 4 * block + 3) + padded(queries);
  }
  SoftmaxBlock(const AttentionSizes& s, float* own, int64_t queries = 0)
      : e(padded(s.e)), m(padded(s.m)), memory(own), d(memory.matrix(1, padded(queries))) {}
  RunningSoftmax softmax() const { return {largest.row(0), total.row(0), factor.row(0), block}; }
};

// Rows are keys from `key` on, columns queries from `first` on: hides keys from `end` on and, if causal, later ones.
void hide(const Matrix& p, int64_t key, int64_t end, int64_t first, bool causal) {
  if (key + block <= (causal ? std::min(end, first + 1) : end)) return;  // all of them see all
  for (int64_t j = 0; j < block; ++j) {
    float* const row = p.row(j);
    const int64_t seen_from = key + j >= end ? block : causal ? std::clamp<int64_t>(key + j - first, 0, block) : 0;
    set_all(row, hidden_score, seen_from);
  }
}

// What dropout multiplies a block of weights with -> f, where rows are keys and columns queries. Numbers of the weights
// begin with `first`, and are `row` apart from query to query.
void draw_dropout(Matrix f, Matrix transposed, int64_t first, int64_t row, Dropout dropout) {
  constexpr int64_t each = block / 8, count = block * each;  // Philox blocks of a query, and of all
  uint64_t index[count];
  for (int64_t i = 0; i < count; ++i) index[i] = static_cast<uint64_t>((first + i / each * row) / 8 + i % each);
  uint16_t numbers[block * block];
  draw_numbers(numbers, index, count, dropout.key);
  const DropoutFactors factors(dropout.p);
  for (int64_t i = 0; i < block * block; i += lanes) store(transposed.row(0) + i, factors(numbers + i));
  transpose(f, transposed);
}

// x *= f, number by number.
void multiply_by(const Matrix& x, const Matrix& f) {
  for (int64_t i = 0; i < x.vectors(); ++i) x.data[i] *= f.data[i];
}

// What one sequence brings to the backward pass.
struct SoftmaxSequence {
  SequenceRows<const float> q, k, v, dy;
  SequenceRows<float> dq;
  const float* l;
  int64_t n, key_end;
};

// Adds to the gradients of a block of keys and of a block of queries what they do to each other.
void backward_block(SoftmaxBlock& b, const AttentionSizes& s, const SoftmaxSequence& x, const Dropout& dropout,
                    float scale, int64_t key, int64_t first) {
  const int64_t count = std::min(block, s.length - first);
  load(b.q, x.q, first, count, [scale](Lanes number) RUNNEL_INLINE { return scale * number; });
  load(b.g, x.dy, first, count);
  transpose(b.qt, b.q);
  transpose(b.gt, b.g);
  float l[block] = {}, d[block] = {};
  copy_numbers(l, x.l + first, count);
  copy_numbers(d, b.d.row(0) + first, count);

  multiply(b.p, b.k, b.qt, Store::set);
  hide(b.p, key, x.key_end, first, s.causal);
  multiply(b.w, b.v, b.gt, Store::set);
  if (dropout.p > 0) {
    draw_dropout(b.f, b.ft, first_weight(s, x.n, first) + key, first_weight(s, 0, 1), dropout);
    multiply_by(b.w, b.f);
  }
  for (int64_t j = 0; j < block; ++j)
    for (int64_t c = 0; c < block / lanes; ++c) {
      Lanes &p = b.p.lanes_of(j)[c], &w = b.w.lanes_of(j)[c];
      p = exp(p - load(l + c * lanes));
      w = p * (w - load(d + c * lanes));
    }
  if (dropout.p > 0) multiply_by(b.p, b.f);
  multiply(b.dv, b.p, b.g, Store::add);
  multiply(b.dk, b.w, b.q, Store::add);
  multiply_transposed(b.dq, b.w, b.k, Store::set);
  for (int64_t i = 0; i < count; ++i) {
    float* const to = x.dq(first + i);
    map(
        to, s.e, [scale](Lanes sum, Lanes dq) RUNNEL_INLINE { return sum + scale * dq; }, to, b.dq.row(i));
  }
}

}  // namespace

// Threads share the blocks of queries.
void cpu::softmax_attention_forward(float* y, float* l, const float* q, const float* k, const float* v,
                                    const int32_t* lengths, AttentionSizes s, Dropout dropout) {
  const float scale = score_scale(s);
  const ThreadScratch scratch(SoftmaxBlock::floats(s));
#pragma omp parallel
  {
    SoftmaxBlock b(s, scratch.own());
#pragma omp for collapse(2) schedule(dynamic)
    for (int64_t n = 0; n < s.sequences(); ++n)
      for (int64_t from = 0; from < s.length; from += block) {
        const int64_t first = (s.length - 1) / block * block - from;  // those with most keys first
        const int64_t count = std::min(block, s.length - first);
        const int64_t end = key_end(s, lengths, n, first + count);
        load(b.q, of_queries(s, q, n, s.e), first, count, [scale](Lanes x) RUNNEL_INLINE { return scale * x; });
        transpose(b.qt, b.q);
        b.y.clear();
        b.total.clear();
        set_all(b.largest.row(0), hidden_score, block);
        for (int64_t key = 0; key < end; key += block) {
          load(b.k, of_keys(s, k, n, s.e), key, std::min(block, end - key));
          load(b.v, of_keys(s, v, n, s.m), key, std::min(block, end - key));
          multiply(b.p, b.k, b.qt, Store::set);
          hide(b.p, key, end, first, s.causal);
          advance_softmax(b.softmax(), b.p, block);
          if (dropout.p > 0) {
            draw_dropout(b.f, b.ft, first_weight(s, n, first) + key, first_weight(s, 0, 1), dropout);
            multiply_by(b.p, b.f);
          }
          for (int64_t i = 0; i < block; ++i)
            for (int64_t c = 0; c < b.m / lanes; ++c) b.y.lanes_of(i)[c] *= b.factor.row(0)[i];
          multiply_transposed(b.y, b.p, b.v, Store::add);
        }
        for (int64_t i = 0; i < count; ++i) {
          const float total = b.total.row(0)[i], inverse = total > 0 ? 1 / total : 0;
          float* const to = of_queries(s, y, n, s.m)(first + i);
          map(
              to, s.m, [inverse](Lanes sum) RUNNEL_INLINE { return sum * inverse; }, b.y.row(i));
          l[n * s.length + first + i] = b.largest.row(0)[i] + log(splat(total))[0];
        }
      }
  }
}

// Threads share the sequences.
void cpu::softmax_attention_backward(float* dq, float* dk, float* dv, const float* dy, const float* y, const float* l,
                                     const float* q, const float* k, const float* v, const int32_t* lengths,
                                     AttentionSizes s, Dropout dropout) {
  const ThreadScratch scratch(SoftmaxBlock::floats(s, s.length));
#pragma omp parallel
  {
    SoftmaxBlock b(s, scratch.own(), s.length);
#pragma omp for schedule(static)
    for (int64_t n = 0; n < s.sequences(); ++n) {
      const SoftmaxSequence x{of_queries(s, q, n, s.e),
                              of_keys(s, k, n, s.e),
                              of_keys(s, v, n, s.m),
                              of_queries(s, dy, n, s.m),
                              of_queries(s, dq, n, s.e),
                              l + n * s.length,
                              n,
                              key_end(s, lengths, n, s.length)};
      const auto y_n = of_queries(s, y, n, s.m);
      const auto dk_n = of_keys(s, dk, n, s.e), dv_n = of_keys(s, dv, n, s.m);
      for (int64_t i = 0; i < s.length; ++i) {
        b.d.row(0)[i] = dot(x.dy(i), y_n(i), s.m);
        clear(x.dq(i), s.e);
      }
      for (int64_t key = 0; key < s.key_length; key += block) {
        const int64_t count = std::min(block, s.key_length - key);
        const int64_t seen = std::clamp<int64_t>(x.key_end - key, 0, count);
        b.dk.clear();
        b.dv.clear();
        if (seen > 0) {
          load(b.k, x.k, key, seen);
          load(b.v, x.v, key, seen);
          for (int64_t first = s.causal ? key : 0; first < s.length; first += block)
            backward_block(b, s, x, dropout, score_scale(s), key, first);
        }
        for (int64_t j = 0; j < count; ++j) {
          copy_numbers(dk_n(key + j), b.dk.row(j), s.e);
          copy_numbers(dv_n(key + j), b.dv.row(j), s.m);
        }
      }
    }
  }
}

// The keys are kept as columns: scores of neighbouring positions are then neighbours.
void cpu::softmax_attention_step(float* y, float* k_cache, float* v_cache, const float* q, const float* k,
                                 const float* v, const int32_t* position, AttentionSizes s) {
  const int64_t e = s.e, m = s.m, capacity = s.key_length;
  const float scale = score_scale(s);
  const int64_t last = position[0], count = last + 1;
  const int threads = s.sequences() * count * (e + m) >= 1 << 16 ? omp_get_max_threads() : 1;
  const ThreadScratch weights(count);
#pragma omp parallel for schedule(static) num_threads(threads)
  for (int64_t n = 0; n < s.sequences(); ++n) {
    float *const p = weights.own(), *const out = y + n * m;
    float *const keys = k_cache + n * e * capacity, *const values = v_cache + n * capacity * m;
    clear(p, count);
    for (int64_t c = 0; c < e; ++c) {
      const float factor = scale * q[n * e + c];
      keys[c * capacity + last] = k[n * e + c];
      add_scaled(p, factor, keys + c * capacity, count);
    }
    copy_numbers(values + last * m, v + n * m, m);
    const float highest = map_max(count, p);
    Lanes sums{};
    for (int64_t j = 0; j < count; j += lanes) {
      const Lanes weight = exp(load(p + j, count - j, splat(minus_infinity)) - highest);
      sums += weight;
      store(p + j, weight, count - j);
    }
    const float inverse = 1 / lane_sum(sums);
    clear(out, m);
    for (int64_t j = 0; j < count; ++j) add_scaled(out, p[j] * inverse, values + j * m, m);
  }
}

#if RUNNEL_ONCE

Tensor softmax_attention(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionMask& mask,
                         Dropout dropout) {
  const AttentionSizes s = check_attention("softmax_attention", q, k, v, mask);
  check_dropout("softmax_attention", dropout);
  const Indices lengths = mask.lengths;
  Tensor y(q.shape().with_last(s.m), q.device()), l(Shape{s.batch, s.heads, s.length}, q.device());
  DISPATCH(q.device(),
           softmax_attention_forward(y.data(), l.data(), q.data(), k.data(), v.data(), lengths.data(), s, dropout));
  return record("softmax_attention", {q, k, v}, y, [=](const Tensor& dy) -> std::vector<Tensor> {
    std::vector<Tensor> d = gradients_like({q, k, v});
    DISPATCH(q.device(),
             softmax_attention_backward(d[0].data(), d[1].data(), d[2].data(), dy.data(), y.data(), l.data(), q.data(),
                                        k.data(), v.data(), lengths.data(), s, dropout));
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
    check(position.data()[0] >= 0 && position.data()[0] < s.key_length, op, ": position ", position.data()[0],
          " is not in a cache of ", s.key_length);
  check(q.device() == Device::cpu || s.m <= 256, op, ": v ", v.shape(), " has more than 256 columns");
  Tensor y(v.shape(), v.device());
  DISPATCH(q.device(), softmax_attention_step(y.data(), cache.k.data(), cache.v.data(), q.data(), k.data(), v.data(),
                                              position.data(), s));
  return y;
}

#endif

}  // namespace runnel
