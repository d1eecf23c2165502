// Tiles of 32 x 32 numbers: how they come out of global into shared memory, and their products, by halves of a block,
// two warps each.
//
// A product is d += a b, where a and b are tiles or transposed tiles; all are stored row by row. It comes in two
// arithmetics behind one interface: Float32, where each thread owns 4 x 4 numbers and multiplies and adds, and Tf32,
// where the tensor cores multiply operands of 10 bits and add in float32. Operands are rounded when they are stored,
// once, and not when they are read.
//
// Shared memory has 32 banks, and lanes that read different numbers of one bank wait for each other. The rows of a
// right operand lie `right_row` numbers apart: the tensor cores take rows t < 4 and columns g < 8 of it, and 8 t + g
// are all different banks. Those of other tiles lie `left_row` apart: ldmatrix takes four numbers of each of eight
// rows.
#pragma once
#include "cuda/launch.h"
#include "cuda/vec.h"

namespace runnel::cuda {

constexpr int tile = 32;
constexpr int left_row = tile + 4, right_row = tile + 8;
constexpr int half_block = 64;                 // threads
constexpr int block_threads = 2 * half_block;  // threads that fetch and store a tile together

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

  // Columns [column, column + 4) of a row. Columns past the width read as zero and are not written.
  template <class Position>
  __device__ Vec<4> load(Position position, int column) const {
    const T* x = at(position) + column;
    if (in_fours && column < width) return cuda::load<4>(x);
    Vec<4> values;
#pragma unroll
    for (int i = 0; i < 4; ++i) values.at[i] = column + i < width ? x[i] : 0;
    return values;
  }
  template <class Position>
  __device__ void store(Position position, int column, const Vec<4>& values) const {
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

// The part of a tile that one of `block_threads` threads is loading: 4 + 4 columns of a row. Between fetch and store
// lies the work on the tile before.
//
// Eight lanes at a time store four numbers each: 16 columns of rows r and r + 4, which are different banks if rows lie
// left_row apart.
class TileFragment {
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
  // to[row,column] = map(x); calls f(half, the four numbers stored). Elements outside were fetched as 0; if map(0) is
  // not 0, map.width says how many columns of this row exist.
  template <int stride, class Map, class F>
  __device__ void store(float* to, Map map, F f) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      Vec<4> values;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        values.at[i] = map(x_[half].at[i]);  // not under the condition: threads would diverge
        if constexpr (!Map::of_zero_is_zero)
          if (part(half) + i >= map.width) values.at[i] = 0;
      }
      cuda::store(to + row() * stride + part(half), values);
      f(half, values);
    }
  }
  // x := f(column, x) of all numbers fetched.
  template <class F>
  __device__ void change(F f) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int i = 0; i < 4; ++i) x_[half].at[i] = f(part(half) + i, x_[half].at[i]);
  }
  template <int stride, class Map>
  __device__ void store(float* to, Map map) const {
    store<stride>(to, map, [](int, const Vec<4>&) {});
  }
  // The sum over this thread's numbers of their products with those of another fragment.
  __device__ float dot(const TileFragment& other) const {
    float sum = 0;
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int i = 0; i < 4; ++i) sum += x_[half].at[i] * other.x_[half].at[i];
    return sum;
  }
  __device__ static int row() {
    const int thread = static_cast<int>(threadIdx.x);
    return thread / 32 * 8 + thread / 4 % 2 * 4 + thread / 8 % 4;
  }
  __device__ static int part(int half) { return 16 * half + 4 * (static_cast<int>(threadIdx.x) % 4); }

 private:
  template <class Position>
  __device__ void load(const HeadRows<const float>& rows, Position position, int width, int column) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int at = part(half);
      if (at < width)
        x_[half] = rows.load(position, column + at);
      else
        x_[half] = {};
    }
  }
  Vec<4> x_[2];
};

// --- products --------------------------------------------------------------------------------------------------------

// How an operand is stored; `exact`, for right operands only: rows that are not rounded yet.
enum class Operand { rows, transposed, exact };
constexpr int row_of_right(Operand right) { return right == Operand::transposed ? left_row : right_row; }

// 16 numbers of a 32 x 32 sum. Warp w of the half block owns rows [16 w, 16 w + 16), whatever the arithmetic.
class Float32 {
 public:
  __device__ static float rounded(float x) { return x; }

  __device__ void clear() {
    for (float& x : sum_) x = 0;
  }
  // += a[32,depth] b[depth,32], of which a's columns and b's rows begin at `first`; a's rows lie row_a apart
  template <Operand left, Operand right, int depth = tile, int row_a = left_row>
  __device__ void add(const float* a, const float* b, int first = 0) {
#pragma unroll 1  // with more, registers would be spilled
    for (int k = first; k < first + depth; k += 4) {
      constexpr int row_b = row_of_right(right);
      Vec<4> x[4];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        x[i] =
            cuda::load<4>(a + (left == Operand::rows ? (first_row() + i) * row_a + k : (k + i) * row_a + first_row()));
      const auto at = [&](int i, int s) { return left == Operand::rows ? x[i].at[s] : x[s].at[i]; };
#pragma unroll
      for (int outer = 0; outer < 4; ++outer) {
        const Vec<4> y = cuda::load<4>(b + (right == Operand::transposed ? (first_column() + outer) * row_b + k
                                                                         : (k + outer) * row_b + first_column()));
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
          for (int inner = 0; inner < 4; ++inner)
            if (right == Operand::transposed)
              sum_[4 * i + outer] += at(i, inner) * y.at[inner];
            else
              sum_[4 * i + inner] += at(i, outer) * y.at[inner];
      }
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
      const Vec<4> values = cuda::load<4>(from + (first_row() + r) * stride + first_column());
#pragma unroll
      for (int i = 0; i < 4; ++i) sum_[4 * r + i] = values.at[i];
    }
  }
  template <int stride>
  __device__ void store(float* to) const {
#pragma unroll
    for (int r = 0; r < 4; ++r)
      cuda::store(to + (first_row() + r) * stride + first_column(),
                  Vec<4>{{sum_[4 * r], sum_[4 * r + 1], sum_[4 * r + 2], sum_[4 * r + 3]}});
  }

 private:
  __device__ static int first_row() { return static_cast<int>(threadIdx.x) % half_block / 8 * 4; }
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
  template <Operand left, Operand right, int depth = tile, int row_a = left_row>
  __device__ void add(const float* a, const float* b, int first = 0) {
    constexpr int row_b = row_of_right(right);
    const int t = lane() % 4, g = lane() / 4;
    const float* const left_rows = a + (warp_row() + lane() % 16) * row_a + lane() / 16 * 4 + first;
    const float* const left_columns = a + (first + t) * row_a + warp_row() + g;
    const float* const right_rows = b + (first + t) * row_b + g;
    const float* const right_columns = b + (lane() / 16 * 8 + lane() % 8) * row_b + lane() / 8 % 2 * 4 + first;
#pragma unroll
    for (int k = 0; k < depth; k += 8) {
      uint32_t x[4], y[2][4];
      if constexpr (left == Operand::rows) {
        load_matrices(x, left_rows + k);
      } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) x[i] = __float_as_uint(left_columns[(k + i / 2 * 4) * row_a + i % 2 * 8]);
      }
      if constexpr (right == Operand::transposed) {
#pragma unroll
        for (int i = 0; i < 2; ++i) load_matrices(y[i], right_columns + 16 * i * row_b + k);
      } else {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const float number = right_rows[(k + i % 2 * 4) * row_b + i / 2 * 8];
          y[i / 4][i % 4] = right == Operand::exact ? to_tf32(number) : __float_as_uint(number);
        }
      }
#pragma unroll
      for (int n = 0; n < 4; ++n) mma_tf32(sum_[n], x, {y[n / 2][n % 2 * 2], y[n / 2][n % 2 * 2 + 1]});
    }
  }
  template <class F>
  __device__ void each(F f) {
#pragma unroll
    for (int n = 0; n < 4; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) f(row(i / 2), column(n) + i % 2, sum_[n][i]);
  }
  template <int stride>
  __device__ void load(const float* from) {
#pragma unroll
    for (int n = 0; n < 4; ++n)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const Vec<2> values = cuda::load<2>(from + row(half) * stride + column(n));
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
        cuda::store(to + row(half) * stride + column(n), Vec<2>{{sum_[n][2 * half], sum_[n][2 * half + 1]}});
  }

 private:
  __device__ static int lane() { return static_cast<int>(threadIdx.x) % 32; }
  __device__ static int warp_row() { return static_cast<int>(threadIdx.x) % half_block / 32 * 16; }
  __device__ static int row(int half) { return warp_row() + lane() / 4 + 8 * half; }
  __device__ static int column(int n) { return 8 * n + 2 * (lane() % 4); }

  float sum_[4][4] = {};
};

}  // namespace runnel::cuda
