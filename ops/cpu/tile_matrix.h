// Products of matrices by tiles (ops/cpu/tiles.h), which multiply numbers in bfloat16 and add in float32.
//
// A float32 number is the sum of three numbers in bfloat16, x = x_0 + x_1 + x_2, with |x_1| <= 2^-8 |x| and |x_2| <=
// 2^-17 |x|. Of the nine products in a b = (a_0 + a_1 + a_2) (b_0 + b_1 + b_2), the six a_i b_j with i + j <= 2 are
// computed; the others together are at most 2^-24 of a b, as much as its rounding (Henry, Tang and Heinecke,
// "Leveraging the bfloat16 artificial intelligence datatype for higher-precision computations", 2019). Tiles take
// parts, and products of parts, below 2^-126, the smallest normal number, for 0. Where matrix products are computed in
// bfloat16 (set_precision), x_0 is all of x.
#pragma once
#include <algorithm>

#include "ops/cpu/loops.h"
#include "ops/cpu/scratch.h"
#include "ops/cpu/small_matrix.h"
#include "ops/cpu/tiles.h"
#if RUNNEL_WITH_TILES

namespace runnel {
namespace {

constexpr int64_t block_edge = 2 * tile_rows;    // rows or columns of a packed block
constexpr int64_t step_depth = 2 * tile_depth;   // numbers of each that one instruction multiplies
constexpr int64_t slice_depth = 8 * step_depth;  // of a block that is multiplied before the next
constexpr int64_t group_columns = 4 * block_edge;
constexpr int64_t group_size = block_edge * group_columns;
template <int parts>
constexpr int64_t step_vectors = parts * 2 * tile_rows;  // of a packed block

// The rows of a left operand or the columns of a right one: number k of row i is numbers[i stride + k step]. One of the
// two distances is 1.
struct TileOperand {
  const float* numbers;
  int64_t stride, step;
  TileOperand from(int64_t i, int64_t k) const { return {numbers + i * stride + k * step, stride, step}; }
};

// Packed, a block of rows is an array [steps][parts][2] of tiles and a last vector, of which a lane is not 0 if one of
// the numbers is infinite or so large, 2^63 or more, that a product of parts might be where their sum is not.
inline int64_t block_steps(int64_t depth) { return (depth + step_depth - 1) / step_depth; }
template <int parts>
int64_t block_vectors(int64_t depth) {
  return block_steps(depth) * step_vectors<parts> + 1;
}

// The next part of x in the upper half of each lane; x becomes the rest.
template <bool is_last>
RUNNEL_INLINE inline BitLanes next_part(Lanes& x) {
  const BitLanes bits = std::bit_cast<BitLanes>(x), part = is_last ? bits : bits + 0x8000;
  if constexpr (!is_last) x -= std::bit_cast<Lanes>(part & 0xffff0000);
  return part;
}

// Row i of the tiles of a step: of each part, x and y, as pairs of neighbours or as pairs of a number of x and one of
// y.
template <int parts, bool are_neighbours>
RUNNEL_INLINE inline void split(Lanes* to_tile, int64_t i, Lanes x, Lanes y, BitLanes& large) {
  using Halves = uint16_t __attribute__((vector_size(sizeof(Lanes))));
  const auto put = [&](int part, BitLanes upper_x, BitLanes upper_y) RUNNEL_INLINE {
    const Halves a = std::bit_cast<Halves>(upper_x), b = std::bit_cast<Halves>(upper_y);
    if constexpr (are_neighbours)
      to_tile[part * 2 * tile_rows + i] =
          std::bit_cast<Lanes>(__builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31,
                                                       33, 35, 37, 39, 41, 43, 45, 47, 49, 51, 53, 55, 57, 59, 61, 63));
    else
      to_tile[part * 2 * tile_rows + i] = std::bit_cast<Lanes>(upper_x >> 16 | (upper_y & 0xffff0000));
  };
  if constexpr (parts == 1) {
    const auto rounded = [](Lanes z)
                             RUNNEL_INLINE { return widened(std::bit_cast<HalfLanes>(_mm512_cvtneps_pbh(z))) << 16; };
    put(0, rounded(x), rounded(y));
  } else {
    const auto found = [](Lanes z) RUNNEL_INLINE {
      return std::bit_cast<BitLanes>(std::bit_cast<BitLanes>(abs(z)) - 0x5f000000 <= 0x7f800000 - 0x5f000000);
    };
    large |= found(x) | found(y);
    const BitLanes x_0 = next_part<false>(x), y_0 = next_part<false>(y);
    put(0, x_0, y_0);
    const BitLanes x_1 = next_part<false>(x), y_1 = next_part<false>(y);
    put(1, x_1, y_1);
    put(2, next_part<true>(x), next_part<true>(y));
  }
}

// Packs `rows` rows, or columns, of `depth` numbers. In a tile of a left operand each row has pairs of one row's
// numbers; in one of a right operand, pairs of one column's numbers lie below each other.
template <int parts, bool is_left, bool by_rows>
RUNNEL_NOINLINE void pack_rows(BitLanes* to, TileOperand from, int64_t rows, int64_t depth) {
  BitLanes large{};
  Lanes* to_tile = reinterpret_cast<Lanes*>(to);
  for (int64_t k = 0; k < depth; k += step_depth, to_tile += (parts - 1) * 2 * tile_rows)
    for (int64_t first = 0; first < block_edge; first += tile_rows, to_tile += tile_rows) {
      const TileOperand at = from.from(first, k);
      const int64_t some = rows - first, numbers = depth - k;
#pragma GCC unroll 4
      for (int64_t i = 0; i < tile_rows; ++i)
        if constexpr (by_rows) {
          const float *const x = at.numbers + i * at.stride, *const next = x + block_edge * at.stride;
          __builtin_prefetch(next);
          __builtin_prefetch(next + lanes);
          const int64_t count = i < some ? numbers : 0;
          split<parts, true>(to_tile, i, load(x, count), load(x + lanes, count - lanes), large);
        } else {
          const float *const x = at.numbers + 2 * i * at.step, *const next = x + step_depth * at.step;
          __builtin_prefetch(next);
          __builtin_prefetch(next + at.step);
          split<parts, false>(to_tile, i, load(x, 2 * i < numbers ? some : 0),
                              load(x + at.step, 2 * i + 1 < numbers ? some : 0), large);
        }
      if constexpr (by_rows != is_left)
        for (int part = 0; part < parts; ++part)
          transpose_square(*reinterpret_cast<Lanes(*)[lanes]>(to_tile + part * 2 * tile_rows));
    }
  *reinterpret_cast<BitLanes*>(to_tile) = large;
}
template <int parts, bool is_left>
void pack_block(BitLanes* to, TileOperand from, int64_t rows, int64_t depth) {
  from.step == 1 ? pack_rows<parts, is_left, true>(to, from, rows, depth)
                 : pack_rows<parts, is_left, false>(to, from, rows, depth);
}

// 32 columns of sums [32][128] = (or +=) a b of packed blocks a of `row_tiles` tiles of rows and b of two of columns.
template <int parts, int row_tiles>
RUNNEL_AMX void multiply_tiles(float* sums, const BitLanes* a, const BitLanes* b, int64_t steps, Store how) {
  // Each pair of parts has one in common with the pair before it; of one part there is the pair 0, 0 alone.
  constexpr int first_pair = parts == 1 ? 4 : 0, pairs = parts == 1 ? 5 : 6;
  constexpr int part_of_a[] = {0, 0, 1, 1, 0, 2}, part_of_b[] = {2, 1, 1, 0, 0, 0};
  constexpr int64_t row_bytes = group_columns * sizeof(float);
  float* const lower = sums + tile_rows * group_columns;
  if (how == Store::add) {
    _tile_loadd(0, sums, row_bytes);
    _tile_loadd(1, sums + tile_rows, row_bytes);
    if constexpr (row_tiles == 2) {
      _tile_loadd(2, lower, row_bytes);
      _tile_loadd(3, lower + tile_rows, row_bytes);
    }
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int64_t k = 0; k < steps; ++k, a += step_vectors<parts>, b += step_vectors<parts>)
#pragma GCC unroll 6
    for (int i = first_pair; i < pairs; ++i) {
      const BitLanes *const rows = a + part_of_a[i] * 2 * tile_rows, *const columns = b + part_of_b[i] * 2 * tile_rows;
      if (i == first_pair || part_of_a[i] != part_of_a[i - 1]) {
        _tile_loadd(4, rows, sizeof *rows);
        if constexpr (row_tiles == 2) _tile_loadd(5, rows + tile_rows, sizeof *rows);
      }
      if (i == first_pair || part_of_b[i] != part_of_b[i - 1]) {
        _tile_loadd(6, columns, sizeof *columns);
        _tile_loadd(7, columns + tile_rows, sizeof *columns);
      }
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
      if constexpr (row_tiles == 2) {
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
      }
    }
  _tile_stored(0, sums, row_bytes);
  _tile_stored(1, sums + tile_rows, row_bytes);
  if constexpr (row_tiles == 2) {
    _tile_stored(2, lower, row_bytes);
    _tile_stored(3, lower + tile_rows, row_bytes);
  }
}

inline bool any(BitLanes x) {
  const __m512i bits = std::bit_cast<__m512i>(x);
  return _mm512_test_epi32_mask(bits, bits) != 0;
}

inline int64_t blocks(int64_t rows) { return (rows + block_edge - 1) / block_edge; }

// The sums of a product [m,n] lie in groups of 32 rows and 128 columns, [m/32][n/128][32][128]. The place of the group
// that has row i and column j:
inline int64_t group(int64_t i, int64_t j, int64_t n) {
  return (i / block_edge * ((n + group_columns - 1) / group_columns) + j / group_columns) * group_size;
}
inline int64_t sums_size(int64_t m, int64_t n) { return group(blocks(m) * block_edge, 0, n); }

// A group of a product: of a packed block of rows and of up to four packed blocks of columns, `next` vectors apart.
template <int parts>
void multiply_group(float* sums, const BitLanes* left, const BitLanes* right, int64_t next, TileOperand a,
                    TileOperand b, int64_t rows, int64_t columns, int64_t depth, Store how) {
  const int64_t last = block_vectors<parts>(depth) - 1, steps = block_steps(depth);
  BitLanes large = left[last];
  for (int64_t j = 0; j < blocks(columns); ++j) large |= right[j * next + last];
  if (parts > 1 && any(large)) {  // without parts
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t j = 0; j < columns; ++j) {
        float sum = how == Store::add ? sums[r * group_columns + j] : 0;
        for (int64_t k = 0; k < depth; ++k) sum += *a.from(r, k).numbers * *b.from(j, k).numbers;
        sums[r * group_columns + j] = sum;
      }
    return;
  }
  constexpr int64_t some = 12 / parts;  // steps of the rows stay in the first-level cache for all columns
  for (int64_t k = 0; k < steps; k += some, how = Store::add)
    for (int64_t j = 0; j < blocks(columns); ++j) {
      const int64_t offset = k * step_vectors<parts>;
      (rows > tile_rows ? multiply_tiles<parts, 2> : multiply_tiles<parts, 1>)(sums + j * block_edge, left + offset,
                                                                               right + j * next + offset,
                                                                               std::min(some, steps - k), how);
    }
}

// Packs `rows` rows, or columns, in blocks `next` vectors apart.
template <int parts, bool is_left>
void pack_blocks(BitLanes* to, int64_t next, TileOperand from, int64_t rows, int64_t depth) {
  for (int64_t i = 0; i < rows; i += block_edge, to += next)
    pack_block<parts, is_left>(to, from.from(i, 0), std::min(block_edge, rows - i), depth);
}

// A matrix b [k,n], or [n,k] if transposed, packed by all threads, as right operand. Refers to b.
class TileMatrix {
 public:
  TileMatrix(const float* b, int64_t k, int64_t n, bool transposed)
      : b_(transposed ? TileOperand{b, k, 1} : TileOperand{b, 1, n}),
        k_(k),
        n_(n),
        is_rounded_(precision() == Precision::bf16),
        memory_(blocks(n) * vectors(k) * lanes) {
    BitLanes* const to = block(0);
    parallel_for(blocks(n), k * n >= parallel_from, [=, this](int64_t j) {
      for (int64_t from = 0; from < k; from += slice_depth) {
        const TileOperand columns = b_.from(j * block_edge, from);
        const int64_t count = std::min(block_edge, n - j * block_edge), depth = std::min(slice_depth, k - from);
        BitLanes* const at = to + j * vectors(k) + vectors(from);
        is_rounded_ ? pack_block<1, false>(at, columns, count, depth) : pack_block<3, false>(at, columns, count, depth);
      }
    });
  }

  // write(r, j, count, numbers): numbers [r, j] to [r, j + count - 1] of a[m,k] this.
  template <class Write>
  void multiply(const float* a, int64_t m, Write write) const {
    is_rounded_ ? multiply_parts<1>(a, m, write) : multiply_parts<3>(a, m, write);
  }

 private:
  // Of a block of columns, each slice of which is packed by itself.
  int64_t vectors(int64_t depth) const {
    const int64_t slices = (depth + slice_depth - 1) / slice_depth;
    return block_steps(depth) * (is_rounded_ ? step_vectors<1> : step_vectors<3>)+slices;
  }
  BitLanes* block(int64_t j) const { return reinterpret_cast<BitLanes*>(memory_.data()) + j * vectors(k_); }

  template <int parts, class Write>
  void multiply_parts(const float* a, int64_t m, Write write) const {
    const int64_t next = block_vectors<parts>(std::min(k_, slice_depth));
    const Scratch memory(blocks(m) * next * lanes), sums(k_ > slice_depth ? sums_size(m, n_) : group_size);
    BitLanes* const left = reinterpret_cast<BitLanes*>(memory.data());
    const Tiles tiles;
    for (int64_t k = 0; k < k_; k += slice_depth) {
      const int64_t depth = std::min(slice_depth, k_ - k);
      const TileOperand rows{a + k, k_, 1};
      pack_blocks<parts, true>(left, next, rows, m, depth);
      for (int64_t j = 0; j < n_; j += group_columns)
        for (int64_t i = 0; i < m; i += block_edge) {
          float* const to = sums.data() + (k_ > slice_depth ? group(i, j, n_) : 0);
          const int64_t count = std::min(block_edge, m - i), columns = std::min(group_columns, n_ - j);
          multiply_group<parts>(to, left + i / block_edge * next, block(j / block_edge) + vectors(k), vectors(k_),
                                rows.from(i, 0), b_.from(j, k), count, columns, depth,
                                k == 0 ? Store::set : Store::add);
          if (k + depth == k_)
            for (int64_t r = 0; r < count; ++r) write(i + r, j, columns, to + r * group_columns);
        }
    }
  }

  TileOperand b_;
  int64_t k_, n_;
  bool is_rounded_;
  Scratch memory_;
};

// sums, in groups, = (or +=) a[rows,m]^T b[rows,n]
template <int parts>
void transposed_product_by_tiles(float* sums, const float* a, const float* b, int64_t rows, int64_t m, int64_t n,
                                 Store how) {
  const int64_t next = block_vectors<parts>(rows);
  const Scratch memory((blocks(m) + group_columns / block_edge) * next * lanes);
  BitLanes *const left = reinterpret_cast<BitLanes*>(memory.data()), *const right = left + blocks(m) * next;
  const TileOperand of_a{a, 1, m}, of_b{b, 1, n};
  const Tiles tiles;
  pack_blocks<parts, true>(left, next, of_a, m, rows);
  for (int64_t j = 0; j < n; j += group_columns) {
    const int64_t columns = std::min(group_columns, n - j);
    pack_blocks<parts, false>(right, next, of_b.from(j, 0), columns, rows);
    for (int64_t i = 0; i < m; i += block_edge)
      multiply_group<parts>(sums + group(i, j, n), left + i / block_edge * next, right, next, of_a.from(i, 0),
                            of_b.from(j, 0), std::min(block_edge, m - i), columns, rows, how);
  }
}

}  // namespace
}  // namespace runnel
#endif
