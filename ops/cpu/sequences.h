// How one head of one batch entry, whose numbers lie scattered in [B,L,H,width], is loaded into small matrices, and the
// memory that threads work in: shared by the attention kernels.
#pragma once
#include <omp.h>

#include "engine/tensor.h"
#include "ops/cpu/small_matrix.h"
#include "ops/kernels.h"

namespace runnel::cpu {

// Positions are `stride` apart; `width` numbers each. `next` is the distance to the rows that will be read after these:
// the hardware prefetcher does not follow so large a stride.
template <class T>
struct SequenceRows {
  T* data;
  int64_t stride, width, next;
  T* operator()(int64_t position) const { return data + position * stride; }
};

// Sequence n = b H + h of x [B,length,H,width], which is read `next` positions at a time.
template <class T>
SequenceRows<T> rows_of_sequence(T* x, int64_t n, int64_t length, int64_t heads, int64_t width, int64_t next) {
  return {x + ((n / heads) * length * heads + n % heads) * width, heads * width, width, next * heads * width};
}

// Keys [0, seen_keys) of sequence n are not padding.
inline int64_t seen_keys(const int32_t* lengths, const AttentionSizes& s, int64_t n) {
  return lengths ? lengths[n / s.heads] : s.key_length;
}

// Copies `count` positions; what lies past them, or past the width, becomes zero and so adds nothing.
template <class Map>
void load(const Matrix& to, const SequenceRows<const float>& from, int64_t first, int64_t count, Map map) {
  if (count < to.rows || from.width < to.columns) to.clear();
  for (int64_t r = 0; r < count; ++r) {
    const float* x = from(first + r);
    float* row = to.row(r);
    for (int64_t i = 0; i < from.width; i += lanes) __builtin_prefetch(x + from.next + i);
#pragma omp simd
    for (int64_t i = 0; i < from.width; ++i) row[i] = map(x[i]);
  }
}
inline void load(const Matrix& to, const SequenceRows<const float>& from, int64_t first, int64_t count) {
  load(to, from, first, count, [](float x) { return x; });
}

// Carves matrices out of memory.
class Scratch {
 public:
  explicit Scratch(Lanes* memory) : next_(memory) {}
  Matrix matrix(int64_t rows, int64_t columns) {
    const Matrix matrix{next_, rows, columns};
    next_ += matrix.vectors();
    return matrix;
  }

 private:
  Lanes* next_;
};

// Memory for each thread of the parallel regions that follow. Allocated before them, because an exception, such as that
// there is no memory left, must not leave a parallel region.
class ThreadScratch {
 public:
  explicit ThreadScratch(int64_t vectors)
      : vectors_(vectors), memory_(static_cast<size_t>(omp_get_max_threads() * vectors) * sizeof(Lanes), Device::cpu) {}
  Scratch own() const {  // of the calling thread
    return Scratch(static_cast<Lanes*>(memory_.data()) + omp_get_thread_num() * vectors_);
  }

 private:
  int64_t vectors_;
  Storage memory_;
};

}  // namespace runnel::cpu
