// Softmax attention in blocks (eq. 2), whose memory grows with L and not with its square.
//
// Forward, a block of queries goes over the blocks of keys from the left, with the largest score m_i so far and the sum
// n_i of the exponentials ("online softmax", Milakov and Gimelshein 2018):
//
//   x_ij = q_i . k_j / sqrt(E),   m' = max(m, max_j x_ij),   p_ij = e^(x_ij - m')
//   n' = n e^(m - m') + sum_j p_ij,   y' = y e^(m - m') + sum_j p_ij v_j
//
// and at the end y_i = y' / n'. Beside y it keeps l_i = m_i + log n_i, so that backward finds p_ij = e^(x_ij - l_i)
// again:
//
//   dv_j = sum_i p_ij dy_i,   s_ij = p_ij (dy_i . v_j - d_i),   d_i = sum_j p_ij dy_i . v_j = dy_i . y_i
//   dq_i = sum_j s_ij k_j / sqrt(E),   dk_j = sum_i s_ij q_i / sqrt(E)
//
// Dropout of the weights leaves l and d as they are: with the factors f_ij, 0 or 1 / (1 - p), that are drawn again in
// the backward pass,
//
//   y_i = sum_j f_ij p_ij v_j,   dv_j = sum_i f_ij p_ij dy_i,   s_ij = p_ij (f_ij dy_i . v_j - d_i)
#include <algorithm>

#include "ops/cpu/attention/softmax_block.h"
#include "ops/cpu/dropout.h"
#include "ops/kernels/softmax_attention.h"

namespace runnel {
namespace {

// Rows are keys from `key` on, columns queries from `first` on.
void hide_in_block(const Matrix& p, int64_t key, int64_t end, int64_t first, bool causal) {
  if (key + block_size <= (causal ? std::min(end, first + 1) : end)) return;  // all of them see all
  hide(
      p, [key](int64_t j) { return key + j; }, end, first, causal);
}

// Multiplies a block of weights or their slopes, where rows are keys and columns queries, with what dropout says.
class BlockDropout {
 public:
  BlockDropout(const AttentionSizes& s, const Dropout& dropout, int64_t n)
      : dropout_(dropout), of_sequence_(first_weight(s, n, 0)), of_query_(first_weight(s, 0, 1)) {}

  // For queries from `first` and keys from `key` on -> b.f, b.ft.
  void draw(SoftmaxBlock& b, int64_t first, int64_t key) const {
    if (dropout_.p == 0) return;
    constexpr int64_t each = block_size / 8, count = block_size * each;  // Philox blocks of a query, and of all
    uint64_t index[count];
    for (int64_t i = 0; i < count; ++i)
      index[i] = static_cast<uint64_t>((of_sequence_ + key + (first + i / each) * of_query_) / 8 + i % each);
    uint16_t numbers[block_size * block_size];
    draw_numbers(numbers, index, count, dropout_.key);
    const DropoutFactors factors(dropout_.p);
    for (int64_t i = 0; i < block_size * block_size; i += lanes) store(b.ft.row(0) + i, factors(numbers + i));
    transpose(b.f, b.ft);
  }
  void drop(const Matrix& x, const Matrix& f) const {
    if (dropout_.p == 0) return;
    for (int64_t i = 0; i < x.vectors(); ++i) x.data[i] *= f.data[i];
  }

 private:
  const Dropout& dropout_;
  int64_t of_sequence_, of_query_;  // numbers of weights
};

// Of work for several threads.
[[maybe_unused]] bool is_enough(const AttentionSizes& s) {
  return s.sequences() * s.length * s.key_length * (s.e + s.m) >= parallel_from_products;
}

}  // namespace

// Threads share the blocks of queries.
void cpu::softmax_attention_forward(float* y, float* l, const float* q, const float* k, const float* v,
                                    const int32_t* lengths, AttentionSizes s, Dropout dropout) {
  const ThreadScratch scratch(SoftmaxBlock::floats(s));
#pragma omp parallel if (is_enough(s))
  {
    SoftmaxBlock b(s, scratch.this_thread());
#pragma omp for collapse(2) schedule(dynamic)
    for (int64_t n = 0; n < s.sequences(); ++n)
      for (int64_t from = 0; from < s.length; from += block_size) {
        const int64_t first = (s.length - 1) / block_size * block_size - from;  // those with most keys first
        const int64_t count = std::min(block_size, s.length - first);
        const int64_t keys = seen_keys(lengths, s, n), end = s.causal ? std::min(keys, first + count) : keys;
        const BlockDropout dropped(s, dropout, n);
        begin_queries(b, of_queries(s, q, n, s.e), first, count, score_scale(s));
        for (int64_t key = 0; key < end; key += block_size) {
          load(b.k, of_keys(s, k, n, s.e), key, std::min(block_size, end - key));
          load(b.v, of_keys(s, v, n, s.m), key, std::min(block_size, end - key));
          dropped.draw(b, first, key);
          add_keys(
              b, [&] { hide_in_block(b.p, key, end, first, s.causal); }, [&] { dropped.drop(b.p, b.f); });
        }
        end_queries(b, of_queries(s, y, n, s.m), l + n * s.length, first, count);
      }
  }
}

// Threads share the sequences.
void cpu::softmax_attention_backward(float* dq, float* dk, float* dv, const float* dy, const float* y, const float* l,
                                     const float* q, const float* k, const float* v, const int32_t* lengths,
                                     AttentionSizes s, Dropout dropout) {
  const float scale = score_scale(s);
  const ThreadScratch scratch(SoftmaxBlock::floats(s, s.length));
#pragma omp parallel if (is_enough(s))
  {
    SoftmaxBlock b(s, scratch.this_thread(), s.length);
#pragma omp for schedule(static)
    for (int64_t n = 0; n < s.sequences(); ++n) {
      const SoftmaxSequence x(s, q, k, v, dy, dq, l, lengths, n);
      const BlockDropout dropped(s, dropout, n);
      begin_sequence(b, s, x, y);
      const auto dk_n = of_keys(s, dk, n, s.e), dv_n = of_keys(s, dv, n, s.m);
      for (int64_t key = 0; key < s.key_length; key += block_size) {
        const int64_t count = std::min(block_size, s.key_length - key);
        const int64_t seen = std::clamp<int64_t>(x.key_end - key, 0, count);
        b.dk.clear();
        b.dv.clear();
        if (seen > 0) {
          load(b.k, x.k, key, seen);
          load(b.v, x.v, key, seen);
          for (int64_t first = s.causal ? key : 0; first < s.length; first += block_size) {
            const int64_t queries = std::min(block_size, s.length - first);
            load_queries(b, x, first, queries, scale);
            dropped.draw(b, first, key);
            weights_and_slopes(
                b, x, first, queries, [&] { hide_in_block(b.p, key, x.key_end, first, s.causal); },
                [&](const Matrix& weights) { dropped.drop(weights, b.f); });
            multiply(b.dv, b.p, b.g, Store::add);
            multiply(b.dk, b.w, b.q, Store::add);
            multiply_transposed(b.dq, b.w, b.k, Store::set);
            add_to_dq(b, x, first, queries, scale);
          }
        }
        for (int64_t j = 0; j < count; ++j) {
          copy_numbers(dk_n(key + j), b.dk.row(j), s.e);
          copy_numbers(dv_n(key + j), b.dv.row(j), s.m);
        }
      }
    }
  }
}

// The keys are kept as columns: scores of neighbouring positions are then neighbours.
void cpu::softmax_attention_step(float* y, float* k_cache, float* v_cache, const float* q, const float* k,
                                 const float* v, const int32_t* position, AttentionSizes s) {
  const int64_t e = s.e, m = s.m, capacity = s.key_length;
  const float scale = score_scale(s);
  const int64_t last = position[0] % capacity, count = std::min<int64_t>(position[0] + 1, capacity);
  [[maybe_unused]] const int threads = s.sequences() * count * (e + m) >= 1 << 16 ? omp_get_max_threads() : 1;
  const ThreadScratch weights(count);
#pragma omp parallel for schedule(static) num_threads(threads)
  for (int64_t n = 0; n < s.sequences(); ++n) {
    float *const p = weights.this_thread(), *const out = y + n * m;
    float *const keys = k_cache + n * e * capacity, *const values = v_cache + n * capacity * m;
    clear(p, count);
    for (int64_t c = 0; c < e; ++c) {
      const float factor = scale * q[n * e + c];
      keys[c * capacity + last] = k[n * e + c];
      add_scaled(p, factor, keys + c * capacity, count);
    }
    copy_numbers(values + last * m, v + n * m, m);
    const float highest = map_max(count, p);
    Lanes sums{};
    for (int64_t j = 0; j < count; j += lanes) {
      const Lanes weight = exp(load(p + j, count - j, splat(minus_infinity)) - highest);
      sums += weight;
      store(p + j, weight, count - j);
    }
    const float inverse = 1 / lane_sum(sums);
    clear(out, m);
    for (int64_t j = 0; j < count; ++j) add_scaled(out, p[j] * inverse, values + j * m, m);
  }
}

}  // namespace runnel
