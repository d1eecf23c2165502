// Connectionist temporal classification: ops/cpu/speech/ctc_loss.cpp has the derivation, and the letters a, b and l'.
#include <cmath>

#include "cuda/launch.h"
#include "cuda/temporary.h"
#include "ops/kernels/speech.h"

namespace runnel::cuda {
namespace {

constexpr int threads = 128;

// log(e^a + e^b + e^c)
__device__ float log_sum(float a, float b, float c = -INFINITY) {
  const float largest = fmaxf(fmaxf(a, b), c);
  if (largest == -INFINITY) return largest;  // which less itself is not a number
  return largest + logf(expf(a - largest) + expf(b - largest) + expf(c - largest));
}

// The sequence of a block of threads, and its states.
struct Labels {
  const int32_t* targets;
  const float *z, *normaliser;
  int frames, count, blank;
  int64_t symbols;

  __device__ Labels(const float* logits, const float* normalisers, const int32_t* lengths, const int32_t* all_targets,
                    const int32_t* target_lengths, const CtcSizes& s)
      : targets(all_targets + blockIdx.x * s.labels),
        z(logits + blockIdx.x * s.frames * s.symbols),
        normaliser(normalisers + blockIdx.x * s.frames),
        frames(static_cast<int>(lengths ? lengths[blockIdx.x] : s.frames)),
        count(static_cast<int>(target_lengths ? target_lengths[blockIdx.x] : s.labels)),
        blank(s.blank),
        symbols(s.symbols) {}
  __device__ int states() const { return 2 * count + 1; }
  __device__ int symbol(int state) const { return state % 2 ? targets[state / 2] : blank; }
  __device__ float emission(int t, int state) const { return z[t * symbols + symbol(state)] - normaliser[t]; }
  // Whether a path may move to this state by two.
  __device__ bool can_skip(int state) const {
    return state % 2 && state > 1 && state < states() && targets[state / 2] != targets[state / 2 - 1];
  }
  __device__ float log_probability(const float* a) const {
    return count == 0 ? a[0] : log_sum(a[states() - 1], a[states() - 2]);
  }
};

// log sum e^x of n numbers, which all lanes of a warp get.
__device__ float log_sum_exp(const float* x, int64_t n) {
  float largest = -INFINITY, sum = 0;
  for (int64_t i = threadIdx.x % 32; i < n; i += 32) largest = fmaxf(largest, x[i]);
  largest = warp_max(largest);
  for (int64_t i = threadIdx.x % 32; i < n; i += 32) sum += expf(x[i] - largest);
  return largest + logf(warp_sum(sum));
}

// Launch: a warp per frame. Owns: normaliser[r]. Shared: none.
__global__ void ctc_normaliser_kernel(float* normaliser, const float* logits, int64_t rows, int64_t symbols) {
  for (int64_t r = first_element() / 32; r < rows; r += element_step() / 32) {
    const float normaliser_of_row = log_sum_exp(logits + r * symbols, symbols);
    if (threadIdx.x % 32 == 0) normaliser[r] = normaliser_of_row;
  }
}

// Launch: a block per sequence. Owns: the block its loss and a; a thread every 128th state. Shared: none: a frame's a
// are read where the frame before wrote them.
__global__ void ctc_loss_forward_kernel(float* loss, float* alpha, const float* normaliser, const float* logits,
                                        const int32_t* lengths, const int32_t* targets, const int32_t* target_lengths,
                                        CtcSizes s) {
  const Labels labels(logits, normaliser, lengths, targets, target_lengths, s);
  const int thread = static_cast<int>(threadIdx.x), states = labels.states();
  float* a = alpha + blockIdx.x * s.frames * s.states();
  for (int t = 0; t < labels.frames; ++t, a += s.states()) {
    const float* const before = a - s.states();
    for (int i = thread; i < states; i += threads) {
      float reached = i < 2 ? 0 : -INFINITY;
      if (t > 0)
        reached = log_sum(before[i], i > 0 ? before[i - 1] : -INFINITY, labels.can_skip(i) ? before[i - 2] : -INFINITY);
      a[i] = reached + labels.emission(t, i);
    }
    __syncthreads();
  }
  if (thread > 0) return;
  float log_probability = labels.count == 0 ? 0 : -INFINITY;  // of no frames
  if (labels.frames > 0) log_probability = labels.log_probability(a - s.states());
  loss[blockIdx.x] = s.zero_infinity && log_probability == -INFINITY ? 0 : -log_probability;
}

// rows holds, for each sequence, a + b, and b of this frame and of the next; next, for each label, the number of the
// next one that is the same symbol, and whether it is the first. Launch: a block per sequence. Owns: the block its
// gradients; of a frame, a thread every 128th state and symbol, but
//         the first label of a symbol that of the symbol, and the first warp the blank's.
// Shared: none.
__global__ void ctc_loss_backward_kernel(float* dlogits, float* rows, int32_t* next, const float* dloss,
                                         const float* alpha, const float* normaliser, const float* logits,
                                         const int32_t* lengths, const int32_t* targets, const int32_t* target_lengths,
                                         CtcSizes s) {
  const Labels labels(logits, normaliser, lengths, targets, target_lengths, s);
  const int thread = static_cast<int>(threadIdx.x), states = labels.states(), count = labels.count;
  const int64_t first_frame = blockIdx.x * s.frames;
  const float* a = alpha + (first_frame + labels.frames - 1) * s.states();
  float* const dz = dlogits + first_frame * s.symbols;
  float* const in_state = rows + blockIdx.x * 3 * s.states();
  float *beta = in_state + s.states(), *later = beta + s.states();
  next += blockIdx.x * 2 * s.labels;
  int32_t* const is_first = next + s.labels;
  for (int i = thread; i < count; i += threads) {
    int j = i + 1, before = i - 1;
    while (j < count && labels.targets[j] != labels.targets[i]) ++j;
    while (before >= 0 && labels.targets[before] != labels.targets[i]) --before;
    next[i] = j;
    is_first[i] = before < 0;
  }
  const float factor = dloss[blockIdx.x];
  const int end = labels.frames == 0 || labels.log_probability(a) == -INFINITY ? 0 : labels.frames;
  for (int64_t i = end * s.symbols + thread; i < s.frames * s.symbols; i += threads) dz[i] = 0;

  for (int t = end - 1; t >= 0; --t, a -= s.states()) {
    const auto onward = [&](int i) { return i < states ? later[i] + labels.emission(t + 1, i) : -INFINITY; };
    for (int i = thread; i < states; i += threads) {
      float b = i + 2 < states ? -INFINITY : 0;
      if (t + 1 < end) b = log_sum(onward(i), onward(i + 1), labels.can_skip(i + 2) ? onward(i + 2) : -INFINITY);
      beta[i] = b;
      in_state[i] = a[i] + b;
    }
    float* const dzt = dz + t * s.symbols;
    for (int64_t k = thread; k < s.symbols; k += threads)
      dzt[k] = factor * expf(labels.z[t * s.symbols + k] - normaliser[first_frame + t]);
    __syncthreads();
    const float of_states = log_sum_exp(in_state, states);
    if (thread < 32) {
      float sum = 0;
      for (int i = 2 * thread; i < states; i += 64) sum += expf(in_state[i] - of_states);
      sum = warp_sum(sum);
      if (thread == 0) dzt[labels.blank] -= factor * sum;
    }
    for (int i = thread; i < count; i += threads) {
      if (!is_first[i]) continue;
      float sum = 0;
      for (int j = i; j < count; j = next[j]) sum += expf(in_state[2 * j + 1] - of_states);
      dzt[labels.targets[i]] -= factor * sum;
    }
    float* const free = later;
    later = beta;
    beta = free;
    __syncthreads();
  }
}

Grid block_per_sequence(const CtcSizes& s) { return {dim3(static_cast<unsigned>(s.batch)), dim3(threads)}; }

}  // namespace

void ctc_loss_forward(float* loss, float* alpha, float* normaliser, const float* logits, const int32_t* lengths,
                      const int32_t* targets, const int32_t* target_lengths, CtcSizes s) {
  const int64_t rows = s.batch * s.frames;
  const Temporary<float> own_alpha(alpha ? 0 : rows * s.states()), own_normaliser(normaliser ? 0 : rows);
  if (!alpha) alpha = own_alpha.data(), normaliser = own_normaliser.data();
  launch("ctc_loss_forward", ctc_normaliser_kernel, over(32 * rows), normaliser, logits, rows, s.symbols);
  launch("ctc_loss_forward", ctc_loss_forward_kernel, block_per_sequence(s), loss, alpha, normaliser, logits, lengths,
         targets, target_lengths, s);
}

void ctc_loss_backward(float* dlogits, const float* dloss, const float* alpha, const float* normaliser,
                       const float* logits, const int32_t* lengths, const int32_t* targets,
                       const int32_t* target_lengths, CtcSizes s) {
  const Temporary<float> rows(s.batch * 3 * s.states());
  const Temporary<int32_t> next(s.batch * 2 * s.labels);
  launch("ctc_loss_backward", ctc_loss_backward_kernel, block_per_sequence(s), dlogits, rows.data(), next.data(), dloss,
         alpha, normaliser, logits, lengths, targets, target_lengths, s);
}

}  // namespace runnel::cuda
