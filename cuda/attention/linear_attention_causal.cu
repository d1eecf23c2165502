// Causal linear attention: one scan kernel that is y, dq, dk and dv. linear_attention.h has the definitions.
//
// A block scans one head with 32 columns of c, and keeps sums over all positions before its chunk of 32. In a chunk,
// whose rows are the positions,
//
//   out = mask(a b^T + t u^T) c + a S + t Z^T,   S += b^T c,   Z += c^T u   (dq: t = d, u = 1; dk: t = 1, u = d)
//   n   = mask(a b^T) 1 + a Z + eps,             Z += b^T 1                 (y, which is divided by it)
//
// with a and b taken 32 columns at a time. Two teams of two warps work side by side: one on a b^T, then on S; the other
// on a S, then on the rest of out. Every product is of 32 x 32 tiles (tiles.h), in float32 or on the tensor cores.
//
// If there are fewer heads than the machine wants blocks, each is cut into segments, as many as the machine's size says
// and not as L does (linear_attention.cu). Carried states are those before the first segment and after the last; the
// gradient of the final state is the state from which dk and dv start at the end, and what they end with is that of the
// initial one.
//
// 1 / n_i and d_i, which only a scan from the left can know, are left by a scan of their own, for the three gradients,
// in the first two numbers of dk_i, which is written last; or in memory of their own if a row of dk has no room for
// two, or if several blocks write it and none may do so while another still reads.
#include <type_traits>

#include "cuda/attention/linear_attention.h"
#include "engine/numerics.h"

namespace runnel::cuda {
namespace {

// Launch: x: heads times segments, y: tiles of 32 columns of the result; `loaders` threads.
// Owns:   the block 32 columns of the result in one segment; of a chunk of it, a warp of the second team 16 rows.
// Shared: a, b^T, c and the weights mask(a b^T + t u^T) of one chunk; S and Z; d.
template <class Tile, LinearResult result>
__global__ void __launch_bounds__(loaders, 4) causal_linear_attention_kernel(Scan scan) {
  constexpr Roles role = roles(result);
  constexpr bool normalised = role.normalised, biased = role.bias != Bias::none;
  constexpr bool has_columns = result != LinearResult::normaliser;
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
            n[i] = 1 / (row_sum(n[i] + sum_of(load<4>(weights + (row0 + 4 * i) * left_row + column))) + normaliser_eps);
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

template <LinearResult result>
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
  const unsigned columns = result == LinearResult::normaliser ? 1 : tiles(scan.c.width);
  launch("causal_linear_attention",
         precision() == Precision::f32 ? causal_linear_attention_kernel<Float32, result>
                                       : causal_linear_attention_kernel<Tf32, result>,
         Grid{dim3(segments.blocks(), columns), dim3(loaders), shared}, scan);
}

}  // namespace

void causal_linear_attention_forward(float* y, float* s1, float* z1, const float* q, const float* k, const float* v,
                                     const float* s0, const float* z0, const int32_t* lengths, AttentionSizes s,
                                     FeatureMap map) {
  if (s.sequences() == 0) return;
  const Segments segments(s.sequences(), s.length, s.heads, tiles(s.m));
  const bool has_states = segments.cut().segments > 1 || s0 || s1;
  const Temporary<float> states(has_states ? segments.most_states(s.e, s.m) : 0);

  Scan scan{};
  scan.a = HeadRows<const float>(q, s.length, s.heads, s.e);
  scan.b = HeadRows<const float>(k, s.length, s.heads, s.e);
  scan.c = HeadRows<const float>(v, s.length, s.heads, s.m);
  scan.out = HeadRows<float>(y, s.length, s.heads, s.m);
  scan.states = {states.data(), s.e, s.m};
  scan.cut = segments.cut();
  scan.phi = {map};
  scan.lengths = lengths;
  if (has_states) find_states(scan, false, s1, z1, s0, z0, segments);
  launch_scan<LinearResult::y>(scan, segments);
}

void causal_linear_attention_backward(float* dq, float* dk, float* dv, float* ds0, float* dz0, const float* dy,
                                      const float* ds1, const float* dz1, const float* y, const float* q,
                                      const float* k, const float* v, const float* s0, const float* z0,
                                      const int32_t* lengths, AttentionSizes s, FeatureMap map) {
  if (s.sequences() == 0) return;
  const Segments segments(s.sequences(), s.length, s.heads, tiles(s.e));
  const bool is_cut = segments.cut().segments > 1, from_left = is_cut || s0, from_right = is_cut || ds0 || ds1;
  const Temporary<float> memory(from_left || from_right ? segments.most_states(s.e, s.m) : 0);
  const States states{memory.data(), s.e, s.m}, zero{nullptr, s.e, s.m};

  const bool in_dk = s.e >= 2 && s.e <= tile;
  const Temporary<float> apart(in_dk ? 0 : 2 * s.sequences() * s.length);
  float* const normalisers = in_dk ? dk : apart.data();
  const int64_t width = in_dk ? s.e : 2;

  bool reversed = false;
  const auto rows = [&](auto* x, int64_t columns) {
    return HeadRows<std::remove_pointer_t<decltype(x)>>(x, s.length, s.heads, columns, reversed);
  };
  Scan scan{};
  scan.cut = segments.cut();
  scan.phi = {map};
  scan.lengths = lengths;
  scan.normaliser = rows(normalisers, width);
  scan.dy = rows(dy, s.m);
  scan.y = rows(y, s.m);
  scan.states = from_left ? states : zero;
  if (from_left) {
    scan.b = rows(k, s.e), scan.c = rows(v, s.m);
    find_states(scan, false, nullptr, nullptr, s0, z0, segments);
  }
  scan.a = rows(q, s.e), scan.b = rows(k, s.e);
  launch_scan<LinearResult::normaliser>(scan, segments);
  scan.a = rows(dy, s.m), scan.b = rows(v, s.m), scan.c = rows(k, s.e), scan.out = rows(dq, s.e), scan.x = rows(q, s.e);
  launch_scan<LinearResult::dq>(scan, segments);

  reversed = true;
  scan.normaliser = rows(normalisers, width);
  scan.states = from_right ? states : zero;
  if (from_right) {
    scan.b = rows(q, s.e), scan.c = rows(dy, s.m);
    find_states(scan, true, ds0, dz0, ds1, dz1, segments);
  }
  scan.a = rows(k, s.e), scan.b = rows(q, s.e), scan.c = rows(dy, s.m), scan.out = rows(dv, s.m);
  launch_scan<LinearResult::dv>(scan, segments);
  scan.a = rows(v, s.m), scan.b = rows(dy, s.m), scan.c = rows(q, s.e), scan.out = rows(dk, s.e), scan.x = rows(k, s.e);
  launch_scan<LinearResult::dk>(scan, segments);
  clear_padding(dk, lengths, s.batch, s.length, s.heads * s.e);
  clear_padding(dv, lengths, s.batch, s.length, s.heads * s.m);
}

}  // namespace runnel::cuda
