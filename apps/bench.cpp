// Speed, measured: the attention op over lengths, training and generation with the paper's models. Every number is the
// median of several runs in this process; machines are noisy, so compare within one run.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "apps/options.h"
#include "apps/training.h"
#include "datasets/copy_task.h"
#include "engine/tape.h"
#include "models/generation.h"
#include "models/optimizer.h"

namespace runnel {
namespace {

struct BenchOptions : Machine {
  int64_t runs = 5;
  std::string attention = "linear";

  template <class Each>
  void each(Each&& option) {
    Machine::each(option);
    option("runs", runs, in_range(1, 1000), "timed runs; the median is printed");
    option("attention", attention, one_of({"linear", "softmax"}), "which one");
  }
};

struct AttentionOptions : BenchOptions {
  int64_t batch = 1;
  int64_t heads = 8;
  int64_t head_dim = 32;
  int64_t shortest = 512;
  int64_t longest = 65536;

  template <class Each>
  void each(Each&& option) {
    BenchOptions::each(option);
    option("batch", batch, in_range(1, 1024), "sequences");
    option("heads", heads, in_range(1, 1024), "heads");
    option("head-dim", head_dim, in_range(1, 256), "E = M");
    option("shortest", shortest, in_range(1, 1 << 24), "the first length; each is twice the one before");
    option("longest", longest, in_range(1, 1 << 24), "no length is above this");
  }
};

// Median seconds of --runs calls after one that warms up.
double median_seconds(const BenchOptions& o, const std::function<void()>& call) {
  const int64_t runs = o.runs;
  call();
  synchronize(o.where());
  std::vector<double> seconds;
  for (int64_t i = 0; i < runs; ++i) {
    const auto start = std::chrono::steady_clock::now();
    call();
    synchronize(o.where());
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  std::nth_element(seconds.begin(), seconds.begin() + runs / 2, seconds.end());
  return seconds[static_cast<size_t>(runs / 2)];
}

Tensor uniform(Shape shape, Key key, Device device) {
  std::vector<float> values(static_cast<size_t>(shape.size()));
  for (size_t i = 0; i < values.size(); ++i) values[i] = 2 * key.uniform(i) - 1;
  return Tensor(shape, values, device);
}

// What the matrix library reaches on this machine now: the ceiling for everything below.
double sgemm_rate(const BenchOptions& o) {
  constexpr int64_t n = 2048;
  const Tensor a = uniform(Shape{n, n}, Key{1}, o.where()), b = uniform(Shape{n, n}, Key{2}, o.where());
  return 2.0 * n * n * n / median_seconds(o, [&] { matmul(a, b); });
}

int bench_attention(AttentionOptions& o) {
  fmt::print("causal {} attention, forward + backward, B {}, H {}, E = M = {}, {} threads, median of {}\n", o.attention,
             o.batch, o.heads, o.head_dim, o.threads, o.runs);
  fmt::print("{:>8} {:>10} {:>10} {:>9} {:>12} {:>14}\n", "L", "ms", "ratio", "us/token", "MB", "extra MB");
  double before = 0;
  for (int64_t length = o.shortest; length <= o.longest; length *= 2) {
    const Shape shape{o.batch, length, o.heads, o.head_dim};
    const Device device = o.where();
    Tensor y(shape, device), dq(shape, device), dk(shape, device), dv(shape, device);
    const Tensor q = uniform(shape, Key{1}, device), k = uniform(shape, Key{2}, device),
                 v = uniform(shape, Key{3}, device);
    const Tensor dy = uniform(shape, Key{4}, device);
    reset_peak(device);
    const int64_t live = memory_use(device).live;
    const auto softmax = [&] {
      const AttentionSizes sizes{o.batch, length, length, o.heads, o.head_dim, o.head_dim, true};
      Tensor l(Shape{o.batch, o.heads, length}, device);
      DISPATCH(device, softmax_attention_forward(y.data(), l.data(), q.data(), k.data(), v.data(), nullptr, sizes));
      DISPATCH(device, softmax_attention_backward(dq.data(), dk.data(), dv.data(), dy.data(), y.data(), l.data(),
                                                  q.data(), k.data(), v.data(), nullptr, sizes));
    };
    const auto linear = [&] {
      DISPATCH(device, linear_attention_forward(y.data(), nullptr, nullptr, q.data(), k.data(), v.data(), nullptr,
                                                nullptr, o.batch, length, o.heads, o.head_dim, o.head_dim));
      DISPATCH(device,
               linear_attention_backward(dq.data(), dk.data(), dv.data(), dy.data(), y.data(), q.data(), k.data(),
                                         v.data(), nullptr, nullptr, o.batch, length, o.heads, o.head_dim, o.head_dim));
    };
    const double seconds = o.attention == "linear" ? median_seconds(o, linear) : median_seconds(o, softmax);
    const double tensors = 8.0 * static_cast<double>(q.size()) * sizeof(float);  // q, k, v, y and their gradients
    const double extra = static_cast<double>(memory_use(device).peak - live);
    fmt::print("{:>8} {:>10.3f} {:>10.2f} {:>9.3f} {:>12.2f} {:>14.3f}\n", length, 1e3 * seconds,
               before > 0 ? seconds / before : 0, 1e6 * seconds / static_cast<double>(o.batch * length),
               (tensors + extra) / 1e6, extra / 1e6);
    before = seconds;
  }
  return 0;
}

// Multiplications and additions of one token's matrix products in the forward pass; backward takes twice as many.
double product_flops(const TransformerConfig& c) {
  const double d = static_cast<double>(c.width());
  return 2 * (static_cast<double>(c.layers) * (4 * d * d + 2 * d * static_cast<double>(c.feed_forward)) +
              d * static_cast<double>(c.outputs));
}

constexpr TransformerConfig copy_model{};  // the defaults: the paper's copy task
constexpr TransformerConfig mnist_model{.layers = 8, .vocabulary = 256, .outputs = 30, .max_length = 783};

int bench_training(BenchOptions& o) {
  const double peak = sgemm_rate(o);
  fmt::print(
      "{} threads; float32 matrix products of 2048 x 2048: {:.0f} GFLOP/s; {} attention, training in {}, median of {} "
      "steps\n",
      o.threads, peak / 1e9, o.attention, o.precision, o.runs);
  const auto measure = [&](const char* name, TransformerConfig config, int64_t batch, const auto& loss) {
    config.attention = attention_named(o.attention);
    Transformer model(config, Key{1}, o.where());
    RAdam optimizer(model.parameters(), {});
    uint64_t step = 0;
    const double seconds = median_seconds(o, [&] {
      Tape tape;
      optimizer.step(tape.backward(loss(model, Key{step++})));
    });
    const double rate = static_cast<double>(batch * config.max_length) / seconds;
    fmt::print("{}, batch {} x {}, dropout {}: {:.0f} tokens/s, {:.1f} ms/step, {:.0f}% of that rate in its products\n",
               name, batch, config.max_length, config.dropout, rate, 1e3 * seconds,
               100 * 3 * product_flops(config) * rate / peak);
  };
  measure("copy task", copy_model, 64, [&](const Transformer& model, Key key) {
    const CopyBatch data = CopyTask{}.batch(key.fold(0), 64, o.where());
    return cross_entropy(model(data.tokens, key.fold(1)), data.targets, data.mask);
  });
  measure("MNIST", mnist_model, 10, [&](const Transformer& model, Key key) {
    std::vector<int32_t> bytes(10 * 783);
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<int32_t>(key.below(i, 256));
    const Indices tokens(Shape{10, 783}, bytes, o.where());
    const Tensor nll = logistic_mixture_nll(model(tokens, key.fold(1)), tokens);
    return scale(sum(nll), 1 / static_cast<float>(nll.size()));
  });
  return 0;
}

int bench_generation(BenchOptions& o) {
  fmt::print("MNIST model, {} attention, 784 bytes per image, {} threads, {}, median of {}\n", o.attention, o.threads,
             o.precision, o.runs);
  TransformerConfig config = mnist_model;
  config.attention = attention_named(o.attention);
  const Transformer model(config, Key{1}, o.where());
  const RecurrentTransformer start(model, 1);
  for (const size_t count : {1, 8, 64}) {
    std::vector<uint8_t> images(count * 784);
    std::vector<Key> keys;
    for (uint64_t i = 0; i < count; ++i) keys.push_back(Key{i});
    const double seconds = median_seconds(o, [&] { complete(images, 1, start, std::vector<int64_t>(count), keys, 1); });
    fmt::print("{:>4} at once: {:.2f} images/s, {:.3f} s in all\n", count, static_cast<double>(count) / seconds,
               seconds);
  }
  return 0;
}

}  // namespace

void add_bench(CLI::App& program, Command& chosen) {
  CLI::App* bench = program.add_subcommand("bench", "how fast this machine is at it");
  add_command<AttentionOptions>(*bench, chosen, "attention", "time and memory of an attention against length",
                                bench_attention);
  add_command<BenchOptions>(*bench, chosen, "training", "tokens/s with the paper's models", bench_training);
  add_command<BenchOptions>(*bench, chosen, "generation", "images/s with the paper's MNIST model", bench_generation);
}

}  // namespace runnel
