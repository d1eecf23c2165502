// The kernels of ops/lra/, for `runnel bench kernels`.
#include <algorithm>

#include "apps/bench/kernels.h"
#include "apps/lra/classification.h"
#include "ops/kernels/lra.h"
#include "ops/lra/attention.h"

namespace runnel {

std::vector<BenchKernel> lra_kernels(Device device) {
  std::vector<BenchKernel> all;
  KernelInputs in(device);
  constexpr int64_t length = in.length, heads = in.heads, e = in.e;
  const int64_t batch = in.batch, rows = in.rows, sequences = in.sequences;
  const double N = static_cast<double>(in.n), S = static_cast<double>(sequences), L = length, E = e;
  const AttentionSizes sizes{batch, length, length, heads, e, e, true}, full{batch, length, length, heads, e, e, false};
  Tensor x0 = in.x0, x1 = in.x1, x2 = in.x2, l = in.l;
  const Tensor a = in.a, b = in.b, c = in.c, g = in.g;
  CASE(3 * N, 5 * N, positive_random_features_forward, x0.data(), a.data(), b.data(), rows * heads, e, e);
  CASE(5 * N, 5 * N, positive_random_features_backward, x0.data(), x1.data(), g.data(), a.data(), b.data(),
       rows * heads, e, e);
  constexpr int64_t local = 64;  // queries see their block of so many keys
  std::vector<std::vector<int32_t>> own_block;
  for (int64_t r = 0; r * local < length; ++r) own_block.push_back({static_cast<int32_t>(r)});
  const BlockPattern pattern(local, local, own_block, std::ssize(own_block), device);
  const auto lists_of = [](const BlockPattern& p) {
    return BlockLists{p.query_block,    p.key_block, p.first_key.data(), p.keys.data(), p.first_query.data(),
                      p.queries.data(), p.band,      p.by_length};
  };
  const double nearby = S * L * std::min<double>(L, local) / 2;
  CASE(4 * N, 4 * nearby * E, block_sparse_attention_forward, x0.data(), l.data(), a.data(), b.data(), c.data(),
       lists_of(pattern), nullptr, sizes);
  CASE(8 * N, 10 * nearby * E, block_sparse_attention_backward, x0.data(), x1.data(), x2.data(), g.data(), a.data(),
       l.data(), a.data(), b.data(), c.data(), lists_of(pattern), nullptr, sizes);
  const SinkhornSizes mixed{batch, length / 16, heads, length / 16, 16, 5};
  const double matrices = S * static_cast<double>(mixed.blocks * mixed.blocks);
  const Tensor mixture = Tensor::full({sequences, mixed.blocks, mixed.blocks}, 1, device);
  Tensor small2 = Tensor::full({sequences, mixed.blocks, mixed.blocks}, 0, device);
  CASE(2 * matrices, 20 * matrices, sinkhorn_forward, small2.data(), a.data(), nullptr, mixed);
  CASE(4 * matrices, 50 * matrices, sinkhorn_backward, small2.data(), g.data(), mixture.data(), a.data(), nullptr,
       mixed);
  const Tensor logits_bias = in.floats({heads, length, length});
  Tensor bias_gradient(logits_bias.shape(), device);
  const double all_scores = S * L * L, B = static_cast<double>(logits_bias.size());
  CASE(4 * N + B, 4 * all_scores * E, biased_softmax_attention_forward, x0.data(), l.data(), a.data(), b.data(),
       c.data(), (AttentionBias{logits_bias.data(), length, length, true}), nullptr, full);
  CASE(8 * N + 2 * B, 10 * all_scores * E, biased_softmax_attention_backward, x0.data(), x1.data(), x2.data(),
       bias_gradient.data(), g.data(), a.data(), l.data(), a.data(), b.data(), c.data(),
       (AttentionBias{logits_bias.data(), length, length, true}), nullptr, full);
  return all;
}

}  // namespace runnel
