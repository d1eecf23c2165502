// A row of the result is the token's row of the table, then the code of its position.
//
// The gradient of the table is a sum over tokens: dtable[t] adds up the rows of dy where tokens[r] = t. A warp owns a
// token, looks through the tokens 32 at a time and adds the rows that are its own, in their order; nobody waits for
// anybody. Comparing every position with every token is cheap (a ballot for 32 of them), adding rows is the work, and
// it is unfair: most pixels of a digit are black. So the positions are cut into slices with a warp per token and slice,
// and a second kernel adds the slices' sums in their order.
#include "cuda/launch.h"
#include "cuda/temporary.h"
#include "cuda/vec.h"
#include "ops/kernels/layers.h"

namespace runnel::cuda {
namespace {

constexpr int threads = 256, warps = threads / 32;
constexpr int64_t shortest_slice = 256;  // positions
constexpr int64_t max_sums = 1 << 15;    // rows of partial sums, if they are not the table itself
constexpr int at_once = 4;               // rows that a warp fetches before it adds them

// Launch: a warp per row, or fewer that take several in turn.
// Owns:   a warp a row of y; of it, a lane every 32nd piece.
// Shared: nothing.
template <int width>
__global__ void __launch_bounds__(threads)
    embedding_forward_kernel(float* __restrict__ y, const int32_t* __restrict__ tokens, const float* __restrict__ table,
                             const float* __restrict__ code, const int32_t* __restrict__ first, int64_t rows,
                             int64_t length, int64_t d, int64_t p, Mask mask) {
  const int64_t lane = threadIdx.x % 32, begin = first ? first[0] : 0;
  for (int64_t r = first_element() / 32; r < rows; r += element_step() / 32) {
    const float* const embedded = table + tokens[r] * d;
    const float* const position = code + (begin + r % length) * p;
#pragma unroll 2
    for (int64_t j = width * lane; j < d + p; j += width * 32) {
      const int64_t i = r * (d + p) + j;
      store(y + i, drop(load<width>(j < d ? embedded + j : position + (j - d)), i, mask));
    }
  }
}

// Launch: one warp per token of the vocabulary (x), slice of the positions (y) and 32 pieces of a row (z).
// Owns:   a lane one piece of sums[slice, token].
// Shared: nothing.
template <int width>
__global__ void __launch_bounds__(threads)
    embedding_backward_kernel(float* __restrict__ sums, const float* __restrict__ dy,
                              const int32_t* __restrict__ tokens, int64_t rows, int64_t slice, int64_t vocabulary,
                              int64_t d, int64_t p, Mask mask) {
  const int64_t lane = threadIdx.x % 32, token = first_element() / 32;
  const int64_t j = width * (static_cast<int64_t>(blockIdx.z) * 32 + lane);
  if (token >= vocabulary) return;
  const int64_t begin = blockIdx.y * slice, end = min(begin + slice, rows);
  Vec<width> sum{};
  for (int64_t r = begin; r < end; r += 32) {
    unsigned found = __ballot_sync(all_lanes, r + lane < end && tokens[r + lane] == token);
    while (found) {
      Vec<width> x[at_once];
#pragma unroll
      for (int n = 0; n < at_once; ++n) {
        const int64_t i = (r + __ffs(static_cast<int>(found)) - 1) * (d + p) + j;
        x[n] = found && j < d ? drop(load<width>(dy + i), i, mask) : Vec<width>{};
        found &= found - 1;
      }
#pragma unroll
      for (int n = 0; n < at_once; ++n)
        for (int c = 0; c < width; ++c) sum.at[c] += x[n].at[c];
    }
  }
  if (j < d) store(sums + (blockIdx.y * vocabulary + token) * d + j, sum);
}

// Launch: over(n / width).
// Owns:   a thread one piece of dtable.
// Shared: nothing.
template <int width>
__global__ void __launch_bounds__(threads)
    embedding_slices_kernel(float* __restrict__ dtable, const float* __restrict__ sums, int64_t slices, int64_t n) {
  for (int64_t i = width * first_element(); i < n; i += width * element_step()) {
    Vec<width> sum{};
#pragma unroll 8
    for (int64_t s = 0; s < slices; ++s) {
      const Vec<width> x = load<width>(sums + s * n + i);
      for (int c = 0; c < width; ++c) sum.at[c] += x.at[c];
    }
    store(dtable + i, sum);
  }
}

template <int width>
void backward(float* dtable, const float* dy, const int32_t* tokens, int64_t rows, int64_t vocabulary, int64_t d,
              int64_t p, const Dropout& dropout) {
  if (vocabulary == 0) return;
  const int64_t max_slices = std::clamp<int64_t>(max_sums / vocabulary, 1, 65535);
  const int64_t slice = std::max(shortest_slice, (rows + max_slices - 1) / max_slices);
  const int64_t slices = std::max<int64_t>(1, (rows + slice - 1) / slice), n = vocabulary * d;
  const Temporary<float> parts(slices > 1 ? slices * n : 0);
  float* const sums = slices > 1 ? parts.data() : dtable;
  const Grid grid{dim3(static_cast<unsigned>((vocabulary + warps - 1) / warps), static_cast<unsigned>(slices),
                       static_cast<unsigned>((d + 32 * width - 1) / (32 * width))),
                  dim3(threads)};
  launch("embedding_backward", embedding_backward_kernel<width>, grid, sums, dy, tokens, rows, slice, vocabulary, d, p,
         Mask(dropout));
  if (slices > 1)
    launch("embedding_backward", embedding_slices_kernel<width>, over(n / width), dtable, sums, slices, n);
}

}  // namespace

void embedding_forward(float* y, const int32_t* tokens, const float* table, const float* code, const int32_t* first,
                       int64_t batch, int64_t length, int64_t d, int64_t p, Dropout dropout) {
  const int64_t rows = batch * length;
  const auto kernel =
      in_fours(d, y, table, code) && p % 4 == 0 ? embedding_forward_kernel<4> : embedding_forward_kernel<1>;
  launch("embedding_forward", kernel, over(rows * 32), y, tokens, table, code, first, rows, length, d, p,
         Mask(dropout));
}

void embedding_backward(float* dtable, const float* dy, const int32_t* tokens, int64_t batch, int64_t length,
                        int64_t vocabulary, int64_t d, int64_t p, Dropout dropout) {
  const auto run = in_fours(d, dtable, dy) && p % 4 == 0 ? backward<4> : backward<1>;
  run(dtable, dy, tokens, batch * length, vocabulary, d, p, dropout);
}

}  // namespace runnel::cuda
