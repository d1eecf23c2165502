// Causal linear attention without feature map and normaliser: Algorithm 1 of the paper, where one kernel is all of it.
//
// All four results are derivatives of one number, L = sum_i y_i . dy_i = sum_{j<=i} (q_i . k_j) (v_j . dy_i), y being
// that with respect to dy. The derivative by one vector is its partner times the other dot product.
//
//   y_i  = sum_{j<=i} (q_i . k_j) v_j         dq_i = sum_{j<=i} (dy_i . v_j) k_j
//   dk_j = sum_{i>=j} (v_j . dy_i) q_i        dv_j = sum_{i>=j} (k_j . q_i) dy_i
//
// Each is a sum of (x . a) b = x^T (a b^T) over the positions on one side of x, so a walk from that side has to
// remember nothing but S = sum a b^T. scan(x, a, b) is this walk: at every position S += a_i b_i^T, then x_i^T S. Line
// by line,
//
//   Algorithm 1                                                     here
//   forward    for i = 1..N:  S += k_i v_i^T     y_i = q_i^T S      y  = scan(q, k, v)             eq. 9, 10
//   backward   for i = 1..N:  S += k_i v_i^T    dq_i = S dy_i       dq = scan(dy, v, k)            eq. 13
//              for i = N..1:  R += q_i dy_i^T   dk_i = R v_i        dk = reverse scan(v, dy, q)    eq. 14
//                                               dv_i = R^T k_i      dv = reverse scan(k, q, dy)    eq. 15
//
// where scans for dq and dk hold S and R transposed: a and b exchanged.
#include "cuda/launch.h"
#include "ops/kernels/linear_attention.h"

namespace runnel::cuda {
namespace {

constexpr int chunk = 32;     // positions that are brought to shared memory at a time
constexpr int rows = 8;       // of the state that a thread keeps: a part of one column, in registers
constexpr int at_once = 8;    // positions whose results wait in registers
constexpr int max_warps = 8;  // a taller state than 64 rows is walked part by part, y being the sum

enum class Direction { forward, reverse };

// Launch: one block per sequence and head, and per 32 columns of the state; a warp for every 8 rows of it, 8 at most.
// Owns:   a thread 8 rows of one column of the state; in y, a warp every warps-th position of a chunk.
// Shared: a chunk of x, a and b, and the contributions of each warp's rows to y.
__global__ void __launch_bounds__(32 * max_warps)
    causal_product_kernel(float* __restrict__ y, const float* __restrict__ x, const float* __restrict__ a,
                          const float* __restrict__ b, int64_t length, int64_t heads, int64_t e, int64_t m,
                          Direction direction) {
  const int warps = static_cast<int>(blockDim.x) / 32, height = warps * rows;  // height: rows that the block keeps
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t sequence = blockIdx.x / heads, head = blockIdx.x % heads;
  const int64_t first_column = static_cast<int64_t>(blockIdx.y) * 32, column = first_column + lane;

  Shared shared;
  float* const xs = shared.take<float>(static_cast<unsigned>(chunk * height));         // [chunk, height]
  float* const as = shared.take<float>(static_cast<unsigned>(chunk * height));         // [chunk, height]
  float* const bs = shared.take<float>(static_cast<unsigned>(chunk * 32));             // [chunk, 32]
  float* const parts = shared.take<float>(static_cast<unsigned>(warps * chunk * 32));  // [warps, chunk, 32]

  // Where the walk's i-th position lies in [B,L,H].
  const auto place = [=](int64_t i) {
    return (sequence * length + (direction == Direction::forward ? i : length - 1 - i)) * heads + head;
  };
  // to[chunk, n] = positions from `begin` on, their numbers from `first` on. Beyond the tensor stand zeros, which add
  // nothing to any sum.
  const auto bring = [=](float* to, int n, const float* from, int64_t begin, int64_t first, int64_t size) {
    for (int i = warp; i < chunk; i += warps)
      for (int c = lane; c < n; c += 32)
        to[i * n + c] = begin + i < length && first + c < size ? from[place(begin + i) * size + first + c] : 0;
  };

  int64_t first_row = 0;
  do {
    float s[rows] = {};  // S[first_row + warp * rows + (0..rows), column]
    for (int64_t begin = 0; begin < length; begin += chunk) {
      bring(xs, height, x, begin, first_row, e);
      bring(as, height, a, begin, first_row, e);
      bring(bs, 32, b, begin, first_column, m);
      __syncthreads();

      for (int first = 0; first < chunk; first += at_once) {
        float sums[at_once];  // stored together: to wait for each store would double the time of a position
#pragma unroll
        for (int n = 0; n < at_once; ++n) {
          const int i = first + n;
          const float* const x_i = xs + i * height + warp * rows;
          const float* const a_i = as + i * height + warp * rows;
          const float b_i = bs[i * 32 + lane];
          sums[n] = 0;
#pragma unroll
          for (int r = 0; r < rows; ++r) {
            s[r] += a_i[r] * b_i;
            sums[n] += x_i[r] * s[r];
          }
        }
#pragma unroll
        for (int n = 0; n < at_once; ++n) parts[(warp * chunk + first + n) * 32 + lane] = sums[n];
      }
      __syncthreads();

      for (int i = warp; i < chunk && begin + i < length; i += warps) {
        if (column >= m) continue;
        float* const y_i = y + place(begin + i) * m + column;
        float sum = first_row == 0 ? 0 : *y_i;
        for (int w = 0; w < warps; ++w) sum += parts[(w * chunk + i) * 32 + lane];
        *y_i = sum;
      }
    }
    first_row += height;
  } while (first_row < e);
}

// y [B,L,H,M] = scan(x, a, b) with x, a [B,L,H,E], b [B,L,H,M].
void scan(float* y, const float* x, const float* a, const float* b, const AttentionSizes& s, int64_t e, int64_t m,
          Direction direction) {
  const int64_t warps = std::clamp<int64_t>((e + rows - 1) / rows, 1, max_warps), tile = chunk * warps * rows;
  const Grid grid{
      dim3(static_cast<unsigned>(s.sequences()), static_cast<unsigned>((m + 31) / 32)),
      dim3(static_cast<unsigned>(32 * warps)),
      SharedBytes().add<float>(tile).add<float>(tile).add<float>(chunk * 32).add<float>(warps * chunk * 32).bytes()};
  launch("causal_product", causal_product_kernel, grid, y, x, a, b, s.length, s.heads, e, m, direction);
}

}  // namespace

void causal_product_forward(float* y, const float* q, const float* k, const float* v, AttentionSizes s) {
  scan(y, q, k, v, s, s.e, s.m, Direction::forward);
}

void causal_product_backward(float* dq, float* dk, float* dv, const float* dy, const float* q, const float* k,
                             const float* v, AttentionSizes s) {
  scan(dq, dy, v, k, s, s.m, s.e, Direction::forward);
  scan(dk, v, dy, q, s, s.m, s.e, Direction::reverse);
  scan(dv, k, q, dy, s, s.e, s.m, Direction::reverse);
}

}  // namespace runnel::cuda
