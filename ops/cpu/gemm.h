// Matrix products on the CPU. Only gemm.cpp knows the library that computes them, oneDNN.
#pragma once
#include <cstdint>
#include <memory>

#include "engine/tensor.h"

namespace runnel::onednn {

// c[m,n] = op(a) op(b), row-major, in float32, on all threads.
void gemm(float* c, const float* a, const float* b, int64_t m, int64_t n, int64_t k, bool transpose_a,
          bool transpose_b);

// The products of linear layers. Each runs on the calling thread alone: threads share the rows, and each keeps its own
// in its cache. Operands are rounded to the precision of set_precision, float32 or bfloat16; sums are float32.

// Rows of numbers as operands of products; refers to `rows` where nothing is to be rounded.
class Operand {
 public:
  Operand(const float* rows, int64_t n);
  void* data() const { return data_; }

 private:
  std::unique_ptr<Storage> rounded_;
  void* data_;
};

// A matrix [k,n] in the order in which the library reads it fastest.
class PackedMatrix {
 public:
  PackedMatrix(const float* b, int64_t k, int64_t n, bool transposed);  // from b [k,n], or [n,k] if transposed
  ~PackedMatrix();
  PackedMatrix(PackedMatrix&&) noexcept;

  // c[m,n] = a[m,k] this; or, if told to add, c +=
  void multiply(float* c, const Operand& a, int64_t m, bool add) const;

 private:
  struct Layout;
  std::unique_ptr<Layout> layout_;
};

// c[m,n] = a[rows,m]^T b[rows,n]; or, if told to add, c +=.
void transposed_product(float* c, const Operand& a, const Operand& b, int64_t rows, int64_t m, int64_t n, bool add);

}  // namespace runnel::onednn
