#include "engine/tape.h"

#include <algorithm>
#include <cmath>
#include <unordered_set>
#include <utility>

#include "engine/check.h"

namespace runnel {
namespace {

thread_local Tape* current = nullptr;
thread_local bool guarded = false;

template <class... What>
void check_finite(const Tensor& x, const What&... what) {
  if (!x) return;
  const std::vector<float> values = x.to_vector();
  for (size_t i = 0; i < values.size(); ++i)
    if (!std::isfinite(values[i]))
      fail(what..., " ", x.shape(), " has ",
           std::isnan(values[i]) ? "nan"
           : values[i] > 0       ? "inf"
                                 : "-inf",
           " at element ", i);
}

}  // namespace

FiniteGuard::FiniteGuard() : outer_(std::exchange(guarded, true)) {}
FiniteGuard::~FiniteGuard() { guarded = outer_; }

Tape::Tape() : outer_(std::exchange(current, this)) {}
Tape::~Tape() { current = outer_; }

std::vector<Tensor> record(const char* op, const std::vector<Tensor>& inputs, std::vector<Tensor> outputs,
                           MultiBackward backward) {
  if (!current || std::none_of(inputs.begin(), inputs.end(), [](const Tensor& x) { return x.wants_grad(); }))
    return outputs;
  Tape::Node node{op, {}, {}, std::move(backward)};
  for (const Tensor& x : inputs) node.inputs.push_back({x.id(), x.wants_grad(), x.shape()});
  for (Tensor& y : outputs) node.outputs.push_back(y.set_wants_grad().id());
  if (guarded) {
    for (size_t i = 0; i < inputs.size(); ++i) check_finite(inputs[i], "input ", i, " of ", op);
    if (outputs.size() == 1)
      check_finite(outputs[0], "the result of ", op);
    else
      for (size_t i = 0; i < outputs.size(); ++i) check_finite(outputs[i], "result ", i, " of ", op);
  }
  current->nodes_.push_back(std::move(node));
  return outputs;
}

Tensor record(const char* op, const std::vector<Tensor>& inputs, Tensor output, Backward backward) {
  if (!current) return output;
  return record(op, inputs, std::vector{std::move(output)},
                [backward = std::move(backward)](const std::vector<Tensor>& dy) { return backward(dy[0]); })[0];
}

Tensor recompute(const std::function<Tensor()>& f) {
  if (!current) return f();
  // f's inputs are what its ops use and do not make.
  std::unordered_set<uint64_t> made, seen;
  std::vector<Tape::Node::Input> inputs;
  Tensor y;
  {
    Tape once;
    y = f();
    for (const Tape::Node& node : once.nodes_) {
      for (const Tape::Node::Input& input : node.inputs)
        if (input.wants_grad && !made.contains(input.id) && seen.insert(input.id).second) inputs.push_back(input);
      made.insert(node.outputs.begin(), node.outputs.end());
    }
  }
  if (!made.contains(y.id())) return y;
  y = y.viewed_as(y.shape());  // the ops on `once` are gone: to the outer tape this is another tensor
  current->nodes_.push_back({"recompute", inputs, {y.id()}, [f, inputs](const std::vector<Tensor>& dy) {
                               Tape again;
                               Gradients gradients;
                               gradients.by_id_[f().id()] = dy[0];
                               gradients = again.walk(std::move(gradients));
                               std::vector<Tensor> dx;
                               for (const auto& input : inputs) dx.push_back(std::move(gradients.by_id_[input.id]));
                               return dx;
                             }});
  return y.set_wants_grad();
}

Gradients Tape::backward(const Tensor& loss, Gradients sum) {
  check(loss.size() == 1, "backward: the loss is a tensor ", loss.shape(), ", not one number");
  check(loss.wants_grad(), "backward: the loss does not depend on any tensor that wants a gradient");
  sum.by_id_[loss.id()] = Tensor::full(loss.shape(), 1, loss.device());
  return walk(std::move(sum));
}

Gradients Tape::walk(Gradients sum) {
  // Rules call ops; those are not to be recorded. Recording goes on afterwards, also when a rule throws.
  const struct Pause {
    Tape* recording = std::exchange(current, nullptr);
    ~Pause() { current = recording; }
  } pause;
  auto& by_id = sum.by_id_;
  while (!nodes_.empty()) {
    const Node node = std::move(nodes_.back());
    nodes_.pop_back();
    // Whatever used these outputs was recorded later and has been visited: their gradients are complete.
    std::vector<Tensor> dy;
    for (const uint64_t output : node.outputs) {
      const auto found = by_id.extract(output);
      dy.push_back(found ? std::move(found.mapped()) : Tensor());
    }
    if (std::none_of(dy.begin(), dy.end(), [](const Tensor& g) { return bool(g); })) continue;

    std::vector<Tensor> dx = node.backward(dy);
    check(dx.size() == node.inputs.size(), node.op, ": its gradient rule returns ", dx.size(), " tensors for ",
          node.inputs.size(), " inputs");
    for (size_t i = 0; i < dx.size(); ++i) {
      const auto& input = node.inputs[i];
      if (!input.wants_grad || !dx[i]) continue;
      check(dx[i].shape() == input.shape, node.op, ": the gradient ", dx[i].shape(), " of input ", i,
            " does not have its shape ", input.shape);
      Tensor& so_far = by_id[input.id];
      if (!so_far) {
        so_far = std::move(dx[i]);
      } else {
        // Out of place: a rule may have handed the same tensor to two inputs.
        Tensor total(so_far.shape(), so_far.device());
        DISPATCH(so_far.device(), add(total.data(), so_far.data(), dx[i].data(), so_far.size()));
        so_far = std::move(total);
      }
      if (guarded) check_finite(so_far, "the gradient of input ", i, " of ", node.op);
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
