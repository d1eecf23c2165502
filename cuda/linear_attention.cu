// Linear attention, causal or not: feature map, numerator and normaliser in one op (eq. 4-12).
// ops/linear_attention.cpp has the derivation; with q, k = phi(Q), phi(K), g_i = dy_i / n_i and
// d_i = -(dy_i . y_i) / n_i the four results of the causal form are
//
//   y_i  = sum_{j<=i} (q_i . k_j) v_j / n_i          n_i = sum_{j<=i} q_i . k_j + eps
//   dq_i = sum_{j<=i} (g_i . v_j + d_i) k_j
//   dk_j = sum_{i>=j} (v_j . g_i + d_i) q_i          phi' leads back to Q and K
//   dv_j = sum_{i>=j} (k_j . q_i) g_i
//
// and all are one scan, out_i = sum_{j<=i} (a_i . b_j + t_i u_j) c_j, the last two with positions counted from the end:
// so there is one kernel, and a table, `roles`, of what a, b, c, t and u are. A block walks along one head with 32
// columns of c, and keeps sums over all positions before its chunk of 32. In a chunk, whose rows are the positions,
//
//   out = mask(a b^T + t u^T) c + a S + t Z^T,   S += b^T c,   Z += c^T u   (dq: t = d, u = 1; dk: t = 1, u = d)
//   n   = mask(a b^T) 1 + a Z + eps,             Z += b^T 1                 (y, which is divided by it)
//
// with a and b taken 32 columns at a time. Two teams of two warps work side by side: one on a b^T, then on S; the other
// on a S, then on the rest of out. Every product is of 32 x 32 tiles (tiles.h), in float32 or on the tensor cores.
//
// If there are fewer heads than the machine wants blocks, each is cut into segments, as many as the machine's size says
// and not as L does: sum_kernel gives every segment's S and Z, prefix_kernel turns them into those before the segments.
//
// 1 / n_i and d_i, which only a walk from the left can know, are left by a scan of their own, for the three gradients,
// in the first two numbers of dk_i, which is written last; or in memory of their own if a row of dk has no room for
// two, or if several blocks write it and none may do so while another still reads.
//
// Where all queries see all keys, sum_kernel and prefix_kernel give the S and Z of whole heads, and full_kernel is
// out_i = a_i S + t_i Z for the same a and t; 1 / n_i and d_i then lie in dq_i.
//
// A key that nobody sees, and its value, read as 0 where they are b and c, and hide_kernel clears their rows of dk and
// dv.
#include <algorithm>
#include <type_traits>

#include "cuda/temporary.h"
#include "cuda/tiles.h"
#include "engine/numerics.h"
#include "ops/kernels.h"

namespace runnel::cuda {
namespace {

constexpr float eps = normaliser_eps;

// The feature map, and phi'(x). All threads take the same way, so that one kernel can serve all maps.
struct Phi {
  FeatureMap map;
  __device__ float operator()(float x) const {
    if (map == FeatureMap::none) return x;
    if (map == FeatureMap::relu) return (x < 0 ? 0 : x) + 1e-3f;
    return x > 0 ? x + 1 : expf(x);
  }
  __device__ float slope(float x) const {
    if (map == FeatureMap::none) return 1;
    if (map == FeatureMap::relu) return x > 0 ? 1 : 0;
    return x > 0 ? 1 : expf(x);
  }
};

// How heads are cut. The x index of a block is that of its head times the segments plus that of its segment.
struct Cut {
  int64_t length, heads, segments, segment;  // segment: positions in each but the last, a multiple of the tile
};

// S [E,M] and Z [E] before each segment of each head; no data: zero.
struct States {
  float* data;
  int64_t e, m;
  __host__ __device__ int64_t size() const { return e * m + e; }
};

enum class Result { y, normaliser, dq, dk, dv };
enum class As { is, features, divided };  // x, phi(x), x / n
enum class Bias { none, row, column };    // d_i or d_j

struct Roles {
  As a, b, c;
  Bias bias;
  bool normalised;  // is 1 / n computed
};
constexpr Roles roles(Result result) {
  switch (result) {
    case Result::dq:
      return {As::divided, As::is, As::features, Bias::row, false};  // g, v, k
    case Result::dk:
      return {As::is, As::divided, As::features, Bias::column, false};  // v, g, q
    case Result::dv:
      return {As::features, As::features, As::divided, Bias::none, false};  // k, q, g
    default:
      return {As::features, As::features, As::is, Bias::none, true};  // q, k, v
  }
}

struct Scan {
  Rows<const float> a, b, c;
  Rows<float> out;
  Rows<const float> x;      // dq, dk: what phi' is taken at
  Rows<const float> dy, y;  // normaliser: what d comes from
  Rows<float> normaliser;   // 1 / n_i and d_i
  States states;
  Cut cut;
  Phi phi;
  const int32_t* lengths;  // [B], or null: keys from there on are not seen

  __device__ int64_t keys(int64_t head) const { return lengths ? lengths[head / cut.heads] : cut.length; }
};

// What a number is stored as in a tile.
template <class Tile, As as>
struct Stored {
  float inverse;  // 1 / n of its position
  Phi phi;
  __device__ float operator()(float x) const {
    return Tile::rounded(as == As::features ? phi(x) : as == As::divided ? x * inverse : x);
  }
};

__device__ float sum_of(const Piece<4>& x) { return x.at[0] + x.at[1] + x.at[2] + x.at[3]; }
__device__ float dot(const Piece<4>& x, const Piece<4>& y) {
  return x.at[0] * y.at[0] + x.at[1] * y.at[1] + x.at[2] * y.at[2] + x.at[3] * y.at[3];
}
// The sum over the lanes that share a row.
__device__ float row_sum(float x, int lanes = 8) {
  for (int distance = lanes / 2; distance > 0; distance /= 2) x += __shfl_xor_sync(all_lanes, x, distance);
  return x;
}

// Launch: x: heads times segments, y: tiles of 32 columns of the result; `loaders` threads.
// Owns:   the block 32 columns of the result in one segment; of a chunk of it, a warp of the second team 16 rows.
// Shared: a, b^T, c and the weights mask(a b^T + t u^T) of one chunk; S and Z; d.
template <class Tile, Result result>
__global__ void __launch_bounds__(loaders, 4) linear_attention_kernel(Scan scan) {
  constexpr Roles role = roles(result);
  constexpr bool normalised = role.normalised, biased = role.bias != Bias::none;
  constexpr bool has_columns = result != Result::normaliser;
  const int slices = (scan.a.width + tile - 1) / tile;

  Shared shared;
  float* const a = shared.take<float>(tile * left_row);
  float* const bt = shared.take<float>(tile * left_row);
  float* const weights = shared.take<float>(tile * left_row);
  float* const c = shared.take<float>(tile * right_row);
  float* const s = shared.take<float>(static_cast<unsigned>(slices * tile * right_row));
  float* const z = shared.take<float>(static_cast<unsigned>(slices * tile));
  float* const ds = shared.take<float>(tile);

  const int64_t head = blockIdx.x / scan.cut.segments, begin = blockIdx.x % scan.cut.segments * scan.cut.segment;
  const int64_t end = min(begin + scan.cut.segment, scan.cut.length);
  const int64_t key_end = normalised || role.bias == Bias::row ? min(end, scan.keys(head)) : end;  // if keys are b or c
  const int first_column = static_cast<int>(blockIdx.y) * tile;
  for (auto* rows : {&scan.a, &scan.b, &scan.c, &scan.x, &scan.dy, &scan.y}) rows->select(head, scan.cut.heads);
  scan.out.select(head, scan.cut.heads);
  scan.normaliser.select(head, scan.cut.heads);

  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  const bool first_team = thread < team;
  // Rows and columns as a warp reads and writes them when it does not multiply: eight lanes to a row.
  const int row0 = thread % team / 32 * 16 + lane / 8, column = lane % 8 * 4;

  {
    const States& states = scan.states;
    const float* const state = states.data ? states.data + blockIdx.x * states.size() : nullptr;
    const int64_t step_row = biased ? 1 : states.m, step_column = biased ? states.m : 1;  // S or its transpose
    if constexpr (has_columns)
      for (int i = thread; i < slices * tile * tile; i += loaders) {
        const int row = i / tile, at = first_column + i % tile;
        s[row * right_row + i % tile] =
            state && row < scan.a.width && at < scan.c.width ? state[row * step_row + at * step_column] : 0;
      }
    for (int i = thread; i < slices * tile; i += loaders) {
      const int at = biased ? first_column + i : i;
      z[i] = state && at < states.e ? state[states.e * states.m + at] : 0;
    }
  }

  Fetched next_a, next_b, next_c;
  float next_inverse = 0, next_d = 0;  // of the row that this thread fetches
  const auto fetch = [&](int64_t first, int slice) {
    next_a.fetch(scan.a, first, end, slice * tile);
    next_b.fetch(scan.b, first, key_end, slice * tile);
    if (slice > 0) return;
    if constexpr (has_columns) next_c.fetch(scan.c, first, key_end, first_column);
    if constexpr (!normalised) {
      const int64_t position = first + Fetched::row();
      next_inverse = position < end ? scan.normaliser.at(position)[0] : 0;
      if constexpr (biased) next_d = position < end ? scan.normaliser.at(position)[1] : 0;
    }
  };

  Tile sum;    // first team: a b^T; second: out
  float n[4];  // normalisers of rows row0 + 4 i, one part in each of the eight lanes
  if (begin < end) fetch(begin, 0);
  for (int64_t first = begin; first < end; first += tile)
    for (int slice = 0; slice < slices; ++slice) {
      const bool last = slice + 1 == slices;
      float* const s_slice = s + slice * tile * right_row;
      float* const z_slice = z + slice * tile;

      next_a.store<left_row>(a, Stored<Tile, role.a>{next_inverse, scan.phi});
      next_b.store_transposed<left_row>(bt, Stored<Tile, role.b>{next_inverse, scan.phi});
      if (slice == 0) {
        if constexpr (has_columns) next_c.store<right_row>(c, Stored<Tile, role.c>{next_inverse, scan.phi});
        if (biased && thread % 4 == 0) ds[Fetched::row()] = next_d;
      }
      __syncthreads();

      if (!last)
        fetch(first, slice + 1);
      else if (first + tile < end)
        fetch(first + tile, 0);

      if (first_team) {
        if (slice == 0) sum.clear();
        sum.template add<left_row>(a, bt);
        if (last) {
          sum.each([&](int i, int j, float& x) {
            if constexpr (biased) x += ds[role.bias == Bias::row ? i : j];
            x = j <= i ? Tile::rounded(x) : 0;
          });
          sum.template store<left_row>(weights);
        }
      } else {
        if (slice == 0) {
          sum.clear();
          if constexpr (biased)
            sum.each([&](int i, int j, float& x) { x = role.bias == Bias::row ? ds[i] * z[j] : z[j]; });
          for (float& x : n) x = 0;
        }
        if constexpr (has_columns) sum.template add<right_row, tile, Right::exact>(a, s_slice);
        if constexpr (normalised)
          for (int i = 0; i < 4; ++i)
            n[i] += dot(load<4>(a + (row0 + 4 * i) * left_row + column), load<4>(z_slice + column));
      }
      __syncthreads();  // the weights are there, and the old S and Z have been read

      if (first_team) {
        if constexpr (has_columns) {
          Tile state;
          state.template load<right_row>(s_slice);
          state.template add<right_row>(bt, c);
          state.template store<right_row>(s_slice);
        }
        if constexpr (normalised)
          for (int i = 0; i < 4; ++i) {
            const float total = row_sum(sum_of(load<4>(bt + (row0 + 4 * i) * left_row + column)));
            if (column == 0) z_slice[row0 + 4 * i] += total;
          }
        if (biased && last && thread < 32) {
          float total = 0;
          for (int j = 0; j < tile; ++j) total += (role.bias == Bias::column ? ds[j] : 1) * c[j * right_row + lane];
          z[lane] += total;
        }
      } else if (last) {
        [[maybe_unused]] Piece<4> x[4];  // loaded before they are needed
        if constexpr (normalised)
          for (int i = 0; i < 4; ++i)
            n[i] = 1 / (row_sum(n[i] + sum_of(load<4>(weights + (row0 + 4 * i) * left_row + column))) + eps);
        if constexpr (has_columns) {
          if constexpr (biased)
            for (int i = 0; i < 4; ++i)
              if (first + row0 + 4 * i < end) x[i] = scan.x.load(first + row0 + 4 * i, first_column + column);
          sum.template add<right_row>(weights, c);
          __syncwarp();
          sum.template store<left_row>(weights);  // this warp alone has read these rows
          __syncwarp();
        }
        for (int i = 0; i < 4; ++i) {
          const int row = row0 + 4 * i;
          const int64_t position = first + row;
          if constexpr (has_columns) {
            if (position >= end) continue;
            Piece<4> out = load<4>(weights + row * left_row + column);
            if constexpr (biased) {
              for (int j = 0; j < 4; ++j) out.at[j] *= scan.phi.slope(x[i].at[j]);
            } else if constexpr (normalised) {
              for (float& number : out.at) number *= n[i];
            }
            scan.out.store(position, first_column + column, out);
          } else {
            float product = 0;
            if (position < end)
              for (int m = column; m < scan.y.width; m += tile)
                product += dot(scan.dy.load(position, m), scan.y.load(position, m));
            product = row_sum(product);
            if (position < end && column == 0) {
              scan.normaliser.at(position)[0] = n[i];
              scan.normaliser.at(position)[1] = -product * n[i];
            }
          }
        }
      }
      __syncthreads();  // all tiles have been read
    }
}

// S = sum b_j c_j^T and Z = sum b_j over each segment; if weighted, c_j / n_j and d_j b_j.
// Launch: x: heads times segments, y, z: tiles of S; `loaders` threads.
// Owns:   the block a tile of S, and the first of a row of tiles their part of Z; a team half of the positions.
// Shared: b^T, c and d of one chunk.
template <class Tile, bool weighted>
__global__ void __launch_bounds__(loaders, 4) linear_attention_sum_kernel(Scan scan) {
  Shared shared;
  float* const bt = shared.take<float>(tile * left_row);
  float* const c = shared.take<float>(tile * right_row);
  float* const ds = shared.take<float>(tile);

  const int64_t head = blockIdx.x / scan.cut.segments, begin = blockIdx.x % scan.cut.segments * scan.cut.segment;
  const int64_t end = min(begin + scan.cut.segment, scan.cut.length);
  const int64_t key_end = weighted ? end : min(end, scan.keys(head));
  const int first_row = static_cast<int>(blockIdx.y) * tile, first_column = static_cast<int>(blockIdx.z) * tile;
  scan.b.select(head, scan.cut.heads);
  scan.c.select(head, scan.cut.heads);
  scan.normaliser.select(head, scan.cut.heads);

  const int thread = static_cast<int>(threadIdx.x);
  const int half = thread / team * (tile / 2);
  const int row0 = thread / 8, column = thread % 8 * 4;  // for Z: rows row0 and row0 + 16, eight lanes to a row

  Fetched next_b, next_c;
  float next_inverse = 1, next_d = 1;
  const auto fetch = [&](int64_t first) {
    next_b.fetch(scan.b, first, key_end, first_row);
    next_c.fetch(scan.c, first, key_end, first_column);
    if constexpr (weighted) {
      const int64_t position = first + Fetched::row();
      next_inverse = position < end ? scan.normaliser.at(position)[0] : 0;
      next_d = position < end ? scan.normaliser.at(position)[1] : 0;
    }
  };

  Tile sum;
  sum.clear();
  float z[2] = {0, 0};
  if (begin < end) fetch(begin);
  for (int64_t first = begin; first < end; first += tile) {
    next_b.store_transposed<left_row>(bt, Stored<Tile, As::features>{next_inverse, scan.phi});
    next_c.store<right_row>(c, Stored < Tile, weighted ? As::divided : As::is > {next_inverse, scan.phi});
    if (thread % 4 == 0) ds[Fetched::row()] = next_d;
    __syncthreads();
    if (first + tile < end) fetch(first + tile);
    sum.template add<right_row, tile / 2>(bt + half, c + half * right_row);
    for (int i = 0; i < 2; ++i) z[i] += dot(load<4>(bt + (row0 + 16 * i) * left_row + column), load<4>(ds + column));
    __syncthreads();
  }

  if (thread >= team) sum.template store<right_row>(c);
  __syncthreads();
  if (thread < team) {
    sum.each([&](int i, int j, float& x) { x += c[i * right_row + j]; });
    sum.template store<right_row>(c);
  }
  __syncthreads();
  const States& states = scan.states;
  float* const state = states.data + blockIdx.x * states.size();
  for (int i = thread; i < tile * tile; i += loaders) {
    const int row = first_row + i / tile, at = first_column + i % tile;
    if (row < states.e && at < states.m) state[row * states.m + at] = c[i / tile * right_row + i % tile];
  }
  for (int i = 0; i < 2; ++i) {
    const float total = row_sum(z[i]);
    const int row = first_row + row0 + 16 * i;
    if (blockIdx.z == 0 && column == 0 && row < states.e) state[states.e * states.m + row] = total;
  }
}

// Turns the sums over the segments into the states before them; s1 and z1 become the states after the last.
// Launch: a thread per number of a state. Owns: this number in all segments of a head.
__global__ void linear_attention_prefix_kernel(States states, float* s1, float* z1, const float* s0, const float* z0,
                                               int64_t heads, int64_t segments) {
  const int64_t size = states.size(), matrix = states.e * states.m;
  for (int64_t i = first_element(); i < heads * size; i += element_step()) {
    const int64_t head = i / size, at = i % size;
    float* const own = states.data + head * segments * size + at;
    const int64_t outside = at < matrix ? head * matrix + at : head * states.e + at - matrix;
    const float* const initial = at < matrix ? s0 : z0;
    float* const final = at < matrix ? s1 : z1;
    float before = initial ? initial[outside] : 0;
#pragma unroll 4
    for (int64_t segment = 0; segment < segments; ++segment) {
      const float sum = own[segment * size];
      own[segment * size] = before;
      before += sum;
    }
    if (final) final[outside] = before;
  }
}

// Zero where nobody sees the key: rows of x [B,S,H,width] from lengths[b] on.
// Launch: a thread per number. Owns: this number. Shared: none.
__global__ void linear_attention_hide_kernel(float* x, const int32_t* lengths, int64_t batch, int64_t keys,
                                             int64_t row) {
  for (int64_t i = first_element(); i < batch * keys * row; i += element_step())
    if (i / row % keys >= lengths[i / row / keys]) x[i] = 0;
}

// out_i = a_i S + t_i Z, divided by n_i if it is y, with S [E,M] and Z [E] of whole heads.
// Launch: x: heads times tiles of 32 positions, y: tiles of 32 columns of the result; `loaders` threads.
// Owns:   the block a tile of the result; in the product, a team half of the depth; else a thread a quarter of a row.
// Shared: 32 columns of a, 32 rows of S and 32 numbers of Z; then the result.
template <Result result>
__global__ void __launch_bounds__(loaders, 4) full_linear_attention_kernel(Scan scan, const float* s, const float* z) {
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

  const int thread = static_cast<int>(threadIdx.x), row = Fetched::row(), part = thread % 4 * 8;
  const int half = thread / team * (tile / 2);
  const int64_t position = first + row;
  float inverse = 1, d = 1;
  if (result == Result::dq && position < length) {
    inverse = scan.normaliser.at(position)[0];
    d = scan.normaliser.at(position)[1];
  }

  Float32 sum;
  float n = 0;
  for (int slice = 0; slice < scan.a.width; slice += tile) {
    Fetched next;
    next.fetch(scan.a, first, length, slice);
    __syncthreads();  // the last slice has been read
    next.store<left_row>(as, Stored<Float32, role.a>{inverse, scan.phi});
    for (int i = thread; i < tile * tile; i += loaders) {
      const int at_row = slice + i / tile, at = first_column + i % tile;
      ss[i / tile * right_row + i % tile] =
          at_row < scan.a.width && at < scan.out.width ? s[at_row * step_row + at * step_column] : 0;
    }
    if (thread < tile) {
      const int at = (biased ? first_column : slice) + thread;
      zs[thread] = at < e ? z[at] : 0;
    }
    __syncthreads();
    sum.add<right_row, tile / 2>(as + half, ss + half * right_row);
    if constexpr (role.normalised)
      for (int i = part; i < part + 8; i += 4) n += dot(load<4>(as + row * left_row + i), load<4>(zs + i));
  }
  __syncthreads();
  if (thread >= team) sum.store<left_row>(as);
  __syncthreads();
  if (thread < team) {
    sum.each([&](int i, int j, float& x) { x += as[i * left_row + j]; });
    sum.store<left_row>(as);
  }
  __syncthreads();
  if constexpr (role.normalised) inverse = 1 / (row_sum(n, 4) + eps);
  if (position >= length) return;
  for (int column = part; column < part + 8; column += 4) {
    Piece<4> out = load<4>(as + row * left_row + column);
    if constexpr (biased) {
      const Piece<4> x = scan.x.load(position, first_column + column);
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
    Rows<const float> q = scan.a, dy = scan.dy, y = scan.y;
    Rows<float> to = scan.normaliser;
    for (auto* rows : {&q, &dy, &y}) rows->select(head, scan.cut.heads);
    to.select(head, scan.cut.heads);
    float n = 0, product = 0;
    for (int c = lane; c < q.width; c += 32) n += scan.phi(q.at(position)[c]) * z[head * q.width + c];
    for (int c = lane; c < y.width; c += 32) product += dy.at(position)[c] * y.at(position)[c];
    const float inverse = 1 / (warp_sum(n) + eps);
    product = warp_sum(product);
    if (lane == 0) {
      to.at(position)[0] = inverse;
      to.at(position)[1] = -product * inverse;
    }
  }
}

constexpr int step_threads = 256;

// One position: S1 = S0 + k v^T, y = q^T S1 / n. `lanes`, a power of two, is how many threads share a row of S.
// Launch: a block per head.
// Owns:   a thread `width` columns of every (step_threads / lanes)-th row.
// Shared: the sums of each warp.
template <int width>
__global__ void __launch_bounds__(step_threads)
    linear_attention_step_kernel(float* y, float* s1, float* z1, const float* q, const float* k, const float* v,
                                 const float* s0, const float* z0, int64_t e, int64_t m, Phi phi, int lanes) {
  constexpr int warps = step_threads / 32;
  Shared shared;
  Piece<width>* const sums = shared.take<Piece<width>>(step_threads);
  float* const normalisers = shared.take<float>(warps);

  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % lanes;
  const int64_t head = blockIdx.x;
  q += head * e, k += head * e, v += head * m, y += head * m;
  s0 += head * e * m, s1 += head * e * m, z0 += head * e, z1 += head * e;

  float inverse = 0;
  for (int64_t first = 0; first < m; first += lanes * width) {
    const int64_t column = first + lane * width;
    const bool inside = column < m;
    Piece<width> value{}, sum{};
    float normaliser = 0;  // all threads of a row add up the same
    if (inside) value = load<width>(v + column);
#pragma unroll 4
    for (int64_t i = thread / lanes; i < e; i += step_threads / lanes) {
      const float qi = phi(q[i]), ki = phi(k[i]);
      if (first == 0) normaliser += qi * (z0[i] + ki);
      if (!inside) continue;
      Piece<width> s = load<width>(s0 + i * m + column);
#pragma unroll
      for (int j = 0; j < width; ++j) sum.at[j] += qi * (s.at[j] += ki * value.at[j]);
      store(s1 + i * m + column, s);
    }
    for (int distance = 16; distance >= lanes; distance /= 2) {
#pragma unroll
      for (float& x : sum.at) x += __shfl_xor_sync(all_lanes, x, distance);
      normaliser += __shfl_xor_sync(all_lanes, normaliser, distance);
    }
    __syncthreads();  // the sums of the columns before have been read
    if (thread % 32 < lanes) sums[warp * 32 + lane] = sum;
    if (thread % 32 == 0) normalisers[warp] = normaliser;
    __syncthreads();
    if (first == 0) {
      inverse = eps;
      for (int w = 0; w < warps; ++w) inverse += normalisers[w];
      inverse = 1 / inverse;
      for (int64_t i = thread; i < e; i += step_threads) z1[i] = z0[i] + phi(k[i]);
    }
    if (thread < lanes && inside) {
      Piece<width> total{};
      for (int w = 0; w < warps; ++w)
        for (int j = 0; j < width; ++j) total.at[j] += sums[w * 32 + lane].at[j];
      for (float& x : total.at) x *= inverse;
      store(y + column, total);
    }
  }
}

// --- host ------------------------------------------------------------------------------------------------------------

unsigned tiles(int64_t width) { return static_cast<unsigned>((width + tile - 1) / tile); }

// Segments for about four blocks on each multiprocessor, but of two chunks at least.
class Segments {
 public:
  Segments(int64_t batch, int64_t length, int64_t heads, int64_t tiles_of_result) : sequences_(batch * heads) {
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
  int64_t most_states(int64_t e, int64_t m) const { return sequences_ * most_ * States{nullptr, e, m}.size(); }

 private:
  int64_t sequences_, most_;
  Cut cut_;
};

// Clears the rows of dk and dv that belong to keys from lengths[b] on.
void hide(float* dk, float* dv, const int32_t* lengths, int64_t batch, int64_t keys, int64_t heads, int64_t e,
          int64_t m) {
  if (!lengths) return;
  launch("linear_attention", linear_attention_hide_kernel, over(batch * keys * heads * e), dk, lengths, batch, keys,
         heads * e);
  launch("linear_attention", linear_attention_hide_kernel, over(batch * keys * heads * m), dv, lengths, batch, keys,
         heads * m);
}

template <Result result>
void launch_scan(const Scan& scan, const Segments& segments) {
  const unsigned slices = tiles(scan.a.width);
  const size_t shared = SharedBytes()
                            .add<float>(tile * left_row)
                            .add<float>(tile * left_row)
                            .add<float>(tile * left_row)
                            .add<float>(tile * right_row)
                            .add<float>(slices * tile * right_row)
                            .add<float>(slices * tile)
                            .add<float>(tile)
                            .bytes();
  const unsigned columns = result == Result::normaliser ? 1 : tiles(scan.c.width);
  launch(
      "linear_attention",
      precision() == Precision::f32 ? linear_attention_kernel<Float32, result> : linear_attention_kernel<Tf32, result>,
      Grid{dim3(segments.blocks(), columns), dim3(loaders), shared}, scan);
}

// Fills scan.states from scan.b and scan.c, and s1 and z1 if they are wanted.
template <bool weighted>
void launch_states(const Scan& scan, float* s1, float* z1, const float* s0, const float* z0, const Segments& segments) {
  const size_t shared = SharedBytes().add<float>(tile * left_row).add<float>(tile * right_row).add<float>(tile).bytes();
  launch("linear_attention",
         precision() == Precision::f32 ? linear_attention_sum_kernel<Float32, weighted>
                                       : linear_attention_sum_kernel<Tf32, weighted>,
         Grid{dim3(segments.blocks(), tiles(scan.states.e), tiles(scan.states.m)), dim3(loaders), shared}, scan);
  launch("linear_attention", linear_attention_prefix_kernel, over(segments.sequences() * scan.states.size()),
         scan.states, s1, z1, s0, z0, segments.sequences(), segments.cut().segments);
}

// scan.out from S and Z.
template <Result result>
void launch_full(const Scan& scan, const float* s, const float* z, int64_t sequences) {
  const size_t shared = SharedBytes().add<float>(tile * left_row).add<float>(tile * right_row).add<float>(tile).bytes();
  launch("full_linear_attention", full_linear_attention_kernel<result>,
         Grid{dim3(static_cast<unsigned>(sequences) * tiles(scan.cut.length), tiles(scan.out.width)), dim3(loaders),
              shared},
         scan, s, z);
}

// The S [N,E,M] and Z [N,E] of whole heads, from scan.b and scan.c over positions [0, length).
class Totals {
 public:
  Totals(Scan scan, int64_t sequences, int64_t length, bool weighted)
      : matrices_(sequences * scan.states.e * scan.states.m), data_(sequences * scan.states.size()) {
    const Segments segments(sequences / scan.cut.heads, length, scan.cut.heads,
                            tiles(scan.states.e) * tiles(scan.states.m));
    const Temporary<float> states(segments.most_states(scan.states.e, scan.states.m));
    scan.states.data = states.data();
    scan.cut = segments.cut();
    float *const s = data_.data(), *const z = s + matrices_;
    weighted ? launch_states<true>(scan, s, z, nullptr, nullptr, segments)
             : launch_states<false>(scan, s, z, nullptr, nullptr, segments);
  }
  const float* s() const { return data_.data(); }
  const float* z() const { return data_.data() + matrices_; }

 private:
  int64_t matrices_;
  Temporary<float> data_;
};

template <int width>
void launch_step(float* y, float* s1, float* z1, const float* q, const float* k, const float* v, const float* s0,
                 const float* z0, int64_t sequences, int64_t e, int64_t m, Phi phi) {
  int lanes = 1;
  while (lanes < 32 && lanes * width < m) lanes *= 2;
  SharedBytes shared;
  shared.add<Piece<width>>(step_threads);
  shared.add<float>(step_threads / 32);
  launch("linear_attention", linear_attention_step_kernel<width>,
         Grid{dim3(static_cast<unsigned>(sequences)), dim3(step_threads), shared.bytes()}, y, s1, z1, q, k, v, s0, z0,
         e, m, phi, lanes);
}

}  // namespace

void linear_attention_forward(float* y, float* s1, float* z1, const float* q, const float* k, const float* v,
                              const float* s0, const float* z0, int64_t batch, int64_t length, int64_t heads, int64_t e,
                              int64_t m, FeatureMap map, const int32_t* lengths) {
  if (batch * heads == 0) return;
  if (length == 1 && s0 && s1)
    return in_fours(m, y, s1, v, s0) ? launch_step<4>(y, s1, z1, q, k, v, s0, z0, batch * heads, e, m, Phi{map})
                                     : launch_step<1>(y, s1, z1, q, k, v, s0, z0, batch * heads, e, m, Phi{map});
  const Segments segments(batch, length, heads, tiles(m));
  const bool has_states = segments.cut().segments > 1 || s0 || s1;
  const Temporary<float> states(has_states ? segments.most_states(e, m) : 0);

  Scan scan{};
  scan.a = Rows<const float>(q, length, heads, e);
  scan.b = Rows<const float>(k, length, heads, e);
  scan.c = Rows<const float>(v, length, heads, m);
  scan.out = Rows<float>(y, length, heads, m);
  scan.states = {states.data(), e, m};
  scan.cut = segments.cut();
  scan.phi = {map};
  scan.lengths = lengths;
  if (has_states) launch_states<false>(scan, s1, z1, s0, z0, segments);
  launch_scan<Result::y>(scan, segments);
}

void linear_attention_backward(float* dq, float* dk, float* dv, const float* dy, const float* y, const float* q,
                               const float* k, const float* v, const float* s0, const float* z0, int64_t batch,
                               int64_t length, int64_t heads, int64_t e, int64_t m, FeatureMap map,
                               const int32_t* lengths) {
  if (batch * heads == 0) return;
  const Segments segments(batch, length, heads, tiles(e));
  const bool is_cut = segments.cut().segments > 1;
  const Temporary<float> memory(is_cut || s0 ? segments.most_states(e, m) : 0);
  const States states{memory.data(), e, m}, zero{nullptr, e, m};

  const bool in_dk = e >= 2 && e <= tile;
  const Temporary<float> apart(in_dk ? 0 : 2 * batch * length * heads);
  float* const normalisers = in_dk ? dk : apart.data();
  const int64_t width = in_dk ? e : 2;

  bool from_the_right = false;
  const auto rows = [&](auto* x, int64_t columns) {
    return Rows<std::remove_pointer_t<decltype(x)>>(x, length, heads, columns, from_the_right);
  };
  Scan scan{};
  scan.cut = segments.cut();
  scan.phi = {map};
  scan.lengths = lengths;
  scan.normaliser = rows(normalisers, width);
  scan.dy = rows(dy, m);
  scan.y = rows(y, m);
  if (is_cut || s0) {
    scan.states = states;
    scan.b = rows(k, e), scan.c = rows(v, m);
    launch_states<false>(scan, nullptr, nullptr, s0, z0, segments);
  }
  scan.a = rows(q, e), scan.b = rows(k, e);
  launch_scan<Result::normaliser>(scan, segments);
  scan.a = rows(dy, m), scan.b = rows(v, m), scan.c = rows(k, e), scan.out = rows(dq, e), scan.x = rows(q, e);
  launch_scan<Result::dq>(scan, segments);

  from_the_right = true;
  scan.normaliser = rows(normalisers, width);
  scan.states = is_cut ? states : zero;
  if (is_cut) {
    scan.b = rows(q, e), scan.c = rows(dy, m);
    launch_states<true>(scan, nullptr, nullptr, nullptr, nullptr, segments);
  }
  scan.a = rows(k, e), scan.b = rows(q, e), scan.c = rows(dy, m), scan.out = rows(dv, m);
  launch_scan<Result::dv>(scan, segments);
  scan.a = rows(v, m), scan.b = rows(dy, m), scan.c = rows(q, e), scan.out = rows(dk, e), scan.x = rows(k, e);
  launch_scan<Result::dk>(scan, segments);
  hide(dk, dv, lengths, batch, length, heads, e, m);
}

void full_linear_attention_forward(float* y, const float* q, const float* k, const float* v, const int32_t* lengths,
                                   FeatureMap map, AttentionSizes sizes) {
  const int64_t length = sizes.length, keys = sizes.key_length, heads = sizes.heads, e = sizes.e, m = sizes.m;
  const int64_t sequences = sizes.batch * heads;
  if (sequences == 0) return;
  Scan scan{};
  scan.states = {nullptr, e, m};
  scan.cut.heads = heads;
  scan.phi = {map};
  scan.lengths = lengths;
  scan.b = Rows<const float>(k, keys, heads, e);
  scan.c = Rows<const float>(v, keys, heads, m);
  const Totals of_keys(scan, sequences, keys, false);
  scan.cut.length = length;
  scan.a = Rows<const float>(q, length, heads, e);
  scan.out = Rows<float>(y, length, heads, m);
  launch_full<Result::y>(scan, of_keys.s(), of_keys.z(), sequences);
}

void full_linear_attention_backward(float* dq, float* dk, float* dv, const float* dy, const float* y, const float* q,
                                    const float* k, const float* v, const int32_t* lengths, FeatureMap map,
                                    AttentionSizes sizes) {
  const int64_t length = sizes.length, keys = sizes.key_length, heads = sizes.heads, e = sizes.e, m = sizes.m;
  const int64_t sequences = sizes.batch * heads;
  if (sequences == 0) return;
  const bool in_dq = e >= 2 && e <= tile;
  const Temporary<float> apart(in_dq ? 0 : 2 * sequences * length);
  const Rows<const float> q_rows(q, length, heads, e), dy_rows(dy, length, heads, m), y_rows(y, length, heads, m);
  const Rows<const float> k_rows(k, keys, heads, e), v_rows(v, keys, heads, m);

  Scan scan{};
  scan.states = {nullptr, e, m};
  scan.cut.heads = heads;
  scan.phi = {map};
  scan.lengths = lengths;
  scan.b = k_rows, scan.c = v_rows;
  const Totals of_keys(scan, sequences, keys, false);

  scan.cut.length = length;
  scan.normaliser = Rows<float>(in_dq ? dq : apart.data(), length, heads, in_dq ? e : 2);
  scan.a = q_rows, scan.dy = dy_rows, scan.y = y_rows;
  launch("full_linear_attention", full_linear_attention_normaliser_kernel, over(32 * sequences * length), scan,
         of_keys.z(), sequences * length);
  scan.b = q_rows, scan.c = dy_rows;
  const Totals of_queries(scan, sequences, length, true);
  scan.a = dy_rows, scan.x = q_rows, scan.out = Rows<float>(dq, length, heads, e);
  launch_full<Result::dq>(scan, of_keys.s(), of_keys.z(), sequences);

  scan.cut.length = keys;
  scan.a = v_rows, scan.x = k_rows, scan.out = Rows<float>(dk, keys, heads, e);
  launch_full<Result::dk>(scan, of_queries.s(), of_queries.z(), sequences);
  scan.a = k_rows, scan.out = Rows<float>(dv, keys, heads, m);
  launch_full<Result::dv>(scan, of_queries.s(), of_queries.z(), sequences);
  hide(dk, dv, lengths, sizes.batch, keys, heads, e, m);
}

}  // namespace runnel::cuda
