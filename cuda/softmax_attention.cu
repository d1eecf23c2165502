// Softmax attention in tiles (eq. 2). ops/softmax_attention.cpp has the derivation; with x_ij = q_i . k_j / sqrt(E) and
// what forward keeps, l_i = log sum_j e^x_ij, p_ij = e^(x_ij - l_i), the four results are
//
//   y_i  = sum_j p_ij v_j                              found with a running maximum and sum, since l_i is not known yet
//   dq_i = sum_j s_ij k_j / sqrt(E)                    s_ij = p_ij (dy_i . v_j - d_i),   d_i = dy_i . y_i
//   dk_j = sum_i s_ij q_i / sqrt(E)
//   dv_j = sum_i p_ij dy_i
//
// Each is out_r = sum_o w_ro c_o, where r runs over the 32 rows that a block owns and o over those on the other side,
// 32 at a time: a block has 32 columns of the result and computes the weights itself, from a_r . b_o (and, for s, from
// g_r . h_o). Two teams of two warps (tiles.h) work side by side: the first on a b^T and then on out, the second on
// g h^T and on s.
#include <cmath>

#include "cuda/softmax.h"
#include "cuda/temporary.h"
#include "engine/numerics.h"
#include "ops/kernels.h"

namespace runnel::cuda {
namespace {

struct Attention {
  Rows<const float> a, b, c, g, h;
  Rows<float> out;
  float* l;                // [B,H,L]: written for y, else read
  const float* d;          // [B,H,L]
  const int32_t* lengths;  // [B], or null
  AttentionSizes sizes;
  float scale;
};

template <class Tile>
struct Stored {
  __device__ float operator()(float x) const { return Tile::rounded(x); }
};

// Launch: x: sequences times tiles of rows, y: tiles of 32 columns of the result; `loaders` threads.
// Owns:   the block 32 rows and columns of the result; where it works on rows of the weights, a thread a quarter of
//         one.
// Shared: shared_tiles.
template <class Tile, Result result>
__global__ void __launch_bounds__(loaders) softmax_attention_kernel(Attention x) {
  constexpr bool online = result == Result::y, keys = rows_are_keys(result), slopes = uses_slopes(result);
  const int slices = (x.a.width + tile - 1) / tile, slices_g = slopes ? (x.g.width + tile - 1) / tile : 0;

  Shared shared;
  float* const a = shared.take<float>(static_cast<unsigned>(slices * tile * left_row));
  float* const g = shared.take<float>(static_cast<unsigned>(slices_g * tile * left_row));
  float* const bt = shared.take<float>(tile * left_row);
  float* const ht = shared.take<float>(slopes ? tile * left_row : 0);
  float* const c = shared.take<float>(tile * right_row);
  float* const weights = shared.take<float>(tile * left_row);
  float* const factors = shared.take<float>(tile);  // y: e^(m - m') of each row
  float* const ls = shared.take<float>(tile);       // else l and d of each query
  float* const ds = shared.take<float>(tile);

  const AttentionSizes& s = x.sizes;
  const int64_t length = keys ? s.key_length : s.length, others = keys ? s.length : s.key_length;
  const int64_t row_tiles = (length + tile - 1) / tile;
  const int64_t n = blockIdx.x / row_tiles, first = blockIdx.x % row_tiles * tile;
  const int first_column = static_cast<int>(blockIdx.y) * tile;
  for (auto* rows : {&x.a, &x.b, &x.c, &x.g, &x.h}) rows->select(n, s.heads);
  x.out.select(n, s.heads);
  const float* const l = x.l + n * s.length;
  const float* const d = slopes ? x.d + n * s.length : nullptr;

  // Keys [0, key_end) may be seen; the other side's rows [begin, end) matter.
  const int64_t key_end = x.lengths ? x.lengths[n / s.heads] : s.key_length;
  const int64_t begin = keys && s.causal ? first : 0;
  const int64_t end = keys ? (first < key_end ? others : begin) : s.causal ? min(key_end, first + tile) : key_end;

  const int thread = static_cast<int>(threadIdx.x), row = thread / 4, part = thread % 4 * 8;
  const bool first_team = thread < team;
  const Stored<Tile> stored{};

  Fetched next;
  for (int slice = 0; slice < slices; ++slice) {
    next.fetch(x.a, first, length, slice * tile);
    next.store<left_row>(a + slice * tile * left_row, stored);
  }
  for (int slice = 0; slice < slices_g; ++slice) {
    next.fetch(x.g, first, length, slice * tile);
    next.store<left_row>(g + slice * tile * left_row, stored);
  }
  const auto load_queries = [&](int64_t from) {  // their l and d
    if (thread >= tile) return;
    ls[thread] = from + thread < s.length ? l[from + thread] : 0;
    if constexpr (slopes) ds[thread] = from + thread < s.length ? d[from + thread] : 0;
  };
  if constexpr (!online && !keys) load_queries(first);

  RunningSum sum;      // y: of the thread's row
  Tile products, out;  // first team: a b^T, and the result; second: g h^T
  out.clear();
  for (int64_t other = begin; other < end; other += tile) {
    products.clear();
    for (int slice = 0; slice < max(slices, slices_g); ++slice) {
      __syncthreads();  // the last ones have been read
      if (slice < slices) {
        next.fetch(x.b, other, others, slice * tile);
        next.store_transposed<left_row>(bt, stored);
      }
      if (slice < slices_g) {
        next.fetch(x.h, other, others, slice * tile);
        next.store_transposed<left_row>(ht, stored);
      }
      if (slice == 0) {
        next.fetch(x.c, other, others, first_column);
        next.store<right_row>(c, stored);
        if constexpr (keys) load_queries(other);
      }
      __syncthreads();
      if (first_team && slice < slices)
        products.template add<left_row>(a + slice * tile * left_row, bt);
      else if (!first_team && slice < slices_g)
        products.template add<left_row>(g + slice * tile * left_row, ht);
    }
    if (first_team) {
      products.each([&](int r, int o, float& product) {
        const int64_t query = keys ? other + o : first + r, key = keys ? first + r : other + o;
        const bool seen = key < key_end && query < s.length && (!s.causal || key <= query);
        const float score = product * x.scale;
        if constexpr (online)
          product = seen ? score : -INFINITY;
        else
          product = seen ? expf(score - ls[keys ? o : r]) : 0;
        if constexpr (result == Result::dv) product = Tile::rounded(product);
      });
      products.template store<left_row>(weights);
    }
    __syncthreads();

    if constexpr (online) {
      const float factor = sum.template take<Tile>(weights + row * left_row + part);
      if (part == 0) factors[row] = factor;
      __syncthreads();
    } else if constexpr (slopes) {
      if (!first_team)
        products.each([&](int r, int o, float& product) {
          float& weight = weights[r * left_row + o];
          weight = Tile::rounded(weight * (product - ds[keys ? o : r]));
        });
      __syncthreads();
    }

    if (first_team) {
      if constexpr (online) out.each([&](int r, int, float& number) { number *= factors[r]; });
      out.template add<right_row>(weights, c);
    }
  }
  __syncthreads();

  if constexpr (online) {
    if (part == 0) factors[row] = sum.total > 0 ? 1 / sum.total : 0;
    __syncthreads();
    if (part == 0 && blockIdx.y == 0 && first + row < length)
      x.l[n * s.length + first + row] = sum.largest + logf(sum.total);
  }
  if (first_team) {
    out.each([&](int r, int, float& number) {
      if constexpr (online) number *= factors[r];
      if constexpr (slopes) number *= x.scale;
    });
    out.template store<left_row>(weights);
  }
  __syncthreads();
  if (first + row < length)
    for (int i = 0; i < 8; i += 4)
      if (first_column + part + i < x.out.width)
        x.out.store(first + row, first_column + part + i, load<4>(weights + row * left_row + part + i));
}

constexpr int step_threads = 128;
constexpr int most_columns = 8;  // of v, of a thread: up to 256 in all

// One query against the keys [0, position], the last of which it brings itself. Keys are kept as columns.
// Launch: a block per sequence.
// Owns:   of 128 positions at a time, a thread one score; of their values, a warp every fourth row and a lane every
//         32nd column.
// Shared: q; the exponentials of 128 scores; the sums of each warp.
__global__ void __launch_bounds__(step_threads, 4)
    softmax_attention_step_kernel(float* y, float* k_cache, float* v_cache, const float* q, const float* k,
                                  const float* v, const int32_t* position, int64_t capacity, int64_t e, int64_t m,
                                  float scale) {
  constexpr int warps = step_threads / 32;
  Shared shared;
  float* const queries = shared.take<float>(static_cast<unsigned>(e));
  float* const weights = shared.take<float>(step_threads);
  float* const sums = shared.take<float>(static_cast<unsigned>(warps * m));
  float* const scratch = shared.take<float>(32);

  const int64_t n = blockIdx.x, last = position[0];
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  k_cache += n * e * capacity, v_cache += n * capacity * m;
  q += n * e, k += n * e, v += n * m, y += n * m;
  for (int64_t c = thread; c < e; c += step_threads) {
    queries[c] = scale * q[c];
    k_cache[c * capacity + last] = k[c];
  }
  for (int64_t c = thread; c < m; c += step_threads) v_cache[last * m + c] = v[c];
  __syncthreads();

  float largest = -INFINITY, total = 0, sum[most_columns] = {};
  for (int64_t first = 0; first <= last; first += step_threads) {
    const int64_t own = first + thread;
    float score = -INFINITY;
    if (own <= last) {
      score = 0;
      for (int64_t c = 0; c < e; ++c) score += queries[c] * k_cache[c * capacity + own];
    }
    __syncthreads();  // scratch and weights have been read
    const float warp_largest = warp_max(score);
    if (lane == 0) scratch[warp] = warp_largest;
    __syncthreads();
    float new_largest = largest;
    for (int w = 0; w < warps; ++w) new_largest = fmaxf(new_largest, scratch[w]);
    const float factor = expf(largest - new_largest), weight = expf(score - new_largest);
    largest = new_largest;
    weights[thread] = weight;
    total = total * factor + weight;  // of this thread's positions
    __syncthreads();
#pragma unroll
    for (float& x : sum) x *= factor;
    const int count = static_cast<int>(min(static_cast<int64_t>(step_threads), last + 1 - first));
    for (int j = warp; j < count; j += warps)
#pragma unroll
      for (int i = 0; i < most_columns; ++i)
        if (i * 32 + lane < m) sum[i] += weights[j] * v_cache[(first + j) * m + i * 32 + lane];
  }
  total = block_sum(total, scratch);
#pragma unroll
  for (int i = 0; i < most_columns; ++i)
    if (i * 32 + lane < m) sums[warp * m + i * 32 + lane] = sum[i];
  __syncthreads();
  for (int64_t c = thread; c < m; c += step_threads) {
    float all = 0;
    for (int w = 0; w < warps; ++w) all += sums[w * m + c];
    y[c] = all / total;
  }
}

template <Result result>
void launch_attention(const Attention& x) {
  const AttentionSizes& s = x.sizes;
  const bool keys = rows_are_keys(result);
  launch(
      "softmax_attention",
      precision() == Precision::f32 ? softmax_attention_kernel<Float32, result>
                                    : softmax_attention_kernel<Tf32, result>,
      Grid{dim3(static_cast<unsigned>(s.batch * s.heads) * tiles(keys ? s.key_length : s.length), tiles(x.out.width)),
           dim3(loaders), shared_tiles(result, x.a.width, x.g.width).bytes()},
      x);
}

}  // namespace

void softmax_attention_forward(float* y, float* l, const float* q, const float* k, const float* v,
                               const int32_t* lengths, AttentionSizes s) {
  Attention x{};
  x.a = Rows<const float>(q, s.length, s.heads, s.e);
  x.b = Rows<const float>(k, s.key_length, s.heads, s.e);
  x.c = Rows<const float>(v, s.key_length, s.heads, s.m);
  x.out = Rows<float>(y, s.length, s.heads, s.m);
  x.l = l;
  x.lengths = lengths;
  x.sizes = s;
  x.scale = 1 / std::sqrt(static_cast<float>(s.e));
  launch_attention<Result::y>(x);
}

void softmax_attention_backward(float* dq, float* dk, float* dv, const float* dy, const float* y, const float* l,
                                const float* q, const float* k, const float* v, const int32_t* lengths,
                                AttentionSizes s) {
  const int64_t queries = s.batch * s.heads * s.length;
  const Temporary<float> d(queries);
  launch("softmax_attention", attention_products_kernel, over(32 * queries), d.data(), dy, y, s.length, s.heads, s.m,
         queries);
  const Rows<const float> q_rows(q, s.length, s.heads, s.e), dy_rows(dy, s.length, s.heads, s.m);
  const Rows<const float> k_rows(k, s.key_length, s.heads, s.e), v_rows(v, s.key_length, s.heads, s.m);
  Attention x{};
  x.l = const_cast<float*>(l);  // only forward writes it
  x.d = d.data();
  x.lengths = lengths;
  x.sizes = s;
  x.scale = 1 / std::sqrt(static_cast<float>(s.e));
  x.a = q_rows, x.b = k_rows, x.g = dy_rows, x.h = v_rows, x.c = k_rows;
  x.out = Rows<float>(dq, s.length, s.heads, s.e);
  launch_attention<Result::dq>(x);
  x.a = k_rows, x.b = q_rows, x.g = v_rows, x.h = dy_rows, x.c = q_rows;
  x.out = Rows<float>(dk, s.key_length, s.heads, s.e);
  launch_attention<Result::dk>(x);
  x.c = dy_rows;
  x.out = Rows<float>(dv, s.key_length, s.heads, s.m);
  launch_attention<Result::dv>(x);
}

void softmax_attention_step(float* y, float* k_cache, float* v_cache, const float* q, const float* k, const float* v,
                            const int32_t* position, int64_t sequences, int64_t capacity, int64_t e, int64_t m) {
  const size_t shared =
      SharedBytes().add<float>(e).add<float>(step_threads).add<float>(step_threads / 32 * m).add<float>(32).bytes();
  launch("softmax_attention_step", softmax_attention_step_kernel,
         Grid{dim3(static_cast<unsigned>(sequences)), dim3(step_threads), shared}, y, k_cache, v_cache, q, k, v,
         position, capacity, e, m, 1 / std::sqrt(static_cast<float>(e)));
}

}  // namespace runnel::cuda
