// Rectified Adam over all tensors of a model at once; the update is derived in ops/cpu/radam.cpp.
//
// A model has some hundred tensors, most of them small, and a launch each would cost more than the work. So kernels get
// up to 64 tensors as a parameter, by value: blockIdx.y says which tensor, blockIdx.x which part of it. The norms by
// which gradients are clipped stay on the device. They are sums in double whose parts have owners: a block writes the
// sum of a part, and one block adds the parts in their order.
#include <cmath>

#include "cuda/launch.h"
#include "cuda/temporary.h"
#include "ops/kernels/optimizers.h"

namespace runnel::cuda {
namespace {

constexpr int64_t max_tensors = 64;
struct Tensors {
  RAdamTensor at[max_tensors];
};

// Blocks per tensor: enough for the largest.
int64_t parts_of(const RAdamTensor* tensors, int64_t count, int64_t most) {
  constexpr int64_t least = 4096;  // elements that are worth a block
  int64_t largest = 0;
  for (int64_t i = 0; i < count; ++i) largest = std::max(largest, tensors[i].n);
  return std::clamp<int64_t>((largest + least - 1) / least, 1, most);
}

// f(first, tensors, number of tensors) for 64 tensors after 64.
template <class F>
void for_each_group(const RAdamTensor* tensors, int64_t count, F f) {
  for (int64_t first = 0; first < count; first += max_tensors) {
    Tensors group{};
    const int64_t size = std::min(max_tensors, count - first);
    std::copy_n(tensors + first, size, group.at);
    f(first, group, size);
  }
}

Grid parts_by_tensors(int64_t parts, int64_t tensors, size_t shared = 0) {
  return {dim3(static_cast<unsigned>(parts), static_cast<unsigned>(tensors)), dim3(256), shared};
}

// Launch: x the parts of a tensor, y the tensors. Owns: part_sums[y,x]. Shared: for block_sum.
__global__ void sums_of_squares_kernel(double* part_sums, Tensors tensors) {
  Shared shared;
  double* const scratch = shared.take<double>(32);
  const float* const gradient = tensors.at[blockIdx.y].gradient;
  const int64_t n = tensors.at[blockIdx.y].n;
  double sum = 0;
  for (int64_t i = first_element(); i < n; i += element_step()) {
    const double g = static_cast<double>(gradient[i]);
    sum += g * g;
  }
  sum = block_sum(sum, scratch);
  if (threadIdx.x == 0) part_sums[static_cast<int64_t>(blockIdx.y) * gridDim.x + blockIdx.x] = sum;
}

// Launch: one block. A warp takes every 32nd tensor. Owns: squares. Shared: for block_sum.
__global__ void add_parts_kernel(float* squares, const double* part_sums, int64_t count, int64_t parts) {
  Shared shared;
  double* const scratch = shared.take<double>(32);
  const int64_t warp = threadIdx.x / 32, warps = blockDim.x / 32, lane = threadIdx.x % 32;
  double total = 0;  // of this warp's tensors
  for (int64_t t = warp; t < count; t += warps) {
    double sum = 0;
    for (int64_t part = lane; part < parts; part += 32) sum += part_sums[t * parts + part];
    sum = warp_sum(sum);
    total += sum;
    if (lane == 0) squares[t] = static_cast<float>(sum);
  }
  total = block_sum(lane == 0 ? total : 0.0, scratch);
  if (threadIdx.x == 0) squares[count] = static_cast<float>(total);
}

// The factor that brings a vector down to the norm `limit` (0: any).
__device__ double clipping(double norm, double limit) {
  return limit > 0 && limit < norm + 1e-6 ? limit / (norm + 1e-6) : 1;
}

// Launch: x the parts of a tensor, y the tensors. Owns: element i of the tensor's parameter, m and v. Shared: none.
__global__ void radam_step_kernel(Tensors tensors, const float* squares, const float* all_squares, const float* rates,
                                  RAdamStep step) {
  if (!std::isfinite(all_squares[0])) return;
  float* const parameter = tensors.at[blockIdx.y].parameter;
  float *const m = tensors.at[blockIdx.y].m, *const v = tensors.at[blockIdx.y].v;
  const float* const gradient = tensors.at[blockIdx.y].gradient;
  const int64_t n = tensors.at[blockIdx.y].n;

  const double global_scale = clipping(sqrtf(all_squares[0]), step.global_clip);
  const double norm = global_scale * static_cast<double>(sqrtf(squares[blockIdx.y]));
  const float scale = static_cast<float>(global_scale * clipping(norm, step.clip));
  const float beta1 = static_cast<float>(step.beta1), rest1 = static_cast<float>(1 - step.beta1);
  const float beta2 = static_cast<float>(step.beta2), rest2 = static_cast<float>(1 - step.beta2);
  const float size = rates[0], decay = rates[1], eps = rates[3];
  const bool adaptive = rates[2] > 0;
  for (int64_t i = first_element(); i < n; i += element_step()) {
    const float g = scale * gradient[i];
    const float mi = beta1 * m[i] + rest1 * g, vi = beta2 * v[i] + rest2 * g * g;
    const float direction = adaptive ? mi / (sqrtf(vi) + eps) : mi;
    m[i] = mi;
    v[i] = vi;
    parameter[i] = parameter[i] - decay * parameter[i] - size * direction;
  }
}

}  // namespace

void sums_of_squares(float* squares, const RAdamTensor* tensors, int64_t count) {
  const int64_t parts = parts_of(tensors, count, 256);
  const size_t scratch = SharedBytes().add<double>(32).bytes();
  const Temporary<double> part_sums(count * parts);
  for_each_group(tensors, count, [&](int64_t first, const Tensors& group, int64_t size) {
    launch("sums_of_squares", sums_of_squares_kernel, parts_by_tensors(parts, size, scratch),
           part_sums.data() + first * parts, group);
  });
  launch("sums_of_squares", add_parts_kernel, Grid{dim3(1), dim3(1024), scratch}, squares, part_sums.data(), count,
         parts);
}

void radam_step(const RAdamTensor* tensors, int64_t count, const float* squares, const float* rates, RAdamStep step) {
  for_each_group(tensors, count, [&](int64_t first, const Tensors& group, int64_t size) {
    launch("radam_step", radam_step_kernel, parts_by_tensors(parts_of(group.at, size, 1024), size), group,
           squares + first, squares + count, rates, step);
  });
}

}  // namespace runnel::cuda
