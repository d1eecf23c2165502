// y = dropout(activation(x w^T + b)), one pass over the rows of x.
//
// Several layers with one input are computed together: CUDA multiplies with all their weights at once.
//
// On the CPU, a thread processes a block of rows at a time, small enough that its products stay in the core's cache:
// forward, the product and then bias, activation and dropout of each of its rows, or pieces of them; backward, with g =
// dL/d(x w^T + b) of the block,
//   dx = g w,   dw += g^T x,   db += sum of g's rows.
// dw and db are summed up for a number of parts that depends only on the number of rows, and those are added in their
// order: the same bytes with any number of threads.
#include <algorithm>
#include <bit>
#include <deque>
#include <vector>

#include "ops/cpu/dropout.h"
#include "ops/cpu/functions.h"
#include "ops/cpu/packed_matrix.h"
#include "ops/cpu/parallel.h"
#include "ops/kernels/linear.h"
#include "ops/numerics.h"

namespace runnel {
namespace {

// Rows of each block if `rows` are divided equally into blocks of about `most` rows or fewer; a multiple of the rows
// that a product takes at once.
int64_t rows_of_block(int64_t rows, int64_t most) {
  constexpr int64_t at_once = has_large_blocks ? 32 : max_block_rows;
  const int64_t blocks = (rows + most - 1) / most, each = (rows + blocks - 1) / blocks;
  return (each + at_once - 1) / at_once * at_once;
}
constexpr int64_t rows_in_cache = has_large_blocks ? 256 : 48;

struct LayerOutputs {
  float *y, *z;  // [layers,rows,out]; z is y, or for gelu may be memory of its own
  Activation activation;
  Dropout dropout;
  bool non_temporal;
};
// Elements [at, at + n) of the outputs, from numbers of x w^T, which are in z or in memory that may be changed.
void finish(const LayerOutputs& to, int64_t at, float* numbers, const float* b, int64_t n) {
  float *const z = to.z + at, *const y = numbers == z ? to.y + at : numbers;
  if (b) accumulate(numbers, b, n);
  if (to.z != to.y && z != numbers) copy_result(z, numbers, n, to.non_temporal);
  if (to.activation == Activation::relu)
    map(
        y, n, [](Lanes x) RUNNEL_INLINE { return x <= 0 ? Lanes{} : x; }, numbers);  // NaN stays NaN
  else if (to.activation == Activation::gelu)
    map(
        y, n, [](Lanes x) RUNNEL_INLINE { return gelu_formula::forward(x); }, numbers);
  if (to.dropout.p > 0) apply_dropout(y, y, at, n, to.dropout);
  if (to.y + at != y) copy_result(to.y + at, y, n, to.non_temporal);
}

}  // namespace

void cpu::linear_forward(float* y, float* z, const float* x, const float* w, const float* b, LinearSizes s,
                         Activation activation, Dropout dropout) {
  const auto [layers, rows, out, in] = s;
  if (rows == 0 || out == 0) return;
  if (in == 0) clear(z, layers * s.outputs());
  std::deque<PackedWeights> wt;  // which cannot be moved
  for (int64_t i = 0; in > 0 && i < layers; ++i) wt.emplace_back(w + i * s.weights(), in, out, true);
  // Dropout of each piece, while it is in the first-level cache, where pieces have whole chunks of random numbers.
  const bool dropout_in_pieces = s.out % piece_columns == 0;
  const LayerOutputs outputs{y, z, activation, dropout_in_pieces ? dropout : Dropout{}, exceeds_cache(s.outputs())};
  FirstError error;
  // Several blocks also where a batch comes in small parts: else threads would have nothing to do.
  const int64_t block_rows = rows_of_block(rows, std::clamp<int64_t>(rows / 4, 48, rows_in_cache));
  parallel_for<Share::on_demand>(
      (rows + block_rows - 1) / block_rows, s.products() >= parallel_from_products, [&](int64_t index) {
        error.guard([&] {
          const int64_t first = index * block_rows, count = std::min(block_rows, s.rows - first);
          const PackedOperand operand(x + first * s.in, count * s.in);
          for (int64_t i = 0; i < s.layers; ++i) {
            const int64_t begin = i * s.outputs() + first * s.out;
            const auto write = [&](int64_t r, int64_t j, int64_t columns, float* numbers) {
              finish(outputs, begin + r * s.out + j, numbers, b ? b + i * s.out + j : nullptr, columns);
            };
            if (wt.empty())
              for (int64_t r = 0; r < count; ++r) write(r, 0, s.out, z + begin + r * s.out);
            else
              wt[static_cast<size_t>(i)].multiply(z + begin, operand, count, write);
            if (!dropout_in_pieces && dropout.p > 0) apply_dropout(y + begin, y + begin, begin, count * s.out, dropout);
          }
          store_fence();
        });
      });
  error.rethrow();
}

namespace {

struct LayerGradients {
  float *dx, *dw, *db;  // each may be null
};
struct LayerInputs {
  const float *dy, *x, *kept;
  LinearSizes sizes;
  Activation activation;
  Dropout dropout;
  bool add_dx;
};

// g of `count` rows, whose first number is number `begin` of dy: dy itself where it is that, else computed into
// `memory`.
const float* output_gradient(float* memory, const LayerInputs& of, int64_t begin, int64_t count) {
  const float* const dy = of.dy + begin;
  const int64_t n = count * of.sizes.out;
  if (of.activation == Activation::relu) {
    const float factor = 1 / (1 - of.dropout.p);  // y is 0 where it was dropped
    map(
        memory, n, [factor](Lanes g, Lanes y) RUNNEL_INLINE { return y > 0 ? factor * g : Lanes{}; }, dy,
        of.kept + begin);
    return memory;
  }
  const float* g = dy;
  if (of.dropout.p > 0) {
    apply_dropout(memory, dy, begin, n, of.dropout);
    g = memory;
  }
  if (of.activation == Activation::none) return g;
  map(
      memory, n, [](Lanes g_i, Lanes z) RUNNEL_INLINE { return g_i * gelu_formula::backward(z); }, g, of.kept + begin);
  return memory;
}

// sum [n] += the rows of x
void add_rows(float* sum, const float* x, int64_t rows, int64_t n) {
  for (; rows >= 4; rows -= 4, x += 4 * n)  // which `sum` is read for once
    map(
        sum, n, [](Lanes s, Lanes a, Lanes b, Lanes c, Lanes d) RUNNEL_INLINE { return s + ((a + b) + (c + d)); }, sum,
        x, x + n, x + 2 * n, x + 3 * n);
  for (; rows > 0; --rows, x += n) accumulate(sum, x, n);
}

// The gradients of rows [begin, end), of which those of w and b are sums.
void backward_rows(const LayerGradients& to, const LayerInputs& of, const std::deque<PackedWeights>& w, int64_t begin,
                   int64_t end) {
  const auto [layers, rows, out, in] = of.sizes;
  const int64_t block_rows = rows_of_block(end - begin, rows_in_cache);
  const Scratch g_memory(block_rows * out);
  if (to.db) clear(to.db, layers * out);
  for (int64_t first = begin; first < end; first += block_rows) {
    const int64_t count = std::min(block_rows, end - first);
    const PackedOperand x_operand(of.x + first * in, to.dw ? count * in : 0);
    for (int64_t i = 0; i < layers; ++i) {
      const float* const g = output_gradient(g_memory.data(), of, i * of.sizes.outputs() + first * out, count);
      const PackedOperand g_operand(g, count * out);
      if (to.dx) w[static_cast<size_t>(i)].multiply(to.dx + first * in, g_operand, count, of.add_dx || i > 0);
      if (to.dw)
        sum_transposed_product(to.dw + i * product_size(out, in), g_operand, x_operand, count, out, in, first > begin);
      if (to.db) add_rows(to.db + i * out, g, count, out);
    }
  }
}

}  // namespace

void cpu::linear_backward(float* dx, float* dw, float* db, const float* dy, const float* x, const float* w,
                          const float* kept, LinearSizes s, Activation activation, Dropout dropout, bool add_dx) {
  const int64_t weights = s.layers * s.weights(), biases = s.layers * s.out;
  if (s.rows == 0 || s.out == 0 || s.in == 0) {  // sums of nothing; db is overwritten below if there are numbers to add
    if (dx && !add_dx) clear(dx, s.rows * s.in);
    if (dw) clear(dw, weights);
    if (db) clear(db, biases);
    dx = dw = nullptr;
  }
  if (s.rows == 0) return;
  std::deque<PackedWeights> packed;
  for (int64_t i = 0; dx && i < s.layers; ++i) packed.emplace_back(w + i * s.weights(), s.out, s.in, false);
  // Up to four parts of about 64 rows or more, and more of 512; a power of two, so that threads have equally much to
  // do.
  const int64_t most = std::clamp<int64_t>(std::max(std::min<int64_t>(s.rows / 64, 4), s.rows / 512), 1, 16);
  const RowParts parts(s.rows, static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(most))), 1);
  const int64_t product = product_size(s.out, s.in), products = dw ? s.layers * product : 0;
  const int64_t size = (products + (db ? biases : 0) + lanes - 1) / lanes * lanes;  // aligned to vectors
  const Scratch sums(parts.count * size);
  const LayerInputs inputs{dy, x, kept, s, activation, dropout, add_dx};
  FirstError error;
  parallel_for<Share::on_demand>(parts.count, s.products() >= parallel_from_products, [&](int64_t part) {
    float* const own = sums.data() + part * size;
    error.guard([&] {
      backward_rows({dx, dw ? own : nullptr, db ? own + products : nullptr}, inputs, packed, parts.begin(part),
                    parts.end(part));
    });
  });
  error.rethrow();
  const auto add_parts = [&](float* to, int64_t offset, int64_t n) {
    copy_numbers(to, sums.data() + offset, n);
    for (int64_t part = 1; part < parts.count; ++part) accumulate(to, sums.data() + part * size + offset, n);
  };
  if (dw)
    parallel_rows(s.layers * s.out, s.in, [&](int64_t row) {
      for (int64_t j = 0; j < s.in; j += piece_columns)
        add_parts(dw + row * s.in + j, row / s.out * product + product_piece(row % s.out, j, s.in),
                  std::min(piece_columns, s.in - j));
    });
  if (db) add_parts(db, products, biases);
}

}  // namespace runnel
