// The kernels of ops/optimizers.h. ops/kernels/dispatch.h has what holds for all, ops/ops.h the letters.
#pragma once
#include <cstdint>

#include "ops/kernels/dispatch.h"
#include "ops/types.h"

namespace runnel {

// RAdam (Liu et al. 2020) as the authors train: see ops/cpu/radam.cpp.
struct RAdamTensor {
  float *parameter, *m, *v;  // read and written
  const float* gradient;
  int64_t n;
};
// squares [count+1] = the squared norm of each tensor's gradient, summed in double and rounded once, and their sum.
// tensors: an array in host memory.
KERNEL(sums_of_squares(float* squares, const RAdamTensor* tensors, int64_t count))
// Values that change from update to update lie in device memory, so that a captured update (engine/replay.h) can be
// replayed: squares as above, and rates = {size, decay, adaptive, eps}, with which
//   parameter -= decay parameter + size m / (adaptive ? sqrt(v) + eps : 1).
// If the last of the squares is not finite, nothing changes.
KERNEL(radam_step(const RAdamTensor* tensors, int64_t count, const float* squares, const float* rates, RAdamStep step))

// Muon (Jordan et al. 2024), for matrices: momentum of normalised gradients, whose singular values are made equal,
// about; see ops/cpu/muon.cpp.
struct MuonMatrix {
  float *parameter, *m;  // [rows,columns], read and written
  const float* gradient;
  int64_t rows, columns;
};
struct NewtonSchulz {  // singular values s become a s + b s^3 + c s^5
  float a, b, c;
};
constexpr NewtonSchulz newton_schulz{3.4445f, -4.7750f, 2.0315f};
constexpr int newton_schulz_steps = 5;
// matrices: an array in host memory. squares [count] are those of their gradients; all_squares[0], of all gradients, is
// finite or nothing changes. rates = {size, decay}: the root mean square of the step, about, and
// parameter -= decay parameter.
KERNEL(muon_step(const MuonMatrix* matrices, int64_t count, const float* squares, const float* all_squares,
                 const float* rates, double momentum))

}  // namespace runnel
