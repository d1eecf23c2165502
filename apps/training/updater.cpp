#include "apps/training/updater.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <thread>

#include "apps/training/communicator.h"
#include "engine/check.h"
#include "engine/finite_guard.h"
#include "engine/tape.h"
#include "engine/threads.h"
#include "ops/elementwise.h"

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

Slice on_device(Slice slice, Device device) {
  for (Indices& x : slice.indices) x = x.to(device);
  for (Tensor& x : slice.numbers) x = x.to(device);
  return slice;
}

}  // namespace

Updater::Updater(ShardedOptimizer optimizer, Device device, Key key, SliceLoss loss, SumOptions sums)
    : optimizer_(std::move(optimizer)),
      device_(device),
      loss_(std::move(loss)),
      step_(Shape{1}, device),
      key_{key.value, step_.data()},
      result_(Shape{2}, device),
      sum_(optimizer_.parameters(), sums) {}

GradientSum::Result Updater::differentiate(Workers& workers) {
  const auto count = std::ssize(slices_);
  const std::vector<Tensor> shares = shares_.parts();
  const auto caller = std::this_thread::get_id();  // sends by itself: MPI and NCCL are called by one thread
  sum_.begin(count);
  workers.run(count, [&](int64_t i) {
    Tape tape;
    const Key key = key_.fold(static_cast<uint64_t>(processes().rank() * count + i));
    const Tensor loss = multiply(loss_(slices_[static_cast<size_t>(i)], key), shares[static_cast<size_t>(i)]);
    tape.backward(loss, [&](uint64_t leaf, Tensor gradient) {
      sum_.add(i, leaf, std::move(gradient));
      if (std::this_thread::get_id() == caller) sum_.send();
    });
    sum_.add_loss(i, loss);
  });
  return sum_.finish();
}

// As many as divide both the slices and the threads. One on CUDA, where one thread gives all work, and where OpenMP
// binds threads to cores: it would bind all workers to the same one.
Workers& Updater::workers() {
  const int64_t threads = omp_get_max_threads();
  const bool can_share = device_ == Device::cpu && omp_get_proc_bind() == omp_proc_bind_false;
  const int64_t count = can_share ? std::gcd(std::ssize(slices_), threads) : 1, team = threads / count;
  if (!workers_ || workers_->count() != count || workers_->team() != team) workers_.emplace(count, team);
  return *workers_;
}

void Updater::compute() {
  const auto [loss, gradients] = differentiate(workers());
  const Tensor squares = optimizer_.squares(gradients);
  optimizer_.update(gradients, squares);
  copy(result_.data(), device_, loss.data(), device_, sizeof(float));
  copy(result_.data() + 1, device_, squares.data() + squares.size() - 1, device_, sizeof(float));
}

Updater::Result Updater::update(int64_t step, const std::vector<Slice>& slices) {
  const bool fits = std::ranges::equal(slices_, slices, same_shapes);
  std::vector<double> own{0, 0, fits && replay_ && can_replay(device_) ? 0.0 : 1.0};
  for (const Slice& slice : slices) {
    own[0] += slice.weight;
    own[1] += static_cast<double>(slice.tokens);
  }
  const std::vector<double> all = processes().sum(own);
  if (fits) {
    for (size_t i = 0; i < slices.size(); ++i) assign(slices_[i], slices[i]);
  } else {
    slices_.clear();
    for (const Slice& slice : slices) slices_.push_back(on_device(slice, device_));
    shares_ = Tensor(Shape{std::ssize(slices)}, device_);
  }
  if (all[2] > 0) replay_.emplace(device_, [this] { compute(); });
  assign(step_, Indices(Shape{1}, {static_cast<int32_t>(step)}));
  std::vector<float> shares;
  for (const Slice& slice : slices) shares.push_back(static_cast<float>(slice.weight / all[0]));
  assign(shares_, Tensor(shares_.shape(), shares));
  optimizer_.begin_update();
  replay_->run();
  const std::vector<float> result = result_.to_vector();
  return {result[0], static_cast<int64_t>(all[1]), std::isfinite(result[0]) && std::isfinite(result[1])};
}

std::string Updater::first_non_finite() {
  try {
    const FiniteGuard guard;
    Workers this_thread(1, omp_get_max_threads());  // which the guard is for
    differentiate(this_thread);
  } catch (const Error& error) {
    return error.what();
  }
  return "the norm of the gradients is beyond float32";
}

}  // namespace runnel
