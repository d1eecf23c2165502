// Reverse-mode automatic differentiation: a list of what was computed, walked backwards.
//
//   Tape tape;
//   Tensor loss = cross_entropy(model(tokens), targets, mask);
//   optimizer.step(tape.backward(loss));
//
// The order in which ops ran already is a topological order, so nothing is sorted and nothing recurses. Ownership runs
// one way, tape -> rules -> tensors -> storage, so there are no cycles. Without a Tape alive, ops only compute.
#pragma once
#include <functional>
#include <unordered_map>
#include <vector>

#include "engine/tensor.h"

namespace runnel {

// An op's gradient rule: dL/doutput -> dL/dinput, one per input; an empty Tensor means none. What the closure captures
// is what the backward pass keeps in memory.
using Backward = std::function<std::vector<Tensor>(const Tensor& dy)>;

// The rule of an op with several outputs: one dL/doutput for each, empty where the loss does not depend on that output.
// At least one is not empty.
using MultiBackward = std::function<std::vector<Tensor>(const std::vector<Tensor>& dy)>;

// How every op ends: returns its output. If this thread has a tape and some input wants a gradient, the rule is put on
// the tape and the output wants a gradient too.
Tensor record(const char* op, const std::vector<Tensor>& inputs, Tensor output, Backward backward);
// The same for an op with several outputs.
std::vector<Tensor> record(const char* op, const std::vector<Tensor>& inputs, std::vector<Tensor> outputs,
                           MultiBackward backward);

// For gradient rules: takes over what other rules have returned as dL/dx so far, so that the rule can add to it in
// place and return it as its own. Empty if there is nothing yet, or if another tensor has the same storage.
Tensor take_gradient(const Tensor& x);

class Gradients {
 public:
  const Tensor& of(const Tensor& leaf) const;  // throws if the loss does not depend on the leaf

 private:
  friend class Tape;
  friend class GradientSum;
  friend Tensor recompute(const std::function<Tensor()>&);
  friend Tensor take_gradient(const Tensor& x);
  std::unordered_map<uint64_t, Tensor> by_id_;
};

// Records this thread's ops while it is alive. Tapes nest: the innermost records.
class Tape {
 public:
  Tape();
  ~Tape();
  Tape(const Tape&) = delete;
  Tape& operator=(const Tape&) = delete;

  // Gradients of `loss` (one number) for every leaf that wants one. Frees the tape's tensors as it goes, so it can be
  // called once; recording pauses meanwhile.
  Gradients backward(const Tensor& loss);
  // The same one by one: as soon as a leaf's gradient is complete, in an order that follows from that of the ops,
  // finished(id of the leaf, gradient) takes it over.
  using Finished = std::function<void(uint64_t leaf, Tensor gradient)>;
  void backward(const Tensor& loss, const Finished& finished);

 private:
  friend Tensor record(const char*, const std::vector<Tensor>&, Tensor, Backward);
  friend std::vector<Tensor> record(const char*, const std::vector<Tensor>&, std::vector<Tensor>, MultiBackward);
  friend Tensor recompute(const std::function<Tensor()>&);
  struct Node {
    const char* op;
    struct Input {
      uint64_t id;
      bool wants_grad;
      Shape shape;
    };
    std::vector<Input> inputs;
    std::vector<uint64_t> outputs;
    MultiBackward backward;
  };
  // Carries the gradients of outputs in `sum` back to the leaves.
  Gradients walk(Gradients sum, const Finished& finished = {});

  std::vector<Node> nodes_;
  Tape* outer_;  // records again when this one is gone
  static thread_local Tape* current_;
};

}  // namespace runnel
