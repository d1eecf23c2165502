// The gradients of an update, summed over the parts of its batch.
//
// The parts are added as a binary tree over their numbers, ((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7)), each by itself:
// so it does not matter which process computes a part. Processes own subtrees, and processes() add their sums.
//
// The gradients of all parameters lie behind each other, in the order in which the backward pass completes them. Ranges
// that are complete are sent while it goes on.
#pragma once
#include <vector>

#include "apps/training/communicator.h"
#include "engine/tape.h"

namespace runnel {

class GradientSum {
 public:
  explicit GradientSum(SumOptions options = {}) : options_(options) {}

  // Of `parts` parts that this process computes.
  void begin(int64_t parts);
  // Adds the loss of the next part and its gradients. Throws Error if the loss depends on a different parameter set
  // than earlier parts.
  void add(Tape& tape, const Tensor& loss);
  // When the gradients of the last part have been added: the sums over all processes. They are valid until begin().
  struct Result {
    Tensor loss;  // []
    Gradients gradients;
  };
  Result finish();

 private:
  struct Place {
    uint64_t leaf;
    Shape shape;
    int64_t first, end;  // in floats
    Tensor pending;      // of a part with an even number, until the next is added
  };
  using Finished = std::vector<std::pair<uint64_t, Tensor>>;
  void lay_out(const Finished& gradients, const Tensor& loss);
  void add_to(Place& place, Tensor numbers);
  void send_until(const Place& place);

  SumOptions options_;
  std::vector<Place> places_;  // the last is the loss
  // levels_[i], i > 0: the sum of the last 2^i parts that are not yet in a higher level; the last level: of all. After
  // n parts, level i holds a sum that is still needed if bit i of n is 1.
  std::vector<Tensor> levels_;
  int64_t parts_ = 0, part_ = 0;
  Result sole_part_;  // of the only part of all
  int64_t sent_ = 0;  // floats of the last level
};

}  // namespace runnel
