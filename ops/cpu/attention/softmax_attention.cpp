// Softmax attention in blocks (eq. 2), whose memory grows with L and not with its square: to all keys, or to listed
// blocks of them (local attention, Sparse Transformer, BigBird, Longformer), with a bias of the scores or without.
//
// Forward, a block of queries goes over its keys, 64 at a time, with the largest score m_i so far and the sum n_i of
// the exponentials ("online softmax", Milakov and Gimelshein 2018):
//
//   x_ij = q_i . k_j / sqrt(E) + bias_ij,   m' = max(m, max_j x_ij),   p_ij = e^(x_ij - m')
//   n' = n e^(m - m') + sum_j p_ij,   y' = y e^(m - m') + sum_j p_ij v_j
//
// and at the end y_i = y' / n'. Beside y it keeps l_i = m_i + log n_i, so that backward finds p_ij = e^(x_ij - l_i)
// again:
//
//   dv_j = sum_i p_ij dy_i,   s_ij = p_ij (dy_i . v_j - d_i),   d_i = sum_j p_ij dy_i . v_j = dy_i . y_i
//   dq_i = sum_j s_ij k_j / sqrt(E),   dk_j = sum_i s_ij q_i / sqrt(E),   dbias_ij = s_ij
//
// where a bias that the batch shares gets the sum of the batch. Dropout of the weights leaves l and d as they are: with
// the factors f_ij, 0 or 1 / (1 - p), that are drawn again in the backward pass,
//
//   y_i = sum_j f_ij p_ij v_j,   dv_j = sum_i f_ij p_ij dy_i,   s_ij = p_ij (f_ij dy_i . v_j - d_i)
#include <algorithm>
#include <limits>
#include <vector>

#include "ops/cpu/attention/online_softmax.h"
#include "ops/cpu/dropout.h"
#include "ops/cpu/sequences.h"
#include "ops/kernels/softmax_attention.h"

namespace runnel {
namespace {

constexpr int64_t block_size = 2 * tile;  // queries, and keys, at a time

// The matrices of a block of queries and a block of keys, which one thread works in. Rows of scores, weights and slopes
// are keys, their columns queries.
struct SoftmaxBlock {
  int64_t e, m;  // padded
  Arena memory;
  Matrix q = memory.matrix(block_size, e), qt = memory.matrix(e, block_size), k = memory.matrix(block_size, e);
  Matrix v = memory.matrix(block_size, m), g = memory.matrix(block_size, m), gt = memory.matrix(m, block_size);
  Matrix p = memory.matrix(block_size, block_size), w = memory.matrix(block_size, block_size);
  Matrix y = memory.matrix(block_size, m), dq = memory.matrix(block_size, e), dk = memory.matrix(block_size, e);
  Matrix dv = memory.matrix(block_size, m);
  Matrix largest = memory.matrix(1, block_size), total = memory.matrix(1, block_size);
  Matrix factor = memory.matrix(1, block_size);
  Matrix f = memory.matrix(block_size, block_size), ft = memory.matrix(block_size, block_size);  // of dropout; a bias
  Matrix d;  // d_i of each query of a sequence, in the backward pass

  static int64_t floats(const AttentionSizes& s, int64_t queries = 0) {
    return block_size * (5 * padded(s.e) + 5 * padded(s.m) + 4 * block_size + 3) + padded(queries);
  }
  SoftmaxBlock(const AttentionSizes& s, float* own, int64_t queries = 0)
      : e(padded(s.e)), m(padded(s.m)), memory(own), d(memory.matrix(1, padded(queries))) {}
  RunningSoftmax softmax() const { return {largest.row(0), total.row(0), factor.row(0), block_size}; }
};

// Queries [first, first + count), up to 64, all of block r of the pattern.
struct QueryRange {
  int64_t r, first, count;
};
std::vector<QueryRange> query_ranges(const BlockLists& pattern, int64_t length) {
  const int64_t each = pattern.first_key ? pattern.query_block : length;
  std::vector<QueryRange> ranges;
  for (int64_t begin = 0; begin < length; begin += each)
    for (int64_t end = std::min(begin + each, length), first = begin; first < end; first += block_size)
      ranges.push_back({begin / each, first, std::min(block_size, end - first)});
  return ranges;
}

struct SoftmaxSequence {
  const AttentionSizes& s;
  const SoftmaxSettings& settings;
  int64_t n, key_end;  // keys from there on are padding

  SoftmaxSequence(const AttentionSizes& sizes, const SoftmaxSettings& all, const int32_t* lengths, int64_t number)
      : s(sizes), settings(all), n(number), key_end(seen_keys(lengths, sizes, number)) {}
  template <class T>
  SequenceRows<T> of_queries(T* x, int64_t width) const {  // q, y and their gradients
    return rows_of_sequence(x, n, s.length, s.heads, width, block_size);
  }
  template <class T>
  SequenceRows<T> of_keys(T* x, int64_t width) const {
    return rows_of_sequence(x, n, s.key_length, s.heads, width, block_size);
  }
};

// The keys that a range of queries sees, those before `end`: all of them, or those of the blocks in its list, one after
// another. Only the last block of a sequence can be shorter, and it is the last of its list.
struct KeyList {
  int64_t end, block, count;
  const int32_t* list = nullptr;

  KeyList(const SoftmaxSequence& x, const QueryRange& range)
      : end(x.s.causal ? std::min(x.key_end, range.first + range.count) : x.key_end),
        block(x.settings.pattern.key_block),
        count(end) {
    const BlockLists& pattern = x.settings.pattern;
    if (!pattern.first_key) return;
    int64_t r = range.r;
    if (pattern.by_length) r += blocks_of(x.key_end, block) * blocks_of(x.s.length, pattern.query_block);
    list = pattern.keys + pattern.first_key[r];
    int64_t blocks = pattern.first_key[r + 1] - pattern.first_key[r];
    while (blocks > 0 && list[blocks - 1] * block >= end) --blocks;
    count = blocks == 0 ? 0 : (blocks - 1) * block + std::min(block, end - list[blocks - 1] * block);
  }
};

// Up to 64 of them, from number `first` on.
struct KeyBlock {
  int64_t count, positions[block_size];
  bool contiguous;

  KeyBlock(const KeyList& keys, int64_t first) : count(std::min(block_size, keys.count - first)) {
    int64_t number = keys.list ? first / keys.block : 0, place = first - number * keys.block;
    for (int64_t j = 0; j < count; ++j) {
      positions[j] = (keys.list ? keys.list[number] * keys.block : 0) + place;
      if (++place == keys.block) place = 0, ++number;
    }
    std::fill(positions + count, positions + block_size, nobody);
    contiguous = positions[count - 1] - positions[0] == count - 1;
  }
  void load_rows(const Matrix& to, const SequenceRows<const float>& from) const {
    if (contiguous) return load(to, from, positions[0], count);
    if (count < to.rows || from.width < to.columns) to.clear();
    for (int64_t j = 0; j < count; ++j) copy_numbers(to.row(j), from(positions[j]), from.width);
  }
  static constexpr int64_t nobody = std::numeric_limits<int64_t>::max();
};

// Hides the scores b.p of keys from `end` on, of later ones if causal, and of those outside of the band.
void hide(const SoftmaxBlock& b, const SoftmaxSequence& x, const KeyBlock& keys, const QueryRange& range, int64_t end) {
  const std::optional<Band>& band = x.settings.pattern.band;
  const bool causal = x.s.causal && keys.positions[keys.count - 1] > range.first;
  if (keys.count == block_size && !causal && !band) return;
  const auto column = [&](int64_t query) { return std::clamp<int64_t>(query - range.first, 0, block_size); };
  for (int64_t j = 0; j < block_size; ++j) {
    const int64_t key = keys.positions[j];
    int64_t from = key >= end ? block_size : causal ? column(key) : 0;
    if (band && key < end && key >= band->global) {
      const int64_t to = column(key + band->reach + 1);
      set_all(b.p.row(j) + to, hidden_score, block_size - to);
      from = std::max(from, column(key - band->reach));
    }
    set_all(b.p.row(j), hidden_score, from);
  }
}

// Scores of the queries and keys that are loaded -> b.p.
void find_scores(const SoftmaxBlock& b, const SoftmaxSequence& x, const KeyBlock& keys, const QueryRange& range,
                 int64_t end) {
  multiply(b.p, b.k, b.qt, Store::set);
  if (const AttentionBias& bias = x.settings.bias; bias.data) {
    const int64_t matrix = bias.is_shared ? x.n % x.s.heads : x.n;
    const float* const numbers = bias.data + matrix * bias.rows * bias.columns + keys.positions[0];
    load(b.f, {numbers, bias.columns, keys.count, block_size * bias.columns}, range.first, range.count);
    transpose(b.ft, b.f);
    for (int64_t j = 0; j < keys.count; ++j) accumulate(b.p.row(j), b.ft.row(j), block_size);
  }
  hide(b, x, keys, range, end);
}

// The factors of dropout -> b.f. Eight neighbouring weights of a query share a Philox block. Not inlined: its arrays
// would slow down attention without dropout.
RUNNEL_NOINLINE void draw_dropout(const SoftmaxBlock& b, const SoftmaxSequence& x, const KeyBlock& keys,
                                  const QueryRange& range) {
  const Dropout& dropout = x.settings.dropout;
  if (dropout.p == 0) return;
  constexpr int64_t each = block_size / 8, count = block_size * each;  // Philox blocks of a query, and of all
  uint64_t index[count];
  for (int64_t i = 0; i < count; ++i)
    index[i] =
        static_cast<uint64_t>((first_weight(x.s, x.n, range.first + i / each) + keys.positions[0]) / 8 + i % each);
  uint16_t numbers[block_size * block_size];
  draw_numbers(numbers, index, count, dropout.key);
  const DropoutFactors factors(dropout.p);
  for (int64_t i = 0; i < block_size * block_size; i += lanes) store(b.ft.row(0) + i, factors(numbers + i));
  transpose(b.f, b.ft);
}
void drop(const SoftmaxBlock& b, const Matrix& weights, const Dropout& dropout) {
  if (dropout.p == 0) return;
  for (int64_t i = 0; i < weights.vectors(); ++i) weights.data[i] *= b.f.data[i];
}

// Of work for several threads.
[[maybe_unused]] bool is_enough(const AttentionSizes& s) {
  return s.sequences() * s.length * s.key_length * (s.e + s.m) >= parallel_from_products;
}

}  // namespace

// Threads share the ranges of queries.
void cpu::softmax_attention_forward(float* y, float* l, const float* q, const float* k, const float* v,
                                    const int32_t* lengths, AttentionSizes s, SoftmaxSettings settings) {
  const float scale = score_scale(s);
  const std::vector<QueryRange> ranges = query_ranges(settings.pattern, s.length);
  const ThreadScratch scratch(SoftmaxBlock::floats(s));
#pragma omp parallel if (is_enough(s))
  {
    const SoftmaxBlock b(s, scratch.this_thread());
#pragma omp for collapse(2) schedule(dynamic)
    for (int64_t n = 0; n < s.sequences(); ++n)
      for (int64_t number = std::ssize(ranges) - 1; number >= 0; --number) {  // those with most keys first
        const QueryRange range = ranges[static_cast<size_t>(number)];
        const SoftmaxSequence x(s, settings, lengths, n);
        const KeyList list(x, range);
        load(b.q, x.of_queries(q, s.e), range.first, range.count, [scale](Lanes a) RUNNEL_INLINE { return scale * a; });
        transpose(b.qt, b.q);
        b.y.clear();
        b.total.clear();
        set_all(b.largest.row(0), hidden_score, block_size);
        for (int64_t t = 0; t < list.count; t += block_size) {
          const KeyBlock keys(list, t);
          keys.load_rows(b.k, x.of_keys(k, s.e));
          keys.load_rows(b.v, x.of_keys(v, s.m));
          find_scores(b, x, keys, range, list.end);
          advance_softmax(b.softmax(), b.p, block_size);
          draw_dropout(b, x, keys, range);
          drop(b, b.p, settings.dropout);
          for (int64_t i = 0; i < block_size; ++i)
            for (int64_t c = 0; c < b.m / lanes; ++c) b.y.lanes_of(i)[c] *= b.factor.row(0)[i];
          multiply_transposed(b.y, b.p, b.v, Store::add);
        }
        const auto y_n = x.of_queries(y, s.m);
        for (int64_t i = 0; i < range.count; ++i) {
          const float total = b.total.row(0)[i], inverse = total > 0 ? 1 / total : 0;
          map(
              y_n(range.first + i), s.m, [inverse](Lanes sum) RUNNEL_INLINE { return sum * inverse; }, b.y.row(i));
          // Infinity for a query that has seen no key, so that its weights are 0 in the backward pass.
          l[n * s.length + range.first + i] =
              total > 0 ? b.largest.row(0)[i] + log(splat(total))[0] : std::numeric_limits<float>::infinity();
        }
      }
  }
}

// Threads share the sequences; those that share a matrix of the bias are one's.
void cpu::softmax_attention_backward(float* dq, float* dk, float* dv, float* dbias, const float* dy, const float* y,
                                     const float* l, const float* q, const float* k, const float* v,
                                     const int32_t* lengths, AttentionSizes s, SoftmaxSettings settings) {
  const float scale = score_scale(s);
  const AttentionBias& bias = settings.bias;
  const int64_t owners = bias.is_shared ? s.heads : s.sequences(), numbers = bias.rows * bias.columns;
  const std::vector<QueryRange> ranges = query_ranges(settings.pattern, s.length);
  const ThreadScratch scratch(SoftmaxBlock::floats(s, s.length));
#pragma omp parallel if (is_enough(s))
  {
    const SoftmaxBlock b(s, scratch.this_thread(), s.length);
#pragma omp for schedule(static)
    for (int64_t owner = 0; owner < owners; ++owner) {
      float* const db = dbias ? dbias + owner * numbers : nullptr;
      if (db) clear(db, numbers);
      for (int64_t n = owner; n < s.sequences(); n += owners) {
        const SoftmaxSequence x(s, settings, lengths, n);
        const auto q_n = x.of_queries(q, s.e), dy_n = x.of_queries(dy, s.m), y_n = x.of_queries(y, s.m);
        const auto k_n = x.of_keys(k, s.e), v_n = x.of_keys(v, s.m);
        const auto dq_n = x.of_queries(dq, s.e), dk_n = x.of_keys(dk, s.e), dv_n = x.of_keys(dv, s.m);
        for (int64_t i = 0; i < s.length; ++i) b.d.row(0)[i] = dot(dy_n(i), y_n(i), s.m);
        for (int64_t j = 0; j < s.key_length; ++j) {
          clear(dk_n(j), s.e);
          clear(dv_n(j), s.m);
        }
        for (const QueryRange& range : ranges) {
          const KeyList list(x, range);
          float l_i[block_size] = {}, d_i[block_size] = {};
          copy_numbers(l_i, l + n * s.length + range.first, range.count);
          copy_numbers(d_i, b.d.row(0) + range.first, range.count);
          load(b.q, q_n, range.first, range.count, [scale](Lanes a) RUNNEL_INLINE { return scale * a; });
          load(b.g, dy_n, range.first, range.count);
          transpose(b.qt, b.q);
          transpose(b.gt, b.g);
          b.dq.clear();
          for (int64_t t = 0; t < list.count; t += block_size) {
            const KeyBlock keys(list, t);
            keys.load_rows(b.k, k_n);
            keys.load_rows(b.v, v_n);
            find_scores(b, x, keys, range, list.end);
            multiply(b.w, b.v, b.gt, Store::set);
            draw_dropout(b, x, keys, range);
            drop(b, b.w, settings.dropout);
            for (int64_t j = 0; j < block_size; ++j)
              for (int64_t c = 0; c < block_size / lanes; ++c) {
                Lanes &p = b.p.lanes_of(j)[c], &w = b.w.lanes_of(j)[c];
                p = exp(p - load(l_i + c * lanes));
                w = p * (w - load(d_i + c * lanes));
              }
            drop(b, b.p, settings.dropout);
            multiply(b.dv, b.p, b.g, Store::set);
            multiply(b.dk, b.w, b.q, Store::set);
            multiply_transposed(b.dq, b.w, b.k, Store::add);
            for (int64_t j = 0; j < keys.count; ++j) {
              accumulate(dk_n(keys.positions[j]), b.dk.row(j), s.e);
              accumulate(dv_n(keys.positions[j]), b.dv.row(j), s.m);
            }
            if (!db) continue;
            transpose(b.ft, b.w);
            for (int64_t i = 0; i < range.count; ++i)
              accumulate(db + (range.first + i) * bias.columns + keys.positions[0], b.ft.row(i), keys.count);
          }
          for (int64_t i = 0; i < range.count; ++i)
            map(
                dq_n(range.first + i), s.e, [scale](Lanes sum) RUNNEL_INLINE { return scale * sum; }, b.dq.row(i));
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
