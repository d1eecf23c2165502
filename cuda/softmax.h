// What softmax_attention.cu and lsh_attention.cu have in common: results out_r = sum_o w_ro c_o of tiles whose weights
// are exponentials. The letters are those at the head of softmax_attention.cu.
#pragma once
#include <cmath>

#include "cuda/tiles.h"

namespace runnel::cuda {

// What a kernel computes; its rows are the queries, or the keys.
enum class Result { y, dq, dk, dv };
constexpr bool rows_are_keys(Result result) { return result == Result::dk || result == Result::dv; }
constexpr bool uses_slopes(Result result) { return result == Result::dq || result == Result::dk; }

inline unsigned tiles(int64_t n) { return static_cast<unsigned>((n + tile - 1) / tile); }

// All of the rows' a (and g); of one tile of the other side a slice of b (and h), c, weights; three numbers of each
// row.
inline SharedBytes shared_tiles(Result result, int64_t width_a, int64_t width_g) {
  const bool slopes = uses_slopes(result);
  SharedBytes shared;
  shared.add<float>(tiles(width_a) * tile * left_row);
  shared.add<float>(slopes ? tiles(width_g) * tile * left_row : 0);
  shared.add<float>(tile * left_row);
  shared.add<float>(slopes ? tile * left_row : 0);
  shared.add<float>(tile * right_row);
  shared.add<float>(tile * left_row);
  for (int i = 0; i < 3; ++i) shared.add<float>(tile);
  return shared;
}

// m and sum_o e^(x_o - m) of a row whose scores x_o come a tile at a time. Four lanes share a row, and what they know
// of it is the same.
struct RunningSum {
  float largest = -INFINITY, total = 0;

  // Takes in the row's next scores, of which this lane has 8, and leaves in their place e^(x - m') for the new maximum
  // m', as operands of products. Returns e^(m - m'), which what was added up before is to be multiplied with.
  template <class Tile>
  __device__ float take(float* scores) {
    float new_largest = largest;
    for (int i = 0; i < 8; ++i) new_largest = fmaxf(new_largest, scores[i]);
    for (int distance = 2; distance > 0; distance /= 2)
      new_largest = fmaxf(new_largest, __shfl_xor_sync(all_lanes, new_largest, distance));
    const float base = new_largest == -INFINITY ? 0 : new_largest;  // as long as the row has seen no key
    const float factor = expf(largest - base);
    float sum = 0;
    for (int i = 0; i < 8; ++i) {
      const float p = expf(scores[i] - base);
      sum += p;
      scores[i] = Tile::rounded(p);
    }
    for (int distance = 2; distance > 0; distance /= 2) sum += __shfl_xor_sync(all_lanes, sum, distance);
    total = total * factor + sum;
    largest = new_largest;
    return factor;
  }
};

// d_i = dy_i . y_i.
// Launch: a warp per query. Owns: the warp one number.
static __global__ void attention_products_kernel(float* d, const float* dy, const float* y, int64_t length,
                                                 int64_t heads, int64_t m, int64_t queries) {
  const int64_t lane = threadIdx.x % 32;
  for (int64_t i = first_element() / 32; i < queries; i += element_step() / 32) {  // [B,H,L]
    const int64_t n = i / length, at = ((n / heads * length + i % length) * heads + n % heads) * m;
    float sum = 0;
    for (int64_t c = lane; c < m; c += 32) sum += dy[at + c] * y[at + c];
    sum = warp_sum(sum);
    if (lane == 0) d[i] = sum;
  }
}

}  // namespace runnel::cuda
