#include "engine/tape.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "engine/accumulate.h"
#include "engine/check.h"

namespace runnel {

thread_local Tape* Tape::current_ = nullptr;
namespace {
thread_local TapeObserver* the_observer = nullptr;
}

TapeObserver* set_observer(TapeObserver* observer) { return std::exchange(the_observer, observer); }

Tape::Tape() : outer_(std::exchange(current_, this)) {}
Tape::~Tape() { current_ = outer_; }

bool is_recording() { return Tape::current_ != nullptr; }

std::vector<Tensor> Tape::put(Node node, const std::vector<Tensor>& inputs, std::vector<Tensor> outputs) {
  const auto wants_grad = [](const Tensor& x) { return x.wants_grad(); };
  if (!current_ || std::none_of(inputs.begin(), inputs.end(), wants_grad)) return outputs;
  if (the_observer) the_observer->recorded(node.op, inputs, outputs);
  for (const Tensor& x : inputs) node.inputs.push_back({x.id(), x.wants_grad(), x.shape()});
  for (Tensor& y : outputs) node.outputs.push_back(y.set_wants_grad().id());
  current_->nodes_.push_back(std::move(node));
  return outputs;
}

std::vector<Tensor> record(const char* op, const std::vector<Tensor>& inputs, std::vector<Tensor> outputs,
                           AddingBackward backward) {
  return Tape::put({op, {}, {}, std::move(backward), true}, inputs, std::move(outputs));
}

std::vector<Tensor> record(const char* op, const std::vector<Tensor>& inputs, std::vector<Tensor> outputs,
                           MultiBackward backward) {
  const auto rule = [backward = std::move(backward)](const std::vector<Tensor>& dy, const Tensor&) {
    return backward(dy);
  };
  return Tape::put({op, {}, {}, rule}, inputs, std::move(outputs));
}

Tensor record(const char* op, const std::vector<Tensor>& inputs, Tensor output, Backward backward) {
  if (!Tape::current_) return output;
  return record(op, inputs, std::vector{std::move(output)},
                [backward = std::move(backward)](const std::vector<Tensor>& dy) { return backward(dy[0]); })[0];
}

void refuse_gradient(const char* op, const char* argument, const Tensor& x) {
  check(!is_recording() || !x.wants_grad(), op, " has no gradient for ", argument, ' ', x.shape(),
        ", which wants one; if it is a constant here, pass detach(", argument, ")");
}

namespace {

// In place, unless another tensor has the same storage: a rule may have returned one tensor for two inputs.
void add_to(Tensor& sum, Tensor dx) {
  if (!sum) {
    sum = std::move(dx);
    return;
  }
  Tensor total = sum.is_shared() ? Tensor(sum.shape(), sum.device()) : sum;
  accumulate(sum.device(), total.data(), sum.data(), dx.data(), sum.size());
  sum = std::move(total);
}

}  // namespace

Gradients Tape::backward(const Tensor& loss) {
  Gradients gradients;
  backward(loss, [&](uint64_t leaf, Tensor gradient) { gradients.by_id[leaf] = std::move(gradient); });
  return gradients;
}

void Tape::backward(const Tensor& y, const Sink& sink, Tensor dy) {
  check(!is_used_, "backward: this tape has been used; record the ops again, on a new one");
  check(y.wants_grad(), "backward: the loss does not depend on any tensor that wants a gradient");
  if (!dy) {
    check(y.size() == 1, "backward: the loss is a tensor ", y.shape(), ", not one number");
    dy = Tensor::full(y.shape(), 1, y.device());
  }
  // Rules call ops; those are not to be recorded. Recording goes on afterwards, also when a rule throws.
  const struct Pause {
    Tape* recording = std::exchange(current_, nullptr);
    ~Pause() { current_ = recording; }
  } pause;

  // A leaf's gradient is complete when the rule of the first op that used it has run.
  std::unordered_map<uint64_t, size_t> first_use;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    for (const Node::Input& input : nodes_[i].inputs)
      if (input.wants_grad) first_use.try_emplace(input.id, i);
  }
  for (const Node& node : nodes_)
    for (const uint64_t output : node.outputs) first_use.erase(output);

  std::unordered_map<uint64_t, Tensor> sums;  // of the gradients returned so far, by the tensor's id
  sums[y.id()] = std::move(dy);
  while (!nodes_.empty()) {
    const Node node = std::move(nodes_.back());
    nodes_.pop_back();
    const size_t number = nodes_.size();  // of this node

    // Whatever uses these outputs was recorded later and has been visited: their gradients are complete.
    std::vector<Tensor> gradients;
    bool reached = false;
    for (const uint64_t output : node.outputs) {
      const auto gradient = sums.extract(output);
      gradients.push_back(gradient ? std::move(gradient.mapped()) : Tensor());
      reached = reached || gradients.back();
    }
    Tensor so_far;
    if (reached && node.adds) {
      const auto sum = sums.find(node.inputs[0].id);
      if (sum != sums.end() && !sum->second.is_shared()) so_far = std::move(sums.extract(sum).mapped());
    }
    std::vector<Tensor> dx =
        reached ? node.backward(gradients, std::move(so_far)) : std::vector<Tensor>(node.inputs.size());
    check(dx.size() == node.inputs.size(), node.op, ": its gradient rule returns ", dx.size(), " tensors for ",
          node.inputs.size(), " inputs");
    for (size_t i = 0; i < dx.size(); ++i) {
      const Node::Input& input = node.inputs[i];
      if (!input.wants_grad || !dx[i]) continue;
      check(dx[i].shape() == input.shape, node.op, ": the gradient ", dx[i].shape(), " of input ", i,
            " does not have its shape ", input.shape);
      Tensor& sum = sums[input.id];
      add_to(sum, std::move(dx[i]));
      if (the_observer) the_observer->differentiated(node.op, i, sum);
    }
    for (const Node::Input& input : node.inputs) {
      const auto first = first_use.find(input.id);
      if (first == first_use.end() || first->second != number) continue;
      first_use.erase(first);
      if (auto complete = sums.extract(input.id)) sink(input.id, std::move(complete.mapped()));
    }
  }
  if (auto unused = sums.extract(y.id())) sink(y.id(), std::move(unused.mapped()));  // y is a leaf that no op used
  is_used_ = true;
}

const Tensor& Gradients::of(const Tensor& leaf) const {
  const auto found = by_id.find(leaf.id());
  check(found != by_id.end(), "gradient: the loss does not depend on this tensor ", leaf.shape(),
        leaf.wants_grad() ? "" : ", which wants no gradient: call set_wants_grad() before the ops");
  return found->second;
}

}  // namespace runnel
