// Gated linear attention: ops/cpu/attention/gated_linear_attention.cpp has the derivation.
//
// All of it is one scan. It walks from the left, or from the right, with a state X:
//
//   X_t = kept_t X_{t-1} + b_t c_t^T,   out_t = X_t^T a_t, or strictly before t: (kept_t X_{t-1})^T a_t
//
//           walk from   a   b   c
//   y       left        q   k   u
//   w       left        k   k   u    strictly; u_t = beta_t w_t, w_t = v_t - out_t are found on the way
//   r       right       k   q   dy
//   du      right       k   k   dv   strictly; dv_t = beta_t du_t, du_t = r_t - out_t
//   dq      left        dy  u   k
//   erase   left        dv  u   k    strictly; with the opposite sign
//   D u     right       u   dy  q    less that of u, dv, k, strictly
//
// The additive rule has u = beta v and du = r, and neither w nor erase. kept_t = e^g_t belongs to E: to rows of X if b
// is q or k, else to its columns. From the left it is that of position t, from the right that of the position walked
// before.
//
// A block walks in chunks of up to 32 positions. With C_i, the sum of g over the positions of the chunk up to i but its
// first, and X from before, decayed to the first,
//
//   out = a' X + mask(a' b'^T) c,   a'_i = e^C_i a_i,   X := e^C_next (X + b'^T c),   b'_j = e^-C_j b_j
//
// or, if X decays by columns, with e^C at out and e^-C at c. Where C falls below -60, the chunk ends, so that nothing
// overflows: strong decays make short chunks, even of one position, and no result less exact. Where c is to be found,
// (1 + mask(a' b'^T) beta) u = beta (v - a' X) is solved by substitution, a thread for each of 32 columns.
#include "cuda/attention/tiles.h"
#include "cuda/launch.h"
#include "cuda/temporary.h"
#include "ops/kernels/gated_linear_attention.h"
#include "ops/numerics.h"

namespace runnel::cuda {
namespace {

constexpr float most_decay = 60;

struct GatedScan {
  struct Rows {
    HeadRows<const float> of;
    bool is_key, times_beta;  // zero in padding; times the position's beta
  };
  Rows a, b, c;                   // c, if it is to be found: v or r
  HeadRows<float> out;            // w or du, if c is to be found
  HeadRows<const float> beta, g;  // no data: 1 and 0
  // The state before the walk (null: zero) and after it (null: not wanted), and steps from a row and a column of X to
  // the next in them.
  const float* before;
  float* after;
  int64_t state_size, row_step, column_step;
  int64_t heads;
  int length;
  const int32_t* lengths;
  bool from_the_right, is_strict, decays_columns;
  bool is_subtracted;  // out, unless c is to be found, and `after` become what they are less the scan's
};

// A position of one sequence as its walk counts them. Padding neither writes nor decays.
struct Positions {
  const GatedScan& scan;
  int end_of_text;

  __device__ bool is_padding(int i) const { return (scan.from_the_right ? scan.length - 1 - i : i) >= end_of_text; }
  __device__ float beta(int i) const { return is_padding(i) ? 0 : scan.beta.data ? *scan.beta.at(i) : 1; }
  // ln kept of a channel at position i <= length, where `length` is the step that follows the last position.
  __device__ float log_kept(int i, int channel) const {
    i -= scan.from_the_right;
    if (!scan.g.data || i < 0 || i >= scan.length || is_padding(i)) return 0;
    return scan.g.width == 1 ? *scan.g.at(i) : channel < scan.g.width ? scan.g.at(i)[channel] : 0;
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
      .add<float>(block_threads / 32)
      .bytes();
}

// Launch: x: sequences, y: 32 columns of out each; `block_threads` threads.
// Owns:   the block its columns of out and of X. Of a chunk, the second half of the block finds out, or a thread a
//         column of c; the first half writes X.
// Shared: X [E or M,32]; a', b' and c of a chunk; C of 32 channels; beta; a number of each warp. The weights
//         mask(a' b'^T) take the place of a', or on sm_120 heads of 512 would not fit.
template <class Tile, bool solves>
__global__ void __launch_bounds__(block_threads, 4) gated_linear_attention_kernel(GatedScan scan) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  const bool in_first_half = thread < half_block;
  const int64_t sequence = blockIdx.x;
  const int first_column = static_cast<int>(blockIdx.y) * tile, rows = scan.a.of.width, columns = scan.c.of.width;
  const int slices = (rows + tile - 1) / tile;
  const Positions positions{scan, scan.lengths ? scan.lengths[sequence / scan.heads] : scan.length};
  for (GatedScan::Rows* x : {&scan.a, &scan.b, &scan.c}) x->of.select(sequence, scan.heads);
  scan.out.select(sequence, scan.heads);
  if (scan.beta.data) scan.beta.select(sequence, scan.heads);
  if (scan.g.data) scan.g.select(sequence, scan.heads);

  Shared shared;
  float* const state = shared.take<float>(static_cast<unsigned>(slices * tile * right_row));
  float* const a = shared.take<float>(tile * left_row);
  float* const b = shared.take<float>(tile * left_row);
  float* const c = shared.take<float>(tile * right_row);
  float* const decays = shared.take<float>((tile + 1) * left_row);  // C_i of channel e at [i * left_row + e]
  float* const betas = shared.take<float>(tile);
  float* const sizes = shared.take<float>(block_threads / 32);

  // f(number of X in shared memory, its place in a state): all that exist.
  const auto each_number_of_state = [&](auto f) {
    for (int i = thread; i < slices * tile * tile; i += block_threads) {
      const int row = i / tile, column = first_column + i % tile;
      const bool exists = row < rows && column < columns;
      f(state[row * right_row + i % tile], exists,
        sequence * scan.state_size + row * scan.row_step + column * scan.column_step,
        scan.decays_columns ? column : row);
    }
  };
  each_number_of_state([&](float& x, bool exists, int64_t at, int channel) {
    x = exists && scan.before ? scan.before[at] * expf(positions.log_kept(0, channel)) : 0;
  });

  // The position at which the next chunk begins.
  const auto end_of_chunk = [&](int first) {
    const int most = min(tile, scan.length - first);
    int size = most;
    const int begin = scan.decays_columns && scan.g.width > 1 ? first_column : 0;
    const int end = scan.decays_columns ? min(begin + tile, scan.g.width) : scan.g.width;
    for (int channel = begin + thread; channel < end; channel += block_threads) {
      float sum = 0;
      int own = 1;
      for (int i = 1; i < most; ++i) {
        sum += positions.log_kept(first + i, channel);
        own += own == i && fabsf(sum) <= most_decay;
      }
      size = min(size, own);
    }
    const float negative = warp_max(static_cast<float>(-size));
    if (lane == 0) sizes[thread / 32] = negative;
    __syncthreads();
    float largest = sizes[0];
    for (int warp = 1; warp < block_threads / 32; ++warp) largest = fmaxf(largest, sizes[warp]);
    return first + static_cast<int>(-largest);
  };

  for (int first = 0, end; first < scan.length; first = end) {
    __syncthreads();  // all of the chunk before has been read
    end = scan.g.data ? end_of_chunk(first) : min(first + tile, scan.length);

    const auto find_decays = [&](int first_channel) {
      if (thread >= tile) return;
      float sum = 0;
      decays[lane] = 0;
#pragma unroll 4
      for (int i = 1; i <= tile; ++i)
        decays[i * left_row + lane] = sum += positions.log_kept(first + i, first_channel + lane);
    };
    // 32 columns of the chunk's rows, times beta and e^(power C); zero behind the chunk.
    const auto fetched = [&](const GatedScan::Rows& x, int column, int power) {
      const int i = TileFragment::row(), position = first + i;
      const bool is_there = position < end && !(x.is_key && positions.is_padding(position));
      TileFragment part;
      part.fetch_row(x.of, is_there ? position : -1, column);
      const float weight = x.times_beta && is_there ? positions.beta(position) : 1;
      part.change([&](int at, float number) {
        return is_there ? number * weight * (power ? expf(static_cast<float>(power) * decays[i * left_row + at]) : 1)
                        : 0;
      });
      return part;
    };
    const int power_of_c = scan.decays_columns ? 1 : 0, power = 1 - power_of_c;

    if (scan.decays_columns) find_decays(first_column);
    if (solves && thread < tile) betas[thread] = first + thread < end ? positions.beta(first + thread) : 0;
    Tile sum;  // first half: a' b'^T; second: out
    sum.clear();
    for (int slice = 0; slice < slices; ++slice) {
      if (slice > 0) __syncthreads();
      if (!scan.decays_columns) find_decays(slice * tile);
      __syncthreads();
      fetched(scan.a, slice * tile, power).template store<left_row>(a, Rounded<Tile>());
      fetched(scan.b, slice * tile, -power).template store<left_row>(b, Rounded<Tile>());
      if (slice == 0) {
        const TileFragment values = fetched(scan.c, first_column, -power_of_c);
        if (solves)
          values.template store<right_row>(c, Rounded<Float32>());
        else
          values.template store<right_row>(c, Rounded<Tile>());
      }
      __syncthreads();
      if (in_first_half)
        sum.template add<Operand::rows, Operand::transposed>(a, b);
      else
        sum.template add<Operand::rows, Operand::exact>(a, state + slice * tile * right_row);
    }
    __syncthreads();
    float* const weights = a;
    if (in_first_half)
      sum.each([&](int i, int j, float x) {
        weights[i * left_row + j] = j < i || (j == i && !scan.is_strict) ? (solves ? x : Tile::rounded(x)) : 0;
      });
    else if (solves)
      sum.each([&](int i, int m, float x) { c[i * right_row + m] -= x; });
    __syncthreads();

    if (solves) {
      if (thread < tile) {
        float found[tile];
#pragma unroll
        for (int i = 0; i < tile; ++i) {
          float missing = c[i * right_row + thread];
#pragma unroll
          for (int j = 0; j < i; ++j) missing -= weights[i * left_row + j] * found[j];
          found[i] = betas[i] * missing;
          c[i * right_row + thread] = Tile::rounded(found[i]);
          if (first + i < end && first_column + thread < columns)
            scan.out.at(first + i)[first_column + thread] = missing;
        }
      }
      __syncthreads();
    } else if (!in_first_half) {
      sum.template add<Operand::rows, Operand::rows>(weights, c);
      sum.each([&](int i, int m, float x) {
        if (first + i >= end || first_column + m >= columns) return;
        if (scan.decays_columns) x *= expf(decays[i * left_row + m]);
        float& to = scan.out.at(first + i)[first_column + m];
        to = scan.is_subtracted ? to - x : x;
      });
    }

    for (int slice = 0; slice < slices; ++slice) {
      if (slices > 1) {  // else b and C are still there
        __syncthreads();
        if (!scan.decays_columns) find_decays(slice * tile);
        __syncthreads();
        fetched(scan.b, slice * tile, -power).template store<left_row>(b, Rounded<Tile>());
        __syncthreads();
      }
      if (in_first_half) {
        float* const own = state + slice * tile * right_row;
        Tile next;
        next.template load<right_row>(own);
        next.template add<Operand::transposed, Operand::rows>(b, c);
        next.each([&](int row, int m, float x) {
          own[row * right_row + m] = x * expf(decays[(end - first) * left_row + (scan.decays_columns ? m : row)]);
        });
      }
    }
  }
  __syncthreads();
  if (scan.after)
    each_number_of_state([&](float x, bool exists, int64_t at, int) {
      if (exists) scan.after[at] = scan.is_subtracted ? scan.after[at] - x : x;
    });
}

// Launch: a warp per position and head, B L H, in x.
// Owns:   the position's dbeta, its dv, which is du before, its dk, to which erase is added, and its own term of dg.
// Shared: none.
__global__ void __launch_bounds__(32)
    gated_linear_attention_finish_kernel(GatedGradients to, const float* w, const float* erased, GatedInputs in) {
  const AttentionSizes& s = in.sizes;
  const int64_t at = blockIdx.x, b = at / s.heads / s.length, t = at / s.heads % s.length;
  const bool is_padding = in.lengths && t >= in.lengths[b];
  const float beta = is_padding ? 0 : in.beta ? in.beta[at] : 1;
  const int lane = static_cast<int>(threadIdx.x);
  float dbeta = 0, term = 0;
  for (int64_t m = lane; m < s.m; m += 32) {
    float& dv = to.dv[at * s.m + m];
    if (!is_padding) dbeta += dv * w[at * s.m + m];
    dv *= beta;
    if (!is_padding) term -= dv * in.v[at * s.m + m];
  }
  for (int64_t e = lane; e < s.e; e += 32) {
    const float erase = erased ? erased[at * s.e + e] : 0, write = to.dk[at * s.e + e];
    const float reads = in.q[at * s.e + e] * to.dq[at * s.e + e];
    const float writes = is_padding ? 0 : in.k[at * s.e + e] * (write + erase);
    if (to.dg && in.per_channel) to.dg[at * s.e + e] = reads - writes;
    term += reads;
    to.dk[at * s.e + e] = is_padding ? 0 : write - erase;
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
  for (int64_t last = s.length - 1; last >= 0; last -= 32) {
    const int64_t t = last - lane;
    float* const x = dg + ((b * s.length + t) * s.heads + sequence % s.heads) * width + channel;
    float sum = t >= 0 ? *x : 0;
    for (int distance = 1; distance < 32; distance *= 2) {
      const float later = __shfl_up_sync(all_lanes, sum, static_cast<unsigned>(distance));
      if (lane >= distance) sum += later;
    }
    sum += carry;
    if (t >= 0) *x = t < length ? sum : 0;
    carry = __shfl_sync(all_lanes, sum, 31);
  }
}

using Rows = GatedScan::Rows;
enum class From { left, right };

// What the scans of one call from one side read.
struct Inputs {
  const GatedInputs& in;
  From from;

  template <class T>
  HeadRows<T> rows(T* x, int64_t columns) const {
    return HeadRows<T>(x, in.sizes.length, in.sizes.heads, columns, from == From::right);
  }
  Rows q() const { return {rows(in.q, in.sizes.e), false, false}; }
  Rows k() const { return {rows(in.k, in.sizes.e), true, false}; }
  Rows v() const { return {rows(in.v, in.sizes.m), true, false}; }
  Rows of_m(const float* x, bool times_beta) const { return {rows(x, in.sizes.m), false, times_beta}; }
  // beta w, or beta v without w.
  Rows u(const float* w) const { return w ? of_m(w, true) : Rows{rows(in.v, in.sizes.m), true, true}; }
};

// X decays by rows, which are those of a state, if b is q or k, else by columns, which are the state's rows.
enum class Decaying { rows, columns };

GatedScan scan_of(const Inputs& inputs, const Rows& a, const Rows& b, const Rows& c, float* out, Decaying decaying) {
  const GatedInputs& in = inputs.in;
  const AttentionSizes& s = in.sizes;
  GatedScan scan{};
  scan.a = a, scan.b = b, scan.c = c;
  scan.out = inputs.rows(out, c.of.width);
  if (in.beta) scan.beta = inputs.rows(in.beta, 1);
  if (in.g) scan.g = inputs.rows(in.g, in.per_channel ? s.e : 1);
  scan.decays_columns = decaying == Decaying::columns;
  scan.state_size = s.e * s.m;
  scan.row_step = scan.decays_columns ? 1 : s.m;
  scan.column_step = scan.decays_columns ? s.m : 1;
  scan.heads = s.heads;
  scan.length = static_cast<int>(s.length);
  scan.lengths = in.lengths;
  scan.from_the_right = inputs.from == From::right;
  return scan;
}

template <bool solves = false>
void launch_scan(const char* name, const GatedScan& scan, const GatedInputs& in) {
  const unsigned columns = static_cast<unsigned>((scan.c.of.width + tile - 1) / tile);
  launch(name,
         precision() == Precision::f32 ? gated_linear_attention_kernel<Float32, solves>
                                       : gated_linear_attention_kernel<Tf32, solves>,
         Grid{dim3(static_cast<unsigned>(in.sizes.sequences()), columns), dim3(block_threads), shared_bytes(scan)},
         scan);
}

// w of the delta rule.
void find_missing(const char* name, float* w, const GatedInputs& in) {
  const Inputs left{in, From::left};
  GatedScan scan = scan_of(left, left.k(), left.k(), left.v(), w, Decaying::rows);
  scan.before = in.s0;
  scan.is_strict = true;
  launch_scan<true>(name, scan, in);
}

}  // namespace

void gated_linear_attention_forward(float* y, float* s1, const GatedInputs& in) {
  const char* const name = "gated_linear_attention";
  const AttentionSizes& s = in.sizes;
  const bool delta = in.rule == UpdateRule::delta;
  const Temporary<float> w(delta ? s.batch * s.length * s.heads * s.m : 0);
  if (delta) find_missing(name, w.data(), in);
  const Inputs left{in, From::left};
  GatedScan scan = scan_of(left, left.q(), left.k(), left.u(w.data()), y, Decaying::rows);
  scan.before = in.s0;
  scan.after = s1;
  launch_scan(name, scan, in);
}

void gated_linear_attention_backward(const GatedGradients& to, const float* dy, const float* ds1,
                                     const GatedInputs& in) {
  const char* const name = "gated_linear_attention_backward";
  const AttentionSizes& s = in.sizes;
  const bool delta = in.rule == UpdateRule::delta;
  const int64_t positions = s.batch * s.length * s.heads;
  const Temporary<float> w(delta ? positions * s.m : 0), erased(delta ? positions * s.e : 0);
  const Temporary<float> s1(to.dg && ds1 ? s.sequences() * s.e * s.m : 0);
  const Inputs left{in, From::left}, right{in, From::right};
  float* const du = to.dv;

  GatedScan scan = scan_of(right, right.k(), right.q(), right.of_m(dy, false), du, Decaying::rows);  // r
  scan.before = ds1;
  scan.after = to.ds0;
  launch_scan(name, scan, in);
  if (delta) {
    find_missing(name, w.data(), in);
    scan = scan_of(right, right.k(), right.k(), right.of_m(du, false), du, Decaying::rows);
    scan.after = to.ds0;
    scan.is_strict = scan.is_subtracted = true;
    launch_scan<true>(name, scan, in);
  }
  scan = scan_of(left, left.of_m(dy, false), left.u(w.data()), left.k(), to.dq, Decaying::columns);
  scan.before = in.s0;
  scan.after = s1.data();
  launch_scan(name, scan, in);
  scan = scan_of(right, right.u(w.data()), right.of_m(dy, false), right.q(), to.dk, Decaying::columns);
  scan.before = ds1;
  launch_scan(name, scan, in);
  if (delta) {
    scan = scan_of(left, left.of_m(du, true), left.u(w.data()), left.k(), erased.data(), Decaying::columns);
    scan.before = in.s0;
    scan.is_strict = true;
    launch_scan(name, scan, in);
    scan = scan_of(right, right.u(w.data()), right.of_m(du, true), right.k(), to.dk, Decaying::columns);
    scan.is_strict = scan.is_subtracted = true;
    launch_scan(name, scan, in);
  }
  launch(name, gated_linear_attention_finish_kernel, Grid{dim3(static_cast<unsigned>(positions)), dim3(32)}, to,
         delta ? w.data() : in.v, erased.data(), in);
  if (to.dg)
    launch(name, gated_linear_attention_decays_kernel,
           Grid{dim3(static_cast<unsigned>(s.sequences() * (in.per_channel ? s.e : 1))), dim3(32)}, to.dg, ds1,
           s1.data(), in);
}

}  // namespace runnel::cuda
