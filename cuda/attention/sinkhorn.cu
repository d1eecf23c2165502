// Sums of blocks, Sinkhorn's normalisation, and blocks mixed by its result: ops/cpu/attention/sinkhorn.cpp has the
// derivation and the letters x, u, v, g.
#include <cmath>

#include "cuda/attention/products.h"
#include "cuda/temporary.h"
#include "ops/kernels/approximate_attention.h"
#include "ops/numerics.h"

namespace runnel::cuda {
namespace {

unsigned tiles_of(int64_t n) { return static_cast<unsigned>((n + tile - 1) / tile); }

// Launch: a thread per number of y. Owns: this number. Shared: none.
__global__ void block_sums_forward_kernel(float* y, const float* x, const int32_t* lengths, BlockSizes s) {
  const int64_t row = s.heads * s.width, blocks = s.blocks(), n = s.batch * blocks * row;
  for (int64_t i = first_element(); i < n; i += element_step()) {
    const int64_t b = i / row / blocks, first = i / row % blocks * s.block;
    const int64_t end = min(first + s.block, lengths ? static_cast<int64_t>(lengths[b]) : s.length);
    float sum = 0;
    for (int64_t j = first; j < end; ++j) sum += x[(b * s.length + j) * row + i % row];
    y[i] = sum;
  }
}

// Launch: a thread per number of dx. Owns: this number. Shared: none.
__global__ void block_sums_backward_kernel(float* dx, const float* dy, const int32_t* lengths, BlockSizes s) {
  const int64_t row = s.heads * s.width, n = s.batch * s.length * row;
  for (int64_t i = first_element(); i < n; i += element_step()) {
    const int64_t b = i / row / s.length, j = i / row % s.length;
    dx[i] = !lengths || j < lengths[b] ? dy[(b * s.blocks() + j / s.block) * row + i % row] : 0;
  }
}

// One sequence's logits and the u and v of every step, which the block of threads finds and then reads.
struct Balance {
  const float* logits;
  float* steps;  // [iterations,2,N]
  SinkhornSizes s;
  int count;  // of blocks that are not padding alone
  int64_t row;

  __device__ Balance(const float* all_logits, float* all_steps, const int32_t* lengths, const SinkhornSizes& sizes)
      : logits(all_logits + sizes.logit(blockIdx.x, 0)),
        steps(all_steps + static_cast<int64_t>(blockIdx.x) * sizes.iterations * 2 * sizes.blocks),
        s(sizes),
        count(static_cast<int>(lengths ? (lengths[blockIdx.x / sizes.heads] + sizes.block - 1) / sizes.block
                                       : sizes.blocks)),
        row(sizes.heads * sizes.columns) {}
  __device__ float* u(int64_t k) const { return steps + 2 * k * s.blocks; }
  __device__ float* v(int64_t k) const { return u(k) + s.blocks; }
  __device__ float x(int r, int c) const { return logits[r * row + c]; }
  __device__ float shift(int64_t k, int c) const { return k >= 0 ? v(k)[c] : 0; }
  __device__ float weight(int r, int c, int64_t k, int64_t l) const { return expf(x(r, c) - u(k)[r] - shift(l, c)); }

  __device__ void find() const {
    const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x), lane = thread % 32;
    for (int64_t k = 0; k < s.iterations; ++k) {
      for (int r = thread / 32; r < count; r += threads / 32) {
        float largest = -INFINITY, sum = 0;
        for (int c = lane; c < count; c += 32) largest = fmaxf(largest, x(r, c) - shift(k - 1, c));
        largest = warp_max(largest);
        for (int c = lane; c < count; c += 32) sum += expf(x(r, c) - shift(k - 1, c) - largest);
        sum = warp_sum(sum);
        if (lane == 0) u(k)[r] = largest + logf(sum);
      }
      __syncthreads();
      for (int c = thread; c < count; c += threads) {
        float largest = -INFINITY, sum = 0;
        for (int r = 0; r < count; ++r) largest = fmaxf(largest, x(r, c) - u(k)[r]);
        for (int r = 0; r < count; ++r) sum += expf(x(r, c) - u(k)[r] - largest);
        v(k)[c] = largest + logf(sum);
      }
      __syncthreads();
    }
  }
};

// Launch: a block per sequence. Owns: the block its matrix and its u and v. Shared: none.
__global__ void sinkhorn_forward_kernel(float* p, const float* logits, float* steps, const int32_t* lengths,
                                        SinkhornSizes s) {
  const Balance balance(logits, steps, lengths, s);
  balance.find();
  const int n = static_cast<int>(s.blocks);
  p += static_cast<int64_t>(blockIdx.x) * n * n;
  for (int i = static_cast<int>(threadIdx.x); i < n * n; i += static_cast<int>(blockDim.x)) {
    const int r = i / n, c = i % n;
    p[i] = r < balance.count && c < balance.count ? balance.weight(r, c, s.iterations - 1, s.iterations - 1) : 0;
  }
}

// g lies where its last value goes, in dlogits.
// Launch, owns, shared: as above; a warp owns a row and a thread a column in turn.
__global__ void sinkhorn_backward_kernel(float* dlogits, const float* dp, const float* p, const float* logits,
                                         float* steps, const int32_t* lengths, SinkhornSizes s) {
  const Balance balance(logits, steps, lengths, s);
  balance.find();
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x), lane = thread % 32;
  const int n = static_cast<int>(s.blocks), columns = static_cast<int>(s.columns), count = balance.count;
  const int64_t matrix = static_cast<int64_t>(blockIdx.x) * n * n;
  float* const first = dlogits + s.logit(blockIdx.x, 0);
  const auto g = [&](int r, int c) -> float& { return first[r * balance.row + c]; };
  for (int i = thread; i < n * columns; i += threads) {
    const int r = i / columns, c = i % columns;
    g(r, c) = r < count && c < count ? dp[matrix + r * n + c] * p[matrix + r * n + c] : 0;
  }
  __syncthreads();
  for (int64_t k = s.iterations - 1; k >= 0; --k) {
    for (int c = thread; c < count; c += threads) {
      float sum = 0;
      for (int r = 0; r < count; ++r) sum += g(r, c);
      for (int r = 0; r < count; ++r) g(r, c) -= balance.weight(r, c, k, k) * sum;
    }
    __syncthreads();
    for (int r = thread / 32; r < count; r += threads / 32) {
      float sum = 0;
      for (int c = lane; c < count; c += 32) sum += g(r, c);
      sum = warp_sum(sum);
      for (int c = lane; c < count; c += 32) g(r, c) -= balance.weight(r, c, k, k - 1) * sum;
    }
    __syncthreads();
  }
}

// Of all blocks of a sequence, the rows at one place of each: row c is that of block c.
template <class T>
__device__ HeadRows<T> at_place(HeadRows<T> rows, int64_t sequence, const BlockSizes& s, int place) {
  rows.select(sequence, s.heads, place);
  rows.step *= static_cast<int>(s.block);
  return rows;
}

struct Mixing {
  HeadRows<const float> p, x, dy;
  HeadRows<float> y, dx, dp;
  const int32_t* lengths;
  BlockSizes s;
  int blocks;
  __device__ int end(int sequence) const { return static_cast<int>(lengths ? lengths[sequence / s.heads] : s.length); }
  // Blocks that have a position at this place.
  __device__ int count(int sequence, int place) const {
    const int block = static_cast<int>(s.block);
    return max(0, (end(sequence) - place + block - 1) / block);
  }
};

// The mixed blocks, y_r = sum_c p_rc x_c, at one place.
// Launch: x: sequences times places of a block times tiles of 32 blocks, y: tiles of 32 columns; `block_threads`
// threads. Owns:   the block a tile of the mixed rows. Shared: TileSum.
template <class Tile>
__global__ void __launch_bounds__(block_threads, 4) mix_blocks_forward_kernel(Mixing m) {
  Shared shared;
  TileSum<Tile, Operand::rows, Operand::rows> sum(shared);
  const int row_tiles = (m.blocks + tile - 1) / tile, places = static_cast<int>(m.s.block);
  const int index = static_cast<int>(blockIdx.x) / row_tiles, first = static_cast<int>(blockIdx.x) % row_tiles * tile;
  const int sequence = index / places, place = index % places, column = static_cast<int>(blockIdx.y) * tile;
  m.p.select(sequence, 1);
  const auto x = at_place(m.x, sequence, m.s, place);
  const auto y = at_place(m.y, sequence, m.s, place);
  const int count = m.count(sequence, place);
  for (int c = 0; c < count; c += tile) sum.add({m.p, first, m.blocks, c}, {x, c, count, column});
  sum.each_four([&](int row, int part, const Vec<4>& numbers) {
    if (first + row < m.blocks) y.store(first + row, column + part, numbers);
  });
}

// x behind the mixed blocks.
// Launch: a thread per number of x. Owns: this number. Shared: none.
__global__ void mix_blocks_copy_kernel(float* y, const float* x, BlockSizes s) {
  const int64_t row = s.heads * s.width, mixed = s.blocks() * s.block, n = s.batch * s.length * row;
  for (int64_t i = first_element(); i < n; i += element_step()) {
    const int64_t b = i / row / s.length;
    y[((b + 1) * mixed + i / row) * row + i % row] = x[i];
  }
}

// dx_c = dy of x itself + sum_r p_rc dy_r, at one place.
// Launch: as for the mixed blocks. Owns: the block a tile of dx. Shared: TileSum.
template <class Tile>
__global__ void __launch_bounds__(block_threads, 4) mix_blocks_x_kernel(Mixing m) {
  Shared shared;
  TileSum<Tile, Operand::transposed, Operand::rows> sum(shared);
  const int row_tiles = (m.blocks + tile - 1) / tile, places = static_cast<int>(m.s.block);
  const int index = static_cast<int>(blockIdx.x) / row_tiles, first = static_cast<int>(blockIdx.x) % row_tiles * tile;
  const int sequence = index / places, place = index % places, column = static_cast<int>(blockIdx.y) * tile;
  m.p.select(sequence, 1);
  const auto dy = at_place(m.dy, sequence, m.s, place);
  const auto dx = at_place(m.dx, sequence, m.s, place);
  const int count = m.count(sequence, place), length = static_cast<int>(m.s.length);
  for (int r = 0; r < m.blocks && first < count; r += tile)
    sum.add({m.p, r, m.blocks, first}, {dy, r, m.blocks, column});
  sum.each_four([&](int row, int part, Vec<4> numbers) {
    const int c = first + row;
    if (c * places + place >= length) return;
    const Vec<4> own = dy.load(m.blocks + c, column + part);
    for (int i = 0; i < 4; ++i) numbers.at[i] = own.at[i] + (c < count ? numbers.at[i] : 0);
    dx.store(c, column + part, numbers);
  });
}

// dp = sum over places of dy_r . x_c
// Launch: x: sequences times tiles of 32 rows of p, y: tiles of 32 of its columns; `block_threads` threads.
// Owns:   the block a tile of dp.
// Shared: TileSum.
template <class Tile>
__global__ void __launch_bounds__(block_threads, 4) mix_blocks_p_kernel(Mixing m) {
  Shared shared;
  TileSum<Tile, Operand::rows, Operand::transposed> sum(shared);
  const int row_tiles = (m.blocks + tile - 1) / tile;
  const int sequence = static_cast<int>(blockIdx.x) / row_tiles;
  const int first = static_cast<int>(blockIdx.x) % row_tiles * tile, c = static_cast<int>(blockIdx.y) * tile;
  for (int place = 0; place < static_cast<int>(m.s.block); ++place) {
    const auto x = at_place(m.x, sequence, m.s, place);
    const auto dy = at_place(m.dy, sequence, m.s, place);
    const int count = m.count(sequence, place);
    for (int column = 0; column < x.width && c < count; column += tile)
      sum.add({dy, first, m.blocks, column}, {x, c, count, column});
  }
  m.dp.select(sequence, 1);
  sum.each_four([&](int row, int part, const Vec<4>& numbers) {
    if (first + row < m.blocks) m.dp.store(first + row, c + part, numbers);
  });
}

Mixing mixing(const float* p, const float* x, const int32_t* lengths, const BlockSizes& s) {
  Mixing m{};
  m.p = HeadRows<const float>(p, s.blocks(), 1, s.blocks());
  m.x = HeadRows<const float>(x, s.length, s.heads, s.width);
  m.lengths = lengths;
  m.s = s;
  m.blocks = static_cast<int>(s.blocks());
  return m;
}

Grid at_places(const BlockSizes& s, size_t shared) {
  return {dim3(static_cast<unsigned>(s.batch * s.heads * s.block) * tiles_of(s.blocks()), tiles_of(s.width)),
          dim3(block_threads), shared};
}

}  // namespace

void block_sums_forward(float* y, const float* x, const int32_t* lengths, BlockSizes s) {
  launch("block_sums_forward", block_sums_forward_kernel, over(s.batch * s.blocks() * s.heads * s.width), y, x, lengths,
         s);
}

void block_sums_backward(float* dx, const float* dy, const int32_t* lengths, BlockSizes s) {
  launch("block_sums_backward", block_sums_backward_kernel, over(s.batch * s.length * s.heads * s.width), dx, dy,
         lengths, s);
}

void sinkhorn_forward(float* p, const float* logits, const int32_t* lengths, SinkhornSizes s) {
  const Temporary<float> steps(s.sequences() * s.iterations * 2 * s.blocks);
  launch("sinkhorn_forward", sinkhorn_forward_kernel, Grid{dim3(static_cast<unsigned>(s.sequences())), dim3(256)}, p,
         logits, steps.data(), lengths, s);
}

void sinkhorn_backward(float* dlogits, const float* dp, const float* p, const float* logits, const int32_t* lengths,
                       SinkhornSizes s) {
  const Temporary<float> steps(s.sequences() * s.iterations * 2 * s.blocks);
  launch("sinkhorn_backward", sinkhorn_backward_kernel, Grid{dim3(static_cast<unsigned>(s.sequences())), dim3(256)},
         dlogits, dp, p, logits, steps.data(), lengths, s);
}

void mix_blocks_forward(float* y, const float* p, const float* x, const int32_t* lengths, BlockSizes s) {
  Mixing m = mixing(p, x, lengths, s);
  m.y = HeadRows<float>(y, s.blocks() * s.block + s.length, s.heads, s.width);
  using Sum = TileSum<Float32, Operand::rows, Operand::rows>;
  launch("mix_blocks_forward",
         precision() == Precision::f32 ? mix_blocks_forward_kernel<Float32> : mix_blocks_forward_kernel<Tf32>,
         at_places(s, Sum::shared_bytes()), m);
  launch("mix_blocks_forward", mix_blocks_copy_kernel, over(s.batch * s.length * s.heads * s.width), y, x, s);
}

void mix_blocks_backward(float* dp, float* dx, const float* dy, const float* p, const float* x, const int32_t* lengths,
                         BlockSizes s) {
  Mixing m = mixing(p, x, lengths, s);
  m.dy = HeadRows<const float>(dy, s.blocks() * s.block + s.length, s.heads, s.width);
  m.dx = HeadRows<float>(dx, s.length, s.heads, s.width);
  m.dp = HeadRows<float>(dp, s.blocks(), 1, s.blocks());
  const bool exact = precision() == Precision::f32;
  using OfX = TileSum<Float32, Operand::transposed, Operand::rows>;
  launch("mix_blocks_backward", exact ? mix_blocks_x_kernel<Float32> : mix_blocks_x_kernel<Tf32>,
         at_places(s, OfX::shared_bytes()), m);
  using OfP = TileSum<Float32, Operand::rows, Operand::transposed>;
  const unsigned rows = tiles_of(s.blocks());
  launch("mix_blocks_backward", exact ? mix_blocks_p_kernel<Float32> : mix_blocks_p_kernel<Tf32>,
         Grid{dim3(static_cast<unsigned>(s.batch * s.heads) * rows, rows), dim3(block_threads), OfP::shared_bytes()},
         m);
}

}  // namespace runnel::cuda
