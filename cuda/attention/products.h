// Sums of products of matrices whose rows lie scattered in global memory, for tiles of 32 x 32 numbers: by
// project_positions.cu and sinkhorn.cu.
#pragma once
#include "cuda/attention/tiles.h"

namespace runnel::cuda {

template <class Tile>
struct Rounded {
  static constexpr bool of_zero_is_zero = true;
  __device__ float operator()(float x) const { return Tile::rounded(x); }
};

// `block_threads` threads, of which each half multiplies half of the depth.
template <class Tile, Operand left, Operand right>
class TileSum {
 public:
  static size_t shared_bytes() {
    return SharedBytes().add<float>(tile * row_a).template add<float>(tile * row_b).bytes();
  }
  __device__ explicit TileSum(Shared& shared)
      : a_(shared.take<float>(tile * row_a)), b_(shared.take<float>(tile * row_b)) {
    sum_.clear();
  }

  // += op(a) op(b), of 32 rows (before the end) and columns of each; an operand is transposed if its name says so.
  struct Slice {
    const HeadRows<const float>& rows;
    int first, end, column;
  };
  __device__ void add(const Slice& a, const Slice& b) {
    TileFragment next_a, next_b;
    next_a.fetch(a.rows, a.first, a.end, a.column);
    next_b.fetch(b.rows, b.first, b.end, b.column);
    __syncthreads();  // the last slices have been read
    next_a.store<row_a>(a_, Rounded<Tile>{});
    next_b.store<row_b>(b_, Rounded<Tile>{});
    __syncthreads();
    sum_.template add<left, right, tile / 2, row_a>(a_, b_, half() * (tile / 2));
  }
  // f(row, column, four numbers) for all of the sum, which then is no more.
  template <class F>
  __device__ void each_four(F f) {
    __syncthreads();
    if (half() == 1) sum_.template store<row_a>(a_);
    __syncthreads();
    if (half() == 0) {
      sum_.each([&](int i, int j, float& x) { x += a_[i * row_a + j]; });
      sum_.template store<row_a>(a_);
    }
    __syncthreads();
    for (int i = 0; i < 2; ++i)
      f(TileFragment::row(), TileFragment::part(i), load<4>(a_ + TileFragment::row() * row_a + TileFragment::part(i)));
  }

 private:
  static constexpr int row_a = left == Operand::rows ? left_row : right_row, row_b = row_of_right(right);
  __device__ static int half() { return static_cast<int>(threadIdx.x) / half_block; }
  float *a_, *b_;
  Tile sum_;
};

}  // namespace runnel::cuda
