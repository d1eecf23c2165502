// Reformer's attention by locality-sensitive hashing (Kitaev et al. 2020), whose time and memory grow with L.
//
// In each of several rounds a position i of a head goes to the bucket argmax [q_i R, -q_i R] with a random R
// [E,buckets/2], positions are sorted by bucket, and the sorted list is cut into chunks. A query sees the keys k_j =
// q_j / |q_j| of its own bucket in its own chunk and in the chunk before. In that order these are the places
// [begin,end), which is all that the attention itself needs to know of buckets (lsh_buckets.cpp). If causal, they end
// at the query's own place, since positions increase within a bucket. Padding is sorted behind everything else, so that
// the places of other positions do not depend on it.
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
#include <algorithm>

#include "ops/cpu/attention/online_softmax.h"
#include "ops/cpu/sequences.h"
#include "ops/kernels/lsh_attention.h"

namespace runnel {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

int64_t position_count(const AttentionSizes& s) { return s.sequences() * s.length; }
int64_t chunks(const AttentionSizes& s, const Lsh& lsh) { return (s.length + lsh.chunk - 1) / lsh.chunk; }

template <class T>
SequenceRows<T> rows_of(const AttentionSizes& s, T* x, int64_t n, int64_t width) {
  return rows_of_sequence(x, n, s.length, s.heads, width, 0);
}

// The queries of a chunk, but for padding, and the keys that any of them sees.
struct Chunk {
  const int32_t *queries, *keys;  // their positions
  const int32_t *begin, *end;     // of each query
  int32_t first, first_key;       // places
  int64_t count, key_count;

  // `length`: of the sequence without padding.
  Chunk(const LshPlaces& places, const AttentionSizes& s, const Lsh& lsh, int64_t length, int64_t round, int64_t n,
        int64_t chunk) {
    const int64_t sequence = (round * s.sequences() + n) * s.length, place = chunk * lsh.chunk, at = sequence + place;
    count = std::clamp<int64_t>(length - place, 0, lsh.chunk);
    queries = places.order + at;
    begin = places.begin + at;
    end = places.end + at;
    first = static_cast<int32_t>(place);
    first_key = begin[0];
    keys = places.order + sequence + first_key;
    key_count = count == 0 ? 0 : end[count - 1] - first_key;
  }
};

// The matrices of a chunk, which one thread works in.
struct LshBlock {
  int64_t e, m, queries, keys;  // padded
  Arena memory;
  Matrix q = memory.matrix(queries, e), qt = memory.matrix(e, queries), k = memory.matrix(keys, e);
  Matrix v = memory.matrix(keys, m), g = memory.matrix(queries, m), gt = memory.matrix(m, queries);
  Matrix p = memory.matrix(keys, queries), w = memory.matrix(keys, queries);
  Matrix y = memory.matrix(queries, m), dq = memory.matrix(queries, e), dk = memory.matrix(keys, e);
  Matrix dv = memory.matrix(keys, m);
  alignas(64) float largest[lsh_most], total[lsh_most], factor[lsh_most], l[lsh_most], d[lsh_most];  // of each query
  alignas(64) int32_t begin[lsh_most], end[lsh_most], place[lsh_most];

  static int64_t floats(const AttentionSizes& s, const Lsh& lsh) {
    const int64_t e = padded(s.e), m = padded(s.m), queries = padded(lsh.chunk), keys = padded(2 * lsh.chunk);
    return queries * (3 * e + 3 * m) + keys * (2 * e + 2 * m + 2 * queries);
  }
  LshBlock(const AttentionSizes& s, const Lsh& lsh, float* own)
      : e(padded(s.e)), m(padded(s.m)), queries(padded(lsh.chunk)), keys(padded(2 * lsh.chunk)), memory(own) {}
  RunningSoftmax softmax() { return {largest, total, factor, queries}; }

  // Results over keys end with the last key, but for padding.
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

// Copies the rows at `count` positions, each times its factor; the rest, and columns past the width, become zero.
template <class Factor>
void gather(const Matrix& to, const SequenceRows<const float>& from, const int32_t* positions, int64_t count,
            Factor factor) {
  if (count < to.rows || from.width < to.columns) to.clear();
  for (int64_t r = 0; r < count; ++r) {
    const float by = factor(positions[r]);
    map(
        to.row(r), from.width, [by](Lanes x) RUNNEL_INLINE { return by * x; }, from(positions[r]));
  }
}

// Loads queries and keys; their scores, keys as rows and queries as columns -> p, where hidden pairs are -infinity.
void find_scores(LshBlock& b, const Chunk& c, const SequenceRows<const float>& q, const float* inverse, float scale) {
  gather(b.q, q, c.queries, c.count, [scale](int32_t) { return scale; });
  transpose(b.qt, b.q);
  gather(b.k_of(c), q, c.keys, c.key_count, [inverse](int32_t position) { return inverse[position]; });
  multiply(b.p_of(c), b.k_of(c), b.qt, Store::set);
  b.load_places(c);
  for (int64_t j = 0; j < c.key_count; ++j) {
    const int32_t key = c.first_key + static_cast<int32_t>(j);
    for (int64_t i = 0; i < b.queries / lanes; ++i) {
      const auto of = [i](const int32_t* x) { return reinterpret_cast<const IntLanes*>(x)[i]; };
      const IntLanes seen = (of(b.begin) <= key) & (of(b.end) > key) & (of(b.place) != key);
      Lanes& p = b.p.lanes_of(j)[i];
      p = seen ? p : splat(hidden_score);
    }
  }
}

// Partial results of a sequence's queries: y, not divided yet, and the running softmax.
struct RoundState {
  SequenceRows<float> y;
  float *largest, *total;
};

void forward_chunk(LshBlock& b, const Chunk& c, const RoundState& found, const SequenceRows<const float>& q,
                   const SequenceRows<const float>& v, const float* inverse, float scale, bool first_round) {
  if (c.count == 0) return;
  for (int64_t i = 0; i < b.queries; ++i) {
    const bool known = !first_round && i < c.count;
    b.largest[i] = known ? found.largest[c.queries[i]] : hidden_score;
    b.total[i] = known ? found.total[c.queries[i]] : 0;
  }
  find_scores(b, c, q, inverse, scale);
  gather(b.v_of(c), v, c.keys, c.key_count, [](int32_t) { return 1.0f; });
  advance_softmax(b.softmax(), b.p, c.key_count);
  multiply_transposed(b.y, b.p_of(c), b.v_of(c), Store::set);
  for (int64_t i = 0; i < c.count; ++i) {
    float *const to = found.y(c.queries[i]), factor = b.factor[i];
    if (first_round)
      copy_numbers(to, b.y.row(i), v.width);
    else
      map(
          to, v.width, [factor](Lanes y, Lanes x) RUNNEL_INLINE { return y * factor + x; }, to, b.y.row(i));
    found.largest[c.queries[i]] = b.largest[i];
    found.total[c.queries[i]] = b.total[i];
  }
}

// One sequence's inputs of the backward pass.
struct LshSequence {
  SequenceRows<float> dq, dv;
  SequenceRows<const float> dy, q, v;
  const float *l, *d, *inverse;
};

// Adds the gradients of all pairs of a chunk's queries and their keys.
void backward_chunk(LshBlock& b, const Chunk& c, const LshSequence& x, float scale) {
  if (c.count == 0) return;
  const Matrix k = b.k_of(c), v = b.v_of(c), p = b.p_of(c);
  const Matrix w = b.of_keys(b.w, c), dk = b.of_keys(b.dk, c), dv = b.of_keys(b.dv, c);
  find_scores(b, c, x.q, x.inverse, scale);
  gather(v, x.v, c.keys, c.key_count, [](int32_t) { return 1.0f; });
  gather(b.g, x.dy, c.queries, c.count, [](int32_t) { return 1.0f; });
  transpose(b.gt, b.g);
  multiply(w, v, b.gt, Store::set);
  for (int64_t i = 0; i < b.queries; ++i) {
    b.l[i] = i < c.count ? x.l[c.queries[i]] : 0;
    b.d[i] = i < c.count ? x.d[c.queries[i]] : 0;
  }
  for (int64_t j = 0; j < c.key_count; ++j) {
    for (int64_t i = 0; i < b.queries / lanes; ++i) {
      Lanes &weight = p.lanes_of(j)[i], &slope = w.lanes_of(j)[i];
      weight = exp(weight - load(b.l + i * lanes));
      slope = weight * (slope - load(b.d + i * lanes));
    }
  }
  multiply(dv, p, b.g, Store::set);
  multiply(dk, w, b.q, Store::set);
  multiply_transposed(b.dq, w, k, Store::set);

  for (int64_t i = 0; i < c.count; ++i) {
    add_scaled(x.dq(c.queries[i]), scale, b.dq.row(i), x.q.width);
  }
  for (int64_t j = 0; j < c.key_count; ++j) {
    const float inverse = x.inverse[c.keys[j]];
    const float along = dot(dk.row(j), k.row(j), x.q.width);  // dk_j . k_j: a change of length changes nothing
    float* const to = x.dq(c.keys[j]);
    map(
        to, x.q.width,
        [=](Lanes sum, Lanes from, Lanes key) RUNNEL_INLINE { return sum + inverse * (from - along * key); }, to,
        dk.row(j), k.row(j));
    accumulate(x.dv(c.keys[j]), dv.row(j), x.v.width);
  }
}

// 1 / |q_j|, or 0 where there is hardly a length to divide by: such a key is zero. [B,H,L]
void find_inverse_norms(float* inverse, const float* q, const AttentionSizes& s) {
#pragma omp parallel for schedule(static)
  for (int64_t i = 0; i < position_count(s); ++i) {
    const float* const row = rows_of(s, q, i / s.length, s.e)(i % s.length);
    const float norm = sqrt(splat(dot(row, row, s.e)))[0];
    inverse[i] = norm < 1e-6f ? 0 : 1 / norm;
  }
}

}  // namespace

void cpu::lsh_attention_forward(float* y, float* l, const float* q, const float* v, LshPlaces places,
                                const int32_t* lengths, AttentionSizes s, Lsh lsh) {
  const Scratch inverse(position_count(s)), total(position_count(s));
  find_inverse_norms(inverse.data(), q, s);
  const ThreadScratch scratch(LshBlock::floats(s, lsh));
#pragma omp parallel
  {
    LshBlock b(s, lsh, scratch.this_thread());
    for (int64_t round = 0; round < lsh.rounds; ++round) {
#pragma omp for collapse(2) schedule(static)
      for (int64_t n = 0; n < s.sequences(); ++n)
        for (int64_t chunk = 0; chunk < chunks(s, lsh); ++chunk)
          forward_chunk(b, Chunk(places, s, lsh, seen_keys(lengths, s, n), round, n, chunk),
                        {rows_of(s, y, n, s.m), l + n * s.length, total.data() + n * s.length}, rows_of(s, q, n, s.e),
                        rows_of(s, v, n, s.m), inverse.data() + n * s.length, score_scale(s), round == 0);
    }
#pragma omp for schedule(static)
    for (int64_t i = 0; i < position_count(s); ++i) {
      const int64_t n = i / s.length, position = i % s.length;
      float* const to = rows_of(s, y, n, s.m)(position);
      if (position >= seen_keys(lengths, s, n)) {
        clear(to, s.m);
        l[i] = infinity;
        continue;
      }
      const float sum = total.data()[i], by = 1 / sum;
      if (sum == 0)
        copy_numbers(to, rows_of(s, v, n, s.m)(position), s.m);
      else
        map(
            to, s.m, [by](Lanes x) RUNNEL_INLINE { return by * x; }, to);
      l[i] = sum == 0 ? infinity : l[i] + log(splat(sum))[0];
    }
  }
}

void cpu::lsh_attention_backward(float* dq, float* dv, const float* dy, const float* y, const float* l, const float* q,
                                 const float* v, LshPlaces places, const int32_t* lengths, AttentionSizes s, Lsh lsh) {
  const Scratch inverse(position_count(s)), d(position_count(s));
  find_inverse_norms(inverse.data(), q, s);
  const ThreadScratch scratch(LshBlock::floats(s, lsh));
#pragma omp parallel
  {
    LshBlock b(s, lsh, scratch.this_thread());
#pragma omp for schedule(static)
    for (int64_t i = 0; i < position_count(s); ++i) {
      const int64_t n = i / s.length, position = i % s.length;
      const float* const g = rows_of(s, dy, n, s.m)(position);
      d.data()[i] = dot(g, rows_of(s, y, n, s.m)(position), s.m);
      clear(rows_of(s, dq, n, s.e)(position), s.e);
      const bool sees_itself = l[i] == infinity && position < seen_keys(lengths, s, n);
      float* const to = rows_of(s, dv, n, s.m)(position);
      if (sees_itself)
        copy_numbers(to, g, s.m);
      else
        clear(to, s.m);
    }
    for (int64_t round = 0; round < lsh.rounds; ++round)
      for (int64_t parity = 0; parity < 2; ++parity) {
#pragma omp for collapse(2) schedule(static)
        for (int64_t n = 0; n < s.sequences(); ++n)
          for (int64_t chunk = parity; chunk < chunks(s, lsh); chunk += 2) {
            const int64_t at = n * s.length;
            backward_chunk(b, Chunk(places, s, lsh, seen_keys(lengths, s, n), round, n, chunk),
                           {rows_of(s, dq, n, s.e), rows_of(s, dv, n, s.m), rows_of(s, dy, n, s.m),
                            rows_of(s, q, n, s.e), rows_of(s, v, n, s.m), l + at, d.data() + at, inverse.data() + at},
                           score_scale(s));
          }
      }
  }
}

}  // namespace runnel
