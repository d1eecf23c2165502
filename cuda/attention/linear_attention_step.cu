// One position of causal linear attention, for decoding (eq. 18-20). Reading and writing the state is nearly all the
// work, so a warp has eight pieces of it on their way before it waits for the first.
#include "cuda/attention/linear_attention.h"

namespace runnel::cuda {
namespace {

constexpr int step_threads = 128, at_once = 8;

// S += k v^T, Z += k, y = q^T S / n. Numbers of S are floats, or bfloat16, rounded as they are stored; its rows are
// `stride` numbers apart.
// Launch: a warp per head, or fewer that take several in turn. `lanes`, a power of two, share a row of S.
// Owns:   a lane `width` columns of every (32 / lanes)-th row.
// Shared: none.
template <int width, class Number>
__global__ void __launch_bounds__(step_threads, 3)
    linear_attention_step_kernel(float* y, Number* s, float* z, const float* q, const float* k, const float* v,
                                 int64_t heads, int64_t e, int64_t m, int64_t stride, Phi phi, int lanes) {
  const int lane = static_cast<int>(threadIdx.x) % 32, row = lane / lanes, rows = 32 / lanes;
  const int rows_of_s = static_cast<int>(e);  // row numbers of 64 bits would take so many registers that some spill
  for (int64_t head = first_element() / 32; head < heads; head += element_step() / 32) {
    float normaliser = 0;  // all lanes of a row add up the same
    float* const own_z = z + head * e;
    const float *const own_q = q + head * e, *const own_k = k + head * e;
    for (int64_t first = 0; first < m; first += lanes * width) {
      const int64_t column = first + lane % lanes * width;
      const bool inside = column < m;
      const Piece<width> value = inside ? load<width>(v + head * m + column) : Piece<width>{};
      Number* const own_s = s + head * e * stride + column;
      Piece<width> sum{};
      for (int begin = row; begin - row < rows_of_s; begin += at_once * rows) {
        Piece<width> state[at_once];
        float qs[at_once], ks[at_once], zs[at_once];
#pragma unroll
        for (int n = 0; n < at_once; ++n) {
          const int i = begin + n * rows;
          const bool is_row = i < rows_of_s;
          state[n] = is_row && inside ? load<width>(own_s + i * stride) : Piece<width>{};
          qs[n] = is_row ? own_q[i] : 0;
          ks[n] = is_row ? own_k[i] : 0;
          zs[n] = is_row && first == 0 ? own_z[i] : 0;
        }
        __syncwarp();  // all lanes of a row have read its z
#pragma unroll
        for (int n = 0; n < at_once; ++n) {
          const int i = begin + n * rows;
          if (i >= rows_of_s) continue;
          const float qi = phi(qs[n]), ki = phi(ks[n]), zi = zs[n] + ki;
          if (first == 0) normaliser += qi * zi;
          if (first == 0 && lane % lanes == 0) own_z[i] = zi;
#pragma unroll
          for (int j = 0; j < width; ++j) sum.at[j] += qi * (state[n].at[j] += ki * value.at[j]);
          if (inside) store(own_s + i * stride, state[n]);
        }
      }
      for (int distance = 16; distance >= lanes; distance /= 2) {
#pragma unroll
        for (float& number : sum.at) number += __shfl_xor_sync(all_lanes, number, distance);
        if (first == 0) normaliser += __shfl_xor_sync(all_lanes, normaliser, distance);
      }
      for (float& number : sum.at) number /= normaliser + normaliser_eps;
      if (row == 0 && inside) store(y + head * m + column, sum);
    }
  }
}

template <int width, class Number>
void launch_step(float* y, Number* s, float* z, const float* q, const float* k, const float* v,
                 const AttentionSizes& sizes, int64_t stride, Phi phi) {
  int lanes = 1;
  while (lanes < 32 && lanes * width < sizes.m) lanes *= 2;
  launch("linear_attention_step", linear_attention_step_kernel<width, Number>,
         over(32 * sizes.sequences(), step_threads), y, s, z, q, k, v, sizes.sequences(), sizes.e, sizes.m, stride, phi,
         lanes);
}

}  // namespace

void linear_attention_step(float* y, float* s, float* z, const float* q, const float* k, const float* v,
                           AttentionSizes sizes, FeatureMap map, Precision of_s) {
  const auto launch_of = [&](auto* numbers, int64_t stride) {
    in_fours(sizes.m, y, s, v) ? launch_step<4>(y, numbers, z, q, k, v, sizes, stride, Phi{map})
                               : launch_step<1>(y, numbers, z, q, k, v, sizes, stride, Phi{map});
  };
  const int64_t row = state_row(sizes.m, of_s);
  of_s == Precision::bf16 ? launch_of(reinterpret_cast<uint16_t*>(s), 2 * row) : launch_of(s, row);
}

}  // namespace runnel::cuda
