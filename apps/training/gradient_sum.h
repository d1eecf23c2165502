// The gradients of an update, summed over the parts of its batch.
//
// The parts are added as a binary tree over their numbers, ((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7)), so it does not
// matter which thread or process computes a part, nor when. Processes own subtrees, and processes() add their sums.
//
// To be sent, the gradients of all parameters lie behind each other, those of the last parameters first, as the
// backward pass completes them. Ranges that are complete are sent while it goes on.
#pragma once
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "apps/training/communicator.h"
#include "engine/tape.h"
#include "models/parameters.h"

namespace runnel {

class GradientSum {
 public:
  explicit GradientSum(const Parameters& parameters, SumOptions options = {});  // in the order of their use

  // Of `parts` parts that this process computes.
  void begin(int64_t parts);
  // Adds the gradient of a parameter, and the loss, of one part. Several threads may do so at once.
  void add(int64_t part, uint64_t leaf, Tensor gradient);
  void add_loss(int64_t part, Tensor loss) { add(part, loss_place, std::move(loss)); }
  // Starts to send what has been added of all parts. Called by the thread that calls processes().
  void send();
  // When all parts have been added: the sums over all processes, valid until begin(). Throws Error if the loss of a
  // part does not depend on a parameter.
  struct Result {
    Tensor loss;  // []
    Gradients gradients;
  };
  Result finish();

 private:
  static constexpr uint64_t loss_place = 0;  // no tensor has this id
  struct Place {
    std::string name;
    uint64_t leaf;
    Shape shape;
    int64_t first, end;                  // in sums_
    std::map<uint64_t, Tensor> waiting;  // sums of some parts, by their node of the tree
    Tensor sum;                          // of all parts
  };

  SumOptions options_;
  std::vector<Place> places_;  // the last is the loss
  std::unordered_map<uint64_t, size_t> place_of_;
  int64_t parts_ = 0;
  std::mutex mutex_;     // of `waiting` and `sum`
  Tensor sums_;          // of several processes
  size_t gathered_ = 0;  // places whose sum is in sums_
  int64_t sent_ = 0;     // floats of sums_
};

}  // namespace runnel
