// What the CPU kernels of linear attention share: feature maps, the matrices that a thread works in, and the scan over
// chunks.
//
// A sequence is scanned chunk by chunk. Inside a chunk attention is the masked product of its definition, (q k^T) v;
// what lies before (or, backwards, behind) it acts through the state. So nearly all arithmetic is in small matrix
// products whose operands stay in the core's cache, and the extra memory is a few states per thread, whatever L is.
//
// Threads share the B H sequences; if there are too few of them, also segments of L. Then a first pass sums up each
// segment's contribution to the state, and a scan over the segments turns them into the states at their beginnings.
//
// Padding keys load as zero features, and their values as zeros, so they add nothing, whatever stands there. Maps are
// positive, so a feature of 0 marks padding and gets the slope 0.
#pragma once
#include <omp.h>

#include <algorithm>
#include <vector>

#include "ops/cpu/math.h"
#include "ops/cpu/sequences.h"
#include "ops/kernels.h"

namespace runnel::cpu {

constexpr int64_t linear_chunk = tile;  // C. 32 and 64 are slower, since more of each chunk is masked away

// The feature maps: phi(x), and phi'(x) from phi(x), which is 0 where that is. Objects, so that loops over them are
// compiled with them; always_inline, because g++ 12 leaves a call in these loops on processors that it does not know.
struct EluPlusOne {
  [[gnu::always_inline]] float operator()(float x) const { return x > 0 ? x + 1 : fast_exp(x); }
  static float slope(float feature) { return feature < 1 ? feature : 1; }
};
struct Relu {
  static constexpr float least = 1e-3f;
  [[gnu::always_inline]] float operator()(float x) const { return (x < 0 ? 0 : x) + least; }
  static float slope(float feature) { return feature > least ? 1 : 0; }
};
struct Identity {
  [[gnu::always_inline]] float operator()(float x) const { return x; }
  static float slope(float feature) { return feature > 0 ? 1 : 0; }
};

// f(the map)
template <class F>
void with_map(FeatureMap map, F f) {
  switch (map) {
    case FeatureMap::elu_plus_one:
      return f(EluPlusOne{});
    case FeatureMap::relu:
      return f(Relu{});
    case FeatureMap::identity:
      return f(Identity{});
  }
}

// The matrices of a chunk, which one thread works in.
struct LinearChunk {
  int64_t e, m;  // padded
  Scratch scratch;
  Matrix q = scratch.matrix(linear_chunk, e), k = scratch.matrix(linear_chunk, e), v = scratch.matrix(linear_chunk, m);
  Matrix g = scratch.matrix(linear_chunk, m), qt = scratch.matrix(e, linear_chunk);
  Matrix gt = scratch.matrix(m, linear_chunk);
  Matrix p = scratch.matrix(linear_chunk, linear_chunk);                             // p[j,i] = q_i . k_j for j <= i
  Matrix w = scratch.matrix(linear_chunk, linear_chunk);                             // w[j,i] = g_i . v_j for j <= i
  Matrix z = scratch.matrix(linear_chunk, e);                                        // Z_i
  Matrix y = scratch.matrix(linear_chunk, m), dx = scratch.matrix(linear_chunk, e);  // results
  Matrix rt = scratch.matrix(m, e);                                                  // R^T
  Matrix n = scratch.matrix(1, linear_chunk), d = scratch.matrix(1, linear_chunk);

  static int64_t vectors(const AttentionSizes& s) {
    const int64_t e = padded(s.e), m = padded(s.m);
    return (linear_chunk * (5 * e + 4 * m + 2 * linear_chunk + 2) + e * m) / lanes;
  }
  LinearChunk(const AttentionSizes& s, Scratch memory) : e(padded(s.e)), m(padded(s.m)), scratch(memory) {}
};

// z += sum_r x[r,:],  z += sum_r weight[r] x[r,:]
inline void add_rows(const Matrix& z, const Matrix& x) {
  for (int64_t r = 0; r < x.rows; ++r)
    for (int64_t c = 0; c < x.columns / lanes; ++c) z.data[c] += x.lanes_of(r)[c];
}
inline void add_rows(const Matrix& z, const float* weight, const Matrix& x) {
  for (int64_t r = 0; r < x.rows; ++r)
    for (int64_t c = 0; c < x.columns / lanes; ++c) z.data[c] += weight[r] * x.lanes_of(r)[c];
}

// One sequence, of which keys [0, keys) are not padding.
template <class Phi>
struct LinearInputs {
  Phi phi;
  SequenceRows<const float> q, k, v;
  int64_t keys;

  // Sequence n, scanned from the left, or from the right with next = -linear_chunk.
  LinearInputs(Phi map, const float* queries, const float* all_keys, const float* values, const int32_t* lengths,
               const AttentionSizes& s, int64_t n, int64_t next = linear_chunk)
      : phi(map),
        q(rows_of_sequence(queries, n, s.length, s.heads, s.e, next)),
        k(rows_of_sequence(all_keys, n, s.key_length, s.heads, s.e, next)),
        v(rows_of_sequence(values, n, s.key_length, s.heads, s.m, next)),
        keys(seen_keys(lengths, s, n)) {}
};

// What has been scanned so far: from the left S [E,M] (in the backward pass S^T) and Z [E], from the right R and T.
struct ScanState {
  Matrix s, z;
};

template <class Phi>
void load_keys(LinearChunk& c, const LinearInputs<Phi>& in, int64_t first, int64_t count) {
  const int64_t seen = std::clamp<int64_t>(in.keys - first, 0, count);
  load(c.k, in.k, first, seen, in.phi);
  load(c.v, in.v, first, seen);
}

// S += k v^T or, transposed, S^T += v k^T;  Z += k
template <class Phi>
void add_keys(LinearChunk& c, const ScanState& state, const LinearInputs<Phi>& in, int64_t first, int64_t count,
              bool transposed) {
  load_keys(c, in, first, count);
  transposed ? multiply_transposed(state.s, c.v, c.k, Store::add) : multiply_transposed(state.s, c.k, c.v, Store::add);
  add_rows(state.z, c.k);
}

// y_i = numerator_i / n_i
inline void store_quotient(SequenceRows<float> to, LinearChunk& c, int64_t first, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const float inverse = 1 / (c.n.row(0)[i] + normaliser_eps);
    const float* from = c.y.row(i);
    float* row = to(first + i);
    for (int64_t j = 0; j < to.width; j += lanes) __builtin_prefetch(row + to.next + j, 1);
#pragma omp simd
    for (int64_t j = 0; j < to.width; ++j) row[j] = from[j] * inverse;
  }
}

// to_i = x_i phi'(f_i)
template <class Phi>
void store_gradient(Phi, SequenceRows<float> to, const Matrix& x, const Matrix& f, int64_t first, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const float *dx = x.row(i), *feature = f.row(i);
    float* row = to(first + i);
    for (int64_t j = 0; j < to.width; j += lanes) __builtin_prefetch(row + to.next + j, 1);
#pragma omp simd
    for (int64_t j = 0; j < to.width; ++j) row[j] = dx[j] * Phi::slope(feature[j]);
  }
}

// A scan over all sequences. A thread takes a group of heads of one batch entry and goes through all of them chunk by
// chunk, since their numbers lie side by side in memory. If there are too few sequences to occupy the threads evenly,
// each is cut into one segment per thread. Every segment has a state of its own, [rows,columns] and [E].
class ChunkScan {
 public:
  enum class From { left, right };

  ChunkScan(const ThreadScratch& scratch, const AttentionSizes& sizes, int64_t length, From from, int64_t rows,
            int64_t columns)
      : scratch_(scratch),
        sizes_(sizes),
        length_(length),
        from_(from),
        rows_(padded(rows)),
        columns_(padded(columns)),
        e_(padded(sizes.e)) {
    const int64_t threads = omp_get_max_threads(), n = sizes.sequences();
    if (sizes.batch % threads != 0) groups_ = std::min(sizes.heads, threads);
    if (n % threads != 0 && n < 8 * threads)
      segments_ = std::clamp<int64_t>((length + linear_chunk - 1) / linear_chunk, 1, threads);
    states_ = Tensor::full(Shape{n * segments_ * vectors(), lanes}, 0);
  }

  // Gives every segment the sum of what the segments scanned before it add to the state. add(chunk, state, n, first,
  // count) adds one chunk.
  template <class Add>
  void sum_segments(Add add) {
    if (segments_ == 1) return;
    each_chunk(add);
    for (int64_t n = 0; n < sizes_.sequences(); ++n) {
      std::vector<Lanes> total(static_cast<size_t>(vectors()));
      for (int64_t i = 0; i < segments_; ++i) {
        Lanes* own = state(n, from_ == From::right ? segments_ - 1 - i : i).s.data;
        for (Lanes& before : total) {
          const Lanes after = before + *own;
          *own++ = before;
          before = after;
        }
      }
    }
  }

  // Sums up whole sequences, into total(n).
  template <class Add>
  void sum_all(Add add) {
    each_chunk(add);
    for (int64_t n = 0; n < sizes_.sequences(); ++n)
      for (int64_t segment = 1; segment < segments_; ++segment)
        for (int64_t i = 0; i < vectors(); ++i) total(n).s.data[i] += state(n, segment).s.data[i];
  }
  ScanState total(int64_t n) { return state(n, 0); }

  // Adds s [E,M] (or its transpose) and z [E] of every sequence to the states of all its segments; null: zero.
  void add_initial(const float* s, const float* z, bool transposed) {
    if (!s) return;
    for (int64_t n = 0; n < sizes_.sequences(); ++n)
      for (int64_t segment = 0; segment < segments_; ++segment) {
        const ScanState to = state(n, segment);
        for (int64_t i = 0; i < sizes_.e; ++i) {
          to.z.row(0)[i] += z[n * sizes_.e + i];
          for (int64_t j = 0; j < sizes_.m; ++j)
            (transposed ? to.s.row(j)[i] : to.s.row(i)[j]) += s[(n * sizes_.e + i) * sizes_.m + j];
        }
      }
  }

  // The state after the last chunk; null: not wanted.
  void copy_final(float* s, float* z) {
    if (!s) return;
    for (int64_t n = 0; n < sizes_.sequences(); ++n) {
      const ScanState from = state(n, from_ == From::right ? 0 : segments_ - 1);
      std::copy_n(from.z.row(0), sizes_.e, z + n * sizes_.e);
      for (int64_t i = 0; i < sizes_.e; ++i) std::copy_n(from.s.row(i), sizes_.m, s + (n * sizes_.e + i) * sizes_.m);
    }
  }

  // visit(chunk, state, n, first, count) for all chunks, those of a segment in order.
  template <class Visit>
  void each_chunk(Visit visit) {
    const int64_t length = (length_ + segments_ - 1) / segments_;
    const int64_t group = (sizes_.heads + groups_ - 1) / groups_;
#pragma omp parallel
    {
      LinearChunk chunk(sizes_, scratch_.own());
#pragma omp for collapse(3) schedule(static)
      for (int64_t b = 0; b < sizes_.batch; ++b)
        for (int64_t head = 0; head < sizes_.heads; head += group)
          for (int64_t segment = 0; segment < segments_; ++segment) {
            const int64_t begin = std::min(segment * length, length_);
            const int64_t end = std::min(begin + length, length_);
            const int64_t count = (end - begin + linear_chunk - 1) / linear_chunk;
            for (int64_t c = 0; c < count; ++c) {
              const int64_t first = begin + linear_chunk * (from_ == From::right ? count - 1 - c : c);
              for (int64_t h = head; h < std::min(head + group, sizes_.heads); ++h) {
                const int64_t n = b * sizes_.heads + h;
                visit(chunk, state(n, segment), n, first, std::min(linear_chunk, end - first));
              }
            }
          }
    }
  }

 private:
  int64_t vectors() const { return (rows_ * columns_ + e_) / lanes; }
  ScanState state(int64_t n, int64_t segment) {
    Lanes* at = reinterpret_cast<Lanes*>(states_.data()) + (n * segments_ + segment) * vectors();
    return {{at, rows_, columns_}, {at + rows_ * columns_ / lanes, 1, e_}};
  }

  const ThreadScratch& scratch_;
  AttentionSizes sizes_;
  int64_t length_;
  From from_;
  int64_t rows_, columns_, e_, groups_ = 1, segments_ = 1;
  Tensor states_;
};

}  // namespace runnel::cpu
