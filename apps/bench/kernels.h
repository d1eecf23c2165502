// The kernels of `runnel bench kernels`: packages add theirs to the core's.
#pragma once
#include <functional>
#include <initializer_list>
#include <string>
#include <vector>

#include "engine/tensor.h"

namespace runnel {

struct BenchKernel {
  std::string name;
  double numbers, operations;  // of four bytes, read or written; multiplications, additions and functions
  std::function<void()> run;
};

// Arguments of kernels, at the sizes of the paper's copy task.
struct KernelInputs {
  explicit KernelInputs(Device where);
  Tensor floats(std::initializer_list<int64_t> shape);   // in [-1, 1)
  Indices numbers_below(int64_t count, uint32_t below);  // in [0, below)

  static constexpr int64_t length = 128, heads = 8, e = 32, d = heads * e, f = 1024;
  const Device device;
  uint64_t seed = 0;  // of the last that was drawn
  const int64_t batch, rows = batch * length, sequences = batch * heads, n = rows * d;
  Tensor x0, x1, x2, l, small;    // outputs: [n] [n] [n] [rows heads] [f]
  const Tensor a, b, c, g, bias;  // inputs: [n] [n] [n] [n] [f]
};

// Adds a kernel to `all`, a std::vector<BenchKernel>, with arguments for `device`. It keeps its tensors: lambdas
// copy tensors, whose storage is shared.
#define NAMED(name, numbers, operations, kernel, ...) \
  all.push_back({name, numbers, operations, [=]() mutable { DISPATCH(device, kernel(__VA_ARGS__)); }})
#define CASE(numbers, operations, kernel, ...) NAMED(#kernel, numbers, operations, kernel, __VA_ARGS__)

}  // namespace runnel
