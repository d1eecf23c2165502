// The device contract: every kernel under one signature, written once per device.
//
// Outputs come first, then inputs, then sizes and options. A kernel overwrites its outputs and does not accumulate into
// them, unless it says so. It trusts its arguments: the ops in front of it have checked shapes, devices and ranges.
// Outputs that may be null say so, and are skipped then. Letters as in ops.h. n counts elements, rows counts what lies
// before the last axis.
#pragma once
#include <cstdint>
#include <optional>

#include "engine/dispatch.h"
#include "engine/numerics.h"
#include "engine/random.h"
#include "ops/types.h"

namespace runnel {

// --- elementwise ------------------------------------------------------------------------------------------------

// y = s x
KERNEL(scale(float* y, const float* x, float s, int64_t n))
// y = a b
KERNEL(multiply(float* y, const float* a, const float* b, int64_t n))

// y[r,j] = x[r,j] + b[j];  db[l,j] = sum_r dy[l,r,j], of several layers
KERNEL(add_bias_forward(float* y, const float* x, const float* b, int64_t rows, int64_t n))
KERNEL(add_bias_backward(float* db, const float* dy, int64_t layers, int64_t rows, int64_t n))

// y = max(x, 0);  dx = dy where y > 0
KERNEL(relu_forward(float* y, const float* x, int64_t n))
KERNEL(relu_backward(float* dx, const float* dy, const float* y, int64_t n))

// y = x Phi(x), the exact form with erf;  dx = dy (Phi(x) + x phi(x))
KERNEL(gelu_forward(float* y, const float* x, int64_t n))
KERNEL(gelu_backward(float* dx, const float* dy, const float* x, int64_t n))

// y = elu(x) + 1, positive everywhere (eq. 7);  dx = dy min(y, 1)
KERNEL(elu_plus_one_forward(float* y, const float* x, int64_t n))
KERNEL(elu_plus_one_backward(float* dx, const float* dy, const float* y, int64_t n))

// y[i] = x[i] / (1 - p) where the key's 16-bit number i is at least round(p 2^16), else 0. Its own gradient. Number i
// is (key.bits(i / 2) >> 16 (i % 2)) & 0xffff: eight to a Philox block, the low half of a word first. i counts elements
// of the whole tensor, in this kernel and in all others with dropout.
KERNEL(dropout(float* y, const float* x, int64_t n, Dropout dropout))

// y[r,:] = a[r,:] followed by b[r % period,:]: a is [rows,m], b [rows_b,n] with rows_b >= period, y [rows,m+n]. The
// rows of db are sums over r, and 0 from `period` on.
KERNEL(concat_forward(float* y, const float* a, const float* b, int64_t rows, int64_t period, int64_t m, int64_t n))
KERNEL(concat_backward(float* da, float* db, const float* dy, int64_t rows, int64_t period, int64_t rows_b, int64_t m,
                       int64_t n))

// --- matrix products --------------------------------------------------------------------------------------------

// c[m,n] = op(a) op(b), where op transposes if its flag is set: a is [m,k] or [k,m], b is [k,n] or [n,k].
KERNEL(matmul(float* c, const float* a, const float* b, int64_t m, int64_t n, int64_t k, bool transpose_a,
              bool transpose_b))

// Of several linear layers with one input.
struct LinearSizes {
  int64_t layers, rows, out, in;
  int64_t outputs() const { return rows * out; }  // of a layer
  int64_t weights() const { return out * in; }
  int64_t products() const { return layers * rows * out * in; }
};

// y[i,rows,out] = dropout(activation(x[rows,in] w[i,out,in]^T + b[i,out])) for i < s.layers. b may be null.
KERNEL(linear_forward(float* y, const float* x, const float* w, const float* b, LinearSizes s, Activation activation,
                      Dropout dropout))
// Any of dx, dw, db may be null. y, the output of the forward pass, is read for relu only: it is positive exactly where
// the gradient passes. dx is added to what is there if `add_dx`.
KERNEL(linear_backward(float* dx, float* dw, float* db, const float* dy, const float* x, const float* w, const float* y,
                       LinearSizes s, Activation activation, Dropout dropout, bool add_dx))

// bfloat16 numbers are the upper halves of floats.
CPU_KERNEL(round_to_bf16(uint16_t* to, const float* from, int64_t n))

// For few rows: w [out,in] -> panels of float32, bfloat16 or int8, whose order is that of the instruction set; and
// y[rows,out] = activation(x[rows,in] w^T + b) of several layers with the same x. In int8, w[o,:] is s[o] times
// integers from -127 to 127, s[o] = max |w[o,:]| / 127, and x[r,:] is t[r] times integers of at most 16 bits.
CPU_KERNEL(pack_linear(float* panels, const float* w, int64_t out, int64_t in, Precision precision))
constexpr int64_t int8_unit = 32;  // `in` is padded to a multiple: two vectors of the largest instruction set
// Floats of a column: one, two or four weights in each.
constexpr int64_t packed_depth(int64_t in, Precision precision) {
  return precision == Precision::bf16   ? (in + 1) / 2
         : precision == Precision::int8 ? (in + int8_unit - 1) / int8_unit * (int8_unit / 4)
                                        : in;
}
constexpr int64_t packed_linear_size(int64_t out, int64_t in, Precision precision) {  // of the panels, in floats
  constexpr int64_t most_columns = 32;
  const int64_t columns = (out + most_columns - 1) / most_columns * most_columns;
  return columns * (packed_depth(in, precision) + (precision == Precision::int8 ? 1 : 0));  // s, too
}
struct PackedLayer {
  float* y;
  const float *panels, *b;
  int64_t out;
};
CPU_KERNEL(packed_linear(const PackedLayer* layers, int64_t count, const float* x, int64_t rows, int64_t in,
                         Precision precision, Activation activation))

// --- recurrent layers -------------------------------------------------------------------------------------------

// A layer of a long short-term memory, in one direction or both, see lstm.cpp: y [B,T,D H], 0 at padding, states
// [D,B,H], lengths [B] (null: all are T).
struct LstmSizes {
  int64_t directions, batch, frames, width;  // D, B, T, H
  constexpr int64_t kept() const { return 5 * width; }
};
struct LstmInputs {
  const float *gates[2], *w[2];  // of each direction: W x + b [B,T,4H], recurrent weights [4H,H]; blocks i, f, g, o
};
struct LstmGradients {
  float* gates[2];
};
// h0, c0 (null: zero): the states before the first step; h1, c1: after the last. kept [D,B,T,5H] (null: not wanted): i,
// f, g, o and c, undefined at padding.
KERNEL(lstm_forward(float* y, float* h1, float* c1, float* kept, LstmInputs in, const float* h0, const float* c0,
                    const int32_t* lengths, LstmSizes sizes))
// Of in, w is read. dh0 and dc0 may both be null: not wanted; dh1 and dc1 may be null: zero.
KERNEL(lstm_backward(LstmGradients to, float* dh0, float* dc0, const float* dy, const float* dh1, const float* dc1,
                     const float* kept, LstmInputs in, const float* c0, const int32_t* lengths, LstmSizes sizes))
// h [B,T,H]: the state of a direction before each frame, 0 at padding.
KERNEL(lstm_previous(float* h, const float* y, const float* h0, const int32_t* lengths, int64_t direction,
                     LstmSizes sizes))

// --- normalisation, embedding, losses ---------------------------------------------------------------------------

// s = x + dropout(a) (a may be null: s = x);  y = (s - mean) rstd gamma + beta, per row of D with the biased variance
// and eps inside the root. mean and rstd are [rows].
KERNEL(layer_norm_forward(float* y, float* mean, float* rstd, const float* x, const float* a, const float* gamma,
                          const float* beta, int64_t rows, int64_t d, float eps, Dropout dropout))
// da may be null; with p = 0 it equals dx. dgamma and dbeta are summed over rows.
KERNEL(layer_norm_backward(float* dx, float* da, float* dgamma, float* dbeta, const float* dy, const float* x,
                           const float* a, const float* gamma, const float* mean, const float* rstd, int64_t rows,
                           int64_t d, Dropout dropout))

// y[b,l] = dropout(concat(table[tokens[b,l]], code[first + l])) with table [V,d], code [at least first + L, p]: y
// [B,L,d+p]. first[0] is the position of the first token (null: 0); it lies in device memory so that a captured
// graph can be replayed unchanged.
KERNEL(embedding_forward(float* y, const int32_t* tokens, const float* table, const float* code, const int32_t* first,
                         int64_t batch, int64_t length, int64_t d, int64_t p, Dropout dropout))
// dtable [V,d], summed over the tokens in their order.
KERNEL(embedding_backward(float* dtable, const float* dy, const int32_t* tokens, int64_t batch, int64_t length,
                          int64_t vocabulary, int64_t d, int64_t p, Dropout dropout))

// nll[r] = mask[r] (logsumexp(logits[r,:]) - logits[r,target[r]]), in nats; mask may be null (all ones).
KERNEL(cross_entropy_forward(float* nll, const float* logits, const int32_t* targets, const float* mask, int64_t rows,
                             int64_t vocabulary))
// dlogits[r,:] = scale[0] mask[r] (softmax(logits[r,:]) - onehot(target[r])).
KERNEL(cross_entropy_backward(float* dlogits, const float* scale, const float* logits, const int32_t* targets,
                              const float* mask, int64_t rows, int64_t vocabulary))
// drawn[r] from softmax(logits[r,:] / temperature) with one uniform of keys[r].fold(position[0]) (of keys[r] itself if
// position is null).
KERNEL(categorical_sample(int32_t* drawn, const float* logits, const Key* keys, const int32_t* position,
                          float temperature, int64_t rows, int64_t vocabulary))
// y[0] = a[0] / b[0]: a mean over a mask whose sum only the device knows.
KERNEL(divide(float* y, const float* a, const float* b))

// Connectionist temporal classification (Graves et al. 2006), see ctc_loss.cpp: logits z [B,T,V], targets [B,U];
// lengths and target_lengths [B] (null: all are T, or U).
struct CtcSizes {
  int64_t batch, frames, symbols, labels;  // B, T, V, U
  int32_t blank;
  bool zero_infinity;
  constexpr int64_t states() const { return 2 * labels + 1; }
};
// loss[b] = -log of the probability that the frames of sequence b spell its labels; infinity, or 0 if zero_infinity,
// where that is 0. For the backward pass, alpha [B,T,states] and normaliser [B,T] = log sum_k e^z, which may both be
// null: not wanted.
KERNEL(ctc_loss_forward(float* loss, float* alpha, float* normaliser, const float* logits, const int32_t* lengths,
                        const int32_t* targets, const int32_t* target_lengths, CtcSizes sizes))
KERNEL(ctc_loss_backward(float* dlogits, const float* dloss, const float* alpha, const float* normaliser,
                         const float* logits, const int32_t* lengths, const int32_t* targets,
                         const int32_t* target_lengths, CtcSizes sizes))

// Mixture of K discretized logistics (PixelCNN++, Salimans et al. 2017) over the bytes 0..255, which stand for
// -1, -1 + 2/255, ..., 1. params [rows,3K] hold K mixture logits, K means, K log-scales (taken as at least -7); see
// logistic_mixture.cpp. nll[r] = -log P(byte[r]), in nats.
KERNEL(logistic_mixture_forward(float* nll, const float* params, const int32_t* bytes, int64_t rows, int64_t k))
KERNEL(logistic_mixture_backward(float* dparams, const float* dnll, const float* params, const int32_t* bytes,
                                 int64_t rows, int64_t k))
// bytes[r] drawn from exactly that distribution with two uniforms of keys[r].fold(position[0]) (of keys[r] itself if
// position is null), sharpened by the temperature (1: none).
KERNEL(logistic_mixture_sample(int32_t* bytes, const float* params, const Key* keys, const int32_t* position,
                               float temperature, int64_t rows, int64_t k))

// total[0] = sum_i x[i], added in the same order every time.
KERNEL(sum(float* total, const float* x, int64_t n))
// y[i] = s[0]: the gradient of sum.
KERNEL(fill(float* y, const float* s, int64_t n))

// y[b,:] = the first n numbers of x[b,:], with rows of `row` in x.
KERNEL(first_positions(float* y, const float* x, int64_t batch, int64_t n, int64_t row))
// y[b,:] = first[b,:], of n numbers, and then x[b,n:], with rows of `row` in x and y. first or x may be null: zeros.
KERNEL(with_first_positions(float* y, const float* x, const float* first, int64_t batch, int64_t n, int64_t row))

// y[b] = mean of x[b,l] over l < lengths[b] (null: all), 0 if there are none: [B,L,D] -> [B,D]
KERNEL(mean_positions_forward(float* y, const float* x, const int32_t* lengths, int64_t batch, int64_t length,
                              int64_t d))
KERNEL(mean_positions_backward(float* dx, const float* dy, const int32_t* lengths, int64_t batch, int64_t length,
                               int64_t d))
// With a = x[2i], b = x[2i+1]: y[i] = (a, b, a b, a - b): [2 pairs,D] -> [pairs,4D]
KERNEL(pair_features_forward(float* y, const float* x, int64_t pairs, int64_t d))
KERNEL(pair_features_backward(float* dx, const float* dy, const float* x, int64_t pairs, int64_t d))

// --- sampling ---------------------------------------------------------------------------------------------------

// y[i,:] = x[rows[i],:], with rows of n.
KERNEL(gather_rows(float* y, const float* x, const int32_t* rows, int64_t count, int64_t n))
// rows[index[0],:] = row [n]. Partial write: all other rows are preserved.
KERNEL(put_row(int32_t* rows, const int32_t* row, const int32_t* index, int64_t n))
// y[i] = x[i] + by
KERNEL(shift(int32_t* y, const int32_t* x, int64_t by, int64_t n))
// position[0] += 1; where that is `period`, 0
KERNEL(advance(int32_t* position, int64_t period))

// --- attention --------------------------------------------------------------------------------------------------

// q [B,L,H,E], k [B,S,H,E], v [B,S,H,M], y [B,L,H,M]; lengths [B] (null: all are S): keys j >= lengths[b] are padding,
// which no query sees. A causal query sees only keys j <= i, and S is L. A query that sees no key gets zeros.
struct AttentionSizes {
  int64_t batch, length, key_length, heads, e, m;  // B, L, S, H, E, M
  bool causal;
  constexpr int64_t sequences() const { return batch * heads; }  // N
};

// Eq. 8-12 without the normaliser, Algorithm 1: y_i = q_i^T sum_{j<=i} k_j v_j^T.
KERNEL(causal_product_forward(float* y, const float* q, const float* k, const float* v, AttentionSizes sizes))
KERNEL(causal_product_backward(float* dq, float* dk, float* dv, const float* dy, const float* q, const float* k,
                               const float* v, AttentionSizes sizes))

// Causal linear attention with a feature map and the normaliser: y_i = phi(q_i)^T S_i / (phi(q_i)^T Z_i + eps), with
// S_i = S_0 + sum_{j<=i} phi(k_j) v_j^T [B,H,E,M] and Z_i = Z_0 + sum_{j<=i} phi(k_j) [B,H,E]. s0 and z0 (null: zero)
// are the state before the first position, s1 and z1 (null: not wanted) that after the last. States do not go with
// lengths.
KERNEL(causal_linear_attention_forward(float* y, float* s1, float* z1, const float* q, const float* k, const float* v,
                                       const float* s0, const float* z0, const int32_t* lengths, AttentionSizes sizes,
                                       FeatureMap map))
// ds0 and dz0 may be null: not wanted; ds1 and dz1, the gradients of the final state, may be null: zero.
KERNEL(causal_linear_attention_backward(float* dq, float* dk, float* dv, float* ds0, float* dz0, const float* dy,
                                        const float* ds1, const float* dz1, const float* y, const float* q,
                                        const float* k, const float* v, const float* s0, const float* z0,
                                        const int32_t* lengths, AttentionSizes sizes, FeatureMap map))
// Linear attention where every query sees all keys, eq. 5 and 6: one state for all of them.
KERNEL(full_linear_attention_forward(float* y, const float* q, const float* k, const float* v, const int32_t* lengths,
                                     AttentionSizes sizes, FeatureMap map))
KERNEL(full_linear_attention_backward(float* dq, float* dk, float* dv, const float* dy, const float* y, const float* q,
                                      const float* k, const float* v, const int32_t* lengths, AttentionSizes sizes,
                                      FeatureMap map))
// One position of causal linear attention, eq. 18-20: L = S = 1. Updates the state s [B,H,E,M], z [B,H,E] in place. The
// numbers of s are float32, or bfloat16, to which they are rounded after y has been computed.
KERNEL(linear_attention_step(float* y, float* s, float* z, const float* q, const float* k, const float* v,
                             AttentionSizes sizes, FeatureMap map, Precision of_s))
constexpr int64_t state_row(int64_t m, Precision of_s) {  // floats that a row of s takes, one or two numbers in each
  return of_s == Precision::bf16 ? (m + 1) / 2 : m;
}

// Positive random features (Choromanski et al. 2021) of x [rows,E] from its products p [rows,F] with the projection:
// y[r,c] = exp(s p[r,c] - s^2 |x_r|^2 / 2) / sqrt(F), s = E^(-1/4). dx is the gradient by way of the norm only.
KERNEL(positive_random_features_forward(float* y, const float* p, const float* x, int64_t rows, int64_t features,
                                        int64_t e))
KERNEL(positive_random_features_backward(float* dp, float* dx, const float* dy, const float* y, const float* x,
                                         int64_t rows, int64_t features, int64_t e))
// Their projection w [features,e]: row r is made of the normal numbers key.fold(0).normal(r e + i), orthogonal to the
// rows before it from the last multiple of e on, and as long as the row of the numbers key.fold(1).normal(r e + i).
KERNEL(random_projection(float* w, Key key, int64_t features, int64_t e))

// Softmax attention, eq. 2: y_i = sum_j p_ij v_j, p_ij = softmax over j of q_i . k_j / sqrt(E), and
// l [B,H,L] = log sum_j exp(q_i . k_j / sqrt(E)). The dropout is that of the weights p_ij.
KERNEL(softmax_attention_forward(float* y, float* l, const float* q, const float* k, const float* v,
                                 const int32_t* lengths, AttentionSizes sizes, Dropout dropout))
KERNEL(softmax_attention_backward(float* dq, float* dk, float* dv, const float* dy, const float* y, const float* l,
                                  const float* q, const float* k, const float* v, const int32_t* lengths,
                                  AttentionSizes sizes, Dropout dropout))
// The number, in the sense of `dropout`, of the first weight of query i of sequence n = b H + h: weights are counted as
// elements of a tensor [B,H,L,S'], S' being S rounded up to a multiple of 8, so that a Philox block belongs to one
// query.
constexpr int64_t first_weight(const AttentionSizes& s, int64_t n, int64_t i) {
  return (n * s.length + i) * ((s.key_length + 7) / 8 * 8);
}
// One position of causal softmax attention: writes k and v to column and row position[0] mod S of the caches [B,H,E,S]
// and [B,H,S,M], where S is their capacity, and attends to the last S positions up to there. L = 1.
KERNEL(softmax_attention_step(float* y, float* k_cache, float* v_cache, const float* q, const float* k, const float* v,
                              const int32_t* position, AttentionSizes sizes))

constexpr int64_t blocks_of(int64_t positions, int64_t block) { return (positions + block - 1) / block; }
// A BlockPattern (ops.h): query block r sees the key blocks keys[first_key[r]] .. keys[first_key[r + 1] - 1], and key
// block c is seen by the query blocks queries[first_query[c]] .., all ascending. If it is by length, a sequence whose
// keys fill n blocks, in part or whole, has number n of so many such lists, one after another.
struct BlockLists {
  int64_t query_block, key_block;  // positions in a block; the last ones may have fewer
  const int32_t *first_key, *keys, *first_query, *queries;
  std::optional<Band> band;
  bool by_length;
};
// Softmax attention of each query to the keys of the listed blocks, in the band if there is one; y and l [B,H,L] as
// above, l infinity where a query sees no key.
KERNEL(block_sparse_attention_forward(float* y, float* l, const float* q, const float* k, const float* v,
                                      BlockLists pattern, const int32_t* lengths, AttentionSizes sizes))
KERNEL(block_sparse_attention_backward(float* dq, float* dk, float* dv, const float* dy, const float* y, const float* l,
                                       const float* q, const float* k, const float* v, BlockLists pattern,
                                       const int32_t* lengths, AttentionSizes sizes))

// y[b,r,c] = sum_{j < lengths[b]} p[j,r] x[b,j,c] (lengths null: over all): x [B,S,C], p [rows,R], y [B,R,C]; rows >=
// S. dx is 0 at padding, dp from row S on.
struct PositionSizes {
  int64_t batch, length, width, rows, rank;  // B, S, C, rows, R
};
KERNEL(project_positions_forward(float* y, const float* x, const float* p, const int32_t* lengths, PositionSizes sizes))
KERNEL(project_positions_backward(float* dx, float* dp, const float* dy, const float* x, const float* p,
                                  const int32_t* lengths, PositionSizes sizes))

// x [B,S,H,E] in N blocks of positions, of which the last may be shorter; lengths [B] (null: all are S).
struct BlockSizes {
  int64_t batch, length, heads, width, block;  // B, S, H, E, positions
  constexpr int64_t blocks() const { return (length + block - 1) / block; }
};
// y[b,r] = sum of x[b,j] over the positions j < lengths[b] of block r: y [B,N,H,E]
KERNEL(block_sums_forward(float* y, const float* x, const int32_t* lengths, BlockSizes sizes))
KERNEL(block_sums_backward(float* dx, const float* dy, const int32_t* lengths, BlockSizes sizes))

// P [B,H,N,N] from logits [B,N,H,columns], whose first N columns are read: e^logits with rows and columns normalised in
// turn, see sinkhorn.cpp. Only blocks that are not padding alone take part; P is 0 in all other rows and columns.
struct SinkhornSizes {
  int64_t batch, blocks, heads, columns, block, iterations;
  constexpr int64_t sequences() const { return batch * heads; }
  // Where row r of sequence n = b H + h begins.
  constexpr int64_t logit(int64_t n, int64_t r) const {
    return ((n / heads * blocks + r) * heads + n % heads) * columns;
  }
};
KERNEL(sinkhorn_forward(float* p, const float* logits, const int32_t* lengths, SinkhornSizes sizes))
KERNEL(sinkhorn_backward(float* dlogits, const float* dp, const float* p, const float* logits, const int32_t* lengths,
                         SinkhornSizes sizes))

// y [B,N block + S,H,E]: first the blocks y_r = sum_c p[b,h,r,c] x_c, where positions at padding or past the end are 0,
// then x.
KERNEL(mix_blocks_forward(float* y, const float* p, const float* x, const int32_t* lengths, BlockSizes sizes))
KERNEL(mix_blocks_backward(float* dp, float* dx, const float* dy, const float* p, const float* x,
                           const int32_t* lengths, BlockSizes sizes))

// A bias of the scores: [H,rows,columns], shared by the batch, or [B,H,rows,columns]; rows >= L, columns >= S.
struct AttentionBias {
  const float* data;
  int64_t rows, columns;
  bool is_shared;
};
// Softmax attention, not causal, with the scores q_i . k_j / sqrt(E) + bias_ij; E = 0: bias_ij alone, and q, k, dq and
// dk are null. l is infinity where a query sees no key. dbias may be null: not wanted.
KERNEL(biased_softmax_attention_forward(float* y, float* l, const float* q, const float* k, const float* v,
                                        AttentionBias bias, const int32_t* lengths, AttentionSizes sizes))
KERNEL(biased_softmax_attention_backward(float* dq, float* dk, float* dv, float* dbias, const float* dy, const float* y,
                                         const float* l, const float* q, const float* k, const float* v,
                                         AttentionBias bias, const int32_t* lengths, AttentionSizes sizes))

// Reformer's attention, see lsh_attention.cpp. S is L.
constexpr int64_t lsh_most = 256;           // E, M and the positions of a chunk
constexpr int64_t lsh_most_buckets = 4096;  // CUDA counts them in shared memory
// rotations[i] = key.normal(i)
KERNEL(lsh_rotations(float* rotations, Key key, int64_t n))
// buckets [rounds,B,H,L]: the index of the first largest number in [q_i R, -q_i R], with the rotations R
// [rounds,H,E,buckets/2].
KERNEL(lsh_hash(int32_t* buckets, const float* q, const float* rotations, AttentionSizes sizes, Lsh lsh))
// Sorts the positions of each sequence and round by bucket and position, padding last. The query at a place of that
// order sees the places [begin,end) but itself, all three [rounds,B,H,L]: those of its bucket in its chunk and in the
// chunk before; if causal, those before its own. begin and end never decrease from place to place; padding sees
// nothing.
KERNEL(lsh_sort(int32_t* order, int32_t* begin, int32_t* end, const int32_t* buckets, const int32_t* lengths,
                AttentionSizes sizes, Lsh lsh))
struct LshPlaces {
  const int32_t *order, *begin, *end;  // [rounds,B,H,L]
};
// y_i = sum_j p_ij v_j, p_ij = e^(x_ij - l_i), x_ij = q_i . k_j / sqrt(E), k_j = q_j / |q_j| (0 where |q_j| < 1e-6),
// where j runs over what i sees in a round, in one round after the other. A query that sees nothing in any of them has
// y_i = v_i and l_i = infinity; at padding, y_i = 0. l [B,H,L].
KERNEL(lsh_attention_forward(float* y, float* l, const float* q, const float* v, LshPlaces places,
                             const int32_t* lengths, AttentionSizes sizes, Lsh lsh))
KERNEL(lsh_attention_backward(float* dq, float* dv, const float* dy, const float* y, const float* l, const float* q,
                              const float* v, LshPlaces places, const int32_t* lengths, AttentionSizes sizes, Lsh lsh))

// --- optimizer --------------------------------------------------------------------------------------------------

// RAdam (Liu et al. 2020) as the authors train: see radam.cpp.
struct RAdamTensor {
  float *parameter, *m, *v;  // read and written
  const float* gradient;
  int64_t n;
};
// squares [count+1] = the squared norm of each tensor's gradient, summed in double and rounded once, and their sum.
// tensors: an array in host memory.
KERNEL(sums_of_squares(float* squares, const RAdamTensor* tensors, int64_t count))
// What changes from update to update lies in device memory, so that a captured update (engine/replay.h) can be
// replayed: squares as above, and rates = {size, decay, adaptive, eps}, with which
//   parameter -= decay parameter + size m / (adaptive ? sqrt(v) + eps : 1).
// If the last of the squares is not finite, nothing changes.
KERNEL(radam_step(const RAdamTensor* tensors, int64_t count, const float* squares, const float* rates, RAdamStep step))

// Muon (Jordan et al. 2024), for matrices: momentum of normalised gradients, whose singular values are made equal,
// about; see muon.cpp.
struct MuonMatrix {
  float *parameter, *m;  // [rows,columns], read and written
  const float* gradient;
  int64_t rows, columns;
};
struct NewtonSchulz {  // singular values s become a s + b s^3 + c s^5
  float a, b, c;
};
constexpr NewtonSchulz newton_schulz{3.4445f, -4.7750f, 2.0315f};
constexpr int newton_schulz_steps = 5;
// matrices: an array in host memory. squares [count] are those of their gradients; all_squares[0], of all gradients, is
// finite or nothing changes. rates = {size, decay}: the root mean square of the step, about, and
// parameter -= decay parameter.
KERNEL(muon_step(const MuonMatrix* matrices, int64_t count, const float* squares, const float* all_squares,
                 const float* rates, double momentum))

}  // namespace runnel
