#include "apps/processes/tree_sum.h"

#include <utility>

#include "engine/accumulate.h"

namespace runnel {

std::vector<Exchange> tree_exchanges(int rank, int size, int64_t n) {
  std::vector<Exchange> halving, doubling;
  Exchange::Range both{0, n};
  for (int distance = 1; distance < size; distance *= 2) {
    const int64_t half = both.count / 2;
    Exchange::Range own{both.first, half}, other{both.first + half, both.count - half};
    if (rank & distance) std::swap(own, other);
    halving.push_back({rank ^ distance, other, own, true});
    doubling.push_back({rank ^ distance, own, other, false});
    both = own;
  }
  halving.insert(halving.end(), doubling.rbegin(), doubling.rend());
  return halving;
}

void add_in_place(float* x, const float* other, int64_t n, bool bf16) {
  if (bf16)
    accumulate_bf16(Device::cpu, x, x, other, n);
  else
    accumulate(Device::cpu, x, x, other, n);
}

}  // namespace runnel
