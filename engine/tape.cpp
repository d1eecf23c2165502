#include "engine/tape.h"

#include <algorithm>
#include <utility>

#include "engine/check.h"
#include "engine/dispatch.h"
#include "engine/finite_guard.h"

namespace runnel {

thread_local Tape* Tape::current_ = nullptr;

Tape::Tape() : outer_(std::exchange(current_, this)) {}
Tape::~Tape() { current_ = outer_; }

std::vector<Tensor> record(const char* op, const std::vector<Tensor>& inputs, std::vector<Tensor> outputs,
                           MultiBackward backward) {
  const auto wants_grad = [](const Tensor& x) { return x.wants_grad(); };
  if (!Tape::current_ || std::none_of(inputs.begin(), inputs.end(), wants_grad)) return outputs;
  FiniteGuard::check_op(op, inputs, outputs);
  Tape::Node node{op, {}, {}, std::move(backward)};
  for (const Tensor& x : inputs) node.inputs.push_back({x.id(), x.wants_grad(), x.shape()});
  for (Tensor& y : outputs) node.outputs.push_back(y.set_wants_grad().id());
  Tape::current_->nodes_.push_back(std::move(node));
  return outputs;
}

Tensor record(const char* op, const std::vector<Tensor>& inputs, Tensor output, Backward backward) {
  if (!Tape::current_) return output;
  return record(op, inputs, std::vector{std::move(output)},
                [backward = std::move(backward)](const std::vector<Tensor>& dy) { return backward(dy[0]); })[0];
}

namespace {

Tensor gradient_of(const Tensor& loss) {
  check(loss.size() == 1, "backward: the loss is a tensor ", loss.shape(), ", not one number");
  check(loss.wants_grad(), "backward: the loss does not depend on any tensor that wants a gradient");
  return Tensor::full(loss.shape(), 1, loss.device());
}

thread_local Gradients* walked = nullptr;  // by this thread's backward pass

// Out of place: a rule may have handed the same tensor to two inputs.
void add_to(Tensor& sum, Tensor dx) {
  if (!sum) {
    sum = std::move(dx);
    return;
  }
  Tensor total(sum.shape(), sum.device());
  DISPATCH(sum.device(), add(total.data(), sum.data(), dx.data(), sum.size()));
  sum = std::move(total);
}

}  // namespace

Gradients Tape::backward(const Tensor& loss) {
  Gradients gradients;
  gradients.by_id_[loss.id()] = gradient_of(loss);
  return walk(std::move(gradients));
}

void Tape::backward(const Tensor& loss, const Finished& finished) {
  Gradients gradients;
  gradients.by_id_[loss.id()] = gradient_of(loss);
  walk(std::move(gradients), finished);
}

Tensor take_gradient(const Tensor& x) {
  if (!walked) return {};
  const auto found = walked->by_id_.find(x.id());
  if (found == walked->by_id_.end() || found->second.is_shared()) return {};
  return std::exchange(found->second, {});
}

Gradients Tape::walk(Gradients sum, const Finished& finished) {
  // Rules call ops; those are not to be recorded. Recording goes on afterwards, also when a rule throws.
  const struct Pause {
    Tape* recording = std::exchange(current_, nullptr);
    Gradients* outer;
    explicit Pause(Gradients* inner) : outer(std::exchange(walked, inner)) {}
    ~Pause() {
      current_ = recording;
      walked = outer;
    }
  } pause(&sum);

  // A leaf's gradient is complete when the rule of the first op that used it has run.
  std::unordered_map<uint64_t, size_t> first_use;
  if (finished) {
    for (size_t i = 0; i < nodes_.size(); ++i) {
      for (const Node::Input& input : nodes_[i].inputs)
        if (input.wants_grad) first_use.try_emplace(input.id, i);
    }
    for (const Node& node : nodes_)
      for (const uint64_t output : node.outputs) first_use.erase(output);
  }
  while (!nodes_.empty()) {
    const Node node = std::move(nodes_.back());
    nodes_.pop_back();

    // Whatever uses these outputs was recorded later and has been visited: their gradients are complete.
    std::vector<Tensor> dy;
    bool reached = false;
    for (const uint64_t output : node.outputs) {
      const auto gradient = sum.by_id_.extract(output);
      dy.push_back(gradient ? std::move(gradient.mapped()) : Tensor());
      reached = reached || dy.back();
    }
    std::vector<Tensor> dx = reached ? node.backward(dy) : std::vector<Tensor>(node.inputs.size());
    check(dx.size() == node.inputs.size(), node.op, ": its gradient rule returns ", dx.size(), " tensors for ",
          node.inputs.size(), " inputs");
    for (size_t i = 0; i < dx.size(); ++i) {
      const Node::Input& input = node.inputs[i];
      if (!input.wants_grad || !dx[i]) continue;
      check(dx[i].shape() == input.shape, node.op, ": the gradient ", dx[i].shape(), " of input ", i,
            " does not have its shape ", input.shape);
      Tensor& so_far = sum.by_id_[input.id];
      add_to(so_far, std::move(dx[i]));
      FiniteGuard::check_gradient(node.op, i, so_far);
    }
    if (finished) {
      for (const Node::Input& input : node.inputs) {
        const auto first = first_use.find(input.id);
        if (first == first_use.end() || first->second != nodes_.size()) continue;
        first_use.erase(first);
        if (auto complete = sum.by_id_.extract(input.id)) finished(input.id, std::move(complete.mapped()));
      }
    }
  }
  return sum;
}

const Tensor& Gradients::of(const Tensor& leaf) const {
  const auto found = by_id_.find(leaf.id());
  check(found != by_id_.end(), "gradient: the loss does not depend on this tensor ", leaf.shape());
  return found->second;
}

}  // namespace runnel
