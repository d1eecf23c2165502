// Softmax attention in blocks (eq. 2), whose memory grows with L and not with its square: to all keys, or to listed
// blocks of them (local attention, Sparse Transformer, BigBird, Longformer), with a bias of the scores or without.
//
// Forward, a range of queries goes over its keys, a tile at a time, with the largest score m_i so far and the sum n_i
// of the exponentials ("online softmax", Milakov and Gimelshein 2018):
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

// Queries and keys of a tile of scores: multiples of 16 and of the rows of a block of a product. What a tile needs
// stays in the second-level cache for E and M up to 64.
constexpr int64_t queries_at_once = 96, keys_at_once = 96;

// The matrices that one thread works in. Rows of scores, weights and slopes are keys, their columns queries.
struct SoftmaxBlock {
  int64_t e, m;  // padded
  Arena memory;
  Matrix q = memory.matrix(queries_at_once, e), qt = memory.matrix(e, queries_at_once);
  Matrix g = memory.matrix(queries_at_once, m), gt = memory.matrix(m, queries_at_once);
  Matrix y = memory.matrix(queries_at_once, m), dq = memory.matrix(queries_at_once, e);
  Matrix largest = memory.matrix(1, queries_at_once), total = memory.matrix(1, queries_at_once);
  Matrix k = memory.matrix(keys_at_once, e), v = memory.matrix(keys_at_once, m);
  Matrix dk = memory.matrix(keys_at_once, e), dv = memory.matrix(keys_at_once, m);
  Matrix p = memory.matrix(keys_at_once, queries_at_once), w = memory.matrix(keys_at_once, queries_at_once);
  Matrix f = memory.matrix(keys_at_once, queries_at_once);                              // factors of dropout, or a bias
  Matrix ft = memory.matrix(queries_at_once, keys_at_once);                             // transposed
  Matrix l = memory.matrix(1, queries_at_once), d = memory.matrix(1, queries_at_once);  // l_i and d_i
  Matrix factor = memory.matrix(1, queries_at_once);

  static int64_t floats(const AttentionSizes& s) {
    const int64_t e = padded(s.e), m = padded(s.m);
    return queries_at_once * (3 * (e + m) + 4 * keys_at_once + 5) + keys_at_once * 2 * (e + m);
  }
  SoftmaxBlock(const AttentionSizes& s, float* own) : e(padded(s.e)), m(padded(s.m)), memory(own) {}
};

// Queries [first, first + count), at most those of a tile, within query block r of the pattern.
struct QueryRange {
  int64_t r, first, count;
};
std::vector<QueryRange> query_ranges(const BlockLists& pattern, int64_t length) {
  const int64_t each = pattern.first_key ? pattern.query_block : length;
  std::vector<QueryRange> ranges;
  for (int64_t begin = 0; begin < length; begin += each)
    for (int64_t end = std::min(begin + each, length), first = begin; first < end; first += queries_at_once)
      ranges.push_back({begin / each, first, std::min(queries_at_once, end - first)});
  return ranges;
}

// factor x and its transpose, of the queries of a range.
void load_queries(const Matrix& to, const Matrix& transposed, const SequenceRows<const float>& x,
                  const QueryRange& range, float factor) {
  const int64_t queries = padded(range.count);
  const Matrix rows = to.some_rows(0, queries);
  load(rows, x, range.first, range.count, [factor](Lanes a) RUNNEL_INLINE { return factor * a; });
  transpose(transposed.some_columns(0, queries), rows);
}

struct SoftmaxSequence {
  const AttentionSizes& s;
  const SoftmaxSettings& settings;
  int64_t n, key_end;  // keys from there on are padding

  SoftmaxSequence(const AttentionSizes& sizes, const SoftmaxSettings& all, const int32_t* lengths, int64_t number)
      : s(sizes), settings(all), n(number), key_end(seen_keys(lengths, sizes, number)) {}
  template <class T>
  SequenceRows<T> of_queries(T* x, int64_t width) const {  // q, y and their gradients
    return rows_of_sequence(x, n, s.length, s.heads, width, queries_at_once);
  }
  template <class T>
  SequenceRows<T> of_keys(T* x, int64_t width) const {
    return rows_of_sequence(x, n, s.key_length, s.heads, width, keys_at_once);
  }
};

// The keys that a range of queries sees, without padding and later ones: all of them, or those of the blocks in its
// list, one after another. Only the last block of a sequence can be shorter, and it is the last of its list.
struct KeyList {
  int64_t block, count;
  const int32_t* list = nullptr;

  KeyList(const SoftmaxSequence& x, const QueryRange& range) : block(x.settings.pattern.key_block) {
    const int64_t end = x.s.causal ? std::min(x.key_end, range.first + range.count) : x.key_end;
    count = end;
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

// Keys [first, first + keys_at_once) of a list, or as many as are left.
struct KeyBlock {
  int64_t count, positions[keys_at_once];
  bool contiguous;

  KeyBlock(const KeyList& keys, int64_t first) : count(std::min(keys_at_once, keys.count - first)) {
    int64_t number = keys.list ? first / keys.block : 0, place = first - number * keys.block;
    for (int64_t j = 0; j < count; ++j) {
      positions[j] = (keys.list ? keys.list[number] * keys.block : 0) + place;
      if (++place == keys.block) place = 0, ++number;
    }
    contiguous = positions[count - 1] - positions[0] == count - 1;
  }
  void load_rows(const Matrix& all, const SequenceRows<const float>& from) const {
    const Matrix to = all.some_rows(0, padded(count));
    if (contiguous) return load(to, from, positions[0], count);
    if (count < to.rows || from.width < to.columns) to.clear();
    for (int64_t j = 0; j < count; ++j) copy_numbers(to.row(j), from(positions[j]), from.width);
  }
};

// A part of a tile: its first `keys` keys, and the queries [first, first + queries), a multiple of 16.
struct TilePart {
  int64_t keys, first, queries;
  // Of scores, weights or slopes.
  Matrix scores(const Matrix& all) const { return all.some_rows(0, keys).some_columns(first, queries); }
  Matrix of_keys(const Matrix& all) const { return all.some_rows(0, keys); }
  Matrix of_queries(const Matrix& all) const { return all.some_rows(first, queries); }
  Matrix columns(const Matrix& all) const { return all.some_columns(first, queries); }
};

// visit(part) for the parts of a tile: the tile itself, or, on the diagonal of a causal layer, slices of 16 queries
// with the keys that these see, and then the rest at once, from the first slice whose last query sees all keys: the
// last slice does.
template <class Visit>
void each_part(const KeyBlock& keys, const QueryRange& range, bool causal, Visit visit) {
  const int64_t queries = padded(range.count);
  int64_t first = 0;
  for (; causal && first < queries; first += tile) {
    const int64_t last = range.first + first + tile - 1, *const end = keys.positions + keys.count;
    const int64_t seen = std::upper_bound(keys.positions, end, last) - keys.positions;
    if (seen == keys.count) break;
    if (seen > 0) visit(TilePart{seen, first, tile});
  }
  visit(TilePart{keys.count, first, queries - first});
}

// Hides the scores b.p of later keys, if causal, and of those outside of the band.
void hide(const SoftmaxBlock& b, const SoftmaxSequence& x, const KeyBlock& keys, const QueryRange& range,
          const TilePart& part) {
  const std::optional<Band>& band = x.settings.pattern.band;
  const bool causal = x.s.causal && keys.positions[part.keys - 1] > range.first + part.first;
  if (!causal && !band) return;
  const int64_t stop = part.first + part.queries;
  const auto column = [&](int64_t query) { return std::clamp<int64_t>(query - range.first, part.first, stop); };
  for (int64_t j = 0; j < part.keys; ++j) {
    const int64_t key = keys.positions[j];
    int64_t from = causal ? column(key) : part.first;
    if (band && key >= band->global) {
      const int64_t to = column(key + band->reach + 1);
      set_all(b.p.row(j) + to, hidden_score, stop - to);
      from = std::max(from, column(key - band->reach));
    }
    set_all(b.p.row(j) + part.first, hidden_score, from - part.first);
  }
}

// The bias of a tile -> b.f.
void load_bias(const SoftmaxBlock& b, const SoftmaxSequence& x, const KeyBlock& keys, const QueryRange& range) {
  const AttentionBias& bias = x.settings.bias;
  if (!bias.data) return;
  const int64_t matrix = bias.is_shared ? x.n % x.s.heads : x.n;
  const float* const numbers = bias.data + matrix * bias.rows * bias.columns + keys.positions[0];
  load(b.ft, {numbers, bias.columns, keys.count, queries_at_once * bias.columns}, range.first, range.count);
  transpose(b.f, b.ft);
}

// Scores of the queries and keys that are loaded -> b.p.
void find_scores(const SoftmaxBlock& b, const SoftmaxSequence& x, const KeyBlock& keys, const QueryRange& range,
                 const TilePart& part) {
  multiply(part.scores(b.p), part.of_keys(b.k), part.columns(b.qt), Store::set);
  for (int64_t j = 0; x.settings.bias.data && j < part.keys; ++j)
    accumulate(b.p.row(j) + part.first, b.f.row(j) + part.first, part.queries);
  hide(b, x, keys, range, part);
}

// The factors of dropout -> b.f. Eight neighbouring weights of a query share a Philox block. Not inlined: its arrays
// would slow down attention without dropout.
RUNNEL_NOINLINE void draw_dropout(const SoftmaxBlock& b, const SoftmaxSequence& x, const KeyBlock& keys,
                                  const QueryRange& range) {
  const Dropout& dropout = x.settings.dropout;
  if (dropout.p == 0) return;
  constexpr int64_t each = keys_at_once / 8, count = queries_at_once * each;  // Philox blocks of a query, and of all
  uint64_t index[count];
  for (int64_t i = 0; i < count; ++i)
    index[i] =
        static_cast<uint64_t>((first_weight(x.s, x.n, range.first + i / each) + keys.positions[0]) / 8 + i % each);
  alignas(64) uint16_t numbers[queries_at_once * keys_at_once];
  draw_numbers(numbers, count, dropout.key, [&](int64_t i) RUNNEL_INLINE {
    WordLanes some;
    std::memcpy(&some, index + i, sizeof some);
    return some;
  });
  const DropoutFactors factors(dropout.p);
  for (int64_t i = 0; i < queries_at_once * keys_at_once; i += lanes) store(b.ft.row(0) + i, factors(numbers + i));
  transpose(b.f, b.ft);
}
void drop(const Matrix& weights, const Matrix& factors, const Dropout& dropout) {
  if (dropout.p == 0) return;
  for (int64_t j = 0; j < weights.rows; ++j)
    for (int64_t c = 0; c < weights.columns / lanes; ++c) weights.lanes_of(j)[c] *= factors.lanes_of(j)[c];
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
        load_queries(b.q, b.qt, x.of_queries(q, s.e), range, scale);
        b.y.clear();
        b.total.clear();
        set_all(b.largest.row(0), hidden_score, queries_at_once);
        for (int64_t t = 0; t < list.count; t += keys_at_once) {
          const KeyBlock keys(list, t);
          keys.load_rows(b.k, x.of_keys(k, s.e));
          keys.load_rows(b.v, x.of_keys(v, s.m));
          load_bias(b, x, keys, range);
          draw_dropout(b, x, keys, range);
          each_part(keys, range, s.causal, [&](const TilePart& part) {
            const Matrix p = part.scores(b.p), y_part = part.of_queries(b.y);
            find_scores(b, x, keys, range, part);
            float* const factor = b.factor.row(0) + part.first;
            advance_softmax({b.largest.row(0) + part.first, b.total.row(0) + part.first, factor, part.queries}, p,
                            part.keys);
            drop(p, part.scores(b.f), settings.dropout);
            for (int64_t i = 0; i < part.queries; ++i)
              if (factor[i] != 1)
                for (int64_t c = 0; c < b.m / lanes; ++c) y_part.lanes_of(i)[c] *= factor[i];
            multiply_transposed(y_part, p, part.of_keys(b.v), Store::add);
          });
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

namespace {

// Where the gradients of a sequence's keys and values are summed up.
struct KeyGradients {
  SequenceRows<float> dk, dv;
  void clear_all(int64_t length) const {
    for (int64_t j = 0; j < length; ++j) {
      clear(dk(j), dk.width);
      clear(dv(j), dv.width);
    }
  }
};

// Backward for the queries of a range, which are loaded, and a block of keys.
void backward_tile(const SoftmaxBlock& b, const SoftmaxSequence& x, const KeyBlock& keys, const QueryRange& range,
                   const KeyGradients& to, float* db) {
  const Dropout& dropout = x.settings.dropout;
  const AttentionBias& bias = x.settings.bias;
  load_bias(b, x, keys, range);
  draw_dropout(b, x, keys, range);
  if (db) b.w.clear();
  b.dk.clear();
  b.dv.clear();
  each_part(keys, range, x.s.causal, [&](const TilePart& part) {
    const Matrix p = part.scores(b.p), w = part.scores(b.w), f = part.scores(b.f);
    find_scores(b, x, keys, range, part);
    multiply(w, part.of_keys(b.v), part.columns(b.gt), Store::set);
    drop(w, f, dropout);
    const float *const l = b.l.row(0) + part.first, *const d = b.d.row(0) + part.first;
    for (int64_t j = 0; j < part.keys; ++j)
      for (int64_t c = 0; c < part.queries / lanes; ++c) {
        Lanes &p_ij = p.lanes_of(j)[c], &w_ij = w.lanes_of(j)[c];
        p_ij = exp(p_ij - load(l + c * lanes));
        w_ij = p_ij * (w_ij - load(d + c * lanes));
      }
    drop(p, f, dropout);
    multiply(part.of_keys(b.dv), p, part.of_queries(b.g), Store::add);
    multiply(part.of_keys(b.dk), w, part.of_queries(b.q), Store::add);
    multiply_transposed(part.of_queries(b.dq), w, part.of_keys(b.k), Store::add);
  });
  for (int64_t j = 0; j < keys.count; ++j) {
    accumulate(to.dk(keys.positions[j]), b.dk.row(j), x.s.e);
    accumulate(to.dv(keys.positions[j]), b.dv.row(j), x.s.m);
  }
  if (!db) return;
  transpose(b.ft, b.w);
  for (int64_t i = 0; i < range.count; ++i)
    accumulate(db + (range.first + i) * bias.columns + keys.positions[0], b.ft.row(i), keys.count);
}

}  // namespace

// Threads share the sequences; those that share a gradient of the bias go together. Fewer than eight sequences are also
// cut into parts of their queries, whatever the number of threads, which would change the sums: part n has the ranges
// n, n + parts and so on. Each part but the last sums up dk and dv in memory of its own; these sums are added at the
// end. Parts write different rows of dbias.
void cpu::softmax_attention_backward(float* dq, float* dk, float* dv, float* dbias, const float* dy, const float* y,
                                     const float* l, const float* q, const float* k, const float* v,
                                     const int32_t* lengths, AttentionSizes s, SoftmaxSettings settings) {
  const float scale = score_scale(s);
  const AttentionBias& bias = settings.bias;
  const int64_t owners = dbias && bias.is_shared ? s.heads : s.sequences(), numbers = bias.rows * bias.columns;
  const std::vector<QueryRange> ranges = query_ranges(settings.pattern, s.length);
  const int64_t wanted = s.sequences() == 0 ? 1 : (7 + s.sequences()) / s.sequences();
  const int64_t parts = std::clamp<int64_t>(std::ssize(ranges) / 4, 1, wanted);
  const int64_t key_floats = s.key_length * s.e, value_floats = s.key_length * s.m;  // of a sequence
  const Scratch sums((parts - 1) * s.sequences() * (key_floats + value_floats));
  const auto gradients_of = [&](const SoftmaxSequence& x, int64_t part) -> KeyGradients {
    if (part + 1 == parts) return {x.of_keys(dk, s.e), x.of_keys(dv, s.m)};
    float* const own = sums.data() + (part * s.sequences() + x.n) * (key_floats + value_floats);
    return {{own, s.e, s.e, 0}, {own + key_floats, s.m, s.m, 0}};
  };
  const ThreadScratch scratch(SoftmaxBlock::floats(s));
  if (dbias) parallel_rows(owners, numbers, [=](int64_t owner) { clear(dbias + owner * numbers, numbers); });
#pragma omp parallel if (is_enough(s))
  {
    const SoftmaxBlock b(s, scratch.this_thread());
#pragma omp for collapse(2) schedule(dynamic)
    for (int64_t owner = 0; owner < owners; ++owner)
      for (int64_t part = 0; part < parts; ++part) {
        float* const db = dbias ? dbias + owner * numbers : nullptr;
        for (int64_t n = owner; n < s.sequences(); n += owners) {
          const SoftmaxSequence x(s, settings, lengths, n);
          const auto q_n = x.of_queries(q, s.e), dy_n = x.of_queries(dy, s.m), y_n = x.of_queries(y, s.m);
          const auto k_n = x.of_keys(k, s.e), v_n = x.of_keys(v, s.m);
          const auto dq_n = x.of_queries(dq, s.e);
          const KeyGradients to = gradients_of(x, part);
          to.clear_all(s.key_length);
          for (int64_t number = part; number < std::ssize(ranges); number += parts) {
            const QueryRange range = ranges[static_cast<size_t>(number)];
            const KeyList list(x, range);
            b.l.clear();
            b.d.clear();
            copy_numbers(b.l.row(0), l + n * s.length + range.first, range.count);
            for (int64_t i = 0; i < range.count; ++i)
              b.d.row(0)[i] = dot(dy_n(range.first + i), y_n(range.first + i), s.m);
            load_queries(b.q, b.qt, q_n, range, scale);
            load_queries(b.g, b.gt, dy_n, range, 1);
            b.dq.clear();
            for (int64_t t = 0; t < list.count; t += keys_at_once) {
              const KeyBlock keys(list, t);
              keys.load_rows(b.k, k_n);
              keys.load_rows(b.v, v_n);
              backward_tile(b, x, keys, range, to, db);
            }
            for (int64_t i = 0; i < range.count; ++i)
              map(
                  dq_n(range.first + i), s.e, [scale](Lanes sum) RUNNEL_INLINE { return scale * sum; }, b.dq.row(i));
          }
        }
      }
  }
  const int64_t rows = parts > 1 ? s.sequences() * s.key_length : 0;
  parallel_rows(rows, parts * (s.e + s.m), [&](int64_t row) {
    const SoftmaxSequence x(s, settings, lengths, row / s.key_length);
    const int64_t j = row % s.key_length;
    const KeyGradients to = gradients_of(x, parts - 1);
    for (int64_t part = 0; part + 1 < parts; ++part) {
      const KeyGradients from = gradients_of(x, part);
      accumulate(to.dk(j), from.dk(j), s.e);
      accumulate(to.dv(j), from.dv(j), s.m);
    }
  });
}

}  // namespace runnel
