#include "models/muon.h"

#include <algorithm>

#include "engine/check.h"
#include "ops/elementwise.h"
#include "ops/optimizers.h"

namespace runnel {

Muon::Muon(Parameters matrices, double lr, double weight_decay)
    : matrices_(std::move(matrices)), lr_(lr), weight_decay_(weight_decay) {
  for (const auto& [name, tensor] : matrices_) {
    check(tensor.shape().rank() == 2, "Muon: ", name, " ", tensor.shape(), " is not a matrix");
    m_.push_back(Tensor::full(tensor.shape(), 0, tensor.device()));
  }
  if (!matrices_.empty()) rates_ = Tensor(Shape{2}, matrices_[0].tensor.device());
}

void Muon::begin_update() {
  // A step of Muon in units of Adam's, whose numbers change by up to lr each: so one learning rate serves both.
  constexpr double size = 0.4;
  // Updates of constant norm grow weights without bound, and decay bounds them: without it a feed-forward layer soon
  // outweighs what it is added to, and a run of an hour grows worse. Where steps of size s agree for some 20 updates,
  // weights stay near s sqrt(20 / (2 decay)): a tenth, for a learning rate of 1e-3 and a decay of 0.3.
  const double decay = weight_decay_ * lr_;
  if (rates_) assign(rates_, Tensor(Shape{2}, {static_cast<float>(size * lr_), static_cast<float>(decay)}));
}

void Muon::update(const Gradients& gradients, const Tensor& squares) {
  if (matrices_.empty()) return;
  std::vector<MuonUpdate> all;
  for (size_t i = 0; i < matrices_.size(); ++i) {
    const Tensor& matrix = matrices_[i].tensor;
    all.push_back({matrix, m_[i], gradients.of(matrix)});
  }
  constexpr double momentum = 0.95;
  muon_step(std::move(all), squares, rates_, momentum);
}

Parameters Muon::state() const {
  Parameters state;
  for (size_t i = 0; i < matrices_.size(); ++i) state.push_back({"optimizer.m." + matrices_[i].name, m_[i]});
  return state;
}

namespace {

// Not the projections of queries and keys: steps that move all directions alike would soon efface their initial values
// (models/local_heads.h). Nor embeddings and the predictor, for which Muon is not meant.
bool suits_muon(const NamedTensor& parameter) {
  for (const char* matrix :
       {".value_projection.weight", ".out_projection.weight", ".linear1.weight", ".linear2.weight"})
    if (parameter.name.ends_with(matrix)) return true;
  return false;
}

}  // namespace

Optimizer::Optimizer(const Parameters& parameters, AdamOptions options, bool muon)
    : all_(ordered(parameters, muon)),
      muons_(muon ? std::ranges::count_if(parameters, suits_muon) : 0),
      adam_({}, options),
      muon_({}, options.lr, options.muon_decay) {
  adam_ = Adam({all_.begin() + muons_, all_.end()}, options);
  muon_ = Muon({all_.begin(), all_.begin() + muons_}, options.lr, options.muon_decay);
}

void Optimizer::step(const Gradients& gradients) {
  const Tensor norms = squares(gradients);
  begin_update();
  update(gradients, norms);
}

void Optimizer::begin_update() {
  adam_.begin_update();
  muon_.begin_update();
}

void Optimizer::update(const Gradients& gradients, const Tensor& squares) {
  adam_.update(gradients, squares, muons_);
  muon_.update(gradients, squares);
}

void Optimizer::set_lr(double lr) {
  adam_.set_lr(lr);
  muon_.set_lr(lr);
}

Parameters Optimizer::state() const {
  Parameters state = adam_.state();
  for (const NamedTensor& m : muon_.state()) state.push_back(m);
  return state;
}

Parameters Optimizer::ordered(Parameters parameters, bool muon) {
  if (muon) std::stable_partition(parameters.begin(), parameters.end(), suits_muon);
  return parameters;
}

Parameters Optimizer::empty_state(const Parameters& parameters, bool muon) {
  Parameters state, of_muon;
  const auto moment = [](const char* kind, const NamedTensor& p) {
    return NamedTensor{"optimizer." + std::string(kind) + "." + p.name, Tensor::full(p.tensor.shape(), 0)};
  };
  for (const NamedTensor& p : parameters) {
    const bool is_muons = muon && suits_muon(p);
    (is_muons ? of_muon : state).push_back(moment("m", p));
    if (!is_muons) state.push_back(moment("v", p));
  }
  state.insert(state.end(), of_muon.begin(), of_muon.end());
  return state;
}

}  // namespace runnel
