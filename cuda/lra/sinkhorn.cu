// Sinkhorn's normalisation: ops/cpu/lra/sinkhorn.cpp has the derivation and the letters x, u, v, g.
#include <cmath>

#include "cuda/launch.h"
#include "cuda/temporary.h"
#include "ops/kernels/lra.h"

namespace runnel::cuda {
namespace {

// One sequence's logits and the u and v of every step, which the block of threads finds and then reads.
struct Balance {
  const float* logits;
  float* steps;  // [iterations,2,N]
  SinkhornSizes s;
  int count;  // of blocks that are not padding alone
  int64_t row;

  __device__ Balance(const float* all_logits, float* all_steps, const int32_t* lengths, const SinkhornSizes& sizes)
      : logits(all_logits + sizes.logit(blockIdx.x, 0)),
        steps(all_steps + static_cast<int64_t>(blockIdx.x) * sizes.iterations * 2 * sizes.blocks),
        s(sizes),
        count(static_cast<int>(lengths ? (lengths[blockIdx.x / sizes.heads] + sizes.block - 1) / sizes.block
                                       : sizes.blocks)),
        row(sizes.heads * sizes.columns) {}
  __device__ float* u(int64_t k) const { return steps + 2 * k * s.blocks; }
  __device__ float* v(int64_t k) const { return u(k) + s.blocks; }
  __device__ float x(int r, int c) const { return logits[r * row + c]; }
  __device__ float shift(int64_t k, int c) const { return k >= 0 ? v(k)[c] : 0; }
  __device__ float weight(int r, int c, int64_t k, int64_t l) const { return expf(x(r, c) - u(k)[r] - shift(l, c)); }

  __device__ void find() const {
    const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x), lane = thread % 32;
    for (int64_t k = 0; k < s.iterations; ++k) {
      for (int r = thread / 32; r < count; r += threads / 32) {
        float largest = -INFINITY, sum = 0;
        for (int c = lane; c < count; c += 32) largest = fmaxf(largest, x(r, c) - shift(k - 1, c));
        largest = warp_max(largest);
        for (int c = lane; c < count; c += 32) sum += expf(x(r, c) - shift(k - 1, c) - largest);
        sum = warp_sum(sum);
        if (lane == 0) u(k)[r] = largest + logf(sum);
      }
      __syncthreads();
      for (int c = thread; c < count; c += threads) {
        float largest = -INFINITY, sum = 0;
        for (int r = 0; r < count; ++r) largest = fmaxf(largest, x(r, c) - u(k)[r]);
        for (int r = 0; r < count; ++r) sum += expf(x(r, c) - u(k)[r] - largest);
        v(k)[c] = largest + logf(sum);
      }
      __syncthreads();
    }
  }
};

// Launch: a block per sequence. Owns: the block its matrix and its u and v. Shared: none.
__global__ void sinkhorn_forward_kernel(float* p, const float* logits, float* steps, const int32_t* lengths,
                                        SinkhornSizes s) {
  const Balance balance(logits, steps, lengths, s);
  balance.find();
  const int n = static_cast<int>(s.blocks);
  p += static_cast<int64_t>(blockIdx.x) * n * n;
  for (int i = static_cast<int>(threadIdx.x); i < n * n; i += static_cast<int>(blockDim.x)) {
    const int r = i / n, c = i % n;
    p[i] = r < balance.count && c < balance.count ? balance.weight(r, c, s.iterations - 1, s.iterations - 1) : 0;
  }
}

// g lies where its last value goes, in dlogits.
// Launch, owns, shared: as above; a warp owns a row and a thread a column in turn.
__global__ void sinkhorn_backward_kernel(float* dlogits, const float* dp, const float* p, const float* logits,
                                         float* steps, const int32_t* lengths, SinkhornSizes s) {
  const Balance balance(logits, steps, lengths, s);
  balance.find();
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x), lane = thread % 32;
  const int n = static_cast<int>(s.blocks), columns = static_cast<int>(s.columns), count = balance.count;
  const int64_t matrix = static_cast<int64_t>(blockIdx.x) * n * n;
  float* const first = dlogits + s.logit(blockIdx.x, 0);
  const auto g = [&](int r, int c) -> float& { return first[r * balance.row + c]; };
  for (int i = thread; i < n * columns; i += threads) {
    const int r = i / columns, c = i % columns;
    g(r, c) = r < count && c < count ? dp[matrix + r * n + c] * p[matrix + r * n + c] : 0;
  }
  __syncthreads();
  for (int64_t k = s.iterations - 1; k >= 0; --k) {
    for (int c = thread; c < count; c += threads) {
      float sum = 0;
      for (int r = 0; r < count; ++r) sum += g(r, c);
      for (int r = 0; r < count; ++r) g(r, c) -= balance.weight(r, c, k, k) * sum;
    }
    __syncthreads();
    for (int r = thread / 32; r < count; r += threads / 32) {
      float sum = 0;
      for (int c = lane; c < count; c += 32) sum += g(r, c);
      sum = warp_sum(sum);
      for (int c = lane; c < count; c += 32) g(r, c) -= balance.weight(r, c, k, k - 1) * sum;
    }
    __syncthreads();
  }
}

}  // namespace

void sinkhorn_forward(float* p, const float* logits, const int32_t* lengths, SinkhornSizes s) {
  const Temporary<float> steps(s.sequences() * s.iterations * 2 * s.blocks);
  launch("sinkhorn_forward", sinkhorn_forward_kernel, Grid{dim3(static_cast<unsigned>(s.sequences())), dim3(256)}, p,
         logits, steps.data(), lengths, s);
}

void sinkhorn_backward(float* dlogits, const float* dp, const float* p, const float* logits, const int32_t* lengths,
                       SinkhornSizes s) {
  const Temporary<float> steps(s.sequences() * s.iterations * 2 * s.blocks);
  launch("sinkhorn_backward", sinkhorn_backward_kernel, Grid{dim3(static_cast<unsigned>(s.sequences())), dim3(256)},
         dlogits, dp, p, logits, steps.data(), lengths, s);
}

}  // namespace runnel::cuda
