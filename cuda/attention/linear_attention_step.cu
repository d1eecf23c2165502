// One position of causal linear attention, for decoding (eq. 18-20). Reading and writing the state is nearly all the
// work.
#include "cuda/attention/linear_attention.h"

namespace runnel::cuda {
namespace {

constexpr int step_threads = 256;

// S += k v^T, Z += k, y = q^T S / n. `lanes`, a power of two, is how many threads share a row of S.
// Launch: a block per head.
// Owns:   a thread `width` columns of every (step_threads / lanes)-th row.
// Shared: the sums of each warp.
template <int width>
__global__ void __launch_bounds__(step_threads)
    linear_attention_step_kernel(float* y, float* s, float* z, const float* q, const float* k, const float* v,
                                 int64_t e, int64_t m, Phi phi, int lanes) {
  constexpr int warps = step_threads / 32;
  Shared shared;
  Piece<width>* const sums = shared.take<Piece<width>>(step_threads);
  float* const normalisers = shared.take<float>(warps);

  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % lanes;
  const int64_t head = blockIdx.x;
  q += head * e, k += head * e, v += head * m, y += head * m;
  s += head * e * m, z += head * e;

  float inverse = 0;
  for (int64_t first = 0; first < m; first += lanes * width) {
    const int64_t column = first + lane * width;
    const bool inside = column < m;
    Piece<width> value{}, sum{};
    float normaliser = 0;  // all threads of a row add up the same
    if (inside) value = load<width>(v + column);
#pragma unroll 4
    for (int64_t i = thread / lanes; i < e; i += step_threads / lanes) {
      const float qi = phi(q[i]), ki = phi(k[i]);
      if (first == 0) normaliser += qi * (z[i] + ki);
      if (!inside) continue;
      Piece<width> row = load<width>(s + i * m + column);
#pragma unroll
      for (int j = 0; j < width; ++j) sum.at[j] += qi * (row.at[j] += ki * value.at[j]);
      store(s + i * m + column, row);
    }
    for (int distance = 16; distance >= lanes; distance /= 2) {
#pragma unroll
      for (float& x : sum.at) x += __shfl_xor_sync(all_lanes, x, distance);
      normaliser += __shfl_xor_sync(all_lanes, normaliser, distance);
    }
    __syncthreads();  // the sums of the columns before have been read
    if (thread % 32 < lanes) sums[warp * 32 + lane] = sum;
    if (thread % 32 == 0) normalisers[warp] = normaliser;
    __syncthreads();
    if (first == 0) {
      inverse = normaliser_eps;
      for (int w = 0; w < warps; ++w) inverse += normalisers[w];
      inverse = 1 / inverse;
      for (int64_t i = thread; i < e; i += step_threads) z[i] += phi(k[i]);
    }
    if (thread < lanes && inside) {
      Piece<width> total{};
      for (int w = 0; w < warps; ++w)
        for (int j = 0; j < width; ++j) total.at[j] += sums[w * 32 + lane].at[j];
      for (float& x : total.at) x *= inverse;
      store(y + column, total);
    }
  }
}

template <int width>
void launch_step(float* y, float* s, float* z, const float* q, const float* k, const float* v,
                 const AttentionSizes& sizes, Phi phi) {
  int lanes = 1;
  while (lanes < 32 && lanes * width < sizes.m) lanes *= 2;
  SharedBytes shared;
  shared.add<Piece<width>>(step_threads);
  shared.add<float>(step_threads / 32);
  launch("linear_attention_step", linear_attention_step_kernel<width>,
         Grid{dim3(static_cast<unsigned>(sizes.sequences())), dim3(step_threads), shared.bytes()}, y, s, z, q, k, v,
         sizes.e, sizes.m, phi, lanes);
}

}  // namespace

void linear_attention_step(float* y, float* s, float* z, const float* q, const float* k, const float* v,
                           AttentionSizes sizes, FeatureMap map) {
  in_fours(sizes.m, y, s, v) ? launch_step<4>(y, s, z, q, k, v, sizes, Phi{map})
                             : launch_step<1>(y, s, z, q, k, v, sizes, Phi{map});
}

}  // namespace runnel::cuda
