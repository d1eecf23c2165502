// Learned sums over positions: ops/cpu/attention/project_positions.cpp. y is a state of linear attention whose keys are
// the rows of p, the same for all sequences: linear_attention.cu sums it up.
#include "cuda/attention/linear_attention.h"
#include "cuda/attention/products.h"
#include "ops/kernels/approximate_attention.h"
#include "ops/kernels/reductions.h"
#include "ops/numerics.h"

namespace runnel::cuda {
namespace {

struct Projection {
  HeadRows<const float> x, p, dy;  // p has no batch
  HeadRows<float> dx, dp;
  const int32_t* lengths;
  int batch, length;
  __device__ int end(int b) const { return lengths ? lengths[b] : length; }
};

HeadRows<const float> projection_rows(const float* p, const PositionSizes& s) {
  HeadRows<const float> rows(p, s.rows, 1, s.rank);
  rows.batch = 0;
  return rows;
}

// dx_b = p dy_b
// Launch: x: sequences times tiles of 32 positions, y: tiles of 32 columns; `block_threads` threads.
// Owns:   the block a tile of dx, with zeros at padding.
// Shared: TileSum.
template <class Tile>
__global__ void __launch_bounds__(block_threads, 4) project_positions_x_kernel(Projection n) {
  Shared shared;
  TileSum<Tile, Operand::rows, Operand::rows> sum(shared);
  const int row_tiles = (n.length + tile - 1) / tile;
  const int b = static_cast<int>(blockIdx.x) / row_tiles, first = static_cast<int>(blockIdx.x) % row_tiles * tile;
  const int column = static_cast<int>(blockIdx.y) * tile, end = n.end(b);
  n.dy.select(b, 1);
  n.dx.select(b, 1);
  for (int r = 0; r < n.p.width && first < end; r += tile) sum.add({n.p, first, end, r}, {n.dy, r, n.p.width, column});
  sum.each_four([&](int row, int part, const Vec<4>& numbers) {
    if (first + row < n.length) n.dx.store(first + row, column + part, numbers);
  });
}

// dp = sum_b x_b dy_b^T, of `sequences` of them for each of several sums.
// Launch: x: tiles of 32 rows of p, y: tiles of 32 of its columns, z: sums; `block_threads` threads.
// Owns:   the block a tile of a sum.
// Shared: TileSum.
template <class Tile>
__global__ void __launch_bounds__(block_threads, 4) project_positions_p_kernel(Projection n, int rows, int sequences) {
  Shared shared;
  TileSum<Tile, Operand::rows, Operand::transposed> sum(shared);
  const int first = static_cast<int>(blockIdx.x) * tile, r = static_cast<int>(blockIdx.y) * tile;
  const int begin = static_cast<int>(blockIdx.z) * sequences, behind = min(n.batch, begin + sequences);
  n.x.select(begin, 1);
  n.dy.select(begin, 1);
  n.dp.select(static_cast<int>(blockIdx.z), 1);
  for (int b = begin; b < behind; ++b, n.x.data += n.x.batch, n.dy.data += n.dy.batch) {
    const int end = n.end(b);
    for (int column = 0; column < n.x.width && first < end; column += tile)
      sum.add({n.x, first, end, column}, {n.dy, r, n.dp.width, column});
  }
  sum.each_four([&](int row, int part, const Vec<4>& numbers) {
    if (first + row < rows) n.dp.store(first + row, r + part, numbers);
  });
}

}  // namespace

void project_positions_forward(float* y, const float* x, const float* p, const int32_t* lengths, PositionSizes s) {
  if (s.batch == 0) return;
  Scan scan{};
  scan.states.e = s.rank, scan.states.m = s.width;
  scan.phi = {FeatureMap::identity};
  scan.lengths = lengths;
  scan.b = projection_rows(p, s);
  scan.c = HeadRows<const float>(x, s.length, 1, s.width);
  const Segments segments(s.batch, s.length, 1, tiles(s.rank) * tiles(s.width));
  const Temporary<float> states(segments.max_states(s.rank, s.width)), z(s.batch * s.rank);
  scan.states.data = states.data();
  scan.cut = segments.cut();
  sum_segments(scan, false, segments);
  add_segments(y, z.data(), scan.states, segments);
}

void project_positions_backward(float* dx, float* dp, const float* dy, const float* x, const float* p,
                                const int32_t* lengths, PositionSizes s) {
  // dp has few tiles, so the sequences are divided until there are four blocks for each multiprocessor.
  const int64_t wanted = std::max<int64_t>(1, 4 * multiprocessors() / (tiles(s.rows) * tiles(s.rank))),
                sequences = std::max<int64_t>(1, (s.batch + wanted - 1) / wanted),
                parts = std::max<int64_t>(1, (s.batch + sequences - 1) / sequences);
  const Temporary<float> sums(parts > 1 ? parts * s.rows * s.rank : 0);
  const Projection n{HeadRows<const float>(x, s.length, 1, s.width),
                     projection_rows(p, s),
                     HeadRows<const float>(dy, s.rank, 1, s.width),
                     HeadRows<float>(dx, s.length, 1, s.width),
                     HeadRows<float>(parts > 1 ? sums.data() : dp, s.rows, 1, s.rank),
                     lengths,
                     static_cast<int>(s.batch),
                     static_cast<int>(s.length)};
  const bool exact = precision() == Precision::f32;
  using OfX = TileSum<Float32, Operand::rows, Operand::rows>;
  launch("project_positions", exact ? project_positions_x_kernel<Float32> : project_positions_x_kernel<Tf32>,
         Grid{dim3(static_cast<unsigned>(s.batch) * tiles(s.length), tiles(s.width)), dim3(block_threads),
              OfX::shared_bytes()},
         n);
  using OfP = TileSum<Float32, Operand::rows, Operand::transposed>;
  launch(
      "project_positions", exact ? project_positions_p_kernel<Float32> : project_positions_p_kernel<Tf32>,
      Grid{dim3(tiles(s.rows), tiles(s.rank), static_cast<unsigned>(parts)), dim3(block_threads), OfP::shared_bytes()},
      n, static_cast<int>(s.rows), static_cast<int>(sequences));
  if (parts > 1) sum(dp, sums.data(), 1, parts, s.rows * s.rank);
}

}  // namespace runnel::cuda
