// Softmax attention in tiles (eq. 2). ops/cpu/attention/softmax_attention.cpp has the derivation; with x_ij = q_i . k_j
// / sqrt(E) and what forward keeps, l_i = log sum_j e^x_ij, p_ij = e^(x_ij - l_i), the four results are
//
//   y_i  = sum_j p_ij v_j                              found with a running maximum and sum, since l_i is not known yet
//   dq_i = sum_j s_ij k_j / sqrt(E)                    s_ij = p_ij (dy_i . v_j - d_i),   d_i = dy_i . y_i
//   dk_j = sum_i s_ij q_i / sqrt(E)
//   dv_j = sum_i p_ij dy_i
//
// Each is out_r = sum_o w_ro c_o, where r runs over the rows that a block owns and o over those on the other side,
// 32 at a time: a block has 32 columns of the result and computes the weights itself, from a_r . b_o (and, for s, from
// g_r . h_o): SoftmaxTiles. Dropout multiplies p_ij, but not the p_ij of its own normaliser, with f_ij, 0 or 1 / (1 -
// p): y_i = sum_j f_ij p_ij v_j, s_ij = p_ij (f_ij dy_i . v_j - d_i), dv_j = sum_i f_ij p_ij dy_i.
#include "cuda/attention/softmax.h"
#include "cuda/temporary.h"
#include "ops/kernels/softmax_attention.h"
#include "ops/numerics.h"

namespace runnel::cuda {
namespace {

struct SoftmaxArguments : SoftmaxOperands {
  float* l;                // [B,H,L]: written for y, else read
  const float* d;          // [B,H,L]
  const int32_t* lengths;  // [B], or null
  AttentionSizes sizes;
  Mask mask;
};

// Which weights of some queries and keys dropout keeps: a thread draws eight at a time, those of one query and eight
// keys, which a Philox block decides on.
template <int queries, int keys>
class KeptWeights {
 public:
  static constexpr unsigned bytes = queries * keys / 8;
  __device__ explicit KeptWeights(unsigned char* kept) : kept_(kept) {}
  // Of queries from `query` on and keys from `key` on, a multiple of 8, of sequence n.
  __device__ void draw(const Mask& mask, const AttentionSizes& s, int64_t n, int64_t query, int64_t key) {
#pragma unroll
    for (unsigned own = threadIdx.x; own < bytes; own += block_threads) {
      const int64_t block = (first_weight(s, n, query + own / eights) + key) / 8 + own % eights;
      const Philox words = mask.key.block(static_cast<uint64_t>(block));
      unsigned bits = 0;
#pragma unroll
      for (int i = 0; i < 8; ++i) bits |= ((words[i / 2] >> 16 * (i % 2) & 0xffffu) >= mask.threshold) << i;
      kept_[own] = static_cast<unsigned char>(bits);
    }
  }
  __device__ bool operator()(int query, int key) const { return kept_[query * eights + key / 8] >> key % 8 & 1; }

 private:
  static constexpr int eights = keys / 8;
  unsigned char* kept_;  // [query, eight keys]
};

template <SoftmaxResult result>
using KeptIn = KeptWeights<rows_are_keys(result) ? tile : softmax_rows(result),
                           rows_are_keys(result) ? softmax_rows(result) : tile>;

// As many blocks to a multiprocessor as do not make a thread spill registers.
template <class Tile, SoftmaxResult result, bool dropped>
constexpr int max_blocks() {
  if (dropped) return 3;
  return std::is_same_v<Tile, Tf32> && result != SoftmaxResult::dv ? 5 : 4;
}

// Launch: x: sequences times blocks of rows, y: tiles of 32 columns of the result; `block_threads` threads.
// Owns:   the block its rows and columns of the result; where it works on rows of the weights, a thread a part of one.
// Shared: SoftmaxTiles; KeptWeights.
template <class Tile, SoftmaxResult result, bool dropped>
__global__ void __launch_bounds__(block_threads, max_blocks<Tile, result, dropped>())
    softmax_attention_kernel(SoftmaxArguments x) {
  using Block = SoftmaxTiles<Tile, result>;
  constexpr bool online = Block::online, keys = Block::keys, slopes = Block::slopes;
  const AttentionSizes& s = x.sizes;
  const int queries = static_cast<int>(s.length), all_keys = static_cast<int>(s.key_length);
  const int length = keys ? all_keys : queries, others = keys ? queries : all_keys;
  const int row_blocks = (length + Block::rows - 1) / Block::rows;
  const int n = static_cast<int>(blockIdx.x) / row_blocks;
  const int first = static_cast<int>(blockIdx.x) % row_blocks * Block::rows;
  x.select(n, s.heads);
  const float* const l = x.l + n * s.length;
  const float* const d = slopes ? x.d + n * s.length : nullptr;

  Shared shared;
  Block block(shared, x);
  KeptIn<result> kept(shared.take<unsigned char>(dropped ? KeptIn<result>::bytes : 0));

  // Keys [0, key_end) may be seen; the other side's rows [begin, end) matter.
  const int key_end = x.lengths ? x.lengths[n / s.heads] : all_keys;
  const int begin = keys && s.causal ? first : 0;
  const int end = keys ? (first < key_end ? others : begin) : s.causal ? min(key_end, first + Block::rows) : key_end;

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
    const int at = other + TileFragment::row();
    return other < end && at < others ? at : -1;
  };
  block.begin(position_at(begin));
  for (int other = begin; other < end; other += tile) {
    block.add(
        position_at(other), position_at(other + tile), 1,
        [&] {
          if constexpr (keys) load_queries(other);
          if constexpr (dropped) kept.draw(x.mask, s, n, keys ? other : first, keys ? first : other);
        },
        [&](int r, int o) {  // rows past the last query are zeros: what they weigh does not matter
          const int query = keys ? other + o : first + r, key = keys ? first + r : other + o;
          return key < key_end && (!s.causal || key <= query);
        },
        [&](int r, int o) {
          if constexpr (!dropped) return 1.0f;
          return kept(keys ? o : r, keys ? r : o) ? x.mask.kept : 0.0f;
        });
  }

  if constexpr (online)
    if (block.lane() == 0 && blockIdx.y == 0 && position < length)
      x.l[n * s.length + position] = block.sum.largest + logf(block.sum.total);
  block.each_four([&](int column, Vec<4> numbers) {
    if constexpr (online)
      for (float& number : numbers.at) number *= block.sum.total > 0 ? 1 / block.sum.total : 0;
    if (position < length) x.out.store(position, column, numbers);
  });
}

constexpr int step_threads = 128;
constexpr int max_columns = 8;  // of v, of a thread: up to 256 in all

// One query against the keys in the cache, one of which it brings itself. Keys are kept as columns.
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

  const int64_t n = blockIdx.x, own_place = position[0] % capacity;
  const int64_t last = min(static_cast<int64_t>(position[0]), capacity - 1);
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  k_cache += n * e * capacity, v_cache += n * capacity * m;
  q += n * e, k += n * e, v += n * m, y += n * m;
  for (int64_t c = thread; c < e; c += step_threads) {
    queries[c] = scale * q[c];
    k_cache[c * capacity + own_place] = k[c];
  }
  for (int64_t c = thread; c < m; c += step_threads) v_cache[own_place * m + c] = v[c];
  __syncthreads();

  float largest = -INFINITY, total = 0, sum[max_columns] = {};
  for (int64_t first = 0; first <= last; first += step_threads) {
    const int64_t own = first + thread;
    float score = -INFINITY;
    if (own <= last) {
      score = 0;
      for (int64_t c = 0; c < e; ++c) score += queries[c] * k_cache[c * capacity + own];
    }
    const float warp_largest = warp_max(score);
    if (lane == 0) scratch[warp] = warp_largest;
    __syncthreads();  // scratch is written, and the weights of the 128 positions before have been read
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
      for (int i = 0; i < max_columns; ++i)
        if (i * 32 + lane < m) sum[i] += weights[j] * v_cache[(first + j) * m + i * 32 + lane];
  }
  total = block_sum(total, scratch);
#pragma unroll
  for (int i = 0; i < max_columns; ++i)
    if (i * 32 + lane < m) sums[warp * m + i * 32 + lane] = sum[i];
  __syncthreads();
  for (int64_t c = thread; c < m; c += step_threads) {
    float all = 0;
    for (int w = 0; w < warps; ++w) all += sums[w * m + c];
    y[c] = all / total;
  }
}

template <SoftmaxResult result, bool dropped>
void launch_attention(const SoftmaxArguments& x) {
  const AttentionSizes& s = x.sizes;
  SharedBytes shared = SoftmaxTiles<Float32, result>::shared_bytes(x.a.width, x.g.width);
  shared.add<unsigned char>(dropped ? KeptIn<result>::bytes : 0);
  const int64_t length = rows_are_keys(result) ? s.key_length : s.length, rows = softmax_rows(result);
  launch("softmax_attention",
         precision() == Precision::f32 ? softmax_attention_kernel<Float32, result, dropped>
                                       : softmax_attention_kernel<Tf32, result, dropped>,
         Grid{dim3(static_cast<unsigned>(s.sequences() * ((length + rows - 1) / rows)), tiles(x.out.width)),
              dim3(block_threads), shared.bytes()},
         x);
}
template <SoftmaxResult result>
void launch_attention(const SoftmaxArguments& x) {
  x.mask.threshold > 0 || x.mask.kept != 1 ? launch_attention<result, true>(x) : launch_attention<result, false>(x);
}

SoftmaxArguments arguments(const float* l, const int32_t* lengths, const AttentionSizes& s, const Dropout& dropout) {
  SoftmaxArguments x{{}, const_cast<float*>(l), nullptr, lengths, s, Mask(dropout)};  // only forward writes l
  x.scale = score_scale(s);
  return x;
}

}  // namespace

void softmax_attention_forward(float* y, float* l, const float* q, const float* k, const float* v,
                               const int32_t* lengths, AttentionSizes s, Dropout dropout) {
  SoftmaxArguments x = arguments(l, lengths, s, dropout);
  x.a = HeadRows<const float>(q, s.length, s.heads, s.e);
  x.b = HeadRows<const float>(k, s.key_length, s.heads, s.e);
  x.c = HeadRows<const float>(v, s.key_length, s.heads, s.m);
  x.out = HeadRows<float>(y, s.length, s.heads, s.m);
  launch_attention<SoftmaxResult::y>(x);
}

void softmax_attention_backward(float* dq, float* dk, float* dv, const float* dy, const float* y, const float* l,
                                const float* q, const float* k, const float* v, const int32_t* lengths,
                                AttentionSizes s, Dropout dropout) {
  const int64_t queries = s.sequences() * s.length;
  const Temporary<float> d(queries);
  launch("softmax_attention", attention_products_kernel, over(32 * queries), d.data(), dy, y, s.length, s.heads, s.m,
         queries);
  const HeadRows<const float> q_rows(q, s.length, s.heads, s.e), dy_rows(dy, s.length, s.heads, s.m);
  const HeadRows<const float> k_rows(k, s.key_length, s.heads, s.e), v_rows(v, s.key_length, s.heads, s.m);
  SoftmaxArguments x = arguments(l, lengths, s, dropout);
  x.d = d.data();
  x.a = q_rows, x.b = k_rows, x.g = dy_rows, x.h = v_rows, x.c = k_rows;
  x.out = HeadRows<float>(dq, s.length, s.heads, s.e);
  launch_attention<SoftmaxResult::dq>(x);
  x.a = k_rows, x.b = q_rows, x.g = v_rows, x.h = dy_rows, x.c = q_rows;
  x.out = HeadRows<float>(dk, s.key_length, s.heads, s.e);
  launch_attention<SoftmaxResult::dk>(x);
  x.c = dy_rows;
  x.out = HeadRows<float>(dv, s.key_length, s.heads, s.m);
  launch_attention<SoftmaxResult::dv>(x);
}

void softmax_attention_step(float* y, float* k_cache, float* v_cache, const float* q, const float* k, const float* v,
                            const int32_t* position, AttentionSizes s) {
  const size_t shared =
      SharedBytes().add<float>(s.e).add<float>(step_threads).add<float>(step_threads / 32 * s.m).add<float>(32).bytes();
  launch("softmax_attention_step", softmax_attention_step_kernel,
         Grid{dim3(static_cast<unsigned>(s.sequences())), dim3(step_threads), shared}, y, k_cache, v_cache, q, k, v,
         position, s.key_length, s.e, s.m, score_scale(s));
}

}  // namespace runnel::cuda
