// How numbers are computed: the instruction set of the CPU's kernels, and the precision of matrix products.
#pragma once
#include "engine/device.h"

namespace runnel {

// The instructions that the CPU's kernels use: the largest set that the processor has and this build has kernels for,
// or the one that RUNNEL_INSTRUCTION_SET in the environment names, which on x86-64 oneDNN keeps to as well. Without
// RUNNEL_VARIANTS there is one set of kernels, and a smaller name restricts oneDNN only. Throws Error if the name is
// none of these, or of a set that is lacking. The first call decides.
// avx... and amx: of x86-64; amx: the kernels of avx512_bf16, some of them by tiles, which compute float32 products
// from bfloat16 ones, as exact as float32 where numbers and products are 2^-102 or more; dotprod: of ARM
enum class InstructionSet { baseline, avx2, avx512, avx512_bf16, amx, dotprod };
InstructionSet instruction_set();
bool has_instructions(InstructionSet set);  // Has this build kernels for them, and the processor the instructions?
const char* name(InstructionSet set);

// The format to which matrix products of models round their operands; sums are float32 in all of them. tf32 (10 bits of
// mantissa instead of 23) exists on CUDA only: the CPU computes it as f32. int8 is for decoding on the CPU: products of
// PackedLinear are of integers, its weights of 8 bits with a scale for each output, its inputs of 16 bits with one for
// each row; all else is f32. Set it before the first product.
// Throws Error if bf16 is asked for on the CPU and instruction_set() has no products of it, or int8 on CUDA.
enum class Precision { f32, tf32, bf16, int8 };
bool has_bf16();
// Whether bf16 products of many rows take less time than f32 ones. Those of few rows do wherever there are any, since
// they wait for weights.
bool is_bf16_faster();
void set_precision(Precision precision, Device device = Device::cpu);
Precision precision();

}  // namespace runnel
