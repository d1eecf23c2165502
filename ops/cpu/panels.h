// Products of float32 matrices on one thread. The right operand is packed in panels of two vectors' columns, [depth]
// rows one after the other, so that it is read sequentially; a block of the result, at most as many rows as the
// registers hold, stays in registers over the whole depth of a panel (Goto and van de Geijn, "Anatomy of
// high-performance matrix multiplication", 2008).
#pragma once
#include <algorithm>
#include <utility>

#include "ops/cpu/loops.h"
#include "ops/cpu/scratch.h"
#include "ops/cpu/small_matrix.h"

namespace runnel {
namespace {

constexpr int64_t panel_columns = 2 * lanes;
constexpr int64_t panel_depth = 256;  // rows of a panel that stay in the first-level cache

inline int64_t panels(int64_t columns) { return (columns + panel_columns - 1) / panel_columns; }

// c[r,:] = (or +=) sum_t a(r,t) b[t,:] for a block of rows and the first `columns` columns of a panel b. a(r,t) is
// a[r a_row + t a_step].
template <int rows>
void panel_product(float* c, int64_t c_row, const float* a, int64_t a_row, int64_t a_step, const float* b,
                   int64_t depth, int64_t columns, Store how) {
  if (columns >= panel_columns) return block_product<rows, 2>(c, c_row, a, a_row, a_step, b, panel_columns, depth, how);
  float edge[rows * panel_columns];  // the panel has more columns than c
  block_product<rows, 2>(edge, panel_columns, a, a_row, a_step, b, panel_columns, depth, Store::set);
  for (int64_t r = 0; r < rows; ++r)
    if (how == Store::add)
      accumulate(c + r * c_row, edge + r * panel_columns, columns);
    else
      copy_numbers(c + r * c_row, edge + r * panel_columns, columns);
}

// Packs panel j of b [k,n], or of [n,k] if transposed; columns past the last become zero.
inline void pack_panel(float* to, const float* b, int64_t k, int64_t n, bool transposed, int64_t j) {
  const int64_t first = j * panel_columns, columns = std::min(panel_columns, n - first);
  if (!transposed) {
    for (int64_t t = 0; t < k; ++t, to += panel_columns)
      for (int64_t half = 0; half < 2; ++half) {
        const int64_t count = columns - half * lanes;
        store(to + half * lanes, count > 0 ? load(b + t * n + first + half * lanes, count) : Lanes{});
      }
    return;
  }
  for (int64_t t = 0; t < k; t += lanes)
    for (int64_t half = 0; half < 2; ++half) {
      Lanes square[lanes];
      for (int64_t i = 0; i < lanes; ++i) {
        const int64_t column = half * lanes + i;
        square[i] = column < columns ? load(b + (first + column) * k + t, k - t) : Lanes{};
      }
      transpose_square(square);
      for (int64_t i = 0; i < std::min(lanes, k - t); ++i)
        store(to + (t + i) * panel_columns + half * lanes, square[i]);
    }
}

// Rows of numbers as left operand, or as both operands of transposed_product.
struct PanelOperand {
  const float* rows;
  PanelOperand(const float* numbers, int64_t) : rows(numbers) {}
};

// A matrix [k,n], packed by all threads, as right operand.
class PanelMatrix {
 public:
  PanelMatrix(const float* b, int64_t k, int64_t n, bool transposed)
      : k_(k), n_(n), memory_(panels(n) * k * panel_columns) {
    float* const to = memory_.data();
    parallel_for(panels(n), k * n >= parallel_from,
                 [=](int64_t j) { pack_panel(to + j * k * panel_columns, b, k, n, transposed, j); });
  }

  // c[m,n] = a[m,k] this; or, if told to add, c +=. a is read `panel_depth` numbers of some rows at a time, which stay
  // in the second-level cache.
  void multiply(float* c, PanelOperand a, int64_t m, bool add) const {
    for (int64_t t = 0; t < k_; t += panel_depth)
      for (int64_t j = 0; j < panels(n_); ++j) {
        const int64_t column = j * panel_columns;
        const float* const panel = memory_.data() + column * k_ + t * panel_columns;
        each_block(m, [&]<int rows>(std::integral_constant<int, rows>, int64_t r) {
          panel_product<rows>(c + r * n_ + column, n_, a.rows + r * k_ + t, k_, 1, panel, std::min(panel_depth, k_ - t),
                              n_ - column, t == 0 && !add ? Store::set : Store::add);
        });
      }
  }

 private:
  int64_t k_, n_;
  Scratch memory_;
};

// c[m,n] = a[rows,m]^T b[rows,n]; or, if told to add, c +=. Both operands are packed, since their rows are far apart.
inline void transposed_product(float* c, PanelOperand a, PanelOperand b, int64_t rows, int64_t m, int64_t n, bool add) {
  const Scratch right(rows * panels(n) * panel_columns), left(rows * m);
  for (int64_t j = 0; j < panels(n); ++j)
    pack_panel(right.data() + j * rows * panel_columns, b.rows, rows, n, false, j);
  constexpr int64_t together = 8;  // rows of a at a time, so that a cache line is used whole before it is evicted
  for (int64_t first = 0; first < rows; first += together)
    each_block(m, [&]<int count>(std::integral_constant<int, count>, int64_t r) {
      for (int64_t t = first; t < std::min(first + together, rows); ++t)
        std::memcpy(left.data() + r * rows + t * count, a.rows + t * m + r, count * sizeof(float));
    });
  for (int64_t j = 0; j < panels(n); ++j)
    each_block(m, [&]<int count>(std::integral_constant<int, count>, int64_t r) {
      panel_product<count>(c + r * n + j * panel_columns, n, left.data() + r * rows, 1, count,
                           right.data() + j * rows * panel_columns, rows, n - j * panel_columns,
                           add ? Store::add : Store::set);
    });
}

}  // namespace
}  // namespace runnel
