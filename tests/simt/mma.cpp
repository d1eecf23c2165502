// mma.sync and ldmatrix as collective operations of a warp. The layouts are the PTX ISA's "Matrix Fragments for
// mma.m16n8k8" and "m16n8k16": with g = lane / 4 and t = lane % 4, register i of a lane holds
//   tf32  a: row g + 8 (i % 2), column t + 4 (i / 2)                b: row t + 4 i, column g
//   bf16  a: row g + 8 (i % 2), columns 2t, 2t + 1 + 8 (i / 2)      b: rows 2t, 2t + 1 + 8 i, column g
//   d: row g + 8 (i / 2), column 2t + i % 2
#include "scheduler.h"

namespace simt {
namespace {

struct Operands {
  const float* c;
  const uint32_t* a;
  const uint32_t* b;
};
const Operands& operands(const Warp& warp, int lane) { return *static_cast<const Operands*>(warp.in[lane]); }

// The tensor cores do not read the low 13 bits: an operand that has some was forgotten when others were rounded.
float tf32(uint32_t bits) {
  const float x = std::bit_cast<float>(bits);
  if (bits & 0x1fffu && !std::isnan(x)) fail("the operand %.9g of a TF32 product is not rounded to TF32", double{x});
  return std::bit_cast<float>(bits & 0xffffe000u);
}
float bf16(uint32_t pair, int half) { return std::bit_cast<float>((pair >> (16 * half) & 0xffffu) << 16); }

template <int depth>
void multiply(const Warp& warp, const float (&a)[16][depth], const float (&b)[depth][8]) {
  for (int lane = 0; lane < 32; ++lane)
    for (int i = 0; i < 4; ++i) {
      const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
      float sum = operands(warp, lane).c[i];
      for (int k = 0; k < depth; ++k) sum += a[row][k] * b[k][column];
      static_cast<float*>(warp.out[lane])[i] = sum;
    }
}

void multiply_tf32(const Warp& warp, uint32_t) {
  float a[16][8], b[8][8];
  for (int lane = 0; lane < 32; ++lane) {
    const int g = lane / 4, t = lane % 4;
    for (int i = 0; i < 4; ++i) a[g + i % 2 * 8][t + i / 2 * 4] = tf32(operands(warp, lane).a[i]);
    for (int i = 0; i < 2; ++i) b[t + i * 4][g] = tf32(operands(warp, lane).b[i]);
  }
  multiply<8>(warp, a, b);
}

void multiply_bf16(const Warp& warp, uint32_t) {
  float a[16][16], b[16][8];
  for (int lane = 0; lane < 32; ++lane) {
    const int g = lane / 4, t = lane % 4;
    for (int half = 0; half < 2; ++half) {
      for (int i = 0; i < 4; ++i) a[g + i % 2 * 8][t * 2 + half + i / 2 * 8] = bf16(operands(warp, lane).a[i], half);
      for (int i = 0; i < 2; ++i) b[t * 2 + half + i * 8][g] = bf16(operands(warp, lane).b[i], half);
    }
  }
  multiply<16>(warp, a, b);
}

void mma(float (&d)[4], const uint32_t* a, const uint32_t* b, WarpFunction function, Where where) {
  const Operands in{d, a, b};
  float out[4];
  warp_meeting(WarpOp::mma, 0xffffffffu, &in, out, function, where);
  std::memcpy(d, out, sizeof out);
}

// Lane 8 i + r names row r of matrix i; lane 4 r + t reads number t of row r of each matrix.
void give_rows(const Warp& warp, uint32_t) {
  for (int lane = 0; lane < 32; ++lane)
    for (int i = 0; i < 4; ++i)
      static_cast<const uint32_t**>(warp.out[lane])[i] = static_cast<const uint32_t*>(warp.in[8 * i + lane / 4]);
}

}  // namespace

void mma_m16n8k8_tf32(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], Where where) {
  mma(d, a, b, multiply_tf32, where);
}

void mma_m16n8k16_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], Where where) {
  mma(d, a, b, multiply_bf16, where);
}

void exchange_rows(const uint32_t* (&rows)[4], const void* row, Where where) {
  if (reinterpret_cast<uintptr_t>(row) % 16) fail("ldmatrix: a row does not start at a multiple of 16 bytes");
  if (!is_shared(row)) fail("ldmatrix: a row is not in shared memory");
  warp_meeting(WarpOp::ldmatrix, 0xffffffffu, row, rows, give_rows, where);
}

}  // namespace simt
