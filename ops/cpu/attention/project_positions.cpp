// Learned sums over positions, to which Linformer (Wang et al. 2020) reduces keys and values:
//
//   y[b,r,c] = sum_{j < lengths[b]} p[j,r] x[b,j,c]
//   dx[b,j,c] = sum_r p[j,r] dy[b,r,c],   dp[j,r] = sum_b sum_c x[b,j,c] dy[b,r,c]     for j < lengths[b], else 0
//
// These are products of small matrices, 64 positions at a time.
#include "ops/cpu/sequences.h"

#include "ops/kernels/approximate_attention.h"

namespace runnel {
namespace {

constexpr int64_t positions = 64;  // of a small matrix

SequenceRows<const float> rows_from(const float* x, int64_t width, int64_t columns) {
  return {x, width, columns, positions * width};
}
int64_t seen_positions(const int32_t* lengths, const PositionSizes& s, int64_t b) {
  return lengths ? lengths[b] : s.length;
}

}  // namespace

// Threads share the sequences, and parts of the columns.
void cpu::project_positions_forward(float* y, const float* x, const float* p, const int32_t* lengths, PositionSizes s) {
  constexpr int64_t part = 128;  // columns
  const int64_t parts = (s.width + part - 1) / part, rank = padded(s.rank);
  const ThreadScratch scratch(rank * part + positions * (part + rank));
#pragma omp parallel
  {
    Arena arena(scratch.this_thread());
    const Matrix sums = arena.matrix(rank, part), xs = arena.matrix(positions, part),
                 ps = arena.matrix(positions, rank);
#pragma omp for collapse(2) schedule(dynamic)
    for (int64_t b = 0; b < s.batch; ++b)
      for (int64_t n = 0; n < parts; ++n) {
        const int64_t column = n * part, columns = std::min(part, s.width - column);
        const int64_t end = seen_positions(lengths, s, b);
        sums.clear();
        for (int64_t first = 0; first < end; first += positions) {
          const int64_t count = std::min(positions, end - first);
          load(xs, rows_from(x + b * s.length * s.width + column, s.width, columns), first, count);
          load(ps, rows_from(p, s.rank, s.rank), first, count);
          multiply_transposed(sums, ps, xs, Store::add);
        }
        for (int64_t r = 0; r < s.rank; ++r)
          copy_numbers(y + (b * s.rank + r) * s.width + column, sums.row(r), columns);
      }
  }
}

// Threads share the positions: each sums up dp over all sequences.
void cpu::project_positions_backward(float* dx, float* dp, const float* dy, const float* x, const float* p,
                                     const int32_t* lengths, PositionSizes s) {
  const int64_t rank = padded(s.rank), width = padded(s.width);
  const Scratch gradients(2 * s.batch * rank * width);
  const auto of_result = [&](int64_t b) {
    return Matrix{reinterpret_cast<Lanes*>(gradients.data() + 2 * b * rank * width), rank, width};
  };
  const auto transposed = [&](int64_t b) {
    return Matrix{reinterpret_cast<Lanes*>(gradients.data() + (2 * b + 1) * rank * width), width, rank};
  };
  const ThreadScratch scratch(2 * positions * (rank + width));
#pragma omp parallel
  {
    Arena arena(scratch.this_thread());
    const Matrix ps = arena.matrix(positions, rank), dps = arena.matrix(positions, rank),
                 xs = arena.matrix(positions, width), dxs = arena.matrix(positions, width);
#pragma omp for schedule(static)
    for (int64_t b = 0; b < s.batch; ++b) {
      load(of_result(b), rows_from(dy + b * s.rank * s.width, s.width, s.width), 0, s.rank);
      transpose(transposed(b), of_result(b));
    }
#pragma omp for schedule(dynamic)
    for (int64_t first = 0; first < s.rows; first += positions) {
      load(ps, rows_from(p, s.rank, s.rank), first, std::min(positions, s.rows - first));
      dps.clear();
      for (int64_t b = 0; b < s.batch; ++b) {
        const int64_t all = std::clamp<int64_t>(s.length - first, 0, positions);
        const int64_t seen = std::clamp<int64_t>(seen_positions(lengths, s, b) - first, 0, positions);
        const auto x_rows = rows_from(x + b * s.length * s.width, s.width, s.width);
        float* const dx_rows = dx + (b * s.length + first) * s.width;
        if (seen > 0) {
          load(xs, x_rows, first, seen);
          multiply(dps, xs, transposed(b), Store::add);
          multiply(dxs, ps, of_result(b), Store::set);
        }
        for (int64_t j = 0; j < seen; ++j) copy_numbers(dx_rows + j * s.width, dxs.row(j), s.width);
        clear(dx_rows + seen * s.width, (all - seen) * s.width);
      }
      for (int64_t j = 0; j < std::min(positions, s.rows - first); ++j)
        copy_numbers(dp + (first + j) * s.rank, dps.row(j), s.rank);
    }
  }
}

}  // namespace runnel
