// The kernels of ops/lra/, for `runnel bench kernels`.
#include "apps/bench/kernels.h"
#include "apps/lra/classification.h"
#include "ops/kernels/lra.h"

namespace runnel {

std::vector<BenchKernel> lra_kernels(Device device) {
  std::vector<BenchKernel> all;
  KernelInputs in(device);
  constexpr int64_t length = in.length, heads = in.heads, e = in.e;
  const int64_t batch = in.batch, rows = in.rows, sequences = in.sequences;
  const double N = static_cast<double>(in.n), S = static_cast<double>(sequences);
  Tensor x0 = in.x0, x1 = in.x1;
  const Tensor a = in.a, b = in.b, g = in.g;
  CASE(3 * N, 5 * N, positive_random_features_forward, x0.data(), a.data(), b.data(), rows * heads, e, e);
  CASE(5 * N, 5 * N, positive_random_features_backward, x0.data(), x1.data(), g.data(), a.data(), b.data(),
       rows * heads, e, e);
  const SinkhornSizes mixed{batch, length / 16, heads, length / 16, 16, 5};
  const double matrices = S * static_cast<double>(mixed.blocks * mixed.blocks);
  const Tensor mixture = Tensor::full({sequences, mixed.blocks, mixed.blocks}, 1, device);
  Tensor small2 = Tensor::full({sequences, mixed.blocks, mixed.blocks}, 0, device);
  CASE(2 * matrices, 20 * matrices, sinkhorn_forward, small2.data(), a.data(), nullptr, mixed);
  CASE(4 * matrices, 50 * matrices, sinkhorn_backward, small2.data(), g.data(), mixture.data(), a.data(), nullptr,
       mixed);
  return all;
}

}  // namespace runnel
