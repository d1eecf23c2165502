// Linear attention where every query sees all keys. linear_attention.cu sums up the S and Z of whole heads; here
// out_i = a_i S + t_i Z for the same a and t as in the causal form (linear_attention.h). 1 / n_i and d_i are left in
// dq_i, or in memory of their own if a row of dq has no room for two numbers, or if several blocks write it.
#include "cuda/attention/linear_attention.h"
#include "ops/kernels/linear_attention.h"

namespace runnel::cuda {
namespace {

// out_i = a_i S + t_i Z, divided by n_i if it is y, with S [E,M] and Z [E] of whole heads.
// Launch: x: heads times tiles of 32 positions, y: tiles of 32 columns of the result; `block_threads` threads.
// Owns:   the block a tile of the result; in the product, a half half of the depth; else a thread a quarter of a row.
// Shared: 32 columns of a, 32 rows of S and 32 numbers of Z; then the result.
template <LinearResult result>
__global__ void __launch_bounds__(block_threads, 4)
    full_linear_attention_kernel(Scan scan, const float* s, const float* z) {
  constexpr Roles role = roles(result);
  constexpr bool biased = role.bias != Bias::none;
  Shared shared;
  float* const as = shared.take<float>(tile * left_row);
  float* const ss = shared.take<float>(tile * right_row);
  float* const zs = shared.take<float>(tile);

  const int64_t length = scan.cut.length, row_tiles = (length + tile - 1) / tile, e = scan.states.e, m = scan.states.m;
  const int64_t head = blockIdx.x / row_tiles, first = blockIdx.x % row_tiles * tile;
  const int first_column = static_cast<int>(blockIdx.y) * tile;
  for (auto* rows : {&scan.a, &scan.x}) rows->select(head, scan.cut.heads);
  scan.out.select(head, scan.cut.heads);
  scan.normaliser.select(head, scan.cut.heads);
  s += head * e * m, z += head * e;
  const int64_t step_row = biased ? 1 : m, step_column = biased ? m : 1;  // S or its transpose

  const int thread = static_cast<int>(threadIdx.x), row = TileFragment::row(), part = thread % 4 * 8;
  const int half = thread / half_block * (tile / 2);
  const int64_t position = first + row;
  float inverse = 1, d = 1;
  if (result == LinearResult::dq && position < length) {
    inverse = scan.normaliser.at(position)[0];
    d = scan.normaliser.at(position)[1];
  }

  Float32 sum;
  float n = 0;
  for (int slice = 0; slice < scan.a.width; slice += tile) {
    TileFragment next;
    next.fetch(scan.a, first, length, slice);
    __syncthreads();  // the last slice has been read
    next.store<left_row>(as, Stored<Float32, role.a>{inverse, scan.phi, position < length ? scan.a.width - slice : 0});
    for (int i = thread; i < tile * tile; i += block_threads) {
      const int at_row = slice + i / tile, at = first_column + i % tile;
      ss[i / tile * right_row + i % tile] =
          at_row < scan.a.width && at < scan.out.width ? s[at_row * step_row + at * step_column] : 0;
    }
    if (thread < tile) {
      const int at = (biased ? first_column : slice) + thread;
      zs[thread] = at < e ? z[at] : 0;
    }
    __syncthreads();
    sum.add<Operand::rows, Operand::rows, tile / 2>(as, ss, half);
    if constexpr (role.normalised)
      for (int i = part; i < part + 8; i += 4) n += dot(load<4>(as + row * left_row + i), load<4>(zs + i));
  }
  __syncthreads();
  if (thread >= half_block) sum.store<left_row>(as);
  __syncthreads();
  if (thread < half_block) {
    sum.each([&](int i, int j, float& x) { x += as[i * left_row + j]; });
    sum.store<left_row>(as);
  }
  __syncthreads();
  if constexpr (role.normalised) inverse = 1 / (row_sum(n, 4) + normaliser_eps);
  if (position >= length) return;
  for (int column = part; column < part + 8; column += 4) {
    Vec<4> out = load<4>(as + row * left_row + column);
    if constexpr (biased) {
      const Vec<4> x = scan.x.load(position, first_column + column);
      for (int i = 0; i < 4; ++i) out.at[i] = (out.at[i] + d * zs[column + i]) * scan.phi.slope(x.at[i]);
    } else if constexpr (role.normalised) {
      for (float& number : out.at) number *= inverse;
    }
    scan.out.store(position, first_column + column, out);
  }
}

// 1 / n_i and d_i where all queries see all keys.
// Launch: a warp per query. Owns: the warp two numbers. Shared: none.
__global__ void full_linear_attention_normaliser_kernel(Scan scan, const float* z, int64_t queries) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int64_t i = first_element() / 32; i < queries; i += element_step() / 32) {
    const int64_t head = i / scan.cut.length, position = i % scan.cut.length;
    HeadRows<const float> q = scan.a, dy = scan.dy, y = scan.y;
    HeadRows<float> to = scan.normaliser;
    for (auto* rows : {&q, &dy, &y}) rows->select(head, scan.cut.heads);
    to.select(head, scan.cut.heads);
    float n = 0, product = 0;
    for (int c = lane; c < q.width; c += 32) n += scan.phi(q.at(position)[c]) * z[head * q.width + c];
    for (int c = lane; c < y.width; c += 32) product += dy.at(position)[c] * y.at(position)[c];
    const float inverse = 1 / (warp_sum(n) + normaliser_eps);
    product = warp_sum(product);
    if (lane == 0) {
      to.at(position)[0] = inverse;
      to.at(position)[1] = -product * inverse;
    }
  }
}

template <LinearResult result>
void launch_full(const Scan& scan, const float* s, const float* z, int64_t sequences) {
  const size_t shared = SharedBytes().add<float>(tile * left_row).add<float>(tile * right_row).add<float>(tile).bytes();
  launch("full_linear_attention", full_linear_attention_kernel<result>,
         Grid{dim3(static_cast<unsigned>(sequences) * tiles(scan.cut.length), tiles(scan.out.width)),
              dim3(block_threads), shared},
         scan, s, z);
}

// The S [N,E,M] and Z [N,E] of whole heads, from scan.b and scan.c over positions [0, length).
class HeadStates {
 public:
  HeadStates(Scan scan, int64_t sequences, int64_t length, bool weighted)
      : matrices_(sequences * scan.states.e * scan.states.m), data_(sequences * scan.states.size()) {
    const Segments segments(sequences, length, scan.cut.heads, tiles(scan.states.e) * tiles(scan.states.m));
    const Temporary<float> states(segments.max_states(scan.states.e, scan.states.m));
    scan.states.data = states.data();
    scan.cut = segments.cut();
    sum_segments(scan, weighted, segments);
    add_segments(data_.data(), data_.data() + matrices_, scan.states, segments);
  }
  const float* s() const { return data_.data(); }
  const float* z() const { return data_.data() + matrices_; }

 private:
  int64_t matrices_;
  Temporary<float> data_;
};

}  // namespace

void full_linear_attention_forward(float* y, const float* q, const float* k, const float* v, const int32_t* lengths,
                                   AttentionSizes s, FeatureMap map) {
  if (s.sequences() == 0) return;
  Scan scan{};
  scan.states.e = s.e, scan.states.m = s.m;
  scan.cut.heads = s.heads;
  scan.phi = {map};
  scan.lengths = lengths;
  scan.b = HeadRows<const float>(k, s.key_length, s.heads, s.e);
  scan.c = HeadRows<const float>(v, s.key_length, s.heads, s.m);
  const HeadStates of_keys(scan, s.sequences(), s.key_length, false);
  scan.cut.length = s.length;
  scan.a = HeadRows<const float>(q, s.length, s.heads, s.e);
  scan.out = HeadRows<float>(y, s.length, s.heads, s.m);
  launch_full<LinearResult::y>(scan, of_keys.s(), of_keys.z(), s.sequences());
}

void full_linear_attention_backward(float* dq, float* dk, float* dv, const float* dy, const float* y, const float* q,
                                    const float* k, const float* v, const int32_t* lengths, AttentionSizes s,
                                    FeatureMap map) {
  const int64_t sequences = s.sequences(), keys = s.key_length, queries = sequences * s.length;
  if (sequences == 0) return;
  const bool in_dq = s.e >= 2 && s.e <= tile;
  const Temporary<float> apart(in_dq ? 0 : 2 * queries);
  const HeadRows<const float> q_rows(q, s.length, s.heads, s.e), dy_rows(dy, s.length, s.heads, s.m);
  const HeadRows<const float> k_rows(k, keys, s.heads, s.e), v_rows(v, keys, s.heads, s.m);

  Scan scan{};
  scan.states.e = s.e, scan.states.m = s.m;
  scan.cut.heads = s.heads;
  scan.phi = {map};
  scan.lengths = lengths;
  scan.b = k_rows, scan.c = v_rows;
  const HeadStates of_keys(scan, sequences, keys, false);

  scan.cut.length = s.length;
  scan.normaliser = HeadRows<float>(in_dq ? dq : apart.data(), s.length, s.heads, in_dq ? s.e : 2);
  scan.a = q_rows, scan.dy = dy_rows, scan.y = HeadRows<const float>(y, s.length, s.heads, s.m);
  launch("full_linear_attention", full_linear_attention_normaliser_kernel, over(32 * queries), scan, of_keys.z(),
         queries);
  scan.b = q_rows, scan.c = dy_rows;
  const HeadStates of_queries(scan, sequences, s.length, true);
  scan.a = dy_rows, scan.x = q_rows, scan.out = HeadRows<float>(dq, s.length, s.heads, s.e);
  launch_full<LinearResult::dq>(scan, of_keys.s(), of_keys.z(), sequences);

  scan.cut.length = keys;
  scan.a = v_rows, scan.x = k_rows, scan.out = HeadRows<float>(dk, keys, s.heads, s.e);
  launch_full<LinearResult::dk>(scan, of_queries.s(), of_queries.z(), sequences);
  scan.a = k_rows, scan.out = HeadRows<float>(dv, keys, s.heads, s.m);
  launch_full<LinearResult::dv>(scan, of_queries.s(), of_queries.z(), sequences);
  clear_padding(dk, lengths, s.batch, keys, s.heads * s.e);
  clear_padding(dv, lengths, s.batch, keys, s.heads * s.m);
}

}  // namespace runnel::cuda
