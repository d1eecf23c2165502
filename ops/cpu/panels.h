// Products of float32 matrices on one thread. The right operand is packed in panels of two vectors' columns, [depth]
// rows one after the other, so that it is read sequentially; a block of the result, as many rows as the registers hold,
// stays in registers over the whole depth of a panel (Goto and van de Geijn, "Anatomy of high-performance matrix
// multiplication", 2008).
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

// c[r,:] = (or +=) sum_t a(r,t) b[t,:] for at most max_block_rows rows and the first `columns` columns of a panel b.
// a(r,t) is a[r a_row + t a_step].
inline void panel_product(float* c, int64_t c_row, const float* a, int64_t a_row, int64_t a_step, const float* b,
                          int64_t depth, int64_t rows, int64_t columns, Store how) {
  float edge[max_block_rows * panel_columns];  // where the panel has more columns than c
  const bool whole = columns >= panel_columns;
  float* const to = whole ? c : edge;
  const int64_t to_row = whole ? c_row : panel_columns;
  const Store to_how = whole ? how : Store::set;
  const auto block = [&]<int count>(std::integral_constant<int, count>, int64_t r) {
    block_product<count, 2>(to + r * to_row, to_row, a + r * a_row, a_row, a_step, b, panel_columns, depth, to_how);
  };
  if (rows == max_block_rows) {
    block(std::integral_constant<int, max_block_rows>(), 0);
  } else {
    int64_t r = 0;
    for (; r + 4 <= rows; r += 4) block(std::integral_constant<int, 4>(), r);
    for (; r < rows; ++r) block(std::integral_constant<int, 1>(), r);
  }
  if (whole) return;
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
    for (int64_t first = 0; first < m; first += rows_at_once)
      for (int64_t t = 0; t < k_; t += panel_depth)
        for (int64_t j = 0; j < panels(n_); ++j) {
          const int64_t column = j * panel_columns;
          const float* const panel = memory_.data() + column * k_ + t * panel_columns;
          for (int64_t r = first; r < std::min(first + rows_at_once, m); r += max_block_rows)
            panel_product(c + r * n_ + column, n_, a.rows + r * k_ + t, k_, 1, panel, std::min(panel_depth, k_ - t),
                          std::min<int64_t>(max_block_rows, m - r), n_ - column,
                          t == 0 && !add ? Store::set : Store::add);
        }
  }

 private:
  // Few, since rows that are a power of two apart compete for a part of the cache.
  static constexpr int64_t rows_at_once = 16 * max_block_rows;

  int64_t k_, n_;
  Scratch memory_;
};

// c[m,n] = a[rows,m]^T b[rows,n]; or, if told to add, c +=. Both operands are packed, since their rows are far apart.
inline void transposed_product(float* c, PanelOperand a, PanelOperand b, int64_t rows, int64_t m, int64_t n, bool add) {
  const Scratch right(rows * panels(n) * panel_columns), left(rows * (m + max_block_rows));
  for (int64_t j = 0; j < panels(n); ++j)
    pack_panel(right.data() + j * rows * panel_columns, b.rows, rows, n, false, j);
  constexpr int64_t together = 8;  // rows of a, whose cache lines are read to their ends
  for (int64_t first = 0; first < rows; first += together)
    for (int64_t r = 0; r < m; r += max_block_rows) {
      const int64_t count = std::min<int64_t>(max_block_rows, m - r);
      for (int64_t t = first; t < std::min(first + together, rows); ++t) {
        float* const to = left.data() + r * rows + t * max_block_rows;
        if (count == max_block_rows)
          std::memcpy(to, a.rows + t * m + r, max_block_rows * sizeof(float));
        else
          copy_numbers(to, a.rows + t * m + r, count);
      }
    }
  for (int64_t j = 0; j < panels(n); ++j)
    for (int64_t r = 0; r < m; r += max_block_rows)
      panel_product(c + r * n + j * panel_columns, n, left.data() + r * rows, 1, max_block_rows,
                    right.data() + j * rows * panel_columns, rows, std::min<int64_t>(max_block_rows, m - r),
                    n - j * panel_columns, add ? Store::add : Store::set);
}

}  // namespace
}  // namespace runnel
