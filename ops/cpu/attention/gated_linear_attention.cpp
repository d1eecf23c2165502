// Gated linear attention. With a_t = e^g_t, a number or a diagonal matrix, w_t = v_t for the additive rule and
// w_t = v_t - (a_t S_{t-1})^T k_t for the delta rule,
//
//   S_t = a_t S_{t-1} + k_t u_t^T,   u_t = beta_t w_t,   y_t = S_t^T q_t
//
// Let D_t = dL/dS_t with all that comes later in it. From the right,
//
//   D_t += q_t dy_t^T                    dq_t = S_t dy_t
//   du_t = D_t^T k_t                     dv_t = beta_t du_t,   dbeta_t = du_t . w_t
//   dk_t = D_t u_t + erase_t             erase_t = -(a_t S_{t-1}) dv_t         (additive: 0)
//   D_{t-1} = a_t (D_t - k_t dv_t^T)                                           (additive: a_t D_t)
//
// The gradient of the decay would be that of a_t S_{t-1}, for which all states had to be kept. But what e^G scales from
// position t on, G = g_1 + ... + g_t, reaches the loss as q e^G and as k e^-G, whose gradients are at hand:
//
//   a number:     dg_t    = <dS_L, S_L> + sum over s >= t of q_s . dq_s - v_s . dv_s
//   per channel:  dg_t[e] = <dS_L[e], S_L[e]> + sum over s >= t of (q_s dq_s - k_s (D_s u_s - erase_s))[e]
//
// Yang et al. 2024 (arXiv 2312.06635, 2412.06464). Forward is one walk over the positions, in which S [E,M] stays in
// the first-level cache: at each position a row of S is read and written once, for the position's own write and output
// and for the next one's w. It takes some 1.4 times as long as linear attention's scan, where positions do not depend
// on each other; chunks, which would make matrix products of it, take more operations than they save where S is so
// small.
//
// Backward walks from the left (w and dq), from the right (dv, D u, dbeta) and, for the delta rule, from the left again
// (erase). What one walk leaves for the next lies in the gradients: w in dv, so the extra memory is a few states for
// each thread. Sums over columns of S and D are sums over rows of their transposes, which walk beside them.
#include <array>
#include <type_traits>
#include <utility>

#include "ops/cpu/loops.h"
#include "ops/cpu/scratch.h"
#include "ops/cpu/sequences.h"
#include "ops/kernels/gated_linear_attention.h"

namespace runnel {
namespace {

// f(vectors, first) for all columns, some vectors at a time, so that the sums of a block stay in registers.
template <class F>
RUNNEL_INLINE inline void by_columns(int64_t columns, F f) {
  int64_t at = 0;
  for (; at + 4 * lanes <= columns; at += 4 * lanes) f(std::integral_constant<int, 4>(), at);
  for (; at + 2 * lanes <= columns; at += 2 * lanes) f(std::integral_constant<int, 2>(), at);
  for (; at < columns; at += lanes) f(std::integral_constant<int, 1>(), at);
}

// add(r, sums) for all rows: sums of `vectors` vectors. Few of them are kept twice, for even and for odd rows, so that
// an addition need not wait for the one before.
template <int vectors, bool twice, class Add>
RUNNEL_INLINE inline void sum_rows(Lanes (&sums)[vectors], int64_t rows, Add add) {
  int64_t r = 0;
  if constexpr (twice) {
    Lanes odd[vectors] = {};
    for (; r + 2 <= rows; r += 2) add(r, sums), add(r + 1, odd);
    if (r < rows) add(r, sums);
    for (int i = 0; i < vectors; ++i) sums[i] += odd[i];
  } else {
    for (; r < rows; ++r) add(r, sums);
  }
}

struct Write {
  const float *key, *value;
};
struct Sum {
  const float* weight;
  float* to;
};
// S or D: s[r,:] := kept[r] s[r,:] + the sum over the writes of key[r] value. Then for each of the sums, to = sum over
// r of weight[r] s[r,:].
template <int writes, int sums>
RUNNEL_NOINLINE void advance(const Matrix s, const float* kept, const std::array<Write, writes> added,
                             const std::array<Sum, sums> wanted) {
  by_columns(s.columns, [&]<int width>(std::integral_constant<int, width>, int64_t at) RUNNEL_INLINE {
    Lanes sum[sums * width] = {}, value[writes][width];
    for (int i = 0; i < writes; ++i)
      for (int w = 0; w < width; ++w) value[i][w] = load(added[i].value + at + w * lanes);
    sum_rows<sums * width, width <= 2>(sum, s.rows, [&](int64_t r, Lanes(&to)[sums * width]) RUNNEL_INLINE {
      float* const row = s.row(r) + at;
      const float kept_r = kept[r];
      float key[writes], weight[sums];
      for (int i = 0; i < writes; ++i) key[i] = added[i].key[r];
      for (int i = 0; i < sums; ++i) weight[i] = wanted[i].weight[r];
      for (int w = 0; w < width; ++w) {
        Lanes now = kept_r * load(row + w * lanes);
        for (int i = 0; i < writes; ++i) now += key[i] * value[i][w];
        store(row + w * lanes, now);
        for (int i = 0; i < sums; ++i) to[i * width + w] += weight[i] * now;
      }
    });
    for (int i = 0; i < sums; ++i)
      for (int w = 0; w < width; ++w) store(wanted[i].to + at + w * lanes, sum[i * width + w]);
  });
}

// S^T, a row for each of M: s[m,:] := a s[m,:] + u[m] k, and found = sum over m of weight[m] s[m,:], before that is
// written or after it.
enum class Found { before_write, after_write };
template <Found when>
RUNNEL_NOINLINE void advance_transposed(const Matrix s, const float* a, const float* u, const float* k,
                                        const float* weight, float* found) {
  by_columns(s.columns, [&]<int width>(std::integral_constant<int, width>, int64_t at) RUNNEL_INLINE {
    Lanes sum[width] = {}, kept[width], key[width];
    for (int w = 0; w < width; ++w) kept[w] = load(a + at + w * lanes), key[w] = load(k + at + w * lanes);
    sum_rows<width, width <= 2>(sum, s.rows, [&](int64_t m, Lanes(&to)[width]) RUNNEL_INLINE {
      float* const row = s.row(m) + at;
      const float weight_m = weight[m], u_m = u[m];
      for (int w = 0; w < width; ++w) {
        Lanes now = kept[w] * load(row + w * lanes);
        if (when == Found::before_write) to[w] += weight_m * now;
        now += u_m * key[w];
        if (when == Found::after_write) to[w] += weight_m * now;
        store(row + w * lanes, now);
      }
    });
    for (int w = 0; w < width; ++w) store(found + at + w * lanes, sum[w]);
  });
}

// D^T from the right: d[m,:] += dy[m] q;  written = sum over m of u[m] d[m,:];  d[m,:] := a (d[m,:] - dv[m] k)
RUNNEL_NOINLINE void retreat_transposed(const Matrix d, const float* dy, const float* q, const float* u, float* written,
                                        const float* a, const float* dv, const float* k) {
  by_columns(d.columns, [&]<int width>(std::integral_constant<int, width>, int64_t at) RUNNEL_INLINE {
    Lanes sum[width] = {}, query[width], key[width], kept[width];
    for (int w = 0; w < width; ++w) {
      const int64_t column = at + w * lanes;
      query[w] = load(q + column), key[w] = load(k + column), kept[w] = load(a + column);
    }
    sum_rows<width, width <= 2>(sum, d.rows, [&](int64_t m, Lanes(&to)[width]) RUNNEL_INLINE {
      float* const row = d.row(m) + at;
      const float dy_m = dy[m], u_m = u[m], dv_m = dv[m];  // read before the row is stored, which could be the same
      for (int w = 0; w < width; ++w) {
        const Lanes now = load(row + w * lanes) + dy_m * query[w];
        to[w] += u_m * now;
        store(row + w * lanes, kept[w] * (now - dv_m * key[w]));
      }
    });
    for (int w = 0; w < width; ++w) store(written + at + w * lanes, sum[w]);
  });
}

// The numbers of one position, with zeros behind them up to whole vectors. Padding, and a position outside of the
// sequence, has k = 0, beta = 0 and a = 1.
struct Position {
  float *q, *k, *v, *a, *dy;
  float beta;
};

// One sequence, n = b H + h, and the memory of the thread that walks along it.
class Walk {
 public:
  static int64_t floats(const AttentionSizes& s) {
    const int64_t e = padded(s.e), m = padded(s.m);
    return 2 * e * m + 12 * (e + m);
  }
  enum class From { left, right };
  Walk(const GatedInputs& in, int64_t sequence, From from, float* memory)
      : in_(in),
        n_(sequence),
        e_(padded(in.sizes.e)),
        m_(padded(in.sizes.m)),
        ahead_((from == From::left ? 6 : -6) * in.sizes.heads),
        arena_(memory) {}

  Matrix state() { return arena_.matrix(in_.sizes.e, m_); }       // S or D
  Matrix transposed() { return arena_.matrix(in_.sizes.m, e_); }  // S^T or D^T
  float* of_e() { return zeros(e_); }
  float* of_m() { return zeros(m_); }
  Position position() { return {of_e(), of_e(), of_m(), of_e(), of_m(), 0}; }

  int64_t at(int64_t t) const {  // of position t in [B,L,H]
    return (n_ / in_.sizes.heads * in_.sizes.length + t) * in_.sizes.heads + n_ % in_.sizes.heads;
  }
  bool is_padding(int64_t t) const { return in_.lengths && t >= in_.lengths[n_ / in_.sizes.heads]; }

  // Row t of a tensor [B,L,H,n], and back. The hardware does not foresee rows so far apart: they are prefetched.
  template <class T>
  T* row(T* tensor, int64_t t, int64_t n) const {
    T* const x = tensor + at(t) * n;
    for (int64_t i = 0; i < n; i += tile) __builtin_prefetch(x + ahead_ * n + i, !std::is_const_v<T>);
    return x;
  }
  void put(float* tensor, int64_t t, const float* from, int64_t n) const { copy_numbers(row(tensor, t, n), from, n); }

  void load_position(Position& x, int64_t t, const float* dy) const {  // dy may be null: zero
    const int64_t e = in_.sizes.e, m = in_.sizes.m;
    const bool is_there = t >= 0 && t < in_.sizes.length, writes = is_there && !is_padding(t);
    copy(x.q, is_there ? row(in_.q, t, e) : nullptr, e);
    copy(x.dy, is_there && dy ? row(dy, t, m) : nullptr, m);
    copy(x.k, writes ? row(in_.k, t, e) : nullptr, e);
    copy(x.v, writes ? row(in_.v, t, m) : nullptr, m);
    x.beta = !writes ? 0 : in_.beta ? in_.beta[at(t)] : 1;
    if (!in_.g || !writes)
      set_all(x.a, 1, e);
    else if (in_.per_channel)
      map(
          x.a, e, [](Lanes g) RUNNEL_INLINE { return exp(g); }, row(in_.g, t, e));
    else
      set_all(x.a, exp(splat(in_.g[at(t)]))[0], e);
  }

  // From the left, with S from s0 on: visit(t, position, w, u, y) for each position, where y is found `with_y` only.
  // Without need of S, which is where w is v and y is not wanted, S stays as it was.
  template <bool delta, bool with_y, class Visit>
  void from_left(const Matrix& s, const float* dy, Visit visit) {
    Position now = position(), next = position();
    float *w = of_m(), *w_next = of_m(), *u = of_m(), *found = of_m(), *y = of_m(), *reach = of_e();
    load_position(now, -1, nullptr);
    for (int64_t t = -1; t < in_.sizes.length; ++t) {
      load_position(next, t + 1, dy);
      map(
          reach, e_, [](Lanes a, Lanes k) RUNNEL_INLINE { return a * k; }, next.a, next.k);
      const std::array<Write, 1> written{{{now.k, u}}};
      if constexpr (delta && with_y)
        advance<1, 2>(s, now.a, written, {{{now.q, y}, {reach, found}}});
      else if constexpr (delta || with_y)
        advance<1, 1>(s, now.a, written, {{delta ? Sum{reach, found} : Sum{now.q, y}}});
      if (t >= 0) visit(t, now, w, u, y);
      map(
          w_next, m_, [](Lanes v, Lanes there) RUNNEL_INLINE { return delta ? v - there : v; }, next.v, found);
      std::swap(now, next);
      std::swap(w, w_next);
      map(
          u, m_, [beta = now.beta](Lanes x) RUNNEL_INLINE { return beta * x; }, w);
    }
  }

 private:
  float* zeros(int64_t n) {
    float* const x = arena_.matrix(1, n).row(0);
    clear(x, n);
    return x;
  }
  static void copy(float* to, const float* from, int64_t n) {
    if (from)
      copy_numbers(to, from, n);
    else
      clear(to, n);
  }

  const GatedInputs& in_;
  int64_t n_, e_, m_, ahead_;  // ahead_: from a row to the one to prefetch
  Arena arena_;
};

// to = from [rows,n] or, of E rows and M columns, its transpose; from may be null: zero.
void set(const Matrix& to, const float* from, int64_t n) {
  to.clear();
  for (int64_t r = 0; from && r < to.rows; ++r) copy_numbers(to.row(r), from + r * n, n);
}
void set_transposed(const Matrix& to, const float* from, int64_t e) {
  to.clear();
  for (int64_t c = 0; from && c < e; ++c)
    for (int64_t m = 0; m < to.rows; ++m) to.row(m)[c] = from[c * to.rows + m];
}

// A state and its transpose become that of sequence n of `all` [B,H,E,M]; null: zero.
void set_both(Matrix state, Matrix transposed, const float* all, const GatedInputs& in, int64_t n) {
  const float* const own = all ? all + n * in.sizes.e * in.sizes.m : nullptr;
  set(state, own, in.sizes.m);
  set_transposed(transposed, own, in.sizes.e);
}

template <bool delta>
void forward(float* y, float* s1, const GatedInputs& in, int64_t n, float* memory) {
  const AttentionSizes& s = in.sizes;
  Walk walk(in, n, Walk::From::left, memory);
  const Matrix state = walk.state();
  set(state, in.s0 ? in.s0 + n * s.e * s.m : nullptr, s.m);
  walk.from_left<delta, true>(
      state, nullptr,
      [&](int64_t t, const Position&, const float*, const float*, const float* y_t) { walk.put(y, t, y_t, s.m); });
  for (int64_t r = 0; r < s.e; ++r) copy_numbers(s1 + (n * s.e + r) * s.m, state.row(r), s.m);
}

// dq, and for the delta rule w -> dv. Returns <dS_L[e], S_L[e]> -> carry [E].
template <bool delta>
void backward_reads(const GatedGradients& to, const float* dy, const float* ds1, const GatedInputs& in, int64_t n,
                    float* memory, float* carry) {
  const AttentionSizes& s = in.sizes;
  Walk walk(in, n, Walk::From::left, memory);
  const Matrix state = walk.state(), transposed = walk.transposed();
  set_both(state, transposed, in.s0, in, n);
  float* const dq = walk.of_e();
  walk.from_left<delta, false>(state, dy,
                               [&](int64_t t, const Position& now, const float* w, const float* u, const float*) {
                                 advance_transposed<Found::after_write>(transposed, now.a, u, now.k, now.dy, dq);
                                 walk.put(to.dq, t, dq, s.e);
                                 if (delta) walk.put(to.dv, t, w, s.m);
                               });
  for (int64_t c = 0; c < s.e; ++c) {
    carry[c] = 0;
    for (int64_t m = 0; ds1 && m < s.m; ++m) carry[c] += ds1[(n * s.e + c) * s.m + m] * transposed.row(m)[c];
  }
}

// dv, dbeta, D u -> dk, the initial state's gradient, and a position's own term of the decay's gradient -> dg.
template <bool delta>
void backward_writes(const GatedGradients& to, const float* dy, const float* ds1, const GatedInputs& in, int64_t n,
                     float* memory) {
  const AttentionSizes& s = in.sizes;
  Walk walk(in, n, Walk::From::right, memory);
  const Matrix state = walk.state(), transposed = walk.transposed();
  set_both(state, transposed, ds1, in, n);
  Position now = walk.position(), later = walk.position();
  float *w = walk.of_m(), *u = walk.of_m(), *du = walk.of_m(), *dv = walk.of_m(), *erased = walk.of_m();
  float *minus = walk.of_e(), *written = walk.of_e();
  walk.load_position(later, s.length, nullptr);
  for (int64_t t = s.length - 1; t >= -1; --t) {
    walk.load_position(now, t, dy);
    map(
        minus, s.e, [](Lanes a, Lanes k) RUNNEL_INLINE { return -(a * k); }, later.a, later.k);
    advance<2, 1>(state, later.a, {{{minus, erased}, {now.q, now.dy}}}, {{{now.k, du}}});
    std::swap(now, later);
    if (t < 0) break;
    const Position& x = later;  // position t
    const int64_t i = walk.at(t);
    float* const dv_t = walk.row(to.dv, t, s.m);
    copy_numbers(w, delta ? dv_t : x.v, s.m);
    const auto times_beta = [beta = x.beta](Lanes number) RUNNEL_INLINE { return beta * number; };
    map(u, s.m, times_beta, w);
    map(dv, s.m, times_beta, du);
    if (delta) copy_numbers(erased, dv, s.m);
    retreat_transposed(transposed, x.dy, x.q, u, written, x.a, erased, x.k);
    copy_numbers(dv_t, dv, s.m);
    walk.put(to.dk, t, written, s.e);
    if (to.dbeta) to.dbeta[i] = dot(du, w, s.m);
    if (!to.dg) continue;
    const float* const dq = walk.row(static_cast<const float*>(to.dq), t, s.e);
    if (in.per_channel)
      map(
          walk.row(to.dg, t, s.e), s.e,
          [](Lanes q, Lanes d, Lanes k, Lanes write) RUNNEL_INLINE { return q * d - k * write; }, x.q, dq, x.k,
          written);
    else
      to.dg[i] = dot(x.q, dq, s.e) - dot(x.v, dv, s.m);
  }
  for (int64_t r = 0; to.ds0 && r < s.e; ++r) copy_numbers(to.ds0 + (n * s.e + r) * s.m, state.row(r), s.m);
}

// For the delta rule: adds erase to dk, and k erase to the terms of dg.
void backward_erasure(const GatedGradients& to, const GatedInputs& in, int64_t n, float* memory) {
  const AttentionSizes& s = in.sizes;
  Walk walk(in, n, Walk::From::left, memory);
  const Matrix state = walk.state(), transposed = walk.transposed();
  set_both(state, transposed, in.s0, in, n);
  float* const erased = walk.of_e();
  walk.from_left<true, false>(state, nullptr,
                              [&](int64_t t, const Position& now, const float*, const float* u, const float*) {
                                const float* const dv = walk.row(static_cast<const float*>(to.dv), t, s.m);
                                advance_transposed<Found::before_write>(transposed, now.a, u, now.k, dv, erased);
                                map(
                                    erased, s.e, [](Lanes x) RUNNEL_INLINE { return -x; }, erased);
                                accumulate(walk.row(to.dk, t, s.e), erased, s.e);
                                if (!to.dg || !in.per_channel) return;
                                map(
                                    erased, s.e, [](Lanes k, Lanes x) RUNNEL_INLINE { return k * x; }, now.k, erased);
                                accumulate(walk.row(to.dg, t, s.e), erased, s.e);
                              });
}

// The terms of dg -> their sums over all later positions, from `carry` on.
void sum_decays(float* dg, const GatedInputs& in, int64_t n, const float* carry) {
  const AttentionSizes& s = in.sizes;
  const int64_t width = in.per_channel ? s.e : 1;
  const Walk walk(in, n, Walk::From::right, nullptr);
  for (int64_t c = 0; c < width; ++c) {
    float sum = carry[c];
    for (int64_t i = 1; !in.per_channel && i < s.e; ++i) sum += carry[i];
    for (int64_t t = s.length - 1; t >= 0; --t) {
      float& x = dg[walk.at(t) * width + c];
      sum += x;
      x = walk.is_padding(t) ? 0 : sum;
    }
  }
}

template <bool delta>
void backward(const GatedGradients& to, const float* dy, const float* ds1, const GatedInputs& in, int64_t n,
              float* memory) {
  float* const carry = memory;
  memory += padded(in.sizes.e);
  backward_reads<delta>(to, dy, ds1, in, n, memory, carry);
  backward_writes<delta>(to, dy, ds1, in, n, memory);
  if (delta) backward_erasure(to, in, n, memory);
  if (to.dg) sum_decays(to.dg, in, n, carry);
}

// work(n, memory) for all sequences, shared by the threads.
template <class Work>
void each_sequence(const AttentionSizes& s, Work work) {
  const ThreadScratch scratch(Walk::floats(s) + padded(s.e));
  parallel_for(s.sequences(), s.sequences() * s.length * s.e * s.m >= parallel_from_products,
               [&](int64_t n) { work(n, scratch.this_thread()); });
}

}  // namespace

void cpu::gated_linear_attention_forward(float* y, float* s1, const GatedInputs& in) {
  each_sequence(in.sizes, [&](int64_t n, float* memory) {
    in.rule == UpdateRule::delta ? forward<true>(y, s1, in, n, memory) : forward<false>(y, s1, in, n, memory);
  });
}

void cpu::gated_linear_attention_backward(const GatedGradients& to, const float* dy, const float* ds1,
                                          const GatedInputs& in) {
  each_sequence(in.sizes, [&](int64_t n, float* memory) {
    in.rule == UpdateRule::delta ? backward<true>(to, dy, ds1, in, n, memory)
                                 : backward<false>(to, dy, ds1, in, n, memory);
  });
}

}  // namespace runnel
