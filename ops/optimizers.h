// Updates of parameters, in place and without gradients. ops/ops.h has the letters.
#pragma once
#include <vector>

#include "engine/tensor.h"
#include "ops/types.h"

namespace runnel {

// The squared norm of each gradient and, last, of all of them together: [count] tensors -> [count + 1]. An update with
// squares whose last is not finite changes nothing.
Tensor sums_of_squares(const std::vector<Tensor>& gradients);
// One update of rectified Adam (Liu et al. 2020) of each parameter and its moments m and v, all of one shape. The
// squared norms of their gradients are squares[first], squares[first + 1] ...; the last of squares is that of all.
// rates [4]: see ops/kernels/optimizers.h.
struct RAdamUpdate {
  Tensor parameter, m, v, gradient;
};
void radam_step(std::vector<RAdamUpdate> updates, const Tensor& squares, int64_t first, const Tensor& rates,
                const RAdamStep& step);
// One update of Muon (Jordan et al. 2024) of each matrix and its momentum m. squares[i] is that of update i's gradient,
// the last that of all. rates [2]: see ops/kernels/optimizers.h.
struct MuonUpdate {
  Tensor parameter, m, gradient;
};
void muon_step(std::vector<MuonUpdate> updates, const Tensor& squares, const Tensor& rates, double momentum);

}  // namespace runnel
