#include "engine/recompute.h"

#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "engine/tape.h"

namespace runnel {

Tensor recompute(const std::function<Tensor()>& f) {
  if (!Tape::current_) return f();
  // f's inputs are the tensors that its ops use and do not make. They are found on a tape of its own, which is then
  // dropped.
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
  y = detach(y);  // the ops on `once` are gone: to the outer tape this is another tensor
  const auto backward = [f, inputs](const std::vector<Tensor>& dy, const Tensor&) {
    Tape again;
    std::unordered_map<uint64_t, Tensor> gradients;
    again.backward(
        f(), [&](uint64_t leaf, Tensor gradient) { gradients[leaf] = std::move(gradient); }, dy[0]);
    std::vector<Tensor> dx;
    for (const Tape::Node::Input& input : inputs) dx.push_back(std::move(gradients[input.id]));
    return dx;
  };
  Tape::current_->nodes_.push_back({"recompute", inputs, {y.id()}, backward});
  return y.set_wants_grad();
}

}  // namespace runnel
