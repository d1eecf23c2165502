// Adam: the part that is the same for all parameters. The update itself is in ops/cpu/radam.cpp.
//
// Rectified Adam: v is a mean over few gradients at first, and dividing by its root then has a large variance. With
// n = n_max - 2 t beta2^t / (1 - beta2^t), n_max = 2 / (1 - beta2) - 1, the number of gradients that v effectively
// averages at step t, the step is scaled by
//   rectification = sqrt((n - 4) / (n_max - 4)  (n - 2) / (n_max - 2)  n_max / n)    from n >= 5 on,
// and before that (5 steps with beta2 = 0.999) it is momentum without v. Adam is the same without rectification, but
// for eps: its authors add it to sqrt(v / (1 - beta2^t)), those of RAdam (in their code) to sqrt(v).
#include "models/optimizer.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/check.h"
#include "engine/communicator.h"
#include "ops/elementwise.h"
#include "ops/optimizers.h"
#include "ops/shapes.h"

namespace runnel {

Adam::Adam(Parameters parameters, AdamOptions options) : parameters_(std::move(parameters)), options_(options) {
  for (const auto& [name, tensor] : parameters_) {
    m_.push_back(Tensor::full(tensor.shape(), 0, tensor.device()));
    v_.push_back(Tensor::full(tensor.shape(), 0, tensor.device()));
  }
  if (!parameters_.empty()) rates_ = Tensor(Shape{4}, parameters_[0].tensor.device());
}

Tensor squared_norms(const Parameters& parameters, const Gradients& gradients) {
  std::vector<Tensor> all;
  for (const NamedTensor& parameter : parameters) all.push_back(gradients.of(parameter.tensor));
  return sums_of_squares(all);
}

void Adam::step(const Gradients& gradients) {
  const Tensor squares = squared_norms(parameters_, gradients);
  begin_update();
  update(gradients, squares, 0);
}

void Adam::begin_update() {
  const AdamOptions& o = options_;
  const double t = static_cast<double>(++steps_);
  const double beta2_t = std::pow(o.beta2, t);
  const double n_max = 2 / (1 - o.beta2) - 1;
  const double n = n_max - 2 * t * beta2_t / (1 - beta2_t);
  const bool adaptive = n >= 5 || !o.rectify;
  const double correction = std::sqrt(1 - beta2_t);  // of sqrt(v)
  double size = o.lr / (1 - std::pow(o.beta1, t));
  if (adaptive) size *= correction;
  if (adaptive && o.rectify) size *= std::sqrt((n - 4) / (n_max - 4) * (n - 2) / (n_max - 2) * n_max / n);
  const float decay = static_cast<float>(o.weight_decay * o.lr);
  const float eps = static_cast<float>(o.rectify ? o.eps : o.eps * correction);
  if (rates_) assign(rates_, Tensor(Shape{4}, {static_cast<float>(size), decay, adaptive ? 1.0f : 0.0f, eps}));
}

void Adam::update(const Gradients& gradients, const Tensor& squares, int64_t first) {
  if (parameters_.empty()) return;
  std::vector<RAdamUpdate> all;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Tensor& parameter = parameters_[i].tensor;
    all.push_back({parameter, m_[i], v_[i], gradients.of(parameter)});
  }
  const AdamOptions& o = options_;
  radam_step(std::move(all), squares, first, rates_, {o.beta1, o.beta2, o.clip, o.global_clip});
}

Parameters Adam::state() const {
  Parameters state;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    state.push_back({"optimizer.m." + parameters_[i].name, m_[i]});
    state.push_back({"optimizer.v." + parameters_[i].name, v_[i]});
  }
  return state;
}

Sgd::Sgd(Parameters parameters, double lr, double momentum)
    : parameters_(std::move(parameters)), lr_(lr), momentum_(momentum) {
  for (const auto& [name, tensor] : parameters_) m_.push_back(Tensor::full(tensor.shape(), 0, tensor.device()));
}

void Sgd::step(const Gradients& gradients) {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    Tensor& p = parameters_[i].tensor;
    m_[i] = add(scale(m_[i], static_cast<float>(momentum_)), gradients.of(p));
    assign(p, subtract(detach(p), scale(m_[i], static_cast<float>(lr_))));
  }
}

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
  // Steps of one size let weights wander ever further from 0: without decay a feed-forward layer soon outweighs what it
  // is added to, and a run of an hour grows worse. Where steps of size s agree for some 20 updates, weights stay near
  // s sqrt(20 / (2 decay)): a tenth, for a learning rate of 1e-3 and a decay of 0.3.
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

// Not the projections of queries and keys: steps that move all directions alike would soon efface what they begin with
// (models/local_heads.h). Nor embeddings and the predictor, for which Muon is not meant.
bool suits_muon(const NamedTensor& parameter) {
  for (const char* matrix :
       {".value_projection.weight", ".out_projection.weight", ".linear1.weight", ".linear2.weight"})
    if (parameter.name.ends_with(matrix)) return true;
  return false;
}

// The largest first, each to the process that has least so far.
std::vector<int> divided_evenly(const Parameters& parameters) {
  std::vector<size_t> order(parameters.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return parameters[a].tensor.size() > parameters[b].tensor.size(); });
  std::vector<int64_t> sizes(static_cast<size_t>(processes().size()));
  std::vector<int> owners(parameters.size());
  for (const size_t i : order) {
    const auto least = std::min_element(sizes.begin(), sizes.end());
    owners[i] = static_cast<int>(least - sizes.begin());
    *least += parameters[i].tensor.size();
  }
  return owners;
}

}  // namespace

Optimizer::Optimizer(const Parameters& parameters, AdamOptions options, bool muon, bool divided)
    : all_(parameters),
      muons_(muon ? std::ranges::count_if(parameters, suits_muon) : 0),
      adam_({}, options),
      muon_({}, options.lr, options.muon_decay) {
  if (muon) std::stable_partition(all_.begin(), all_.end(), suits_muon);
  if (divided && processes().size() > 1) owners_ = divided_evenly(all_);
  std::vector<int32_t> rows;
  for (size_t i = 0; i < all_.size(); ++i)
    if (owners_.empty() || owners_[i] == processes().rank()) {
      own_.push_back(all_[i]);
      rows.push_back(static_cast<int32_t>(i));
    }
  const int64_t own_muons = std::ranges::count_if(rows, [&](int32_t row) { return row < muons_; });
  rows.push_back(static_cast<int32_t>(all_.size()));
  if (!all_.empty()) rows_ = Indices(Shape{std::ssize(rows)}, rows).to(all_[0].tensor.device());
  adam_ = Adam({own_.begin() + own_muons, own_.end()}, options);
  muon_ = Muon({own_.begin(), own_.begin() + own_muons}, options.lr, options.muon_decay);
  own_muons_ = own_muons;
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
  const Tensor own = owners_.empty() ? squares : gather(squares, rows_);
  adam_.update(gradients, own, own_muons_);
  muon_.update(gradients, own);
  if (!owners_.empty()) share_parameters();
}

void Optimizer::share_parameters() {
  std::vector<Communicator::Copy> copies;
  for (size_t i = 0; i < all_.size(); ++i) copies.push_back({all_[i].tensor.data(), all_[i].tensor.size(), owners_[i]});
  processes().copy(copies);
}

void Optimizer::set_lr(double lr) {
  adam_.set_lr(lr);
  muon_.set_lr(lr);
}

Parameters Optimizer::own_state() const {
  Parameters state = adam_.state();
  for (const NamedTensor& m : muon_.state()) state.push_back(m);
  return state;
}

// In the order of own_state(), had one process all.
Parameters Optimizer::empty_state() const {
  Parameters state;
  const auto moment = [&](const char* kind, const NamedTensor& p) {
    state.push_back({"optimizer." + std::string(kind) + "." + p.name, Tensor::full(p.tensor.shape(), 0)});
  };
  const auto first = all_.begin(), first_of_radam = first + muons_;
  for (auto p = first_of_radam; p != all_.end(); ++p) moment("m", *p), moment("v", *p);
  for (auto p = first; p != first_of_radam; ++p) moment("m", *p);
  return state;
}

Parameters Optimizer::state() const {
  Parameters own = own_state();
  if (owners_.empty()) return own;
  Parameters all = empty_state();
  auto next = own.begin();
  for (size_t i = 0; i < all.size(); ++i) {
    auto& [name, tensor] = all[i];
    if (next != own.end() && next->name == name) tensor = (next++)->tensor.to(Device::cpu);
    const auto radams = 2 * (all_.size() - static_cast<size_t>(muons_));
    const int owner = owners_[i < radams ? static_cast<size_t>(muons_) + i / 2 : i - radams];
    std::vector<float> values = tensor.to_vector();
    processes().broadcast(values.data(), values.size() * sizeof(float), owner);
    if (owner != processes().rank()) assign(tensor, Tensor(tensor.shape(), values));
  }
  return all;
}

void Optimizer::set_state(const Parameters& state) {
  Parameters own = own_state();
  auto next = own.begin();
  for (const auto& [name, tensor] : state)
    if (next != own.end() && next->name == name) assign((next++)->tensor, tensor);
}

int64_t Optimizer::state_bytes() const { return 4 * element_count(own_state()); }

}  // namespace runnel
