// Causal linear attention on the CPU: linear_attention.cpp has the derivation, linear_attention.h the scan over chunks.
//
// Inside a chunk everything is one loop, that of Algorithm 1: S += b_i c_i^T, then x_i = a_i^T S, for positions in their
// order or in reverse. With g_i = dy_i / n_i, each result is such a scan:
//
//   y_i n_i = scan(q, k, v)      dq_i = scan(g, v, k) + d_i Z_i
//   dv_i = scan(k, q, g)         dk_i = scan(v, g, q) + T_i            both in reverse
//
// It takes 4 E M operations for each position, the fewest there are: chunks whose inside is a masked product (q k^T) v
// take more, and gain nothing where S stays in the first-level cache.
//
// Backward scans twice. The pass from the left finds dq, and leaves 1/n_i in dk_i[0] and d_i in dv_i[0]; the pass from
// the right reads them before it overwrites these rows with dk and dv.
#include "ops/attention/linear_attention.h"

namespace runnel {
namespace {

// Some positions and some columns of S: a row of S is read and written once for all of these positions, and the results
// stay in registers. a and b are `row` apart from position to position, c and x `column`: negative in reverse.
constexpr int scan_positions = 4, scan_width = 2;  // the fastest of 1 to 8 and 1 to 4 with 16 registers of 8 lanes
template <int width>
RUNNEL_ALONE void scan_block(float* x, float* s, const float* a, const float* b, const float* c, int64_t row,
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
  const int64_t row = reverse ? -a.columns : a.columns, column = reverse ? -c.columns : c.columns;
  const auto block = [&]<int width>(std::integral_constant<int, width>, int64_t at) RUNNEL_INLINE {
    for (int64_t i = 0; i < linear_chunk; i += scan_positions) {
      const int64_t first = reverse ? linear_chunk - 1 - i : i;
      scan_block<width>(x.row(first) + at, s.row(0) + at, a.row(first), b.row(first), c.row(first) + at, row, column,
                        rows, s.columns);
    }
  };
  int64_t at = 0;
  for (; at + scan_width * lanes <= s.columns; at += scan_width * lanes)
    block(std::integral_constant<int, scan_width>(), at);
  for (; at < s.columns; at += lanes) block(std::integral_constant<int, 1>(), at);
}

// Z_i and n_i = q_i . Z_i of a chunk whose keys are loaded; z is moved to the chunk's end.
void find_normalisers(LinearChunk& c, const Matrix& z) {
  for (int64_t i = 0; i < linear_chunk; ++i)
    for (int64_t w = 0; w < c.e / lanes; ++w) c.z.lanes_of(i)[w] = z.data[w] += c.k.lanes_of(i)[w];
  dot_rows(c.n.row(0), c.q, c.z);
}

// y_i = q_i^T S_i / n_i
template <class Phi>
void forward_chunk(LinearChunk& c, const ScanState& state, SequenceRows<float> y, const LinearInputs<Phi>& in,
                   int64_t first, int64_t count) {
  load(c.q, in.q, first, count, in.phi);
  load_keys(c, in, first, count);
  find_normalisers(c, state.z);
  scan(c.y, state.s, c.q, c.k, c.v, in.q.width, ChunkScan::From::left);
  store_quotient(y, c, first, count);
}

// dq_i = S_i g_i + d_i Z_i; leaves 1/n_i in dk_i[0] and d_i in dv_i[0].
template <class Phi>
void backward_chunk_left(LinearChunk& c, const ScanState& state, SequenceRows<float> dq, SequenceRows<float> dk,
                         SequenceRows<float> dv, const LinearInputs<Phi>& in, SequenceRows<const float> dy,
                         SequenceRows<const float> y, int64_t first, int64_t count) {
  load(c.q, in.q, first, count, in.phi);
  load_keys(c, in, first, count);
  load(c.g, dy, first, count);
  load(c.y, y, first, count);
  find_normalisers(c, state.z);
  dot_rows(c.d.row(0), c.g, c.y);
  for (int64_t i = 0; i < count; ++i) {
    const float inverse = 1 / (c.n.row(0)[i] + normaliser_eps), d = -c.d.row(0)[i] * inverse;
    for (int64_t w = 0; w < c.m / lanes; ++w) c.g.lanes_of(i)[w] *= inverse;
    for (int64_t w = 0; w < c.e / lanes; ++w) c.z.lanes_of(i)[w] *= d;
    dk(first + i)[0] = inverse;
    dv(first + i)[0] = d;
  }
  scan(c.dx, state.s, c.g, c.v, c.k, in.v.width, ChunkScan::From::left);
  accumulate(c.dx.row(0), c.z.row(0), count * c.e);
  store_gradient(in.phi, dq, c.dx, c.q, first, count);
}

// g_i and d_i of a chunk, from what backward_chunk_left left.
void load_output_gradient(LinearChunk& c, SequenceRows<float> dk, SequenceRows<float> dv, SequenceRows<const float> dy,
                          int64_t first, int64_t count) {
  load(c.g, dy, first, count);
  c.d.clear();
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t w = 0; w < c.m / lanes; ++w) c.g.lanes_of(i)[w] *= dk(first + i)[0];
    c.d.row(0)[i] = dv(first + i)[0];
  }
}

// dk_i = R_i v_i + T_i,  dv_i = R_i^T k_i
template <class Phi>
void backward_chunk_right(LinearChunk& c, const ScanState& state, SequenceRows<float> dk, SequenceRows<float> dv,
                          const LinearInputs<Phi>& in, SequenceRows<const float> dy, int64_t first, int64_t count) {
  load(c.q, in.q, first, count, in.phi);
  load_keys(c, in, first, count);
  load_output_gradient(c, dk, dv, dy, first, count);
  scan(c.y, state.s, c.k, c.q, c.g, in.k.width, ChunkScan::From::right);
  scan(c.dx, state.transposed, c.v, c.g, c.q, in.v.width, ChunkScan::From::right);
  for (int64_t i = count - 1; i >= 0; --i)
    for (int64_t w = 0; w < c.e / lanes; ++w)
      c.dx.lanes_of(i)[w] += state.z.data[w] += c.d.row(0)[i] * c.q.lanes_of(i)[w];
  for (int64_t i = 0; i < count; ++i) copy_numbers(dv(first + i), c.y.row(i), dv.width);
  store_gradient(in.phi, dk, c.dx, c.k, first, count);
}

}  // namespace

void cpu::causal_linear_attention_forward(float* y, float* s1, float* z1, const float* q, const float* k,
                                          const float* v, const float* s0, const float* z0, const int32_t* lengths,
                                          AttentionSizes s, FeatureMap map) {
  with_map(map, [&](auto phi) {
    const auto inputs = [&](int64_t n) { return LinearInputs(phi, q, k, v, lengths, s, n); };
    const ThreadScratch scratch(LinearChunk::floats(s));
    ChunkScan scan(scratch, s, s.length, ChunkScan::From::left, s.e, s.m);
    scan.sum_segments([&](LinearChunk& c, const ScanState& state, int64_t n, int64_t first, int64_t count) {
      add_keys(c, state, inputs(n), first, count, false);
    });
    scan.add_initial(s0, z0, false);
    scan.each_chunk([&](LinearChunk& c, const ScanState& state, int64_t n, int64_t first, int64_t count) {
      forward_chunk(c, state, rows_of_sequence(y, n, s.length, s.heads, s.m, linear_chunk), inputs(n), first, count);
    });
    scan.copy_final(s1, z1);
  });
}

void cpu::causal_linear_attention_backward(float* dq, float* dk, float* dv, float* ds0, float* dz0, const float* dy,
                                           const float* ds1, const float* dz1, const float* y, const float* q,
                                           const float* k, const float* v, const float* s0, const float* z0,
                                           const int32_t* lengths, AttentionSizes s, FeatureMap map) {
  with_map(map, [&](auto phi) {
    const auto inputs = [&](int64_t n, int64_t next) { return LinearInputs(phi, q, k, v, lengths, s, n, next); };
    const auto rows = [&](auto* x, int64_t n, int64_t width, int64_t next = linear_chunk) {
      return rows_of_sequence(x, n, s.length, s.heads, width, next);
    };
    const ThreadScratch scratch(LinearChunk::floats(s));
    {
      ChunkScan left(scratch, s, s.length, ChunkScan::From::left, s.m, s.e);
      left.sum_segments([&](LinearChunk& c, const ScanState& state, int64_t n, int64_t first, int64_t count) {
        add_keys(c, state, inputs(n, linear_chunk), first, count, true);
      });
      left.add_initial(s0, z0, true);
      left.each_chunk([&](LinearChunk& c, const ScanState& state, int64_t n, int64_t first, int64_t count) {
        backward_chunk_left(c, state, rows(dq, n, s.e), rows(dk, n, s.e), rows(dv, n, s.m), inputs(n, linear_chunk),
                            rows(dy, n, s.m), rows(y, n, s.m), first, count);
      });
    }
    ChunkScan right(scratch, s, s.length, ChunkScan::From::right, s.e, s.m, true);
    right.sum_segments([&](LinearChunk& c, const ScanState& state, int64_t n, int64_t first, int64_t count) {
      load(c.q, rows(q, n, s.e, -linear_chunk), first, count, phi);
      load_output_gradient(c, rows(dk, n, s.e), rows(dv, n, s.m), rows(dy, n, s.m, -linear_chunk), first, count);
      multiply_transposed(state.s, c.q, c.g, Store::add);
      add_rows(state.z, c.d.row(0), c.q);
    });
    right.add_initial(ds1, dz1, false);
    right.copy_transposed();
    right.each_chunk([&](LinearChunk& c, const ScanState& state, int64_t n, int64_t first, int64_t count) {
      backward_chunk_right(c, state, rows(dk, n, s.e), rows(dv, n, s.m), inputs(n, -linear_chunk),
                           rows(dy, n, s.m, -linear_chunk), first, count);
    });
    right.copy_final(ds0, dz0);
  });
}

}  // namespace runnel
