// One update of each tensor by rectified Adam (Liu et al., "On the variance of the adaptive learning rate and beyond",
// ICLR 2020), as the authors train with it:
//   g := g min(1, clip / (|g| + 1e-6))        first to the norm allowed to all gradients together, then to this one's
//   m := beta1 m + (1 - beta1) g
//   v := beta2 v + (1 - beta2) g^2
//   p := p - decay p                          decoupled weight decay, decay = weight decay * learning rate
//   p := p - size m / (sqrt(v) + eps)         or, in the first steps, p - size m
// Scalars that change only from step to step (size, decay, eps, and whether v is trusted yet) are computed by RAdam in
// models/optimizer.cpp. All in one pass over memory: four arrays read, three written.
#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/cpu/loops.h"
#include "ops/cpu/scratch.h"
#include "ops/kernels/optimizers.h"

namespace runnel {
namespace {

// The factor that brings a vector down to the norm `limit` (0: any).
double clipping(double norm, double limit) { return limit > 0 ? std::min(1.0, limit / (norm + 1e-6)) : 1; }

template <bool adaptive>
void update(const RAdamTensor& tensor, double clip, const float* rates, const RAdamStep& step) {
  float *const parameter = tensor.parameter, *const m = tensor.m, *const v = tensor.v;
  const float* const gradient = tensor.gradient;
  const int64_t n = tensor.n;
  const float scale = static_cast<float>(clip);
  const float beta1 = static_cast<float>(step.beta1), rest1 = static_cast<float>(1 - step.beta1);
  const float beta2 = static_cast<float>(step.beta2), rest2 = static_cast<float>(1 - step.beta2);
  const float size = rates[0], decay = rates[1], eps = rates[3];
  constexpr int64_t piece = 1 << 12;
  parallel_pieces(n, piece, n >= parallel_from, [=](int64_t begin, int64_t count) {
    for (int64_t i = begin; i < begin + count; i += lanes) {
      const int64_t left = n - i;
      const Lanes g = scale * load(gradient + i, left), before = load(parameter + i, left);
      const Lanes first = beta1 * load(m + i, left) + rest1 * g, second = beta2 * load(v + i, left) + rest2 * g * g;
      const Lanes direction = adaptive ? first / (sqrt(second) + eps) : first;
      store(m + i, first, left);
      store(v + i, second, left);
      store(parameter + i, before - decay * before - size * direction, left);
    }
  });
}

}  // namespace

void cpu::radam_step(const RAdamTensor* tensors, int64_t count, const float* squares, const float* rates,
                     RAdamStep step) {
  if (!std::isfinite(squares[count])) return;
  const double global_scale = clipping(std::sqrt(squares[count]), step.global_clip);
  const auto update_one = rates[2] > 0 ? update<true> : update<false>;
  for (int64_t i = 0; i < count; ++i)
    update_one(tensors[i], global_scale * clipping(global_scale * std::sqrt(squares[i]), step.clip), rates, step);
}

namespace {

// Blocks of a fixed size, added in their order: the same bytes with any number of threads.
double sum_of_squares(const float* x, int64_t n) {
  constexpr int64_t block = 4096;
  const int64_t blocks = (n + block - 1) / block;
  const Scratch memory(2 * blocks);
  double* const partial = reinterpret_cast<double*>(memory.data());
  parallel_for(blocks, n >= parallel_from, [=](int64_t b) {
    const int64_t end = std::min(n, (b + 1) * block);
    DoubleLanes even{}, odd{};
    int64_t i = b * block;
    for (; i + lanes <= end; i += lanes) {
      const DoubleLanes p = load_double(x + i), q = load_double(x + i + double_lanes);
      even += p * p;
      odd += q * q;
    }
    partial[b] = lane_sum(even + odd);
    for (; i < end; ++i) partial[b] += static_cast<double>(x[i]) * x[i];
  });
  double total = 0;
  for (int64_t b = 0; b < blocks; ++b) total += partial[b];
  return total;
}

}  // namespace

void cpu::sums_of_squares(float* squares, const RAdamTensor* tensors, int64_t count) {
  double total = 0;
  for (int64_t i = 0; i < count; ++i) {
    const double square = sum_of_squares(tensors[i].gradient, tensors[i].n);
    squares[i] = static_cast<float>(square);
    total += square;
  }
  squares[count] = static_cast<float>(total);
}

}  // namespace runnel
