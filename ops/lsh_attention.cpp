// Reformer's attention by locality-sensitive hashing (Kitaev et al. 2020), whose time and memory grow with L.
//
// In each of several rounds a position i of a head goes to the bucket argmax [q_i R, -q_i R] with a random R
// [E,buckets/2], positions are sorted by bucket, and the sorted list is cut into chunks. A query sees the keys k_j =
// q_j / |q_j| of its own bucket in its own chunk and in the chunk before. In that order these are the places
// [begin,end), for which it need not know about buckets any more. If causal, they end at its own place, since positions
// rise within a bucket.
//
// The published rule lets a query see itself with its score lowered by 1e5, and weighs the rounds by their normalisers
// e^(l_i^r). Lowered so far, e^x is 0 in float32, unless nothing else is seen in any round: then y_i = v_i. And since
//
//   x_ij = q_i . k_j / sqrt(E)
//   y_i = sum_r e^(l_i^r - l_i) sum_j e^(x_ij - l_i^r) v_j = sum_r sum_j e^(x_ij - l_i) v_j
//
// rounds are only more keys: the online softmax of softmax_attention.cpp goes on through all of them. Beside y it keeps
// l_i = log sum_r sum_j e^x_ij, from which backward finds p_ij = e^(x_ij - l_i) again:
//
//   dv_j = sum_i p_ij dy_i,   s_ij = p_ij (dy_i . v_j - d_i),   d_i = dy_i . y_i
//   dq_i = sum_j s_ij k_j / sqrt(E),   dk_j = sum_i s_ij q_i / sqrt(E),   dq_j += (dk_j - (dk_j . k_j) k_j) / |q_j|
//
// where sums go over rounds, too. A query that sees nothing has l_i = infinity, hence p_ij = 0, and gives dy_i to dv_i.
// The choice of buckets has no gradient.
//
// Threads share sequences times chunks, round by round, so that each query has one owner. Backward takes first the even
// and then the odd chunks: two of a kind have no key in common, so each key has one owner, too.
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

constexpr int64_t most = 256;           // columns, and positions of a chunk
constexpr int64_t most_buckets = 4096;  // CUDA counts them in shared memory
constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float hidden = -infinity;  // the score of a key that a query may not see

constexpr int64_t hash_block = 4 * lanes;  // positions

struct Hashing {
  Scratch scratch;
  Matrix q, qt, rotation, projections;
  Hashing(int64_t e, int64_t half)
      : scratch((2 * hash_block * padded(e) + padded(e) * padded(half) + padded(half) * hash_block) / lanes),
        q(scratch.matrix(hash_block, padded(e))),
        qt(scratch.matrix(padded(e), hash_block)),
        rotation(scratch.matrix(padded(e), padded(half))),
        projections(scratch.matrix(padded(half), hash_block)) {}
};

// Projections have columns of the rotation as rows, positions as columns.
void choose_buckets(int32_t* to, int64_t count, const Matrix& projections, int64_t half) {
  float high[hash_block], low[hash_block];
  int32_t highest[hash_block] = {}, lowest[hash_block] = {};
  std::copy_n(projections.row(0), hash_block, high);
  std::copy_n(projections.row(0), hash_block, low);
  for (int64_t c = 1; c < half; ++c) {
    const float* const x = projections.row(c);
    const auto column = static_cast<int32_t>(c);
#pragma omp simd
    for (int64_t i = 0; i < hash_block; ++i) {
      highest[i] = x[i] > high[i] ? column : highest[i];
      high[i] = x[i] > high[i] ? x[i] : high[i];
      lowest[i] = x[i] < low[i] ? column : lowest[i];
      low[i] = x[i] < low[i] ? x[i] : low[i];
    }
  }
  for (int64_t i = 0; i < count; ++i) to[i] = high[i] >= -low[i] ? highest[i] : static_cast<int32_t>(half) + lowest[i];
}

struct Sizes : LshSizes {
  int64_t sequences() const { return batch * heads; }
  int64_t queries() const { return sequences() * length; }
  int64_t chunks() const { return (length + lsh.chunk - 1) / lsh.chunk; }
  float scale() const { return 1 / std::sqrt(static_cast<float>(e)); }
  template <class T>
  Rows<T> rows(T* x, int64_t n, int64_t width) const {
    return rows_of_sequence(x, n, length, heads, width, 0);
  }
};

// The queries of a chunk, and the keys that any of them sees.
struct Chunk {
  const int32_t *queries, *keys;  // their positions
  const int32_t *begin, *end;     // of each query
  int32_t first, first_key;       // places
  int64_t count, key_count;

  Chunk(const LshPlaces& places, const Sizes& s, int64_t round, int64_t n, int64_t chunk) {
    const int64_t sequence = (round * s.sequences() + n) * s.length, place = chunk * s.lsh.chunk, at = sequence + place;
    count = std::min(s.lsh.chunk, s.length - place);
    queries = places.order + at;
    begin = places.begin + at;
    end = places.end + at;
    first = static_cast<int32_t>(place);
    first_key = begin[0];
    keys = places.order + sequence + first_key;
    key_count = end[count - 1] - first_key;
  }
};

struct Workspace {
  int64_t e, m, queries, keys;  // padded
  Scratch scratch;
  Matrix q = scratch.matrix(queries, e), qt = scratch.matrix(e, queries), k = scratch.matrix(keys, e);
  Matrix v = scratch.matrix(keys, m), g = scratch.matrix(queries, m), gt = scratch.matrix(m, queries);
  Matrix p = scratch.matrix(keys, queries), w = scratch.matrix(keys, queries);
  Matrix y = scratch.matrix(queries, m), dq = scratch.matrix(queries, e), dk = scratch.matrix(keys, e);
  Matrix dv = scratch.matrix(keys, m);
  float largest[most], total[most], factor[most], l[most], d[most];  // of each query
  int32_t begin[most], end[most], place[most];

  explicit Workspace(const Sizes& s)
      : e(padded(s.e)),
        m(padded(s.m)),
        queries(padded(s.lsh.chunk)),
        keys(padded(2 * s.lsh.chunk)),
        scratch((queries * (3 * e + 3 * m) + keys * (2 * e + 2 * m + 2 * queries)) / lanes) {}

  // What is made of keys ends with the last one, but for padding.
  Matrix of_keys(const Matrix& x, const Chunk& c) const { return {x.data, padded(c.key_count), x.columns}; }
  Matrix k_of(const Chunk& c) const { return of_keys(k, c); }
  Matrix v_of(const Chunk& c) const { return of_keys(v, c); }
  Matrix p_of(const Chunk& c) const { return of_keys(p, c); }

  void load_places(const Chunk& c) {
    for (int64_t i = 0; i < queries; ++i) {
      begin[i] = i < c.count ? c.begin[i] : 0;
      end[i] = i < c.count ? c.end[i] : 0;
      place[i] = c.first + static_cast<int32_t>(i);
    }
  }
};

// Copies the rows at `count` positions, each times its factor; what lies past them, or past the width, becomes zero.
template <class Factor>
void gather(const Matrix& to, const Rows<const float>& from, const int32_t* positions, int64_t count, Factor factor) {
  if (count < to.rows || from.width < to.columns) to.clear();
  for (int64_t r = 0; r < count; ++r) {
    const float *const x = from(positions[r]), by = factor(positions[r]);
    float* const row = to.row(r);
#pragma omp simd
    for (int64_t i = 0; i < from.width; ++i) row[i] = by * x[i];
  }
}

// Loads queries and keys; their scores, keys as rows and queries as columns -> p, where what is not seen is hidden.
void find_scores(Workspace& ws, const Chunk& c, const Rows<const float>& q, const float* inverse, float scale) {
  gather(ws.q, q, c.queries, c.count, [scale](int32_t) { return scale; });
  transpose(ws.qt, ws.q);
  gather(ws.k_of(c), q, c.keys, c.key_count, [inverse](int32_t position) { return inverse[position]; });
  multiply(ws.p_of(c), ws.k_of(c), ws.qt, Result::set);
  ws.load_places(c);
  for (int64_t j = 0; j < c.key_count; ++j) {
    float* const p = ws.p.row(j);
    const int32_t key = c.first_key + static_cast<int32_t>(j);
#pragma omp simd
    for (int64_t i = 0; i < ws.queries; ++i) {
      const bool seen = (ws.begin[i] <= key) & (key < ws.end[i]) & (key != ws.place[i]);
      p[i] = seen ? p[i] : hidden;
    }
  }
}

// Scores of a chunk -> p, and the running maximum, sum and factor e^(m - m').
void advance_softmax(Workspace& ws, int64_t key_count) {
  float base[most];
  std::copy_n(ws.largest, ws.queries, base);
  for (int64_t j = 0; j < key_count; ++j) {
    const float* const p = ws.p.row(j);
#pragma omp simd
    for (int64_t i = 0; i < ws.queries; ++i) base[i] = p[i] > base[i] ? p[i] : base[i];
  }
#pragma omp simd
  for (int64_t i = 0; i < ws.queries; ++i) {
    const float before = ws.largest[i];
    ws.largest[i] = base[i];
    base[i] = base[i] == hidden ? 0 : base[i];
    ws.factor[i] = fast_exp(before - base[i]);
    ws.total[i] *= ws.factor[i];
  }
  for (int64_t j = 0; j < key_count; ++j) {
    float* const p = ws.p.row(j);
#pragma omp simd
    for (int64_t i = 0; i < ws.queries; ++i) {
      p[i] = fast_exp(p[i] - base[i]);
      ws.total[i] += p[i];
    }
  }
}

// What a query has found so far: y, not divided yet, and largest and total of its exponentials.
struct Found {
  Rows<float> y;
  float *largest, *total;
};

void forward_chunk(Workspace& ws, const Chunk& c, const Found& found, const Rows<const float>& q,
                   const Rows<const float>& v, const float* inverse, float scale, bool first_round) {
  for (int64_t i = 0; i < ws.queries; ++i) {
    const bool known = !first_round && i < c.count;
    ws.largest[i] = known ? found.largest[c.queries[i]] : hidden;
    ws.total[i] = known ? found.total[c.queries[i]] : 0;
  }
  find_scores(ws, c, q, inverse, scale);
  gather(ws.v_of(c), v, c.keys, c.key_count, [](int32_t) { return 1.0f; });
  advance_softmax(ws, c.key_count);
  multiply_transposed(ws.y, ws.p_of(c), ws.v_of(c), Result::set);
  for (int64_t i = 0; i < c.count; ++i) {
    const float* const from = ws.y.row(i);
    float *const to = found.y(c.queries[i]), factor = ws.factor[i];
    if (first_round) {
      std::copy_n(from, v.width, to);
    } else {
#pragma omp simd
      for (int64_t column = 0; column < v.width; ++column) to[column] = to[column] * factor + from[column];
    }
    found.largest[c.queries[i]] = ws.largest[i];
    found.total[c.queries[i]] = ws.total[i];
  }
}

// Of one sequence.
struct Gradients {
  Rows<float> dq, dv;
  Rows<const float> dy, q, v;
  const float *l, *d, *inverse;
};

// Adds what the queries of a chunk and their keys do to each other.
void backward_chunk(Workspace& ws, const Chunk& c, const Gradients& x, float scale) {
  const Matrix k = ws.k_of(c), v = ws.v_of(c), p = ws.p_of(c);
  const Matrix w = ws.of_keys(ws.w, c), dk = ws.of_keys(ws.dk, c), dv = ws.of_keys(ws.dv, c);
  find_scores(ws, c, x.q, x.inverse, scale);
  gather(v, x.v, c.keys, c.key_count, [](int32_t) { return 1.0f; });
  gather(ws.g, x.dy, c.queries, c.count, [](int32_t) { return 1.0f; });
  transpose(ws.gt, ws.g);
  multiply(w, v, ws.gt, Result::set);
  for (int64_t i = 0; i < ws.queries; ++i) {
    ws.l[i] = i < c.count ? x.l[c.queries[i]] : 0;
    ws.d[i] = i < c.count ? x.d[c.queries[i]] : 0;
  }
  for (int64_t j = 0; j < c.key_count; ++j) {
    float *const weights = p.row(j), *const slopes = w.row(j);
#pragma omp simd
    for (int64_t i = 0; i < ws.queries; ++i) {
      weights[i] = fast_exp(weights[i] - ws.l[i]);
      slopes[i] = weights[i] * (slopes[i] - ws.d[i]);
    }
  }
  multiply(dv, p, ws.g, Result::set);
  multiply(dk, w, ws.q, Result::set);
  multiply_transposed(ws.dq, w, k, Result::set);

  for (int64_t i = 0; i < c.count; ++i) {
    const float* const from = ws.dq.row(i);
    float* const to = x.dq(c.queries[i]);
#pragma omp simd
    for (int64_t column = 0; column < x.q.width; ++column) to[column] += scale * from[column];
  }
  for (int64_t j = 0; j < c.key_count; ++j) {
    const float *const from_k = dk.row(j), *const key = k.row(j), *const from_v = dv.row(j);
    const float inverse = x.inverse[c.keys[j]];
    float *const to_q = x.dq(c.keys[j]), *const to_v = x.dv(c.keys[j]);
    float along = 0;  // dk_j . k_j: a change of length changes nothing
#pragma omp simd reduction(+ : along)
    for (int64_t column = 0; column < x.q.width; ++column) along += from_k[column] * key[column];
#pragma omp simd
    for (int64_t column = 0; column < x.q.width; ++column)
      to_q[column] += inverse * (from_k[column] - along * key[column]);
#pragma omp simd
    for (int64_t column = 0; column < x.v.width; ++column) to_v[column] += from_v[column];
  }
}

float dot(const float* a, const float* b, int64_t n) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t c = 0; c < n; ++c) sum += a[c] * b[c];
  return sum;
}

// 1 / |q_j|, or 0 where there is hardly a length to divide by: such a key is zero. [B,H,L]
std::vector<float> inverse_lengths(const float* q, const Sizes& s) {
  std::vector<float> inverse(static_cast<size_t>(s.queries()));
#pragma omp parallel for schedule(static)
  for (int64_t i = 0; i < s.queries(); ++i) {
    const float* const row = s.rows(q, i / s.length, s.e)(i % s.length);
    const float length = std::sqrt(dot(row, row, s.e));
    inverse[static_cast<size_t>(i)] = length < 1e-6f ? 0 : 1 / length;
  }
  return inverse;
}

}  // namespace

void cpu::lsh_rotations(float* rotations, Key key, int64_t n) {
#pragma omp parallel for schedule(static)
  for (int64_t i = 0; i < n; ++i) rotations[i] = key.normal(static_cast<uint64_t>(i));
}

// Threads share rounds, sequences and blocks of positions.
void cpu::lsh_hash(int32_t* buckets, const float* q, const float* rotations, int64_t batch, int64_t length,
                   int64_t heads, int64_t e, Lsh lsh) {
  const int64_t half = lsh.buckets / 2, sequences = batch * heads;
#pragma omp parallel
  {
    Hashing ws(e, half);
#pragma omp for collapse(3) schedule(static)
    for (int64_t round = 0; round < lsh.rounds; ++round)
      for (int64_t n = 0; n < sequences; ++n)
        for (int64_t first = 0; first < length; first += hash_block) {
          const int64_t count = std::min(hash_block, length - first);
          load(ws.q, rows_of_sequence(q, n, length, heads, e, hash_block), first, count);
          transpose(ws.qt, ws.q);
          load(ws.rotation, {rotations + (round * heads + n % heads) * e * half, half, half, 0}, 0, e);
          multiply_transposed(ws.projections, ws.rotation, ws.qt, Result::set);
          choose_buckets(buckets + (round * sequences + n) * length + first, count, ws.projections, half);
        }
  }
}

// Threads share the sequences.
void cpu::lsh_sort(int32_t* order, int32_t* begin, int32_t* end, const int32_t* buckets, int64_t sequences,
                   int64_t length, Lsh lsh, bool causal) {
#pragma omp parallel
  {
    std::vector<int64_t> ends(static_cast<size_t>(lsh.buckets));
#pragma omp for schedule(static)
    for (int64_t n = 0; n < sequences; ++n) {
      const int64_t at = n * length;
      std::fill(ends.begin(), ends.end(), 0);
      for (int64_t i = 0; i < length; ++i) ++ends[static_cast<size_t>(buckets[at + i])];
      int64_t place = 0;
      for (int64_t& bucket_end : ends) {
        const int64_t bucket_begin = place;
        for (const int64_t stop = place + bucket_end; place < stop; ++place) {
          const int64_t chunk = place / lsh.chunk * lsh.chunk;
          begin[at + place] = static_cast<int32_t>(std::max(bucket_begin, chunk - lsh.chunk));
          end[at + place] = static_cast<int32_t>(causal ? place : std::min(stop, chunk + lsh.chunk));
        }
        bucket_end = bucket_begin;  // from here on, where its next position goes
      }
      for (int64_t i = 0; i < length; ++i)
        order[at + ends[static_cast<size_t>(buckets[at + i])]++] = static_cast<int32_t>(i);
    }
  }
}

void cpu::lsh_attention_forward(float* y, float* l, const float* q, const float* v, LshPlaces places, LshSizes sizes) {
  const Sizes s{sizes};
  const std::vector<float> inverse = inverse_lengths(q, s);
  std::vector<float> total(static_cast<size_t>(s.queries()));
#pragma omp parallel
  {
    Workspace ws(s);
    for (int64_t round = 0; round < s.lsh.rounds; ++round) {
#pragma omp for collapse(2) schedule(static)
      for (int64_t n = 0; n < s.sequences(); ++n)
        for (int64_t chunk = 0; chunk < s.chunks(); ++chunk)
          forward_chunk(ws, Chunk(places, s, round, n, chunk),
                        {s.rows(y, n, s.m), l + n * s.length, total.data() + n * s.length}, s.rows(q, n, s.e),
                        s.rows(v, n, s.m), inverse.data() + n * s.length, s.scale(), round == 0);
    }
#pragma omp for schedule(static)
    for (int64_t i = 0; i < s.queries(); ++i) {
      const float sum = total[static_cast<size_t>(i)], by = 1 / sum;
      const float* const own = s.rows(v, i / s.length, s.m)(i % s.length);
      float* const to = s.rows(y, i / s.length, s.m)(i % s.length);
      for (int64_t c = 0; c < s.m; ++c) to[c] = sum == 0 ? own[c] : by * to[c];
      l[i] = sum == 0 ? infinity : l[i] + std::log(sum);
    }
  }
}

void cpu::lsh_attention_backward(float* dq, float* dv, const float* dy, const float* y, const float* l, const float* q,
                                 const float* v, LshPlaces places, LshSizes sizes) {
  const Sizes s{sizes};
  const std::vector<float> inverse = inverse_lengths(q, s);
  std::vector<float> d(static_cast<size_t>(s.queries()));
#pragma omp parallel
  {
    Workspace ws(s);
#pragma omp for schedule(static)
    for (int64_t i = 0; i < s.queries(); ++i) {
      const int64_t n = i / s.length, position = i % s.length;
      const float* const g = s.rows(dy, n, s.m)(position);
      d[static_cast<size_t>(i)] = dot(g, s.rows(y, n, s.m)(position), s.m);
      std::fill_n(s.rows(dq, n, s.e)(position), s.e, 0.0f);
      float* const to = s.rows(dv, n, s.m)(position);
      for (int64_t c = 0; c < s.m; ++c) to[c] = l[i] == infinity ? g[c] : 0;
    }
    for (int64_t round = 0; round < s.lsh.rounds; ++round)
      for (int64_t parity = 0; parity < 2; ++parity) {
#pragma omp for collapse(2) schedule(static)
        for (int64_t n = 0; n < s.sequences(); ++n)
          for (int64_t chunk = parity; chunk < s.chunks(); chunk += 2) {
            const int64_t at = n * s.length;
            backward_chunk(ws, Chunk(places, s, round, n, chunk),
                           {s.rows(dq, n, s.e), s.rows(dv, n, s.m), s.rows(dy, n, s.m), s.rows(q, n, s.e),
                            s.rows(v, n, s.m), l + at, d.data() + at, inverse.data() + at},
                           s.scale());
          }
      }
  }
}

Tensor lsh_attention(const Tensor& q, const Tensor& v, const Lsh& lsh, Key rotations, bool causal) {
  const Shape shape = q.shape();
  check(shape.rank() == 4, "lsh_attention: q ", shape, " is not [B,L,H,E]");
  check(v.shape().rank() == 4 && v.shape() == shape.with_last(v.shape()[-1]), "lsh_attention: v ", v.shape(),
        " does not match q ", shape);
  const LshSizes s{shape[0], shape[1], shape[2], shape[3], v.shape()[3], lsh};
  check(s.e > 0 && s.m > 0 && s.e <= most && s.m <= most, "lsh_attention: q ", shape, " and v ", v.shape(),
        " must have from 1 to ", most, " columns");
  check(s.length <= std::numeric_limits<int32_t>::max() - most, "lsh_attention: q ", shape, " is too long");
  check(lsh.rounds >= 1, "lsh_attention: rounds must be at least 1, not ", lsh.rounds);
  check(lsh.buckets >= 2 && lsh.buckets <= most_buckets && lsh.buckets % 2 == 0,
        "lsh_attention: buckets must be an even number from 2 to ", most_buckets, ", not ", lsh.buckets);
  check(lsh.chunk >= 1 && lsh.chunk <= most, "lsh_attention: chunk must be from 1 to ", most, ", not ", lsh.chunk);
  const Device device = device_of("lsh_attention", q, v);

  const Shape places{lsh.rounds, s.batch, s.heads, s.length};
  Indices order(places, device), begin(places, device), end(places, device);
  {
    Tensor rotation(Shape{lsh.rounds, s.heads, s.e, lsh.buckets / 2}, device);
    Indices buckets(places, device);
    DISPATCH(device, lsh_rotations(rotation.data(), rotations, rotation.size()));
    DISPATCH(device, lsh_hash(buckets.data(), q.data(), rotation.data(), s.batch, s.length, s.heads, s.e, lsh));
    DISPATCH(device, lsh_sort(order.data(), begin.data(), end.data(), buckets.data(), lsh.rounds * s.batch * s.heads,
                              s.length, lsh, causal));
  }
  Tensor y(v.shape(), device), l(Shape{s.batch, s.heads, s.length}, device);
  DISPATCH(device,
           lsh_attention_forward(y.data(), l.data(), q.data(), v.data(), {order.data(), begin.data(), end.data()}, s));
  return record("lsh_attention", {q, v}, y, [=](const Tensor& dy) -> std::vector<Tensor> {
    Tensor dq(q.shape(), device), dv(v.shape(), device);
    DISPATCH(device, lsh_attention_backward(dq.data(), dv.data(), dy.data(), y.data(), l.data(), q.data(), v.data(),
                                            {order.data(), begin.data(), end.data()}, s));
    return {dq, dv};
  });
}

}  // namespace runnel
