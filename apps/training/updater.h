// Updates of a model's parameters, one after another.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "apps/training/gradient_sum.h"
#include "apps/training/sharded_optimizer.h"
#include "apps/training/workers.h"
#include "engine/random.h"
#include "engine/replay.h"
#include "engine/tape.h"

namespace runnel {

// A part of the training data that has been read: the tensors of a task's batch.
struct Slice {
  std::vector<Indices> indices;
  std::vector<Tensor> numbers;
  double weight;          // of its mean loss in that of an update: how many sequences, or positions, it is over
  int64_t tokens;         // for tokens/s
  int64_t first_row = 0;  // the place of its first sequence in the batch, for tasks that keep something for each place
};

// A batch is a struct whose fields() are references to all its tensors, in a tuple.
template <class Batch>
Slice slice_of(Batch batch, double weight, int64_t tokens) {
  Slice slice{{}, {}, weight, tokens};
  const auto add = [&slice]<class T>(T& x) {
    if constexpr (std::is_same_v<T, Indices>)
      slice.indices.push_back(x);
    else
      slice.numbers.push_back(x);
  };
  std::apply([&](auto&... x) { (add(x), ...); }, batch.fields());
  return slice;
}
template <class Batch>
Batch batch_of(const Slice& slice) {
  Batch batch{};
  auto indices = slice.indices.begin();
  auto numbers = slice.numbers.begin();
  const auto take = [&]<class T>(T& x) {
    if constexpr (std::is_same_v<T, Indices>)
      x = *indices++;
    else
      x = *numbers++;
  };
  std::apply([&](auto&... x) { (take(x), ...); }, batch.fields());
  return batch;
}

// The mean loss of a slice in nats, recorded on the tape; dropout and the like are drawn from the key.
using SliceLoss = std::function<Tensor(const Slice& slice, Key key)>;
template <class Batch, class Loss>
SliceLoss loss_of(Loss loss) {  // of a batch
  return [loss](const Slice& slice, Key key) { return loss(batch_of<Batch>(slice), key); };
}

// On the CPU, threads share the slices (apps/training/workers.h).
//
// On CUDA an update is a graph (engine/replay.h), from the third of the same shapes on: hundreds of kernels cost one
// launch. So all that changes between updates (data, weights, step, rates) is copied to places that stay. The graph has
// messages between processes, which NCCL allows only if all of them capture and launch it together. So shapes count as
// the same if they are on all processes, as they would if one computed all slices.
class Updater {
 public:
  // Draws from `key`, in each step other numbers.
  Updater(ShardedOptimizer optimizer, Device device, Key key, SliceLoss loss, SumOptions sums = {});
  Updater(const Updater&) = delete;  // the graph refers to it
  ShardedOptimizer& optimizer() { return optimizer_; }

  struct Result {
    double loss;     // nats, before the update
    int64_t tokens;  // of all slices
    bool is_finite;  // the loss, and all gradients; else nothing has changed
  };
  // Update number `step`, from 0, by the mean loss of the slices of all processes, of which each computes its own.
  Result update(int64_t step, const std::vector<Slice>& slices);
  // Computes the last update again, whose result was not finite, and says where that began.
  std::string first_non_finite();

 private:
  // The loss of slices_ and its gradients.
  GradientSum::Result differentiate(Workers& workers);
  Workers& workers();
  void compute();

  ShardedOptimizer optimizer_;
  const Device device_;
  const SliceLoss loss_;
  std::vector<Slice> slices_;
  Tensor shares_;  // [slices]: of each one's loss in that of the update
  Indices step_;   // [1]
  const Key key_;  // its step is step_
  Tensor result_;  // [2]: the loss, and the squared norm of all gradients
  GradientSum sum_;
  std::optional<Workers> workers_;
  std::optional<Replay> replay_;
};

}  // namespace runnel
