// Gated linear attention: ops/cpu/attention/gated_linear_attention.cpp has the derivation.
//
// All of it is one scan, from the left or from the right, of a state X that has two writes: the first is read at its
// own position already, the second, which is subtracted, at the next.
//
//   X_t = kept_t X_{t-1} + b_t c_t^T - b'_t c'_t^T,   out_t = (X_t + b'_t c'_t^T)^T a_t
//
//           walk from   a    b   c    b'  c'
//   y       left        q    k   u
//   w       left        k             k   u    of -S; added to v. u_t = beta_t w_t is found on the way
//   du      right       k    q   dy   k   dv   dv_t = beta_t du_t is found on the way
//   dq      left        dy   u   k
//   erase   left        dv            u   k    of -S
//   D u     right       u    dy  q    dv  k
//
// The additive rule has u = beta v and no second writes. kept_t = e^g_t belongs to E: to the rows of X if b or b' is q
// or k, else to its columns. From the left it is that of position t, from the right that of the position walked before.
//
// A block walks along one sequence, in chunks of up to 32 positions. With C_i, the sum of ln kept over the positions of
// the chunk up to i but its first, and X from before, decayed to the first,
//
//   out = A X + mask(A B^T) c - strict mask(A B'^T) c',   A_i = e^C_i a_i,   B_j = e^-C_j b_j,   B'_j = e^-C_j b'_j
//   X := e^C_next (X + B^T c - B'^T c')
//
// or, if X decays by columns, with e^C at out and e^-C at c and c'; the diagonal belongs to the mask, but not to the
// strict one. Where |C| would exceed 60 the chunk ends, so that nothing overflows: strong decays make short chunks,
// even of one position. C is summed in double, and e^C is corrected for the rounding of C to float.
//
// If there are few sequences, each walk is cut into segments, a block each. What a segment does to X is linear: from X
// before it, P X + X' is left after it. A first launch finds X', as a walk that begins with zero (the first segment's
// with X before the walk), and P, as a walk that begins with the unit matrix, with c and v zero; a second joins them,
// one segment after another, to X before each; then all segments are walked at once. The scans of one side have the
// same X, or its transpose. P is finite where |k|^2 beta <= 2, as in all models with the delta rule: beyond that, it
// may overflow where X does not.
//
// Where c' is to be found, (1 + beta strict mask(A B'^T)) c' = beta r, with r the rest of out, is solved by
// substitution, in blocks of eight rows.
#include <type_traits>

#include "cuda/attention/tiles.h"
#include "cuda/launch.h"
#include "cuda/temporary.h"
#include "ops/kernels/gated_linear_attention.h"
#include "ops/numerics.h"

namespace runnel::cuda {
namespace {

constexpr double largest_exponent = 60;
constexpr int block_warps = block_threads / 32;

struct GatedScan {
  struct Rows {
    HeadRows<const float> of;  // no data: zero
    bool zero_in_padding, times_beta;
  };
  struct Write {
    Rows b, c;
    bool exists;
  };
  Rows a;
  Write writes[2];  // if c' is to be found, c' is what is added to out: v, or nothing
  HeadRows<float> out;
  HeadRows<const float> beta, g;  // no data: 1 and 0
  // X before the walk (null: zero) and after it (null: not wanted), and steps from a row and a column of it to the next
  // in them.
  const float* before;
  float* after;
  int64_t state_size, row_step, column_step;
  // Of the segments: their number, how many positions they have, and X before each but the first, decayed to its first
  // position. If `transitions` [sequences, segments - 1, E, E] are given, both are to be found, in walks of each
  // segment but the last; the first of each sequence is not needed.
  int segments, segment;
  float *starts, *transitions;
  int64_t heads;
  int length;
  const int32_t* lengths;
  bool from_the_right, decays_columns;
};

// One sequence, with its positions as its walk counts them. Padding neither writes nor decays.
struct Sequence {
  const GatedScan& scan;
  int64_t entry, head;  // entry of the batch
  int first_padding;
  HeadRows<const float> betas, g;

  __device__ Sequence(const GatedScan& all, int64_t n)
      : scan(all),
        entry(n / all.heads),
        head(n % all.heads),
        first_padding(all.lengths ? all.lengths[entry] : all.length),
        betas(own(all.beta)),
        g(own(all.g)) {}

  template <class T>
  __device__ HeadRows<T> own(HeadRows<T> rows) const {
    if (rows.data) rows.data += entry * rows.batch + head * rows.width;
    return rows;
  }
  __device__ bool is_padding(int i) const { return (scan.from_the_right ? scan.length - 1 - i : i) >= first_padding; }
  __device__ float beta(int i) const { return is_padding(i) ? 0 : betas.data ? *betas.at(i) : 1; }
  // ln kept of a channel at position i <= length, where `length` is the step that follows the last position.
  __device__ float log_kept(int i, int channel) const {
    i -= scan.from_the_right;
    if (g.width == 1) channel = 0;
    const bool exists = (g.data != nullptr) & (i >= 0) & (i < scan.length) & (channel < g.width) & !is_padding(i);
    return exists ? g.at(i)[channel] : 0;
  }
};

template <class Tile>
struct Rounded {
  static constexpr bool of_zero_is_zero = true;
  __device__ float operator()(float x) const { return Tile::rounded(x); }
};

size_t shared_bytes(const GatedScan& scan) {
  return SharedBytes()
      .add<float>((scan.a.of.width + tile - 1) / tile * tile * right_row)
      .add<float>(tile * left_row)
      .add<float>(tile * left_row)
      .add<float>(tile * right_row)
      .add<float>((tile + 1) * left_row)
      .add<float>(tile)
      .add<int>(block_warps)
      .bytes();
}

// Solves (1 + beta weights) c' = beta r for 32 columns, a lane each, with r at c, where -c' is left. Of each eight
// rows, one warp finds c'; then all warps take what these rows have written out of those below. Calls out(i, r_i less
// what earlier positions have written).
template <class Tile, class Out>
__device__ void substitute(float* c, const float* weights, const float* betas, Out out) {
  constexpr int rows = 8;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  c += lane;
  float written[rows];  // -c'
  for (int first = 0; first < tile; first += rows) {
    if (warp == 0) {
#pragma unroll
      for (int i = 0; i < rows; ++i) {
        const float* const row = weights + (first + i) * left_row + first;
        float rest = c[(first + i) * right_row];
#pragma unroll
        for (int j = 0; j < i; ++j) rest += row[j] * written[j];
        written[i] = -betas[first + i] * rest;
        c[(first + i) * right_row] = written[i];
        out(first + i, rest);
      }
    }
    __syncthreads();
#pragma unroll
    for (int j = 0; j < rows; ++j) written[j] = c[(first + j) * right_row];
    for (int i = first + rows + warp; i < tile; i += block_warps) {
      float sum = 0;
#pragma unroll
      for (int j = 0; j < rows; j += 4) {
        const Vec<4> x = load<4>(weights + i * left_row + first + j);
#pragma unroll
        for (int part = 0; part < 4; ++part) sum += x.at[part] * written[j + part];
      }
      c[i * right_row] += sum;
    }
    __syncthreads();
    if (warp == 0)
#pragma unroll
      for (int j = 0; j < rows; ++j) c[(first + j) * right_row] = Tile::rounded(written[j]);
  }
}

// Of the kernel below on a multiprocessor: with one more, registers would be spilled.
template <class Tile>
constexpr int max_blocks() {
  return std::is_same<Tile, Tf32>::value ? 4 : 3;
}

// Launch: x: sequences times segments, y: 32 columns of out each, then of P; `block_threads` threads.
// Owns:   the block its columns of out and of X, or of P. Of a chunk, the second half of the block computes out, of
//         which warp w owns rows [16 w, 16 w + 16), and the first half updates X; if c' is to be found, all warps share
//         the rows, and a lane has a column.
// Shared: X [E or M,32]; A, B and c of a chunk; e^C of 32 channels; beta; the size of the chunk as each warp finds it.
//         The weights mask(A B^T) take the place of A, or on sm_120 heads of 512 would not fit.
template <class Tile, bool solves>
__global__ void __launch_bounds__(block_threads, max_blocks<Tile>()) gated_linear_attention_kernel(GatedScan scan) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  const bool in_first_half = thread < half_block;
  const bool finds_starts = scan.transitions != nullptr;
  const int segments = scan.segments - finds_starts, segment = static_cast<int>(blockIdx.x) % segments;
  const int64_t of_sequence = blockIdx.x / segments;  // its number
  const int begin = segment * scan.segment, stop = min(scan.length, begin + scan.segment);
  const Sequence sequence(scan, of_sequence);
  const int rows = scan.a.of.width, slices = (rows + tile - 1) / tile;
  const int tile_of_p = static_cast<int>(blockIdx.y) - (scan.out.width + tile - 1) / tile;
  const bool is_p = tile_of_p >= 0;
  if (is_p && segment == 0) return;  // X before it is known
  const int first_column = (is_p ? tile_of_p : static_cast<int>(blockIdx.y)) * tile,
            columns = is_p ? rows : scan.out.width;
  const HeadRows<float> out = sequence.own(scan.out);

  Shared shared;
  float* const state = shared.take<float>(static_cast<unsigned>(slices * tile * right_row));
  float* const a = shared.take<float>(tile * left_row);
  float* const b = shared.take<float>(tile * left_row);
  float* const c = shared.take<float>(tile * right_row);
  float* const decays = shared.take<float>((tile + 1) * left_row);  // e^C_i of channel e at [i * left_row + e]
  float* const betas = shared.take<float>(tile);
  int* const sizes = shared.take<int>(block_warps);  // of the chunk, as far as the channels of each warp are concerned
  float* const weights = a;

  // f(number of X, whether it exists, its row and column)
  const auto each_number_of_state = [&](auto f) {
    for (int i = thread; i < slices * tile * tile; i += block_threads) {
      const int row = i / tile, column = first_column + i % tile;
      f(state[row * right_row + i % tile], row < rows && column < columns, row, column);
    }
  };
  const auto place = [&](int64_t n, int row, int column) {
    return n * scan.state_size + row * scan.row_step + column * scan.column_step;
  };
  // Before segment i + 1 of the sequence.
  const auto start = [&](int i) { return of_sequence * (scan.segments - 1) + i; };
  const float sign = scan.writes[0].exists ? 1 : -1;
  each_number_of_state([&](float& x, bool exists, int row, int column) {
    x = 0;
    if (!exists) return;
    if (is_p)
      x = row == column;
    else if (segment > 0)
      x = finds_starts ? 0 : sign * scan.starts[place(start(segment - 1), row, column)];
    else if (scan.before)
      x = sign * scan.before[place(of_sequence, row, column)] *
          expf(sequence.log_kept(0, scan.decays_columns ? column : row));
  });
  for (int i = thread; i < (tile + 1) * left_row; i += block_threads) decays[i] = 1;

  // Blocks of 32 channels whose C differ, of those that the block uses.
  const int blocks_of_channels = !scan.g.data ? 0 : scan.decays_columns || scan.g.width == 1 ? 1 : slices;
  const auto channels_of = [&](int slice) { return scan.decays_columns ? first_column : slice * tile; };
  const bool per_channel = scan.g.width > 1;
  const auto decay = [&](int i, int channel) { return decays[i * left_row + (per_channel ? channel : 0)]; };

  for (int first = begin, end; first < stop; first = end) {
    // decays := e^C, eight channels to a warp, a position to a lane; reduces `sizes` to the positions with which no |C|
    // is too large.
    const auto find_decays = [&](int first_channel) {
      const int warp = thread / 32, own = per_channel ? tile / block_warps : warp == 0;
#pragma unroll 2
      for (int channel = warp * own; channel < (warp + 1) * own; ++channel) {
        double sum = sequence.log_kept(first + lane + 1, first_channel + channel);
        for (int distance = 1; distance < 32; distance *= 2) {
          const double earlier = __shfl_up_sync(all_lanes, sum, static_cast<unsigned>(distance));
          if (lane >= distance) sum += earlier;
        }
        const float rounded = static_cast<float>(sum);
        decays[(lane + 1) * left_row + channel] =
            expf(rounded) * (fabs(sum) < 1000 ? 1 + static_cast<float>(sum - rounded) : 1);
        const int fitting = __ffs(static_cast<int>(__ballot_sync(all_lanes, !(fabs(sum) <= largest_exponent))));
        if (lane == 0 && fitting > 0 && fitting < sizes[warp]) sizes[warp] = fitting;
      }
      __syncthreads();
    };
    __syncthreads();  // all of the chunk before has been read
    if (lane == 0) sizes[thread / 32] = min(tile, stop - first);
    for (int slice = 0; slice < blocks_of_channels; ++slice) find_decays(channels_of(slice));
    if (blocks_of_channels == 0) __syncthreads();
    end = first + min(min(sizes[0], sizes[1]), min(sizes[2], sizes[3]));

    // 32 columns of the chunk's rows, times `factor` and beta and, if they decay, e^C, or divided by it; zero behind
    // the chunk.
    const auto fetched = [&](const GatedScan::Rows& x, int column, bool decay_is_inverse, bool decays_too,
                             float factor = 1, bool exists = true) {
      const int i = TileFragment::row(), position = first + i;
      const bool is_there =
          position < end && exists && x.of.data && !(x.zero_in_padding && sequence.is_padding(position));
      TileFragment part;
      part.fetch_row(sequence.own(x.of), is_there ? position : -1, column);
      if (x.times_beta && is_there) factor *= sequence.beta(position);
      const auto decayed = [&](float number, int channel) {
        return decay_is_inverse ? __fdividef(number, decay(i, channel)) : number * decay(i, channel);
      };
      if (decays_too && !per_channel) factor = decayed(factor, 0);
      if (decays_too && per_channel) part.change([&](int at, float number) { return decayed(number, at); });
      part.change([&](int, float number) { return is_there ? number * factor : 0; });  // 0 / 0 behind the chunk, too
      return part;
    };
    const bool c_decays = scan.decays_columns && scan.g.data, a_and_b_decay = !scan.decays_columns && scan.g.data;
    if (solves && thread < tile) betas[thread] = first + thread < end ? sequence.beta(first + thread) : 0;

    Tile sum;  // first half: A B^T; second: out
    for (int n = scan.writes[0].exists ? 0 : 1; n < 2 && scan.writes[n].exists; ++n) {
      const GatedScan::Write& write = scan.writes[n];
      const bool is_first = n == 0 || !scan.writes[0].exists, is_last = n == 1 || !scan.writes[1].exists;
      const bool is_found = solves && n == 1;
      for (int slice = 0; slice < slices; ++slice) {
        if (blocks_of_channels > 1) find_decays(channels_of(slice));
        if (slice > 0 || !is_first) __syncthreads();
        fetched(scan.a, slice * tile, false, a_and_b_decay).template store<left_row>(a, Rounded<Tile>());
        fetched(write.b, slice * tile, true, a_and_b_decay).template store<left_row>(b, Rounded<Tile>());
        if (slice == 0) {
          const TileFragment values =
              fetched(write.c, first_column, true, c_decays, n == 1 && !is_found ? -1 : 1, !is_p);
          if (is_found)
            values.template store<right_row>(c, Rounded<Float32>());
          else
            values.template store<right_row>(c, Rounded<Tile>());
        }
        __syncthreads();
        if (in_first_half) {
          if (slice == 0) sum.clear();
          sum.template add<Operand::rows, Operand::transposed>(a, b);
        } else if (is_first) {
          sum.template add<Operand::rows, Operand::exact>(a, state + slice * tile * right_row);
        }
      }
      __syncthreads();
      if (in_first_half) {
        sum.each(
            [&](int i, int j, float& x) { x = j < i || (j == i && n == 0) ? (is_found ? x : Tile::rounded(x)) : 0; });
        sum.template store<left_row>(weights);
      } else if (is_found) {
        sum.each([&](int i, int m, float x) { c[i * right_row + m] += x; });
      }
      __syncthreads();

      if (is_found) {
        const int rows_out = finds_starts || first_column + lane >= columns ? 0 : end - first;
        substitute<Tile>(c, weights, betas, [&](int i, float x) {
          if (i < rows_out) out.at(first + i)[first_column + lane] = x;
        });
        __syncthreads();
      } else if (!in_first_half) {
        sum.template add<Operand::rows, Operand::rows>(weights, c);
        if (is_last && !solves) {
          if (c_decays) sum.each([&](int i, int m, float& x) { x *= decay(i, m); });
          __syncwarp();
          sum.template store<left_row>(weights);  // this warp alone has read these rows
          __syncwarp();
          const int row = thread % half_block / 32 * 16 + lane / 8, column = lane % 8 * 4;
          for (int i = row; i < row + 16; i += 4)
            if (!finds_starts && first + i < end)
              out.store(first + i, first_column + column, load<4>(weights + i * left_row + column));
        }
      }

      for (int slice = 0; slice < slices; ++slice) {
        if (slices > 1) {  // else B and C are still there
          __syncthreads();
          if (blocks_of_channels > 1) find_decays(channels_of(slice));
          fetched(write.b, slice * tile, true, a_and_b_decay).template store<left_row>(b, Rounded<Tile>());
          __syncthreads();
        }
        if (in_first_half) {
          float* const own = state + slice * tile * right_row;
          Tile next;
          next.template load<right_row>(own);
          next.template add<Operand::transposed, Operand::rows>(b, c);
          if (is_last && scan.g.data)
            next.each([&](int row, int m, float& x) { x *= decay(end - first, scan.decays_columns ? m : row); });
          next.template store<right_row>(own);
        }
      }
    }
  }
  __syncthreads();
  if (!finds_starts && !(scan.after && segment == scan.segments - 1)) return;
  each_number_of_state([&](float x, bool exists, int row, int column) {
    if (!exists) return;
    if (is_p)
      scan.transitions[(start(segment) * rows + row) * rows + column] = x;
    else
      (finds_starts ? scan.starts : scan.after)[place(finds_starts ? start(segment) : of_sequence, row, column)] =
          sign * x;
  });
}

// starts[i] += transitions[i] starts[i-1], one after another.
// Launch: x: sequences, y: 32 columns each; 32 lanes of `join_warps` warps.
// Owns:   a lane its column, a warp every join_warps-th row.
// Shared: none.
constexpr int join_warps = 16;
__global__ void __launch_bounds__(32 * join_warps)
    gated_linear_attention_join_kernel(float* starts, const float* transitions, int e, int m, int count) {
  const int column = static_cast<int>(blockIdx.y * 32 + threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  for (int i = 1; i < count; ++i) {
    const int64_t at = static_cast<int64_t>(blockIdx.x) * count + i;
    float* const own = starts + at * e * m + column;
    const float* const last = own - e * m;
    for (int row = warp; row < e && column < m; row += join_warps) {
      const float* const p = transitions + (at * e + row) * e;
      float sum = own[row * m];
#pragma unroll 16
      for (int k = 0; k < e; ++k) sum += p[k] * last[k * m];
      own[row * m] = sum;
    }
    __syncthreads();
  }
}

// Launch: a warp per position and head, B L H.
// Owns:   the position's dbeta, its dv, which is du before, its dk, which is D u before, and its own term of dg.
// Shared: none.
__global__ void gated_linear_attention_finish_kernel(GatedGradients to, const float* w, const float* erase,
                                                     GatedInputs in) {
  const AttentionSizes& s = in.sizes;
  const int64_t at = first_element() / 32, b = at / s.heads / s.length, t = at / s.heads % s.length;
  if (b >= s.batch) return;
  const bool is_padding = in.lengths && t >= in.lengths[b];
  const float beta = is_padding ? 0 : in.beta ? in.beta[at] : 1;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float dbeta = 0, term = 0;
  for (int64_t m = lane; m < s.m; m += 32) {
    float& dv = to.dv[at * s.m + m];
    if (!is_padding) dbeta += dv * w[at * s.m + m];
    dv *= beta;
    if (!is_padding) term -= dv * in.v[at * s.m + m];
  }
  for (int64_t e = lane; e < s.e; e += 32) {
    const float erased = erase ? erase[at * s.e + e] : 0, written = to.dk[at * s.e + e];
    const float reads = in.q[at * s.e + e] * to.dq[at * s.e + e];
    const float writes = is_padding ? 0 : in.k[at * s.e + e] * (written - erased);
    if (to.dg && in.per_channel) to.dg[at * s.e + e] = reads - writes;
    term += reads;
    to.dk[at * s.e + e] = is_padding ? 0 : written + erased;
  }
  dbeta = warp_sum(dbeta);
  term = warp_sum(term);
  if (lane != 0) return;
  if (to.dbeta) to.dbeta[at] = dbeta;
  if (to.dg && !in.per_channel) to.dg[at] = term;
}

// Launch: a warp per sequence and channel, or per sequence, in x.
// Owns:   its dg of all positions: own terms before, after it their sums over all later positions and <dS_L, S_L>.
// Shared: none.
__global__ void __launch_bounds__(32)
    gated_linear_attention_decays_kernel(float* dg, const float* ds1, const float* s1, GatedInputs in) {
  const AttentionSizes& s = in.sizes;
  const int64_t width = in.per_channel ? s.e : 1, sequence = blockIdx.x / width, channel = blockIdx.x % width;
  const int64_t b = sequence / s.heads, length = in.lengths ? in.lengths[b] : s.length;
  const int lane = static_cast<int>(threadIdx.x);
  const int64_t numbers = in.per_channel ? s.m : s.e * s.m, first = sequence * s.e * s.m + channel * s.m;
  float carry = 0;
  for (int64_t i = lane; ds1 && i < numbers; i += 32) carry += ds1[first + i] * s1[first + i];
  carry = warp_sum(carry);
  const auto place = [&](int64_t t) {
    return dg + ((b * s.length + t) * s.heads + sequence % s.heads) * width + channel;
  };
  const auto term = [&](int64_t t) { return t >= 0 ? *place(t) : 0; };
  float next = term(s.length - 1 - lane);
  for (int64_t last = s.length - 1; last >= 0; last -= 32) {
    const int64_t t = last - lane;
    float sum = next;
    next = term(t - 32);  // while this one is summed up
    for (int distance = 1; distance < 32; distance *= 2) {
      const float later = __shfl_up_sync(all_lanes, sum, static_cast<unsigned>(distance));
      if (lane >= distance) sum += later;
    }
    sum += carry;
    if (t >= 0) *place(t) = t < length ? sum : 0;
    carry = __shfl_sync(all_lanes, sum, 31);
  }
}

using Rows = GatedScan::Rows;
using Write = GatedScan::Write;
enum class From { left, right };
enum class Decaying { rows, columns };  // of X

// How the walks of one side are cut: into so many segments that each multiprocessor has about three blocks, of two
// chunks at least. A walk to find the starts, of X' and of P, costs as much as one from them or more, so nothing is cut
// where there is room for less than eight segments, where there would be less than four, or where P is much larger
// than X.
class Segments {
 public:
  explicit Segments(const AttentionSizes& s)
      : positions(static_cast<int>(chunks_of(s)) * tile),
        count(static_cast<int>(std::max<int64_t>(1, (s.length + positions - 1) / positions))),
        starts_(s.sequences() * (count - 1) * s.e * s.m) {}
  float* starts() const { return starts_.data(); }

  const int positions, count;

 private:
  static int64_t chunks_of(const AttentionSizes& s) {
    const int64_t all = std::max<int64_t>(1, (s.length + tile - 1) / tile);
    const int64_t blocks = std::max<int64_t>(1, s.sequences() * ((s.m + tile - 1) / tile));
    const int64_t wanted = 3 * multiprocessors() / blocks;
    const bool pays = wanted >= 8 && all >= 8 && s.e <= std::max<int64_t>(tile, 2 * s.m);
    return pays ? std::max<int64_t>(2, (all + wanted - 1) / wanted) : all;
  }
  Temporary<float> starts_;
};

// What the scans of one call from one side read.
struct Inputs {
  const GatedInputs& in;
  From from;
  Segments segments{in.sizes};

  template <class T>
  HeadRows<T> rows(T* x, int64_t columns) const {
    return HeadRows<T>(x, in.sizes.length, in.sizes.heads, columns, from == From::right);
  }
  Rows q() const { return {rows(in.q, in.sizes.e), false, false}; }
  Rows k() const { return {rows(in.k, in.sizes.e), true, false}; }
  Rows v() const { return {rows(in.v, in.sizes.m), true, false}; }
  Rows of_m(const float* x) const { return {rows(x, in.sizes.m), false, false}; }
  Rows dv(const float* du) const { return {rows(du, in.sizes.m), false, true}; }
  Rows u(const float* w) const { return {rows(w ? w : in.v, in.sizes.m), true, true}; }  // without w, it is v

  GatedScan scan(Decaying decaying, float* out, const Rows& a, const Write& first, const Write& second) const {
    const AttentionSizes& s = in.sizes;
    GatedScan scan{};
    scan.a = a;
    scan.writes[0] = first;
    scan.writes[1] = second;
    scan.decays_columns = decaying == Decaying::columns;
    scan.out = rows(out, scan.decays_columns ? s.e : s.m);
    if (in.beta) scan.beta = rows(in.beta, 1);
    if (in.g) scan.g = rows(in.g, in.per_channel ? s.e : 1);
    scan.state_size = s.e * s.m;
    scan.row_step = scan.decays_columns ? 1 : s.m;
    scan.column_step = scan.decays_columns ? s.m : 1;
    scan.heads = s.heads;
    scan.length = static_cast<int>(s.length);
    scan.segments = segments.count;
    scan.segment = segments.positions;
    scan.starts = segments.starts();
    scan.lengths = in.lengths;
    scan.from_the_right = from == From::right;
    return scan;
  }
};

template <bool solves = false>
void launch_scan(const char* name, const GatedScan& scan, const AttentionSizes& s) {
  const int columns = (scan.out.width + tile - 1) / tile,
            of_p = scan.transitions ? (scan.a.of.width + tile - 1) / tile : 0;
  const int64_t segments = scan.segments - (scan.transitions ? 1 : 0);
  launch(name,
         precision() == Precision::f32 ? gated_linear_attention_kernel<Float32, solves>
                                       : gated_linear_attention_kernel<Tf32, solves>,
         Grid{dim3(static_cast<unsigned>(s.sequences() * segments), static_cast<unsigned>(columns + of_p)),
              dim3(block_threads), shared_bytes(scan)},
         scan);
}

// Finds X before each segment, for all scans of this side. In the scan, decays belong to rows.
template <bool solves = false>
void find_starts(GatedScan scan, const AttentionSizes& s) {
  constexpr const char* name = "gated_linear_attention_starts";
  if (scan.segments == 1) return;
  const int count = scan.segments - 1;
  const Temporary<float> transitions(s.sequences() * count * s.e * s.e);
  scan.transitions = transitions.data();
  launch_scan<solves>(name, scan, s);
  const unsigned columns = static_cast<unsigned>((s.m + 31) / 32);
  launch(name, gated_linear_attention_join_kernel,
         Grid{dim3(static_cast<unsigned>(s.sequences()), columns), dim3(32 * join_warps)}, scan.starts,
         scan.transitions, static_cast<int>(s.e), static_cast<int>(s.m), count);
}

// w of the delta rule, and the starts from the left.
void find_missing(const char* name, float* w, const Inputs& left) {
  GatedScan scan = left.scan(Decaying::rows, w, left.k(), {}, {left.k(), left.v(), true});
  scan.before = left.in.s0;
  find_starts<true>(scan, left.in.sizes);
  launch_scan<true>(name, scan, left.in.sizes);
}

}  // namespace

void gated_linear_attention_forward(float* y, float* s1, const GatedInputs& in) {
  const char* const name = "gated_linear_attention";
  const AttentionSizes& s = in.sizes;
  const bool delta = in.rule == UpdateRule::delta;
  const Temporary<float> w(delta ? s.batch * s.length * s.heads * s.m : 0);
  const Inputs left{in, From::left};
  if (delta) find_missing(name, w.data(), left);
  GatedScan scan = left.scan(Decaying::rows, y, left.q(), {left.k(), left.u(w.data()), true}, {});
  scan.before = in.s0;
  if (!delta) find_starts(scan, s);
  scan.after = s1;
  launch_scan(name, scan, s);
}

void gated_linear_attention_backward(const GatedGradients& to, const float* dy, const float* ds1,
                                     const GatedInputs& in) {
  const char* const name = "gated_linear_attention_backward";
  const AttentionSizes& s = in.sizes;
  const bool delta = in.rule == UpdateRule::delta;
  const int64_t positions = s.batch * s.length * s.heads;
  const Temporary<float> w(delta ? positions * s.m : 0), erase(delta ? positions * s.e : 0);
  const Temporary<float> s1(to.dg && ds1 ? s.sequences() * s.e * s.m : 0);
  const Inputs left{in, From::left}, right{in, From::right};
  float* const du = to.dv;
  GatedScan scan = left.scan(Decaying::rows, nullptr, left.k(), {left.k(), left.u(nullptr), true}, {});
  scan.before = in.s0;
  if (delta)
    find_missing(name, w.data(), left);
  else
    find_starts(scan, s);

  scan = right.scan(Decaying::rows, du, right.k(), {right.q(), right.of_m(dy), true}, {right.k(), Rows{}, delta});
  scan.before = ds1;
  delta ? find_starts<true>(scan, s) : find_starts(scan, s);
  scan.after = to.ds0;
  delta ? launch_scan<true>(name, scan, s) : launch_scan(name, scan, s);

  scan = left.scan(Decaying::columns, to.dq, left.of_m(dy), {left.u(w.data()), left.k(), true}, {});
  scan.before = in.s0;
  scan.after = s1.data();
  launch_scan(name, scan, s);

  scan = right.scan(Decaying::columns, to.dk, right.u(w.data()), {right.of_m(dy), right.q(), true},
                    {right.dv(du), right.k(), delta});
  scan.before = ds1;
  launch_scan(name, scan, s);

  if (delta) {
    scan = left.scan(Decaying::columns, erase.data(), left.dv(du), {}, {left.u(w.data()), left.k(), true});
    scan.before = in.s0;
    launch_scan(name, scan, s);
  }
  launch(name, gated_linear_attention_finish_kernel, Grid{dim3(static_cast<unsigned>((positions + 7) / 8)), dim3(256)},
         to, delta ? w.data() : in.v, erase.data(), in);
  if (to.dg)
    launch(name, gated_linear_attention_decays_kernel,
           Grid{dim3(static_cast<unsigned>(s.sequences() * (in.per_channel ? s.e : 1))), dim3(32)}, to.dg, ds1,
           s1.data(), in);
}

}  // namespace runnel::cuda
