// Linear attention, causal or not: feature map, numerator and normaliser in one op (eq. 4-12).
//
//   q = phi(Q_i), k = phi(K_i), phi(x) = elu(x) + 1 or another map
//   S_i = S_{i-1} + k_i v_i^T,  Z_i = Z_{i-1} + k_i,  y_i = q_i^T S_i / n_i,  n_i = q_i^T Z_i + eps
//
// With g_i = dy_i / n_i, the gradient of the numerator, and d_i = -(dy_i . y_i) / n_i, that of the normaliser,
//
//   dq_i = S_i g_i + d_i Z_i
//   dk_i = R_i v_i + T_i,   dv_i = R_i^T k_i,   R_i = sum_{j>=i} q_j g_j^T,   T_i = sum_{j>=i} d_j q_j
//
// and phi', a function of phi (min(phi, 1) for elu + 1), leads back to Q and K. These are eq. 13-15 for v with one more
// column of ones, whose gradient is d; the column is kept apart only because E and M are usually powers of two and M +
// 1 is not. If the state is carried on, its gradients at the end, dS_L and dZ_L, are terms of all R_i and T_i, and
// those at the beginning are R_1 and T_1: backwards, they are carried like the state itself.
//
// Where every query sees all keys (eq. 5, 6), the sums over j <= i and j >= i are sums over all: S, Z, R and T of the
// whole sequence.
//
// Below is the code shared by the kernels of the three forms, causal (linear_attention.cpp), full (_full.cpp) and one
// decoding step (_step.cpp): feature maps, the matrices that a thread works in, and the scan over chunks.
//
// A sequence is scanned chunk by chunk. Features, and all else that depends on one position alone, are computed for a
// chunk at a time and stay in the core's cache, as does the state; so the extra memory is a few states per thread,
// whatever L is.
//
// Threads share the B H sequences; if there are fewer than eight of them, also segments of L. Then a first pass sums up
// each segment's contribution to the state, and a scan over the segments turns them into the states at their
// beginnings.
//
// Padding keys load as zero features, and their values as zeros, so they add nothing, whatever stands there. Maps are
// positive, so a feature of 0 marks padding and gets the slope 0.
#pragma once
#include <algorithm>

#include "ops/cpu/loops.h"
#include "ops/cpu/sequences.h"
#include "ops/kernels/attention_sizes.h"
#include "ops/types.h"

namespace runnel {
namespace {

constexpr int64_t linear_chunk = tile;  // C
constexpr int64_t cache_line = 16;      // floats

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

// Some heads of a batch entry, whose numbers lie side by side in memory. A thread takes them together.
struct HeadGroup {
  int64_t entry, first, count;  // of the batch; of the heads
};

// Rows of a group in x [B,length,H,width].
template <class T>
struct GroupRows : SequenceRows<T> {
  using SequenceRows<T>::width;
  int64_t heads;

  GroupRows(T* x, const HeadGroup& group, int64_t length, int64_t all_heads, int64_t numbers, int64_t next_chunk)
      : SequenceRows<T>(
            rows_of_sequence(x, group.entry * all_heads + group.first, length, all_heads, numbers, next_chunk)),
        heads(group.count) {}

  // f(position's row, matrix's row, numbers) for each row, of all heads at once if they lie side by side in the matrix.
  template <class F>
  RUNNEL_INLINE void each_row(const Matrix& matrix, int64_t padded_width, int64_t first, int64_t count, F f) const {
    const int64_t parts = width == padded_width ? 1 : heads, each = width == padded_width ? heads * width : width;
    for (int64_t r = 0; r < count; ++r)
      for (int64_t h = 0; h < parts; ++h) f((*this)(first + r) + h * width, matrix.row(r) + h * padded_width, each);
  }
};

// The matrices of a chunk, which one thread works in: positions as rows, and in each the group's heads side by side.
// The distance of rows is no power of two, or a head's rows would compete for a few lines of the cache.
struct LinearChunk {
  int64_t e, m, heads;  // e and m padded
  bool non_temporal;    // stores of results: from 16 MiB on, most leave the caches before they are read
  Arena memory;
  Matrix q = of_queries(), k = of_queries(), v = of_values(), g = of_values();
  Matrix y = of_values(), dx = of_queries();  // results
  Matrix n = memory.matrix(heads, linear_chunk),
         d = memory.matrix(heads, linear_chunk);  // [heads,C]: n_i and d_i of each head
  Matrix z = memory.matrix(linear_chunk, e);      // [C,e]: Z_i of one head

  static int64_t floats(const AttentionSizes& s) {
    const int64_t e = padded(s.e), m = padded(s.m);
    return linear_chunk * (s.heads * (3 * e + 3 * m + 2) + 6 * gap + e);
  }
  LinearChunk(const AttentionSizes& s, int64_t max_heads, float* own)
      : e(padded(s.e)),
        m(padded(s.m)),
        heads(max_heads),
        non_temporal(s.sequences() * std::min(s.length, s.key_length) * std::min(s.e, s.m) >= 1 << 22),
        memory(own) {}

  Matrix of_head(const Matrix& queries, int64_t h) const { return queries.some_columns(h * e, e); }
  Matrix values_of_head(const Matrix& values, int64_t h) const { return values.some_columns(h * m, m); }

 private:
  static constexpr int64_t gap = tile;
  // [C,heads e] and [C,heads m]
  Matrix of_queries() { return memory.matrix(linear_chunk, heads * e, heads * e + gap); }
  Matrix of_values() { return memory.matrix(linear_chunk, heads * m, heads * m + gap); }
};

// Loads `count` positions, each number by way of f; what lies past them, or past the width, becomes zero and so adds
// nothing.
template <class F>
RUNNEL_INLINE inline void load(const Matrix& to, int64_t padded_width, const GroupRows<const float>& from,
                               int64_t first, int64_t count, F f) {
  const int64_t kept = from.width == padded_width ? count : 0;
  clear(to.row(kept), (to.rows - kept) * to.stride);
  from.each_row(to, padded_width, first, count, [&](const float* x, float* row, int64_t n) RUNNEL_INLINE {
    for (int64_t i = 0; i < n; i += cache_line) __builtin_prefetch(x + from.next + i, 0, 2);  // to the second level
    map(row, n, f, x);
  });
}
inline void load(const Matrix& to, int64_t padded_width, const GroupRows<const float>& from, int64_t first,
                 int64_t count) {
  load(to, padded_width, from, first, count, [](Lanes x) RUNNEL_INLINE { return x; });
}

// A group of sequences, of which keys [0, keys) are not padding.
template <class Phi>
struct LinearInputs {
  Phi phi;
  GroupRows<const float> q, k, v;
  int64_t keys;

  // Scanned from the left, or from the right with next = -linear_chunk.
  LinearInputs(Phi map, const float* queries, const float* all_keys, const float* values, const int32_t* lengths,
               const AttentionSizes& s, const HeadGroup& group, int64_t next = linear_chunk)
      : phi(map),
        q(queries, group, s.length, s.heads, s.e, next),
        k(all_keys, group, s.key_length, s.heads, s.e, next),
        v(values, group, s.key_length, s.heads, s.m, next),
        keys(lengths ? lengths[group.entry] : s.key_length) {}
};

// Sums over the positions scanned so far: from the left S [E,M] (in the backward pass S^T) and Z [E], from the right R
// and T.
struct ScanState {
  Matrix s, z;
  Matrix transposed;  // of s, for scans that need both
};
struct GroupStates {  // of the heads of a group
  float* first;
  int64_t floats, next;  // of a state; from head to head
  int64_t rows, columns, e;
  bool with_transposed;
  ScanState operator[](int64_t h) const {
    Arena memory(first + h * next);
    ScanState state{memory.matrix(rows, columns), memory.matrix(1, e), {}};
    if (with_transposed) state.transposed = memory.matrix(columns, rows);
    return state;
  }
};

template <class Phi>
void load_keys(LinearChunk& c, const LinearInputs<Phi>& in, int64_t first, int64_t count) {
  const int64_t seen = std::clamp<int64_t>(in.keys - first, 0, count);
  load(c.k, c.e, in.k, first, seen, in.phi);
  load(c.v, c.m, in.v, first, seen);
}

// z += sum_r x[r,:],  z += sum_r weight[r] x[r,:]
inline void add_rows(const Matrix& z, const Matrix& x) {
  for (int64_t r = 0; r < x.rows; ++r) accumulate(z.row(0), x.row(r), x.columns);
}
inline void add_rows(const Matrix& z, const float* weight, const Matrix& x) {
  for (int64_t r = 0; r < x.rows; ++r) add_scaled(z.row(0), weight[r], x.row(r), x.columns);
}

// S += k v^T or, transposed, S^T += v k^T;  Z += k
template <class Phi>
void add_keys(LinearChunk& c, const GroupStates& states, const LinearInputs<Phi>& in, int64_t first, int64_t count,
              bool transposed) {
  load_keys(c, in, first, count);
  for (int64_t h = 0; h < in.q.heads; ++h) {
    const Matrix k = c.of_head(c.k, h), v = c.values_of_head(c.v, h);
    const ScanState state = states[h];
    transposed ? multiply_transposed(state.s, v, k, Store::add) : multiply_transposed(state.s, k, v, Store::add);
    add_rows(state.z, k);
  }
}

// row[i] = f(x[i], ...) for a row of results.
template <class F, class... X>
RUNNEL_INLINE inline void store_row(const GroupRows<float>& to, const LinearChunk& c, float* row, int64_t n, F f,
                                    const X*... x) {
  if (c.non_temporal) return map_non_temporal(row, n, f, x...);
  for (int64_t i = 0; i < n; i += cache_line) __builtin_prefetch(row + to.next + i, 1);
  map(row, n, f, x...);
}

// y_i = numerator_i / n_i
inline void store_quotient(const GroupRows<float>& to, const LinearChunk& c, int64_t first, int64_t count) {
  for (int64_t i = 0; i < count; ++i)
    for (int64_t h = 0; h < to.heads; ++h) {
      const float inverse = 1 / (c.n.row(h)[i] + normaliser_eps);
      float* const row = to(first + i) + h * to.width;
      store_row(
          to, c, row, to.width, [inverse](Lanes y) RUNNEL_INLINE { return y * inverse; }, c.y.row(i) + h * c.m);
    }
}

// to_i = x_i phi'(f_i)
template <class Phi>
void store_gradient(Phi, const GroupRows<float>& to, const LinearChunk& c, const Matrix& x, const Matrix& f,
                    int64_t first, int64_t count) {
  to.each_row(x, c.e, first, count, [&](float* row, float* dx, int64_t n) RUNNEL_INLINE {
    store_row(
        to, c, row, n, [](Lanes a, Lanes feature) RUNNEL_INLINE { return a * Phi::slope(feature); }, dx,
        f.row(0) + (dx - x.row(0)));
  });
}

// to_i = x_i
inline void store_values(const GroupRows<float>& to, const LinearChunk& c, const Matrix& x, int64_t first,
                         int64_t count) {
  to.each_row(x, c.m, first, count, [&](float* row, float* y, int64_t n) RUNNEL_INLINE {
    store_row(
        to, c, row, n, [](Lanes numbers) RUNNEL_INLINE { return numbers; }, y);
  });
}

// A scan over all sequences. A thread takes a group of heads of one batch entry chunk by chunk. Fewer than eight
// sequences are cut into segments, each of which has a state of its own, [rows,columns] and [E].
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

  // Gives every segment the state before it: the sum of the contributions of the segments scanned earlier. `add` visits
  // all chunks.
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
  ScanState total(int64_t n) const { return state(n, 0); }
  GroupStates totals(const HeadGroup& group) const { return states(group.entry * sizes_.heads + group.first, 0); }

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

  // Writes the transposed states into the second copy.
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

  // visit(chunk, states, group, first, count) for all chunks, those of a segment in order.
  template <class Visit>
  void each_chunk(Visit visit) {
    const int64_t length = (length_ + segments_ - 1) / segments_;
    const int64_t group = (sizes_.heads + groups_ - 1) / groups_;
#pragma omp parallel if (sizes_.sequences() * length_ * sizes_.e * sizes_.m >= parallel_from_products)
    {
      LinearChunk chunk(sizes_, group, scratch_.this_thread());
#pragma omp for collapse(3) schedule(dynamic)
      for (int64_t b = 0; b < sizes_.batch; ++b)
        for (int64_t head = 0; head < sizes_.heads; head += group)
          for (int64_t segment = 0; segment < segments_; ++segment) {
            const int64_t begin = std::min(segment * length, length_);
            const int64_t end = std::min(begin + length, length_);
            const int64_t count = (end - begin + linear_chunk - 1) / linear_chunk;
            for (int64_t c = 0; c < count; ++c) {
              const int64_t first = begin + linear_chunk * (from_ == From::right ? count - 1 - c : c);
              visit(chunk, states(b * sizes_.heads + head, segment),
                    HeadGroup{b, head, std::min(group, sizes_.heads - head)}, first,
                    std::min(linear_chunk, end - first));
            }
          }
      store_fence();
    }
  }

 private:
  // Of each sequence, so that there are eight to share. Not by the number of threads, which would change the sums.
  static int64_t segments(int64_t sequences, int64_t length) {
    const int64_t wanted = sequences == 0 ? 1 : (7 + sequences) / sequences;
    return std::clamp<int64_t>((length + linear_chunk - 1) / linear_chunk, 1, wanted);
  }
  int64_t floats() const { return copies_ * rows_ * columns_ + e_; }
  GroupStates states(int64_t n, int64_t segment) const {  // n: the group's first sequence
    return {states_.data() + (n * segments_ + segment) * floats(),
            floats(),
            segments_ * floats(),
            rows_,
            columns_,
            e_,
            copies_ == 2};
  }
  ScanState state(int64_t n, int64_t segment) const { return states(n, segment)[0]; }

  const ThreadScratch& scratch_;
  AttentionSizes sizes_;
  int64_t length_;
  From from_;
  int64_t rows_, columns_, e_, copies_, groups_, segments_;
  Scratch states_;
};

}  // namespace
}  // namespace runnel
