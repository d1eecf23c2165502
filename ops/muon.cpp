// One update of matrices by Muon.
#include <vector>

#include "engine/check.h"
#include "ops/kernels/optimizers.h"
#include "ops/optimizers.h"

namespace runnel {

void muon_step(std::vector<MuonUpdate> updates, const Tensor& squares, const Tensor& rates, double momentum) {
  if (updates.empty()) return;
  check(std::ssize(updates) < squares.size(), "muon_step: squares ", squares.shape(), " do not match ", updates.size(),
        " updates");
  check(rates.size() == 2, "muon_step: rates ", rates.shape(), " are not size and decay");
  const Device device = updates[0].parameter.device();
  std::vector<MuonMatrix> matrices;
  for (auto& [parameter, m, gradient] : updates) {
    device_of("muon_step", squares, rates, parameter, m, gradient);
    const Shape& shape = parameter.shape();
    check(shape.rank() == 2 && m.shape() == shape && gradient.shape() == shape, "muon_step: parameter ", shape, ", m ",
          m.shape(), " and gradient ", gradient.shape(), " are not matrices of one shape");
    matrices.push_back({parameter.data(), m.data(), gradient.data(), shape[0], shape[1]});
  }
  DISPATCH(device, muon_step(matrices.data(), std::ssize(matrices), squares.data(), squares.data() + squares.size() - 1,
                             rates.data(), momentum));
}

}  // namespace runnel
