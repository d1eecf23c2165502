// The fixed tree by which MPI and NCCL sum: the same bytes for any number of processes.
#pragma once
#include <cstdint>
#include <vector>

namespace runnel {

// A step of a sum of n numbers over all processes, a power of two: recursive halving, then recursive doubling (Thakur,
// Rabenseifner and Gropp 2005). In each step of the halving, two neighbours add one half each of the range that both
// have; then they give the sums to each other, from the last step back to the first. Each process sends
// 2 n (1 - 1 / size) numbers.
struct Exchange {
  int neighbour;
  struct Range {
    int64_t first, count;
  } sent, received;
  bool adds;  // whether received data are added, or replace
};
std::vector<Exchange> tree_exchanges(int rank, int size, int64_t n);

// x = x + other in host memory, rounded to bfloat16 if told to: the sum at each node of the tree.
void add_in_place(float* x, const float* other, int64_t n, bool bf16);

}  // namespace runnel
