// One position of causal linear attention, for decoding (eq. 18-20). Reading and writing the state is nearly all the
// work, so a warp has eight pieces of it on their way before it waits for the first.
#include "cuda/attention/linear_attention.h"
#include "ops/kernels/linear_attention.h"

namespace runnel::cuda {
namespace {

constexpr int step_threads = 128, at_once = 8;

// S += k v^T, Z += k, y = q^T S / n. Numbers of S are floats, or bfloat16, rounded as they are stored; its rows are
// `stride` numbers apart.
// Launch: a warp per head, or fewer that take several in turn. `lanes`, a power of two, share a row of S.
// Owns:   a lane one of 32 rows of q, k and Z, which it gives to the others, and `width` columns of every
//         (32 / lanes)-th row of S.
// Shared: none.
template <int width, class Number>
__global__ void __launch_bounds__(step_threads)
    linear_attention_step_kernel(float* y, Number* s, float* z, const float* q, const float* k, const float* v,
                                 int64_t heads, int64_t e, int64_t m, int64_t stride, Phi phi, int lanes) {
  const int lane = static_cast<int>(threadIdx.x) % 32, row = lane / lanes, rows = 32 / lanes;
  for (int64_t head = first_element() / 32; head < heads; head += element_step() / 32) {
    float normaliser = 0;
    for (int64_t first = 0; first < m; first += lanes * width) {
      const int64_t column = first + lane % lanes * width;
      const bool inside = column < m;
      const Vec<width> value = inside ? load<width>(v + head * m + column) : Vec<width>{};
      Vec<width> sum{};
      for (int64_t begin = 0; begin < e; begin += 32) {
        const int rows_left = static_cast<int>(e - begin);
        const bool is_row = lane < rows_left;
        const int64_t own = head * e + begin + lane;
        const float own_q = is_row ? q[own] : 0, own_k = is_row ? k[own] : 0, own_z = is_row ? z[own] : 0;
        Number* const own_s = s + (head * e + begin) * stride + column;
        for (int above = 0; above < 32; above += at_once * rows) {
          Vec<width> state[at_once];
#pragma unroll
          for (int n = 0; n < at_once; ++n) {
            const int i = above + n * rows + row;
            state[n] = i < rows_left && inside ? load<width>(own_s + i * stride) : Vec<width>{};
          }
          const float qi = is_row ? phi(own_q) : 0, ki = is_row ? phi(own_k) : 0;
          if (first == 0 && above == 0) {
            normaliser += qi * (own_z + ki);
            if (is_row) z[own] = own_z + ki;
          }
#pragma unroll
          for (int n = 0; n < at_once; ++n) {
            const int i = above + n * rows + row;
            if (i - row >= 32) break;
            const float q_of_row = __shfl_sync(all_lanes, qi, i), k_of_row = __shfl_sync(all_lanes, ki, i);
#pragma unroll
            for (int j = 0; j < width; ++j) sum.at[j] += q_of_row * (state[n].at[j] += k_of_row * value.at[j]);
            if (i < rows_left && inside) store(own_s + i * stride, state[n]);
          }
        }
      }
      if (first == 0) normaliser = warp_sum(normaliser);
      for (int distance = 16; distance >= lanes; distance /= 2)
#pragma unroll
        for (float& number : sum.at) number += __shfl_xor_sync(all_lanes, number, distance);
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
