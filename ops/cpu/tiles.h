// Products by AMX, whose registers are tiles of 16 rows of 64 bytes: 16 rows of x times 16 columns of a panel, 16 lanes
// of depth at once. A lane is two numbers in bfloat16 or four integers in bytes, as in ops/cpu/packed_linear.cpp.
#pragma once
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "ops/cpu/vector.h"

namespace runnel {
namespace {

constexpr int64_t tile_rows = 16, tile_depth = 16;  // lanes

// Whether the processor has tiles, and the system lets this process use them.
inline bool has_tiles() {
  static const bool has = [] {
    constexpr unsigned bf16 = 1u << 22, tiles = 1u << 24, int8 = 1u << 25, all = bf16 | tiles | int8;
    constexpr int request_permission = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & all) == all &&
           syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
  }();
  return has;
}

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

// sums[i][half][r] = the sum over k < depth of x[r x_stride + i depth + k] times lane k of that half of a panel
// [depth][2] of vectors; `parts` is one for bfloat16, two for bytes.
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
    _tile_loadd(4, weights, 2 * sizeof *weights);
    _tile_loadd(5, weights + 1, 2 * sizeof *weights);
    _tile_loadd(6, x + k, bytes);
    if constexpr (parts == 1) {
      _tile_dpbf16ps(0, 6, 4);
      _tile_dpbf16ps(1, 6, 5);
    } else {
      _tile_loadd(7, x + depth + k, bytes);
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
