// Softmax attention in tiles (eq. 2): to all keys or to listed blocks of them, with a bias of the scores or without.
// ops/cpu/attention/softmax_attention.cpp has the derivation; with x_ij = q_i . k_j / sqrt(E) + bias_ij and what
// forward keeps, l_i = log sum_j e^x_ij, p_ij = e^(x_ij - l_i), the four results are
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
//
// With a pattern, the rows of a block of threads are of one block of the pattern, and the other side is the positions
// of the blocks that are listed for it: for dk and dv the query blocks that see its keys, so each result has one owner.
// The gradient of the bias is made of the slopes s_ij: a block of threads owns 32 x 32 of its numbers and adds up those
// of the sequences that share them, one after another.
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
  AttentionBias bias;
  // Of the pattern. Block r of rows meets the blocks others[first[r]] .. others[first[r + 1] - 1] of the other side.
  const int32_t *first = nullptr, *others = nullptr;
  int row_block = 0, other_block = 0;  // positions in a block, on either side
  int reach = 0, global = 0;           // of the band
  int key_block = 0;                   // positions, if the lists are by length; else 0

  __device__ int seen_keys(int64_t n) const {
    return lengths ? lengths[n / sizes.heads] : static_cast<int>(sizes.key_length);
  }
  __device__ const float* bias_of(int64_t n) const {
    return bias.data + (bias.is_shared ? n % sizes.heads : n) * bias.rows * bias.columns;
  }
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

// The forms of a kernel beside attention to all keys; each costs registers. dropped: with dropout; listed: a
// pattern; banded: one with a band.
enum class SoftmaxForm { plain, dropped, biased, listed, banded };

// As many blocks to a multiprocessor as do not make a thread spill registers.
template <class Tile, SoftmaxResult result, SoftmaxForm form>
constexpr int max_blocks() {
  if (form != SoftmaxForm::plain) return 3;
  return std::is_same_v<Tile, Tf32> && result != SoftmaxResult::dv ? 5 : 4;
}

// Launch: x: sequences times blocks of rows, y: tiles of 32 columns of the result; `block_threads` threads.
// Owns:   the block its rows and columns of the result; where it works on rows of the weights, a thread a part of one.
// Shared: SoftmaxTiles; KeptWeights; of lists, the positions of 32 rows of the other side.
template <class Tile, SoftmaxResult result, SoftmaxForm form>
__global__ void __launch_bounds__(block_threads, max_blocks<Tile, result, form>())
    softmax_attention_kernel(SoftmaxArguments x) {
  using Block = SoftmaxTiles<Tile, result>;
  constexpr bool online = Block::online, keys = Block::keys, slopes = Block::slopes;
  constexpr bool banded = form == SoftmaxForm::banded, listed = banded || form == SoftmaxForm::listed;
  constexpr bool biased = form == SoftmaxForm::biased, dropped = form == SoftmaxForm::dropped;
  const AttentionSizes& s = x.sizes;
  const int queries = static_cast<int>(s.length), all_keys = static_cast<int>(s.key_length);
  const int length = keys ? all_keys : queries, other_length = keys ? queries : all_keys;
  const int row_block = listed ? x.row_block : length, parts = (row_block + Block::rows - 1) / Block::rows;
  const int row_blocks = listed ? (length + row_block - 1) / row_block * parts : parts;
  const int n = static_cast<int>(blockIdx.x) / row_blocks, number = static_cast<int>(blockIdx.x) % row_blocks;
  const int r = listed ? number / parts : 0, first = r * row_block + (number - r * parts) * Block::rows;
  const int row_end = listed ? min((r + 1) * row_block, length) : length;
  if (listed && first >= row_end) return;
  x.select(n, s.heads);
  const float* const l = x.l + n * s.length;
  const float* const d = slopes ? x.d + n * s.length : nullptr;
  const float* const bias = biased ? x.bias_of(n) : nullptr;

  Shared shared;
  Block block(shared, x);
  KeptIn<result> kept(shared.take<unsigned char>(dropped ? KeptIn<result>::bytes : 0));
  int* const at = shared.take<int>(listed ? tile : 0);  // the other side's positions, -1 where there is none

  // Keys [0, key_end) may be seen. Of the other side, rows [begin, end) matter, in the order of the list if there is
  // one; blocks of the list in which no pair is seen are left out.
  const int key_end = x.seen_keys(n);
  int begin = keys && s.causal ? first : 0, end = keys ? other_length : key_end;
  if (keys && first >= key_end) end = begin;
  if (!keys && s.causal) end = min(end, min(first + Block::rows, row_end));
  const int32_t* list = nullptr;
  if constexpr (listed) {
    const int lists = x.key_block ? (key_end + x.key_block - 1) / x.key_block * (row_blocks / parts) : 0;
    list = x.others + x.first[lists + r];
    int count = x.first[lists + r + 1] - x.first[lists + r];
    if constexpr (keys) {
      if (end == begin) count = 0;
      if (s.causal)
        for (; count > 0 && (list[0] + 1) * x.other_block <= first; --count) ++list;
    } else {
      while (count > 0 && list[count - 1] * x.other_block >= end) --count;
    }
    begin = 0;
    end = count * x.other_block;
  }
  const auto position_at = [&](int t) {
    if (t >= (listed || !keys ? end : other_length))
      return -1;  // of keys, both ends are the same; this takes fewer registers
    if constexpr (!listed) return t;
    const int position = list[t / x.other_block] * x.other_block + t % x.other_block;
    return position < other_length ? position : -1;
  };

  const int thread = static_cast<int>(threadIdx.x);
  const auto load_query = [&](int position) {  // its l and d, of 32
    block.ls[thread] = position >= 0 ? l[position] : 0;
    if constexpr (slopes) block.ds[thread] = position >= 0 ? d[position] : 0;
  };
  const auto own_position = [&](int row) { return first + row < row_end ? first + row : -1; };
  block.load_rows(own_position, [](int) { return 1.0f; });
  if constexpr (!online && !keys)
    if (thread < tile) load_query(own_position(thread));

  int position = position_at(begin + TileFragment::row());
  block.begin(position);
  for (int other = begin; other < end; other += tile) {
    const auto query_of = [&](int row, int o) { return !keys ? first + row : listed ? at[o] : other + o; };
    const auto key_of = [&](int row, int o) { return keys ? first + row : listed ? at[o] : other + o; };
    const int next = position_at(other + tile + TileFragment::row());
    block.add(
        position, next, 1,
        [&] {
          if constexpr (dropped) kept.draw(x.mask, s, n, keys ? other : first, keys ? first : other);
          if (thread >= tile) return;
          const int mine = position_at(other + thread);
          if constexpr (listed) at[thread] = mine;
          if constexpr (keys) load_query(mine);
        },
        [&](int row, int o) {  // rows past the last query are zeros: their weights do not matter
          const int query = query_of(row, o), key = key_of(row, o);
          return (!listed || at[o] >= 0) && (!biased || query < queries) && key < key_end &&
                 (!s.causal || key <= query) && (!banded || key < x.global || abs(key - query) <= x.reach);
        },
        [&](int row, int o) {
          if constexpr (!dropped) return 1.0f;
          return kept(keys ? o : row, keys ? row : o) ? x.mask.kept : 0.0f;
        },
        [&](int row, int o, float score) {
          if constexpr (!biased) return score;
          return score + bias[query_of(row, o) * x.bias.columns + key_of(row, o)];
        });
    position = next;
  }

  const int own = own_position(block.row());
  const bool sees_nothing = online && block.sum.total == 0;
  if constexpr (online)
    if (block.lane() == 0 && blockIdx.y == 0 && own >= 0)
      x.l[n * s.length + own] = sees_nothing ? INFINITY : block.sum.largest + logf(block.sum.total);
  block.each_four([&](int column, Vec<4> numbers) {
    if constexpr (online)
      for (float& value : numbers.at) value *= sees_nothing ? 0 : 1 / block.sum.total;
    if (own >= 0) x.out.store(own, column, numbers);
  });
}

// The gradient of the bias. a, b, g and h are q, k, dy and v.
// Launch: x: matrices of the bias times tiles of 32 x 32; two halves.
// Owns:   the block one tile. The first half computes the weights, the second one the slopes and their sum.
// Shared: 32 rows of a slice of q, k, dy and v each; the weights.
template <class Tile>
__global__ void __launch_bounds__(block_threads, 3) softmax_attention_bias_kernel(float* dbias, SoftmaxArguments x) {
  const AttentionSizes& s = x.sizes;
  const int rows = static_cast<int>(x.bias.rows), columns = static_cast<int>(x.bias.columns);
  const int across = (columns + tile - 1) / tile, each = (rows + tile - 1) / tile * across;
  const int matrix = static_cast<int>(blockIdx.x) / each, number = static_cast<int>(blockIdx.x) % each;
  const int first = number / across * tile, first_key = number % across * tile;
  const int queries = static_cast<int>(s.length), sequences = static_cast<int>(s.sequences());
  const int matrices = x.bias.is_shared ? static_cast<int>(s.heads) : sequences;
  const bool is_first = threadIdx.x < half_block;
  const bool any_seen = first < queries && (!s.causal || first_key < first + tile);
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
  for (int n = matrix; n < sequences && any_seen; n += matrices) {
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
        product = query < queries && key < key_end && (!s.causal || key <= query)
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

template <SoftmaxResult result, SoftmaxForm form>
void launch_attention(SoftmaxArguments& x, const BlockLists& pattern) {
  const AttentionSizes& s = x.sizes;
  constexpr bool keys = rows_are_keys(result), listed = form >= SoftmaxForm::listed;
  constexpr int rows = softmax_rows(result);
  const int64_t length = keys ? s.key_length : s.length;
  const int64_t row_block = !listed ? length : keys ? pattern.key_block : pattern.query_block;
  x.row_block = static_cast<int>(row_block);
  x.other_block = static_cast<int>(keys ? pattern.query_block : pattern.key_block);
  x.first = keys ? pattern.first_query : pattern.first_key;
  x.others = keys ? pattern.queries : pattern.keys;
  const int64_t blocks = s.sequences() * blocks_of(length, row_block) * blocks_of(row_block, rows);
  SharedBytes shared = SoftmaxTiles<Float32, result>::shared_bytes(x.a.width, x.g.width);
  shared.add<unsigned char>(form == SoftmaxForm::dropped ? KeptIn<result>::bytes : 0);
  shared.add<int>(listed ? tile : 0);
  launch("softmax_attention",
         precision() == Precision::f32 ? softmax_attention_kernel<Float32, result, form>
                                       : softmax_attention_kernel<Tf32, result, form>,
         Grid{dim3(static_cast<unsigned>(blocks), tiles(x.out.width)), dim3(block_threads), shared.bytes()}, x);
}
template <SoftmaxResult result>
void launch_attention(SoftmaxArguments& x, const BlockLists& pattern) {
  if (pattern.first_key)
    pattern.band ? launch_attention<result, SoftmaxForm::banded>(x, pattern)
                 : launch_attention<result, SoftmaxForm::listed>(x, pattern);
  else if (x.bias.data)
    launch_attention<result, SoftmaxForm::biased>(x, pattern);
  else if (x.mask.threshold > 0 || x.mask.kept != 1)
    launch_attention<result, SoftmaxForm::dropped>(x, pattern);
  else
    launch_attention<result, SoftmaxForm::plain>(x, pattern);
}

SoftmaxArguments arguments(const float* l, const int32_t* lengths, const AttentionSizes& s,
                           const SoftmaxSettings& settings) {
  SoftmaxArguments x{
      {},           const_cast<float*>(l), nullptr, lengths, s, Mask(settings.dropout),  // only forward writes l
      settings.bias};
  const BlockLists& pattern = settings.pattern;
  x.reach = pattern.band ? static_cast<int>(pattern.band->reach) : 0;
  x.global = pattern.band ? static_cast<int>(pattern.band->global) : 0;
  x.key_block = pattern.by_length ? static_cast<int>(pattern.key_block) : 0;
  x.scale = s.e > 0 ? score_scale(s) : 1;
  return x;
}

// The rows of q and k; without them, rows of one zero, the same for all positions.
class ScoreRows {
 public:
  explicit ScoreRows(const AttentionSizes& s) : s_(s), zeros_(s.e > 0 ? 0 : s.heads) {
    if (zeros_.data())
      check_cuda(cudaMemsetAsync(zeros_.data(), 0, static_cast<size_t>(s.heads) * sizeof(float), stream()),
                 "softmax_attention");
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

void softmax_attention_forward(float* y, float* l, const float* q, const float* k, const float* v,
                               const int32_t* lengths, AttentionSizes s, SoftmaxSettings settings) {
  const ScoreRows rows(s);
  SoftmaxArguments x = arguments(l, lengths, s, settings);
  x.a = rows(q, s.length);
  x.b = rows(k, s.key_length);
  x.c = HeadRows<const float>(v, s.key_length, s.heads, s.m);
  x.out = HeadRows<float>(y, s.length, s.heads, s.m);
  launch_attention<SoftmaxResult::y>(x, settings.pattern);
}

void softmax_attention_backward(float* dq, float* dk, float* dv, float* dbias, const float* dy, const float* y,
                                const float* l, const float* q, const float* k, const float* v, const int32_t* lengths,
                                AttentionSizes s, SoftmaxSettings settings) {
  const int64_t queries = s.sequences() * s.length;
  const Temporary<float> d(queries);
  launch("softmax_attention", attention_products_kernel, over(32 * queries), d.data(), dy, y, s.length, s.heads, s.m,
         queries);
  const ScoreRows rows(s);
  const HeadRows<const float> q_rows = rows(q, s.length), dy_rows(dy, s.length, s.heads, s.m);
  const HeadRows<const float> k_rows = rows(k, s.key_length), v_rows(v, s.key_length, s.heads, s.m);
  SoftmaxArguments x = arguments(l, lengths, s, settings);
  x.d = d.data();
  x.a = q_rows, x.b = k_rows, x.g = dy_rows, x.h = v_rows, x.c = k_rows;
  if (dbias) {
    const AttentionBias& bias = settings.bias;
    const int64_t matrices = bias.is_shared ? s.heads : s.sequences();
    SharedBytes shared;
    for (int i = 0; i < 5; ++i) shared.add<float>(tile * left_row);
    launch("softmax_attention",
           precision() == Precision::f32 ? softmax_attention_bias_kernel<Float32> : softmax_attention_bias_kernel<Tf32>,
           Grid{dim3(static_cast<unsigned>(matrices * tiles(bias.rows) * tiles(bias.columns))), dim3(block_threads),
                shared.bytes()},
           dbias, x);
  }
  if (s.e > 0) {
    x.out = HeadRows<float>(dq, s.length, s.heads, s.e);
    launch_attention<SoftmaxResult::dq>(x, settings.pattern);
    x.a = k_rows, x.b = q_rows, x.g = v_rows, x.h = dy_rows, x.c = q_rows;
    x.out = HeadRows<float>(dk, s.key_length, s.heads, s.e);
    launch_attention<SoftmaxResult::dk>(x, settings.pattern);
  }
  x.a = k_rows, x.b = q_rows, x.g = v_rows, x.h = dy_rows, x.c = dy_rows;
  x.out = HeadRows<float>(dv, s.key_length, s.heads, s.m);
  launch_attention<SoftmaxResult::dv>(x, settings.pattern);
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
