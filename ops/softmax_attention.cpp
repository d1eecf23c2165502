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
// Blocks of scores have keys as rows and queries as columns: the maximum and the sum over keys are then taken of whole
// vectors, one query to a lane.
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "engine/check.h"
#include "ops/kernels.h"
#include "ops/math.h"
#include "ops/ops.h"
#include "ops/sequences.h"

namespace runnel {
namespace {

using namespace cpu;

constexpr int64_t block = 2 * lanes;                               // queries, and keys
constexpr float hidden = -std::numeric_limits<float>::infinity();  // the score of a key that a query may not see

struct Sizes : AttentionSizes {
  int64_t sequences() const { return batch * heads; }
  template <class T>
  Rows<T> queries(T* x, int64_t n, int64_t width) const {  // and what has their length: y and dy
    return rows_of_sequence(x, n, length, heads, width, block);
  }
  template <class T>
  Rows<T> keys(T* x, int64_t n, int64_t width) const {
    return rows_of_sequence(x, n, key_length, heads, width, block);
  }
  // Keys [0, end) may be seen by some query before position `queries_end`.
  int64_t end(const int32_t* lengths, int64_t n, int64_t queries_end) const {
    const int64_t own = lengths ? lengths[n / heads] : key_length;
    return causal ? std::min(own, queries_end) : own;
  }
};

struct Workspace {
  int64_t e, m;  // padded
  Scratch scratch;
  Matrix q = scratch.matrix(block, e), qt = scratch.matrix(e, block), k = scratch.matrix(block, e);
  Matrix v = scratch.matrix(block, m), g = scratch.matrix(block, m), gt = scratch.matrix(m, block);
  Matrix p = scratch.matrix(block, block), w = scratch.matrix(block, block);
  Matrix y = scratch.matrix(block, m), dq = scratch.matrix(block, e), dk = scratch.matrix(block, e);
  Matrix dv = scratch.matrix(block, m);
  Matrix largest = scratch.matrix(1, block), total = scratch.matrix(1, block), factor = scratch.matrix(1, block);

  explicit Workspace(const Sizes& s)
      : e(padded(s.e)), m(padded(s.m)), scratch((block * (5 * e + 5 * m + 2 * block + 3)) / lanes) {}
};

// Rows are keys from `key` on, columns queries from `first` on: hides keys from `end` on and, if causal, later ones.
void hide(const Matrix& p, int64_t key, int64_t end, int64_t first, bool causal) {
  if (key + block <= (causal ? std::min(end, first + 1) : end)) return;  // all of them see all
  for (int64_t j = 0; j < block; ++j) {
    float* const row = p.row(j);
    const int64_t seen_from = key + j >= end ? block : causal ? std::clamp<int64_t>(key + j - first, 0, block) : 0;
    std::fill_n(row, seen_from, hidden);
  }
}

// Scores of a block -> p, and the running maximum, sum and factor e^(m - m').
void advance_softmax(Workspace& ws) {
  for (int64_t c = 0; c < block / lanes; ++c) {
    Lanes largest = ws.largest.data[c];
    for (int64_t j = 0; j < block; ++j) {
      const Lanes x = ws.p.lanes_of(j)[c];
      largest = x > largest ? x : largest;
    }
    ws.factor.data[c] = ws.largest.data[c] - largest;
    ws.largest.data[c] = largest;
  }
  float *const factor = ws.factor.row(0), *const total = ws.total.row(0), *const largest = ws.largest.row(0);
#pragma omp simd
  for (int64_t i = 0; i < block; ++i) {
    factor[i] = fast_exp(factor[i]);
    total[i] *= factor[i];
  }
  for (int64_t j = 0; j < block; ++j) {
    float* const p = ws.p.row(j);
#pragma omp simd
    for (int64_t i = 0; i < block; ++i) {
      p[i] = fast_exp(p[i] - largest[i]);
      total[i] += p[i];
    }
  }
}

// What backward needs to know of the queries of a sequence: l_i, and d_i.
struct QueryNumbers {
  const float* l;
  std::vector<float> d;
};

// Adds to the gradients of a block of keys and of a block of queries what they do to each other.
void backward_block(Workspace& ws, const Sizes& s, float scale, const QueryNumbers& numbers, const Rows<const float>& q,
                    const Rows<const float>& dy, const Rows<float>& dq, int64_t key, int64_t end, int64_t first) {
  const int64_t count = std::min(block, s.length - first);
  load(ws.q, q, first, count, [scale](float x) { return scale * x; });
  load(ws.g, dy, first, count);
  transpose(ws.qt, ws.q);
  transpose(ws.gt, ws.g);
  float l[block] = {}, d[block] = {};
  std::copy_n(numbers.l + first, count, l);
  std::copy_n(numbers.d.data() + first, count, d);

  multiply(ws.p, ws.k, ws.qt, Result::set);
  hide(ws.p, key, end, first, s.causal);
  multiply(ws.w, ws.v, ws.gt, Result::set);
  for (int64_t j = 0; j < block; ++j) {
    float *const p = ws.p.row(j), *const w = ws.w.row(j);
#pragma omp simd
    for (int64_t i = 0; i < block; ++i) {
      p[i] = fast_exp(p[i] - l[i]);
      w[i] = p[i] * (w[i] - d[i]);
    }
  }
  multiply(ws.dv, ws.p, ws.g, Result::add);
  multiply(ws.dk, ws.w, ws.q, Result::add);
  multiply_transposed(ws.dq, ws.w, ws.k, Result::set);
  for (int64_t i = 0; i < count; ++i) {
    const float* const from = ws.dq.row(i);
    float* const to = dq(first + i);
#pragma omp simd
    for (int64_t c = 0; c < s.e; ++c) to[c] += scale * from[c];
  }
}

}  // namespace

// Threads share the blocks of queries.
void cpu::softmax_attention_forward(float* y, float* l, const float* q, const float* k, const float* v,
                                    const int32_t* lengths, AttentionSizes sizes) {
  const Sizes s{sizes};
  const float scale = 1 / std::sqrt(static_cast<float>(s.e));
#pragma omp parallel
  {
    Workspace ws(s);
#pragma omp for collapse(2) schedule(dynamic)
    for (int64_t n = 0; n < s.sequences(); ++n)
      for (int64_t from = 0; from < s.length; from += block) {
        const int64_t first = (s.length - 1) / block * block - from;  // those with most keys first
        const int64_t count = std::min(block, s.length - first);
        const int64_t end = s.end(lengths, n, first + count);
        load(ws.q, s.queries(q, n, s.e), first, count, [scale](float x) { return scale * x; });
        transpose(ws.qt, ws.q);
        ws.y.clear();
        ws.total.clear();
        std::fill_n(ws.largest.row(0), block, hidden);
        for (int64_t key = 0; key < end; key += block) {
          load(ws.k, s.keys(k, n, s.e), key, std::min(block, end - key));
          load(ws.v, s.keys(v, n, s.m), key, std::min(block, end - key));
          multiply(ws.p, ws.k, ws.qt, Result::set);
          hide(ws.p, key, end, first, s.causal);
          advance_softmax(ws);
          for (int64_t i = 0; i < block; ++i)
            for (int64_t c = 0; c < ws.m / lanes; ++c) ws.y.lanes_of(i)[c] *= ws.factor.row(0)[i];
          multiply_transposed(ws.y, ws.p, ws.v, Result::add);
        }
        for (int64_t i = 0; i < count; ++i) {
          const float total = ws.total.row(0)[i], inverse = total > 0 ? 1 / total : 0;
          float* const to = s.queries(y, n, s.m)(first + i);
          for (int64_t c = 0; c < s.m; ++c) to[c] = ws.y.row(i)[c] * inverse;
          l[n * s.length + first + i] = ws.largest.row(0)[i] + std::log(total);
        }
      }
  }
}

// Threads share the sequences.
void cpu::softmax_attention_backward(float* dq, float* dk, float* dv, const float* dy, const float* y, const float* l,
                                     const float* q, const float* k, const float* v, const int32_t* lengths,
                                     AttentionSizes sizes) {
  const Sizes s{sizes};
  const float scale = 1 / std::sqrt(static_cast<float>(s.e));
#pragma omp parallel
  {
    Workspace ws(s);
    QueryNumbers numbers{nullptr, std::vector<float>(static_cast<size_t>(s.length))};
#pragma omp for schedule(static)
    for (int64_t n = 0; n < s.sequences(); ++n) {
      const auto q_n = s.queries(q, n, s.e), dy_n = s.queries(dy, n, s.m), y_n = s.queries(y, n, s.m);
      const auto dq_n = s.queries(dq, n, s.e), dk_n = s.keys(dk, n, s.e), dv_n = s.keys(dv, n, s.m);
      numbers.l = l + n * s.length;
      for (int64_t i = 0; i < s.length; ++i) {
        const float *const a = dy_n(i), *const b = y_n(i);
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t c = 0; c < s.m; ++c) sum += a[c] * b[c];
        numbers.d[static_cast<size_t>(i)] = sum;
        std::fill_n(dq_n(i), s.e, 0.0f);
      }
      const int64_t end = s.end(lengths, n, s.length);
      for (int64_t key = 0; key < s.key_length; key += block) {
        const int64_t count = std::min(block, s.key_length - key), seen = std::clamp<int64_t>(end - key, 0, count);
        ws.dk.clear();
        ws.dv.clear();
        if (seen > 0) {
          load(ws.k, s.keys(k, n, s.e), key, seen);
          load(ws.v, s.keys(v, n, s.m), key, seen);
          for (int64_t first = s.causal ? key : 0; first < s.length; first += block)
            backward_block(ws, s, scale, numbers, q_n, dy_n, dq_n, key, end, first);
        }
        for (int64_t j = 0; j < count; ++j) {
          std::copy_n(ws.dk.row(j), s.e, dk_n(key + j));
          std::copy_n(ws.dv.row(j), s.m, dv_n(key + j));
        }
      }
    }
  }
}

// The keys are kept as columns: scores of neighbouring positions are then neighbours.
void cpu::softmax_attention_step(float* y, float* k_cache, float* v_cache, const float* q, const float* k,
                                 const float* v, const int32_t* position, int64_t sequences, int64_t capacity,
                                 int64_t e, int64_t m) {
  const float scale = 1 / std::sqrt(static_cast<float>(e));
  const int64_t last = position[0], count = last + 1;
#pragma omp parallel if (sequences * count * (e + m) >= 1 << 16)
  {
    std::vector<float> weights(static_cast<size_t>(count));
    float* const p = weights.data();
#pragma omp for schedule(static)
    for (int64_t n = 0; n < sequences; ++n) {
      float *const keys = k_cache + n * e * capacity, *const values = v_cache + n * capacity * m, *out = y + n * m;
      std::fill_n(p, count, 0.0f);
      for (int64_t c = 0; c < e; ++c) {
        float* const column = keys + c * capacity;
        const float factor = scale * q[n * e + c];
        column[last] = k[n * e + c];
#pragma omp simd
        for (int64_t j = 0; j < count; ++j) p[j] += factor * column[j];
      }
      std::copy_n(v + n * m, m, values + last * m);
      float largest = hidden, total = 0;
#pragma omp simd reduction(max : largest)
      for (int64_t j = 0; j < count; ++j) largest = std::max(largest, p[j]);
#pragma omp simd reduction(+ : total)
      for (int64_t j = 0; j < count; ++j) total += p[j] = fast_exp(p[j] - largest);
      std::fill_n(out, m, 0.0f);
      for (int64_t j = 0; j < count; ++j) {
        const float weight = p[j] / total;
#pragma omp simd
        for (int64_t c = 0; c < m; ++c) out[c] += weight * values[j * m + c];
      }
    }
  }
}

Tensor softmax_attention(const Tensor& q, const Tensor& k, const Tensor& v, bool causal, const Indices& lengths) {
  const Shape shape = q.shape();
  check(shape.rank() == 4, "softmax_attention: q ", shape, " is not [B,L,H,E]");
  check(k.shape().rank() == 4 && k.shape() == Shape{shape[0], k.shape()[1], shape[2], shape[3]},
        "softmax_attention: k ", k.shape(), " does not match q ", shape);
  check(v.shape().rank() == 4 && v.shape() == k.shape().with_last(v.shape()[-1]), "softmax_attention: v ", v.shape(),
        " does not match k ", k.shape());
  const AttentionSizes s{shape[0], shape[1], k.shape()[1], shape[2], shape[3], v.shape()[3], causal};
  check(s.e > 0 && s.m > 0, "softmax_attention: q ", shape, " or v ", v.shape(), " has no columns");
  check(!causal || s.length == s.key_length, "softmax_attention: q ", shape, " and k ", k.shape(),
        " must be of one length to be causal");
  check(!lengths || lengths.shape() == Shape{s.batch}, "softmax_attention: lengths ", lengths.shape(),
        " are not one number for each of ", s.batch, " sequences");
  if (lengths && lengths.device() == Device::cpu)
    for (int64_t n = 0; n < s.batch; ++n)
      check(lengths.data()[n] >= 0 && lengths.data()[n] <= s.key_length, "softmax_attention: length ",
            lengths.data()[n], " of sequence ", n, " is not in [0, ", s.key_length, "]");
  device_of("softmax_attention", q, k, v, lengths);

  Tensor y(shape.with_last(s.m), q.device()), l(Shape{s.batch, s.heads, s.length}, q.device());
  DISPATCH(q.device(), softmax_attention_forward(y.data(), l.data(), q.data(), k.data(), v.data(), lengths.data(), s));
  return record("softmax_attention", {q, k, v}, y, [=](const Tensor& dy) -> std::vector<Tensor> {
    Tensor dq(q.shape(), q.device()), dk(k.shape(), k.device()), dv(v.shape(), v.device());
    DISPATCH(q.device(), softmax_attention_backward(dq.data(), dk.data(), dv.data(), dy.data(), y.data(), l.data(),
                                                    q.data(), k.data(), v.data(), lengths.data(), s));
    return {dq, dk, dv};
  });
}

Tensor softmax_attention(const Tensor& q, const Tensor& k, const Tensor& v, KeyValueCache& cache,
                         const Indices& position) {
  const Shape shape = q.shape();
  check(shape.rank() == 4 && shape[1] == 1, "softmax_attention: with a cache, q ", shape, " is not [B,1,H,E]");
  check(k.shape() == shape, "softmax_attention: k ", k.shape(), " does not match q ", shape);
  check(v.shape().rank() == 4 && v.shape() == shape.with_last(v.shape()[-1]), "softmax_attention: v ", v.shape(),
        " does not match q ", shape);
  const int64_t batch = shape[0], heads = shape[2], e = shape[3], m = v.shape()[3];
  check(cache.k.shape().rank() == 4 && cache.v.shape().rank() == 4, "softmax_attention: the cache is empty");
  const int64_t capacity = cache.v.shape()[2];
  check(cache.k.shape() == Shape{batch, heads, e, capacity} && cache.v.shape() == Shape{batch, heads, capacity, m},
        "softmax_attention: a cache of k ", cache.k.shape(), " and v ", cache.v.shape(), " does not match q ", shape,
        " and v ", v.shape());
  check(position.size() == 1, "softmax_attention: position ", position.shape(), " is not one number");
  device_of("softmax_attention", q, k, v, cache.k, cache.v, position);
  if (q.device() == Device::cpu)
    check(position.data()[0] >= 0 && position.data()[0] < capacity, "softmax_attention: position ", position.data()[0],
          " is not in a cache of ", capacity);
  check(q.device() == Device::cpu || m <= 256, "softmax_attention: v ", v.shape(), " has more than 256 columns");
  Tensor y(v.shape(), v.device());
  DISPATCH(q.device(), softmax_attention_step(y.data(), cache.k.data(), cache.v.data(), q.data(), k.data(), v.data(),
                                              position.data(), batch * heads, capacity, e, m));
  return y;
}

}  // namespace runnel
