// On the CPU, many sequences are drawn in groups, each from its first byte to its last by one thread: threads never
// wait for each other, and the states of a group stay in its core's cache. Few sequences are drawn by all threads
// together, each of which then reads a part of the weights; all but one are helpers. A GPU draws large groups; there,
// an incremental decoder's step is captured as one CUDA graph, and bytes are copied to the host only when all are
// drawn.
#include "models/generation.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <limits>
#include <mutex>
#include <optional>
#include <utility>

#include "engine/check.h"
#include "engine/host.h"
#include "engine/random.h"
#include "engine/replay.h"
#include "engine/threads.h"
#include "ops/helpers.h"
#include "ops/losses.h"
#include "ops/numerics.h"
#include "ops/shapes.h"

namespace runnel {
namespace {

constexpr int64_t largest_group = 36;
constexpr int64_t largest_cuda_group = 16384;

// Sequences from which a thread alone is faster, since it computes longer than it reads weights; as measured. With AMX,
// int8 products of few rows do not use its tiles, as those of bfloat16 do. A core of Zen 5 reads weights in int8 three
// to four times as fast as one of Sapphire Rapids.
int64_t enough_for_a_thread() {
  if (precision() == Precision::f32) return 6;
  const bool has_amx = instruction_set() == InstructionSet::amx;
  const bool is_amd = is_bf16_faster() && !has_amx;  // with AVX512_BF16: Zen 4 and later
  if (precision() == Precision::int8) return has_amx ? 3 : is_amd ? 2 : 4;
  return has_amx ? 8 : 4;
}

// Sequences that one thread, or the GPU, draws at once: half of the memory that is free is left alone.
int64_t group_size(Device device, int64_t threads, int64_t sequence_bytes) {
  const int64_t fit = free_memory(device) / 2 / threads / sequence_bytes;
  return std::clamp<int64_t>(fit, 1, device == Device::cpu ? largest_group : largest_cuda_group);
}

// Whether all threads draw together or one alone. Together they wait for each other many times in each step; where
// other programs use the cores, one often waits for another that has begun a share of a loop and does not run, and then
// a thread alone is faster. So now and then a step is drawn in the other way, for its time. The result does not depend
// on it.
class Team {
 public:
  explicit Team(int64_t threads) : threads_(static_cast<int>(threads)) {}
  ~Team() { omp_set_num_threads(threads_); }
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  void before_step() {
    constexpr int64_t window = 32, between = 128;  // steps
    // By so much the other way must be faster. A step together is fast now and then also where most are not.
    const double margin = is_alone_ ? 1.5 : 1.25;
    const Clock::time_point now = Clock::now();
    const double seconds = std::chrono::duration<double>(now - std::exchange(begun_, now)).count();
    if (++step_ <= 2) return;  // the first step also prepares the weights
    if (is_trial_) {
      other_ = seconds;
    } else {
      spent_ += seconds;
      ++count_;
      const bool is_slower = spent_ > margin * window * other_;
      if (is_slower) {
        is_alone_ = !is_alone_;
        other_ = spent_ / static_cast<double>(count_);
      }
      if (is_slower || count_ == window) spent_ = 0, count_ = 0;
    }
    is_trial_ = step_ % between == 3;
    omp_set_num_threads(is_alone_ == is_trial_ ? threads_ : 1);
  }

 private:
  using Clock = std::chrono::steady_clock;
  const int threads_;
  int64_t step_ = 0, count_ = 0;  // count_: steps of this window
  bool is_alone_ = false, is_trial_ = false;
  Clock::time_point begun_ = Clock::now();
  // Seconds: of this window's steps, and of a step in the other way.
  double spent_ = 0, other_ = std::numeric_limits<double>::infinity();
};

}  // namespace

void with_helpers(const Decoder& decoder, const std::function<void()>& work) {
  // Decoders that are not replayable have long loops, many of them in parallel regions of their own.
  decoder.is_replayable() && decoder.position().device() == Device::cpu ? with_helpers(work) : work();
}

void sample_bytes(std::vector<uint8_t>& sequences, int64_t known, const Decoder& decoder,
                  const std::vector<int64_t>& from, const std::vector<Key>& keys, float temperature,
                  const std::function<void(int64_t done, int64_t total)>& progress,
                  const std::vector<int32_t>& classes) {
  const int64_t batch = static_cast<int64_t>(keys.size()), n = batch ? std::ssize(sequences) / batch : 0;
  check(std::ssize(from) == batch && std::ssize(sequences) == batch * n, "sample_bytes: ", batch, " keys for ",
        from.size(), " decoder states and ", sequences.size(), " bytes");
  const int64_t read = decoder.position().to_vector()[0], class_tokens = classes.empty() ? 0 : 1;
  check(classes.empty() || classes.size() == keys.size(), "sample_bytes: ", classes.size(), " classes for ", batch,
        " keys");
  check(known + class_tokens >= 1 && read == known + class_tokens - 1, "sample_bytes: the decoder has read ", read,
        " tokens, not all but the last of the ", known + class_tokens, " that are known");
  const int64_t longest = decoder.model().config.max_length;
  check(n + class_tokens - 1 <= longest, "sample_bytes: ", n, " bytes are more than the ", longest,
        " positions of the model can predict");

  const Device device = decoder.position().device();
  const int64_t threads = device == Device::cpu ? omp_get_max_threads() : 1;
  const int64_t together = threads * group_size(device, threads, decoder.sequence_bytes());
  const bool are_few = device == Device::cpu && batch < threads * enough_for_a_thread();
  const int64_t groups = (batch + together - 1) / together * threads;
  int64_t drawn = 0;
  std::mutex reporting;

  const auto draw = [&](int64_t begin, int64_t end) {
    if (begin == end) return;
    const int64_t rows = end - begin;
    const std::unique_ptr<Decoder> own = decoder.select({from.begin() + begin, from.begin() + end});
    const Keys own_keys(Shape{rows}, {keys.begin() + begin, keys.begin() + end}, device);
    std::vector<int32_t> last;
    for (int64_t r = begin; r < end; ++r)
      last.push_back(known ? sequences[static_cast<size_t>(r * n + known - 1)] : 256 + classes[static_cast<size_t>(r)]);
    Indices tokens(Shape{rows}, last, device), bytes(Shape{class_tokens + n, rows}, device);

    const auto draw_one = [&] {
      const Indices next = byte_sample(own->step(tokens), own_keys, temperature, own->position());
      assign(tokens, next);
      put_row(bytes, next, own->position());
    };
    Replay one_byte(device, draw_one);
    std::optional<Team> team;
    if (are_few && threads > 1) team.emplace(threads);
    for (int64_t t = known; t < n; ++t) {
      if (team) team->before_step();
      own->is_replayable() ? one_byte.run() : draw_one();
      if (progress) {
        const std::lock_guard lock(reporting);
        progress(drawn += rows, batch * (n - known));
      }
    }
    const std::vector<int32_t> values = bytes.to_vector();
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t t = known; t < n; ++t)
        sequences[static_cast<size_t>((begin + r) * n + t)] =
            static_cast<uint8_t>(values[static_cast<size_t>((class_tokens + t) * rows + r)]);
  };
  if (are_few) return with_helpers(decoder, [&] { draw(0, batch); });
  if (groups == 1) return draw(0, batch);  // on one thread or a GPU

  std::exception_ptr error;  // of any thread: none may leave the parallel region
#pragma omp parallel for schedule(dynamic) num_threads(static_cast <int>(threads))
  for (int64_t group = 0; group < groups; ++group) try {
      draw(batch * group / groups, batch * (group + 1) / groups);
    } catch (...) {
#pragma omp critical
      error = std::current_exception();
    }
  if (error) std::rethrow_exception(error);
}

}  // namespace runnel
