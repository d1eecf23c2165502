// Each segment's contribution to the state of linear attention, S [E,M] and Z [E], of each head. linear_attention.h has
// the definitions.
#include "cuda/attention/linear_attention.h"
#include "ops/numerics.h"

namespace runnel::cuda {
namespace {

// S = sum b_j c_j^T and Z = sum b_j over each segment; if weighted, c_j / n_j and d_j b_j.
// Launch: x: heads times segments, y, z: tiles of S; `block_threads` threads.
// Owns:   the block a tile of S, and the first of a row of tiles their part of Z; a half half of the positions.
// Shared: b and c of one chunk; then the sums.
template <class Tile, bool weighted>
__global__ void __launch_bounds__(block_threads, 4) linear_attention_sum_kernel(Scan scan) {
  Shared shared;
  float* const b = shared.take<float>(tile * right_row);
  float* const c = shared.take<float>(tile * right_row);

  const int64_t head = blockIdx.x / scan.cut.segments, begin = blockIdx.x % scan.cut.segments * scan.cut.segment;
  const int64_t end = min(begin + scan.cut.segment, scan.cut.length);
  const int64_t key_end = weighted ? end : min(end, scan.keys(head));
  const int first_row = static_cast<int>(blockIdx.y) * tile, first_column = static_cast<int>(blockIdx.z) * tile;
  scan.b.select(head, scan.cut.heads);
  scan.c.select(head, scan.cut.heads);
  scan.normaliser.select(head, scan.cut.heads);

  const int thread = static_cast<int>(threadIdx.x);
  const int half = thread / half_block * (tile / 2);

  TileFragment next_b, next_c;
  float next_inverse = 1, next_d = 1;
  const auto fetch = [&](int64_t first) {
    next_b.fetch(scan.b, first, key_end, first_row);
    next_c.fetch(scan.c, first, key_end, first_column);
    if constexpr (weighted) {
      const int64_t position = first + TileFragment::row();
      next_inverse = position < end ? scan.normaliser.at(position)[0] : 0;
      next_d = position < end ? scan.normaliser.at(position)[1] : 0;
    }
  };

  Tile sum;
  sum.clear();
  Vec<4> z[2] = {};  // of the columns of b that this thread fetches, over its rows
  if (begin < end) fetch(begin);
  for (int64_t first = begin; first < end; first += tile) {
    const bool exists = first + TileFragment::row() < key_end;
    next_b.template store<right_row>(
        b, Stored<Tile, As::features>{next_inverse, scan.phi, exists ? scan.b.width - first_row : 0},
        [&](int i, const Vec<4>& numbers) {
          for (int n = 0; n < 4; ++n) z[i].at[n] += next_d * numbers.at[n];
        });
    next_c.store<right_row>(c, Stored < Tile, weighted ? As::divided : As::is > {next_inverse, scan.phi, tile});
    __syncthreads();
    if (first + tile < end) fetch(first + tile);
    sum.template add<Operand::transposed, Operand::rows, tile / 2, right_row>(b, c, half);
    __syncthreads();
  }

  if (thread >= half_block) sum.template store<right_row>(c);
  for (int i = 0; i < 2; ++i) cuda::store(b + TileFragment::row() * right_row + TileFragment::part(i), z[i]);
  __syncthreads();
  if (thread < half_block) {
    sum.each([&](int i, int j, float& x) { x += c[i * right_row + j]; });
    sum.template store<right_row>(c);
  }
  __syncthreads();
  const States& states = scan.states;
  float* const state = states.data + blockIdx.x * states.size();
  for (int i = thread; i < tile * tile; i += block_threads) {
    const int row = first_row + i / tile, at = first_column + i % tile;
    if (row < states.e && at < states.m) state[row * states.m + at] = c[i / tile * right_row + i % tile];
  }
  if (blockIdx.z == 0 && thread < tile && first_row + thread < states.e) {
    float total = 0;
    for (int row = 0; row < tile; ++row) total += b[row * right_row + thread];
    state[states.e * states.m + first_row + thread] = total;
  }
}

// Launch: a thread per number of a state. Owns: this number of a head. Shared: none.
__global__ void linear_attention_total_kernel(float* s, float* z, States states, int64_t heads, int64_t segments) {
  const int64_t size = states.size(), matrix = states.e * states.m;
  for (int64_t i = first_element(); i < heads * size; i += element_step()) {
    const int64_t head = i / size, at = i % size;
    (at < matrix ? s[head * matrix + at] : z[head * states.e + at - matrix]) =
        states.before(head, segments, segments, at);
  }
}

}  // namespace

void sum_segments(const Scan& scan, bool weighted, const Segments& segments) {
  const size_t shared = SharedBytes().add<float>(tile * right_row).add<float>(tile * right_row).bytes();
  const bool exact = precision() == Precision::f32;
  launch("linear_attention",
         weighted ? (exact ? linear_attention_sum_kernel<Float32, true> : linear_attention_sum_kernel<Tf32, true>)
                  : (exact ? linear_attention_sum_kernel<Float32, false> : linear_attention_sum_kernel<Tf32, false>),
         Grid{dim3(segments.blocks(), tiles(scan.states.e), tiles(scan.states.m)), dim3(block_threads), shared}, scan);
}

void add_segments(float* s, float* z, const States& states, const Segments& segments) {
  launch("linear_attention", linear_attention_total_kernel, over(segments.sequences() * states.size()), s, z, states,
         segments.sequences(), segments.cut().segments);
}

}  // namespace runnel::cuda
