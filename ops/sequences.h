// How one head of one batch entry, whose numbers lie scattered in [B,L,H,width], comes into small matrices: what the
// attentions share.
#pragma once
#include "engine/tensor.h"
#include "ops/small_matrix.h"

namespace runnel::cpu {

// Positions are `stride` apart; `width` numbers each. `next` is the way to the rows that will be read after these: a
// head's numbers are too scattered for the processor to guess it.
template <class T>
struct Rows {
  T* data;
  int64_t stride, width, next;
  T* operator()(int64_t position) const { return data + position * stride; }
};

// Sequence n = b H + h of x [B,L,H,width], which is read `next` positions at a time.
template <class T>
Rows<T> rows_of_sequence(T* x, int64_t n, int64_t length, int64_t heads, int64_t width, int64_t next) {
  return {x + ((n / heads) * length * heads + n % heads) * width, heads * width, width, next * heads * width};
}

// Copies `count` positions; what lies past them, or past the width, becomes zero and so adds nothing.
template <class Map>
void load(const Matrix& to, const Rows<const float>& from, int64_t first, int64_t count, Map map) {
  if (count < to.rows || from.width < to.columns) to.clear();
  for (int64_t r = 0; r < count; ++r) {
    const float* x = from(first + r);
    float* row = to.row(r);
    for (int64_t i = 0; i < from.width; i += lanes) __builtin_prefetch(x + from.next + i);
#pragma omp simd
    for (int64_t i = 0; i < from.width; ++i) row[i] = map(x[i]);
  }
}
inline void load(const Matrix& to, const Rows<const float>& from, int64_t first, int64_t count) {
  load(to, from, first, count, [](float x) { return x; });
}

// What a thread works with, carved from one block that is allocated once.
class Scratch {
 public:
  explicit Scratch(int64_t vectors) : block_(static_cast<size_t>(vectors) * sizeof(Lanes), Device::cpu) {}
  Matrix matrix(int64_t rows, int64_t columns) {
    Matrix matrix{static_cast<Lanes*>(block_.data()) + used_, rows, columns};
    used_ += matrix.vectors();
    return matrix;
  }

 private:
  Storage block_;
  int64_t used_ = 0;
};

}  // namespace runnel::cpu
