// The right operand of many products on one thread: by tiles where the processor has them; else by oneDNN if the build
// has it, where it has kernels for packed operands, which older versions have for AVX-512 only; else by panels.h.
#pragma once
#include <optional>
#include <type_traits>

#include "ops/cpu/panels.h"
#include "ops/cpu/tile_matrix.h"
#if RUNNEL_WITH_ONEDNN
#include "ops/cpu/gemm.h"
#endif

namespace runnel {
namespace {

// Types of the file that includes this, as everything here is.
#if RUNNEL_WITH_ONEDNN
constexpr bool use_onednn = lanes == 16;
using VectorMatrix = std::conditional_t<use_onednn, onednn::PackedMatrix, PanelMatrix>;
using VectorOperand = std::conditional_t<use_onednn, onednn::Operand, PanelOperand>;
#else
constexpr bool use_onednn = false;
using VectorMatrix = PanelMatrix;
using VectorOperand = PanelOperand;
#endif

constexpr bool has_large_blocks = use_onednn || RUNNEL_WITH_TILES;  // else those of panels.h, of max_block_rows rows

// Rows of numbers as operands of products, which tiles read as they are.
struct PackedOperand {
  const float* rows;
  std::optional<VectorOperand> by_vectors;
  PackedOperand(const float* numbers, int64_t n, bool by_tiles = has_tiles()) : rows(numbers) {
    if (!by_tiles) by_vectors.emplace(numbers, n);
  }
};

// A matrix [k,n], from b [k,n], or [n,k] if transposed. Refers to b.
class PackedWeights {
 public:
  PackedWeights(const float* b, int64_t k, int64_t n, bool transposed, [[maybe_unused]] bool by_tiles = has_tiles())
      : n_(n) {
#if RUNNEL_WITH_TILES
    if (by_tiles) {
      tiles_.emplace(b, k, n, transposed);
      return;
    }
#endif
    vectors_.emplace(b, k, n, transposed);
  }

  // write(r, j, count, numbers) for each row r of a[m,k] this, in pieces from column j on; or, where the whole is
  // computed in c [m,n], for each row of that.
  template <class Write>
  void multiply(float* c, const PackedOperand& a, int64_t m, Write write) const {
#if RUNNEL_WITH_TILES
    if (tiles_) return tiles_->multiply(a.rows, m, write);
#endif
    vectors_->multiply(c, *a.by_vectors, m, false);
    for (int64_t r = 0; r < m; ++r) write(r, 0, n_, c + r * n_);
  }

  // c[m,n] = a[m,k] this; or, if told to add, c +=.
  void multiply(float* c, const PackedOperand& a, int64_t m, bool add) const {
#if RUNNEL_WITH_TILES
    if (tiles_)
      return tiles_->multiply(a.rows, m, [=, this](int64_t r, int64_t j, int64_t count, const float* numbers) {
        float* const to = c + r * n_ + j;
        add ? accumulate(to, numbers, count) : copy_numbers(to, numbers, count);
      });
#endif
    vectors_->multiply(c, *a.by_vectors, m, add);
  }

 private:
  int64_t n_;
#if RUNNEL_WITH_TILES
  std::optional<TileMatrix> tiles_;
#endif
  std::optional<VectorMatrix> vectors_;
};

// sums = (or +=) a[rows,m]^T b[rows,n], in any order of its numbers: row r lies in pieces of at most 128 columns, of
// which that from column j on, a multiple of 128, begins at sums + product_piece(r, j, n).
constexpr int64_t piece_columns = 128;
#if RUNNEL_WITH_TILES
static_assert(piece_columns == group_columns);
#endif
inline int64_t product_size(int64_t m, int64_t n) {
#if RUNNEL_WITH_TILES
  if (has_tiles()) return sums_size(m, n);
#endif
  return m * n;
}
inline int64_t product_piece(int64_t r, int64_t j, int64_t n) {
#if RUNNEL_WITH_TILES
  if (has_tiles()) return group(r, j, n) + r % block_edge * group_columns;
#endif
  return r * n + j;
}
inline void sum_transposed_product(float* sums, const PackedOperand& a, const PackedOperand& b, int64_t rows, int64_t m,
                                   int64_t n, bool add) {
#if RUNNEL_WITH_TILES
  if (has_tiles()) {
    const Store how = add ? Store::add : Store::set;
    return precision() == Precision::bf16 ? transposed_product_by_tiles<1>(sums, a.rows, b.rows, rows, m, n, how)
                                          : transposed_product_by_tiles<3>(sums, a.rows, b.rows, rows, m, n, how);
  }
#endif
  transposed_product(sums, *a.by_vectors, *b.by_vectors, rows, m, n, add);
}

}  // namespace
}  // namespace runnel
