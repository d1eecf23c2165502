// How one head of one batch entry, whose numbers lie scattered in [B,L,H,width], is loaded into small matrices: shared
// by the attention kernels.
#pragma once
#include "ops/cpu/loops.h"
#include "ops/cpu/scratch.h"
#include "ops/cpu/small_matrix.h"
#include "ops/kernels/attention_sizes.h"

namespace runnel {
namespace {

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

// Copies `count` positions; the rest, and columns past the width, become zero and so add nothing.
template <class F>
RUNNEL_INLINE inline void load(const Matrix& to, const SequenceRows<const float>& from, int64_t first, int64_t count,
                               F f) {
  if (count < to.rows || from.width < to.columns) to.clear();
  for (int64_t r = 0; r < count; ++r) {
    const float* x = from(first + r);
    float* row = to.row(r);
    for (int64_t i = 0; i < from.width; i += tile) __builtin_prefetch(x + from.next + i);  // cache lines
    runnel::map(row, from.width, f, x);
  }
}
inline void load(const Matrix& to, const SequenceRows<const float>& from, int64_t first, int64_t count) {
  load(to, from, first, count, [](Lanes x) RUNNEL_INLINE { return x; });
}

// Carves matrices out of memory.
class Arena {
 public:
  explicit Arena(float* memory) : next_(memory) {}
  Matrix matrix(int64_t rows, int64_t columns) { return matrix(rows, columns, columns); }
  Matrix matrix(int64_t rows, int64_t columns, int64_t stride) {
    const Matrix matrix{reinterpret_cast<Lanes*>(next_), rows, columns, stride};
    next_ += rows * stride;
    return matrix;
  }

 private:
  float* next_;
};

}  // namespace
}  // namespace runnel
