// Products by AMX, whose registers are tiles of 16 rows of 64 bytes: 16 rows of x times 16 columns of a panel, 16 lanes
// of depth at once. A lane is two numbers in bfloat16 or four integers in bytes, as in ops/cpu/packed_linear.cpp.
#pragma once
#include "ops/cpu/vector.h"
#if defined(__AVX512BF16__) && (defined(__clang__) || __GNUC__ >= 12)  // g++ 11 lacks some of what tiles take
#define RUNNEL_WITH_TILES 1
#else
#define RUNNEL_WITH_TILES 0
#endif
#include "ops/numerics.h"

namespace runnel {
namespace {
inline bool has_tiles() {
#if RUNNEL_WITH_TILES
  return instruction_set() == InstructionSet::amx;
#else
  return false;
#endif
}
}  // namespace
}  // namespace runnel

#if RUNNEL_WITH_TILES

namespace runnel {
namespace {

constexpr int64_t tile_rows = 16;
constexpr int64_t tile_depth = 16;  // lanes

#define RUNNEL_AMX __attribute__((target("amx-tile,amx-int8,amx-bf16"))) RUNNEL_NOINLINE

// While it lives, its thread can use tiles. To make one takes as long as several products of tiles.
class Tiles {
 public:
  RUNNEL_AMX Tiles() {
    static const struct {
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    } all_of_one_size;
    _tile_loadconfig(&all_of_one_size);
  }
  RUNNEL_AMX ~Tiles() { _tile_release(); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;
};

// sums[i][half][r] = the sum over k < depth of x[r x_stride + i depth + k] times vector [k][half] of a panel
// [depth][2]; a vector has a lane for each column. `parts` is one for bfloat16, two for bytes.
template <int parts, class Sum>
RUNNEL_AMX void tile_product(Sum (*sums)[2][tile_rows], const uint32_t* x, int64_t x_stride, const void* panel,
                             int64_t depth) {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  const auto* weights = static_cast<const BitLanes*>(panel);
  const int64_t bytes = x_stride * static_cast<int64_t>(sizeof *x);
  for (int64_t k = 0; k < depth; k += tile_depth, weights += 2 * tile_depth) {
    const BitLanes* const right = weights + 1;
    const uint32_t *const numbers = x + k, *const lower = numbers + depth;
    _tile_loadd(4, weights, 2 * sizeof *weights);
    _tile_loadd(5, right, 2 * sizeof *weights);
    _tile_loadd(6, numbers, bytes);
    if constexpr (parts == 1) {
      _tile_dpbf16ps(0, 6, 4);
      _tile_dpbf16ps(1, 6, 5);
    } else {
      _tile_loadd(7, lower, bytes);
      _tile_dpbssd(0, 6, 4);
      _tile_dpbssd(1, 6, 5);
      _tile_dpbssd(2, 7, 4);
      _tile_dpbssd(3, 7, 5);
    }
  }
  _tile_stored(0, sums[0][0], sizeof(Sum));
  _tile_stored(1, sums[0][1], sizeof(Sum));
  if constexpr (parts == 2) {
    _tile_stored(2, sums[1][0], sizeof(Sum));
    _tile_stored(3, sums[1][1], sizeof(Sum));
  }
}

}  // namespace
}  // namespace runnel
#endif
