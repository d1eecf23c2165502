// Causal linear attention: one scan kernel that is y, dq, dk and dv. linear_attention.h has the definitions.
//
// A block scans one head with 32 columns of c, and keeps sums over all positions before its chunk of 32. In a chunk,
// whose rows are the positions,
//
//   out = mask(a b^T + t u^T) c + a S + t Z^T,   S += b^T c,   Z += c^T u   (dq: t = d, u = 1; dk: t = 1, u = d)
//   n   = mask(a b^T) 1 + a Z + eps,             Z += b^T 1                 (y, which is divided by it)
//
// with a and b taken 32 columns at a time. Two halves of the block, of two warps each, work side by side: one on a b^T,
// then on S; the other on a S, then on the rest of out. Every product is of 32 x 32 tiles (tiles.h), in float32 or on
// the tensor cores.
//
// If there are fewer heads than the machine wants blocks, each is cut into segments, as many as the machine's size says
// and not as L does: linear_attention.cu sums up the contributions of each to the state, and a scan begins with the
// sums before its own. Carried states are those before the first segment and after the last; the gradient of the final
// state is the state from which dk and dv start at the end, and their last state is the gradient of the initial one.
//
// 1 / n_i and d_i, which only a scan from the left can know, are left for dk and dv in the first two numbers of dk_i,
// or in memory of their own if a row of dk has no room for two, or several blocks write it. For E, M <= 32, they are
// found with dq, from n_i = q_i . Z_i and n_i d_i = -dy_i . y_i,
//
//   n_i dq_i = sum_{j<=i} (dy_i . v_j) k_j + n_i d_i Z_i          Z_i = sum_{j<=i} k_j
//
// and dk and dv are one launch; since dk is then written while dv is computed, dv_i begins with 1 / n_i, too. Otherwise
// a scan of its own finds them, and dv is computed before dk.
#include <type_traits>

#include "cuda/attention/linear_attention.h"
#include "ops/kernels/linear_attention.h"
#include "ops/numerics.h"

namespace runnel::cuda {
namespace {

__device__ inline void leave_normaliser(const Scan& scan, int position, float inverse, float n_d) {
  scan.normaliser.at(position)[0] = inverse;
  scan.normaliser.at(position)[1] = n_d * inverse;
  if (scan.normaliser_for_dv.data) scan.normaliser_for_dv.at(position)[0] = inverse;
}

// One tile of 32 columns of a result, in one segment. narrow: E, M <= 32; then a has one slice.
template <class Tile, LinearResult result, bool narrow>
__device__ void scan_segment(Scan scan, int tile_of_result) {
  constexpr Roles role = roles(result);
  constexpr bool normalised = role.normalised, biased = role.bias != Bias::none,
                 with_normaliser = result == LinearResult::dq_and_normaliser;
  constexpr bool has_columns = result != LinearResult::normaliser, has_slope = biased || with_normaliser;
  const int slices = narrow ? 1 : (scan.a.width + tile - 1) / tile;

  Shared shared;
  float* const a = shared.take<float>(tile * left_row);        // [32,32]: positions of the chunk, columns of the slice
  float* const b = shared.take<float>(tile * left_row);        // the same
  float* const weights = shared.take<float>(tile * left_row);  // [32,32]: mask(a b^T + t u^T), then out
  float* const c = shared.take<float>(tile * right_row);       // [32,32]: positions, columns of the result
  float* const s = shared.take<float>(static_cast<unsigned>(slices * tile * right_row));  // [32 slices,32]: S
  float* const z = shared.take<float>(static_cast<unsigned>(slices * tile));              // [32 slices]: Z
  float* const ds = shared.take<float>(tile);                                             // [32]: d_i, or n_i d_i
  float* const running_z = shared.take<float>(with_normaliser ? tile * left_row : 0);     // [32,32]: Z_i

  const int64_t head = blockIdx.x / scan.cut.segments, segment = blockIdx.x % scan.cut.segments;
  const int64_t begin = segment * scan.cut.segment;
  // Positions are counted from the segment's first on.
  const int end = static_cast<int>(max(int64_t{0}, min(scan.cut.segment, scan.cut.length - begin)));
  const int keys = static_cast<int>(max(int64_t{0}, min(scan.cut.segment, scan.keys(head) - begin)));
  const int key_end =
      normalised || role.bias == Bias::row || with_normaliser ? min(end, keys) : end;  // if keys are b or c
  const int first_column = tile_of_result * tile;
  for (auto* rows : {&scan.a, &scan.b, &scan.c, &scan.x, &scan.dy, &scan.y}) rows->select(head, scan.cut.heads, begin);
  for (auto* rows : {&scan.out, &scan.normaliser, &scan.normaliser_for_dv}) rows->select(head, scan.cut.heads, begin);

  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  const bool in_first_half = thread < half_block;
  // Rows and columns as a warp reads and writes them when it does not multiply: eight lanes to a row.
  const int row0 = thread % half_block / 32 * 16 + lane / 8, column = lane % 8 * 4;

  const States& states = scan.states;
  const int64_t step_row = has_slope ? 1 : states.m, step_column = has_slope ? states.m : 1;  // S or its transpose
  if constexpr (has_columns)
    for (int i = thread; i < slices * tile * tile; i += block_threads) {
      const int row = i / tile, at = first_column + i % tile;
      s[row * right_row + i % tile] =
          row < scan.a.width && at < scan.c.width
              ? states.before(head, scan.cut.segments, segment, row * step_row + at * step_column)
              : 0;
    }
  for (int i = thread; i < slices * tile; i += block_threads) {
    const int at = has_slope ? first_column + i : i;
    z[i] = at < states.e ? states.before(head, scan.cut.segments, segment, states.e * states.m + at) : 0;
  }

  TileFragment next_a, next_b, next_c;
  [[maybe_unused]] TileFragment next_y;
  float next_inverse = 0, next_d = 0;  // of the row that this thread fetches
  const auto fetch = [&](int first, int slice) {
    next_a.fetch(scan.a, first, end, slice * tile);
    next_b.fetch(scan.b, first, key_end, slice * tile);
    if (slice > 0) return;
    if constexpr (has_columns) next_c.fetch(scan.c, first, key_end, first_column);
    if constexpr (with_normaliser) next_y.fetch(scan.y, first, end, 0);
    if constexpr (!normalised && !with_normaliser) {
      const int position = first + TileFragment::row();
      next_inverse = position < end ? scan.normaliser.at(position)[0] : 0;
      if constexpr (biased) next_d = position < end ? scan.normaliser.at(position)[1] : 0;
    }
  };

  Tile sum;    // first half: a b^T; second: out
  float n[4];  // normalisers of rows row0 + 4 i, one part in each of the eight lanes
  if (end > 0) fetch(0, 0);
  for (int first = 0; first < end; first += tile)
    for (int slice = 0; slice < slices; ++slice) {
      const bool last = slice + 1 == slices;
      float* const s_slice = s + slice * tile * right_row;
      float* const z_slice = z + slice * tile;

      const bool exists = first + TileFragment::row() < end, is_key = first + TileFragment::row() < key_end;
      const int column_of_slice = slice * tile;
      next_a.store<left_row>(a,
                             Stored<Tile, role.a>{next_inverse, scan.phi, exists ? scan.a.width - column_of_slice : 0});
      next_b.store<left_row>(b,
                             Stored<Tile, role.b>{next_inverse, scan.phi, is_key ? scan.b.width - column_of_slice : 0});
      if (slice == 0) {
        if constexpr (has_columns)
          next_c.store<right_row>(
              c, Stored<Tile, role.c>{next_inverse, scan.phi, is_key ? scan.c.width - first_column : 0});
        if constexpr (with_normaliser) next_d = -row_sum(next_a.dot(next_y), 4);  // a is dy
        if ((biased || with_normaliser) && thread % 4 == 0) ds[TileFragment::row()] = next_d;
      }
      __syncthreads();

      if (!last)
        fetch(first, slice + 1);
      else if (first + tile < end)
        fetch(first + tile, 0);

      if (in_first_half) {
        if (slice == 0) sum.clear();
        sum.template add<Operand::rows, Operand::transposed>(a, b);
        if (last) {
          sum.each([&](int i, int j, float& weight) {
            if constexpr (biased) weight += ds[role.bias == Bias::row ? i : j];
            weight = j <= i ? Tile::rounded(weight) : 0;
          });
          sum.template store<left_row>(weights);
        }
      } else {
        if (slice == 0) {
          sum.clear();
          for (float& part : n) part = 0;
          if (with_normaliser && thread < half_block + 32) {
            float total = z[lane];
#pragma unroll 8
            for (int j = 0; j < tile; ++j) running_z[j * left_row + lane] = total += c[j * right_row + lane];
            z[lane] = total;
          }
        }
        if (biased && last)
          sum.each([&](int i, int j, float& number) { number += role.bias == Bias::row ? ds[i] * z[j] : z[j]; });
        if constexpr (has_columns) sum.template add<Operand::rows, Operand::exact>(a, s_slice);
        if constexpr (normalised)
          for (int i = 0; i < 4; ++i)
            n[i] += dot(load<4>(a + (row0 + 4 * i) * left_row + column), load<4>(z_slice + column));
      }
      __syncthreads();  // the weights are there, and the old S and Z have been read

      if (in_first_half) {
        if constexpr (has_columns) {
          Tile state;
          state.template load<right_row>(s_slice);
          state.template add<Operand::transposed, Operand::rows>(b, c);
          state.template store<right_row>(s_slice);
        }
        if ((normalised || (biased && last)) && thread < 32) {
          float total = 0;
#pragma unroll 8
          for (int j = 0; j < tile; ++j) {
            if constexpr (normalised)
              total += b[j * left_row + lane];
            else
              total += (role.bias == Bias::column ? ds[j] : 1) * c[j * right_row + lane];
          }
          (normalised ? z_slice : z)[lane] += total;
        }
      } else if (last) {
        const auto x_of = [&](int i) {  // columns of row row0 + 4 i
          const int position = first + row0 + 4 * i;
          return position < end ? scan.x.load(position, first_column + column) : Vec<4>{};
        };
        [[maybe_unused]] Vec<4> x[4];  // loaded before they are needed
        if constexpr (has_columns && has_slope)
          for (int i = 0; i < 4; ++i) x[i] = x_of(i);
        if constexpr (normalised)
          for (int i = 0; i < 4; ++i) n[i] += sum_of(load<4>(weights + (row0 + 4 * i) * left_row + column));
        if constexpr (has_columns) {
          sum.template add<Operand::rows, Operand::rows>(weights, c);
          __syncwarp();
          sum.template store<left_row>(weights);  // this warp alone has read these rows
          __syncwarp();
        }
        [[maybe_unused]] float n_d[4];  // -dy_i . y_i
        for (int i = 0; i < 4; ++i) {
          if constexpr (with_normaliser) {
            const Vec<4> z_i = load<4>(running_z + (row0 + 4 * i) * left_row + column);
            for (int j = 0; j < 4; ++j) n[i] += scan.phi(x[i].at[j]) * z_i.at[j];  // 0 past the width
            n_d[i] = ds[row0 + 4 * i];
          } else if constexpr (!has_columns) {
            const int position = first + row0 + 4 * i;
            n_d[i] = 0;
            for (int m = column; position < end && m < scan.y.width; m += tile)
              n_d[i] -= dot(scan.dy.load(position, m), scan.y.load(position, m));
            n_d[i] = row_sum(n_d[i]);
          }
          // 1 / x would branch for subnormal numbers
          if constexpr (normalised || with_normaliser) n[i] = __fdividef(1, row_sum(n[i]) + normaliser_eps);
        }
        for (int i = 0; i < 4; ++i) {
          const int row = row0 + 4 * i;
          const int position = first + row;
          if (position >= end) continue;
          if constexpr (has_columns) {
            Vec<4> out = load<4>(weights + row * left_row + column), z_i{};
            if constexpr (with_normaliser) z_i = load<4>(running_z + row * left_row + column);
            for (int j = 0; j < 4; ++j) {
              if constexpr (with_normaliser) out.at[j] = (out.at[j] + n_d[i] * z_i.at[j]) * n[i];
              if constexpr (has_slope) out.at[j] *= scan.phi.slope(x[i].at[j]);
              if constexpr (normalised) out.at[j] *= n[i];
            }
            scan.out.store(position, first_column + column, out);
          }
          if ((!has_columns || with_normaliser) && column == 0) leave_normaliser(scan, position, n[i], n_d[i]);
        }
      }
      __syncthreads();  // all tiles have been read
    }
}

// Of the kernel below on a multiprocessor: with one more, registers would be spilled for some architecture.
template <class Tile>
constexpr int max_blocks(LinearResult result, bool narrow) {
  return narrow && (std::is_same<Tile, Tf32>::value || result == LinearResult::y) ? 4 : 3;
}

// Launch: x: heads times segments, y: tiles of 32 columns of the result; `block_threads` threads.
// Owns:   the block 32 columns of the result in one segment; of a chunk of it, a warp of the second half 16 rows.
// Shared: a, b, c and the weights mask(a b^T + t u^T) of one chunk; S and Z; d; for dq_and_normaliser, Z_i of each
// row.
template <class Tile, LinearResult result, bool narrow>
__global__ void __launch_bounds__(block_threads, max_blocks<Tile>(result, narrow))
    causal_linear_attention_kernel(Scan scan) {
  scan_segment<Tile, result, narrow>(scan, narrow ? 0 : static_cast<int>(blockIdx.y));
}

// dv and dk of E, M <= 32.
// Launch: x: heads times segments, y: 0 for dv, 1 for dk; `block_threads` threads.
// Owns, Shared: as above.
template <class Tile>
__global__ void __launch_bounds__(block_threads, 4) causal_linear_attention_backward_kernel(Scan dv, Scan dk) {
  if (blockIdx.y == 0)
    scan_segment<Tile, LinearResult::dv, true>(dv, 0);
  else
    scan_segment<Tile, LinearResult::dk, true>(dk, 0);
}

size_t shared_bytes(int64_t width_of_a, bool with_normaliser) {
  const unsigned slices = tiles(width_of_a);
  return SharedBytes()
      .add<float>(tile * left_row)
      .add<float>(tile * left_row)
      .add<float>(tile * left_row)
      .add<float>(tile * right_row)
      .add<float>(slices * tile * right_row)
      .add<float>(slices * tile)
      .add<float>(tile)
      .add<float>(with_normaliser ? tile * left_row : 0)
      .bytes();
}

bool is_narrow(const AttentionSizes& s) { return s.e <= tile && s.m <= tile; }

template <LinearResult result, bool narrow>
void launch_scan(const Scan& scan, const Segments& segments) {
  const unsigned columns = result == LinearResult::normaliser ? 1 : tiles(scan.c.width);
  launch("causal_linear_attention",
         precision() == Precision::f32 ? causal_linear_attention_kernel<Float32, result, narrow>
                                       : causal_linear_attention_kernel<Tf32, result, narrow>,
         Grid{dim3(segments.blocks(), columns), dim3(block_threads),
              shared_bytes(scan.a.width, result == LinearResult::dq_and_normaliser)},
         scan);
}

}  // namespace

void causal_linear_attention_forward(float* y, float* s1, float* z1, const float* q, const float* k, const float* v,
                                     const float* s0, const float* z0, const int32_t* lengths, AttentionSizes s,
                                     FeatureMap map) {
  if (s.sequences() == 0) return;
  const Segments segments(s.sequences(), s.length, s.heads, tiles(s.m));
  const bool is_summed = segments.cut().segments > 1 || s1;
  const Temporary<float> sums(is_summed ? segments.max_states(s.e, s.m) : 0);

  Scan scan{};
  scan.a = HeadRows<const float>(q, s.length, s.heads, s.e);
  scan.b = HeadRows<const float>(k, s.length, s.heads, s.e);
  scan.c = HeadRows<const float>(v, s.length, s.heads, s.m);
  scan.out = HeadRows<float>(y, s.length, s.heads, s.m);
  scan.states = {sums.data(), s.e, s.m, s0, z0};
  scan.cut = segments.cut();
  scan.phi = {map};
  scan.lengths = lengths;
  if (is_summed) sum_segments(scan, false, segments);
  is_narrow(s) ? launch_scan<LinearResult::y, true>(scan, segments)
               : launch_scan<LinearResult::y, false>(scan, segments);
  if (s1) add_segments(s1, z1, scan.states, segments);
}

void causal_linear_attention_backward(float* dq, float* dk, float* dv, float* ds0, float* dz0, const float* dy,
                                      const float* ds1, const float* dz1, const float* y, const float* q,
                                      const float* k, const float* v, const float* s0, const float* z0,
                                      const int32_t* lengths, AttentionSizes s, FeatureMap map) {
  if (s.sequences() == 0) return;
  const Segments from_left(s.sequences(), s.length, s.heads, tiles(s.e));
  const bool narrow = is_narrow(s);
  const Segments from_right(s.sequences(), s.length, s.heads, narrow ? 2 : tiles(s.e));
  const bool sum_left = from_left.cut().segments > 1, sum_right = from_right.cut().segments > 1 || ds0;
  const Temporary<float> sums(sum_left || sum_right ? from_left.max_states(s.e, s.m) : 0);

  const bool in_dk = s.e >= 2 && s.e <= tile;
  const Temporary<float> apart(in_dk ? 0 : 2 * s.sequences() * s.length);

  bool reversed = false;
  const auto rows = [&](auto* x, int64_t columns) {
    return HeadRows<std::remove_pointer_t<decltype(x)>>(x, s.length, s.heads, columns, reversed);
  };
  const auto normalisers = [&] { return in_dk ? rows(dk, s.e) : rows(apart.data(), 2); };
  Scan scan{};
  scan.cut = from_left.cut();
  scan.phi = {map};
  scan.lengths = lengths;
  scan.normaliser = normalisers();
  if (narrow) scan.normaliser_for_dv = rows(dv, s.m);
  scan.dy = rows(dy, s.m);
  scan.y = rows(y, s.m);
  scan.states = {sums.data(), s.e, s.m, s0, z0};
  if (sum_left) {
    scan.b = rows(k, s.e), scan.c = rows(v, s.m);
    sum_segments(scan, false, from_left);
  }
  if (!narrow) {
    scan.a = rows(q, s.e), scan.b = rows(k, s.e);
    launch_scan<LinearResult::normaliser, false>(scan, from_left);
  }
  scan.a = rows(dy, s.m), scan.b = rows(v, s.m), scan.c = rows(k, s.e), scan.out = rows(dq, s.e), scan.x = rows(q, s.e);
  narrow ? launch_scan<LinearResult::dq_and_normaliser, true>(scan, from_left)
         : launch_scan<LinearResult::dq, false>(scan, from_left);

  reversed = true;
  scan.cut = from_right.cut();
  scan.normaliser = normalisers();
  scan.states = {sums.data(), s.e, s.m, ds1, dz1};
  if (sum_right) {
    scan.b = rows(q, s.e), scan.c = rows(dy, s.m);
    sum_segments(scan, true, from_right);
  }
  scan.a = rows(v, s.m), scan.b = rows(dy, s.m), scan.c = rows(q, s.e), scan.out = rows(dk, s.e), scan.x = rows(k, s.e);
  Scan to_dv = scan;
  to_dv.a = rows(k, s.e), to_dv.b = rows(q, s.e), to_dv.c = rows(dy, s.m), to_dv.out = rows(dv, s.m);
  if (narrow) {
    to_dv.normaliser = rows(dv, s.m);
    launch("causal_linear_attention",
           precision() == Precision::f32 ? causal_linear_attention_backward_kernel<Float32>
                                         : causal_linear_attention_backward_kernel<Tf32>,
           Grid{dim3(from_right.blocks(), 2), dim3(block_threads), shared_bytes(tile, false)}, to_dv, scan);
  } else {
    launch_scan<LinearResult::dv, false>(to_dv, from_right);
    launch_scan<LinearResult::dk, false>(scan, from_right);
  }
  if (ds0) add_segments(ds0, dz0, scan.states, from_right);
  clear_padding(dk, lengths, s.batch, s.length, s.heads * s.e);
  clear_padding(dv, lengths, s.batch, s.length, s.heads * s.m);
}

}  // namespace runnel::cuda
