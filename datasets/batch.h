// How data sets form batches: shuffling by a key, and padding of sequences of different lengths.
#pragma once
#include <cstdint>
#include <vector>

#include "engine/random.h"
#include "engine/tensor.h"

namespace runnel {

// The numbers 0 .. count - 1 in an order that the key alone decides, the same on every machine; every order is equally
// likely (up to the bias of Key::below). Throws if count is negative or above 2^32.
std::vector<int64_t> shuffled(int64_t count, Key key);

// Training samples in a new order in every epoch. Which sample comes n-th (n = step * batch + its place in the batch)
// is a function of the key and of n alone: a resumed run, or one of several processes, continues from its step and
// nothing else. Keeps the order of one epoch; not for use by several threads at once.
class EpochShuffle {
 public:
  EpochShuffle(int64_t count, Key key);  // throws if count < 1

  // The index, in [0,count), of training sample n >= 0; its epoch is n / count.
  int64_t operator()(int64_t n);

 private:
  int64_t count_, epoch_ = -1;
  Key key_;
  std::vector<int64_t> order_;  // of epoch_
};

// As EpochShuffle, but a batch has samples of similar length, so that little of it is padding: the shuffled samples are
// cut into windows of 64 batches, each window is sorted by length and cut into batches, and all batches are shuffled.
// If the number of samples is not a multiple of `batch`, the rest is not in that epoch; which samples these are differs
// between epochs. With fewer samples than `batch`, every batch repeats some of them.
class LengthBuckets {
 public:
  // lengths: of every sample. Throws if there are none, or if batch < 1.
  LengthBuckets(std::vector<int64_t> lengths, int64_t batch, Key key);

  // The index of training sample n >= 0.
  int64_t operator()(int64_t n);

 private:
  std::vector<int64_t> lengths_;
  int64_t batch_, batches_, epoch_ = -1;  // batches_: of an epoch
  Key key_;
  std::vector<int64_t> order_;  // of epoch_
};

struct PaddedBatch {
  Indices tokens;   // [B,L], each row a sequence and then padding
  Indices lengths;  // [B], of the sequences: row b is padding from lengths[b] on
};

// Sequences as the rows of one array. L is `length`, or that of the longest sequence if it is 0. Throws if a sequence
// is longer than `length`.
PaddedBatch padded(const std::vector<std::vector<int32_t>>& sequences, int32_t padding = 0, int64_t length = 0,
                   Device device = Device::cpu);

}  // namespace runnel
