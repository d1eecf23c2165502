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
// column of ones, whose gradient is d; the column is kept apart only because E and M are powers of two and M + 1 is
// not.
//
// A sequence is walked chunk by chunk. Inside a chunk attention is the masked product of its definition, (q k^T) v;
// what lies before (or, backwards, behind) it acts through the state. So nearly all arithmetic is in small matrix
// products whose operands stay in the core's cache, and the extra memory is a few states per thread, whatever L is.
// Even n_i and d_i, which the walk from the right needs and only the walk from the left knows, are left by the one for
// the other in rows of dk and dv that are about to be overwritten.
//
// Threads share the B H sequences; if there are too few of them, also segments of L. Then a first pass sums up each
// segment's contribution to the state, and a scan over the segments turns them into the states at their beginnings.
//
// Where all queries see all keys (eq. 5, 6), the sums over j <= i and j >= i become sums over all, S, Z, R and T of the
// whole sequence: a walk over the keys sums up S and Z, one over the queries y, and in the backward pass dq, R and T,
// and one more over the keys dk and dv.
//
// A key that nobody sees, at or beyond its sequence's length, has the feature 0, and its value is 0. So it adds
// nothing, whatever stands there, and since no map makes a 0, phi' can be 0 where phi is.
#include <omp.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "engine/check.h"
#include "ops/kernels.h"
#include "ops/math.h"
#include "ops/ops.h"
#include "ops/sequences.h"

namespace runnel {
namespace {

using namespace cpu;

constexpr int64_t chunk = lanes;  // C. 32 and 64 are slower, since more of each chunk is masked away
constexpr float eps = normaliser_eps;

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
struct Same {
  [[gnu::always_inline]] float operator()(float x) const { return x; }
  static float slope(float feature) { return feature > 0 ? 1 : 0; }
};

// f(the map)
template <class F>
void with(FeatureMap map, F f) {
  switch (map) {
    case FeatureMap::elu_plus_one:
      return f(EluPlusOne{});
    case FeatureMap::relu:
      return f(Relu{});
    case FeatureMap::none:
      return f(Same{});
  }
}

struct Sizes {
  int64_t batch, length, heads, e, m;
  int64_t sequences() const { return batch * heads; }
  template <class T>
  Rows<T> sequence(T* x, int64_t n, int64_t width, int64_t next = chunk) const {
    return rows_of_sequence(x, n, length, heads, width, next);
  }
  int64_t keys(const int32_t* lengths, int64_t n) const { return lengths ? lengths[n / heads] : length; }
};

struct Workspace {
  int64_t e, m;  // padded
  Scratch scratch;
  Matrix q = scratch.matrix(chunk, e), k = scratch.matrix(chunk, e), v = scratch.matrix(chunk, m);
  Matrix g = scratch.matrix(chunk, m), qt = scratch.matrix(e, chunk), gt = scratch.matrix(m, chunk);
  Matrix p = scratch.matrix(chunk, chunk);                             // p[j,i] = q_i . k_j for j <= i
  Matrix w = scratch.matrix(chunk, chunk);                             // w[j,i] = g_i . v_j for j <= i
  Matrix z = scratch.matrix(chunk, e);                                 // Z_i
  Matrix y = scratch.matrix(chunk, m), dx = scratch.matrix(chunk, e);  // results
  Matrix rt = scratch.matrix(m, e);                                    // R^T
  Matrix n = scratch.matrix(1, chunk), d = scratch.matrix(1, chunk);

  explicit Workspace(const Sizes& sizes)
      : e(padded(sizes.e)), m(padded(sizes.m)), scratch((chunk * (5 * e + 4 * m + 2 * chunk + 2) + e * m) / lanes) {}
};

// z += sum_r x[r,:],  z += sum_r weight[r] x[r,:]
void add_rows(const Matrix& z, const Matrix& x) {
  for (int64_t r = 0; r < x.rows; ++r)
    for (int64_t c = 0; c < x.columns / lanes; ++c) z.data[c] += x.lanes_of(r)[c];
}
void add_rows(const Matrix& z, const float* weight, const Matrix& x) {
  for (int64_t r = 0; r < x.rows; ++r)
    for (int64_t c = 0; c < x.columns / lanes; ++c) z.data[c] += weight[r] * x.lanes_of(r)[c];
}

void mask(const Matrix& p) {  // p[j,i] = 0 for i < j
  const auto position = [] {
    decltype(Lanes{} < Lanes{}) each;
    for (int i = 0; i < lanes; ++i) each[i] = i;
    return each;
  }();
  for (int32_t j = 0; j < chunk; ++j) p.data[j] = position < j ? Lanes{} : p.data[j];
}

// --- the walks -------------------------------------------------------------------------------------------------------

// One sequence, of which keys [0, keys) are seen.
template <class Phi>
struct Inputs {
  Phi phi;
  Rows<const float> q, k, v;
  int64_t keys;
};

// What has been seen so far: from the left S [E,M] (in the backward pass S^T) and Z [E], from the right R and T.
struct State {
  Matrix s, z;
};

template <class Phi>
void load_keys(Workspace& ws, const Inputs<Phi>& in, int64_t first, int64_t count) {
  const int64_t seen = std::clamp<int64_t>(in.keys - first, 0, count);
  load(ws.k, in.k, first, seen, in.phi);
  load(ws.v, in.v, first, seen);
}

// S += k v^T or, transposed, S^T += v k^T;  Z += k
template <class Phi>
void add_keys(Workspace& ws, const State& state, const Inputs<Phi>& in, int64_t first, int64_t count, bool transposed) {
  load_keys(ws, in, first, count);
  transposed ? multiply_transposed(state.s, ws.v, ws.k, Result::add)
             : multiply_transposed(state.s, ws.k, ws.v, Result::add);
  add_rows(state.z, ws.k);
}

// y_i = numerator_i / n_i
void store_quotient(Rows<float> to, Workspace& ws, int64_t first, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const float inverse = 1 / (ws.n.row(0)[i] + eps);
    const float* from = ws.y.row(i);
    float* row = to(first + i);
    for (int64_t j = 0; j < to.width; j += lanes) __builtin_prefetch(row + to.next + j, 1);
#pragma omp simd
    for (int64_t j = 0; j < to.width; ++j) row[j] = from[j] * inverse;
  }
}

// y_i = q_i^T S_i / n_i
template <class Phi>
void forward_chunk(Workspace& ws, const State& state, Rows<float> y, const Inputs<Phi>& in, int64_t first,
                   int64_t count) {
  load(ws.q, in.q, first, count, in.phi);
  load_keys(ws, in, first, count);
  transpose(ws.qt, ws.q);
  multiply(ws.p, ws.k, ws.qt, Result::set);
  mask(ws.p);
  multiply(ws.y, ws.q, state.s, Result::set);
  multiply_transposed(ws.y, ws.p, ws.v, Result::add, Terms::to_row);
  ws.n.clear();
  add_rows(ws.n, state.z.row(0), ws.qt);
  add_rows(ws.n, ws.p);
  store_quotient(y, ws, first, count);
  multiply_transposed(state.s, ws.k, ws.v, Result::add);
  add_rows(state.z, ws.k);
}

// to_i = x_i phi'(f_i)
template <class Phi>
void store_gradient(Phi, Rows<float> to, const Matrix& x, const Matrix& f, int64_t first, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const float *dx = x.row(i), *feature = f.row(i);
    float* row = to(first + i);
    for (int64_t j = 0; j < to.width; j += lanes) __builtin_prefetch(row + to.next + j, 1);
#pragma omp simd
    for (int64_t j = 0; j < to.width; ++j) row[j] = dx[j] * Phi::slope(feature[j]);
  }
}

// dq_i = S_i g_i + d_i Z_i; leaves 1/n_i in dk_i[0] and d_i in dv_i[0].
template <class Phi>
void backward_chunk_left(Workspace& ws, const State& state, Rows<float> dq, Rows<float> dk, Rows<float> dv,
                         const Inputs<Phi>& in, Rows<const float> dy, Rows<const float> y, int64_t first,
                         int64_t count) {
  load(ws.q, in.q, first, count, in.phi);
  load_keys(ws, in, first, count);
  load(ws.g, dy, first, count);
  load(ws.y, y, first, count);
  for (int64_t i = 0; i < chunk; ++i)
    for (int64_t c = 0; c < ws.e / lanes; ++c) ws.z.lanes_of(i)[c] = state.z.data[c] += ws.k.lanes_of(i)[c];
  dot_rows(ws.n.row(0), ws.q, ws.z);
  dot_rows(ws.d.row(0), ws.g, ws.y);
  for (int64_t i = 0; i < count; ++i) {
    const float inverse = 1 / (ws.n.row(0)[i] + eps);
    const float d = -ws.d.row(0)[i] * inverse;
    for (int64_t c = 0; c < ws.m / lanes; ++c) ws.g.lanes_of(i)[c] *= inverse;
    for (int64_t c = 0; c < ws.e / lanes; ++c) ws.dx.lanes_of(i)[c] = d * ws.z.lanes_of(i)[c];
    dk(first + i)[0] = inverse;
    dv(first + i)[0] = d;
  }
  transpose(ws.gt, ws.g);
  multiply(ws.w, ws.v, ws.gt, Result::set);
  mask(ws.w);
  multiply_transposed(ws.dx, ws.w, ws.k, Result::add, Terms::to_row);
  multiply(ws.dx, ws.g, state.s, Result::add);
  store_gradient(in.phi, dq, ws.dx, ws.q, first, count);
  multiply_transposed(state.s, ws.v, ws.k, Result::add);
}

// g_i and d_i of a chunk, from what backward_chunk_left left.
void load_output_gradient(Workspace& ws, Rows<float> dk, Rows<float> dv, Rows<const float> dy, int64_t first,
                          int64_t count) {
  load(ws.g, dy, first, count);
  ws.d.clear();
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t c = 0; c < ws.m / lanes; ++c) ws.g.lanes_of(i)[c] *= dk(first + i)[0];
    ws.d.row(0)[i] = dv(first + i)[0];
  }
}

// dk_i = R_i v_i + T_i,  dv_i = R_i^T k_i
template <class Phi>
void backward_chunk_right(Workspace& ws, const State& state, Rows<float> dk, Rows<float> dv, const Inputs<Phi>& in,
                          Rows<const float> dy, int64_t first, int64_t count) {
  load(ws.q, in.q, first, count, in.phi);
  load_keys(ws, in, first, count);
  load_output_gradient(ws, dk, dv, dy, first, count);
  transpose(ws.qt, ws.q);
  transpose(ws.gt, ws.g);
  transpose(ws.rt, state.s);

  multiply(ws.p, ws.k, ws.qt, Result::set);
  mask(ws.p);
  multiply(ws.y, ws.p, ws.g, Result::set, Terms::from_row);
  multiply(ws.y, ws.k, state.s, Result::add);
  for (int64_t i = 0; i < count; ++i) std::copy_n(ws.y.row(i), dv.width, dv(first + i));

  multiply(ws.w, ws.v, ws.gt, Result::set);
  for (int64_t j = 0; j < chunk; ++j)
    for (int64_t c = 0; c < chunk / lanes; ++c) ws.w.lanes_of(j)[c] += ws.d.data[c];
  mask(ws.w);
  multiply(ws.dx, ws.w, ws.q, Result::set, Terms::from_row);
  multiply(ws.dx, ws.v, ws.rt, Result::add);
  for (int64_t i = 0; i < count; ++i)
    for (int64_t c = 0; c < ws.e / lanes; ++c) ws.dx.lanes_of(i)[c] += state.z.data[c];
  store_gradient(in.phi, dk, ws.dx, ws.k, first, count);

  multiply_transposed(state.s, ws.q, ws.g, Result::add);
  add_rows(state.z, ws.d.row(0), ws.q);
}

// --- and where all queries see all keys ------------------------------------------------------------------------------

// n_i = q_i^T Z; leaves q^T.
void dot_with_keys(Workspace& ws, const Matrix& z) {
  transpose(ws.qt, ws.q);
  ws.n.clear();
  add_rows(ws.n, z.row(0), ws.qt);
}

// y_i = q_i^T S / n_i
template <class Phi>
void full_forward_chunk(Workspace& ws, const State& keys, Rows<float> y, const Inputs<Phi>& in, int64_t first,
                        int64_t count) {
  load(ws.q, in.q, first, count, in.phi);
  dot_with_keys(ws, keys.z);
  multiply(ws.y, ws.q, keys.s, Result::set);
  store_quotient(y, ws, first, count);
}

// dq_i = S g_i + d_i Z,  R += q g^T,  T += d q
template <class Phi>
void full_backward_queries(Workspace& ws, const State& keys, const State& queries, Rows<float> dq,
                           const Inputs<Phi>& in, Rows<const float> dy, Rows<const float> y, int64_t first,
                           int64_t count) {
  load(ws.q, in.q, first, count, in.phi);
  load(ws.g, dy, first, count);
  load(ws.y, y, first, count);
  dot_with_keys(ws, keys.z);
  dot_rows(ws.d.row(0), ws.g, ws.y);
  for (int64_t i = 0; i < count; ++i) {
    const float inverse = 1 / (ws.n.row(0)[i] + eps);
    const float d = ws.d.row(0)[i] *= -inverse;
    for (int64_t c = 0; c < ws.m / lanes; ++c) ws.g.lanes_of(i)[c] *= inverse;
    for (int64_t c = 0; c < ws.e / lanes; ++c) ws.dx.lanes_of(i)[c] = d * keys.z.data[c];
  }
  multiply(ws.dx, ws.g, keys.s, Result::add);
  store_gradient(in.phi, dq, ws.dx, ws.q, first, count);
  multiply_transposed(queries.s, ws.q, ws.g, Result::add);
  add_rows(queries.z, ws.d.row(0), ws.q);
}

// dk_i = R v_i + T,  dv_i = R^T k_i
template <class Phi>
void full_backward_keys(Workspace& ws, const State& queries, Rows<float> dk, Rows<float> dv, const Inputs<Phi>& in,
                        int64_t first, int64_t count) {
  load_keys(ws, in, first, count);
  multiply(ws.y, ws.k, queries.s, Result::set);
  for (int64_t i = 0; i < count; ++i) std::copy_n(ws.y.row(i), dv.width, dv(first + i));
  for (int64_t i = 0; i < chunk; ++i) std::copy_n(queries.z.data, ws.e / lanes, ws.dx.lanes_of(i));
  transpose(ws.rt, queries.s);
  multiply(ws.dx, ws.v, ws.rt, Result::add);
  store_gradient(in.phi, dk, ws.dx, ws.k, first, count);
}

// --- threads ---------------------------------------------------------------------------------------------------------

// Who walks what. A thread takes a group of heads of one batch entry and goes through all of them chunk by chunk, since
// their numbers lie side by side in memory. If there are too few sequences to occupy the threads evenly, each is cut
// into one segment per thread. Every segment has a state of its own, [rows,columns] and [E].
class Walk {
 public:
  enum class From { left, right };

  Walk(const Sizes& sizes, From from, int64_t rows, int64_t columns)
      : sizes_(sizes), from_(from), rows_(padded(rows)), columns_(padded(columns)), e_(padded(sizes.e)) {
    const int64_t threads = omp_get_max_threads(), n = sizes.sequences();
    if (sizes.batch % threads != 0) groups_ = std::min(sizes.heads, threads);
    if (n % threads != 0 && n < 8 * threads)
      segments_ = std::clamp<int64_t>((sizes.length + chunk - 1) / chunk, 1, threads);
    states_ = Tensor::full(Shape{n * segments_ * vectors(), lanes}, 0);
  }

  State state(int64_t n, int64_t segment) {
    Lanes* at = reinterpret_cast<Lanes*>(states_.data()) + (n * segments_ + segment) * vectors();
    return {{at, rows_, columns_}, {at + rows_ * columns_ / lanes, 1, e_}};
  }
  State last_state(int64_t n) { return state(n, segments_ - 1); }

  // Gives every segment the sum of what the segments walked before it add to the state. add(workspace, state, n, first,
  // count) adds one chunk.
  template <class Add>
  void sum_up(Add add) {
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

  // Sums up too, but into total(n), of all that there is.
  template <class Add>
  void add_up(Add add) {
    each_chunk(add);
    for (int64_t n = 0; n < sizes_.sequences(); ++n)
      for (int64_t segment = 1; segment < segments_; ++segment)
        for (int64_t i = 0; i < vectors(); ++i) total(n).s.data[i] += state(n, segment).s.data[i];
  }
  State total(int64_t n) { return state(n, 0); }

  // Adds s0 [E,M] (or its transpose) and z0 [E] of every sequence to the states of all its segments.
  void add_initial(const float* s0, const float* z0, bool transposed) {
    if (!s0) return;
    for (int64_t n = 0; n < sizes_.sequences(); ++n)
      for (int64_t segment = 0; segment < segments_; ++segment) {
        const State to = state(n, segment);
        for (int64_t i = 0; i < sizes_.e; ++i) {
          to.z.row(0)[i] += z0[n * sizes_.e + i];
          for (int64_t j = 0; j < sizes_.m; ++j)
            (transposed ? to.s.row(j)[i] : to.s.row(i)[j]) += s0[(n * sizes_.e + i) * sizes_.m + j];
        }
      }
  }

  // visit(workspace, state, n, first, count) for all chunks, those of a segment in order.
  template <class Visit>
  void each_chunk(Visit visit) {
    const int64_t length = (sizes_.length + segments_ - 1) / segments_;
    const int64_t group = (sizes_.heads + groups_ - 1) / groups_;
#pragma omp parallel
    {
      Workspace ws(sizes_);
#pragma omp for collapse(3) schedule(static)
      for (int64_t b = 0; b < sizes_.batch; ++b)
        for (int64_t head = 0; head < sizes_.heads; head += group)
          for (int64_t segment = 0; segment < segments_; ++segment) {
            const int64_t begin = std::min(segment * length, sizes_.length);
            const int64_t end = std::min(begin + length, sizes_.length);
            const int64_t chunks = (end - begin + chunk - 1) / chunk;
            for (int64_t c = 0; c < chunks; ++c) {
              const int64_t first = begin + chunk * (from_ == From::right ? chunks - 1 - c : c);
              for (int64_t h = head; h < std::min(head + group, sizes_.heads); ++h) {
                const int64_t n = b * sizes_.heads + h;
                visit(ws, state(n, segment), n, first, std::min(chunk, end - first));
              }
            }
          }
    }
  }

 private:
  int64_t vectors() const { return (rows_ * columns_ + e_) / lanes; }

  Sizes sizes_;
  From from_;
  int64_t rows_, columns_, e_, groups_ = 1, segments_ = 1;
  Tensor states_;
};

// Columns of s1 = s0 + k v^T and of y = q^T s1 / normaliser, for `width` vectors of columns, whose sums stay in
// registers. Rows of the states are m apart.
template <int width>
void advance_columns(float* y, float* s1, const float* s0, const float* q, const float* k, const float* v, int64_t e,
                     int64_t m, float inverse) {
  const auto load_lanes = [](const float* from) {
    Lanes x;
    std::memcpy(&x, from, sizeof x);
    return x;
  };
  Lanes sums[width] = {}, values[width];
  for (int w = 0; w < width; ++w) values[w] = load_lanes(v + w * lanes);
  for (int64_t i = 0; i < e; ++i)
    for (int w = 0; w < width; ++w) {
      const Lanes s = load_lanes(s0 + i * m + w * lanes) + k[i] * values[w];
      sums[w] += q[i] * s;
      std::memcpy(s1 + i * m + w * lanes, &s, sizeof s);
    }
  for (int w = 0; w < width; ++w) {
    sums[w] *= inverse;
    std::memcpy(y + w * lanes, &sums[w], sizeof sums[w]);
  }
}

// One position (eq. 18-20): the recurrent form that sampling runs on. Reading and writing the state is all the work.
template <class Phi>
void one_position(Phi phi, float* y, float* s1, float* z1, const float* q, const float* k, const float* v,
                  const float* s0, const float* z0, const Sizes& sizes) {
  const int64_t e = sizes.e, m = sizes.m;
#pragma omp parallel if (sizes.sequences() * e * m >= 1 << 16)
  {
    std::vector<float> features(static_cast<size_t>(2 * e));
    float *const qs = features.data(), *const ks = qs + e;
#pragma omp for schedule(static)
    for (int64_t n = 0; n < sizes.sequences(); ++n) {
      float normaliser = eps;
#pragma omp simd reduction(+ : normaliser)
      for (int64_t i = 0; i < e; ++i) {
        qs[i] = phi(q[n * e + i]);
        ks[i] = phi(k[n * e + i]);
        z1[n * e + i] = z0[n * e + i] + ks[i];
        normaliser += qs[i] * z1[n * e + i];
      }
      const float inverse = 1 / normaliser;
      const float *from = s0 + n * e * m, *values = v + n * m;
      float *to = s1 + n * e * m, *out = y + n * m;
      int64_t j = 0;
      for (; j + 2 * lanes <= m; j += 2 * lanes)
        advance_columns<2>(out + j, to + j, from + j, qs, ks, values + j, e, m, inverse);
      for (; j + lanes <= m; j += lanes)
        advance_columns<1>(out + j, to + j, from + j, qs, ks, values + j, e, m, inverse);
      for (; j < m; ++j) {
        float sum = 0;
        for (int64_t i = 0; i < e; ++i) sum += qs[i] * (to[i * m + j] = from[i * m + j] + ks[i] * values[j]);
        out[j] = sum * inverse;
      }
    }
  }
}

}  // namespace

void cpu::linear_attention_forward(float* y, float* s1, float* z1, const float* q, const float* k, const float* v,
                                   const float* s0, const float* z0, int64_t batch, int64_t length, int64_t heads,
                                   int64_t e, int64_t m, FeatureMap map, const int32_t* lengths) {
  const Sizes sizes{batch, length, heads, e, m};
  with(map, [&](auto phi) {
    if (length == 1 && s0 && s1) return one_position(phi, y, s1, z1, q, k, v, s0, z0, sizes);
    const auto inputs = [&](int64_t n) {
      return Inputs<decltype(phi)>{phi, sizes.sequence(q, n, e), sizes.sequence(k, n, e), sizes.sequence(v, n, m),
                                   sizes.keys(lengths, n)};
    };
    Walk walk(sizes, Walk::From::left, e, m);
    walk.sum_up([&](Workspace& ws, const State& state, int64_t n, int64_t first, int64_t count) {
      add_keys(ws, state, inputs(n), first, count, false);
    });
    walk.add_initial(s0, z0, false);
    walk.each_chunk([&](Workspace& ws, const State& state, int64_t n, int64_t first, int64_t count) {
      forward_chunk(ws, state, sizes.sequence(y, n, m), inputs(n), first, count);
    });
    if (!s1) return;
    for (int64_t n = 0; n < sizes.sequences(); ++n) {
      const State state = walk.last_state(n);
      std::copy_n(state.z.row(0), e, z1 + n * e);
      for (int64_t i = 0; i < e; ++i) std::copy_n(state.s.row(i), m, s1 + (n * e + i) * m);
    }
  });
}

void cpu::linear_attention_backward(float* dq, float* dk, float* dv, const float* dy, const float* y, const float* q,
                                    const float* k, const float* v, const float* s0, const float* z0, int64_t batch,
                                    int64_t length, int64_t heads, int64_t e, int64_t m, FeatureMap map,
                                    const int32_t* lengths) {
  const Sizes sizes{batch, length, heads, e, m};
  with(map, [&](auto phi) {
    const auto inputs = [&](int64_t n, int64_t next = chunk) {
      return Inputs<decltype(phi)>{phi, sizes.sequence(q, n, e, next), sizes.sequence(k, n, e, next),
                                   sizes.sequence(v, n, m, next), sizes.keys(lengths, n)};
    };
    Walk left(sizes, Walk::From::left, m, e);
    left.sum_up([&](Workspace& ws, const State& state, int64_t n, int64_t first, int64_t count) {
      add_keys(ws, state, inputs(n), first, count, true);
    });
    left.add_initial(s0, z0, true);
    left.each_chunk([&](Workspace& ws, const State& state, int64_t n, int64_t first, int64_t count) {
      backward_chunk_left(ws, state, sizes.sequence(dq, n, e), sizes.sequence(dk, n, e), sizes.sequence(dv, n, m),
                          inputs(n), sizes.sequence(dy, n, m), sizes.sequence(y, n, m), first, count);
    });

    Walk right(sizes, Walk::From::right, e, m);
    right.sum_up([&](Workspace& ws, const State& state, int64_t n, int64_t first, int64_t count) {
      load(ws.q, inputs(n, -chunk).q, first, count, phi);
      load_output_gradient(ws, sizes.sequence(dk, n, e), sizes.sequence(dv, n, m), sizes.sequence(dy, n, m, -chunk),
                           first, count);
      multiply_transposed(state.s, ws.q, ws.g, Result::add);
      add_rows(state.z, ws.d.row(0), ws.q);
    });
    right.each_chunk([&](Workspace& ws, const State& state, int64_t n, int64_t first, int64_t count) {
      backward_chunk_right(ws, state, sizes.sequence(dk, n, e), sizes.sequence(dv, n, m), inputs(n, -chunk),
                           sizes.sequence(dy, n, m, -chunk), first, count);
    });
  });
}

void cpu::full_linear_attention_forward(float* y, const float* q, const float* k, const float* v,
                                        const int32_t* lengths, FeatureMap map, AttentionSizes s) {
  const Sizes queries{s.batch, s.length, s.heads, s.e, s.m}, keys{s.batch, s.key_length, s.heads, s.e, s.m};
  with(map, [&](auto phi) {
    const auto inputs = [&](int64_t n) {
      return Inputs<decltype(phi)>{phi, queries.sequence(q, n, s.e), keys.sequence(k, n, s.e), keys.sequence(v, n, s.m),
                                   keys.keys(lengths, n)};
    };
    Walk over_keys(keys, Walk::From::left, s.e, s.m);
    over_keys.add_up([&](Workspace& ws, const State& state, int64_t n, int64_t first, int64_t count) {
      add_keys(ws, state, inputs(n), first, count, false);
    });
    Walk over_queries(queries, Walk::From::left, 0, 0);
    over_queries.each_chunk([&](Workspace& ws, const State&, int64_t n, int64_t first, int64_t count) {
      full_forward_chunk(ws, over_keys.total(n), queries.sequence(y, n, s.m), inputs(n), first, count);
    });
  });
}

void cpu::full_linear_attention_backward(float* dq, float* dk, float* dv, const float* dy, const float* y,
                                         const float* q, const float* k, const float* v, const int32_t* lengths,
                                         FeatureMap map, AttentionSizes s) {
  const Sizes queries{s.batch, s.length, s.heads, s.e, s.m}, keys{s.batch, s.key_length, s.heads, s.e, s.m};
  with(map, [&](auto phi) {
    const auto inputs = [&](int64_t n) {
      return Inputs<decltype(phi)>{phi, queries.sequence(q, n, s.e), keys.sequence(k, n, s.e), keys.sequence(v, n, s.m),
                                   keys.keys(lengths, n)};
    };
    Walk over_keys(keys, Walk::From::left, s.m, s.e);
    over_keys.add_up([&](Workspace& ws, const State& state, int64_t n, int64_t first, int64_t count) {
      add_keys(ws, state, inputs(n), first, count, true);
    });
    Walk over_queries(queries, Walk::From::left, s.e, s.m);
    over_queries.add_up([&](Workspace& ws, const State& state, int64_t n, int64_t first, int64_t count) {
      full_backward_queries(ws, over_keys.total(n), state, queries.sequence(dq, n, s.e), inputs(n),
                            queries.sequence(dy, n, s.m), queries.sequence(y, n, s.m), first, count);
    });
    Walk over_keys_again(keys, Walk::From::left, 0, 0);
    over_keys_again.each_chunk([&](Workspace& ws, const State&, int64_t n, int64_t first, int64_t count) {
      full_backward_keys(ws, over_queries.total(n), keys.sequence(dk, n, s.e), keys.sequence(dv, n, s.m), inputs(n),
                         first, count);
    });
  });
}

namespace {

// The checks that the two forms share.
void check_lengths(const char* op, const Indices& lengths, int64_t batch, int64_t most) {
  if (!lengths) return;
  check(lengths.shape() == Shape{batch}, op, ": lengths ", lengths.shape(), " are not one number for each of ", batch,
        " sequences");
  if (lengths.device() != Device::cpu) return;
  for (int64_t n = 0; n < batch; ++n)
    check(lengths.data()[n] >= 0 && lengths.data()[n] <= most, op, ": length ", lengths.data()[n], " of sequence ", n,
          " is not in [0, ", most, "]");
}

}  // namespace

Tensor linear_attention(const Tensor& q, const Tensor& k, const Tensor& v, AttentionState* state, FeatureMap map,
                        const Indices& lengths) {
  const Shape shape = q.shape();
  check(shape.rank() == 4, "linear_attention: q ", shape, " is not [B,L,H,E]");
  check(k.shape() == shape, "linear_attention: k ", k.shape(), " does not match q ", shape);
  check(v.shape().rank() == 4 && v.shape() == shape.with_last(v.shape()[-1]), "linear_attention: v ", v.shape(),
        " does not match q ", shape);
  const int64_t batch = shape[0], length = shape[1], heads = shape[2], e = shape[3], m = v.shape()[3];
  check(e > 0 && m > 0, "linear_attention: q ", shape, " or v ", v.shape(), " has no columns");
  check(!state || (state->s.shape() == Shape{batch, heads, e, m} && state->z.shape() == Shape{batch, heads, e}),
        "linear_attention: the state does not match q ", shape, " and v ", v.shape());
  check(!state || !lengths, "linear_attention: lengths do not go with a state, which all keys go into");
  check_lengths("linear_attention", lengths, batch, length);

  state ? device_of("linear_attention", q, k, v, state->s, state->z) : device_of("linear_attention", q, k, v, lengths);
  AttentionState before;  // a constant to the gradient rule; nobody else needs the old state
  if (state && (q.wants_grad() || k.wants_grad() || v.wants_grad())) before = {clone(state->s), clone(state->z)};
  Tensor y(v.shape(), v.device());
  Tensor s = state ? state->s : Tensor(), z = state ? state->z : Tensor();
  DISPATCH(q.device(), linear_attention_forward(y.data(), s.data(), z.data(), q.data(), k.data(), v.data(), s.data(),
                                                z.data(), batch, length, heads, e, m, map, lengths.data()));
  return record("linear_attention", {q, k, v}, y, [=](const Tensor& dy) -> std::vector<Tensor> {
    Tensor dq(q.shape(), q.device()), dk(k.shape(), k.device()), dv(v.shape(), v.device());
    DISPATCH(q.device(), linear_attention_backward(dq.data(), dk.data(), dv.data(), dy.data(), y.data(), q.data(),
                                                   k.data(), v.data(), before.s.data(), before.z.data(), batch, length,
                                                   heads, e, m, map, lengths.data()));
    return {dq, dk, dv};
  });
}

Tensor full_linear_attention(const Tensor& q, const Tensor& k, const Tensor& v, FeatureMap map,
                             const Indices& lengths) {
  const Shape shape = q.shape();
  check(shape.rank() == 4, "full_linear_attention: q ", shape, " is not [B,L,H,E]");
  check(k.shape().rank() == 4 && k.shape() == Shape{shape[0], k.shape()[1], shape[2], shape[3]},
        "full_linear_attention: k ", k.shape(), " does not match q ", shape);
  check(v.shape().rank() == 4 && v.shape() == k.shape().with_last(v.shape()[-1]), "full_linear_attention: v ",
        v.shape(), " does not match k ", k.shape());
  const AttentionSizes s{shape[0], shape[1], k.shape()[1], shape[2], shape[3], v.shape()[3], false};
  check(s.e > 0 && s.m > 0, "full_linear_attention: q ", shape, " or v ", v.shape(), " has no columns");
  check_lengths("full_linear_attention", lengths, s.batch, s.key_length);
  device_of("full_linear_attention", q, k, v, lengths);

  Tensor y(shape.with_last(s.m), q.device());
  DISPATCH(q.device(), full_linear_attention_forward(y.data(), q.data(), k.data(), v.data(), lengths.data(), map, s));
  return record("full_linear_attention", {q, k, v}, y, [=](const Tensor& dy) -> std::vector<Tensor> {
    Tensor dq(q.shape(), q.device()), dk(k.shape(), k.device()), dv(v.shape(), v.device());
    DISPATCH(q.device(), full_linear_attention_backward(dq.data(), dk.data(), dv.data(), dy.data(), y.data(), q.data(),
                                                        k.data(), v.data(), lengths.data(), map, s));
    return {dq, dk, dv};
  });
}

}  // namespace runnel
