// nll_r = w_r (logsumexp(z_r) - z_r[t_r]), its gradient w_r (softmax(z_r) - onehot(t_r)), and a sampler.
//
// A warp takes a row of logits: it looks for the largest, so that no exponential overflows, and then adds up the
// exponentials. The row is read twice, the gradient's a third time, but only the first time from memory. The backward
// pass computes the softmax again, which costs less than it would to write it and read it. The sampler computes the
// exponentials of a row side by side, and adds them up in the CPU's order, so that both draw the same.
#include "cuda/launch.h"
#include "ops/kernels/losses.h"

namespace runnel::cuda {
namespace {

constexpr int warp = 32;

struct RowSum {
  float largest;
  float sum;  // of exp(z[i] - largest); NaN if any z is
};

// By all lanes of a warp, which all get the result.
__device__ float row_max(const float* z, int64_t vocabulary) {
  float largest = -INFINITY;
  for (int64_t i = threadIdx.x % warp; i < vocabulary; i += warp) largest = fmaxf(largest, z[i]);
  return warp_max(largest);
}
__device__ RowSum sum_of_exponentials(const float* z, int64_t vocabulary) {
  const float largest = row_max(z, vocabulary);
  float sum = 0;
  for (int64_t i = threadIdx.x % warp; i < vocabulary; i += warp) sum += expf(z[i] - largest);
  return {largest, warp_sum(sum)};
}

// Launch: a warp per row. Owns: nll[r]. Shared: none.
__global__ void cross_entropy_forward_kernel(float* nll, const float* logits, const int32_t* targets, const float* mask,
                                             int64_t rows, int64_t vocabulary) {
  for (int64_t r = first_element() / warp; r < rows; r += element_step() / warp) {
    const float* const z = logits + r * vocabulary;
    const RowSum row = sum_of_exponentials(z, vocabulary);
    if (threadIdx.x % warp == 0) nll[r] = (mask ? mask[r] : 1) * (logf(row.sum) + (row.largest - z[targets[r]]));
  }
}

// Launch: a warp per row. Owns: dlogits[r,:]. Shared: none.
__global__ void cross_entropy_backward_kernel(float* dlogits, const float* scale, const float* logits,
                                              const int32_t* targets, const float* mask, int64_t rows,
                                              int64_t vocabulary) {
  for (int64_t r = first_element() / warp; r < rows; r += element_step() / warp) {
    const float* const z = logits + r * vocabulary;
    float* const dz = dlogits + r * vocabulary;
    const float weight = (mask ? mask[r] : 1) * scale[0];
    const RowSum row = sum_of_exponentials(z, vocabulary);
    for (int64_t i = threadIdx.x % warp; i < vocabulary; i += warp) {
      const float share = expf(z[i] - row.largest) * (weight / row.sum);
      dz[i] = i == targets[r] ? share - weight : share;
    }
  }
}

// f(i, sum of exp(z[0] ... z[i] - largest, all divided by temperature)) for all i in order, until it returns true. By
// all lanes of a warp: each computes every 32nd exponential and adds up all of them.
template <class F>
__device__ void each_sum(const float* z, int64_t vocabulary, float largest, float temperature, F f) {
  float sum = 0;
  for (int64_t first = 0; first < vocabulary; first += warp) {
    const int64_t own = first + threadIdx.x % warp;
    const float weight = own < vocabulary ? expf((z[own] - largest) / temperature) : 0;
#pragma unroll
    for (int i = 0; i < warp; ++i) {
      sum += __shfl_sync(all_lanes, weight, i);
      if (f(first + i, sum)) return;
    }
  }
}

// Draws by inverting the cumulative sum at u, in (0, 1): in the order of ops/cpu/draw.h.
// Launch: a warp per row. Owns: drawn[r]. Shared: none.
__global__ void categorical_sample_kernel(int32_t* drawn, const float* logits, const Key* keys, const int32_t* position,
                                          float temperature, int64_t rows, int64_t vocabulary) {
  for (int64_t r = first_element() / warp; r < rows; r += element_step() / warp) {
    const float* const z = logits + r * vocabulary;
    const Key key = position ? keys[r].fold(static_cast<uint64_t>(position[0])) : keys[r];
    const float largest = row_max(z, vocabulary);
    float total = 0;
    each_sum(z, vocabulary, largest, temperature, [&](int64_t, float sum) {
      total = sum;
      return false;
    });
    const float end = key.uniform(0) * total;
    int64_t chosen = 0;
    each_sum(z, vocabulary, largest, temperature, [&](int64_t i, float sum) {
      chosen = i;
      return sum >= end || i + 1 == vocabulary;
    });
    if (threadIdx.x % warp == 0) drawn[r] = static_cast<int32_t>(chosen);
  }
}

// Launch: one warp. Owns: y[0]. Shared: none.
__global__ void divide_kernel(float* y, const float* a, const float* b) {
  if (threadIdx.x == 0) y[0] = a[0] / b[0];
}

}  // namespace

void cross_entropy_forward(float* nll, const float* logits, const int32_t* targets, const float* mask, int64_t rows,
                           int64_t vocabulary) {
  launch("cross_entropy_forward", cross_entropy_forward_kernel, over(warp * rows), nll, logits, targets, mask, rows,
         vocabulary);
}

void cross_entropy_backward(float* dlogits, const float* scale, const float* logits, const int32_t* targets,
                            const float* mask, int64_t rows, int64_t vocabulary) {
  launch("cross_entropy_backward", cross_entropy_backward_kernel, over(warp * rows), dlogits, scale, logits, targets,
         mask, rows, vocabulary);
}

void categorical_sample(int32_t* drawn, const float* logits, const Key* keys, const int32_t* position,
                        float temperature, int64_t rows, int64_t vocabulary) {
  launch("categorical_sample", categorical_sample_kernel, over(warp * rows, warp), drawn, logits, keys, position,
         temperature, rows, vocabulary);
}

void divide(float* y, const float* a, const float* b) { launch("divide", divide_kernel, over(1, warp), y, a, b); }

}  // namespace runnel::cuda
