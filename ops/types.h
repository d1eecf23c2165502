// Settings of ops, shared by their public functions and their kernels.
#pragma once
#include <cstdint>

namespace runnel {

enum class Activation { none, relu, gelu };  // gelu: x Phi(x)

// phi, which linear attention applies to each element of queries and keys; results are positive.
enum class FeatureMap {
  elu_plus_one,  // elu(x) + 1, eq. 7
  relu,          // max(x, 0) + 1e-3
  identity       // x, which must be positive: features already, such as positive_random_features computes. One of
                 // exactly 0, where those underflow, gets no gradient
};

// How gated linear attention writes v at key k into its state: added, or instead of the value that is found there.
enum class UpdateRule { additive, delta };

// Added to a sum of features, so that 0 / 0 is 0. The authors add 1e-6, beside which the features of sharply peaked
// heads (models/local_heads.h) are too small: their outputs would become 0, with zero gradient.
constexpr float normaliser_eps = 1e-24f;

// Reformer's attention by locality-sensitive hashing (Kitaev et al. 2020); see ops/cpu/attention/lsh_attention.cpp.
struct Lsh {
  int64_t rounds = 4, buckets = 32, chunk = 32;  // buckets is even
};

// Settings of rectified Adam, the same in all updates; see ops/cpu/radam.cpp.
struct RAdamStep {
  double beta1, beta2;
  double clip, global_clip;  // largest norm of each gradient, and of all together; 0: any
};

}  // namespace runnel
