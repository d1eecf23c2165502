// Reformer's attention by locality-sensitive hashing. ops/lsh_attention.cpp has the derivation; in the sorted order of
// a round, the query at a place sees the places [begin,end) but itself, and with k_j = q_j / |q_j|, x_ij = q_i . k_j /
// sqrt(E) and what forward keeps, l_i = log sum e^x_ij over all rounds, p_ij = e^(x_ij - l_i), the results are
//
//   y_i  = sum_j p_ij v_j                              found with a running maximum and sum, since l_i is not known yet
//   dq_i = sum_j s_ij k_j / sqrt(E)                    s_ij = p_ij (dy_i . v_j - d_i),   d_i = dy_i . y_i
//   dk_j = sum_i s_ij q_i / sqrt(E)                    which leads on to dq_j += (dk_j - (dk_j . k_j) k_j) / |q_j|
//   dv_j = sum_i p_ij dy_i
//
// One kernel is all four, as in softmax_attention.cu: each is out_r = sum_o w_ro c_o with weights from a_r . b_o (and,
// for s, from g_r . h_o), where r runs over the 32 places that a block owns, and o over those on the other side that
// matter to them, 32 at a time. A place stands for the row order[place]. Rounds are launched one after another: every
// row is at one place of each, so it has one owner at a time, who adds to what it finds.
#include <cmath>

#include "cuda/softmax.h"
#include "cuda/temporary.h"
#include "engine/numerics.h"
#include "ops/kernels.h"

namespace runnel::cuda {
namespace {

constexpr int hash_threads = 64;

// Key::normal, on the device; cospi, because cos keeps a table for large arguments on a stack.
// Launch: a thread per number. Owns: one number.
__global__ void lsh_rotations_kernel(float* rotations, Key key, int64_t n) {
  for (int64_t i = first_element(); i < n; i += element_step()) {
    const auto at = static_cast<uint64_t>(2 * i);
    const double radius = sqrt(-2 * log(static_cast<double>(key.uniform(at))));
    rotations[i] = static_cast<float>(radius * cospi(2.0 * key.uniform(at + 1)));
  }
}

// Launch: x: sequences times blocks of 64 positions, y: rounds.
// Owns:   a thread one position.
// Shared: q of these positions.
__global__ void __launch_bounds__(hash_threads)
    lsh_hash_kernel(int32_t* buckets, Rows<const float> q, const float* rotations, int64_t length, int64_t heads,
                    int half) {
  constexpr int columns = 4;  // of the rotation at a time
  const int e = q.width, row = e + 1;
  Shared shared;
  float* const rows = shared.take<float>(static_cast<unsigned>(hash_threads * row));
  const auto blocks = static_cast<unsigned>((length + hash_threads - 1) / hash_threads);
  const int64_t sequences = gridDim.x / blocks, n = blockIdx.x / blocks, round = blockIdx.y;
  const int64_t first = static_cast<int64_t>(blockIdx.x % blocks) * hash_threads;
  const int thread = static_cast<int>(threadIdx.x);
  q.select(n, heads);
  rotations += (round * heads + n % heads) * e * half;

  const int count = static_cast<int>(min(static_cast<int64_t>(hash_threads), length - first));
  for (int i = thread; i < count * e; i += hash_threads) rows[i / e * row + i % e] = q.at(first + i / e)[i % e];
  __syncthreads();
  if (thread >= count) return;

  float high = 0, low = 0;
  int highest = 0, lowest = 0;
  for (int c = 0; c < half; c += columns) {
    float sums[columns] = {};
    for (int i = 0; i < e; ++i)
#pragma unroll
      for (int s = 0; s < columns; ++s) sums[s] += rows[thread * row + i] * rotations[i * half + min(c + s, half - 1)];
#pragma unroll
    for (int s = 0; s < columns; ++s) {  // past the last one, it comes again, and changes nothing
      if (c + s == 0) high = low = sums[0];
      if (sums[s] > high) high = sums[s], highest = c + s;
      if (sums[s] < low) low = sums[s], lowest = c + s;
    }
  }
  buckets[(round * sequences + n) * length + first + thread] = high >= -low ? highest : half + lowest;
}

// Launch: a block per sequence.
// Owns:   a warp every so many-th bucket and the places of its positions.
// Shared: how many positions are in each bucket.
__global__ void __launch_bounds__(1024)
    lsh_sort_kernel(int32_t* order, int32_t* begin, int32_t* end, const int32_t* buckets, int length, int count,
                    int chunk, bool causal) {
  Shared shared;
  int* const sizes = shared.take<int>(static_cast<unsigned>(count));
  const int warps = static_cast<int>(blockDim.x) / 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t at = static_cast<int64_t>(blockIdx.x) * length;
  order += at, begin += at, end += at, buckets += at;

  for (int bucket = warp; bucket < count; bucket += warps) {
    int own = 0;
    for (int i = lane; i < length; i += 32) own += buckets[i] == bucket;
    own = warp_sum(own);
    if (lane == 0) sizes[bucket] = own;
  }
  __syncthreads();
  for (int bucket = warp; bucket < count; bucket += warps) {
    int before = 0;
    for (int other = lane; other < bucket; other += 32) before += sizes[other];
    const int bucket_begin = warp_sum(before), bucket_end = bucket_begin + sizes[bucket];
    int next = bucket_begin;
    for (int first = 0; next < bucket_end; first += 32) {
      const int i = first + lane;
      const bool here = i < length && buckets[i] == bucket;
      const unsigned all = __ballot_sync(all_lanes, here);
      if (here) {
        const int place = next + __popc(all & ((1u << lane) - 1)), chunk_begin = place / chunk * chunk;
        order[place] = i;
        begin[place] = max(bucket_begin, chunk_begin - chunk);
        end[place] = causal ? place : min(bucket_end, chunk_begin + chunk);
      }
      next += __popc(all);
    }
  }
}

// Largest and total of the exponentials that a query has found so far, [B,H,L].
struct Found {
  float *largest, *total;
};

struct Attention {
  Rows<const float> a, b, c, g, h;
  Rows<float> out;
  float* l;              // [B,H,L]: written for y, in the last round, else read
  const float* d;        // [B,H,L]
  const float* inverse;  // [B,H,L]: 1 / |q_j|
  Found before, after;   // y: two places, since the blocks of other columns read them, too
  LshPlaces places;      // of this round
  int64_t length, heads;
  float scale;
  bool first_round, last_round;
};

template <class Tile>
struct Stored {
  float factor = 1;
  __device__ float operator()(float x) const { return Tile::rounded(factor * x); }
};

// Launch: x: sequences times tiles of places, y: tiles of 32 columns of the result; `loaders` threads.
// Owns:   the block 32 places and columns of the result; where it works on rows of the weights, a thread a quarter of
//         one.
// Shared: shared_tiles; and what 32 queries, the rows or the others, see.
template <class Tile, Result result>
__global__ void __launch_bounds__(loaders, 4) lsh_attention_kernel(Attention x) {
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
  int* const seen_begin = shared.take<int>(tile);  // the places that each query sees
  int* const seen_end = shared.take<int>(tile);

  const int length = static_cast<int>(x.length), row_tiles = (length + tile - 1) / tile;
  const int n = static_cast<int>(blockIdx.x) / row_tiles, first = static_cast<int>(blockIdx.x) % row_tiles * tile;
  const int last = min(first + tile, length) - 1;
  const int64_t at = n * x.length;
  const int first_column = static_cast<int>(blockIdx.y) * tile;
  for (auto* rows : {&x.a, &x.b, &x.c, &x.g, &x.h}) rows->select(n, x.heads);
  x.out.select(n, x.heads);
  const int32_t *const order = x.places.order + at, *const begins = x.places.begin + at;
  const int32_t* const ends = x.places.end + at;
  const float* const inverse = x.inverse + at;

  const int thread = static_cast<int>(threadIdx.x), row = thread / 4, part = thread % 4 * 8;
  const bool first_team = thread < team;
  const int position = first + row < length ? order[first + row] : -1;

  Fetched next;
  for (int slice = 0; slice < slices; ++slice) {
    next.fetch_row(x.a, position, slice * tile);
    next.store<left_row>(a + slice * tile * left_row, Stored<Tile>{keys && position >= 0 ? inverse[position] : 1});
  }
  for (int slice = 0; slice < slices_g; ++slice) {
    next.fetch_row(x.g, position, slice * tile);
    next.store<left_row>(g + slice * tile * left_row, Stored<Tile>{});
  }
  const auto load_queries = [&](int from) {
    if (thread >= tile) return;
    const int place = from + thread;
    const bool exists = place < length;
    seen_begin[thread] = exists ? begins[place] : 0;
    seen_end[thread] = exists ? ends[place] : 0;
    if constexpr (!online) ls[thread] = exists ? x.l[at + order[place]] : 0;
    if constexpr (slopes) ds[thread] = exists ? x.d[at + order[place]] : 0;
  };
  if constexpr (!keys) load_queries(first);

  const bool known = online && !x.first_round && position >= 0;
  RunningSum sum;
  if (known) sum = {x.before.largest[at + position], x.before.total[at + position]};

  Tile products, out;  // first team: a b^T, and the result; second: g h^T
  out.clear();
  const int others_end = keys ? length : ends[last];
  for (int other = begins[first]; other < others_end; other += tile) {
    if (keys) {  // of the queries here, does any see a key of ours?
      if (begins[other] > last) break;
      if (ends[min(other + tile, length) - 1] <= first) continue;
    }
    const int other_position = other + row < length ? order[other + row] : -1;
    const Stored<Tile> key{!keys && other_position >= 0 ? inverse[other_position] : 1}, as_it_is{};
    products.clear();
    for (int slice = 0; slice < max(slices, slices_g); ++slice) {
      __syncthreads();  // the last ones have been read
      if (slice < slices) {
        next.fetch_row(x.b, other_position, slice * tile);
        next.store_transposed<left_row>(bt, key);
      }
      if (slice < slices_g) {
        next.fetch_row(x.h, other_position, slice * tile);
        next.store_transposed<left_row>(ht, as_it_is);
      }
      if (slice == 0) {
        next.fetch_row(x.c, other_position, first_column);
        next.store<right_row>(c, result == Result::dq ? key : as_it_is);
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
        const int query = keys ? o : r, mine = first + r, theirs = other + o, place = keys ? mine : theirs;
        const bool seen = seen_begin[query] <= place && place < seen_end[query] && mine != theirs;
        const float score = product * x.scale;
        if constexpr (online)
          product = seen ? score : -INFINITY;
        else
          product = seen ? expf(score - ls[query]) : 0;
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

  if (first_team) {
    if constexpr (slopes) out.each([&](int, int, float& number) { number *= x.scale; });
    out.template store<left_row>(weights);
  }
  __syncthreads();
  if (position < 0) return;
  const bool sees_nothing = online && sum.total == 0;
  if constexpr (online)
    if (part == 0 && blockIdx.y == 0) {
      if (x.last_round) {
        x.l[at + position] = sees_nothing ? INFINITY : sum.largest + logf(sum.total);
      } else {
        x.after.largest[at + position] = sum.largest;
        x.after.total[at + position] = sum.total;
      }
    }
  // What was there before this round stays, in y as far as it is not dwarfed. A query that sees nothing has y = v, and
  // so gives dy to dv.
  const float kept = known && sum.total > 0 ? expf(x.before.largest[at + position] - sum.largest) : 1;
  const float divisor = online && x.last_round && !sees_nothing ? sum.total : 1;
  const bool copies =
      online ? x.last_round && sees_nothing : result == Result::dv && x.first_round && x.l[at + position] == INFINITY;
  for (int i = 0; i < 8; i += 4) {
    const int column = first_column + part + i;
    if (column >= x.out.width) continue;
    Piece<4> values = load<4>(weights + row * left_row + part + i);
    Piece<4> old{};
    if (copies)
      old = x.c.load(position, column);
    else if (!x.first_round)
      old = x.out.load(position, column);
#pragma unroll
    for (int s = 0; s < 4; ++s) values.at[s] = (values.at[s] + kept * old.at[s]) / divisor;
    x.out.store(position, column, values);
  }
}

// inverse_i = 1 / |q_i|, or 0 where there is hardly a length to divide by.
// Launch: a warp per position. Owns: the warp one number.
__global__ void lsh_attention_lengths_kernel(float* inverse, const float* q, int64_t length, int64_t heads, int64_t e,
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

int64_t queries(const LshSizes& s) { return s.batch * s.heads * s.length; }

// What all results of one pass have in common.
Attention attention(const LshSizes& s, const float* inverse, float* l) {
  Attention x{};
  x.inverse = inverse;
  x.l = l;
  x.length = s.length;
  x.heads = s.heads;
  x.scale = 1 / std::sqrt(static_cast<float>(s.e));
  return x;
}

template <Result result>
void launch_round(Attention& x, const LshPlaces& places, const LshSizes& s, int64_t round) {
  const int64_t at = round * queries(s);
  x.places = {places.order + at, places.begin + at, places.end + at};
  x.first_round = round == 0;
  x.last_round = round + 1 == s.lsh.rounds;
  SharedBytes shared = shared_tiles(result, x.a.width, x.g.width);
  for (int i = 0; i < 2; ++i) shared.add<int>(tile);
  launch("lsh_attention",
         precision() == Precision::f32 ? lsh_attention_kernel<Float32, result> : lsh_attention_kernel<Tf32, result>,
         Grid{dim3(static_cast<unsigned>(s.batch * s.heads) * tiles(s.length), tiles(x.out.width)), dim3(loaders),
              shared.bytes()},
         x);
}

void find_lengths(float* inverse, const float* q, const LshSizes& s) {
  launch("lsh_attention", lsh_attention_lengths_kernel, over(32 * queries(s)), inverse, q, s.length, s.heads, s.e,
         queries(s));
}

}  // namespace

void lsh_rotations(float* rotations, Key key, int64_t n) {
  launch("lsh_rotations", lsh_rotations_kernel, over(n), rotations, key, n);
}

void lsh_hash(int32_t* buckets, const float* q, const float* rotations, int64_t batch, int64_t length, int64_t heads,
              int64_t e, Lsh lsh) {
  const int64_t blocks = batch * heads * ((length + hash_threads - 1) / hash_threads);
  launch("lsh_hash", lsh_hash_kernel,
         Grid{dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(lsh.rounds)), dim3(hash_threads),
              SharedBytes().add<float>(hash_threads * (e + 1)).bytes()},
         buckets, Rows<const float>(q, length, heads, e), rotations, length, heads, static_cast<int>(lsh.buckets / 2));
}

void lsh_sort(int32_t* order, int32_t* begin, int32_t* end, const int32_t* buckets, int64_t sequences, int64_t length,
              Lsh lsh, bool causal) {
  const unsigned warps = static_cast<unsigned>(std::min<int64_t>(lsh.buckets, 32));
  launch("lsh_sort", lsh_sort_kernel,
         Grid{dim3(static_cast<unsigned>(sequences)), dim3(32 * warps), SharedBytes().add<int>(lsh.buckets).bytes()},
         order, begin, end, buckets, static_cast<int>(length), static_cast<int>(lsh.buckets),
         static_cast<int>(lsh.chunk), causal);
}

void lsh_attention_forward(float* y, float* l, const float* q, const float* v, LshPlaces places, LshSizes s) {
  const int64_t n = queries(s);
  const Temporary<float> inverse(n), found(s.lsh.rounds > 1 ? 4 * n : 0);
  find_lengths(inverse.data(), q, s);
  Attention x = attention(s, inverse.data(), l);
  x.a = x.b = Rows<const float>(q, s.length, s.heads, s.e);
  x.c = Rows<const float>(v, s.length, s.heads, s.m);
  x.out = Rows<float>(y, s.length, s.heads, s.m);
  x.before = {found.data(), found.data() + n};
  x.after = {found.data() + 2 * n, found.data() + 3 * n};
  for (int64_t round = 0; round < s.lsh.rounds; ++round) {
    launch_round<Result::y>(x, places, s, round);
    std::swap(x.before, x.after);
  }
}

void lsh_attention_backward(float* dq, float* dv, const float* dy, const float* y, const float* l, const float* q,
                            const float* v, LshPlaces places, LshSizes s) {
  const int64_t n = queries(s);
  const Temporary<float> inverse(n), d(n), dk(n * s.e);
  find_lengths(inverse.data(), q, s);
  launch("lsh_attention", attention_products_kernel, over(32 * n), d.data(), dy, y, s.length, s.heads, s.m, n);
  const Rows<const float> q_rows(q, s.length, s.heads, s.e);
  const Rows<const float> v_rows(v, s.length, s.heads, s.m), dy_rows(dy, s.length, s.heads, s.m);
  Attention x = attention(s, inverse.data(), const_cast<float*>(l));  // only forward writes it
  x.d = d.data();
  for (int64_t round = 0; round < s.lsh.rounds; ++round) {
    x.a = x.b = x.c = q_rows;
    x.g = dy_rows, x.h = v_rows;
    x.out = Rows<float>(dq, s.length, s.heads, s.e);
    launch_round<Result::dq>(x, places, s, round);
    x.g = v_rows, x.h = dy_rows;
    x.out = Rows<float>(dk.data(), s.length, s.heads, s.e);
    launch_round<Result::dk>(x, places, s, round);
    x.c = dy_rows;
    x.out = Rows<float>(dv, s.length, s.heads, s.m);
    launch_round<Result::dv>(x, places, s, round);
  }
  launch("lsh_attention", lsh_attention_keys_kernel, over(32 * n), dq, dk.data(), q, inverse.data(), s.length, s.heads,
         s.e, n);
}

}  // namespace runnel::cuda
