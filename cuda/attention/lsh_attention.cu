// Reformer's attention by locality-sensitive hashing. ops/cpu/attention/lsh_attention.cpp has the derivation; in the
// sorted order of a round, the query at a place sees the places [begin,end) but itself, and with k_j = q_j / |q_j|,
// x_ij = q_i . k_j / sqrt(E) and what forward keeps, l_i = log sum e^x_ij over all rounds, p_ij = e^(x_ij - l_i), the
// results are
//
//   y_i  = sum_j p_ij v_j                              found with a running maximum and sum, since l_i is not known yet
//   dq_i = sum_j s_ij k_j / sqrt(E)                    s_ij = p_ij (dy_i . v_j - d_i),   d_i = dy_i . y_i
//   dk_j = sum_i s_ij q_i / sqrt(E)                    which leads on to dq_j += (dk_j - (dk_j . k_j) k_j) / |q_j|
//   dv_j = sum_i p_ij dy_i
//
// One kernel is all four, as in softmax_attention.cu: each is out_r = sum_o w_ro c_o with weights from a_r . b_o (and,
// for s, from g_r . h_o), where r runs over the places that a block owns, and o over those on the other side that
// matter to them, 32 at a time: SoftmaxTiles. A place stands for the row order[place]. Rounds are launched one after
// another: every row is at one place of each, so it has one owner at a time, who adds to it. Padding has the
// last places; nobody reads it, and its rows of the results are cleared.
#include "cuda/attention/softmax.h"
#include "cuda/temporary.h"
#include "ops/kernels/lsh_attention.h"
#include "ops/numerics.h"

namespace runnel::cuda {
namespace {

// Largest and total of the exponentials that a query has found so far, [B,H,L].
struct RoundState {
  float *largest, *total;
};

struct LshArguments : SoftmaxOperands {
  float* l;                  // [B,H,L]: written for y, in the last round, else read
  const float* d;            // [B,H,L]
  const float* inverse;      // [B,H,L]: 1 / |q_j|
  RoundState before, after;  // y: two arrays, since the blocks of other columns read them, too
  LshPlaces places;          // of this round
  const int32_t* lengths;    // [B], or null
  int64_t length, heads;
  bool first_round, last_round;
};

// Launch: x: sequences times blocks of places, y: tiles of 32 columns of the result; `block_threads` threads.
// Owns:   the block its places and columns of the result; where it works on rows of the weights, a thread a part of
// one. Shared: SoftmaxTiles; and the visibility of the queries, which are the rows or the others.
template <class Tile, SoftmaxResult result>
__global__ void __launch_bounds__(block_threads, rows_are_keys(result) ? 3 : 4) lsh_attention_kernel(LshArguments x) {
  using Block = SoftmaxTiles<Tile, result>;
  constexpr bool online = Block::online, keys = Block::keys, slopes = Block::slopes;
  constexpr int rows = Block::rows, queries = keys ? tile : rows;
  const int row_blocks = static_cast<int>((x.length + rows - 1) / rows);
  const int n = static_cast<int>(blockIdx.x) / row_blocks, first = static_cast<int>(blockIdx.x) % row_blocks * rows;
  const int length = x.lengths ? x.lengths[n / x.heads] : static_cast<int>(x.length);
  if (first >= length) return;
  const int last = min(first + rows, length) - 1;
  const int64_t at = n * x.length;
  x.select(n, x.heads);
  const int32_t *const order = x.places.order + at, *const begins = x.places.begin + at;
  const int32_t* const ends = x.places.end + at;
  const float* const inverse = x.inverse + at;

  Shared shared;
  Block block(shared, x);
  int* const seen_begin = shared.take<int>(queries);  // the places that each query sees
  int* const seen_end = shared.take<int>(queries);

  const auto load_queries = [&](int from) {
    const int thread = static_cast<int>(threadIdx.x);
    if (thread >= queries) return;
    const int place = from + thread;
    const bool exists = place < length;
    seen_begin[thread] = exists ? begins[place] : 0;
    seen_end[thread] = exists ? ends[place] : 0;
    if constexpr (!online) block.ls[thread] = exists ? x.l[at + order[place]] : 0;
    if constexpr (slopes) block.ds[thread] = exists ? x.d[at + order[place]] : 0;
  };
  const auto position_at = [&](int place) { return place < length ? order[place] : -1; };
  const auto factor_of = [&](bool is_key, int position) { return is_key && position >= 0 ? inverse[position] : 1.0f; };
  const int position = position_at(first + block.row());
  block.load_rows([&](int row) { return position_at(first + row); }, [&](int own) { return factor_of(keys, own); });
  if constexpr (!keys) load_queries(first);
  const bool known = online && !x.first_round && position >= 0;
  if (known) block.sum = {x.before.largest[at + position], x.before.total[at + position]};

  // Where the next 32 places begin, from `other` on, that matter; `length` if none do. Queries matter if one of them
  // sees a key of this block.
  const int others_end = keys ? length : ends[last];
  const auto next_from = [&](int other) {
    if constexpr (keys)
      while (other < others_end && ends[min(other + tile, length) - 1] <= first) other += tile;
    return other < others_end && !(keys && begins[other] > last) ? other : length;
  };
  int other = next_from(begins[first]), other_position = position_at(other + TileFragment::row());
  block.begin(other_position);
  while (other < length) {
    const int next = next_from(other + tile), next_position = position_at(next + TileFragment::row());
    block.add(
        other_position, next_position, factor_of(!keys, other_position),
        [&] {
          if constexpr (keys) load_queries(other);
        },
        [&](int r, int o) {
          const int query = keys ? o : r, mine = first + r, theirs = other + o, place = keys ? mine : theirs;
          return seen_begin[query] <= place && place < seen_end[query] && mine != theirs;
        },
        [](int, int) { return 1.0f; });
    other = next, other_position = next_position;
  }

  const bool sees_nothing = online && block.sum.total == 0;
  if constexpr (online)
    if (block.lane() == 0 && blockIdx.y == 0 && position >= 0) {
      if (x.last_round) {
        x.l[at + position] = sees_nothing ? INFINITY : block.sum.largest + logf(block.sum.total);
      } else {
        x.after.largest[at + position] = block.sum.largest;
        x.after.total[at + position] = block.sum.total;
      }
    }
  // The sum of earlier rounds stays in y, as far as it is not dwarfed. A query that sees nothing has y = v, and
  // so gives dy to dv.
  const float kept = known && block.sum.total > 0 ? expf(x.before.largest[at + position] - block.sum.largest) : 1;
  const float divisor = online && x.last_round && !sees_nothing ? block.sum.total : 1;
  block.each_four([&](int column, Vec<4> values) {
    if (position < 0) return;
    const bool copies = online ? x.last_round && sees_nothing
                               : result == SoftmaxResult::dv && x.first_round && x.l[at + position] == INFINITY;
    Vec<4> old{};
    if (copies)
      old = x.c.load(position, column);
    else if (!x.first_round)
      old = x.out.load(position, column);
#pragma unroll
    for (int s = 0; s < 4; ++s) values.at[s] = (values.at[s] + kept * old.at[s]) / divisor;
    x.out.store(position, column, values);
  });
}

// inverse_i = 1 / |q_i|, or 0 where there is hardly a length to divide by.
// Launch: a warp per position. Owns: the warp one number.
__global__ void lsh_attention_norms_kernel(float* inverse, const float* q, int64_t length, int64_t heads, int64_t e,
                                           int64_t positions) {
  const int64_t lane = threadIdx.x % 32;
  for (int64_t i = first_element() / 32; i < positions; i += element_step() / 32) {  // [B,H,L]
    const int64_t n = i / length;
    const float* const row = q + ((n / heads * length + i % length) * heads + n % heads) * e;
    float sum = 0;
    for (int64_t c = lane; c < e; c += 32) sum += row[c] * row[c];
    const float norm = sqrtf(warp_sum(sum));
    if (lane == 0) inverse[i] = norm < 1e-6f ? 0 : 1 / norm;
  }
}

// dq_j += (dk_j - (dk_j . k_j) k_j) / |q_j|.
// Launch: a warp per key. Owns: the warp one row.
__global__ void lsh_attention_keys_kernel(float* dq, const float* dk, const float* q, const float* inverse,
                                          int64_t length, int64_t heads, int64_t e, int64_t keys) {
  const int64_t lane = threadIdx.x % 32;
  for (int64_t j = first_element() / 32; j < keys; j += element_step() / 32) {  // [B,H,L]
    const int64_t n = j / length, at = ((n / heads * length + j % length) * heads + n % heads) * e;
    const float by = inverse[j];
    float along = 0;
    for (int64_t c = lane; c < e; c += 32) along += dk[at + c] * (by * q[at + c]);
    along = warp_sum(along);
    for (int64_t c = lane; c < e; c += 32) dq[at + c] += by * (dk[at + c] - along * (by * q[at + c]));
  }
}

// Arguments shared by all results of one pass.
LshArguments arguments(const float* inverse, const float* l, const int32_t* lengths, const AttentionSizes& s) {
  LshArguments x{};
  x.inverse = inverse;
  x.l = const_cast<float*>(l);  // only forward writes it
  x.lengths = lengths;
  x.length = s.length;
  x.heads = s.heads;
  x.scale = score_scale(s);
  return x;
}

template <SoftmaxResult result>
void launch_round(LshArguments& x, const LshPlaces& places, const AttentionSizes& s, const Lsh& lsh, int64_t round) {
  const int64_t at = round * s.sequences() * s.length;
  x.places = {places.order + at, places.begin + at, places.end + at};
  x.first_round = round == 0;
  x.last_round = round + 1 == lsh.rounds;
  SharedBytes shared = SoftmaxTiles<Float32, result>::shared_bytes(x.a.width, x.g.width);
  constexpr int64_t rows = softmax_rows(result), queries = rows_are_keys(result) ? tile : rows;
  for (int i = 0; i < 2; ++i) shared.add<int>(queries);
  launch("lsh_attention",
         precision() == Precision::f32 ? lsh_attention_kernel<Float32, result> : lsh_attention_kernel<Tf32, result>,
         Grid{dim3(static_cast<unsigned>(s.sequences() * ((s.length + rows - 1) / rows)), tiles(x.out.width)),
              dim3(block_threads), shared.bytes()},
         x);
}

void find_inverse_norms(float* inverse, const float* q, const AttentionSizes& s) {
  const int64_t n = s.sequences() * s.length;
  launch("lsh_attention", lsh_attention_norms_kernel, over(32 * n), inverse, q, s.length, s.heads, s.e, n);
}

}  // namespace

void lsh_attention_forward(float* y, float* l, const float* q, const float* v, LshPlaces places, const int32_t* lengths,
                           AttentionSizes s, Lsh lsh) {
  const int64_t n = s.sequences() * s.length;
  const Temporary<float> inverse(n), found(lsh.rounds > 1 ? 4 * n : 0);
  find_inverse_norms(inverse.data(), q, s);
  LshArguments x = arguments(inverse.data(), l, lengths, s);
  x.a = x.b = HeadRows<const float>(q, s.length, s.heads, s.e);
  x.c = HeadRows<const float>(v, s.length, s.heads, s.m);
  x.out = HeadRows<float>(y, s.length, s.heads, s.m);
  if (lsh.rounds > 1) {
    x.before = {found.data(), found.data() + n};
    x.after = {found.data() + 2 * n, found.data() + 3 * n};
  }
  for (int64_t round = 0; round < lsh.rounds; ++round) {
    launch_round<SoftmaxResult::y>(x, places, s, lsh, round);
    std::swap(x.before, x.after);
  }
  clear_padding(y, lengths, s.batch, s.length, s.heads * s.m);
}

void lsh_attention_backward(float* dq, float* dv, const float* dy, const float* y, const float* l, const float* q,
                            const float* v, LshPlaces places, const int32_t* lengths, AttentionSizes s, Lsh lsh) {
  const int64_t n = s.sequences() * s.length;
  const Temporary<float> inverse(n), d(n), dk(n * s.e);
  find_inverse_norms(inverse.data(), q, s);
  launch("lsh_attention", attention_products_kernel, over(32 * n), d.data(), dy, y, s.length, s.heads, s.m, n);
  const HeadRows<const float> q_rows(q, s.length, s.heads, s.e);
  const HeadRows<const float> v_rows(v, s.length, s.heads, s.m), dy_rows(dy, s.length, s.heads, s.m);
  LshArguments x = arguments(inverse.data(), l, lengths, s);
  x.d = d.data();
  for (int64_t round = 0; round < lsh.rounds; ++round) {
    x.a = x.b = x.c = q_rows;
    x.g = dy_rows, x.h = v_rows;
    x.out = HeadRows<float>(dq, s.length, s.heads, s.e);
    launch_round<SoftmaxResult::dq>(x, places, s, lsh, round);
    x.g = v_rows, x.h = dy_rows;
    x.out = HeadRows<float>(dk.data(), s.length, s.heads, s.e);
    launch_round<SoftmaxResult::dk>(x, places, s, lsh, round);
    x.c = dy_rows;
    x.out = HeadRows<float>(dv, s.length, s.heads, s.m);
    launch_round<SoftmaxResult::dv>(x, places, s, lsh, round);
  }
  launch("lsh_attention", lsh_attention_keys_kernel, over(32 * n), dq, dk.data(), q, inverse.data(), s.length, s.heads,
         s.e, n);
  clear_padding(dq, lengths, s.batch, s.length, s.heads * s.e);
  clear_padding(dv, lengths, s.batch, s.length, s.heads * s.m);
}

}  // namespace runnel::cuda
