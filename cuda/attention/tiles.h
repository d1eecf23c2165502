// Tiles of 32 x 32 numbers: how they come out of global into shared memory, and their products, by teams of two warps.
//
// A product is d += a b with a stored row by row, d too, and b as well, so that one kind of product is all there is:
// whoever needs a b^T or a^T b stores one of the operands transposed. It comes in two arithmetics behind one interface:
// Float32, where each thread owns 4 x 4 numbers and multiplies and adds, and Tf32, where the tensor cores multiply
// operands of 10 bits and add in float32. Operands are rounded when they are stored, once, and not when they are read.
//
// The rows of a tile lie `left_row` or `right_row` numbers apart. The tensor cores take rows g < 8 and columns t < 4 of
// a left operand, and rows t and columns g of a right one: 4 g + t and 8 t + g are all different banks.
#pragma once
#include "cuda/launch.h"
#include "cuda/piece.h"

namespace runnel::cuda {

constexpr int tile = 32;
constexpr int left_row = tile + 4, right_row = tile + 8;
constexpr int team = 64;           // threads
constexpr int loaders = 2 * team;  // threads that fetch and store a tile together

// --- sequences in global memory --------------------------------------------------------------------------------------

// HeadRows of one head of x [B,L,H,width], read from the left or from the right: `position` counts from where one
// starts.
template <class T>
struct HeadRows {
  T* data;
  int64_t batch;  // numbers from one batch entry to the next
  int step;       // and from one position to the next
  int width;
  bool in_fours;

  HeadRows() = default;
  HeadRows(T* x, int64_t length, int64_t heads, int64_t columns, bool from_the_right = false)
      : data(from_the_right ? x + (length - 1) * heads * columns : x),
        batch(length * heads * columns),
        step(static_cast<int>(from_the_right ? -heads * columns : heads * columns)),
        width(static_cast<int>(columns)),
        in_fours(cuda::in_fours(columns, x)) {}

  // Counts positions from `begin` on; then they may be of type int, which takes fewer registers.
  __device__ void select(int64_t sequence, int64_t heads, int64_t begin = 0) {
    data += sequence / heads * batch + sequence % heads * width + begin * step;
  }
  template <class Position>
  __device__ T* at(Position position) const {
    return data + static_cast<int64_t>(position) * step;
  }

  // Columns [column, column + 4) of a row. What lies past the width reads as zero and is not written.
  template <class Position>
  __device__ Piece<4> load(Position position, int column) const {
    const T* x = at(position) + column;
    if (in_fours && column < width) return cuda::load<4>(x);
    Piece<4> values;
#pragma unroll
    for (int i = 0; i < 4; ++i) values.at[i] = column + i < width ? x[i] : 0;
    return values;
  }
  template <class Position>
  __device__ void store(Position position, int column, const Piece<4>& values) const {
    T* x = at(position) + column;
    if (in_fours && column < width) {
      cuda::store(x, values);
      return;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (column + i < width) x[i] = values.at[i];
  }
};

// Clears the rows of x [B,length,row] from lengths[b] on (null: none).
// Launch: a thread per number. Owns: this number. Shared: none.
static __global__ void clear_padding_kernel(float* x, const int32_t* lengths, int64_t length, int64_t row, int64_t n) {
  for (int64_t i = first_element(); i < n; i += element_step())
    if (i / row % length >= lengths[i / row / length]) x[i] = 0;
}
inline void clear_padding(float* x, const int32_t* lengths, int64_t batch, int64_t length, int64_t row) {
  const int64_t n = batch * length * row;
  if (lengths) launch("clear_padding", clear_padding_kernel, over(n), x, lengths, length, row, n);
}

// What one of `loaders` threads holds of a tile on its way: columns [4 c, 4 c + 4) and [16 + 4 c, 16 + 4 c + 4) of row
// r, where r = thread / 4 and c = thread % 4. Between fetch and store lies the work on the tile before.
class Fetched {
 public:
  // Positions [first, first + 32) and columns [column, column + 32); positions from `end` on are zero.
  template <class Position>
  __device__ void fetch(const HeadRows<const float>& rows, Position first, Position end, int column) {
    const Position position = first + row();
    load(rows, position, position < end ? rows.width - column : 0, column);
  }
  // The same where each thread knows the position of its row; -1 for none.
  __device__ void fetch_row(const HeadRows<const float>& rows, int64_t position, int column) {
    load(rows, position, position >= 0 ? rows.width - column : 0, column);
  }
  // to[row,column] = map(x), or, transposed, to[column,row] = map(x); zero where there is nothing.
  template <int stride, class Map>
  __device__ void store(float* to, Map map) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) cuda::store(to + row() * stride + part(half), mapped(half, map));
  }
  template <int stride, class Map>
  __device__ void store_transposed(float* to, Map map) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const Piece<4> values = mapped(half, map);
#pragma unroll
      for (int i = 0; i < 4; ++i) to[(part(half) + i) * stride + row()] = values.at[i];
    }
  }
  __device__ static int row() { return static_cast<int>(threadIdx.x) / 4; }

 private:
  __device__ static int part(int half) { return 16 * half + 4 * (static_cast<int>(threadIdx.x) % 4); }
  template <class Map>
  __device__ Piece<4> mapped(int half, Map map) const {
    Piece<4> values;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      values.at[i] = map(x_[half].at[i]);  // not under the condition: threads would diverge
      if (!Map::of_zero_is_zero && part(half) + i >= width_) values.at[i] = 0;
    }
    return values;
  }
  template <class Position>
  __device__ void load(const HeadRows<const float>& rows, Position position, int width, int column) {
    width_ = width;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int at = part(half);
      if (at < width_)
        x_[half] = rows.load(position, column + at);
      else
        x_[half] = {};
    }
  }
  Piece<4> x_[2];
  int width_;
};

// --- products --------------------------------------------------------------------------------------------------------

enum class Right { rounded, exact };  // is the right operand as `rounded` leaves it, or still to be rounded?

// 16 numbers of a 32 x 32 sum. Warp w of the team owns rows [16 w, 16 w + 16), whatever the arithmetic.
class Float32 {
 public:
  __device__ static float rounded(float x) { return x; }

  __device__ void clear() {
    for (float& x : sum_) x = 0;
  }
  // += a[32,depth] b[depth,32]
  template <int row_b = right_row, int depth = tile, Right = Right::rounded>
  __device__ void add(const float* a, const float* b) {
    const float *rows = a + first_row() * left_row, *columns = b + first_column();
#pragma unroll 2
    for (int k = 0; k < depth; k += 4) {
      Piece<4> x[4], y[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) x[i] = cuda::load<4>(rows + i * left_row + k);
#pragma unroll
      for (int i = 0; i < 4; ++i) y[i] = cuda::load<4>(columns + (k + i) * row_b);
#pragma unroll
      for (int s = 0; s < 4; ++s)
#pragma unroll
        for (int i = 0; i < 16; ++i) sum_[i] += x[i / 4].at[s] * y[s].at[i % 4];
    }
  }
  // f(row, column, number)
  template <class F>
  __device__ void each(F f) {
#pragma unroll
    for (int i = 0; i < 16; ++i) f(first_row() + i / 4, first_column() + i % 4, sum_[i]);
  }
  template <int stride>
  __device__ void load(const float* from) {
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const Piece<4> values = cuda::load<4>(from + (first_row() + r) * stride + first_column());
#pragma unroll
      for (int i = 0; i < 4; ++i) sum_[4 * r + i] = values.at[i];
    }
  }
  template <int stride>
  __device__ void store(float* to) const {
#pragma unroll
    for (int r = 0; r < 4; ++r)
      cuda::store(to + (first_row() + r) * stride + first_column(),
                  Piece<4>{{sum_[4 * r], sum_[4 * r + 1], sum_[4 * r + 2], sum_[4 * r + 3]}});
  }

 private:
  __device__ static int first_row() { return static_cast<int>(threadIdx.x) % team / 8 * 4; }
  __device__ static int first_column() { return static_cast<int>(threadIdx.x) % 8 * 4; }

  float sum_[16] = {};
};

class Tf32 {
 public:
  __device__ static float rounded(float x) { return __uint_as_float(to_tf32(x)); }

  __device__ void clear() {
    for (auto& d : sum_)
      for (float& x : d) x = 0;
  }
  template <int row_b = right_row, int depth = tile, Right right = Right::rounded>
  __device__ void add(const float* a, const float* b) {
    const float* const quarter_row = a + (first_row() - lane() / 4 + lane() % 16) * left_row + lane() / 16 * 4;
    const float* const columns = b + lane() % 4 * row_b + lane() / 4;
#pragma unroll
    for (int k = 0; k < depth; k += 8) {
      uint32_t x[4];
      load_matrices(x, quarter_row + k);
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const float first = columns[k * row_b + 8 * n], second = columns[(k + 4) * row_b + 8 * n];
        const bool exact = right == Right::exact;
        const uint32_t y[2] = {exact ? to_tf32(first) : __float_as_uint(first),
                               exact ? to_tf32(second) : __float_as_uint(second)};
        mma_tf32(sum_[n], x, y);
      }
    }
  }
  template <class F>
  __device__ void each(F f) {
#pragma unroll
    for (int n = 0; n < 4; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) f(first_row() + 8 * (i / 2), 8 * n + 2 * (lane() % 4) + i % 2, sum_[n][i]);
  }
  template <int stride>
  __device__ void load(const float* from) {
#pragma unroll
    for (int n = 0; n < 4; ++n)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const Piece<2> values = cuda::load<2>(from + pair<stride>(n, half));
        sum_[n][2 * half] = values.at[0];
        sum_[n][2 * half + 1] = values.at[1];
      }
  }
  template <int stride>
  __device__ void store(float* to) const {
#pragma unroll
    for (int n = 0; n < 4; ++n)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        cuda::store(to + pair<stride>(n, half), Piece<2>{{sum_[n][2 * half], sum_[n][2 * half + 1]}});
  }

 private:
  __device__ static int lane() { return static_cast<int>(threadIdx.x) % 32; }
  __device__ static int first_row() { return static_cast<int>(threadIdx.x) % team / 32 * 16 + lane() / 4; }
  template <int stride>
  __device__ static int pair(int n, int half) {
    return (first_row() + 8 * half) * stride + 8 * n + 2 * (lane() % 4);
  }

  float sum_[4][4] = {};
};

}  // namespace runnel::cuda
