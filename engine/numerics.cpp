#include "engine/numerics.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <utility>

#include "engine/check.h"

namespace runnel {
namespace {

Precision the_precision = Precision::f32;

}  // namespace

bool has_bf16() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512bf16");
#else
  return false;
#endif
}

void set_precision(Precision precision, Device device) {
  check(precision != Precision::bf16 || device == Device::cuda || has_bf16(),
        "this processor has no bfloat16 products (AVX512_BF16); compute in f32");
  the_precision = precision;
}

Precision precision() { return the_precision; }

void flush_subnormals() {
  thread_local bool done = false;
  if (std::exchange(done, true)) return;
  const auto flush = [] {
#if defined(__x86_64__)
    _MM_SET_FLUSH_ZERO_MODE(_MM_FLUSH_ZERO_ON);          // results
    _MM_SET_DENORMALS_ZERO_MODE(_MM_DENORMALS_ZERO_ON);  // operands
#endif
  };
  flush();
#pragma omp parallel  // in the workers that were started earlier; later ones inherit it
  flush();
}

}  // namespace runnel
