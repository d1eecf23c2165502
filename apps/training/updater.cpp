#include "apps/training/updater.h"

#include <algorithm>
#include <cmath>

#include "engine/check.h"
#include "engine/finite_guard.h"
#include "ops/ops.h"

namespace runnel {
namespace {

bool same_shapes(const Slice& a, const Slice& b) {
  const auto same = [](const auto& x, const auto& y) { return x.shape() == y.shape(); };
  return std::ranges::equal(a.indices, b.indices, same) && std::ranges::equal(a.numbers, b.numbers, same);
}

void assign(Slice& to, const Slice& from) {
  for (size_t i = 0; i < to.indices.size(); ++i) assign(to.indices[i], from.indices[i]);
  for (size_t i = 0; i < to.numbers.size(); ++i) assign(to.numbers[i], from.numbers[i]);
  to.weight = from.weight;
  to.tokens = from.tokens;
}

}  // namespace

Slice on_device(Slice slice, Device device) {
  for (Indices& x : slice.indices) x = x.to(device);
  for (Tensor& x : slice.numbers) x = x.to(device);
  return slice;
}

Updater::Updater(Optimizer& optimizer, Device device, Key key, SliceLoss loss)
    : optimizer_(optimizer),
      device_(device),
      loss_(std::move(loss)),
      step_(Shape{1}, device),
      key_{key.value, step_.data()},
      result_(Shape{2}, device) {}

std::pair<Tensor, Gradients> Updater::differentiate() const {
  double weight = 0;
  for (const Slice& slice : slices_) weight += slice.weight;
  Gradients gradients;
  Tensor total;
  for (size_t i = 0; i < slices_.size(); ++i) {
    Tape tape;
    Tensor loss = loss_(slices_[i], key_.fold(i));
    if (slices_.size() > 1) loss = scale(loss, static_cast<float>(slices_[i].weight / weight));
    gradients = tape.backward(loss, std::move(gradients));
    total = total ? add(total, loss) : loss;
  }
  return {total, std::move(gradients)};
}

void Updater::compute() {
  const auto [loss, gradients] = differentiate();
  const Tensor squares = optimizer_.squares(gradients);
  optimizer_.update(gradients, squares);
  copy(result_.data(), device_, loss.data(), device_, sizeof(float));
  copy(result_.data() + 1, device_, squares.data() + squares.size() - 1, device_, sizeof(float));
}

Updater::Result Updater::update(int64_t step, const std::vector<Slice>& slices) {
  if (std::ranges::equal(slices_, slices, same_shapes)) {
    for (size_t i = 0; i < slices.size(); ++i) assign(slices_[i], slices[i]);
  } else {
    slices_.clear();
    for (const Slice& slice : slices) slices_.push_back(on_device(slice, device_));
    replay_.emplace(device_, [this] { compute(); });
  }
  assign(step_, Indices(Shape{1}, {static_cast<int32_t>(step)}));
  optimizer_.begin_update();
  slices_.size() == 1 ? replay_->run() : compute();  // of several, the weights change
  const std::vector<float> result = result_.to_vector();
  return {result[0], std::isfinite(result[0]) && std::isfinite(result[1])};
}

std::string Updater::first_non_finite() const {
  try {
    const FiniteGuard guard;
    differentiate();
  } catch (const Error& error) {
    return error.what();
  }
  return "the norm of the gradients is beyond float32";
}

}  // namespace runnel
