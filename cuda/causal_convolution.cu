// Short causal convolutions: ops/cpu/causal_convolution.cpp has the formulas. Neighbouring threads take neighbouring
// channels, so that they read neighbouring numbers; the K rows that a thread reads are in the cache, since its
// neighbours in time read them, too.
#include "cuda/launch.h"
#include "cuda/temporary.h"
#include "ops/kernels/causal_convolution.h"

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
  __device__ float z(const float* weight, int64_t b, int64_t t, int64_t c) const {
    float sum = 0;
    for (int64_t j = 0; j < s.taps; ++j) sum += weight[c * s.taps + j] * (*this)(b, t - j, c);
    return sum;
  }
};

__device__ float logistic(float z) { return 1 / (1 + expf(-z)); }

// Launch: a thread per element. Owns: y[i]. Shared: none.
__global__ void causal_convolution_forward_kernel(float* y, Rows rows, const float* weight, int64_t n) {
  const ConvolutionSizes& s = rows.s;
  for (int64_t i = first_element(); i < n; i += element_step()) {
    const float z = rows.z(weight, i / s.width / s.length, i / s.width % s.length, i % s.width);
    y[i] = s.silu ? z * logistic(z) : z;
  }
}

// Launch: a thread per element. Owns: dz[i]. Shared: none.
__global__ void causal_convolution_dz_kernel(float* dz, const float* dy, Rows rows, const float* weight, int64_t n) {
  const ConvolutionSizes& s = rows.s;
  for (int64_t i = first_element(); i < n; i += element_step()) {
    const float z = rows.z(weight, i / s.width / s.length, i / s.width % s.length, i % s.width), part = logistic(z);
    dz[i] = dy[i] * part * (1 + z * (1 - part));
  }
}

// Launch: a thread per element of dx, with those of dbefore in front if it is wanted. Owns: that element. Shared: none.
__global__ void causal_convolution_dx_kernel(float* dx, float* dbefore, const float* dz, const float* weight,
                                             ConvolutionSizes s, int64_t n) {
  const int64_t ahead = dbefore ? s.taps - 1 : 0, positions = s.length + ahead;
  for (int64_t i = first_element(); i < n; i += element_step()) {
    const int64_t c = i % s.width, t = i / s.width % positions - ahead, b = i / s.width / positions;
    float sum = 0;
    for (int64_t j = t < 0 ? -t : 0; j < s.taps && t + j < s.length; ++j)
      sum += weight[c * s.taps + j] * dz[(b * s.length + t + j) * s.width + c];
    float* const to = t >= 0 ? dx + b * s.length * s.width : dbefore + b * ahead * s.width;
    to[(t >= 0 ? t : ahead + t) * s.width + c] = sum;
  }
}

// Launch: 32 warps per 32 channels and tap (blockIdx.y).
// Owns:   a lane one channel; a warp every 32nd row of the batch, the first warp their sum.
// Shared: the sum of each warp.
__global__ void __launch_bounds__(1024) causal_convolution_dweight_kernel(float* dweight, const float* dz, Rows rows) {
  Shared shared;
  float* const sums = shared.take<float>(1024);
  const ConvolutionSizes& s = rows.s;
  const int64_t j = blockIdx.y, c = static_cast<int64_t>(blockIdx.x) * 32 + threadIdx.x % 32;
  float sum = 0;
  for (int64_t i = threadIdx.x / 32; c < s.width && i < s.batch * s.length; i += 32)
    sum += dz[i * s.width + c] * rows(i / s.length, i % s.length - j, c);
  sums[threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.x >= 32 || c >= s.width) return;
  for (int64_t w = 1; w < 32; ++w) sum += sums[w * 32 + threadIdx.x];
  dweight[c * s.taps + j] = sum;
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
  const int64_t n = s.batch * s.length * s.width;
  launch("causal_convolution_forward", causal_convolution_forward_kernel, over(n), y, Rows{x, before, s}, weight, n);
}

void causal_convolution_backward(float* dx, float* dweight, float* dbefore, const float* dy, const float* x,
                                 const float* weight, const float* before, ConvolutionSizes s) {
  constexpr const char* name = "causal_convolution_backward";
  const int64_t n = s.batch * s.length * s.width, with_before = n + (dbefore ? s.batch * (s.taps - 1) * s.width : 0);
  const Rows rows{x, before, s};
  const Temporary<float> memory(s.silu ? n : 0);
  const float* const dz = s.silu ? memory.data() : dy;
  if (s.silu) launch(name, causal_convolution_dz_kernel, over(n), memory.data(), dy, rows, weight, n);
  launch(name, causal_convolution_dx_kernel, over(with_before), dx, dbefore, dz, weight, s, with_before);
  const Grid channels{dim3(static_cast<unsigned>((s.width + 31) / 32), static_cast<unsigned>(s.taps)), dim3(1024),
                      SharedBytes().add<float>(1024).bytes()};
  launch(name, causal_convolution_dweight_kernel, channels, dweight, dz, rows);
}

void causal_convolution_step(float* y, float* before, const float* x, const float* weight, ConvolutionSizes s) {
  const int64_t n = s.batch * s.width;
  launch("causal_convolution_step", causal_convolution_step_kernel, over(n), y, before, x, weight, s, n);
}

}  // namespace runnel::cuda
