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
  int64_t stride = columns;  // from row to row
  float* row(int64_t r) const { return reinterpret_cast<float*>(data) + r * stride; }
  Lanes* lanes_of(int64_t r) const { return data + r * (stride / lanes); }
  Matrix some_columns(int64_t first, int64_t count) const { return {data + first / lanes, rows, count, stride}; }
  Matrix some_rows(int64_t first, int64_t count) const { return {lanes_of(first), count, columns, stride}; }
  // Rows without gaps.
  void clear() const { std::memset(static_cast<void*>(data), 0, static_cast<size_t>(rows * columns) * sizeof(float)); }
};

enum class Store { set, add };

// As many rows of a product as fit into the registers with two vectors of columns, beside two vectors and one number to
// multiply.
constexpr int max_block_rows = registers == 32 ? 12 : 6;

// c[r,:] = (or +=) sum_t a(r,t) b[t,:] for `rows` rows and `width` vectors of columns, whose sums stay in registers.
// a(r,t) is a[r a_row + t a_step]; rows of b and c are b_row and c_row apart.
template <int rows, int width>
RUNNEL_NOINLINE void block_product(float* c, int64_t c_row, const float* a, int64_t a_row, int64_t a_step,
                                   const float* b, int64_t b_row, int64_t terms, Store how) {
  if (how == Store::add)
    for (int r = 0; r < rows; ++r) __builtin_prefetch(c + r * c_row, 1);
  Lanes sums[rows][width] = {};
  for (int64_t t = 0; t < terms; ++t, a += a_step, b += b_row) {
    Lanes with[width];
#pragma GCC unroll 2
    for (int w = 0; w < width; ++w) with[w] = load(b + w * lanes);
#pragma GCC unroll 12
    for (int r = 0; r < rows; ++r)
#pragma GCC unroll 2
      for (int w = 0; w < width; ++w) sums[r][w] += a[r * a_row] * with[w];
  }
#pragma GCC unroll 12
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 2
    for (int w = 0; w < width; ++w) {
      float* const to = c + r * c_row + w * lanes;
      store(to, how == Store::add ? load(to) + sums[r][w] : sums[r][w]);
    }
}

// work(std::integral_constant<int, rows>), 1 <= rows <= most
template <int most = max_block_rows, class Work>
RUNNEL_INLINE inline void with_rows(int64_t rows, Work work) {
  if (rows == most) return work(std::integral_constant<int, most>());
  if constexpr (most > 1) with_rows<most - 1>(rows, work);
}
// work(std::integral_constant<int, count>, first) for blocks of rows that the registers hold, as equal as they can be:
// a last block of few rows would wait for its own sums.
template <class Work>
RUNNEL_INLINE inline void each_block(int64_t rows, Work work) {
  if (rows == 0) return;
  const int64_t blocks = (rows + max_block_rows - 1) / max_block_rows, each = rows / blocks, longer = rows % blocks;
  for (int64_t i = 0, first = 0; i < blocks; ++i) {
    const int64_t count = each + (i < longer ? 1 : 0);
    with_rows(count, [&](auto constant) RUNNEL_INLINE { work(constant, first); });
    first += count;
  }
}

// c = (or +=) a b, or a^T b.
inline void product(const Matrix& c, const Matrix& a, const Matrix& b, Store how, bool transposed) {
  const int64_t a_row = transposed ? 1 : a.stride, a_step = transposed ? a.stride : 1;
  each_block(c.rows, [&]<int rows>(std::integral_constant<int, rows>, int64_t r) {
    const float* const from = a.row(0) + r * a_row;
    int64_t column = 0;
    for (; column + 2 * lanes <= c.columns; column += 2 * lanes)
      block_product<rows, 2>(c.row(r) + column, c.stride, from, a_row, a_step, b.row(0) + column, b.stride, b.rows,
                             how);
    for (; column < c.columns; column += lanes)
      block_product<rows, 1>(c.row(r) + column, c.stride, from, a_row, a_step, b.row(0) + column, b.stride, b.rows,
                             how);
  });
}
inline void multiply(const Matrix& c, const Matrix& a, const Matrix& b, Store how) { product(c, a, b, how, false); }
inline void multiply_transposed(const Matrix& c, const Matrix& a, const Matrix& b, Store how) {
  product(c, a, b, how, true);
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
