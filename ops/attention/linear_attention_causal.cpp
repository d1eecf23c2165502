// Causal linear attention on the CPU: linear_attention.cpp has the derivation, linear_attention.h the scan.
//
// Backward scans twice. The pass from the left finds dq, and leaves 1/n_i in dk_i[0] and d_i in dv_i[0]; the pass from
// the right reads them before it overwrites these rows with dk and dv.
#include "ops/attention/linear_attention.h"

namespace runnel {
namespace {

using namespace cpu;

void mask(const Matrix& p) {  // p[j,i] = 0 for i < j
  const auto position = [] {
    decltype(Lanes{} < Lanes{}) each;
    for (int i = 0; i < lanes; ++i) each[i] = i;
    return each;
  }();
  for (int32_t j = 0; j < linear_chunk; ++j)
    for (int32_t w = 0; w < linear_chunk / lanes; ++w) {
      Lanes& scores = p.lanes_of(j)[w];
      scores = position + w * static_cast<int32_t>(lanes) < j ? Lanes{} : scores;
    }
}

// y_i = q_i^T S_i / n_i
template <class Phi>
void forward_chunk(LinearChunk& c, const ScanState& state, SequenceRows<float> y, const LinearInputs<Phi>& in,
                   int64_t first, int64_t count) {
  load(c.q, in.q, first, count, in.phi);
  load_keys(c, in, first, count);
  transpose(c.qt, c.q);
  multiply(c.p, c.k, c.qt, Store::set);
  mask(c.p);
  multiply(c.y, c.q, state.s, Store::set);
  multiply_transposed(c.y, c.p, c.v, Store::add, Terms::to_row);
  c.n.clear();
  add_rows(c.n, state.z.row(0), c.qt);
  add_rows(c.n, c.p);
  store_quotient(y, c, first, count);
  multiply_transposed(state.s, c.k, c.v, Store::add);
  add_rows(state.z, c.k);
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
  for (int64_t i = 0; i < linear_chunk; ++i)
    for (int64_t w = 0; w < c.e / lanes; ++w) c.z.lanes_of(i)[w] = state.z.data[w] += c.k.lanes_of(i)[w];
  dot_rows(c.n.row(0), c.q, c.z);
  dot_rows(c.d.row(0), c.g, c.y);
  for (int64_t i = 0; i < count; ++i) {
    const float inverse = 1 / (c.n.row(0)[i] + normaliser_eps);
    const float d = -c.d.row(0)[i] * inverse;
    for (int64_t w = 0; w < c.m / lanes; ++w) c.g.lanes_of(i)[w] *= inverse;
    for (int64_t w = 0; w < c.e / lanes; ++w) c.dx.lanes_of(i)[w] = d * c.z.lanes_of(i)[w];
    dk(first + i)[0] = inverse;
    dv(first + i)[0] = d;
  }
  transpose(c.gt, c.g);
  multiply(c.w, c.v, c.gt, Store::set);
  mask(c.w);
  multiply_transposed(c.dx, c.w, c.k, Store::add, Terms::to_row);
  multiply(c.dx, c.g, state.s, Store::add);
  store_gradient(in.phi, dq, c.dx, c.q, first, count);
  multiply_transposed(state.s, c.v, c.k, Store::add);
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
  transpose(c.qt, c.q);
  transpose(c.gt, c.g);
  transpose(c.rt, state.s);

  multiply(c.p, c.k, c.qt, Store::set);
  mask(c.p);
  multiply(c.y, c.p, c.g, Store::set, Terms::from_row);
  multiply(c.y, c.k, state.s, Store::add);
  for (int64_t i = 0; i < count; ++i) std::copy_n(c.y.row(i), dv.width, dv(first + i));

  multiply(c.w, c.v, c.gt, Store::set);
  for (int64_t j = 0; j < linear_chunk; ++j)
    for (int64_t w = 0; w < linear_chunk / lanes; ++w) c.w.lanes_of(j)[w] += c.d.data[w];
  mask(c.w);
  multiply(c.dx, c.w, c.q, Store::set, Terms::from_row);
  multiply(c.dx, c.v, c.rt, Store::add);
  for (int64_t i = 0; i < count; ++i)
    for (int64_t w = 0; w < c.e / lanes; ++w) c.dx.lanes_of(i)[w] += state.z.data[w];
  store_gradient(in.phi, dk, c.dx, c.k, first, count);

  multiply_transposed(state.s, c.q, c.g, Store::add);
  add_rows(state.z, c.d.row(0), c.q);
}

}  // namespace

void cpu::causal_linear_attention_forward(float* y, float* s1, float* z1, const float* q, const float* k,
                                          const float* v, const float* s0, const float* z0, const int32_t* lengths,
                                          AttentionSizes s, FeatureMap map) {
  with_map(map, [&](auto phi) {
    const auto inputs = [&](int64_t n) { return LinearInputs(phi, q, k, v, lengths, s, n); };
    const ThreadScratch scratch(LinearChunk::vectors(s));
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
    const ThreadScratch scratch(LinearChunk::vectors(s));
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
    ChunkScan right(scratch, s, s.length, ChunkScan::From::right, s.e, s.m);
    right.sum_segments([&](LinearChunk& c, const ScanState& state, int64_t n, int64_t first, int64_t count) {
      load(c.q, rows(q, n, s.e, -linear_chunk), first, count, phi);
      load_output_gradient(c, rows(dk, n, s.e), rows(dv, n, s.m), rows(dy, n, s.m, -linear_chunk), first, count);
      multiply_transposed(state.s, c.q, c.g, Store::add);
      add_rows(state.z, c.d.row(0), c.q);
    });
    right.add_initial(ds1, dz1, false);
    right.each_chunk([&](LinearChunk& c, const ScanState& state, int64_t n, int64_t first, int64_t count) {
      backward_chunk_right(c, state, rows(dk, n, s.e), rows(dv, n, s.m), inputs(n, -linear_chunk),
                           rows(dy, n, s.m, -linear_chunk), first, count);
    });
    right.copy_final(ds0, dz0);
  });
}

}  // namespace runnel
