// Softmax attention with a bias of the scores. ops/cpu/lra/biased_softmax_attention.cpp says what is computed; y,
// dq, dk and dv are those at the head of softmax_attention.cu, by SoftmaxTiles. The gradient of the bias is made of the
// slopes s_ij: a block of threads owns 32 x 32 of its numbers and adds up those of the sequences that share them, one
// after another.
#include "cuda/attention/softmax.h"
#include "cuda/temporary.h"
#include "ops/kernels/lra.h"
#include "ops/numerics.h"

namespace runnel::cuda {
namespace {

struct BiasedSoftmaxArguments : SoftmaxOperands {
  float* l;                // [B,H,L]: written for y, else read
  const float* d;          // [B,H,L]
  const int32_t* lengths;  // [B], or null
  AttentionSizes sizes;
  AttentionBias bias;

  __device__ const float* bias_of(int64_t n) const {
    return bias.data + (bias.is_shared ? n % sizes.heads : n) * bias.rows * bias.columns;
  }
  __device__ int seen_keys(int64_t n) const {
    return lengths ? lengths[n / sizes.heads] : static_cast<int>(sizes.key_length);
  }
};

// Launch: x: sequences times blocks of rows, y: tiles of 32 columns of the result; `block_threads` threads.
// Owns:   the block its rows and columns of the result; where it works on rows of the weights, a thread a part of one.
// Shared: SoftmaxTiles.
template <class Tile, SoftmaxResult result>
__global__ void __launch_bounds__(block_threads, 3) biased_softmax_attention_kernel(BiasedSoftmaxArguments x) {
  using Block = SoftmaxTiles<Tile, result>;
  constexpr bool online = Block::online, keys = Block::keys, slopes = Block::slopes;
  const AttentionSizes& s = x.sizes;
  const int queries = static_cast<int>(s.length), all_keys = static_cast<int>(s.key_length);
  const int length = keys ? all_keys : queries;
  const int row_blocks = (length + Block::rows - 1) / Block::rows;
  const int n = static_cast<int>(blockIdx.x) / row_blocks;
  const int first = static_cast<int>(blockIdx.x) % row_blocks * Block::rows;
  x.select(n, s.heads);
  const float* const l = x.l + n * s.length;
  const float* const d = slopes ? x.d + n * s.length : nullptr;
  const float* const bias = x.bias_of(n);

  Shared shared;
  Block block(shared, x);
  const int key_end = x.seen_keys(n), end = !keys ? key_end : first < key_end ? queries : 0;
  const auto load_queries = [&](int from) {  // their l and d
    const int thread = static_cast<int>(threadIdx.x);
    if (thread >= tile) return;
    block.ls[thread] = from + thread < queries ? l[from + thread] : 0;
    if constexpr (slopes) block.ds[thread] = from + thread < queries ? d[from + thread] : 0;
  };
  const int position = first + block.row();
  block.load_rows([&](int row) { return first + row < length ? first + row : -1; }, [](int) { return 1.0f; });
  if constexpr (!online && !keys) load_queries(first);
  const auto position_at = [&](int other) {
    return other + TileFragment::row() < end ? other + TileFragment::row() : -1;
  };
  block.begin(position_at(0));
  for (int other = 0; other < end; other += tile)
    block.add(
        position_at(other), position_at(other + tile), 1,
        [&] {
          if constexpr (keys) load_queries(other);
        },
        [&](int r, int o) {
          const int query = keys ? other + o : first + r, key = keys ? first + r : other + o;
          return query < queries && key < key_end;
        },
        [](int, int) { return 1.0f; },
        [&](int r, int o, float score) {
          const int query = keys ? other + o : first + r, key = keys ? first + r : other + o;
          return score + bias[query * x.bias.columns + key];
        });

  const bool sees_nothing = online && block.sum.total == 0;
  if constexpr (online)
    if (block.lane() == 0 && blockIdx.y == 0 && position < length)
      x.l[n * s.length + position] = sees_nothing ? INFINITY : block.sum.largest + logf(block.sum.total);
  block.each_four([&](int column, Vec<4> numbers) {
    if constexpr (online)
      for (float& number : numbers.at) number *= sees_nothing ? 0 : 1 / block.sum.total;
    if (position < length) x.out.store(position, column, numbers);
  });
}

// The gradient of the bias. a, b, g and h are q, k, dy and v.
// Launch: x: matrices of the bias times tiles of 32 x 32; two halves.
// Owns:   the block one tile. The first half computes the weights, the second one the slopes and their sum.
// Shared: 32 rows of a slice of q, k, dy and v each; the weights.
template <class Tile>
__global__ void __launch_bounds__(block_threads, 3)
    biased_softmax_attention_bias_kernel(float* dbias, BiasedSoftmaxArguments x) {
  const AttentionSizes& s = x.sizes;
  const int rows = static_cast<int>(x.bias.rows), columns = static_cast<int>(x.bias.columns);
  const int across = (columns + tile - 1) / tile, each = (rows + tile - 1) / tile * across;
  const int matrix = static_cast<int>(blockIdx.x) / each, number = static_cast<int>(blockIdx.x) % each;
  const int first = number / across * tile, first_key = number % across * tile;
  const int queries = static_cast<int>(s.length), sequences = static_cast<int>(s.sequences());
  const int matrices = x.bias.is_shared ? static_cast<int>(s.heads) : sequences;
  const bool is_first = threadIdx.x < half_block;
  const float* const bias = x.bias_of(matrix);

  Shared shared;
  float* const a = shared.take<float>(tile * left_row);
  float* const b = shared.take<float>(tile * left_row);
  float* const g = shared.take<float>(tile * left_row);
  float* const h = shared.take<float>(tile * left_row);
  float* const weights = shared.take<float>(tile * left_row);
  TileFragment next;
  const auto bring = [&](float* to, const HeadRows<const float>& from, int position, int end, int column) {
    next.fetch(from, position, end, column);
    next.store<left_row>(to, Multiplied<Tile>{});
  };

  Tile products;          // of the first half: q k^T, of the second one: dy v^T
  float totals[16] = {};  // of the second half, in the order of Tile::each
  for (int n = matrix; n < sequences && first < queries; n += matrices) {
    const int key_end = x.seen_keys(n);
    if (first_key >= key_end) continue;
    SoftmaxOperands own = x;
    own.select(n, s.heads);
    products.clear();
    for (int slice = 0; slice < max(own.a.width, own.g.width); slice += tile) {
      __syncthreads();  // the last ones have been read
      if (slice < own.a.width) {
        bring(a, own.a, first, queries, slice);
        bring(b, own.b, first_key, key_end, slice);
      }
      if (slice < own.g.width) {
        bring(g, own.g, first, queries, slice);
        bring(h, own.h, first_key, key_end, slice);
      }
      __syncthreads();
      if (slice < (is_first ? own.a.width : own.g.width))
        products.template add<Operand::rows, Operand::transposed>(is_first ? a : g, is_first ? b : h);
    }
    const int64_t query_at = n * s.length + first;
    if (is_first) {
      products.each([&](int r, int o, float& product) {
        const int query = first + r, key = first_key + o;
        product = query < queries && key < key_end
                      ? expf(product * x.scale + bias[query * x.bias.columns + key] - x.l[query_at + r])
                      : 0;
      });
      products.template store<left_row>(weights);
    }
    __syncthreads();
    if (is_first) continue;
    int i = 0;
    products.each([&](int r, int o, float& product) {
      totals[i++] += first + r < queries ? weights[r * left_row + o] * (product - x.d[query_at + r]) : 0;
    });
  }
  if (is_first) return;
  int i = 0;
  products.each([&](int r, int o, float&) {
    if (first + r < rows && first_key + o < columns)
      dbias[(matrix * x.bias.rows + first + r) * columns + first_key + o] = totals[i];
    ++i;
  });
}

template <SoftmaxResult result>
void launch_attention(const BiasedSoftmaxArguments& x) {
  const AttentionSizes& s = x.sizes;
  const int64_t length = rows_are_keys(result) ? s.key_length : s.length, rows = softmax_rows(result);
  launch("biased_softmax_attention",
         precision() == Precision::f32 ? biased_softmax_attention_kernel<Float32, result>
                                       : biased_softmax_attention_kernel<Tf32, result>,
         Grid{dim3(static_cast<unsigned>(s.sequences() * ((length + rows - 1) / rows)), tiles(x.out.width)),
              dim3(block_threads), SoftmaxTiles<Float32, result>::shared_bytes(x.a.width, x.g.width).bytes()},
         x);
}

BiasedSoftmaxArguments arguments(const float* l, const AttentionBias& bias, const int32_t* lengths,
                                 const AttentionSizes& s) {
  BiasedSoftmaxArguments x{{}, const_cast<float*>(l), nullptr, lengths, s, bias};  // only forward writes l
  x.scale = s.e > 0 ? score_scale(s) : 1;
  return x;
}

// The rows of q and k; without them, rows of one zero, the same for all positions.
class ScoreRows {
 public:
  explicit ScoreRows(const AttentionSizes& s) : s_(s), zeros_(s.e > 0 ? 0 : s.heads) {
    if (zeros_.data())
      check_cuda(cudaMemsetAsync(zeros_.data(), 0, static_cast<size_t>(s.heads) * sizeof(float), stream()),
                 "biased_softmax_attention");
  }
  HeadRows<const float> operator()(const float* x, int64_t length) const {
    if (s_.e > 0) return {x, length, s_.heads, s_.e};
    HeadRows<const float> rows(zeros_.data(), length, s_.heads, 1);
    rows.batch = rows.step = 0;
    return rows;
  }

 private:
  const AttentionSizes& s_;
  Temporary<float> zeros_;
};

}  // namespace

void biased_softmax_attention_forward(float* y, float* l, const float* q, const float* k, const float* v,
                                      AttentionBias bias, const int32_t* lengths, AttentionSizes s) {
  const ScoreRows rows(s);
  BiasedSoftmaxArguments x = arguments(l, bias, lengths, s);
  x.a = rows(q, s.length);
  x.b = rows(k, s.key_length);
  x.c = HeadRows<const float>(v, s.key_length, s.heads, s.m);
  x.out = HeadRows<float>(y, s.length, s.heads, s.m);
  launch_attention<SoftmaxResult::y>(x);
}

void biased_softmax_attention_backward(float* dq, float* dk, float* dv, float* dbias, const float* dy, const float* y,
                                       const float* l, const float* q, const float* k, const float* v,
                                       AttentionBias bias, const int32_t* lengths, AttentionSizes s) {
  const int64_t queries = s.sequences() * s.length;
  const Temporary<float> d(queries);
  launch("biased_softmax_attention", attention_products_kernel, over(32 * queries), d.data(), dy, y, s.length, s.heads,
         s.m, queries);
  const ScoreRows rows(s);
  const HeadRows<const float> q_rows = rows(q, s.length), dy_rows(dy, s.length, s.heads, s.m);
  const HeadRows<const float> k_rows = rows(k, s.key_length), v_rows(v, s.key_length, s.heads, s.m);
  BiasedSoftmaxArguments x = arguments(l, bias, lengths, s);
  x.d = d.data();
  x.a = q_rows, x.b = k_rows, x.g = dy_rows, x.h = v_rows, x.c = k_rows;
  if (dbias) {
    const int64_t matrices = bias.is_shared ? s.heads : s.sequences();
    SharedBytes shared;
    for (int i = 0; i < 5; ++i) shared.add<float>(tile * left_row);
    launch("biased_softmax_attention",
           precision() == Precision::f32 ? biased_softmax_attention_bias_kernel<Float32>
                                         : biased_softmax_attention_bias_kernel<Tf32>,
           Grid{dim3(static_cast<unsigned>(matrices * tiles(bias.rows) * tiles(bias.columns))), dim3(block_threads),
                shared.bytes()},
           dbias, x);
  }
  if (s.e > 0) {
    x.out = HeadRows<float>(dq, s.length, s.heads, s.e);
    launch_attention<SoftmaxResult::dq>(x);
    x.a = k_rows, x.b = q_rows, x.g = v_rows, x.h = dy_rows, x.c = q_rows;
    x.out = HeadRows<float>(dk, s.key_length, s.heads, s.e);
    launch_attention<SoftmaxResult::dk>(x);
  }
  x.a = k_rows, x.b = q_rows, x.g = v_rows, x.h = dy_rows, x.c = dy_rows;
  x.out = HeadRows<float>(dv, s.key_length, s.heads, s.m);
  launch_attention<SoftmaxResult::dv>(x);
}

}  // namespace runnel::cuda
