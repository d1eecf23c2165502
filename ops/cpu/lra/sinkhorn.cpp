// Doubly stochastic matrices by Sinkhorn's normalisation, for Sparse Sinkhorn Attention (Tay et al. 2020).
//
// Rows and columns of e^x are normalised in turn, in the logarithm: with u_0 = v_0 = 0, step k of n finds
//
//   u_k,r = log sum_c e^(x_rc - v_(k-1),c)     v_k,c = log sum_r e^(x_rc - u_k,r)     P_rc = e^(x_rc - u_n,r - v_n,c)
//
// so nothing but u and v changes. Backward, with g the gradient of the logarithms after a normalisation and w their
// exponentials, that of those before it is g - w sum g, where the sum is over the row or column: from g = dP P back
// through the steps, whose u and v are computed again.
#include "ops/cpu/sequences.h"

#include "ops/kernels/lra.h"

namespace runnel {
namespace {

// One sequence's x, and the u and v of every step.
class Balance {
 public:
  static int64_t floats(const SinkhornSizes& s) {
    const int64_t row = padded(s.blocks);
    return (2 * s.blocks + 2 * s.iterations + 3) * row;
  }
  Balance(const SinkhornSizes& s, float* memory)
      : sizes_(s), row_(padded(s.blocks)), x_(memory), g_(x_ + s.blocks * row_), steps_(g_ + s.blocks * row_) {}

  void find(const float* logits, const int32_t* lengths, int64_t n) {
    const int64_t b = n / sizes_.heads;
    count_ = lengths ? (lengths[b] + sizes_.block - 1) / sizes_.block : sizes_.blocks;
    for (int64_t r = 0; r < count_; ++r) copy_numbers(x(r), logits + sizes_.logit(n, r), count_);
    clear(v(-1), count_);
    for (int64_t k = 0; k < sizes_.iterations; ++k) {
      for (int64_t r = 0; r < count_; ++r) u(k)[r] = log_sum(x(r), v(k - 1));
      column_log_sums(v(k), u(k));
    }
  }
  int64_t count() const { return count_; }

  // P = e^(x - u_k - v_l), row r
  void weights(float* to, int64_t r, int64_t k, int64_t l) const {
    map(
        to, count_, [shift = u(k)[r]](Lanes a, Lanes b) RUNNEL_INLINE { return exp(a - shift - b); }, x(r), v(l));
  }
  float* gradient(int64_t r) { return g_ + r * row_; }
  float* buffer() { return v(-1) + (2 * sizes_.iterations + 1) * row_; }

  // From the gradient of P's logarithms to that of x.
  void walk_back() {
    float *const w = buffer(), *const sums = w + row_;
    for (int64_t k = sizes_.iterations - 1; k >= 0; --k) {
      clear(sums, count_);
      for (int64_t r = 0; r < count_; ++r) accumulate(sums, gradient(r), count_);
      for (int64_t r = 0; r < count_; ++r) {
        weights(w, r, k, k);
        map(
            gradient(r), count_, [](Lanes g, Lanes p, Lanes sum) RUNNEL_INLINE { return g - p * sum; }, gradient(r), w,
            sums);
      }
      for (int64_t r = 0; r < count_; ++r) {
        weights(w, r, k, k - 1);
        const float sum = map_sum(
            count_, [](Lanes g) RUNNEL_INLINE { return g; }, gradient(r));
        add_scaled(gradient(r), -sum, w, count_);
      }
    }
  }

 private:
  float* x(int64_t r) const { return x_ + r * row_; }
  float* v(int64_t k) const { return steps_ + (2 * k + 2) * row_; }  // v(-1) comes first
  float* u(int64_t k) const { return steps_ + (2 * k + 1) * row_; }

  float log_sum(const float* xs, const float* shift) {
    map(
        buffer(), count_, [](Lanes a, Lanes b) RUNNEL_INLINE { return a - b; }, xs, shift);
    set_all(buffer() + count_, minus_infinity, row_ - count_);
    const float largest = map_max(row_, buffer());
    const float sum = map_sum(
        row_, [largest](Lanes a) RUNNEL_INLINE { return exp(a - largest); }, buffer());
    return largest + log(splat(sum))[0];
  }
  void column_log_sums(float* to, const float* shifts) {
    float *const largest = buffer(), *const sums = to;
    set_all(largest, minus_infinity, count_);
    for (int64_t r = 0; r < count_; ++r)
      map(
          largest, count_, [shift = shifts[r]](Lanes m, Lanes a) RUNNEL_INLINE { return max(m, a - shift); }, largest,
          x(r));
    clear(sums, count_);
    for (int64_t r = 0; r < count_; ++r)
      map(
          sums, count_, [shift = shifts[r]](Lanes s, Lanes a, Lanes m) RUNNEL_INLINE { return s + exp(a - shift - m); },
          sums, x(r), largest);
    map(
        to, count_, [](Lanes s, Lanes m) RUNNEL_INLINE { return m + log(s); }, sums, largest);
  }

  SinkhornSizes sizes_;
  int64_t row_, count_ = 0;
  float *x_, *g_, *steps_;
};

}  // namespace

// Threads share the sequences.
void cpu::sinkhorn_forward(float* p, const float* logits, const int32_t* lengths, SinkhornSizes s) {
  const ThreadScratch scratch(Balance::floats(s));
#pragma omp parallel
  {
    Balance balance(s, scratch.this_thread());
#pragma omp for schedule(static)
    for (int64_t n = 0; n < s.sequences(); ++n) {
      balance.find(logits, lengths, n);
      for (int64_t r = 0; r < s.blocks; ++r) {
        float* const row = p + (n * s.blocks + r) * s.blocks;
        const int64_t count = r < balance.count() ? balance.count() : 0;
        if (count > 0) balance.weights(row, r, s.iterations - 1, s.iterations - 1);
        clear(row + count, s.blocks - count);
      }
    }
  }
}

void cpu::sinkhorn_backward(float* dlogits, const float* dp, const float* p, const float* logits,
                            const int32_t* lengths, SinkhornSizes s) {
  const ThreadScratch scratch(Balance::floats(s));
#pragma omp parallel
  {
    Balance balance(s, scratch.this_thread());
#pragma omp for schedule(static)
    for (int64_t n = 0; n < s.sequences(); ++n) {
      balance.find(logits, lengths, n);
      const int64_t first = n * s.blocks * s.blocks;
      for (int64_t r = 0; r < balance.count(); ++r)
        map(
            balance.gradient(r), balance.count(), [](Lanes a, Lanes b) RUNNEL_INLINE { return a * b; },
            dp + first + r * s.blocks, p + first + r * s.blocks);
      balance.walk_back();
      for (int64_t r = 0; r < s.blocks; ++r) {
        const int64_t count = r < balance.count() ? balance.count() : 0;
        float* const row = dlogits + s.logit(n, r);
        copy_numbers(row, balance.gradient(r), count);
        clear(row + count, s.columns - count);
      }
    }
  }
}

}  // namespace runnel
