// How lsh attention sorts positions into buckets: see ops/cpu/attention/lsh_attention.cpp.
#include "cuda/attention/tiles.h"
#include "cuda/draw.h"
#include "ops/kernels/lsh_attention.h"

namespace runnel::cuda {
namespace {

constexpr int hash_threads = 64;

// Launch: a thread per number. Owns: one number.
__global__ void lsh_rotations_kernel(float* rotations, Key key, int64_t n) {
  for (int64_t i = first_element(); i < n; i += element_step()) rotations[i] = draw_normal(key, i);
}

// Launch: x: sequences times blocks of 64 positions, y: rounds.
// Owns:   a thread one position.
// Shared: q of these positions.
__global__ void __launch_bounds__(hash_threads)
    lsh_hash_kernel(int32_t* buckets, HeadRows<const float> q, const float* rotations, int64_t length, int64_t heads,
                    int half) {
  constexpr int columns = 4;  // of the rotation at a time
  const int e = q.width, row = e + 1;
  Shared shared;
  float* const rows = shared.take<float>(static_cast<unsigned>(hash_threads * row));
  const auto blocks = static_cast<unsigned>((length + hash_threads - 1) / hash_threads);
  const int64_t sequences = gridDim.x / blocks, n = blockIdx.x / blocks, round = blockIdx.y;
  const int64_t first = static_cast<int64_t>(blockIdx.x % blocks) * hash_threads;
  const int thread = static_cast<int>(threadIdx.x);
  q.select(n, heads);
  rotations += (round * heads + n % heads) * e * half;

  const int count = static_cast<int>(min(static_cast<int64_t>(hash_threads), length - first));
  for (int i = thread; i < count * e; i += hash_threads) rows[i / e * row + i % e] = q.at(first + i / e)[i % e];
  __syncthreads();
  if (thread >= count) return;

  float high = 0, low = 0;
  int highest = 0, lowest = 0;
  for (int c = 0; c < half; c += columns) {
    float sums[columns] = {};
    for (int i = 0; i < e; ++i)
#pragma unroll
      for (int s = 0; s < columns; ++s) sums[s] += rows[thread * row + i] * rotations[i * half + min(c + s, half - 1)];
#pragma unroll
    for (int s = 0; s < columns; ++s) {  // past the last one, it comes again, and changes nothing
      if (c + s == 0) high = low = sums[0];
      if (sums[s] > high) high = sums[s], highest = c + s;
      if (sums[s] < low) low = sums[s], lowest = c + s;
    }
  }
  buckets[(round * sequences + n) * length + first + thread] = high >= -low ? highest : half + lowest;
}

// Launch: a block per sequence.
// Owns:   a warp every so many-th bucket and the places of its positions.
// Shared: how many positions are in each bucket.
__global__ void __launch_bounds__(1024)
    lsh_sort_kernel(int32_t* order, int32_t* begin, int32_t* end, const int32_t* buckets, const int32_t* lengths,
                    AttentionSizes s, int count, int chunk) {
  Shared shared;
  int* const sizes = shared.take<int>(static_cast<unsigned>(count));
  const int warps = static_cast<int>(blockDim.x) / 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t at = static_cast<int64_t>(blockIdx.x) * s.length;
  const int length = lengths ? lengths[blockIdx.x % s.sequences() / s.heads] : static_cast<int>(s.length);
  order += at, begin += at, end += at, buckets += at;

  for (int bucket = warp; bucket < count; bucket += warps) {
    int own = 0;
    for (int i = lane; i < length; i += 32) own += buckets[i] == bucket;
    own = warp_sum(own);
    if (lane == 0) sizes[bucket] = own;
  }
  __syncthreads();
  for (int bucket = warp; bucket < count; bucket += warps) {
    int before = 0;
    for (int other = lane; other < bucket; other += 32) before += sizes[other];
    const int bucket_begin = warp_sum(before), bucket_end = bucket_begin + sizes[bucket];
    int next = bucket_begin;
    for (int first = 0; next < bucket_end; first += 32) {
      const int i = first + lane;
      const bool here = i < length && buckets[i] == bucket;
      const unsigned all = __ballot_sync(all_lanes, here);
      if (here) {
        const int place = next + __popc(all & ((1u << lane) - 1)), chunk_begin = place / chunk * chunk;
        order[place] = i;
        begin[place] = max(bucket_begin, chunk_begin - chunk);
        end[place] = s.causal ? place : min(bucket_end, chunk_begin + chunk);
      }
      next += __popc(all);
    }
  }
  for (int i = length + static_cast<int>(threadIdx.x); i < s.length; i += static_cast<int>(blockDim.x)) {  // padding
    order[i] = i;
    begin[i] = end[i] = length;
  }
}

}  // namespace

void lsh_rotations(float* rotations, Key key, int64_t n) {
  launch("lsh_rotations", lsh_rotations_kernel, over(n), rotations, key, n);
}

void lsh_hash(int32_t* buckets, const float* q, const float* rotations, AttentionSizes s, Lsh lsh) {
  const int64_t blocks = s.sequences() * ((s.length + hash_threads - 1) / hash_threads);
  launch("lsh_hash", lsh_hash_kernel,
         Grid{dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(lsh.rounds)), dim3(hash_threads),
              SharedBytes().add<float>(hash_threads * (s.e + 1)).bytes()},
         buckets, HeadRows<const float>(q, s.length, s.heads, s.e), rotations, s.length, s.heads,
         static_cast<int>(lsh.buckets / 2));
}

void lsh_sort(int32_t* order, int32_t* begin, int32_t* end, const int32_t* buckets, const int32_t* lengths,
              AttentionSizes s, Lsh lsh) {
  const unsigned warps = static_cast<unsigned>(std::min<int64_t>(lsh.buckets, 32));
  launch("lsh_sort", lsh_sort_kernel,
         Grid{dim3(static_cast<unsigned>(lsh.rounds * s.sequences())), dim3(32 * warps),
              SharedBytes().add<int>(lsh.buckets).bytes()},
         order, begin, end, buckets, lengths, s, static_cast<int>(lsh.buckets), static_cast<int>(lsh.chunk));
}

}  // namespace runnel::cuda
