// The list of rungs, and the check in front of them.
#include "ops/ladder/ladder.h"

#include "engine/check.h"
#include "ops/ladder/kernels.h"

namespace runnel {

std::vector<Rung> ladder(Device device) {
  if (device == Device::cpu) {
#define RUNG(name, idea, kernel)                                                                               \
  {                                                                                                            \
    name, idea, Device::cpu, [](float* y, const float* x, const float* a, const float* b, LadderSizes sizes) { \
      CPU_DISPATCH(kernel(y, x, a, b, sizes));                                                                 \
    }                                                                                                          \
  }
    return {RUNG("1_definition", "the formula in plain loops", ladder_definition),
            RUNG("2_state", "Algorithm 1: the past is a state", ladder_state),
            RUNG("3_registers", "four positions while a row of S is in registers", ladder_registers),
            RUNG("4_threads", "heads and segments of L on all cores", ladder_threads)};
#undef RUNG
  }
  if constexpr (with_cuda)
    return {{"1_thread", "a thread per column of S", device, cuda::ladder_thread},
            {"2_block", "a thread per number of S", device, cuda::ladder_block},
            {"3_shared", "32 positions staged in shared memory", device, cuda::ladder_shared},
            {"4_registers", "sums in registers and the next chunk on its way", device, cuda::ladder_registers},
            {"5_chunks", "products of matrices", device, cuda::ladder_chunks},
            {"6_tensor_cores", "products on the tensor cores in TF32", device, cuda::ladder_tensor_cores},
            {"7_split", "segments of L side by side", device, cuda::ladder_split}};
  return {};
}

void run(const Rung& rung, Tensor y, const Tensor& x, const Tensor& a, const Tensor& b) {
  const Shape shape = x.shape();
  check(shape.rank() == 4 && shape[3] == ladder_width && shape.size() > 0, rung.name, ": x ", shape,
        " is not [B,L,H,32] with at least one position");
  const auto check_shape = [&](const char* argument, const Tensor& t) {
    check(t.shape() == shape, rung.name, ": ", argument, " ", t.shape(), " does not match x ", shape);
  };
  check_shape("a", a), check_shape("b", b), check_shape("y", y);
  check(device_of(rung.name, x, a, b, y) == rung.device, rung.name, " runs on ", name(rung.device), "; x is on ",
        name(x.device()));
  rung.scan(y.data(), x.data(), a.data(), b.data(), {shape[0], shape[1], shape[2]});
}

}  // namespace runnel
