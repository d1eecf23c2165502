// Layer normalisation of s = x + dropout(a), per row of d: ops/cpu/layer_norm.cpp derives it. With z = (s - mean) rstd
// and g = dy gamma,
//
//   y = z gamma + beta,     ds = rstd (g - <g> - z <g z>),     dgamma = sum dy z,     dbeta = sum dy,
//
// <.> being the mean over the row, the other sums running over rows.
//
// A team of threads shares a row: a warp, so that its sums need no barrier, or a block for long rows. The first pieces
// of a row that a thread owns, for the models' rows all of them, stay in its registers from the sums to the result;
// what lies beyond is computed again. dgamma and dbeta are summed in two steps: each block over the rows that it has
// anyway, then a second kernel over the blocks, of which there are as many as the machine can use and not as many as
// there are rows.
#include "cuda/launch.h"
#include "cuda/temporary.h"
#include "cuda/vec.h"
#include "ops/kernels/layers.h"

namespace runnel::cuda {
namespace {

constexpr int threads = 256;
constexpr int64_t longest_for_warp = 512;

// s = x + dropout(a), by pieces.
template <int width>
struct Residual {
  const float *x, *a;
  Mask mask;
  __device__ Vec<width> operator()(int64_t i) const {
    Vec<width> s = load<width>(x + i);
    if (a) {
      const Vec<width> dropped = drop(load<width>(a + i), i, mask);
      for (int n = 0; n < width; ++n) s.at[n] += dropped.at[n];
    }
    return s;
  }
};

// A thread's part of a row of d: pieces `begin`, `begin + step` ..., of which T of the first `kept` are in
// registers.
template <class T>
class OwnPieces {
 public:
  __device__ OwnPieces(int64_t begin, int64_t step, int64_t d) : begin_(begin), step_(step), d_(d) {}

  // find(T& kept, j) for the piece at each column j.
  template <class Find>
  __device__ void find(Find find) {
#pragma unroll
    for (int n = 0; n < kept; ++n)
      if (begin_ + n * step_ < d_) find(pieces_[n], begin_ + n * step_);
  }
  // use(const T&, j) for all; find computes those again that are not kept.
  template <class Find, class Use>
  __device__ void each(Find find, Use use) const {
#pragma unroll
    for (int n = 0; n < kept; ++n)
      if (begin_ + n * step_ < d_) use(pieces_[n], begin_ + n * step_);
    for (int64_t j = begin_ + kept * step_; j < d_; j += step_) {
      T piece;
      find(piece, j);
      use(piece, j);
    }
  }

 private:
  static constexpr int kept = 4;
  int64_t begin_, step_, d_;
  T pieces_[kept];
};

__device__ float team_sum(float value, int team, float* scratch) {
  return team == 32 ? warp_sum(value) : block_sum(value, scratch);
}

// Launch: 256 threads, in teams of 32 or 256; as many blocks as there are rows for, or fewer that take several in turn.
// Owns:   a team a row; of it, a thread every team-th piece.
// Shared: scratch for the sums of a team.
template <int width>
__global__ void __launch_bounds__(threads)
    layer_norm_forward_kernel(float* __restrict__ y, float* __restrict__ mean, float* __restrict__ rstd,
                              Residual<width> residual, const float* __restrict__ gamma, const float* __restrict__ beta,
                              int64_t rows, int64_t d, float eps, int team) {
  Shared shared;
  float* const scratch = shared.take<float>(32);
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t begin = width * (thread % team), step = width * team;
  const int teams = threads / team;
  for (int64_t r = static_cast<int64_t>(blockIdx.x) * teams + thread / team; r < rows;
       r += static_cast<int64_t>(gridDim.x) * teams) {
    float sum = 0, squares = 0;
    const auto find = [&](Vec<width>& s, int64_t j) { s = residual(r * d + j); };
    OwnPieces<Vec<width>> own(begin, step, d);
    own.find(find);
    own.each(find, [&](const Vec<width>& s, int64_t) {
      for (int n = 0; n < width; ++n) sum += s.at[n];
    });
    const float center = team_sum(sum, team, scratch) / static_cast<float>(d);
    own.each(find, [&](const Vec<width>& s, int64_t) {
      for (int n = 0; n < width; ++n) squares += (s.at[n] - center) * (s.at[n] - center);
    });
    const float scale = 1 / sqrtf(team_sum(squares, team, scratch) / static_cast<float>(d) + eps);
    own.each(find, [&](Vec<width> s, int64_t j) {
      const Vec<width> g = load<width>(gamma + j), b = load<width>(beta + j);
      for (int n = 0; n < width; ++n) s.at[n] = (s.at[n] - center) * scale * g.at[n] + b.at[n];
      store(y + r * d + j, s);
    });
    if (thread % team == 0) {
      mean[r] = center;
      rstd[r] = scale;
    }
  }
}

template <int width>
struct Normalised {
  Vec<width> z, g;  // (s - mean) rstd, dy gamma
};

// Launch: as above, with a fixed number of blocks.
// Owns:   a team every row that is its turn; a block parts[blockIdx.x], the sums of dy z and dy over its rows.
// Shared: scratch for the sums of a team; [teams][2][d] such sums, in which a thread touches its own columns only until
//         the rows are done. Rows too long for shared memory have one team, which keeps them in its part instead.
template <int width>
__global__ void __launch_bounds__(threads)
    layer_norm_backward_kernel(float* __restrict__ dx, float* __restrict__ da, float* __restrict__ parts,
                               const float* __restrict__ dy, Residual<width> residual, const float* __restrict__ gamma,
                               const float* __restrict__ mean, const float* __restrict__ rstd, int64_t rows, int64_t d,
                               int team, bool in_shared) {
  const int teams = threads / team, thread = static_cast<int>(threadIdx.x);
  float* const part = parts + blockIdx.x * 2 * d;  // [2][d]
  Shared shared;
  float* const scratch = shared.take<float>(32);
  float* const sums = in_shared ? shared.take<float>(static_cast<unsigned>(teams * 2 * d)) : part;
  float* const dgamma = sums + thread / team * 2 * d;
  float* const dbeta = dgamma + d;

  const int64_t begin = width * (thread % team), step = width * team;
  for (int64_t j = begin; j < d; j += step) {
    store(dgamma + j, Vec<width>{});
    store(dbeta + j, Vec<width>{});
  }
  for (int64_t r = static_cast<int64_t>(blockIdx.x) * teams + thread / team; r < rows;
       r += static_cast<int64_t>(gridDim.x) * teams) {
    const float center = mean[r], scale = rstd[r];
    float sum_g = 0, sum_gz = 0;
    const auto find = [&](Normalised<width>& piece, int64_t j) {
      const Vec<width> s = residual(r * d + j), out = load<width>(dy + r * d + j), weight = load<width>(gamma + j);
      for (int n = 0; n < width; ++n) {
        piece.z.at[n] = (s.at[n] - center) * scale;
        piece.g.at[n] = out.at[n] * weight.at[n];
      }
    };
    OwnPieces<Normalised<width>> own(begin, step, d);
    own.find(find);
    own.each(find, [&](const Normalised<width>& piece, int64_t j) {
      const Vec<width> out = load<width>(dy + r * d + j);
      Vec<width> by_gamma = load<width>(dgamma + j), by_beta = load<width>(dbeta + j);
      for (int n = 0; n < width; ++n) {
        sum_g += piece.g.at[n];
        sum_gz += piece.g.at[n] * piece.z.at[n];
        by_gamma.at[n] += out.at[n] * piece.z.at[n];
        by_beta.at[n] += out.at[n];
      }
      store(dgamma + j, by_gamma);
      store(dbeta + j, by_beta);
    });
    const float mean_g = team_sum(sum_g, team, scratch) / static_cast<float>(d);
    const float mean_gz = team_sum(sum_gz, team, scratch) / static_cast<float>(d);
    own.each(find, [&](const Normalised<width>& piece, int64_t j) {
      Vec<width> ds;
      for (int n = 0; n < width; ++n) ds.at[n] = scale * (piece.g.at[n] - mean_g - piece.z.at[n] * mean_gz);
      store(dx + r * d + j, ds);
      if (da) store(da + r * d + j, drop(ds, r * d + j, residual.mask));
    });
  }
  __syncthreads();
  if (!in_shared) return;
  for (int64_t j = thread; j < 2 * d; j += threads) {
    float sum = 0;
    for (int t = 0; t < teams; ++t) sum += sums[t * 2 * d + j];
    part[j] = sum;
  }
}

// Launch: one block of 32 warps per 32 columns of [dgamma, dbeta].
// Owns:   a lane one column; a warp one slice of the parts, the first warp the sum over slices.
// Shared: the sum of each slice.
__global__ void __launch_bounds__(1024)
    layer_norm_parameters_kernel(float* __restrict__ dgamma, float* __restrict__ dbeta, const float* __restrict__ parts,
                                 int64_t count, int64_t d) {
  Shared shared;
  float* const sums = shared.take<float>(1024);  // [slices, 32]
  const int64_t lane = threadIdx.x % 32, slice = threadIdx.x / 32, slices = blockDim.x / 32;
  const int64_t j = static_cast<int64_t>(blockIdx.x) * 32 + lane;
  const int64_t each = (count + slices - 1) / slices;
  float sum = 0;
  const int64_t end = j < 2 * d ? min(count, (slice + 1) * each) : 0;
#pragma unroll 8
  for (int64_t i = slice * each; i < end; ++i) sum += parts[i * 2 * d + j];
  sums[threadIdx.x] = sum;
  __syncthreads();
  if (slice > 0 || j >= 2 * d) return;
  sum = 0;
  for (int64_t i = 0; i < slices; ++i) sum += sums[i * 32 + lane];
  (j < d ? dgamma[j] : dbeta[j - d]) = sum;
}

int team_for(int64_t d) { return d <= longest_for_warp ? 32 : threads; }

int64_t blocks_for(int64_t rows, int team, int64_t most) {
  const int64_t teams = threads / team;
  return std::clamp<int64_t>((rows + teams - 1) / teams, 1, most);
}

template <int width>
void forward(float* y, float* mean, float* rstd, const float* x, const float* a, const float* gamma, const float* beta,
             int64_t rows, int64_t d, float eps, const Dropout& dropout) {
  const int team = team_for(d);
  const Grid grid{dim3(static_cast<unsigned>(blocks_for(rows, team, 32 * multiprocessors()))), dim3(threads),
                  SharedBytes().add<float>(32).bytes()};
  launch("layer_norm_forward", layer_norm_forward_kernel<width>, grid, y, mean, rstd,
         Residual<width>{x, a, Mask(dropout)}, gamma, beta, rows, d, eps, team);
}

template <int width>
void backward(float* dx, float* da, float* dgamma, float* dbeta, const float* dy, const float* x, const float* a,
              const float* gamma, const float* mean, const float* rstd, int64_t rows, int64_t d,
              const Dropout& dropout) {
  const int team = team_for(d);
  const int64_t blocks = blocks_for(rows, team, 4 * multiprocessors());
  const Temporary<float> parts(blocks * 2 * d);
  const size_t with_sums = SharedBytes().add<float>(32).add<float>(threads / team * 2 * d).bytes();
  const bool in_shared = with_sums <= shared_memory();
  const Grid grid{dim3(static_cast<unsigned>(blocks)), dim3(threads),
                  in_shared ? with_sums : SharedBytes().add<float>(32).bytes()};
  launch("layer_norm_backward", layer_norm_backward_kernel<width>, grid, dx, da, parts.data(), dy,
         Residual<width>{x, a, Mask(dropout)}, gamma, mean, rstd, rows, d, team, in_shared);
  const Grid columns{dim3(static_cast<unsigned>((2 * d + 31) / 32)), dim3(1024),
                     SharedBytes().add<float>(1024).bytes()};
  launch("layer_norm_backward", layer_norm_parameters_kernel, columns, dgamma, dbeta, parts.data(), blocks, d);
}

}  // namespace

void layer_norm_forward(float* y, float* mean, float* rstd, const float* x, const float* a, const float* gamma,
                        const float* beta, int64_t rows, int64_t d, float eps, Dropout dropout) {
  const auto run = in_fours(d, y, x, a, gamma, beta) ? forward<4> : forward<1>;
  run(y, mean, rstd, x, a, gamma, beta, rows, d, eps, dropout);
}

void layer_norm_backward(float* dx, float* da, float* dgamma, float* dbeta, const float* dy, const float* x,
                         const float* a, const float* gamma, const float* mean, const float* rstd, int64_t rows,
                         int64_t d, Dropout dropout) {
  const auto run = in_fours(d, dx, da, dy, x, a, gamma) ? backward<4> : backward<1>;
  run(dx, da, dgamma, dbeta, dy, x, a, gamma, mean, rstd, rows, d, dropout);
}

}  // namespace runnel::cuda
