// Rung 4 of the CPU: all cores. Heads are independent; where there are few, each is cut into segments of L, too. They
// need the state before them, so a first pass sums each segment alone, the sums are added up along L, and a second pass
// scans all segments at once. How L is cut depends on the sizes and not on the number of threads, so the result is the
// same bytes with any.
//
// Wastes: where L is cut, the first pass reads a and b once more and does half of the arithmetic again. With many cores
// memory bandwidth becomes the limit. One sees it: the time stops falling before the cores are used up.
#include "ops/cpu/loops.h"
#include "ops/cpu/scratch.h"
#include "ops/ladder/kernels.h"

namespace runnel {
namespace {

constexpr int64_t max_pieces = 16;      // heads times segments
constexpr int64_t min_positions = 256;  // of a segment

}  // namespace

void cpu::ladder_threads(float* y, const float* x, const float* a, const float* b, LadderSizes sizes) {
  const int64_t heads = sizes.sequences();
  const RowParts parts(sizes.length, std::max<int64_t>(1, max_pieces / heads), min_positions);
  const Scratch states(heads * parts.count * LadderSizes::state);  // [N,segments,32,32], before each segment
  clear(states.data(), heads * parts.count * LadderSizes::state);
  const auto each = [&](int64_t count, auto work) {  // work(n, segment), for the first `count` segments
    parallel_for(heads * count, heads * sizes.length * LadderSizes::state >= parallel_from,
                 [&](int64_t i) { work(i / count, i % count); });
  };
  const auto state = [&](int64_t n, int64_t segment) {
    return states.data() + (n * parts.count + segment) * LadderSizes::state;
  };

  each(parts.count - 1, [&](int64_t n, int64_t p) {
    cpu::ladder_segment(nullptr, state(n, p + 1), nullptr, a, b, sizes, n, parts.begin(p), parts.end(p));
  });
  for (int64_t n = 0; n < heads; ++n)
    for (int64_t p = 2; p < parts.count; ++p) accumulate(state(n, p), state(n, p - 1), LadderSizes::state);
  each(parts.count, [&](int64_t n, int64_t p) {
    cpu::ladder_segment(y, state(n, p), x, a, b, sizes, n, parts.begin(p), parts.end(p));
  });
}

}  // namespace runnel
