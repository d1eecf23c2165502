// A model, as optimizers and checkpoints see it: tensors with names.
#pragma once
#include <string>
#include <vector>

#include "engine/tensor.h"

namespace runnel {

// The names are those of the authors' library; the tensors share their storage with the model.
struct NamedTensor {
  std::string name;
  Tensor tensor;
};
using Parameters = std::vector<NamedTensor>;  // in a fixed order

inline int64_t element_count(const Parameters& parameters) {
  int64_t count = 0;
  for (const NamedTensor& parameter : parameters) count += parameter.tensor.size();
  return count;
}

}  // namespace runnel
