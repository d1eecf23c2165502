// Shared by the kernels of linear attention. ops/cpu/attention/linear_attention.h has the derivation; with q, k =
// phi(Q), phi(K), g_i = dy_i / n_i and d_i = -(dy_i . y_i) / n_i the four results of the causal form are
//
//   y_i  = sum_{j<=i} (q_i . k_j) v_j / n_i          n_i = sum_{j<=i} q_i . k_j + eps
//   dq_i = sum_{j<=i} (g_i . v_j + d_i) k_j
//   dk_j = sum_{i>=j} (v_j . g_i + d_i) q_i          phi' leads back to Q and K
//   dv_j = sum_{i>=j} (k_j . q_i) g_i
//
// and all are one scan, out_i = sum_{j<=i} (a_i . b_j + t_i u_j) c_j, the last two with positions counted from the end:
// so there is one kernel, and a table, `roles`, of the roles of a, b, c, t and u. Where every query sees all keys, the
// sums are those of whole heads.
//
// Padding keys and their values read as 0 where they are b and c, and their rows of dk and dv are cleared at the end.
#pragma once
#include <algorithm>

#include "cuda/attention/tiles.h"
#include "cuda/temporary.h"
#include "ops/types.h"

namespace runnel::cuda {

// The feature map, and phi'(x). The threads of a warp never diverge: `map` is the same for all of them, and where their
// x differ in sign, elu computes both sides: e^0 = 1 for the positive ones.
struct Phi {
  FeatureMap map;
  __device__ float operator()(float x) const {
    if (map == FeatureMap::identity) return x;
    const float positive = x > 0 ? x : 0;
    return positive + (map == FeatureMap::relu ? 1e-3f : expf(x > 0 ? 0 : x));
  }
  __device__ float slope(float x) const {
    if (map != FeatureMap::elu_plus_one) return x > 0 ? 1 : 0;
    return expf(x > 0 ? 0 : x);
  }
};

// How heads are cut into segments. The x index of a block is that of its head times the segments plus that of its
// segment.
struct Cut {
  int64_t length, heads, segments, segment;  // segment: positions in each but the last, a multiple of the tile
};

// S [E,M] and Z [E]: the sums over the positions of each segment of each head, and the initial state.
struct States {
  float* data;  // null: there is one segment
  int64_t e, m;
  const float *s0, *z0;  // null: zero
  __host__ __device__ int64_t size() const { return e * m + e; }

  // Number i of S, or of Z after S, before a segment. Segments are few, and their sums lie in the cache: to add those
  // before its own costs a block less than a launch that would do it for all.
  __device__ float before(int64_t head, int64_t segments, int64_t segment, int64_t i) const {
    const int64_t matrix = e * m;
    const float* const initial = i < matrix ? s0 : z0;
    float sum = initial ? initial[i < matrix ? head * matrix + i : head * e + i - matrix] : 0;
#pragma unroll 4
    for (int64_t n = 0; n < segment; ++n) sum += data[(head * segments + n) * size() + i];
    return sum;
  }
};

enum class LinearResult { y, normaliser, dq, dq_and_normaliser, dk, dv };
enum class As { is, features, divided };  // x, phi(x), x / n
enum class Bias { none, row, column };    // d_i or d_j

struct Roles {
  As a, b, c;
  Bias bias;
  bool normalised;  // is n found from a, b and Z
};
constexpr Roles roles(LinearResult result) {
  switch (result) {
    case LinearResult::dq:
      return {As::divided, As::is, As::features, Bias::row, false};  // g, v, k
    case LinearResult::dq_and_normaliser:
      return {As::is, As::is, As::features, Bias::none, false};  // dy, v, k
    case LinearResult::dk:
      return {As::is, As::divided, As::features, Bias::column, false};  // v, g, q
    case LinearResult::dv:
      return {As::features, As::features, As::divided, Bias::none, false};  // k, q, g
    default:
      return {As::features, As::features, As::is, Bias::none, true};  // q, k, v
  }
}

struct Scan {
  HeadRows<const float> a, b, c;
  HeadRows<float> out;
  HeadRows<const float> x;            // dq, dk: the argument of phi'
  HeadRows<const float> dy, y;        // normaliser, dq_and_normaliser (whose dy is a): d is computed from them
  HeadRows<float> normaliser;         // 1 / n_i and d_i
  HeadRows<float> normaliser_for_dv;  // normaliser, dq_and_normaliser: 1 / n_i once more, where dv is to find it
  States states;
  Cut cut;
  Phi phi;
  const int32_t* lengths;  // [B], or null: keys from there on are padding

  __device__ int64_t keys(int64_t head) const { return lengths ? lengths[head / cut.heads] : cut.length; }
};

// The type of a number stored in a tile.
template <class Tile, As as>
struct Stored {
  static constexpr bool of_zero_is_zero = as != As::features;
  float inverse;  // 1 / n of its position
  Phi phi;
  int width;  // see TileFragment::store
  __device__ float operator()(float x) const {
    return Tile::rounded(as == As::features ? phi(x) : as == As::divided ? x * inverse : x);
  }
};

__device__ inline float sum_of(const Vec<4>& x) { return x.at[0] + x.at[1] + x.at[2] + x.at[3]; }
__device__ inline float dot(const Vec<4>& x, const Vec<4>& y) {
  return x.at[0] * y.at[0] + x.at[1] * y.at[1] + x.at[2] * y.at[2] + x.at[3] * y.at[3];
}
// The sum over the lanes that share a row.
__device__ inline float row_sum(float x, int lanes = 8) {
  for (int distance = lanes / 2; distance > 0; distance /= 2) x += __shfl_xor_sync(all_lanes, x, distance);
  return x;
}

inline unsigned tiles(int64_t width) { return static_cast<unsigned>((width + tile - 1) / tile); }

// Segments for about four blocks on each multiprocessor, but of two chunks at least.
class Segments {
 public:
  Segments(int64_t sequences, int64_t length, int64_t heads, int64_t tiles_of_result) : sequences_(sequences) {
    const int64_t chunks = std::max<int64_t>(1, (length + tile - 1) / tile);
    most_ = std::max<int64_t>(1, 4 * multiprocessors() / (sequences_ * tiles_of_result));
    const int64_t wanted = std::clamp<int64_t>(most_, 1, std::max<int64_t>(1, chunks / 2));
    const int64_t chunks_each = (chunks + wanted - 1) / wanted;
    cut_ = {length, heads, (chunks + chunks_each - 1) / chunks_each, chunks_each * tile};
  }
  const Cut& cut() const { return cut_; }
  unsigned blocks() const { return static_cast<unsigned>(sequences_ * cut_.segments); }
  int64_t sequences() const { return sequences_; }
  // Numbers in the states of as many segments as there may be, so that L does not matter.
  int64_t max_states(int64_t e, int64_t m) const { return sequences_ * most_ * (e * m + e); }

 private:
  int64_t sequences_, most_;
  Cut cut_;
};

// linear_attention.cu: fills scan.states.data with the S and Z that each segment adds, from scan.b and scan.c (if
// weighted, from b_j d_j and c_j / n_j).
void sum_segments(const Scan& scan, bool weighted, const Segments& segments);
// s [N,E,M], z [N,E] = the state after the last segment.
void add_segments(float* s, float* z, const States& states, const Segments& segments);

}  // namespace runnel::cuda
