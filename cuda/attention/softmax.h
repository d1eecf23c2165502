// Shared by softmax_attention.cu and lsh_attention.cu: results out_r = sum_o w_ro c_o, by tiles, whose weights are
// exponentials. The letters are those at the head of softmax_attention.cu.
#pragma once
#include <cmath>

#include "cuda/attention/tiles.h"
#include "ops/kernels/attention_sizes.h"

namespace runnel::cuda {

// A kernel's result; its rows are the queries, or the keys.
enum class SoftmaxResult { y, dq, dk, dv };
constexpr bool rows_are_keys(SoftmaxResult result) {
  return result == SoftmaxResult::dk || result == SoftmaxResult::dv;
}
constexpr bool uses_slopes(SoftmaxResult result) { return result == SoftmaxResult::dq || result == SoftmaxResult::dk; }
constexpr int softmax_rows(SoftmaxResult result) { return uses_slopes(result) ? tile : 2 * tile; }  // of a block

inline unsigned tiles(int64_t n) { return static_cast<unsigned>((n + tile - 1) / tile); }
inline float score_scale(const AttentionSizes& s) { return 1 / std::sqrt(static_cast<float>(s.e)); }

// m and sum_o e^(x_o - m) of a row whose scores x_o come a tile at a time. `lanes` lanes share a row, and what they
// know of it is the same.
template <int lanes>
struct RunningSum {
  float largest = -INFINITY, total = 0;

  // Takes in the row's next scores, of which this lane has 4 count, and replaces them by e^(x - m') for the new maximum
  // m'. Returns e^(m - m'), the factor of the sums so far.
  template <int count>
  __device__ float take(Vec<4> (&scores)[count]) {
    float new_largest = largest;
    for (const Vec<4>& four : scores)
      for (const float score : four.at) new_largest = fmaxf(new_largest, score);
    for (int distance = lanes / 2; distance > 0; distance /= 2)
      new_largest = fmaxf(new_largest, __shfl_xor_sync(all_lanes, new_largest, distance));
    const float base = new_largest == -INFINITY ? 0 : new_largest;  // as long as the row has seen no key
    const float factor = expf(largest - base);
    float sum = 0;
    for (Vec<4>& four : scores)
      for (float& score : four.at) sum += score = expf(score - base);
    for (int distance = lanes / 2; distance > 0; distance /= 2) sum += __shfl_xor_sync(all_lanes, sum, distance);
    total = total * factor + sum;
    largest = new_largest;
    return factor;
  }
};

// a and g belong to the rows, b, c and h to the other side.
struct SoftmaxOperands {
  HeadRows<const float> a, b, c, g, h;
  HeadRows<float> out;
  float scale;
  __device__ void select(int64_t sequence, int64_t heads) {
    for (auto* rows : {&a, &b, &c, &g, &h}) rows->select(sequence, heads);
    out.select(sequence, heads);
  }
};

struct Unbiased {
  __device__ float operator()(int, int, float score) const { return score; }
};

// The type of a number stored in a tile.
template <class Tile>
struct Multiplied {
  static constexpr bool of_zero_is_zero = true;
  float factor = 1;
  __device__ float operator()(float x) const { return Tile::rounded(factor * x); }
};

// A block's rows of a result, and 32 of its columns: `block_threads` threads, in two halves of two warps (tiles.h). For
// y and dv, each half has 32 rows, and b and c are brought once for both. For dq and dk there are 32 rows in all: the
// first half_block works on a b^T and then on the result, the second on g h^T and on the slopes s.
//
// While a tile is worked on, the next one is on its way.
template <class Tile, SoftmaxResult result>
class SoftmaxTiles {
 public:
  static constexpr bool online = result == SoftmaxResult::y, keys = rows_are_keys(result), slopes = uses_slopes(result);
  static constexpr int rows = softmax_rows(result);

  static SharedBytes shared_bytes(int64_t width_a, int64_t width_g) {
    SharedBytes shared;
    shared.add<float>(tiles(width_a) * rows * left_row);
    shared.add<float>(slopes ? tiles(width_g) * tile * left_row : 0);
    shared.add<float>(tile * left_row);
    shared.add<float>(slopes ? tile * left_row : 0);
    shared.add<float>(tile * right_row);
    shared.add<float>(rows * left_row);
    shared.add<float>(rows);
    for (int i = 0; i < 2; ++i) shared.add<float>(tile);
    return shared;
  }

  __device__ SoftmaxTiles(Shared& shared, const SoftmaxOperands& x)
      : x_(x),
        a_(shared.take<float>(static_cast<unsigned>(slices() * rows * left_row))),
        g_(shared.take<float>(static_cast<unsigned>(slices_g() * tile * left_row))),
        b_(shared.take<float>(tile * left_row)),
        h_(shared.take<float>(slopes ? tile * left_row : 0)),
        c_(shared.take<float>(tile * right_row)),
        weights_(shared.take<float>(rows * left_row)),
        factors_(shared.take<float>(rows)),
        ls(shared.take<float>(tile)),
        ds(shared.take<float>(tile)) {
    out_.clear();
  }

  // The row of the block of which this thread works on `columns` columns, four at a time: columns [four(i), four(i) +
  // 4) for i < columns / 4.
  static constexpr int lanes = block_threads / rows, columns = tile / lanes;
  __device__ static int row() { return static_cast<int>(threadIdx.x) / lanes; }
  __device__ static int four(int i) { return (i * lanes + lane()) * 4; }
  __device__ static int lane() { return static_cast<int>(threadIdx.x) % lanes; }  // of those that share a row
  __device__ static int first_column() { return static_cast<int>(blockIdx.y) * tile; }

  // Brings a (times `factor(position)`) and g of the block's rows, which lie at position_of(row) (-1: none).
  template <class Position, class Factor>
  __device__ void load_rows(Position position_of, Factor factor) {
    TileFragment next;
    for (int first = 0; first < rows; first += tile) {
      const int position = position_of(first + TileFragment::row());
      for (int slice = 0; slice < slices(); ++slice) {
        next.fetch_row(x_.a, position, slice * tile);
        next.store<left_row>(a_ + (slice * rows + first) * left_row, Multiplied<Tile>{factor(position)});
      }
      for (int slice = 0; slice < slices_g(); ++slice) {
        next.fetch_row(x_.g, position, slice * tile);
        next.store<left_row>(g_ + slice * tile * left_row, Multiplied<Tile>{});
      }
    }
  }

  // Starts to bring the first 32 rows of the other side, of which this thread has that at `position` (-1: none).
  __device__ void begin(int position) { fetch(position, 0); }

  // Adds what 32 rows of the other side contribute, of which this thread has that at `position`, and starts to bring
  // those that come next. b, and c for dq, are keys and multiplied with `factor`. prepare() may write ls, ds and
  // whatever else the others read: seen(r, o) says whether the query of a pair sees the key, dropout(r, o) what the
  // weight is multiplied with, biased(r, o, score) what the score of a pair that is seen becomes.
  template <class Prepare, class Seen, class Factor, class Biased = Unbiased>
  __device__ void add(int position, int next_position, float factor, Prepare prepare, Seen seen, Factor dropout,
                      Biased biased = {}) {
    Tile products;  // a b^T; for dq and dk, of the second half: g h^T
    products.clear();
    const int count = max(slices(), slices_g());
    for (int slice = 0; slice < count; ++slice) {
      __syncthreads();  // the last ones have been read
      if (slice < slices()) next_b_.store<left_row>(b_, Multiplied<Tile>{factor});
      if (slice < slices_g()) next_h_.store<left_row>(h_, Multiplied<Tile>{});
      if (slice == 0) {
        next_c_.store<right_row>(c_, Multiplied<Tile>{result == SoftmaxResult::dq ? factor : 1});
        prepare();
      }
      __syncthreads();
      slice + 1 < count ? fetch(position, slice + 1) : fetch(next_position, 0);
      if (has_weights() && slice < slices())
        products.template add<Operand::rows, Operand::transposed>(a_ + (slice * rows + half_row()) * left_row, b_);
      else if (!has_weights() && slice < slices_g())
        products.template add<Operand::rows, Operand::transposed>(g_ + slice * tile * left_row, h_);
    }
    if (has_weights()) {
      products.each([&](int row_of_half, int o, float& product) {
        const int r = half_row() + row_of_half;
        const float score = product * x_.scale;
        if constexpr (online)
          product = seen(r, o) ? biased(r, o, score) : -INFINITY;
        else
          product = seen(r, o) ? expf(biased(r, o, score) - ls[keys ? o : r]) : 0;
        if constexpr (result == SoftmaxResult::dv) product = Tile::rounded(product * dropout(r, o));
      });
      products.template store<left_row>(weights_ + half_row() * left_row);
    }
    __syncthreads();

    if constexpr (online) {
      Vec<4> own[columns / 4];
#pragma unroll
      for (int i = 0; i < columns / 4; ++i) own[i] = load<4>(weights_ + row() * left_row + four(i));
      const float rescale = sum.take(own);
#pragma unroll
      for (int i = 0; i < columns / 4; ++i) {
#pragma unroll
        for (int o = 0; o < 4; ++o) own[i].at[o] = Tile::rounded(own[i].at[o] * dropout(row(), four(i) + o));
        store(weights_ + row() * left_row + four(i), own[i]);
      }
      if (lane() == 0) factors_[row()] = rescale;
      __syncthreads();
    } else if constexpr (slopes) {
      if (!has_weights())
        products.each([&](int r, int o, float& product) {
          float& weight = weights_[r * left_row + o];
          weight = Tile::rounded(weight * (product * dropout(r, o) - ds[keys ? o : r]));
        });
      __syncthreads();
    }

    if (has_weights()) {
      if constexpr (online) out_.each([&](int r, int, float& number) { number *= factors_[half_row() + r]; });
      out_.template add<Operand::rows, Operand::rows>(weights_ + half_row() * left_row, c_);
    }
  }

  // f(column, numbers) for each four columns of the thread's row of the result; y is still to be divided by the sum.
  template <class F>
  __device__ void each_four(F f) {
    __syncthreads();
    if (has_weights()) {
      if constexpr (slopes) out_.each([&](int, int, float& number) { number *= x_.scale; });
      out_.template store<left_row>(weights_ + half_row() * left_row);
    }
    __syncthreads();
    for (int i = 0; i < columns / 4; ++i)
      if (first_column() + four(i) < x_.out.width)
        f(first_column() + four(i), load<4>(weights_ + row() * left_row + four(i)));
  }

 private:
  const SoftmaxOperands& x_;
  __device__ int slices() const { return (x_.a.width + tile - 1) / tile; }
  __device__ int slices_g() const { return slopes ? (x_.g.width + tile - 1) / tile : 0; }
  // Whether this thread's half computes weights and a result, and the first of its rows in the block.
  __device__ static bool has_weights() { return !slopes || threadIdx.x < half_block; }
  __device__ static int half_row() { return slopes || threadIdx.x < half_block ? 0 : tile; }

  __device__ void fetch(int position, int slice) {
    if (slice < slices()) next_b_.fetch_row(x_.b, position, slice * tile);
    if (slice < slices_g()) next_h_.fetch_row(x_.h, position, slice * tile);
    if (slice == 0) next_c_.fetch_row(x_.c, position, first_column());
  }

  float *const a_, *const g_, *const b_, *const h_, *const c_, *const weights_;
  float* const factors_;  // y: e^(m - m') of each row
  TileFragment next_b_, next_h_, next_c_;
  Tile out_;

 public:
  float *const ls, *const ds;  // else l and d of 32 queries
  RunningSum<lanes> sum;       // y: of the thread's row
};

// d_i = dy_i . y_i.
// Launch: a warp per query. Owns: the warp one number.
static __global__ void attention_products_kernel(float* d, const float* dy, const float* y, int64_t length,
                                                 int64_t heads, int64_t m, int64_t queries) {
  const int64_t lane = threadIdx.x % 32;
  for (int64_t i = first_element() / 32; i < queries; i += element_step() / 32) {  // [B,H,L]
    const int64_t n = i / length, at = ((n / heads * length + i % length) * heads + n % heads) * m;
    float sum = 0;
    for (int64_t c = lane; c < m; c += 32) sum += dy[at + c] * y[at + c];
    sum = warp_sum(sum);
    if (lane == 0) d[i] = sum;
  }
}

}  // namespace runnel::cuda
