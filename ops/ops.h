// What can be computed. Every op checks its arguments, allocates its result, runs a kernel on the device of its inputs
// and records its gradient rule. Errors name the op, the argument and the shapes. Numbers that would have to be fetched
// from a GPU to be looked at (tokens, targets) are checked on the CPU only.
//
// Letters, here and everywhere: B batch, H heads, L length, E feature dimension, M value dimension, D model width, F
// feed-forward width, V vocabulary, C chunk, S key length, K mixture components, N = B H. "..." stands for any axes;
// rows are their product.
#pragma once
#include <optional>
#include <span>

#include "engine/numerics.h"
#include "engine/random.h"
#include "engine/tape.h"
#include "engine/tensor.h"
#include "ops/types.h"

namespace runnel {

Tensor add(const Tensor& a, const Tensor& b);          // [...] [...] -> [...]
Tensor scale(const Tensor& x, float s);                // [...] -> [...]
Tensor scale(const Tensor& x, const Tensor& factors);  // [...] [...] -> [...]; no gradient for the factors
Tensor add_bias(const Tensor& x, const Tensor& b);     // [...,D] [D] -> [...,D]
Tensor relu(const Tensor& x);                          // [...] -> [...]
Tensor gelu(const Tensor& x);                          // [...] -> [...], exact (erf)
Tensor elu_plus_one(const Tensor& x);                  // [...] -> [...], eq. 7
Tensor dropout(const Tensor& x, Dropout dropout);      // [...] -> [...]
Tensor reshape(const Tensor& x, Shape shape);          // the same numbers, the same storage
Tensor sum(const Tensor& x);                           // [...] -> []

// The columns of a, then those of b. b [at least L,...,n] may also be what a batch a [B,L,...,m] shares.
Tensor concat(const Tensor& a, const Tensor& b);  // [...,m] [...,n] -> [...,m+n]

// op(a) op(b)
Tensor matmul(const Tensor& a, const Tensor& b, bool transpose_a = false, bool transpose_b = false);  // 2-D

// dropout(activation(x w^T + b)); an empty b means no bias.
Tensor linear(const Tensor& x, const Tensor& w, const Tensor& b, Activation activation = Activation::none,
              Dropout dropout = {});  // [...,in] [out,in] [out] -> [...,out]

// The same with several w and b: the results of layers with one input. Where w and b are parts of one tensor each
// (Tensor::parts), they are one matrix product on CUDA.
std::vector<Tensor> linear(const Tensor& x, const std::vector<Tensor>& w, const std::vector<Tensor>& b,
                           Activation activation = Activation::none, Dropout dropout = {});

// The w [out,in] and b [out] of `linear` in the order in which few rows are multiplied fastest: for sampling, where the
// same weights are needed at every position. A copy, in the precision() of now; has no gradient.
class PackedLinear {
 public:
  PackedLinear(const Tensor& w, const Tensor& b);

 private:
  friend std::vector<Tensor> linear(const Tensor& x, std::span<const PackedLinear> layers, Activation activation);
  Tensor w_, b_;
  Tensor panels_;                         // on the CPU: w in that order
  Precision precision_ = Precision::f32;  // of the panels: f32, bf16 or int8
};
// Each layer's activation(x w^T + b), all at once: [...,in] -> [...,out] of each.
std::vector<Tensor> linear(const Tensor& x, std::span<const PackedLinear> layers,
                           Activation activation = Activation::none);
inline Tensor linear(const Tensor& x, const PackedLinear& layer, Activation activation = Activation::none) {
  return linear(x, {&layer, 1}, activation)[0];
}

// States of a layer of D directions, h and c [D,B,H] both; empty: zero.
struct LstmState {
  Tensor h, c;
};
struct LstmResult {
  Tensor y;  // [B,T,D H], 0 at padding
  LstmState state;
};
// A layer of a long short-term memory, as PyTorch defines it. Of each direction, forward and then backward: the gates
// W x + b, in blocks i, f, g, o, and the recurrent weights. Sequence b has lengths[b] frames (empty: T): the backward
// direction begins at its last one.
LstmResult lstm(const std::vector<Tensor>& gates, const std::vector<Tensor>& w, const Indices& lengths = {},
                const LstmState& initial = {});  // D times [B,T,4H], D times [4H,H], [B]

// Over the last axis, with eps = 1e-5 as in the authors' framework.
Tensor layer_norm(const Tensor& x, const Tensor& gamma, const Tensor& beta);  // [...,D] [D] [D] -> [...,D]
// layer_norm(x + dropout(a)): how a post-norm block ends.
Tensor add_layer_norm(const Tensor& x, const Tensor& a, const Tensor& gamma, const Tensor& beta, Dropout dropout = {});

// dropout(concat(table[token], code[first + l])): learned embedding beside a fixed position code. An empty code is
// left out, an empty first is 0. On the CPU, throws if a token is not in [0, V) or code has too few rows.
Tensor embedding(const Indices& tokens, const Tensor& table, const Tensor& code, Dropout dropout = {},
                 const Indices& first = {});  // [B,L] [V,D1] [at least first+L,D2] . [1] -> [B,L,D1+D2]

// -log softmax(logits)[target], in nats, averaged over the positions weighted by mask [...] (empty: all ones).
Tensor cross_entropy(const Tensor& logits, const Indices& targets, const Tensor& mask = {});  // [...,V] [...] -> []
// The same at each position.
Tensor categorical_nll(const Tensor& logits, const Indices& targets);  // [...,V] [...] -> [...]
// One target per row, drawn from softmax(logits / temperature) with keys[r], or with keys[r].fold(position).
Indices categorical_sample(const Tensor& logits, const Keys& keys, float temperature = 1,
                           const Indices& position = {});  // [...,V] [rows] . [1] -> [...]

struct CtcOptions {
  int32_t blank = 0;           // the symbol that stands for none
  bool zero_infinity = false;  // labels that do not fit into their frames: loss 0, not infinity; the gradient is 0
};
// Connectionist temporal classification (Graves et al. 2006): -log of the probability, in nats, that symbols drawn from
// the softmax of each frame spell the targets, once repeated symbols are merged and blanks dropped. T frames, of which
// lengths[b] count, and U labels, of which target_lengths[b] count; empty: all.
Tensor ctc_loss(const Tensor& logits, const Indices& lengths, const Indices& targets, const Indices& target_lengths,
                const CtcOptions& options = {});  // [B,T,V] [B] [B,U] [B] -> [B]

// -log P(byte) in nats under a mixture of K discretized logistics, per position; see logistic_mixture.cpp.
Tensor logistic_mixture_nll(const Tensor& params, const Indices& bytes);  // [...,3K] [...] -> [...]
// One byte per row, drawn from that very distribution with keys[r], or with keys[r].fold(position). A temperature below
// 1 sharpens it.
Indices logistic_mixture_sample(const Tensor& params, const Keys& keys, float temperature = 1,
                                const Indices& position = {});  // [...,3K] [rows] . [1] -> [...]

// x[:,:n].
Tensor first_positions(const Tensor& x, int64_t n);  // [B,L,...] -> [B,n,...]
// x whose first positions are `first`.
Tensor with_first_positions(const Tensor& x, const Tensor& first);  // [B,L,...] [B,n,...] -> [B,L,...]

// The mean of each sequence's positions before lengths[b], 0 if there are none. Empty lengths: all are L.
Tensor mean_positions(const Tensor& x, const Indices& lengths);  // [B,L,D] [B] -> [B,D]
// Of pairs of rows a, b one after the other: (a, b, a b, a - b), element by element.
Tensor pair_features(const Tensor& x);  // [2B,D] -> [B,4D]

// The rows of x along its first axis that are asked for. Has no gradient.
Tensor gather_rows(const Tensor& x, const Indices& rows);  // [n,...] [count] -> [count,...]

Indices shifted(const Indices& x, int64_t by);  // x + by

// In place, without gradients: what sampling and optimizers need. Indices and positions may lie on the device, so that
// a captured graph (engine/replay.h) can be replayed unchanged. On the CPU, throws if there is no such row.
void put_row(Indices& rows, const Indices& row, const Indices& index);  // rows[index[0]] = row
void advance(Indices& position, int64_t period = 0);                    // position[0] += 1; where that is the period, 0

// The squared norm of each gradient and, last, of all of them together: [count] tensors -> [count + 1]. An update with
// squares whose last is not finite changes nothing.
Tensor sums_of_squares(const std::vector<Tensor>& gradients);
// One update of rectified Adam (Liu et al. 2020) of each parameter and its moments m and v, all of one shape. The
// squared norms of their gradients are squares[first], squares[first + 1] ...; the last of squares is that of all.
// rates [4]: see ops/kernels.h.
struct RAdamUpdate {
  Tensor parameter, m, v, gradient;
};
void radam_step(std::vector<RAdamUpdate> updates, const Tensor& squares, int64_t first, const Tensor& rates,
                const RAdamStep& step);
// One update of Muon (Jordan et al. 2024) of each matrix and its momentum m. squares[i] is that of update i's gradient,
// the last that of all. rates [2]: see ops/kernels.h.
struct MuonUpdate {
  Tensor parameter, m, gradient;
};
void muon_step(std::vector<MuonUpdate> updates, const Tensor& squares, const Tensor& rates, double momentum);

// --- attention: q [B,L,H,E], k [B,S,H,E], v [B,S,H,M] -> y [B,L,H,M] ---------------------------------------------

// Which keys a query sees. One that sees none gets zeros.
struct AttentionMask {
  bool causal = true;    // only keys j <= i; S must be L
  Indices lengths = {};  // [B]: keys j >= lengths[b] are padding, which no query sees; empty: all are S
};

// y_i = q_i^T sum_{j<=i} k_j v_j^T, eq. 8-12 without the normaliser, gradients by eq. 13-15.
Tensor causal_product(const Tensor& q, const Tensor& k, const Tensor& v);

// Linear attention, eq. 4-12: y_i = phi(q_i)^T S_i / (phi(q_i)^T Z_i + eps), where S_i = sum_j phi(k_j) v_j^T and
// Z_i = sum_j phi(k_j) are sums over the keys that query i sees.
Tensor linear_attention(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionMask& mask = {},
                        FeatureMap map = FeatureMap::elu_plus_one);

// The state of causal linear attention after some position, S [B,H,E,M] and Z [B,H,E]; empty: zero, before the first.
// For decoding, S may be kept in bfloat16, two numbers of a row in each float: s is [B,H,E,(M+1)/2] then.
struct AttentionState {
  Tensor s, z;
  Precision precision = Precision::f32;  // of S: f32 or bf16
};
// S and Z before the first position, for S of this shape: [B,H,E,M].
AttentionState zero_state(const Shape& of_s, Precision precision, Device device);
struct LinearAttentionResult {
  Tensor y;
  AttentionState state;
};
// Causal linear attention that goes on from a state and returns the one after its last position. Differentiable in
// both: a sequence may be computed in segments. Truncated backpropagation through time, one update per segment:
//
//   auto [y, next] = linear_attention(q, k, v, state);
//   optimizer.step(tape.backward(loss(y)));
//   state = {next.s.set_wants_grad(false), next.z.set_wants_grad(false)};  // a constant to the next segment
LinearAttentionResult linear_attention(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionState& initial,
                                       FeatureMap map = FeatureMap::elu_plus_one);
// One position, eq. 18-20, for decoding: updates the state in place. L = S = 1. Has no gradient. In bf16, S is rounded
// after each position; y is computed before that.
Tensor linear_attention_step(const Tensor& q, const Tensor& k, const Tensor& v, AttentionState& state,
                             FeatureMap map = FeatureMap::elu_plus_one);

// Positive random features (Choromanski et al. 2021): f_c = exp(w_c . x' - |x'|^2 / 2) / sqrt(F), x' = x / E^(1/4),
// with w_c the rows of the projection, which gets no gradient. Linear attention on them, with FeatureMap::identity,
// estimates softmax attention. f_c is at most exp(|w_c|^2 / 2) / sqrt(F), whatever x.
Tensor positive_random_features(const Tensor& x, const Tensor& projection);  // [...,E] [F,E] -> [...,F]
// [F,E]: normal rows, made orthogonal E at a time, which lowers the variance of the estimate.
Tensor random_projection(int64_t features, int64_t e, Key key, Device device = Device::cpu);

// Softmax attention, eq. 2: y_i = sum_j p_ij v_j, where p_ij is the softmax over the keys j that query i sees of
// q_i . k_j / sqrt(E). Memory grows with L, not with its square. The dropout is applied to the weights p_ij.
Tensor softmax_attention(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionMask& mask = {},
                         Dropout dropout = {});

// The KV cache of causal softmax attention ("stateful softmax" in the paper): keys and values of all positions so far.
struct KeyValueCache {
  Tensor k, v;         // [B,H,E,capacity] [B,H,capacity,M], of which the first positions are filled
  bool wraps = false;  // position p is kept at place p mod capacity, until another takes it: the last positions stay
};
// Causal softmax attention at one position, position[0], for decoding: puts k and v into the cache, in place, and
// attends to all positions there up to it. L = S = 1; on CUDA, M is at most 256. Has no gradient.
Tensor softmax_attention_step(const Tensor& q, const Tensor& k, const Tensor& v, KeyValueCache& cache,
                              const Indices& position);

// Which keys queries see in block_sparse_attention: those of query block r see all keys of the blocks seen[r], numbers
// in ascending order; or those of them that lie in a band. Positions [r n, (r + 1) n) are block r of blocks of n; the
// last block may be shorter. By length: seen[n R + r] are those of query block r of R where the mask's length leaves n
// key blocks, for n from 0 to all of them.
struct BlockPattern {
  BlockPattern(int64_t query_block, int64_t key_block, const std::vector<std::vector<int32_t>>& seen,
               int64_t key_blocks, Device device, std::optional<Band> band = {}, bool by_length = false);
  int64_t query_block, key_block;  // positions
  Indices first_key, keys;         // seen[r] is keys[first_key[r]] .. keys[first_key[r + 1] - 1]
  Indices first_query, queries;    // the same from the keys' side: the query blocks that see a key block
  std::optional<Band> band;
  bool by_length;
};
// Softmax attention of each query to the keys that the pattern and the mask let it see. Time and memory grow with the
// pairs of blocks that are listed.
Tensor block_sparse_attention(const Tensor& q, const Tensor& k, const Tensor& v, const BlockPattern& pattern,
                              const AttentionMask& mask = {});

// Learned sums over positions: y[b,r] = sum_j p[j,r] x[b,j] over the j < lengths[b], or all if lengths are empty. At
// padding, the gradient of x is 0.
Tensor project_positions(const Tensor& x, const Tensor& p,
                         const Indices& lengths = {});  // [B,S,...] [at least S,R] [B] -> [B,R,...]

// What Sparse Sinkhorn Attention (Tay et al. 2020) is made of. Blocks of positions are those of BlockPattern, N in all;
// positions j >= lengths[b] are padding, which is 0 where sums are taken (lengths empty: there is none).
Tensor block_sums(const Tensor& x, int64_t block, const Indices& lengths = {});  // [B,S,H,E] [B] -> [B,N,H,E]
// Doubly stochastic matrices: e^logits of the first N columns, whose rows and then columns are normalised, `iterations`
// times. Rows and columns of blocks that are padding alone are 0.
Tensor sinkhorn(const Tensor& logits, int64_t iterations, int64_t block,
                const Indices& lengths = {});  // [B,N,H,at least N] [B] -> [B,H,N,N]
// The blocks sum_c p[b,h,r,c] x_c, and behind them x itself.
Tensor mix_blocks(const Tensor& p, const Tensor& x, int64_t block,
                  const Indices& lengths = {});  // [B,H,N,N] [B,S,H,E] [B] -> [B,N block + S,H,E]

// Softmax attention with the logits q_i . k_j / sqrt(E) + bias_ij; without q and k (both empty): bias_ij, and L is S.
// bias is [H,rows,columns], shared by the batch, or [B,H,rows,columns]; its first L rows and S columns count. The mask
// must not be causal.
Tensor biased_softmax_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& bias,
                                const AttentionMask& mask);

// Reformer's attention (Kitaev et al. 2020): in each of several rounds, positions are hashed into buckets by a random
// rotation per head, sorted by bucket and cut into chunks; a query sees the keys of its bucket in its chunk and in the
// one before, but itself only if it sees nothing else in any round. Keys are the queries, normalised to unit length.
// The rotations [rounds,H,E,buckets/2] are the normal numbers of `rotations`, in this order. At padding, y is 0. S is
// L; E, M and chunk are at most 256.
Tensor lsh_attention(const Tensor& q, const Tensor& v, const AttentionMask& mask, const Lsh& lsh, Key rotations);

}  // namespace runnel
