// Linear attention on the CPU where every query sees all keys: linear_attention.cpp has the derivation,
// linear_attention.h the scan. One scan over the keys sums up S and Z, one over the queries finds y; backward, one over
// the queries finds dq and sums up R and T, and one over the keys finds dk and dv.
#include "ops/attention/linear_attention.h"

namespace runnel {
namespace {

// n_i = q_i^T Z
void dot_with_keys(LinearChunk& c, const Matrix& z) {
  for (int64_t i = 0; i < linear_chunk; ++i) copy_numbers(c.z.row(i), z.row(0), c.e);
  dot_rows(c.n.row(0), c.q, c.z);
}

// y_i = q_i^T S / n_i
template <class Phi>
void full_forward_chunk(LinearChunk& c, const ScanState& keys, SequenceRows<float> y, const LinearInputs<Phi>& in,
                        int64_t first, int64_t count) {
  load(c.q, in.q, first, count, in.phi);
  dot_with_keys(c, keys.z);
  multiply(c.y, c.q, keys.s, Store::set);
  store_quotient(y, c, first, count);
}

// dq_i = S g_i + d_i Z,  R += q g^T,  T += d q
template <class Phi>
void full_backward_queries(LinearChunk& c, const ScanState& keys, const ScanState& queries, SequenceRows<float> dq,
                           const LinearInputs<Phi>& in, SequenceRows<const float> dy, SequenceRows<const float> y,
                           int64_t first, int64_t count) {
  load(c.q, in.q, first, count, in.phi);
  load(c.g, dy, first, count);
  load(c.y, y, first, count);
  dot_with_keys(c, keys.z);
  dot_rows(c.d.row(0), c.g, c.y);
  for (int64_t i = 0; i < count; ++i) {
    const float inverse = 1 / (c.n.row(0)[i] + normaliser_eps);
    const float d = c.d.row(0)[i] *= -inverse;
    for (int64_t w = 0; w < c.m / lanes; ++w) c.g.lanes_of(i)[w] *= inverse;
    for (int64_t w = 0; w < c.e / lanes; ++w) c.dx.lanes_of(i)[w] = d * keys.z.data[w];
  }
  multiply(c.dx, c.g, keys.s, Store::add);
  store_gradient(in.phi, dq, c.dx, c.q, first, count);
  multiply_transposed(queries.s, c.q, c.g, Store::add);
  add_rows(queries.z, c.d.row(0), c.q);
}

// dk_i = R v_i + T,  dv_i = R^T k_i
template <class Phi>
void full_backward_keys(LinearChunk& c, const ScanState& queries, SequenceRows<float> dk, SequenceRows<float> dv,
                        const LinearInputs<Phi>& in, int64_t first, int64_t count) {
  load_keys(c, in, first, count);
  multiply(c.y, c.k, queries.s, Store::set);
  for (int64_t i = 0; i < count; ++i) copy_numbers(dv(first + i), c.y.row(i), dv.width);
  for (int64_t i = 0; i < linear_chunk; ++i) copy_numbers(c.dx.row(i), queries.z.row(0), c.e);
  multiply(c.dx, c.v, queries.transposed, Store::add);
  store_gradient(in.phi, dk, c.dx, c.k, first, count);
}

}  // namespace

void cpu::full_linear_attention_forward(float* y, const float* q, const float* k, const float* v,
                                        const int32_t* lengths, AttentionSizes s, FeatureMap map) {
  with_map(map, [&](auto phi) {
    const auto inputs = [&](int64_t n) { return LinearInputs(phi, q, k, v, lengths, s, n); };
    const ThreadScratch scratch(LinearChunk::floats(s));
    ChunkScan over_keys(scratch, s, s.key_length, ChunkScan::From::left, s.e, s.m);
    over_keys.sum_all([&](LinearChunk& c, const ScanState& state, int64_t n, int64_t first, int64_t count) {
      add_keys(c, state, inputs(n), first, count, false);
    });
    ChunkScan over_queries(scratch, s, s.length, ChunkScan::From::left, 0, 0);
    over_queries.each_chunk([&](LinearChunk& c, const ScanState&, int64_t n, int64_t first, int64_t count) {
      full_forward_chunk(c, over_keys.total(n), rows_of_sequence(y, n, s.length, s.heads, s.m, linear_chunk), inputs(n),
                         first, count);
    });
  });
}

void cpu::full_linear_attention_backward(float* dq, float* dk, float* dv, const float* dy, const float* y,
                                         const float* q, const float* k, const float* v, const int32_t* lengths,
                                         AttentionSizes s, FeatureMap map) {
  with_map(map, [&](auto phi) {
    const auto inputs = [&](int64_t n) { return LinearInputs(phi, q, k, v, lengths, s, n); };
    const auto of_query = [&](auto* x, int64_t n, int64_t width) {
      return rows_of_sequence(x, n, s.length, s.heads, width, linear_chunk);
    };
    const auto of_key = [&](auto* x, int64_t n, int64_t width) {
      return rows_of_sequence(x, n, s.key_length, s.heads, width, linear_chunk);
    };
    const ThreadScratch scratch(LinearChunk::floats(s));
    ChunkScan over_keys(scratch, s, s.key_length, ChunkScan::From::left, s.m, s.e);
    over_keys.sum_all([&](LinearChunk& c, const ScanState& state, int64_t n, int64_t first, int64_t count) {
      add_keys(c, state, inputs(n), first, count, true);
    });
    ChunkScan over_queries(scratch, s, s.length, ChunkScan::From::left, s.e, s.m, true);
    over_queries.sum_all([&](LinearChunk& c, const ScanState& state, int64_t n, int64_t first, int64_t count) {
      full_backward_queries(c, over_keys.total(n), state, of_query(dq, n, s.e), inputs(n), of_query(dy, n, s.m),
                            of_query(y, n, s.m), first, count);
    });
    over_queries.copy_transposed();
    ChunkScan over_keys_again(scratch, s, s.key_length, ChunkScan::From::left, 0, 0);
    over_keys_again.each_chunk([&](LinearChunk& c, const ScanState&, int64_t n, int64_t first, int64_t count) {
      full_backward_keys(c, over_queries.total(n), of_key(dk, n, s.e), of_key(dv, n, s.m), inputs(n), first, count);
    });
  });
}

}  // namespace runnel
