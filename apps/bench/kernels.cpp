// runnel bench kernels: every kernel of ops/kernels.h by itself, at the sizes of the paper's copy task, timed by Google
// Benchmark. What a kernel must move (each input read once, each output written once) and compute, over the time that
// it takes, stands beside what this machine reaches: a copy of an array too large for the caches, and a matrix product.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "apps/bench/bench.h"
#include "ops/kernels.h"
#include "ops/ops.h"
#if RUNNEL_WITH_BENCHMARK
#include <benchmark/benchmark.h>
#endif

namespace runnel {
namespace {

struct KernelsOptions : BenchOptions {
  std::string filter;
  double seconds = 0.2;

  Settings list() override {
    return extended(BenchOptions::list(),
                    {{"filter", &filter, {}, "only kernels whose name contains this"},
                     {"seconds", &seconds, in_range(0.001, 1000), "shortest time to measure each kernel for"}});
  }
};

#if RUNNEL_WITH_BENCHMARK

struct Kernel {
  std::string name;
  double numbers, operations;  // of four bytes, read or written; multiplications, additions and functions
  std::function<void()> run;
};

// The kernels of the contract. Each keeps what it works on: the lambdas copy tensors, whose storage is shared.
std::vector<Kernel> kernels(Device device) {
  constexpr int64_t batch = 64, length = 128, heads = 8, e = 32, rows = batch * length, d = heads * e, f = 1024;
  constexpr int64_t vocabulary = 11, components = 10, sequences = batch * heads, n = rows * d;
  uint64_t seed = 0;
  const auto floats = [&](std::initializer_list<int64_t> shape) {
    Tensor t(shape);
    const Key key{++seed};
    for (int64_t i = 0; i < t.size(); ++i) t.data()[i] = 2 * key.uniform(static_cast<uint64_t>(i)) - 1;
    return t.to(device);
  };
  const auto numbers_below = [&](int64_t count, uint32_t below) {
    Indices t(Shape{count});
    const Key key{++seed};
    for (int64_t i = 0; i < count; ++i) t.data()[i] = static_cast<int32_t>(key.below(static_cast<uint64_t>(i), below));
    return t.to(device);
  };
  // Arguments of the kernels below. Outputs are x0, x1, x2.
  Tensor x0 = floats({n}), x1 = floats({n}), x2 = floats({n});
  const Tensor a = floats({n}), b = floats({n}), c = floats({n}), g = floats({n}), bias = floats({f}),
               wide = floats({rows, f});
  const Tensor w = floats({f, d}), table = floats({256, d / 2}), code = floats({length, d / 2});
  const Tensor logits = floats({rows, 3 * components});
  Tensor y_wide(Shape{rows, f}, device), weight_gradient(Shape{f, d}, device), small0(Shape{f * d}, device),
      small1(Shape{f}, device);
  Tensor mean = floats({rows}), rstd = Tensor::full({rows}, 1, device), l = floats({rows * heads});
  Tensor cache_k(Shape{sequences, e, length}, device), cache_v(Shape{sequences, length, e}, device);
  const Indices tokens = numbers_below(rows, vocabulary), bytes = numbers_below(rows, 256);
  const Indices some_rows = numbers_below(rows, rows);
  const Indices position(Shape{1}, {length - 1}, device);
  Indices out = numbers_below(rows, 1), counter(Shape{1}, {0}, device);
  std::vector<Key> key_list;
  for (uint64_t i = 0; i < rows; ++i) key_list.push_back(Key{i});
  const Keys keys(Shape{rows}, key_list, device);
  const Dropout dropped{0.1f, Key{9}}, none{};
  const AttentionSizes sizes{batch, length, length, heads, e, e, true}, full{batch, length, length, heads, e, e, false};
  const AttentionSizes one_position{batch, 1, length, heads, e, e, true};  // and a cache of `length`
  const FeatureMap map = FeatureMap::elu_plus_one;
  Tensor state = Tensor::full({sequences, e, e}, 0, device), state_z = Tensor::full({sequences, e}, 1, device);
  const double N = n, R = rows, D = d, F = f, S = sequences, L = length, E = e, V = vocabulary, K = components;
  const double scores = S * L * (L + 1) / 2;

#define CASE(numbers, operations, kernel, ...) \
  all.push_back({#kernel, numbers, operations, [=]() mutable { DISPATCH(device, kernel(__VA_ARGS__)); }})
  std::vector<Kernel> all;
  CASE(3 * N, N, add, x0.data(), a.data(), b.data(), n);
  CASE(2 * N, N, scale, x0.data(), a.data(), 2.0f, n);
  CASE(2 * N, N, add_bias_forward, x0.data(), a.data(), bias.data(), rows, d);
  CASE(N, N, add_bias_backward, small1.data(), a.data(), rows, d);
  CASE(2 * N, N, relu_forward, x0.data(), a.data(), n);
  CASE(3 * N, N, relu_backward, x0.data(), g.data(), a.data(), n);
  CASE(2 * N, 4 * N, gelu_forward, x0.data(), a.data(), n);
  CASE(3 * N, 8 * N, gelu_backward, x0.data(), g.data(), a.data(), n);
  CASE(2 * N, 2 * N, elu_plus_one_forward, x0.data(), a.data(), n);
  CASE(3 * N, 2 * N, elu_plus_one_backward, x0.data(), g.data(), a.data(), n);
  CASE(2 * N, N, dropout, x0.data(), a.data(), n, dropped);
  CASE(R * D + F * D + R * F, 2 * R * D * F, matmul, y_wide.data(), a.data(), w.data(), rows, f, d, false, true);
  CASE(R * D + F * D + R * F, 2 * R * D * F, linear_forward, y_wide.data(), a.data(), w.data(), bias.data(),
       LinearSizes{1, rows, f, d}, Activation::relu, none);
  CASE(2 * (R * D + F * D + R * F), 4 * R * D * F, linear_backward, x0.data(), weight_gradient.data(), small1.data(),
       wide.data(), a.data(), w.data(), wide.data(), LinearSizes{1, rows, f, d}, Activation::relu, none, false);
  CASE(3 * N, 8 * N, layer_norm_forward, x0.data(), mean.data(), rstd.data(), a.data(), b.data(), bias.data(),
       bias.data(), rows, d, 1e-5f, none);
  CASE(4 * N, 12 * N, layer_norm_backward, x0.data(), nullptr, small0.data(), small1.data(), g.data(), a.data(),
       b.data(), bias.data(), mean.data(), rstd.data(), rows, d, none);
  CASE(N, 0.0, embedding_forward, x0.data(), tokens.data(), table.data(), code.data(), nullptr, batch, length, d / 2,
       d / 2, none);
  CASE(N / 2, N / 2, embedding_backward, small0.data(), g.data(), tokens.data(), batch, length, vocabulary, d / 2,
       d / 2, none);
  CASE(R * V, 3 * R * V, cross_entropy_forward, x0.data(), a.data(), tokens.data(), nullptr, rows, vocabulary);
  CASE(2 * R * V, 4 * R * V, cross_entropy_backward, x0.data(), mean.data(), a.data(), tokens.data(), nullptr, rows,
       vocabulary);
  CASE(R * V, 4 * R * V, categorical_sample, out.data(), a.data(), keys.data(), nullptr, 1.0f, rows, vocabulary);
  CASE(3.0, 1.0, divide, small1.data(), a.data(), b.data());
  CASE(3 * K * R, 12 * K * R, logistic_mixture_forward, x0.data(), logits.data(), bytes.data(), rows, components);
  CASE(6 * K * R, 24 * K * R, logistic_mixture_backward, x0.data(), mean.data(), logits.data(), bytes.data(), rows,
       components);
  CASE(3 * K * R, 2 * K * R, logistic_mixture_sample, out.data(), logits.data(), keys.data(), nullptr, 1.0f, rows,
       components);
  CASE(N, N, sum, small1.data(), a.data(), n);
  CASE(N, 0.0, fill, x0.data(), a.data(), n);
  CASE(2 * N, 0.0, gather_rows, x0.data(), a.data(), some_rows.data(), rows, d);
  CASE(2 * S, 0.0, put_row, out.data(), tokens.data(), counter.data(), sequences);
  CASE(2.0, 1.0, advance, counter.data());
  CASE(4 * N, 4 * N * E, causal_product_forward, x0.data(), a.data(), b.data(), c.data(), sizes);
  CASE(7 * N, 12 * N * E, causal_product_backward, x0.data(), x1.data(), x2.data(), g.data(), a.data(), b.data(),
       c.data(), sizes);
  CASE(4 * N, 4 * N * E, causal_linear_attention_forward, x0.data(), nullptr, nullptr, a.data(), b.data(), c.data(),
       nullptr, nullptr, nullptr, sizes, map);
  CASE(8 * N, 12 * N * E, causal_linear_attention_backward, x0.data(), x1.data(), x2.data(), nullptr, nullptr, g.data(),
       nullptr, nullptr, a.data(), a.data(), b.data(), c.data(), nullptr, nullptr, nullptr, sizes, map);
  CASE(4 * N, 4 * N * E, full_linear_attention_forward, x0.data(), a.data(), b.data(), c.data(), nullptr, full, map);
  CASE(8 * N, 12 * N * E, full_linear_attention_backward, x0.data(), x1.data(), x2.data(), g.data(), a.data(), a.data(),
       b.data(), c.data(), nullptr, full, map);
  CASE(2 * S * E * E, 4 * S * E * E, linear_attention_step, x0.data(), state.data(), state_z.data(), a.data(), b.data(),
       c.data(), one_position, map);
  CASE(3 * N, 5 * N, positive_random_features_forward, x0.data(), a.data(), b.data(), rows * heads, e, e);
  CASE(5 * N, 5 * N, positive_random_features_backward, x0.data(), x1.data(), g.data(), a.data(), b.data(),
       rows * heads, e, e);
  CASE(4 * N, 4 * scores * E, softmax_attention_forward, x0.data(), l.data(), a.data(), b.data(), c.data(), nullptr,
       sizes, none);
  CASE(8 * N, 10 * scores * E, softmax_attention_backward, x0.data(), x1.data(), x2.data(), g.data(), a.data(),
       l.data(), a.data(), b.data(), c.data(), nullptr, sizes, none);
  CASE(2 * S * L * E, 4 * S * L * E, softmax_attention_step, x0.data(), cache_k.data(), cache_v.data(), a.data(),
       b.data(), c.data(), position.data(), one_position);
  const Lsh lsh{};
  const int64_t lists = lsh.rounds * sequences;
  const Tensor rotations = floats({lsh.rounds * heads * e * lsh.buckets / 2});
  Indices buckets = numbers_below(lists * length, static_cast<uint32_t>(lsh.buckets));
  Indices order(Shape{lists * length}, device), begin(Shape{lists * length}, device),
      end(Shape{lists * length}, device);
  DISPATCH(device, lsh_sort(order.data(), begin.data(), end.data(), buckets.data(), nullptr, sizes, lsh));
  const double hashed = static_cast<double>(lists * length), half = static_cast<double>(lsh.buckets / 2);
  const double seen = hashed * static_cast<double>(lsh.chunk);  // at most twice as many
  CASE(half * E * 8 * 4, half * E * 8 * 4, lsh_rotations, x0.data(), Key{3}, rotations.size());
  CASE(N + hashed, 2 * hashed * E * half, lsh_hash, buckets.data(), a.data(), rotations.data(), sizes, lsh);
  CASE(4 * hashed, hashed, lsh_sort, order.data(), begin.data(), end.data(), buckets.data(), nullptr, sizes, lsh);
  CASE(3 * N, 4 * seen * E, lsh_attention_forward, x0.data(), l.data(), a.data(), b.data(),
       (LshPlaces{order.data(), begin.data(), end.data()}), nullptr, sizes, lsh);
  CASE(6 * N, 10 * seen * E, lsh_attention_backward, x0.data(), x1.data(), g.data(), a.data(), l.data(), a.data(),
       b.data(), (LshPlaces{order.data(), begin.data(), end.data()}), nullptr, sizes, lsh);
#undef CASE
  const RAdamStep step{
      .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .decay = 0, .size = 0, .adaptive = true, .clip = 1, .global_clip = 0};
  all.push_back({"sums_of_squares", N, 2 * N, [=]() mutable {
                   const RAdamTensor tensor{x0.data(), x1.data(), x2.data(), g.data(), n};
                   DISPATCH(device, sums_of_squares(small1.data(), &tensor, 1));
                 }});
  all.push_back({"radam_step", 7 * N, 12 * N, [=]() mutable {
                   const RAdamTensor tensor{x0.data(), x1.data(), x2.data(), g.data(), n};
                   DISPATCH(device, radam_step(&tensor, 1, small1.data(), step));
                 }});
  const MuonStep muon{.momentum = 0.95, .size = 0, .decay = 0};
  all.push_back({"muon_step", 5 * F * D, newton_schulz_steps * (4 * F * D * D + 2 * D * D * D), [=]() mutable {
                   const MuonMatrix matrix{x0.data(), x1.data(), w.data(), f, d};
                   DISPATCH(device, muon_step(&matrix, 1, muon));
                 }});
  return all;
}

// Google Benchmark finds out how often to call; its results become rows of our table.
class Rows : public benchmark::BenchmarkReporter {
 public:
  Rows(Table& table, const std::vector<Kernel>& kernels, double bytes_per_second, double operations_per_second)
      : table_(table), kernels_(kernels), bytes_(bytes_per_second), operations_(operations_per_second) {}
  bool ReportContext(const Context&) override { return true; }
  void ReportRuns(const std::vector<Run>& runs) override {
    for (const Run& run : runs) {
      const Kernel& kernel = *std::find_if(kernels_.begin(), kernels_.end(),
                                           [&](const Kernel& k) { return k.name == run.run_name.function_name; });
      const double seconds = run.GetAdjustedRealTime() * 1e-9;
      const double bytes = 4 * kernel.numbers / seconds, operations = kernel.operations / seconds;
      table_.row({kernel.name, fmt::format("{:.1f}", 1e6 * seconds), fmt::format("{:.1f}", bytes / 1e9),
                  fmt::format("{:.0f}", 100 * bytes / bytes_), fmt::format("{:.1f}", operations / 1e9),
                  fmt::format("{:.0f}", 100 * operations / operations_)});
    }
  }

 private:
  Table& table_;
  const std::vector<Kernel>& kernels_;
  double bytes_, operations_;
};

int bench_kernels(KernelsOptions& o) {
  const Device device = o.where();
  constexpr int64_t large = int64_t{1} << 26;  // 256 MB
  const Tensor from = Tensor::full({large}, 1, device), to = Tensor::full({large}, 1, device);
  const double bytes =
      8.0 * large / median_seconds(o, [&] { DISPATCH(device, scale(Tensor(to).data(), from.data(), 1, large)); });
  const double operations = product_rate(o);
  fmt::print(
      "sizes of the copy task: B 64, L 128, H 8, E = M = 32, D 256, F 1024, float32. Arrays of 8 MB may lie in a "
      "cache. Ceilings: {:.1f} GB/s for an "
      "array of 256 MB, {:.0f} GFLOP/s in a product of 2048 x 2048\n",
      bytes / 1e9, operations / 1e9);
  std::vector<Kernel> some = kernels(device);
  std::erase_if(some, [&](const Kernel& kernel) { return kernel.name.find(o.filter) == std::string::npos; });
  check<UsageError>(!some.empty(), "--filter ", o.filter, ": no kernel has this in its name");
  Table table(o, "kernels", {"kernel", "us", "GB/s", "% of copy", "GFLOP/s", "% of product"}, std::ssize(some));
  for (const Kernel& kernel : some)
    benchmark::RegisterBenchmark(kernel.name.c_str(),
                                 [&kernel, device](benchmark::State& state) {
                                   kernel.run();  // the first run waits for fresh pages of memory
                                   for ([[maybe_unused]] auto each : state) {
                                     kernel.run();
                                     synchronize(device);
                                   }
                                 })
        ->UseRealTime()
        ->MinTime(o.seconds);
  Rows rows(table, some, bytes, operations);
  benchmark::RunSpecifiedBenchmarks(&rows);
  plot(table.file(".png"),
       "set title 'kernels, % of what this machine reaches'; set style data histograms; set style fill solid 0.8; set "
       "logscale y; set yrange [0.1:1000]; "
       "set xtics rotate by -60; set bmargin 14; plot " +
           table.source() + " skip 2 using 4:xtic(1) title 'memory', " + table.source() +
           " skip 2 using 6 title 'arithmetic'",
       1400, 600);
  table.finish();
  return 0;
}

#else

int bench_kernels(KernelsOptions&) {
  fail("bench kernels: this build has no Google Benchmark; install libbenchmark-dev and build again");
}

#endif

}  // namespace

void add_kernels(Subcommand bench, Command& chosen) {
  add_command<KernelsOptions>(bench, chosen, "kernels", "every kernel by itself, beside what this machine reaches",
                              bench_kernels);
}

}  // namespace runnel
