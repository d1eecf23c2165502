// Linear attention where every query sees all keys: linear_attention.h has the derivation and the scan over chunks. One
// scan over the keys sums up S and Z, one over the queries finds y; backward, one over the queries finds dq and sums up
// R and T, and one over the keys finds dk and dv.
#include "ops/cpu/attention/linear_attention.h"

#include "ops/kernels/linear_attention.h"

namespace runnel {
namespace {

// n_i = q_i^T Z of a head
void dot_with_keys(const LinearChunk& c, const Matrix& z, int64_t h) {
  for (int64_t i = 0; i < linear_chunk; ++i) copy_numbers(c.z.row(i), z.row(0), c.e);
  dot_rows(c.n.row(h), c.of_head(c.q, h), c.z);
}

// y_i = q_i^T S / n_i
template <class Phi>
void full_forward_chunk(LinearChunk& c, const GroupStates& keys, const GroupRows<float>& y, const LinearInputs<Phi>& in,
                        int64_t first, int64_t count) {
  load(c.q, c.e, in.q, first, count, in.phi);
  for (int64_t h = 0; h < y.heads; ++h) {
    dot_with_keys(c, keys[h].z, h);
    multiply(c.values_of_head(c.y, h), c.of_head(c.q, h), keys[h].s, Store::set);
  }
  store_quotient(y, c, first, count);
}

// dq_i = S g_i + d_i Z,  R += q g^T,  T += d q
template <class Phi>
void full_backward_queries(LinearChunk& c, const GroupStates& keys, const GroupStates& queries,
                           const GroupRows<float>& dq, const LinearInputs<Phi>& in, const GroupRows<const float>& dy,
                           const GroupRows<const float>& y, int64_t first, int64_t count) {
  load(c.q, c.e, in.q, first, count, in.phi);
  load(c.g, c.m, dy, first, count);
  load(c.y, c.m, y, first, count);
  for (int64_t h = 0; h < dy.heads; ++h) {
    const Matrix q = c.of_head(c.q, h), g = c.values_of_head(c.g, h), dx = c.of_head(c.dx, h);
    float *const n = c.n.row(h), *const d = c.d.row(h);
    dot_with_keys(c, keys[h].z, h);
    dot_rows(d, g, c.values_of_head(c.y, h));
    for (int64_t i = 0; i < linear_chunk; ++i) {
      const float inverse = i < count ? 1 / (n[i] + normaliser_eps) : 0;
      d[i] *= -inverse;
      map(
          g.row(i), c.m, [inverse](Lanes x) RUNNEL_INLINE { return inverse * x; }, g.row(i));
      map(
          dx.row(i), c.e, [by = d[i]](Lanes z) RUNNEL_INLINE { return by * z; }, keys[h].z.row(0));
    }
    multiply(dx, g, keys[h].s, Store::add);
    multiply_transposed(queries[h].s, q, g, Store::add);
    add_rows(queries[h].z, d, q);
  }
  store_gradient(in.phi, dq, c, c.dx, c.q, first, count);
}

// dk_i = R v_i + T,  dv_i = R^T k_i
template <class Phi>
void full_backward_keys(LinearChunk& c, const GroupStates& queries, const GroupRows<float>& dk,
                        const GroupRows<float>& dv, const LinearInputs<Phi>& in, int64_t first, int64_t count) {
  load_keys(c, in, first, count);
  for (int64_t h = 0; h < dk.heads; ++h) {
    const ScanState state = queries[h];
    const Matrix dx = c.of_head(c.dx, h);
    multiply(c.values_of_head(c.y, h), c.of_head(c.k, h), state.s, Store::set);
    for (int64_t i = 0; i < linear_chunk; ++i) copy_numbers(dx.row(i), state.z.row(0), c.e);
    multiply(dx, c.values_of_head(c.v, h), state.transposed, Store::add);
  }
  store_values(dv, c, c.y, first, count);
  store_gradient(in.phi, dk, c, c.dx, c.k, first, count);
}

}  // namespace

void cpu::full_linear_attention_forward(float* y, const float* q, const float* k, const float* v,
                                        const int32_t* lengths, AttentionSizes s, FeatureMap map) {
  with_map(map, [&](auto phi) {
    const auto inputs = [&](const HeadGroup& group) { return LinearInputs(phi, q, k, v, lengths, s, group); };
    const ThreadScratch scratch(LinearChunk::floats(s));
    ChunkScan over_keys(scratch, s, s.key_length, ChunkScan::From::left, s.e, s.m);
    over_keys.sum_all([&](LinearChunk& c, const GroupStates& states, const HeadGroup& group, int64_t first,
                          int64_t count) { add_keys(c, states, inputs(group), first, count, false); });
    ChunkScan over_queries(scratch, s, s.length, ChunkScan::From::left, 0, 0);
    over_queries.each_chunk(
        [&](LinearChunk& c, const GroupStates&, const HeadGroup& group, int64_t first, int64_t count) {
          full_forward_chunk(c, over_keys.totals(group), GroupRows(y, group, s.length, s.heads, s.m, linear_chunk),
                             inputs(group), first, count);
        });
  });
}

void cpu::full_linear_attention_backward(float* dq, float* dk, float* dv, const float* dy, const float* y,
                                         const float* q, const float* k, const float* v, const int32_t* lengths,
                                         AttentionSizes s, FeatureMap map) {
  with_map(map, [&](auto phi) {
    const auto inputs = [&](const HeadGroup& group) { return LinearInputs(phi, q, k, v, lengths, s, group); };
    const auto of_query = [&](auto* x, const HeadGroup& group, int64_t width) {
      return GroupRows(x, group, s.length, s.heads, width, linear_chunk);
    };
    const auto of_key = [&](auto* x, const HeadGroup& group, int64_t width) {
      return GroupRows(x, group, s.key_length, s.heads, width, linear_chunk);
    };
    const ThreadScratch scratch(LinearChunk::floats(s));
    ChunkScan over_keys(scratch, s, s.key_length, ChunkScan::From::left, s.m, s.e);
    over_keys.sum_all([&](LinearChunk& c, const GroupStates& states, const HeadGroup& group, int64_t first,
                          int64_t count) { add_keys(c, states, inputs(group), first, count, true); });
    ChunkScan over_queries(scratch, s, s.length, ChunkScan::From::left, s.e, s.m, true);
    over_queries.sum_all(
        [&](LinearChunk& c, const GroupStates& states, const HeadGroup& group, int64_t first, int64_t count) {
          full_backward_queries(c, over_keys.totals(group), states, of_query(dq, group, s.e), inputs(group),
                                of_query(dy, group, s.m), of_query(y, group, s.m), first, count);
        });
    over_queries.copy_transposed();
    ChunkScan over_keys_again(scratch, s, s.key_length, ChunkScan::From::left, 0, 0);
    over_keys_again.each_chunk(
        [&](LinearChunk& c, const GroupStates&, const HeadGroup& group, int64_t first, int64_t count) {
          full_backward_keys(c, over_queries.totals(group), of_key(dk, group, s.e), of_key(dv, group, s.m),
                             inputs(group), first, count);
        });
  });
}

}  // namespace runnel
