// Reverse-mode automatic differentiation: a list of the operations, walked backwards.
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

// The rule of an op that adds to the gradient of its first input itself, as a matrix product can: so_far is what other
// rules have returned as that gradient, in storage that no other tensor has, or empty. The rule returns the sum.
using AddingBackward = std::function<std::vector<Tensor>(const std::vector<Tensor>& dy, Tensor so_far)>;

// How every op ends: returns its output. If this thread has a tape and some input wants a gradient, the rule is put on
// the tape and the output wants a gradient too.
Tensor record(const char* op, const std::vector<Tensor>& inputs, Tensor output, Backward backward);
// The same for an op with several outputs.
std::vector<Tensor> record(const char* op, const std::vector<Tensor>& inputs, std::vector<Tensor> outputs,
                           MultiBackward backward);
std::vector<Tensor> record(const char* op, const std::vector<Tensor>& inputs, std::vector<Tensor> outputs,
                           AddingBackward backward);

// For ops that have no gradient for an argument x: throws Error if a tape records and x wants one, so that no gradient
// is silently missing.
void refuse_gradient(const char* op, const char* argument, const Tensor& x);
bool is_recording();  // whether this thread has a tape that records

// Sees every result and gradient of this thread's tapes; engine/finite_guard.h is one.
class TapeObserver {
 public:
  virtual ~TapeObserver() = default;
  virtual void recorded(const char* op, const std::vector<Tensor>& inputs, const std::vector<Tensor>& outputs) = 0;
  virtual void differentiated(const char* op, size_t input, const Tensor& dx) = 0;
};
// Returns the observer before, null if there was none.
TapeObserver* set_observer(TapeObserver* observer);

struct Gradients {
  std::unordered_map<uint64_t, Tensor> by_id;  // dL/dleaf by the leaf's id()

  const Tensor& of(const Tensor& leaf) const;  // throws Error if the loss does not depend on the leaf
};

// Records this thread's ops while it is alive. Tapes nest: the innermost records.
class Tape {
 public:
  Tape();
  ~Tape();
  Tape(const Tape&) = delete;
  Tape& operator=(const Tape&) = delete;

  // Carries dL/dy (empty: 1, y is the loss itself and one number) back to every leaf that wants a gradient. As soon as
  // a leaf's gradient is complete, in an order that follows from that of the ops, the sink takes it over. Frees the
  // tape's tensors as it goes, so it can be called once; recording pauses meanwhile. Gradients of one tensor are added
  // in place where no other tensor has their storage.
  using Sink = std::function<void(uint64_t leaf, Tensor gradient)>;
  void backward(const Tensor& y, const Sink& sink, Tensor dy = {});
  Gradients backward(const Tensor& loss);  // all of them

 private:
  friend Tensor record(const char*, const std::vector<Tensor>&, Tensor, Backward);
  friend std::vector<Tensor> record(const char*, const std::vector<Tensor>&, std::vector<Tensor>, MultiBackward);
  friend std::vector<Tensor> record(const char*, const std::vector<Tensor>&, std::vector<Tensor>, AddingBackward);
  friend bool is_recording();
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
    AddingBackward backward;
    bool adds = false;  // the rule is given so_far
  };
  static std::vector<Tensor> put(Node node, const std::vector<Tensor>& inputs, std::vector<Tensor> outputs);

  std::vector<Node> nodes_;
  bool is_used_ = false;  // by backward
  Tape* outer_;           // records again when this one is gone
  static thread_local Tape* current_;
};

}  // namespace runnel
