// Connectionist temporal classification (Graves et al. 2006): -log of the probability that frames of symbols spell a
// sequence of labels, summed over all ways to align them.
//
// A frame t says symbol k with probability y_t(k) = softmax(z_t)_k. An alignment is a symbol for each frame; it spells
// what is left when repeated symbols are merged and blanks are dropped. With the states
//   l' = blank, l_1, blank, l_2, ..., l_U, blank,                                     2 U + 1 of them,
// an alignment is a path that begins in one of the first two states, ends in one of the last two, and at each frame
// stays, or moves on by one state, or by two from a label to a different label. In logarithms, with lse = log sum exp,
//   a_0(0) = log y_0(l'_0),   a_0(1) = log y_0(l'_1),
//   a_t(s) = lse(a_{t-1}(s), a_{t-1}(s-1), a_{t-1}(s-2) if l'_s may be moved to by two) + log y_t(l'_s),
//   loss = -lse(a_{T-1}(2 U), a_{T-1}(2 U - 1)),
// and b the same from the end, without y_t, the probability to be in state s at frame t given the labels is
//   g_t(s) = e^(a_t(s) + b_t(s)) / sum_r e^(a_t(r) + b_t(r)),   and   dloss/dz_t(k) = y_t(k) - sum_{s: l'_s = k}
//   g_t(s).
// The sum is e^-loss at every frame; summed again at each, it takes the rounding errors of long sequences with it. An
// infinite loss, of labels that do not fit into the frames, has gradient 0.
//
// On the CPU, threads share the sequences. The backward pass keeps a and lse(z_t) of each frame.
#include "ops/cpu/loops.h"
#include "ops/cpu/scratch.h"
#include "ops/kernels/speech.h"

namespace runnel {
namespace {

// log(e^a + e^b + e^c)
RUNNEL_INLINE inline Lanes log_sum(Lanes a, Lanes b, Lanes c) {
  const Lanes largest = max(max(a, b), c);
  const Lanes shift = largest > minus_infinity ? largest : Lanes{};  // -infinity less itself is not a number
  return shift + log(exp(a - shift) + exp(b - shift) + exp(c - shift));
}
float log_sum(float a, float b) { return log_sum(splat(a), splat(b), splat(minus_infinity))[0]; }

float log_sum_exp(const float* z, int64_t n) {
  const float largest = map_max(n, z);
  Lanes sums{};
  for (int64_t i = 0; i < n; i += lanes) sums += exp(load(z + i, n - i, splat(minus_infinity)) - largest);
  return largest + log(splat(lane_sum(sums)))[0];
}

// Rows of one number per state, with room for two states before the first and a vector behind the last.
constexpr int64_t margin = lanes;
int64_t state_row(const CtcSizes& s) { return margin + (s.states() + lanes - 1) / lanes * lanes + margin; }

// One sequence and its states.
struct Labels {
  const int32_t* targets;
  int64_t frames, count;
  int32_t blank;
  Labels(const int32_t* lengths, const int32_t* all_targets, const int32_t* target_lengths, const CtcSizes& s,
         int64_t b)
      : targets(all_targets + b * s.labels),
        frames(lengths ? lengths[b] : s.frames),
        count(target_lengths ? target_lengths[b] : s.labels),
        blank(s.blank) {}
  int64_t states() const { return 2 * count + 1; }
  int32_t symbol(int64_t state) const { return state % 2 ? targets[state / 2] : blank; }
  // row[s] = 0 if state s may be moved to by two, else -infinity, as are all numbers behind the last state: what is
  // computed from these would reach the states, a few at each frame.
  void find_skips(float* row, int64_t numbers) const {
    set_all(row, minus_infinity, numbers);
    for (int64_t i = 1; i < count; ++i)
      if (targets[i] != targets[i - 1]) row[2 * i + 1] = 0;
  }
  // From the last frame's a.
  float log_probability(const float* a) const { return count == 0 ? a[0] : log_sum(a[states() - 1], a[states() - 2]); }
  // row[s] = log y_t(l'_s), -infinity past the last state.
  void find_emissions(float* row, const float* z, float normaliser) const {
    for (int64_t i = 0; i < count; ++i) {
      row[2 * i] = z[blank] - normaliser;
      row[2 * i + 1] = z[targets[i]] - normaliser;
    }
    row[2 * count] = z[blank] - normaliser;
    set_all(row + states(), minus_infinity, margin);
  }
};

}  // namespace

void cpu::ctc_loss_forward(float* loss, float* alpha, float* normaliser, const float* logits, const int32_t* lengths,
                           const int32_t* targets, const int32_t* target_lengths, CtcSizes s) {
  const int64_t row = state_row(s);
  const ThreadScratch scratch(4 * row);
  parallel_for(s.batch, s.batch * s.frames > 1, [=, &scratch](int64_t b) {
    const Labels labels(lengths, targets, target_lengths, s, b);
    const int64_t states = labels.states();
    float* const skips = scratch.this_thread() + margin;
    float *const emissions = skips + row, *before = skips + 2 * row, *now = skips + 3 * row;
    labels.find_skips(skips, row - margin);
    set_all(before - margin, minus_infinity, row);
    set_all(now - margin, minus_infinity, row);
    for (int64_t t = 0; t < labels.frames; ++t) {
      const float* const z = logits + (b * s.frames + t) * s.symbols;
      const float of_frame = log_sum_exp(z, s.symbols);
      labels.find_emissions(emissions, z, of_frame);
      if (t == 0)
        for (int64_t i = 0; i < std::min<int64_t>(2, states); ++i) now[i] = emissions[i];
      else
        for (int64_t i = 0; i < states; i += lanes)
          store(now + i, load(emissions + i) +
                             log_sum(load(before + i), load(before + i - 1), load(before + i - 2) + load(skips + i)));
      if (alpha) {
        copy_numbers(alpha + (b * s.frames + t) * s.states(), now, states);
        normaliser[b * s.frames + t] = of_frame;
      }
      std::swap(before, now);
    }
    const float of_no_frames = labels.count == 0 ? 0 : minus_infinity;
    const float log_probability = labels.frames == 0 ? of_no_frames : labels.log_probability(before);
    loss[b] = s.zero_infinity && log_probability == minus_infinity ? 0 : -log_probability;
  });
}

void cpu::ctc_loss_backward(float* dlogits, const float* dloss, const float* alpha, const float* normaliser,
                            const float* logits, const int32_t* lengths, const int32_t* targets,
                            const int32_t* target_lengths, CtcSizes s) {
  const int64_t row = state_row(s);
  const ThreadScratch scratch(4 * row);
  parallel_for(s.batch, s.batch * s.frames > 1, [=, &scratch](int64_t b) {
    const Labels labels(lengths, targets, target_lengths, s, b);
    const int64_t states = labels.states();
    float* const dz = dlogits + b * s.frames * s.symbols;
    const float* const a = alpha + b * s.frames * s.states();
    clear(dz, s.frames * s.symbols);
    if (labels.frames == 0) return;
    if (labels.log_probability(a + (labels.frames - 1) * s.states()) == minus_infinity) return;
    float* const skips = scratch.this_thread() + margin;
    // onward[s] = b_{t+1}(s) + log y_{t+1}(l'_s) and beta[s] = b_t(s)
    float *const emissions = skips + row, *const onward = skips + 2 * row, *const beta = skips + 3 * row;
    labels.find_skips(skips, row - margin);
    set_all(onward - margin, minus_infinity, row);
    set_all(beta - margin, minus_infinity, row);
    for (int64_t t = labels.frames - 1; t >= 0; --t) {
      const float* const z = logits + (b * s.frames + t) * s.symbols;
      const float of_frame = normaliser[b * s.frames + t];
      labels.find_emissions(emissions, z, of_frame);
      if (t == labels.frames - 1)
        for (int64_t i = std::max<int64_t>(states - 2, 0); i < states; ++i) beta[i] = 0;
      else
        for (int64_t i = 0; i < states; i += lanes)
          store(beta + i, log_sum(load(onward + i), load(onward + i + 1), load(onward + i + 2) + load(skips + i + 2)));
      for (int64_t i = 0; i < states; i += lanes) store(onward + i, load(beta + i) + load(emissions + i));

      float *const dzt = dz + t * s.symbols, *const in_state = emissions;  // a + b
      map(
          dzt, s.symbols, [=](Lanes x) RUNNEL_INLINE { return exp(x - of_frame); }, z);
      map(
          in_state, states, [](Lanes p, Lanes q) RUNNEL_INLINE { return p + q; }, a + t * s.states(), beta);
      const float of_states = log_sum_exp(in_state, states);
      map(
          in_state, states, [=](Lanes x) RUNNEL_INLINE { return exp(x - of_states); }, in_state);
      for (int64_t i = 0; i < states; ++i) dzt[labels.symbol(i)] -= in_state[i];
      map(
          dzt, s.symbols, [factor = dloss[b]](Lanes x) RUNNEL_INLINE { return factor * x; }, dzt);
    }
  });
}

}  // namespace runnel
