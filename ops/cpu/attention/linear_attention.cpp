// Causal linear attention: linear_attention.h has the derivation and the scan over chunks.
//
// Inside a chunk everything is one loop, that of Algorithm 1: S += b_i c_i^T, then x_i = a_i^T S, for positions in
// their order or in reverse. With g_i = dy_i / n_i, each result is such a scan:
//
//   y_i n_i = scan(q, k, v)      dq_i = scan(g, v, k) + d_i Z_i
//   dv_i = scan(k, q, g)         dk_i = scan(v, g, q) + T_i            both in reverse
//
// It takes 4 E M operations for each position, the fewest there are: chunks whose inside is a masked product (q k^T) v
// take more, and gain nothing where S stays in the first-level cache.
//
// Backward scans twice. The pass from the left finds dq, and leaves 1/n_i and d_i of a group's heads in the first
// numbers of its dk_i and dv_i; the pass from the right reads them before it overwrites these rows with dk and dv.
#include "ops/cpu/attention/linear_attention.h"

#include "ops/kernels/linear_attention.h"

namespace runnel {
namespace {

// Some positions and some columns of S: a row of S is read and written once for all of these positions, and the results
// stay in registers. a and b are `row` apart from position to position, c and x `column`: negative in reverse.
constexpr int scan_positions = 4, scan_width = 2;  // the fastest of 1 to 8 and 1 to 4 with 16 registers of 8 lanes
template <int width>
RUNNEL_NOINLINE void scan_block(float* x, float* s, const float* a, const float* b, const float* c, int64_t row,
                                int64_t column, int64_t rows, int64_t columns) {
  Lanes sums[scan_positions][width] = {}, added[scan_positions][width];
#pragma GCC unroll 8
  for (int i = 0; i < scan_positions; ++i)
#pragma GCC unroll 4
    for (int w = 0; w < width; ++w) added[i][w] = load(c + i * column + w * lanes);
  for (int64_t r = 0; r < rows; ++r, s += columns) {
    Lanes state[width];
#pragma GCC unroll 4
    for (int w = 0; w < width; ++w) state[w] = load(s + w * lanes);
#pragma GCC unroll 8
    for (int i = 0; i < scan_positions; ++i)
#pragma GCC unroll 4
      for (int w = 0; w < width; ++w) {
        state[w] += b[i * row + r] * added[i][w];
        sums[i][w] += a[i * row + r] * state[w];
      }
#pragma GCC unroll 4
    for (int w = 0; w < width; ++w) store(s + w * lanes, state[w]);
  }
#pragma GCC unroll 8
  for (int i = 0; i < scan_positions; ++i)
#pragma GCC unroll 4
    for (int w = 0; w < width; ++w) store(x + i * column + w * lanes, sums[i][w]);
}

// x_i = a_i^T S after S += b_i c_i^T, for all positions of a chunk. Of S's rows the first `rows` are not zero.
void scan(const Matrix& x, const Matrix& s, const Matrix& a, const Matrix& b, const Matrix& c, int64_t rows,
          ChunkScan::From from) {
  const bool reverse = from == ChunkScan::From::right;
  const int64_t row = reverse ? -a.stride : a.stride, column = reverse ? -c.stride : c.stride;
  const auto block = [&]<int width>(std::integral_constant<int, width>, int64_t at) RUNNEL_INLINE {
    for (int64_t i = 0; i < linear_chunk; i += scan_positions) {
      const int64_t first = reverse ? linear_chunk - 1 - i : i;
      scan_block<width>(x.row(first) + at, s.row(0) + at, a.row(first), b.row(first), c.row(first) + at, row, column,
                        rows, s.stride);
    }
  };
  int64_t at = 0;
  for (; at + scan_width * lanes <= s.columns; at += scan_width * lanes)
    block(std::integral_constant<int, scan_width>(), at);
  for (; at < s.columns; at += lanes) block(std::integral_constant<int, 1>(), at);
}

// Z_i and n_i = q_i . Z_i of a head whose queries and keys are loaded; z is moved to the chunk's end.
void find_normalisers(const LinearChunk& c, const Matrix& z, int64_t h) {
  const Matrix k = c.of_head(c.k, h);
  for (int64_t w = 0; w < c.e; w += lanes) {
    Lanes sum = load(z.row(0) + w);
    for (int64_t i = 0; i < linear_chunk; ++i) store(c.z.row(i) + w, sum += load(k.row(i) + w));
    store(z.row(0) + w, sum);
  }
  dot_rows(c.n.row(h), c.of_head(c.q, h), c.z);
}

// y_i = q_i^T S_i / n_i
template <class Phi>
void forward_chunk(LinearChunk& c, const GroupStates& states, const GroupRows<float>& y, const LinearInputs<Phi>& in,
                   int64_t first, int64_t count) {
  load(c.q, c.e, in.q, first, count, in.phi);
  load_keys(c, in, first, count);
  for (int64_t h = 0; h < y.heads; ++h) {
    find_normalisers(c, states[h].z, h);
    scan(c.values_of_head(c.y, h), states[h].s, c.of_head(c.q, h), c.of_head(c.k, h), c.values_of_head(c.v, h),
         in.q.width, ChunkScan::From::left);
  }
  store_quotient(y, c, first, count);
}

// The gradients of q, k and v of a group.
struct LinearGradients {
  GroupRows<float> dq, dk, dv;
};

// dq_i = S_i g_i + d_i Z_i; leaves each head's 1/n_i in dk_i and d_i in dv_i.
template <class Phi>
void backward_chunk_left(LinearChunk& c, const GroupStates& states, const LinearGradients& to,
                         const LinearInputs<Phi>& in, const GroupRows<const float>& dy, const GroupRows<const float>& y,
                         int64_t first, int64_t count) {
  load(c.q, c.e, in.q, first, count, in.phi);
  load_keys(c, in, first, count);
  load(c.g, c.m, dy, first, count);
  load(c.y, c.m, y, first, count);
  for (int64_t h = 0; h < dy.heads; ++h) {
    const Matrix g = c.values_of_head(c.g, h), dq = c.of_head(c.dx, h);
    find_normalisers(c, states[h].z, h);
    dot_rows(c.d.row(h), g, c.values_of_head(c.y, h));
    for (int64_t i = 0; i < count; ++i) {
      const float inverse = 1 / (c.n.row(h)[i] + normaliser_eps), d = -c.d.row(h)[i] * inverse;
      map(
          g.row(i), c.m, [inverse](Lanes x) RUNNEL_INLINE { return inverse * x; }, g.row(i));
      to.dk(first + i)[h] = inverse;
      to.dv(first + i)[h] = c.d.row(h)[i] = d;
    }
    scan(dq, states[h].s, g, c.values_of_head(c.v, h), c.of_head(c.k, h), in.v.width, ChunkScan::From::left);
    for (int64_t i = 0; i < count; ++i) add_scaled(dq.row(i), c.d.row(h)[i], c.z.row(i), c.e);
  }
  store_gradient(in.phi, to.dq, c, c.dx, c.q, first, count);
}

// g_i and d_i of a chunk, after backward_chunk_left.
void load_output_gradient(LinearChunk& c, const LinearGradients& left, const GroupRows<const float>& dy, int64_t first,
                          int64_t count) {
  load(c.g, c.m, dy, first, count);
  if (count < linear_chunk) c.d.clear();
  for (int64_t i = 0; i < count; ++i)
    for (int64_t h = 0; h < dy.heads; ++h) {
      float* const g = c.g.row(i) + h * c.m;
      map(
          g, c.m, [inverse = left.dk(first + i)[h]](Lanes x) RUNNEL_INLINE { return inverse * x; }, g);
      c.d.row(h)[i] = left.dv(first + i)[h];
    }
}

// dk_i = R_i v_i + T_i,  dv_i = R_i^T k_i
template <class Phi>
void backward_chunk_right(LinearChunk& c, const GroupStates& states, const LinearGradients& to,
                          const LinearInputs<Phi>& in, const GroupRows<const float>& dy, int64_t first, int64_t count) {
  load(c.q, c.e, in.q, first, count, in.phi);
  load_keys(c, in, first, count);
  load_output_gradient(c, to, dy, first, count);
  for (int64_t h = 0; h < dy.heads; ++h) {
    const ScanState state = states[h];
    const Matrix q = c.of_head(c.q, h), k = c.of_head(c.k, h), dk = c.of_head(c.dx, h);
    const Matrix v = c.values_of_head(c.v, h), g = c.values_of_head(c.g, h);
    scan(c.values_of_head(c.y, h), state.s, k, q, g, in.k.width, ChunkScan::From::right);
    scan(dk, state.transposed, v, g, q, in.v.width, ChunkScan::From::right);
    for (int64_t w = 0; w < c.e; w += lanes) {
      Lanes t = load(state.z.row(0) + w);
      for (int64_t i = count - 1; i >= 0; --i) {
        t += c.d.row(h)[i] * load(q.row(i) + w);
        store(dk.row(i) + w, load(dk.row(i) + w) + t);
      }
      store(state.z.row(0) + w, t);
    }
  }
  store_values(to.dv, c, c.y, first, count);
  store_gradient(in.phi, to.dk, c, c.dx, c.k, first, count);
}

}  // namespace

void cpu::causal_linear_attention_forward(float* y, float* s1, float* z1, const float* q, const float* k,
                                          const float* v, const float* s0, const float* z0, const int32_t* lengths,
                                          AttentionSizes s, FeatureMap map) {
  with_map(map, [&](auto phi) {
    const auto inputs = [&](const HeadGroup& group) { return LinearInputs(phi, q, k, v, lengths, s, group); };
    const ThreadScratch scratch(LinearChunk::floats(s));
    ChunkScan scan(scratch, s, s.length, ChunkScan::From::left, s.e, s.m);
    scan.sum_segments([&](LinearChunk& c, const GroupStates& states, const HeadGroup& group, int64_t first,
                          int64_t count) { add_keys(c, states, inputs(group), first, count, false); });
    scan.add_initial(s0, z0, false);
    scan.each_chunk([&](LinearChunk& c, const GroupStates& states, const HeadGroup& group, int64_t first,
                        int64_t count) {
      forward_chunk(c, states, GroupRows(y, group, s.length, s.heads, s.m, linear_chunk), inputs(group), first, count);
    });
    scan.copy_final(s1, z1);
  });
}

void cpu::causal_linear_attention_backward(float* dq, float* dk, float* dv, float* ds0, float* dz0, const float* dy,
                                           const float* ds1, const float* dz1, const float* y, const float* q,
                                           const float* k, const float* v, const float* s0, const float* z0,
                                           const int32_t* lengths, AttentionSizes s, FeatureMap map) {
  with_map(map, [&](auto phi) {
    const auto inputs = [&](const HeadGroup& group, int64_t next) {
      return LinearInputs(phi, q, k, v, lengths, s, group, next);
    };
    const auto rows = [&](auto* x, const HeadGroup& group, int64_t width, int64_t next) {
      return GroupRows(x, group, s.length, s.heads, width, next);
    };
    const auto gradients = [&](const HeadGroup& group, int64_t next) {
      return LinearGradients{rows(dq, group, s.e, next), rows(dk, group, s.e, next), rows(dv, group, s.m, next)};
    };
    const ThreadScratch scratch(LinearChunk::floats(s));
    {
      constexpr int64_t next = linear_chunk;
      ChunkScan left(scratch, s, s.length, ChunkScan::From::left, s.m, s.e);
      left.sum_segments([&](LinearChunk& c, const GroupStates& states, const HeadGroup& group, int64_t first,
                            int64_t count) { add_keys(c, states, inputs(group, next), first, count, true); });
      left.add_initial(s0, z0, true);
      left.each_chunk(
          [&](LinearChunk& c, const GroupStates& states, const HeadGroup& group, int64_t first, int64_t count) {
            backward_chunk_left(c, states, gradients(group, next), inputs(group, next), rows(dy, group, s.m, next),
                                rows(y, group, s.m, next), first, count);
          });
    }
    constexpr int64_t next = -linear_chunk;
    ChunkScan right(scratch, s, s.length, ChunkScan::From::right, s.e, s.m, true);
    right.sum_segments(
        [&](LinearChunk& c, const GroupStates& states, const HeadGroup& group, int64_t first, int64_t count) {
          load(c.q, c.e, rows(q, group, s.e, next), first, count, phi);
          load_output_gradient(c, gradients(group, next), rows(dy, group, s.m, next), first, count);
          for (int64_t h = 0; h < group.count; ++h) {
            multiply_transposed(states[h].s, c.of_head(c.q, h), c.values_of_head(c.g, h), Store::add);
            add_rows(states[h].z, c.d.row(h), c.of_head(c.q, h));
          }
        });
    right.add_initial(ds1, dz1, false);
    right.copy_transposed();
    right.each_chunk(
        [&](LinearChunk& c, const GroupStates& states, const HeadGroup& group, int64_t first, int64_t count) {
          backward_chunk_right(c, states, gradients(group, next), inputs(group, next), rows(dy, group, s.m, next),
                               first, count);
        });
    right.copy_final(ds0, dz0);
  });
}

}  // namespace runnel
