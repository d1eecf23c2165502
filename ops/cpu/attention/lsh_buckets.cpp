// How lsh attention sorts positions into buckets: see lsh_attention.cpp.
#include <algorithm>

#include "engine/random.h"
#include "ops/cpu/sequences.h"
#include "ops/kernels/lsh_attention.h"

namespace runnel {
namespace {

constexpr int64_t hash_block = 4 * tile;  // positions

struct HashBlock {
  Matrix q, qt, rotation, projections;
  static int64_t floats(int64_t e, int64_t half) {
    return 2 * hash_block * padded(e) + padded(e) * padded(half) + padded(half) * hash_block;
  }
  HashBlock(int64_t e, int64_t half, Arena memory)
      : q(memory.matrix(hash_block, padded(e))),
        qt(memory.matrix(padded(e), hash_block)),
        rotation(memory.matrix(padded(e), padded(half))),
        projections(memory.matrix(padded(half), hash_block)) {}
};

// Projections have columns of the rotation as rows, positions as columns.
void choose_buckets(int32_t* to, int64_t count, const Matrix& projections, int64_t half) {
  for (int64_t first = 0; first < count; first += lanes) {
    Lanes high = load(projections.row(0) + first), low = high;
    IntLanes highest{}, lowest{};
    for (int64_t c = 1; c < half; ++c) {
      const Lanes x = load(projections.row(c) + first);
      const IntLanes column = static_cast<int32_t>(c) - IntLanes{};
      highest = x > high ? column : highest;
      high = max(x, high);
      lowest = x < low ? column : lowest;
      low = min(x, low);
    }
    const IntLanes bucket = high >= -low ? highest : lowest + static_cast<int32_t>(half);
    for (int64_t i = 0; i < std::min(lanes, count - first); ++i) to[first + i] = bucket[i];
  }
}

}  // namespace

void cpu::lsh_rotations(float* rotations, Key key, int64_t n) {
#pragma omp parallel for schedule(static)
  for (int64_t i = 0; i < n; ++i) rotations[i] = key.normal(static_cast<uint64_t>(i));
}

// Threads share rounds, sequences and blocks of positions.
void cpu::lsh_hash(int32_t* buckets, const float* q, const float* rotations, AttentionSizes s, Lsh lsh) {
  const int64_t half = lsh.buckets / 2;
  const ThreadScratch scratch(HashBlock::floats(s.e, half));
#pragma omp parallel
  {
    const HashBlock b(s.e, half, Arena(scratch.this_thread()));
#pragma omp for collapse(3) schedule(static)
    for (int64_t round = 0; round < lsh.rounds; ++round)
      for (int64_t n = 0; n < s.sequences(); ++n)
        for (int64_t first = 0; first < s.length; first += hash_block) {
          const int64_t count = std::min(hash_block, s.length - first);
          load(b.q, rows_of_sequence(q, n, s.length, s.heads, s.e, hash_block), first, count);
          transpose(b.qt, b.q);
          load(b.rotation, {rotations + (round * s.heads + n % s.heads) * s.e * half, half, half, 0}, 0, s.e);
          multiply_transposed(b.projections, b.rotation, b.qt, Store::set);
          choose_buckets(buckets + (round * s.sequences() + n) * s.length + first, count, b.projections, half);
        }
  }
}

// Threads share rounds and sequences.
void cpu::lsh_sort(int32_t* order, int32_t* begin, int32_t* end, const int32_t* buckets, const int32_t* lengths,
                   AttentionSizes s, Lsh lsh) {
  const ThreadScratch ends_of_buckets(lsh.buckets);
#pragma omp parallel for schedule(static)
  for (int64_t n = 0; n < lsh.rounds * s.sequences(); ++n) {
    const int64_t at = n * s.length, length = seen_keys(lengths, s, n % s.sequences());
    int32_t* const ends = reinterpret_cast<int32_t*>(ends_of_buckets.this_thread());
    std::fill_n(ends, lsh.buckets, 0);
    for (int64_t i = 0; i < length; ++i) ++ends[buckets[at + i]];
    int64_t place = 0;
    for (int64_t bucket = 0; bucket < lsh.buckets; ++bucket) {
      const int64_t bucket_begin = place;
      for (const int64_t stop = place + ends[bucket]; place < stop; ++place) {
        const int64_t chunk = place / lsh.chunk * lsh.chunk;
        begin[at + place] = static_cast<int32_t>(std::max(bucket_begin, chunk - lsh.chunk));
        end[at + place] = static_cast<int32_t>(s.causal ? place : std::min(stop, chunk + lsh.chunk));
      }
      ends[bucket] = static_cast<int32_t>(bucket_begin);  // from here on, where its next position goes
    }
    for (int64_t i = 0; i < length; ++i) order[at + ends[buckets[at + i]]++] = static_cast<int32_t>(i);
    for (int64_t i = length; i < s.length; ++i) {  // padding
      order[at + i] = static_cast<int32_t>(i);
      begin[at + i] = end[at + i] = static_cast<int32_t>(length);
    }
  }
}

}  // namespace runnel
