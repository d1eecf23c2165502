// Many sequences are drawn in groups, each from its first byte to its last by one thread: threads never wait for each
// other, and a group is small enough for its states to stay in the cache. A few sequences are drawn by all threads
// together, each of which then reads a part of the weights.
#include "models/generation.h"

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <exception>

#include "engine/check.h"

namespace runnel {
namespace {

constexpr int64_t few = 12;  // rows that a linear layer multiplies in one pass over its weights
constexpr int64_t largest_group = 3 * few;

}  // namespace

void complete(std::vector<uint8_t>& sequences, int64_t known, const RecurrentTransformer& state,
              const std::vector<int64_t>& from, const std::vector<Key>& keys, float temperature,
              const std::function<void(int64_t bytes, int64_t of)>& progress) {
  const int64_t batch = static_cast<int64_t>(keys.size()), n = batch ? std::ssize(sequences) / batch : 0;
  check(std::ssize(from) == batch && std::ssize(sequences) == batch * n, "complete: ", batch, " keys for ", from.size(),
        " states and ", sequences.size(), " bytes");
  check(known >= 1 && state.position() == known - 1, "complete: the state has read ", state.position(),
        " bytes, not all but the last of the ", known, " that are known");

  const int64_t threads = omp_get_max_threads();
  const int64_t rounds = (batch + threads * largest_group - 1) / (threads * largest_group);
  const int64_t groups = batch <= few ? 1 : rounds * threads;
  std::atomic<int64_t> drawn = 0;

  const auto draw = [&](int64_t begin, int64_t end) {
    if (begin == end) return;
    const int64_t rows = end - begin;
    RecurrentTransformer own = state.select({from.begin() + begin, from.begin() + end});
    std::vector<int32_t> tokens(static_cast<size_t>(rows));
    std::vector<Key> draws(static_cast<size_t>(rows));
    for (int64_t t = known; t < n; ++t) {
      for (int64_t r = 0; r < rows; ++r) {
        tokens[static_cast<size_t>(r)] = sequences[static_cast<size_t>((begin + r) * n + t - 1)];
        draws[static_cast<size_t>(r)] = keys[static_cast<size_t>(begin + r)].fold(static_cast<uint64_t>(t));
      }
      const Tensor params = own.step(Indices(Shape{rows}, tokens));
      const std::vector<int32_t> bytes = logistic_mixture_sample(params, draws, temperature).to_vector();
      for (int64_t r = 0; r < rows; ++r)
        sequences[static_cast<size_t>((begin + r) * n + t)] = static_cast<uint8_t>(bytes[static_cast<size_t>(r)]);
      const int64_t done = drawn += rows;
      if (progress && omp_get_thread_num() == 0) progress(done, batch * (n - known));
    }
  };
  if (groups == 1) return draw(0, batch);  // not in a parallel region, so that its ops are

  std::exception_ptr error;  // of any thread: none may leave the parallel region
#pragma omp parallel for schedule(dynamic)
  for (int64_t group = 0; group < groups; ++group) try {
      draw(batch * group / groups, batch * (group + 1) / groups);
    } catch (...) {
#pragma omp critical
      error = std::current_exception();
    }
  if (error) std::rethrow_exception(error);
}

}  // namespace runnel
