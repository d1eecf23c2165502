// A layer of a long short-term memory (Hochreiter and Schmidhuber 1997), in one direction or both, as PyTorch defines
// it. With z = W x_t + b, the gates' input, and R = w, the recurrent weights, of four blocks i, f, g, o each,
//   i, f, o = sigmoid(z + R h_{t-1}),   g = tanh(z + R h_{t-1}),   c_t = f c_{t-1} + i g,   h_t = o tanh(c_t).
// Backward, from dh, the sum of dy_t and of the next step's part, and dc from the next step:
//   dc += dh o (1 - tanh(c)^2),   dz_o = dh tanh(c) o (1 - o),
//   dz_i = dc g i (1 - i),   dz_f = dc c_{t-1} f (1 - f),   dz_g = dc i (1 - g^2),
// and to the step before go dc f and R^T dz; dR = sum_t dz_t h_{t-1}^T is one product after all steps.
// Step n of a sequence of l frames is frame n, or frame l - 1 - n in the other direction. Steps past the end change
// nothing: the last state is that after l steps.
//
// On the CPU, threads share blocks of sequences of each direction, so that R stays in a core's cache over all steps;
// the blocks depend on the batch only. The backward pass keeps i, f, g, o and c of each frame.
#include <deque>

#include "ops/cpu/loops.h"
#include "ops/cpu/packed_matrix.h"
#include "ops/cpu/parallel.h"
#include "ops/cpu/scratch.h"
#include "ops/kernels/speech.h"
#include "ops/numerics.h"

namespace runnel {
namespace {

constexpr int64_t sequences_at_once = 16;

// R is read in each step, so it must stay in the second-level cache: by tiles only where all of its parts do.
bool is_by_tiles(const LstmSizes& s) {
  const int64_t parts = precision() == Precision::bf16 ? 1 : 3;
  return has_tiles() && parts * 2 * 4 * s.width * s.width <= 1 << 20;
}

// The sequences [first, first + rows) in one direction.
struct SequenceBlock {
  int64_t direction, first, rows, steps;

  SequenceBlock(int64_t index, const int32_t* lengths, const LstmSizes& s) : steps(s.frames), lengths_(lengths), s_(s) {
    const int64_t blocks = count(s) / s.directions;
    direction = index / blocks;
    first = index % blocks * sequences_at_once;
    rows = std::min(sequences_at_once, s.batch - first);
    if (!lengths) return;
    steps = 0;
    for (int64_t r = 0; r < rows; ++r) steps = std::max(steps, length(r));
  }
  static int64_t count(const LstmSizes& s) {
    return s.directions * ((s.batch + sequences_at_once - 1) / sequences_at_once);
  }
  int64_t length(int64_t r) const { return lengths_ ? lengths_[first + r] : s_.frames; }
  bool runs(int64_t r, int64_t step) const { return step < length(r); }
  int64_t frame(int64_t r, int64_t step) const {  // as a row of [B,T,...]
    return (first + r) * s_.frames + (direction == 0 ? step : length(r) - 1 - step);
  }
  int64_t state(int64_t r) const { return (direction * s_.batch + first + r) * s_.width; }  // in [D,B,H]
  int64_t output(int64_t r, int64_t step) const { return (frame(r, step) * s_.directions + direction) * s_.width; }
  int64_t kept(int64_t r, int64_t step) const {
    return (direction * s_.batch * s_.frames + frame(r, step)) * s_.kept();
  }

 private:
  const int32_t* lengths_;
  const LstmSizes& s_;
};

void copy_or_clear(float* to, const float* from, int64_t offset, int64_t n) {
  if (from)
    copy_numbers(to, from + offset, n);
  else
    clear(to, n);
}

// z and r [4H]: the gates' input and R h. gates [4H]: i, f, g, o.
void cell(float* h, float* c, float* gates, const float* z, const float* r, int64_t width) {
  for (int64_t j = 0; j < width; j += lanes) {
    const int64_t count = width - j;
    const auto sum = [&](int64_t gate) RUNNEL_INLINE {
      return load(z + gate * width + j, count) + load(r + gate * width + j, count);
    };
    const Lanes i = sigmoid(sum(0)), f = sigmoid(sum(1)), g = tanh(sum(2)), o = sigmoid(sum(3));
    const Lanes next = f * load(c + j, count) + i * g;
    store(c + j, next, count);
    store(h + j, o * tanh(next), count);
    store(gates + j, i, count);
    store(gates + width + j, f, count);
    store(gates + 2 * width + j, g, count);
    store(gates + 3 * width + j, o, count);
  }
}

// kept [5H]: i, f, g, o, c. dc is read, and becomes that of the step before.
void cell_backward(float* dz, float* dc, const float* dy, const float* dh_next, const float* kept,
                   const float* c_before, int64_t width) {
  for (int64_t j = 0; j < width; j += lanes) {
    const int64_t count = width - j;
    const auto of = [&](int64_t part) RUNNEL_INLINE { return load(kept + part * width + j, count); };
    const Lanes i = of(0), f = of(1), g = of(2), o = of(3), tc = tanh(of(4));
    const Lanes dh = load(dy + j, count) + load(dh_next + j, count);
    const Lanes d = load(dc + j, count) + dh * o * (1 - tc * tc);
    store(dz + j, d * g * i * (1 - i), count);
    store(dz + width + j, d * load(c_before + j, count) * f * (1 - f), count);
    store(dz + 2 * width + j, d * i * (1 - g * g), count);
    store(dz + 3 * width + j, dh * tc * o * (1 - o), count);
    store(dc + j, d * f, count);
  }
}

}  // namespace

void cpu::lstm_forward(float* y, float* h1, float* c1, float* kept, LstmInputs in, const float* h0, const float* c0,
                       const int32_t* lengths, LstmSizes s) {
  const int64_t n = s.width;
  if (n == 0) return;  // then all results are empty
  const bool by_tiles = is_by_tiles(s), non_temporal = exceeds_cache(s.batch * s.frames * 4 * n);
  std::deque<PackedWeights> w;  // which cannot be moved
  for (int64_t d = 0; d < s.directions; ++d) w.emplace_back(in.w[d], n, 4 * n, true, by_tiles);
  const ThreadScratch scratch(sequences_at_once * (4 + 4 + 1 + 1) * n);
  if (lengths) clear(y, s.batch * s.frames * s.directions * n);  // padding
  FirstError error;
#pragma omp parallel for schedule(dynamic)
  for (int64_t index = 0; index < SequenceBlock::count(s); ++index)
    error.guard([&] {
      const SequenceBlock block(index, lengths, s);
      float *const h = scratch.this_thread(), *const c = h + sequences_at_once * n,
                   *const r_h = c + sequences_at_once * n;
      float* const gates = r_h + sequences_at_once * 4 * n;
      for (int64_t r = 0; r < block.rows; ++r) {
        copy_or_clear(h + r * n, h0, block.state(r), n);
        copy_or_clear(c + r * n, c0, block.state(r), n);
      }
      for (int64_t step = 0; step < block.steps; ++step) {
        w[static_cast<size_t>(block.direction)].multiply(r_h, PackedOperand(h, block.rows * n, by_tiles), block.rows,
                                                         false);
        for (int64_t r = 0; r < block.rows; ++r) {
          if (!block.runs(r, step)) continue;
          const float* const z = in.gates[block.direction] + block.frame(r, step) * 4 * n;
          cell(h + r * n, c + r * n, gates, z, r_h + r * 4 * n, n);
          if (kept) {
            float* const own = kept + block.kept(r, step);
            copy_result(own, gates, 4 * n, non_temporal);
            copy_result(own + 4 * n, c + r * n, n, non_temporal);
          }
          copy_numbers(y + block.output(r, step), h + r * n, n);
        }
      }
      for (int64_t r = 0; r < block.rows; ++r) {
        copy_numbers(h1 + block.state(r), h + r * n, n);
        copy_numbers(c1 + block.state(r), c + r * n, n);
      }
      store_fence();
    });
  error.rethrow();
}

void cpu::lstm_backward(LstmGradients to, float* dh0, float* dc0, const float* dy, const float* dh1, const float* dc1,
                        const float* kept, LstmInputs in, const float* c0, const int32_t* lengths, LstmSizes s) {
  const int64_t n = s.width;
  if (n == 0) return;
  const bool by_tiles = is_by_tiles(s), non_temporal = exceeds_cache(s.batch * s.frames * 4 * n);
  std::deque<PackedWeights> w;
  for (int64_t d = 0; d < s.directions; ++d) w.emplace_back(in.w[d], 4 * n, n, false, by_tiles);
  const ThreadScratch scratch(sequences_at_once * (4 + 1 + 1 + 1) * n + n);
  for (int64_t d = 0; lengths && d < s.directions; ++d) clear(to.gates[d], s.batch * s.frames * 4 * n);
  FirstError error;
#pragma omp parallel for schedule(dynamic)
  for (int64_t index = 0; index < SequenceBlock::count(s); ++index)
    error.guard([&] {
      const SequenceBlock block(index, lengths, s);
      float *const dh = scratch.this_thread(), *const dc = dh + sequences_at_once * n,
                   *const r_dz = dc + sequences_at_once * n;
      float *const dz = r_dz + sequences_at_once * n, *const zeros = dz + sequences_at_once * 4 * n;
      clear(zeros, n);
      for (int64_t r = 0; r < block.rows; ++r) {
        copy_or_clear(dh + r * n, dh1, block.state(r), n);
        copy_or_clear(dc + r * n, dc1, block.state(r), n);
      }
      for (int64_t step = block.steps - 1; step >= 0; --step) {
        for (int64_t r = 0; r < block.rows; ++r) {
          float* const own = dz + r * 4 * n;
          if (!block.runs(r, step)) {
            clear(own, 4 * n);
            continue;
          }
          const float* c_before = step > 0 ? kept + block.kept(r, step - 1) + 4 * n : zeros;
          if (step == 0 && c0) c_before = c0 + block.state(r);
          cell_backward(own, dc + r * n, dy + block.output(r, step), dh + r * n, kept + block.kept(r, step), c_before,
                        n);
          copy_result(to.gates[block.direction] + block.frame(r, step) * 4 * n, own, 4 * n, non_temporal);
        }
        w[static_cast<size_t>(block.direction)].multiply(r_dz, PackedOperand(dz, block.rows * 4 * n, by_tiles),
                                                         block.rows, false);
        for (int64_t r = 0; r < block.rows; ++r)
          if (block.runs(r, step)) copy_numbers(dh + r * n, r_dz + r * n, n);
      }
      for (int64_t r = 0; dh0 && r < block.rows; ++r) {
        copy_numbers(dh0 + block.state(r), dh + r * n, n);
        copy_numbers(dc0 + block.state(r), dc + r * n, n);
      }
      store_fence();
    });
  error.rethrow();
}

void cpu::lstm_previous(float* h, const float* y, const float* h0, const int32_t* lengths, int64_t direction,
                        LstmSizes s) {
  const int64_t n = s.width;
  parallel_rows(s.batch * s.frames, n, [=](int64_t row) {
    const int64_t b = row / s.frames, t = row % s.frames, length = lengths ? lengths[b] : s.frames;
    const int64_t before = direction == 0 ? t - 1 : t + 1;
    float* const to = h + row * n;
    if (t < length && before >= 0 && before < length)
      copy_numbers(to, y + ((b * s.frames + before) * s.directions + direction) * n, n);
    else
      copy_or_clear(to, t < length ? h0 : nullptr, (direction * s.batch + b) * n, n);
  });
}

}  // namespace runnel
