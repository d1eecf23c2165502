// Short causal convolutions: ops/cpu/causal_convolution.cpp has the formulas. Neighbouring threads take neighbouring
// channels, so that they read neighbouring numbers; the K rows that a thread reads are in the cache, since its
// neighbours in time read them, too.
#include "cuda/launch.h"
#include "cuda/temporary.h"
#include "cuda/vec.h"
#include "ops/kernels/causal_convolution.h"
#include "ops/kernels/reductions.h"

namespace runnel::cuda {
namespace {

// x[b,t,c] of positions from -(K-1) on.
struct Rows {
  const float *x, *before;
  ConvolutionSizes s;
  __device__ float operator()(int64_t b, int64_t t, int64_t c) const {
    if (t >= 0) return x[(b * s.length + t) * s.width + c];
    return before ? before[(b * (s.taps - 1) + s.taps - 1 + t) * s.width + c] : 0;
  }
};

// The K weights of a channel. K is 4 in the models of the papers, which the compiler may know; 0: as many as the sizes
// say.
template <int K>
struct Taps {
  const float* weight;
  int count;
  __device__ Taps(const float* weights, const ConvolutionSizes& s, int64_t c)
      : weight(weights + c * s.taps), count(static_cast<int>(s.taps)) {}
  __device__ float operator[](int j) const { return weight[j]; }
};
template <>
struct Taps<4> {
  Vec<4> weight;
  static constexpr int count = 4;
  __device__ Taps(const float* weights, const ConvolutionSizes&, int64_t c) : weight(load<4>(weights + 4 * c)) {}
  __device__ float operator[](int j) const { return weight.at[j]; }
};
bool are_four(const float* weights, const ConvolutionSizes& s) { return s.taps == 4 && in_fours(4, weights); }

template <int K>
__device__ float z_of(const Rows& rows, const float* weights, int64_t b, int64_t t, int64_t c) {
  const Taps<K> taps(weights, rows.s, c);
  const float* const own = rows.x + (b * rows.s.length + t) * rows.s.width + c;
  float sum = 0;
#pragma unroll
  for (int j = 0; j < taps.count; ++j) sum += taps[j] * (t >= j ? own[-j * rows.s.width] : rows(b, t - j, c));
  return sum;
}

__device__ float logistic(float z) { return 1 / (1 + expf(-z)); }

// Blocks take rows in turn, threads the channels of a row: so that b and t are divided out once for a row.
Grid over_rows(int64_t rows, int64_t width) {
  const int64_t threads = std::clamp<int64_t>((width + 31) / 32 * 32, 32, 256);
  return {dim3(static_cast<unsigned>(std::min<int64_t>(rows, 32 * multiprocessors()))),
          dim3(static_cast<unsigned>(threads))};
}
// f(b, t, c)
template <class F>
__device__ void each_number(int64_t batch, int64_t positions, int64_t width, F f) {
  for (int64_t row = blockIdx.x; row < batch * positions; row += gridDim.x) {
    const int64_t b = row / positions, t = row % positions;
    for (int64_t c = threadIdx.x; c < width; c += blockDim.x) f(b, t, c);
  }
}

// Launch: over_rows. Owns: y[b,t,c]. Shared: none.
template <int K>
__global__ void causal_convolution_forward_kernel(float* y, Rows rows, const float* weight) {
  const ConvolutionSizes& s = rows.s;
  each_number(s.batch, s.length, s.width, [&](int64_t b, int64_t t, int64_t c) {
    const float z = z_of<K>(rows, weight, b, t, c);
    y[(b * s.length + t) * s.width + c] = s.silu ? z * logistic(z) : z;
  });
}

// Launch: over_rows. Owns: dz[b,t,c]. Shared: none.
template <int K>
__global__ void causal_convolution_dz_kernel(float* dz, const float* dy, Rows rows, const float* weight) {
  const ConvolutionSizes& s = rows.s;
  each_number(s.batch, s.length, s.width, [&](int64_t b, int64_t t, int64_t c) {
    const float z = z_of<K>(rows, weight, b, t, c), part = logistic(z);
    const int64_t i = (b * s.length + t) * s.width + c;
    dz[i] = dy[i] * part * (1 + z * (1 - part));
  });
}

// Launch: over_rows of dx, with those of dbefore in front if it is wanted. Owns: an element of them. Shared: none.
template <int K>
__global__ void causal_convolution_dx_kernel(float* dx, float* dbefore, const float* dz, const float* weight,
                                             ConvolutionSizes s) {
  const int64_t ahead = dbefore ? s.taps - 1 : 0;
  each_number(s.batch, s.length + ahead, s.width, [&](int64_t b, int64_t row, int64_t c) {
    const int64_t t = row - ahead;
    const Taps<K> taps(weight, s, c);
    float sum = 0;
#pragma unroll
    for (int j = 0; j < taps.count; ++j)
      if (t + j >= 0 && t + j < s.length) sum += taps[j] * dz[(b * s.length + t + j) * s.width + c];
    float* const to = t >= 0 ? dx + (b * s.length + t) * s.width : dbefore + (b * ahead + row) * s.width;
    to[c] = sum;
  });
}

// Launch: eight warps per 32 channels (x), tap (y) and part of the batch's rows (z).
// Owns:   a lane one channel; a warp every eighth row of the part, the first warp their sum in sums [parts,C,K].
// Shared: the sum of each warp.
constexpr int warps = 8;
__global__ void __launch_bounds__(32 * warps)
    causal_convolution_dweight_kernel(float* sums, const float* dz, Rows rows, int64_t rows_per_part) {
  Shared shared;
  float* const warp_sums = shared.take<float>(32 * warps);
  const ConvolutionSizes& s = rows.s;
  const int64_t j = blockIdx.y, c = static_cast<int64_t>(blockIdx.x) * 32 + threadIdx.x % 32;
  const int64_t begin = blockIdx.z * rows_per_part, end = min(s.batch * s.length, begin + rows_per_part);
  float sum = 0;
  for (int64_t i = begin + threadIdx.x / 32, t = i < end ? i % s.length : 0; c < s.width && i < end;
       i += warps, t += warps) {
    while (t >= s.length) t -= s.length;
    sum += dz[i * s.width + c] * (t >= j ? rows.x[(i - j) * s.width + c] : rows(i / s.length, t - j, c));
  }
  warp_sums[threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.x >= 32 || c >= s.width) return;
  for (int64_t w = 1; w < warps; ++w) sum += warp_sums[w * 32 + threadIdx.x];
  sums[(blockIdx.z * s.width + c) * s.taps + j] = sum;
}

// Launch: a thread per channel of a sequence. Owns: its column of `before`, and y[i]. Shared: none.
__global__ void causal_convolution_step_kernel(float* y, float* before, const float* x, const float* weight,
                                               ConvolutionSizes s, int64_t n) {
  for (int64_t i = first_element(); i < n; i += element_step()) {
    const int64_t b = i / s.width, c = i % s.width;
    float* const own = before + b * (s.taps - 1) * s.width + c;
    float z = weight[c * s.taps] * x[i];
    for (int64_t j = s.taps - 1; j > 0; --j) {  // from the oldest row on, each of which moves up after its use
      const int64_t row = s.taps - 1 - j;
      z += weight[c * s.taps + j] * own[row * s.width];
      own[row * s.width] = j > 1 ? own[(row + 1) * s.width] : x[i];
    }
    y[i] = s.silu ? z * logistic(z) : z;
  }
}

}  // namespace

void causal_convolution_forward(float* y, const float* x, const float* weight, const float* before,
                                ConvolutionSizes s) {
  launch("causal_convolution_forward",
         are_four(weight, s) ? causal_convolution_forward_kernel<4> : causal_convolution_forward_kernel<0>,
         over_rows(s.batch * s.length, s.width), y, Rows{x, before, s}, weight);
}

void causal_convolution_backward(float* dx, float* dweight, float* dbefore, const float* dy, const float* x,
                                 const float* weight, const float* before, ConvolutionSizes s) {
  constexpr const char* name = "causal_convolution_backward";
  if (s.width == 0) return;
  const int64_t positions = s.batch * s.length, ahead = dbefore ? s.batch * (s.taps - 1) : 0;
  const Rows rows{x, before, s};
  const Temporary<float> memory(s.silu ? positions * s.width : 0);
  const float* const dz = s.silu ? memory.data() : dy;
  if (s.silu)
    launch(name, are_four(weight, s) ? causal_convolution_dz_kernel<4> : causal_convolution_dz_kernel<0>,
           over_rows(positions, s.width), memory.data(), dy, rows, weight);
  launch(name, are_four(weight, s) ? causal_convolution_dx_kernel<4> : causal_convolution_dx_kernel<0>,
         over_rows(positions + ahead, s.width), dx, dbefore, dz, weight, s);

  const int64_t tiles = (s.width + 31) / 32, wanted = (8 * multiprocessors() + tiles * s.taps - 1) / (tiles * s.taps);
  const int64_t parts = std::clamp<int64_t>(positions / (8 * warps), 1, wanted), weights = s.width * s.taps;
  const Temporary<float> sums(parts > 1 ? parts * weights : 0);
  const Grid grid{dim3(static_cast<unsigned>(tiles), static_cast<unsigned>(s.taps), static_cast<unsigned>(parts)),
                  dim3(32 * warps), SharedBytes().add<float>(32 * warps).bytes()};
  launch(name, causal_convolution_dweight_kernel, grid, parts > 1 ? sums.data() : dweight, dz, rows,
         (positions + parts - 1) / parts);
  if (parts > 1) sum(dweight, sums.data(), 1, parts, weights);
}

void causal_convolution_step(float* y, float* before, const float* x, const float* weight, ConvolutionSizes s) {
  const int64_t n = s.batch * s.width;
  launch("causal_convolution_step", causal_convolution_step_kernel, over(n), y, before, x, weight, s, n);
}

}  // namespace runnel::cuda
