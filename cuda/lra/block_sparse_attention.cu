// Softmax attention to listed blocks of keys. ops/cpu/lra/block_sparse_attention.cpp says what is computed; the
// four results are those at the head of softmax_attention.cu, as sums out_r = sum_o w_ro c_o: SoftmaxTiles. A block of
// threads owns rows of one block of the pattern, and takes from the other side the positions of the blocks that are
// listed for it, 32 at a time. For dk and dv these are the query blocks that see its keys, so each result has one
// owner.
#include "cuda/attention/softmax.h"
#include "cuda/temporary.h"
#include "ops/kernels/lra.h"
#include "ops/numerics.h"

namespace runnel::cuda {
namespace {

struct BlockSparseArguments : SoftmaxOperands {
  float* l;                // [B,H,L]: written for y, else read
  const float* d;          // [B,H,L]
  const int32_t* lengths;  // [B], or null
  AttentionSizes sizes;
  int row_block, other_block;     // positions in a block of the pattern, on either side
  int parts;                      // blocks of threads for a block of rows
  const int32_t *first, *others;  // block r of rows meets others[first[r]] .. others[first[r + 1] - 1]
  int reach, global;              // of the band
  int key_block;                  // positions, if the lists are by length; else 0
};

// Launch: x: sequences times blocks of rows times their parts, y: tiles of 32 columns; `block_threads` threads.
// Owns:   the block its rows and columns of the result; where it works on rows of the weights, a thread a part of one.
// Shared: SoftmaxTiles; the positions of 32 rows of the other side.
template <class Tile, SoftmaxResult result, bool banded>
__global__ void __launch_bounds__(block_threads, 3) block_sparse_attention_kernel(BlockSparseArguments x) {
  using Block = SoftmaxTiles<Tile, result>;
  constexpr bool online = Block::online, keys = Block::keys, slopes = Block::slopes;
  const AttentionSizes& s = x.sizes;
  const int queries = static_cast<int>(s.length), all_keys = static_cast<int>(s.key_length);
  const int length = keys ? all_keys : queries, other_length = keys ? queries : all_keys;
  const int row_blocks = (length + x.row_block - 1) / x.row_block * x.parts;
  const int n = static_cast<int>(blockIdx.x) / row_blocks, number = static_cast<int>(blockIdx.x) % row_blocks;
  const int r = number / x.parts, first = r * x.row_block + number % x.parts * Block::rows;
  const int row_end = min((r + 1) * x.row_block, length);
  if (first >= row_end) return;
  x.select(n, s.heads);
  const float* const l = x.l + n * s.length;
  const float* const d = slopes ? x.d + n * s.length : nullptr;

  Shared shared;
  Block block(shared, x);
  int* const at = shared.take<int>(tile);  // the other side's positions, -1 where there is none

  // Blocks of the list in which no pair is seen are left out.
  const int key_end = x.lengths ? x.lengths[n / s.heads] : all_keys;
  const int lists = x.key_block ? (key_end + x.key_block - 1) / x.key_block * (row_blocks / x.parts) : 0;
  const int32_t* list = x.others + x.first[lists + r];
  int count = x.first[lists + r + 1] - x.first[lists + r];
  if constexpr (keys) {
    if (first >= key_end) count = 0;
    if (s.causal)
      for (; count > 0 && (list[0] + 1) * x.other_block <= first; --count) ++list;
  } else {
    const int end = s.causal ? min(key_end, row_end) : key_end;
    while (count > 0 && list[count - 1] * x.other_block >= end) --count;
  }
  const int total = count * x.other_block;
  const auto position_at = [&](int t) {
    if (t >= total) return -1;
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

  int position = position_at(TileFragment::row());
  block.begin(position);
  for (int t = 0; t < total; t += tile) {
    const int next = position_at(t + tile + TileFragment::row());
    block.add(
        position, next, 1,
        [&] {
          if (thread >= tile) return;
          at[thread] = position_at(t + thread);
          if constexpr (keys) load_query(at[thread]);
        },
        [&](int row, int o) {
          const int query = keys ? at[o] : first + row, key = keys ? first + row : at[o];
          return at[o] >= 0 && key < key_end && (!s.causal || key <= query) &&
                 (!banded || key < x.global || abs(key - query) <= x.reach);
        },
        [](int, int) { return 1.0f; });
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

template <SoftmaxResult result, bool banded>
void launch_attention(BlockSparseArguments& x, const BlockLists& pattern) {
  const AttentionSizes& s = x.sizes;
  constexpr bool keys = rows_are_keys(result);
  constexpr int rows = softmax_rows(result);
  const int64_t length = keys ? s.key_length : s.length, row_block = keys ? pattern.key_block : pattern.query_block;
  x.row_block = static_cast<int>(row_block);
  x.other_block = static_cast<int>(keys ? pattern.query_block : pattern.key_block);
  x.parts = static_cast<int>((row_block + rows - 1) / rows);
  x.first = keys ? pattern.first_query : pattern.first_key;
  x.others = keys ? pattern.queries : pattern.keys;
  x.key_block = pattern.by_length ? static_cast<int>(pattern.key_block) : 0;
  const int64_t blocks = s.sequences() * ((length + row_block - 1) / row_block) * x.parts;
  launch("block_sparse_attention",
         precision() == Precision::f32 ? block_sparse_attention_kernel<Float32, result, banded>
                                       : block_sparse_attention_kernel<Tf32, result, banded>,
         Grid{dim3(static_cast<unsigned>(blocks), tiles(x.out.width)), dim3(block_threads),
              SoftmaxTiles<Float32, result>::shared_bytes(x.a.width, x.g.width).template add<int>(tile).bytes()},
         x);
}

template <SoftmaxResult result>
void launch_attention(BlockSparseArguments& x, const BlockLists& pattern) {
  if (!pattern.band) return launch_attention<result, false>(x, pattern);
  x.reach = static_cast<int>(pattern.band->reach);
  x.global = static_cast<int>(pattern.band->global);
  launch_attention<result, true>(x, pattern);
}

BlockSparseArguments arguments(const float* l, const int32_t* lengths, const AttentionSizes& s) {
  BlockSparseArguments x{};
  x.l = const_cast<float*>(l);  // only forward writes it
  x.lengths = lengths;
  x.sizes = s;
  x.scale = score_scale(s);
  return x;
}

}  // namespace

void block_sparse_attention_forward(float* y, float* l, const float* q, const float* k, const float* v,
                                    BlockLists pattern, const int32_t* lengths, AttentionSizes s) {
  BlockSparseArguments x = arguments(l, lengths, s);
  x.a = HeadRows<const float>(q, s.length, s.heads, s.e);
  x.b = HeadRows<const float>(k, s.key_length, s.heads, s.e);
  x.c = HeadRows<const float>(v, s.key_length, s.heads, s.m);
  x.out = HeadRows<float>(y, s.length, s.heads, s.m);
  launch_attention<SoftmaxResult::y>(x, pattern);
}

void block_sparse_attention_backward(float* dq, float* dk, float* dv, const float* dy, const float* y, const float* l,
                                     const float* q, const float* k, const float* v, BlockLists pattern,
                                     const int32_t* lengths, AttentionSizes s) {
  const int64_t queries = s.sequences() * s.length;
  const Temporary<float> d(queries);
  launch("block_sparse_attention", attention_products_kernel, over(32 * queries), d.data(), dy, y, s.length, s.heads,
         s.m, queries);
  const HeadRows<const float> q_rows(q, s.length, s.heads, s.e), dy_rows(dy, s.length, s.heads, s.m);
  const HeadRows<const float> k_rows(k, s.key_length, s.heads, s.e), v_rows(v, s.key_length, s.heads, s.m);
  BlockSparseArguments x = arguments(l, lengths, s);
  x.d = d.data();
  x.a = q_rows, x.b = k_rows, x.g = dy_rows, x.h = v_rows, x.c = k_rows;
  x.out = HeadRows<float>(dq, s.length, s.heads, s.e);
  launch_attention<SoftmaxResult::dq>(x, pattern);
  x.a = k_rows, x.b = q_rows, x.g = v_rows, x.h = dy_rows, x.c = q_rows;
  x.out = HeadRows<float>(dk, s.key_length, s.heads, s.e);
  launch_attention<SoftmaxResult::dk>(x, pattern);
  x.c = dy_rows;
  x.out = HeadRows<float>(dv, s.key_length, s.heads, s.m);
  launch_attention<SoftmaxResult::dv>(x, pattern);
}

}  // namespace runnel::cuda
