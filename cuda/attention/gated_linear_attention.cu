// Gated linear attention: ops/cpu/attention/gated_linear_attention.cpp has the derivation, whose walks these are.
//
// A warp walks along a sequence with 32 columns of S or D, or 32 rows. A thread has one of them in shared memory, so
// that every sum is its own: over a column those that end in M (w, y, du), over a row those that end in E (dq, D u,
// erase). All lanes read the same numbers of a position, or neighbouring ones.
#include "cuda/launch.h"
#include "cuda/temporary.h"
#include "ops/kernels/gated_linear_attention.h"

namespace runnel::cuda {
namespace {

// One position of one sequence, in [B,L,H]. Padding neither writes nor decays.
struct Place {
  int64_t at;
  bool is_padding;
  float beta, kept_of_all;

  __device__ Place(const GatedInputs& in, int64_t sequence, int64_t t)
      : at((sequence / in.sizes.heads * in.sizes.length + t) * in.sizes.heads + sequence % in.sizes.heads),
        is_padding(in.lengths && t >= in.lengths[sequence / in.sizes.heads]),
        beta(is_padding ? 0
             : in.beta  ? in.beta[at]
                        : 1),
        kept_of_all(!in.g || in.per_channel || is_padding ? 1 : expf(in.g[at])) {}
  __device__ float kept(const GatedInputs& in, int64_t e) const {  // a of channel e
    return in.per_channel && !is_padding ? expf(in.g[at * in.sizes.e + e]) : kept_of_all;
  }
  __device__ float key(const GatedInputs& in, int64_t e) const { return is_padding ? 0 : in.k[at * in.sizes.e + e]; }
};

// A thread's column, or row, of a state [E,M]: number i at mine[32 i]. It is in the sequence's state from `begin` on,
// in steps of `step`.
struct Line {
  float* mine;
  int64_t count, begin, step;
  bool is_there;

  __device__ static Line column(const AttentionSizes& s, float* shared, int64_t sequence, int64_t m) {
    return {shared + threadIdx.x, s.e, sequence * s.e * s.m + m, s.m, m < s.m};
  }
  __device__ static Line row(const AttentionSizes& s, float* shared, int64_t sequence, int64_t e) {
    return {shared + threadIdx.x, s.m, (sequence * s.e + e) * s.m, 1, e < s.e};
  }
  __device__ float& operator[](int64_t i) const { return mine[32 * i]; }
  __device__ void set(const float* state) const {  // null: zero
    for (int64_t i = 0; i < count; ++i) (*this)[i] = state && is_there ? state[begin + i * step] : 0;
  }
  __device__ void copy_to(float* state) const {
    for (int64_t i = 0; state && is_there && i < count; ++i) state[begin + i * step] = (*this)[i];
  }
};

// Launch: x: sequences, y: 32 columns each; a warp.
// Owns:   a thread a column of S, and column m of w and y, of which either may be null.
// Shared: the columns [E,32].
__global__ void __launch_bounds__(32)
    gated_linear_attention_left_kernel(float* y, float* w, float* s1, GatedInputs in) {
  const AttentionSizes& s = in.sizes;
  Shared shared;
  const int64_t sequence = blockIdx.x, m = static_cast<int64_t>(blockIdx.y) * 32 + threadIdx.x;
  const Line state = Line::column(s, shared.take<float>(static_cast<unsigned>(32 * s.e)), sequence, m);
  state.set(in.s0);
  if (!state.is_there) return;
  for (int64_t t = 0; t < s.length; ++t) {
    const Place p(in, sequence, t);
    float found = 0;
    for (int64_t e = 0; e < s.e; ++e) found += (state[e] *= p.kept(in, e)) * p.key(in, e);
    const float missing = p.is_padding ? 0 : in.v[p.at * s.m + m] - (in.rule == UpdateRule::delta ? found : 0);
    const float written = p.beta * missing;
    float read = 0;
    for (int64_t e = 0; e < s.e; ++e) read += (state[e] += p.key(in, e) * written) * in.q[p.at * s.e + e];
    if (y) y[p.at * s.m + m] = read;
    if (w) w[p.at * s.m + m] = missing;
  }
  state.copy_to(s1);
}

// From w and, for erase, du. Launch: x: sequences, y: 32 rows each; a warp.
// Owns:   a thread a row of S, and column e of dq and erased, which may be null; of carry [N,E] <dS_L[e], S_L[e]>.
// Shared: the rows [M,32].
__global__ void __launch_bounds__(32)
    gated_linear_attention_left_rows_kernel(float* dq, float* erased, float* carry, const float* dy, const float* du,
                                            const float* w, const float* ds1, GatedInputs in) {
  const AttentionSizes& s = in.sizes;
  Shared shared;
  const int64_t sequence = blockIdx.x, e = static_cast<int64_t>(blockIdx.y) * 32 + threadIdx.x;
  const Line state = Line::row(s, shared.take<float>(static_cast<unsigned>(32 * s.m)), sequence, e);
  state.set(in.s0);
  if (!state.is_there) return;
  for (int64_t t = 0; t < s.length; ++t) {
    const Place p(in, sequence, t);
    const float kept = p.kept(in, e), key = p.key(in, e);
    float before = 0, after = 0;
    for (int64_t m = 0; m < s.m; ++m) {
      const float there = kept * state[m];
      if (erased) before += p.beta * du[p.at * s.m + m] * there;
      state[m] = there + key * (p.beta * w[p.at * s.m + m]);
      after += dy[p.at * s.m + m] * state[m];
    }
    if (erased) erased[p.at * s.e + e] = before;
    dq[p.at * s.e + e] = after;
  }
  float sum = 0;
  for (int64_t m = 0; ds1 && m < s.m; ++m) sum += ds1[state.begin + m] * state[m];
  carry[sequence * s.e + e] = sum;
}

// Launch: x: sequences, y: 32 columns each; a warp.
// Owns:   a thread a column of D, and column m of du.
// Shared: the columns [E,32].
__global__ void __launch_bounds__(32)
    gated_linear_attention_right_kernel(float* du, float* ds0, const float* dy, const float* ds1, GatedInputs in) {
  const AttentionSizes& s = in.sizes;
  Shared shared;
  const int64_t sequence = blockIdx.x, m = static_cast<int64_t>(blockIdx.y) * 32 + threadIdx.x;
  const Line d = Line::column(s, shared.take<float>(static_cast<unsigned>(32 * s.e)), sequence, m);
  d.set(ds1);
  if (!d.is_there) return;
  for (int64_t t = s.length - 1; t >= 0; --t) {
    const Place p(in, sequence, t);
    const float output = dy[p.at * s.m + m];
    float sum = 0;
    for (int64_t e = 0; e < s.e; ++e) sum += (d[e] += in.q[p.at * s.e + e] * output) * p.key(in, e);
    const float erased = in.rule == UpdateRule::delta ? p.beta * sum : 0;
    for (int64_t e = 0; e < s.e; ++e) d[e] = p.kept(in, e) * (d[e] - p.key(in, e) * erased);
    du[p.at * s.m + m] = sum;
  }
  d.copy_to(ds0);
}

// Launch: x: sequences, y: 32 rows each; a warp.
// Owns:   a thread a row of D, and column e of D u -> dk.
// Shared: the rows [M,32].
__global__ void __launch_bounds__(32)
    gated_linear_attention_right_rows_kernel(float* dk, const float* dy, const float* du, const float* w,
                                             const float* ds1, GatedInputs in) {
  const AttentionSizes& s = in.sizes;
  Shared shared;
  const int64_t sequence = blockIdx.x, e = static_cast<int64_t>(blockIdx.y) * 32 + threadIdx.x;
  const Line d = Line::row(s, shared.take<float>(static_cast<unsigned>(32 * s.m)), sequence, e);
  d.set(ds1);
  if (!d.is_there) return;
  for (int64_t t = s.length - 1; t >= 0; --t) {
    const Place p(in, sequence, t);
    const float kept = p.kept(in, e), key = p.key(in, e), query = in.q[p.at * s.e + e];
    float sum = 0;
    for (int64_t m = 0; m < s.m; ++m) {
      const float now = d[m] + query * dy[p.at * s.m + m];
      sum += now * w[p.at * s.m + m];
      d[m] = kept * (now - (in.rule == UpdateRule::delta ? key * p.beta * du[p.at * s.m + m] : 0));
    }
    dk[p.at * s.e + e] = p.beta * sum;
  }
}

// Launch: a warp per position and head, B L H, in x.
// Owns:   the position's dbeta, its dv, which is du before, its dk, to which erase is added, and its own term of dg.
// Shared: none.
__global__ void __launch_bounds__(32)
    gated_linear_attention_finish_kernel(GatedGradients to, const float* w, const float* erased, GatedInputs in) {
  const AttentionSizes& s = in.sizes;
  const int64_t at = blockIdx.x, b = at / s.heads / s.length, t = at / s.heads % s.length;
  const Place p(in, b * s.heads + at % s.heads, t);
  const int lane = static_cast<int>(threadIdx.x);
  float dbeta = 0, term = 0;
  for (int64_t m = lane; m < s.m; m += 32) {
    float& dv = to.dv[at * s.m + m];
    dbeta += dv * w[at * s.m + m];
    dv *= p.beta;
    term -= dv * (p.is_padding ? 0 : in.v[at * s.m + m]);
  }
  for (int64_t e = lane; e < s.e; e += 32) {
    const float erase = erased ? erased[at * s.e + e] : 0, write = to.dk[at * s.e + e];
    const float reads = in.q[at * s.e + e] * to.dq[at * s.e + e];
    if (to.dg && in.per_channel) to.dg[at * s.e + e] = reads - p.key(in, e) * (write + erase);
    term += reads;
    to.dk[at * s.e + e] = write - erase;
  }
  dbeta = warp_sum(dbeta);
  term = warp_sum(term);
  if (lane != 0) return;
  if (to.dbeta) to.dbeta[at] = dbeta;
  if (to.dg && !in.per_channel) to.dg[at] = term;
}

// Launch: a thread per sequence and channel, or per sequence.
// Owns:   its dg of all positions: own terms before, their sums over all later positions after. Shared: none.
__global__ void gated_linear_attention_decays_kernel(float* dg, const float* carry, GatedInputs in) {
  const AttentionSizes& s = in.sizes;
  const int64_t width = in.per_channel ? s.e : 1;
  for (int64_t i = first_element(); i < s.sequences() * width; i += element_step()) {
    const int64_t sequence = i / width, c = i % width;
    float sum = 0;
    for (int64_t e = 0; e < s.e; ++e)
      if (!in.per_channel || e == c) sum += carry[sequence * s.e + e];
    for (int64_t t = s.length - 1; t >= 0; --t) {
      const Place p(in, sequence, t);
      float& x = dg[p.at * width + c];
      sum += x;
      x = p.is_padding ? 0 : sum;
    }
  }
}

Grid walks(const AttentionSizes& s, int64_t lines, int64_t numbers) {
  return {dim3(static_cast<unsigned>(s.sequences()), static_cast<unsigned>((lines + 31) / 32)), dim3(32),
          SharedBytes().add<float>(32 * numbers).bytes()};
}

}  // namespace

void gated_linear_attention_forward(float* y, float* s1, const GatedInputs& in) {
  float* const none = nullptr;
  launch("gated_linear_attention", gated_linear_attention_left_kernel, walks(in.sizes, in.sizes.m, in.sizes.e), y, none,
         s1, in);
}

void gated_linear_attention_backward(const GatedGradients& to, const float* dy, const float* ds1,
                                     const GatedInputs& in) {
  const char* const name = "gated_linear_attention_backward";
  const AttentionSizes& s = in.sizes;
  const bool delta = in.rule == UpdateRule::delta;
  const int64_t positions = s.batch * s.length * s.heads;
  const Temporary<float> w(positions * s.m), erased(delta ? positions * s.e : 0), carry(s.sequences() * s.e);
  float* const none = nullptr;
  const Grid columns = walks(s, s.m, s.e), rows = walks(s, s.e, s.m);
  launch(name, gated_linear_attention_left_kernel, columns, none, w.data(), none, in);
  launch(name, gated_linear_attention_right_kernel, columns, to.dv, to.ds0, dy, ds1, in);
  launch(name, gated_linear_attention_left_rows_kernel, rows, to.dq, erased.data(), carry.data(), dy, to.dv, w.data(),
         ds1, in);
  launch(name, gated_linear_attention_right_rows_kernel, rows, to.dk, dy, to.dv, w.data(), ds1, in);
  launch(name, gated_linear_attention_finish_kernel, Grid{dim3(static_cast<unsigned>(positions)), dim3(32), 0}, to,
         w.data(), erased.data(), in);
  if (to.dg)
    launch(name, gated_linear_attention_decays_kernel, over(s.sequences() * (in.per_channel ? s.e : 1)), to.dg,
           carry.data(), in);
}

}  // namespace runnel::cuda
