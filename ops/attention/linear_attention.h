// What the CPU kernels of linear attention share: feature maps, the matrices that a thread works in, and the scan over
// chunks.
//
// A sequence is scanned chunk by chunk. Features, and what else positions need by themselves, are found for a chunk at a
// time and stay in the core's cache, as does the state; so the extra memory is a few states per thread, whatever L is.
//
// Threads share the B H sequences; if there are fewer than eight of them, also segments of L. Then a first pass sums up each
// segment's contribution to the state, and a scan over the segments turns them into the states at their beginnings.
//
// Padding keys load as zero features, and their values as zeros, so they add nothing, whatever stands there. Maps are
// positive, so a feature of 0 marks padding and gets the slope 0.
#pragma once
#include <omp.h>

#include <algorithm>

#include "ops/cpu/loops.h"
#include "ops/cpu/sequences.h"
#include "ops/kernels.h"

namespace runnel {
namespace {

constexpr int64_t linear_chunk = tile;  // C

// The feature maps: phi(x), and phi'(x) from phi(x), which is 0 where that is.
struct EluPlusOne {
  RUNNEL_INLINE Lanes operator()(Lanes x) const { return x > 0 ? x + 1 : exp(x); }
  RUNNEL_INLINE static Lanes slope(Lanes feature) { return min(feature, splat(1)); }
};
struct Relu {
  static constexpr float least = 1e-3f;
  RUNNEL_INLINE Lanes operator()(Lanes x) const { return (x < 0 ? Lanes{} : x) + least; }
  RUNNEL_INLINE static Lanes slope(Lanes feature) { return feature > least ? splat(1) : Lanes{}; }
};
struct Identity {
  RUNNEL_INLINE Lanes operator()(Lanes x) const { return x; }
  RUNNEL_INLINE static Lanes slope(Lanes feature) { return feature > 0 ? splat(1) : Lanes{}; }
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
  Carver memory;
  Matrix q = memory.matrix(linear_chunk, e), k = memory.matrix(linear_chunk, e), v = memory.matrix(linear_chunk, m);
  Matrix g = memory.matrix(linear_chunk, m), z = memory.matrix(linear_chunk, e);   // Z_i
  Matrix y = memory.matrix(linear_chunk, m), dx = memory.matrix(linear_chunk, e);  // results
  Matrix n = memory.matrix(1, linear_chunk), d = memory.matrix(1, linear_chunk);

  static int64_t floats(const AttentionSizes& s) { return linear_chunk * (4 * padded(s.e) + 3 * padded(s.m) + 2); }
  LinearChunk(const AttentionSizes& s, float* own) : e(padded(s.e)), m(padded(s.m)), memory(own) {}
};

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
  Matrix transposed;  // of s, for scans that need both
};

template <class Phi>
void load_keys(LinearChunk& c, const LinearInputs<Phi>& in, int64_t first, int64_t count) {
  const int64_t seen = std::clamp<int64_t>(in.keys - first, 0, count);
  load(c.k, in.k, first, seen, in.phi);
  load(c.v, in.v, first, seen);
}

// z += sum_r x[r,:],  z += sum_r weight[r] x[r,:]
inline void add_rows(const Matrix& z, const Matrix& x) {
  for (int64_t r = 0; r < x.rows; ++r)
    for (int64_t c = 0; c < x.columns / lanes; ++c) z.data[c] += x.lanes_of(r)[c];
}
inline void add_rows(const Matrix& z, const float* weight, const Matrix& x) {
  for (int64_t r = 0; r < x.rows; ++r)
    for (int64_t c = 0; c < x.columns / lanes; ++c) z.data[c] += weight[r] * x.lanes_of(r)[c];
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
inline void store_quotient(SequenceRows<float> to, const LinearChunk& c, int64_t first, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const float inverse = 1 / (c.n.row(0)[i] + normaliser_eps);
    float* const row = to(first + i);
    for (int64_t j = 0; j < to.width; j += lanes) __builtin_prefetch(row + to.next + j, 1);
    map(row, to.width, [inverse](Lanes y) RUNNEL_INLINE { return y * inverse; }, c.y.row(i));
  }
}

// to_i = x_i phi'(f_i)
template <class Phi>
void store_gradient(Phi, SequenceRows<float> to, const Matrix& x, const Matrix& f, int64_t first, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    float* const row = to(first + i);
    for (int64_t j = 0; j < to.width; j += lanes) __builtin_prefetch(row + to.next + j, 1);
    map(row, to.width, [](Lanes dx, Lanes feature) RUNNEL_INLINE { return dx * Phi::slope(feature); }, x.row(i), f.row(i));
  }
}

// A scan over all sequences. A thread takes a group of heads of one batch entry and goes through all of them chunk by
// chunk, since their numbers lie side by side in memory. Fewer than eight sequences are cut into segments, each of which has
// a state of its own, [rows,columns] and [E].
class ChunkScan {
 public:
  enum class From { left, right };

  ChunkScan(const ThreadScratch& scratch, const AttentionSizes& sizes, int64_t length, From from, int64_t rows,
            int64_t columns, bool with_transposed = false)
      : scratch_(scratch),
        sizes_(sizes),
        length_(length),
        from_(from),
        rows_(padded(rows)),
        columns_(padded(columns)),
        e_(padded(sizes.e)),
        copies_(with_transposed ? 2 : 1),
        groups_(sizes.batch % omp_get_max_threads() == 0 ? 1 : std::min<int64_t>(sizes.heads, omp_get_max_threads())),
        segments_(segments(sizes.sequences(), length)),
        states_(sizes.sequences() * segments_ * floats()) {
    clear(states_.data(), sizes.sequences() * segments_ * floats());
  }

  // Gives every segment the sum of what the segments scanned before it add to the state. add(chunk, state, n, first,
  // count) adds one chunk.
  template <class Add>
  void sum_segments(Add add) {
    if (segments_ == 1) return;
    each_chunk(add);
    for (int64_t n = 0; n < sizes_.sequences(); ++n) {
      const Scratch total(floats());
      clear(total.data(), floats());
      for (int64_t i = 0; i < segments_; ++i) {
        float* const own = state(n, from_ == From::right ? segments_ - 1 - i : i).s.row(0);
        for (int64_t j = 0; j < floats(); j += lanes) {
          const Lanes before = load(total.data() + j);
          store(total.data() + j, before + load(own + j));
          store(own + j, before);
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
        accumulate(total(n).s.row(0), state(n, segment).s.row(0), floats());
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

  // Makes the second copy of all states what the first is, transposed.
  void copy_transposed() {
    for (int64_t n = 0; n < sizes_.sequences(); ++n)
      for (int64_t segment = 0; segment < segments_; ++segment)
        transpose(state(n, segment).transposed, state(n, segment).s);
  }

  // The state after the last chunk; null: not wanted.
  void copy_final(float* s, float* z) {
    if (!s) return;
    for (int64_t n = 0; n < sizes_.sequences(); ++n) {
      const ScanState from = state(n, from_ == From::right ? 0 : segments_ - 1);
      copy_numbers(z + n * sizes_.e, from.z.row(0), sizes_.e);
      for (int64_t i = 0; i < sizes_.e; ++i) copy_numbers(s + (n * sizes_.e + i) * sizes_.m, from.s.row(i), sizes_.m);
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
  // Of each sequence, so that there are eight to share. Not by the number of threads, which would change the sums.
  static int64_t segments(int64_t sequences, int64_t length) {
    const int64_t wanted = sequences == 0 ? 1 : (7 + sequences) / sequences;
    return std::clamp<int64_t>((length + linear_chunk - 1) / linear_chunk, 1, wanted);
  }
  int64_t floats() const { return copies_ * rows_ * columns_ + e_; }
  ScanState state(int64_t n, int64_t segment) {
    Carver memory(states_.data() + (n * segments_ + segment) * floats());
    ScanState state{memory.matrix(rows_, columns_), memory.matrix(1, e_), {}};
    if (copies_ == 2) state.transposed = memory.matrix(columns_, rows_);
    return state;
  }

  const ThreadScratch& scratch_;
  AttentionSizes sizes_;
  int64_t length_;
  From from_;
  int64_t rows_, columns_, e_, copies_, groups_, segments_;
  Scratch states_;
};

}  // namespace
}  // namespace runnel
