// Small matrices that live in a core's cache, and their products: the arithmetic of the attentions. Row-major,
// contiguous, rows and columns padded with zeros to multiples of 16, whatever the processor's vectors are.
#pragma once
#include <utility>

#include "ops/cpu/vector.h"

namespace runnel {
namespace {

constexpr int64_t tile = 16;
inline int64_t padded(int64_t n) { return (n + tile - 1) / tile * tile; }

struct Matrix {
  Lanes* data;
  int64_t rows, columns;
  float* row(int64_t r) const { return reinterpret_cast<float*>(data) + r * columns; }
  Lanes* lanes_of(int64_t r) const { return data + r * (columns / lanes); }
  int64_t vectors() const { return rows * columns / lanes; }
  void clear() const { std::memset(static_cast<void*>(data), 0, static_cast<size_t>(rows * columns) * sizeof(float)); }
};

// Which t of sum_t a(r,t) b[t,:] are not known to be zero: all, those up to r, or those from r.
enum class Terms { all, to_row, from_row };
enum class Store { set, add };

// c[r,:] = (or +=) sum_t a(r,t) b[t,:] for a few rows and `width` vectors of columns, whose sums stay in registers.
// a(r,t) is a[r,t], or a[t,r] if transposed.
constexpr int block_rows = registers / 4;
template <int width, bool transposed>
RUNNEL_ALONE void block_product(Matrix c, Matrix a, Matrix b, int64_t r0, int64_t column, int64_t begin,
                          int64_t end, Store store) {
  Lanes sums[block_rows][width] = {};
  const int64_t a_row = transposed ? 1 : a.columns, a_step = transposed ? a.columns : 1;
  const float* from = a.row(0) + r0 * a_row + begin * a_step;
  const Lanes* with = b.lanes_of(begin) + column;
  for (int64_t t = begin; t < end; ++t, from += a_step, with += b.columns / lanes)
#pragma GCC unroll 8
    for (int r = 0; r < block_rows; ++r)
#pragma GCC unroll 2
      for (int w = 0; w < width; ++w) sums[r][w] += from[r * a_row] * with[w];
#pragma GCC unroll 8
  for (int r = 0; r < block_rows; ++r)
#pragma GCC unroll 2
    for (int w = 0; w < width; ++w) {
      Lanes& to = c.lanes_of(r0 + r)[column + w];
      to = store == Store::add ? to + sums[r][w] : sums[r][w];
    }
}

template <bool transposed>
inline void product(const Matrix& c, const Matrix& a, const Matrix& b, Store store, Terms terms) {
  for (int64_t r = 0; r < c.rows; r += block_rows) {
    const int64_t begin = terms == Terms::from_row ? r : 0;
    const int64_t end = terms == Terms::to_row ? (r + block_rows < b.rows ? r + block_rows : b.rows) : b.rows;
    int64_t column = 0;
    for (; column + 2 <= c.columns / lanes; column += 2)
      block_product<2, transposed>(c, a, b, r, column, begin, end, store);
    if (column < c.columns / lanes) block_product<1, transposed>(c, a, b, r, column, begin, end, store);
  }
}

// c = a b, c = a^T b
inline void multiply(const Matrix& c, const Matrix& a, const Matrix& b, Store store, Terms terms = Terms::all) {
  product<false>(c, a, b, store, terms);
}
inline void multiply_transposed(const Matrix& c, const Matrix& a, const Matrix& b, Store store,
                                Terms terms = Terms::all) {
  product<true>(c, a, b, store, terms);
}

#if !__has_builtin(__builtin_shufflevector)  // g++ 11
using Choice = int32_t __attribute__((vector_size(sizeof(Lanes))));
#define __builtin_shufflevector(above, below, ...) __builtin_shuffle(above, below, Choice{__VA_ARGS__})
#endif

// Exchanges the off-diagonal blocks of every 2 size x 2 size block on the diagonal: lane l of a new row comes from lane
// l of one old row or lane l ^ size of the other.
template <int size, int... l>
RUNNEL_INLINE inline void exchange_blocks(Lanes (&x)[lanes], std::integer_sequence<int, l...>) {
  constexpr int other = lanes;  // lanes of the second operand are counted from here
#pragma GCC unroll 16
  for (int r = 0; r < lanes; ++r) {
    if (r & size) continue;
    const Lanes above = x[r], below = x[r + size];
    x[r] = __builtin_shufflevector(above, below, (l & size ? (l ^ size) + other : l)...);
    x[r + size] = __builtin_shufflevector(above, below, (l & size ? l + other : l ^ size)...);
  }
}

// Rows -> columns.
RUNNEL_INLINE inline void transpose_square(Lanes (&x)[lanes]) {
  constexpr std::make_integer_sequence<int, lanes> every_lane;
  exchange_blocks<1>(x, every_lane);
  exchange_blocks<2>(x, every_lane);
  if constexpr (lanes > 4) exchange_blocks<4>(x, every_lane);
  if constexpr (lanes > 8) exchange_blocks<8>(x, every_lane);
}

inline void transpose(const Matrix& to, const Matrix& from) {
  for (int64_t r = 0; r < from.rows; r += lanes)
    for (int64_t c = 0; c < from.columns; c += lanes) {
      Lanes rows[lanes];
      for (int64_t i = 0; i < lanes; ++i) rows[i] = from.lanes_of(r + i)[c / lanes];
      transpose_square(rows);
      for (int64_t i = 0; i < lanes; ++i) to.lanes_of(c + i)[r / lanes] = rows[i];
    }
}

// to[r] = a[r,:] . b[r,:]
inline void dot_rows(float* to, const Matrix& a, const Matrix& b) {
  for (int64_t r = 0; r < a.rows; r += lanes) {
    Lanes products[lanes] = {}, sum = {};
    for (int64_t i = 0; i < lanes; ++i)
      for (int64_t w = 0; w < a.columns / lanes; ++w) products[i] += a.lanes_of(r + i)[w] * b.lanes_of(r + i)[w];
    transpose_square(products);
    for (int64_t i = 0; i < lanes; ++i) sum += products[i];
    for (int64_t i = 0; i < lanes; ++i) to[r + i] = sum[i];
  }
}

}  // namespace
}  // namespace runnel
