// Linear layers for few rows. With many rows a product is compute-bound; with few it is bound by reading w, so w is
// laid out to be read once, sequentially, and the sums stay in registers.
#include <algorithm>
#include <type_traits>
#include <vector>

#include "ops/cpu/panels.h"
#include "ops/cpu/tiles.h"
#include "ops/kernels/linear.h"
#include "ops/numerics.h"

namespace runnel {
namespace {

constexpr int64_t prefetched = 24;  // rows of a panel: the processor's own prefetching ends with each page

// A lane of a panel's vectors is a weight in float32 (Lanes); two weights in bfloat16, neighbours along `in`, as are
// the numbers of x that they are multiplied with (BitLanes); or four integers in bytes (ByteLanes), multiplied as two
// pairs of 16 bits with pairs of integers that x is rounded to. Behind a panel of bytes lies the scale of each column,
// behind a row of integers its scale and, where weights are multiplied without sign, the sum of its integers. Where
// instructions multiply four bytes at once, x's integers are cut into bytes, x = 256 upper + lower: part 0 is the
// product of all weights with the upper bytes, part 1 that with the lower ones. In a row of x, the parts follow each
// other.
#if defined(__AVX512VNNI__)  // multiplies bytes without sign, w + 128, by bytes with sign: 128 sum(x) is subtracted
constexpr bool has_byte_products = true;
constexpr uint32_t weight_offset = 128;
#elif defined(__ARM_FEATURE_DOTPROD)
constexpr bool has_byte_products = true;
constexpr uint32_t weight_offset = 0;
#else
constexpr bool has_byte_products = false;
constexpr uint32_t weight_offset = 0;
#endif
using Pair = uint32_t;  // or four bytes of four numbers
using ByteLanes = int8_t __attribute__((vector_size(sizeof(Lanes))));
using ShortLanes = int16_t __attribute__((vector_size(sizeof(Lanes))));

template <class Weights>
constexpr bool is_scaled = std::is_same_v<Weights, ByteLanes>;
template <class Weights>
constexpr int parts = is_scaled<Weights> ? 2 : 1;  // vectors that it is multiplied as
template <class Weights>
using Sums = std::conditional_t<is_scaled<Weights>, IntLanes, Lanes>;

template <class Weights>
RUNNEL_INLINE inline Weights part(const Weights& w, int) {
  return w;
}
RUNNEL_INLINE inline auto part(const ByteLanes& w, [[maybe_unused]] int i) {
  if constexpr (has_byte_products) {
    return w;
  } else {  // the bytes 0 and 2 of a lane, or 1 and 3
    const ShortLanes upper = std::bit_cast<ShortLanes>(w);
    return i == 0 ? upper << 8 >> 8 : upper >> 8;
  }
}

int64_t panel_floats(int64_t depth, bool scaled) { return (depth + (scaled ? 1 : 0)) * panel_columns; }

RUNNEL_INLINE inline void multiply_add(Lanes& sum, float x, const Lanes& w) { sum += x * w; }
RUNNEL_INLINE inline void multiply_add(Lanes& sum, Pair x, const BitLanes& w) {
#if defined(__AVX512BF16__)
  const auto bits = [](const auto& v) RUNNEL_INLINE { return std::bit_cast<__m512bh>(v); };
  sum = _mm512_dpbf16_ps(sum, bits(BitLanes{} + x), bits(w));
#else  // bfloat16 is the upper half of a float
  sum += std::bit_cast<float>(x << 16) * std::bit_cast<Lanes>(w << 16);
  sum += std::bit_cast<float>(x & 0xffff0000) * std::bit_cast<Lanes>(w & 0xffff0000);
#endif
}
// Integers: the sum is exact, if it does not overflow.
#if defined(__AVX512VNNI__)
RUNNEL_INLINE inline void multiply_add(IntLanes& sum, Pair x, const ByteLanes& w) {
  const auto bits = [](const auto& v) RUNNEL_INLINE { return std::bit_cast<__m512i>(v); };
  sum = std::bit_cast<IntLanes>(_mm512_dpbusd_epi32(bits(sum), bits(w ^ int8_t{-128}), bits(BitLanes{} + x)));
}
#elif defined(__ARM_FEATURE_DOTPROD)
RUNNEL_INLINE inline void multiply_add(IntLanes& sum, Pair x, const ByteLanes& w) {
  const int8x16_t xs = vreinterpretq_s8_u32(vdupq_n_u32(x));
  sum = std::bit_cast<IntLanes>(vdotq_s32(std::bit_cast<int32x4_t>(sum), std::bit_cast<int8x16_t>(w), xs));
}
#else
RUNNEL_INLINE inline void multiply_add(IntLanes& sum, Pair x, const ShortLanes& w) {
  const BitLanes xs = BitLanes{} + x;
#if defined(__AVX512BW__)
  sum += std::bit_cast<IntLanes>(_mm512_madd_epi16(std::bit_cast<__m512i>(xs), std::bit_cast<__m512i>(w)));
#elif defined(__AVX2__)
  sum += std::bit_cast<IntLanes>(_mm256_madd_epi16(std::bit_cast<__m256i>(xs), std::bit_cast<__m256i>(w)));
#elif defined(__SSE2__)
  sum += std::bit_cast<IntLanes>(_mm_madd_epi16(std::bit_cast<__m128i>(xs), std::bit_cast<__m128i>(w)));
#else
  const IntLanes x_pairs = std::bit_cast<IntLanes>(xs), w_pairs = std::bit_cast<IntLanes>(w);
  sum += (x_pairs << 16 >> 16) * (w_pairs << 16 >> 16) + (x_pairs >> 16) * (w_pairs >> 16);
#endif
}
#endif

// 256 upper + lower - more, modulo 2^32: the final sum fits into 32 bits, so what comes before it may wrap.
[[maybe_unused]] RUNNEL_INLINE inline IntLanes sum_of_bytes(const IntLanes& upper, const IntLanes& lower,
                                                            uint32_t more = 0) {
  return std::bit_cast<IntLanes>((std::bit_cast<BitLanes>(upper) << 8) + std::bit_cast<BitLanes>(lower) - more);
}

// A panel [depth][columns] of a layer, and where its results go: to `columns` columns of rows `stride` apart.
struct Panel {
  const float *weights, *b;
  float* y;
  int64_t stride, columns;
};

// Half of row r of a panel's results, from its sums; its scale stands behind row r of x.
template <class Weights, class Number>
RUNNEL_INLINE inline void finish(const Panel& of, int64_t r, int64_t half, const Sums<Weights>& sums,
                                 [[maybe_unused]] const Number* row, [[maybe_unused]] int64_t depth,
                                 Activation activation) {
  const int64_t first = half * lanes, columns = of.columns - first;
  if (columns <= 0) return;
  Lanes y = __builtin_convertvector(sums, Lanes), scale = splat(1);
  const Lanes b = load(of.b + first, columns);
  if constexpr (is_scaled<Weights>)
    scale = std::bit_cast<float>(row[2 * depth]) * load(of.weights + depth * panel_columns + first);
  y = y * scale + b;  // in one expression, so that compilers fuse it wherever this is inlined, or nowhere
  if (activation == Activation::relu) y = y <= 0 ? Lanes{} : y;
  store(of.y + r * of.stride + first, y, columns);
}

// y[r,:] = activation(x[r,:] w + b) for `rows` rows of x and `count` panels, whose sums stay in registers. One row
// alone would wait for each addition before the next: several panels give the processor others in between.
template <int rows, int count, class Number, class Weights>
RUNNEL_NOINLINE void packed_product(const Panel* panels, const Number* x, int64_t x_stride, int64_t depth,
                                    Activation activation) {
  // With few rows both parts of a weight at once, so that it is loaded once; with more, and with four where there are
  // 16 registers, one part after the other is faster, with as few vectors beside the sums as possible.
  constexpr bool is_cut = is_scaled<Weights> && has_byte_products;  // its parts have sums of their own
  constexpr bool at_once = rows * count <= 4 && (rows < 4 || registers == 32);
  constexpr int together = at_once ? parts<Weights> : 1, kept = is_cut ? together : 1;
  Sums<Weights> sums[kept][count][rows][2] = {};
  const Weights* weights[count];
  for (int p = 0; p < count; ++p) weights[p] = reinterpret_cast<const Weights*>(panels[p].weights);
  const auto add_parts = [&]<int first>(std::integral_constant<int, first>) RUNNEL_INLINE {
    const Number* number = x;
    for (int64_t k = 0; k < depth; ++k, ++number)
#pragma GCC unroll 4
      for (int p = 0; p < count; ++p) {
        const Weights* const w = weights[p] + 2 * k;
        __builtin_prefetch(w + 2 * prefetched);
        if constexpr (sizeof(Weights) == 64) __builtin_prefetch(w + 2 * prefetched + 1);
#pragma GCC unroll 2
        for (int i = first; i < first + together; ++i) {
          const auto left = part(w[0], i), right = part(w[1], i);
#pragma GCC unroll 12
          for (int r = 0; r < rows; ++r) {
            multiply_add(sums[i % kept][p][r][0], number[i * depth + r * x_stride], left);
            multiply_add(sums[i % kept][p][r][1], number[i * depth + r * x_stride], right);
          }
        }
      }
  };
  add_parts(std::integral_constant<int, 0>());
  if constexpr (together < parts<Weights>) {
    if constexpr (is_cut)
      for (auto& panel : sums[0])
        for (auto& row : panel)
          for (IntLanes& sum : row) sum = sum_of_bytes(sum, IntLanes{});
    add_parts(std::integral_constant<int, 1>());
  }
#pragma GCC unroll 4
  for (int p = 0; p < count; ++p)
#pragma GCC unroll 12
    for (int r = 0; r < rows; ++r)
#pragma GCC unroll 2
      for (int64_t half = 0; half < 2; ++half) {
        const Number* const row = x + r * x_stride;
        Sums<Weights> sum = sums[0][p][r][half];
        if constexpr (is_cut)
          sum = sum_of_bytes(kept == 2 ? sum : IntLanes{}, sums[kept - 1][p][r][half],
                             weight_offset * row[2 * depth + 1]);
        finish<Weights>(panels[p], r, half, sum, row, depth, activation);
      }
}

}  // namespace

void cpu::round_to_bf16(uint16_t* to, const float* from, int64_t n) {
  for (int64_t i = 0; i < n; i += lanes) store(to + i, load(from + i, n - i), n - i);
}

namespace {

// In pairs, two neighbours along `in` lie side by side: [in/2][columns][2].
void pack_pairs(float* to, const float* panel, int64_t depth) {
  const Scratch pairs(2 * depth * panel_columns);
  for (int64_t k = 0; k < 2 * depth; ++k)
    for (int64_t column = 0; column < panel_columns; ++column)
      pairs.data()[(k / 2 * panel_columns + column) * 2 + k % 2] = panel[k * panel_columns + column];
  cpu::round_to_bf16(reinterpret_cast<uint16_t*>(to), pairs.data(), 2 * depth * panel_columns);
}

// In integers, a row is cut into blocks of 2 L numbers, L being the lanes of a vector. Four numbers that are multiplied
// in the same lane are those at 2j, 2j+1, L+2j and L+2j+1 of a block: so rows of x are rounded by whole vectors.
constexpr int64_t block_numbers = 2 * lanes;

// A row of n numbers, as `words` pairs of integers of so many bits that no sum of n products with 127 overflows: 14 or
// more for n up to 1,024, at most 15, and a sign. Cut into signed bytes, the largest is 0x7f7f, of which both are 127;
// it is so where nothing is cut, too, so that both ways have the same results.
template <bool to_bytes>
RUNNEL_INLINE inline void round_to_pairs(Pair* to, const float* from, int64_t n, int64_t words) {
  BitLanes largest_bits{};
  for (int64_t i = 0; i < n; i += lanes) {
    const BitLanes bits = std::bit_cast<BitLanes>(abs(load(from + i, n - i)));
    largest_bits = bits > largest_bits ? bits : largest_bits;  // NaN is larger than all numbers
  }
  uint32_t largest_bit_pattern = 0;
  for (int64_t j = 0; j < lanes; ++j) largest_bit_pattern = std::max(largest_bit_pattern, uint32_t{largest_bits[j]});
  const float largest = std::bit_cast<float>(largest_bit_pattern);
  const float most = static_cast<float>(std::min<int64_t>(0x7f7f, INT32_MAX / (127 * n)));
  const float per_step = largest > 0 ? most / largest : 0;

  using Words = uint64_t __attribute__((vector_size(sizeof(Lanes))));
  const auto pairs = [=](int64_t i) RUNNEL_INLINE {  // two neighbours in the lower half of each word
    constexpr float shift = 0x1.8p23f;  // the lower half of its bits is 0: adding it rounds to an integer there
    const Words bits = std::bit_cast<Words>(load(from + i, n - i) * per_step + shift);
    return (bits & 0xffff) | (bits >> 16 & 0xffff0000);
  };
  IntLanes sums{};
  for (int64_t i = 0; i < words; i += lanes) {
    Words two = pairs(2 * i) | pairs(2 * i + lanes) << 32;  // parts
    const IntLanes integers = std::bit_cast<IntLanes>(two);
    if constexpr (weight_offset != 0) sums += (integers << 16 >> 16) + (integers >> 16);
    if constexpr (to_bytes) {
      const auto lower_bytes = [](Words w) RUNNEL_INLINE {  // of four numbers, in the order of a lane of ByteLanes
        w &= 0x00ff00ff00ff00ff;
        return (w | w >> 24) & 0xffffffff;
      };
      using Shorts = uint16_t __attribute__((vector_size(sizeof(Lanes))));
      const Words upper = std::bit_cast<Words>(std::bit_cast<Shorts>(two) + 0x80) >> 8;  // the lower byte is signed
      two = lower_bytes(upper) | lower_bytes(two) << 32;
    }
    using Part = Pair __attribute__((vector_size(sizeof(Lanes) / 2)));
    const Part first = __builtin_convertvector(two, Part), second = __builtin_convertvector(two >> 32, Part);
    std::memcpy(to + i / 2, &first, sizeof first);
    std::memcpy(to + (words + i) / 2, &second, sizeof second);
  }
  to[words] = std::bit_cast<Pair>(largest / most);
  to[words + 1] = lane_sum(std::bit_cast<BitLanes>(sums));
}

// [steps][columns][4], and the scales [columns].
void pack_int8(float* to, const float* panel, int64_t depth) {
  int8_t* const bytes = reinterpret_cast<int8_t*>(to);
  for (int64_t column = 0; column < panel_columns; ++column) {
    float largest = 0;
    for (int64_t k = 0; k < 4 * depth; ++k) largest = std::max(largest, std::abs(panel[k * panel_columns + column]));
    to[depth * panel_columns + column] = largest / 127;
    const float per_step = largest > 0 ? 127 / largest : 0;
    for (int64_t k = 0; k < 4 * depth; ++k) {
      const int64_t in_block = k % block_numbers, in_half = in_block % lanes;
      const int64_t step = k / block_numbers * (lanes / 2) + in_half / 2;
      const int64_t byte = in_half % 2 * 2 + in_block / lanes;  // part 0 has the bytes 0 and 2
      const float number = panel[k * panel_columns + column] * per_step;
      bytes[(step * panel_columns + column) * 4 + byte] = static_cast<int8_t>(static_cast<int>(number + 128.5f) - 128);
    }
  }
}

}  // namespace

void cpu::pack_linear(float* panels_of_w, const float* w, int64_t out, int64_t in, Precision precision) {
  const int64_t depth = packed_depth(in, precision), rows = (in + int8_unit - 1) / int8_unit * int8_unit;
  const Scratch panel(rows * panel_columns);
  clear(panel.data() + (rows - int8_unit) * panel_columns, int8_unit * panel_columns);
  for (int64_t j = 0; j < panels(out); ++j, panels_of_w += panel_floats(depth, precision == Precision::int8)) {
    pack_panel(panel.data(), w, in, out, true, j);
    if (precision == Precision::bf16)
      pack_pairs(panels_of_w, panel.data(), depth);
    else if (precision == Precision::int8)
      pack_int8(panels_of_w, panel.data(), depth);
    else
      copy_numbers(panels_of_w, panel.data(), depth * panel_columns);
  }
}

namespace {

// Panel i of all panels of several layers.
template <class Weights>
Panel panel_at(const PackedLayer* layer, int64_t i, int64_t depth) {
  for (; i >= panels(layer->out); ++layer) i -= panels(layer->out);
  const int64_t column = i * panel_columns;
  return {layer->panels + i * panel_floats(depth, is_scaled<Weights>), layer->b + column, layer->y + column, layer->out,
          layer->out - column};
}

#if RUNNEL_WITH_TILES
// `some` panels by tiles. x has room for a multiple of tile_rows rows; what lies behind the last row is multiplied,
// too, but not kept.
template <class Weights>
void multiply_by_tiles(const PackedLayer* layers, int64_t begin, int64_t some, const Pair* x, int64_t x_stride,
                       int64_t rows, int64_t depth, Activation activation) {
  const Tiles tiles;
  Sums<Weights> sums[parts<Weights>][2][tile_rows];
  for (int64_t i = begin; i < begin + some; ++i) {
    const Panel panel = panel_at<Weights>(layers, i, depth);
    for (int64_t first = 0; first < rows; first += tile_rows) {
      tile_product<parts<Weights>>(sums, x + first * x_stride, x_stride, panel.weights, depth);
      for (int64_t r = first; r < std::min(first + tile_rows, rows); ++r)
        for (int64_t half = 0; half < 2; ++half) {
          Sums<Weights> sum = sums[0][half][r - first];
          if constexpr (is_scaled<Weights>) sum = sum_of_bytes(sum, sums[1][half][r - first]);
          finish<Weights>(panel, r, half, sum, x + r * x_stride, depth, activation);
        }
    }
  }
}
#endif

template <class Number, class Weights>
void packed_linear_of(const PackedLayer* layers, int64_t count, const Number* x, int64_t x_stride, int64_t rows,
                      int64_t in, int64_t depth, Activation activation, [[maybe_unused]] bool by_tiles) {
  int64_t all = 0;
  for (int64_t l = 0; l < count; ++l) all += panels(layers[l].out);
  if (all == 0) return;
  const int64_t enough = has_helpers() ? 1 << 16 : 1 << 17;  // about 0.5 and 1 us
  const bool is_enough = rows * in * all * panel_columns >= enough;
  const int64_t threads = loop_threads(is_enough);
  parallel_pieces(all, (all + threads - 1) / threads, is_enough, [=](int64_t begin, int64_t some) {
#if RUNNEL_WITH_TILES
    if constexpr (!std::is_same_v<Number, float>)
      if (by_tiles) return multiply_by_tiles<Weights>(layers, begin, some, x, x_stride, rows, depth, activation);
#endif
    constexpr int many = 4;
    int64_t i = begin;
    for (; rows == 1 && i + many <= begin + some; i += many) {
      Panel several[many];
      for (int p = 0; p < many; ++p) several[p] = panel_at<Weights>(layers, i + p, depth);
      packed_product<1, many, Number, Weights>(several, x, x_stride, depth, activation);
    }
    for (; i < begin + some; ++i)
      each_block(rows, [&]<int block>(std::integral_constant<int, block>, int64_t r) {
        Panel panel = panel_at<Weights>(layers, i, depth);
        panel.y += r * panel.stride;
        packed_product<block, 1, Number, Weights>(&panel, x + r * x_stride, x_stride, depth, activation);
      });
  });
}

}  // namespace

void cpu::packed_linear(const PackedLayer* layers, int64_t count, const float* x, int64_t rows, int64_t in,
                        Precision precision, Activation activation) {
  const int64_t depth = packed_depth(in, precision), words = precision == Precision::int8 ? 2 * depth : depth;
  // Between the rows of x, in 4-byte words. Not a power of two, or twelve rows would compete for the same few lines of
  // the cache.
  const int64_t stride = words + lanes;
#if RUNNEL_WITH_TILES
  // Tiles add bfloat16 products in another order, so they compute all rows or none. Sums of integers are exact: few
  // rows, which would leave most of a tile empty, are faster without.
  const bool by_tiles = (precision == Precision::bf16 || (precision == Precision::int8 && rows >= tile_rows / 2)) &&
                        depth % tile_depth == 0 && has_tiles();
  const int64_t places = by_tiles ? (rows + tile_rows - 1) / tile_rows * tile_rows : rows;
#else
  constexpr bool by_tiles = false;
  const int64_t places = rows;
#endif
  const Scratch left(places * stride);
  float* const numbers = left.data();
  parallel_rows(rows, in, [=](int64_t r) {
    float* const row = numbers + r * stride;
    if (precision == Precision::int8) {
      Pair* const pairs = reinterpret_cast<Pair*>(row);
      return has_byte_products || by_tiles ? round_to_pairs<true>(pairs, x + r * in, in, words)
                                           : round_to_pairs<false>(pairs, x + r * in, in, words);
    }
    row[words - 1] = 0;  // where `in` ends within a pair
    if (precision == Precision::bf16)
      round_to_bf16(reinterpret_cast<uint16_t*>(row), x + r * in, in);
    else
      copy_numbers(row, x + r * in, in);
  });
  if (precision == Precision::bf16)
    packed_linear_of<Pair, BitLanes>(layers, count, reinterpret_cast<const Pair*>(numbers), stride, rows, in, depth,
                                     activation, by_tiles);
  else if (precision == Precision::int8)
    packed_linear_of<Pair, ByteLanes>(layers, count, reinterpret_cast<const Pair*>(numbers), stride, rows, in, depth,
                                      activation, by_tiles);
  else
    packed_linear_of<float, Lanes>(layers, count, numbers, stride, rows, in, depth, activation, false);
}

}  // namespace runnel
