// runnel bench kernels: every kernel of ops/kernels/ by itself, at the sizes of the paper's copy task, timed on the
// CPU by Google Benchmark. What a kernel must move (each input read once, each output written once) and compute, over
// the time that it takes, stands beside this machine's limits: a copy of an array too large for the caches, and a
// matrix product. The roofline shows both ceilings over operations per byte, and each kernel as a dot.
//
// A kernel on CUDA takes less time than its launch. So many calls are captured as a graph, and the GPU's own clock
// times a replay that it begins right after another. The calls take turns with several sets of buffers, which together
// are too large for its L2 cache.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <numeric>

#include "apps/bench/bench.h"
#include "apps/bench/kernels.h"
#include "apps/package.h"
#include "ops/kernels/causal_convolution.h"
#include "ops/kernels/elementwise.h"
#include "ops/kernels/gated_linear_attention.h"
#include "ops/kernels/layers.h"
#include "ops/kernels/linear.h"
#include "ops/kernels/linear_attention.h"
#include "ops/kernels/losses.h"
#include "ops/kernels/lsh_attention.h"
#include "ops/kernels/optimizers.h"
#include "ops/kernels/reductions.h"
#include "ops/kernels/shapes.h"
#include "ops/kernels/softmax_attention.h"
#include "ops/numerics.h"
#include "ops/optimizers.h"
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

// Sequences, and numbers of an array too large for the caches. The emulator is thousands of times slower than a GPU.
bool is_emulator(Device device) { return device == Device::cuda && cuda_is_emulated(); }
int64_t batch_on(Device device) { return is_emulator(device) ? 8 : 64; }
int64_t large_array(Device device) { return int64_t{1} << (is_emulator(device) ? 16 : 26); }

}  // namespace

KernelInputs::KernelInputs(Device where)
    : device(where),
      batch(batch_on(device)),
      x0(floats({n})),
      x1(floats({n})),
      x2(floats({n})),
      l(floats({rows * heads})),
      small(Shape{f}, device),
      a(floats({n})),
      b(floats({n})),
      c(floats({n})),
      g(floats({n})),
      bias(floats({f})) {}

Tensor KernelInputs::floats(std::initializer_list<int64_t> shape) { return uniform(shape, Key{++seed}, device); }

Indices KernelInputs::numbers_below(int64_t count, uint32_t below) {
  Indices t(Shape{count});
  const Key key{++seed};
  for (int64_t i = 0; i < count; ++i) t.data()[i] = static_cast<int32_t>(key.below(static_cast<uint64_t>(i), below));
  return t.to(device);
}

namespace {

// The kernels of the contract. Each keeps its tensors: the lambdas copy them, and their storage is shared.
std::vector<BenchKernel> kernels(Device device) {
  KernelInputs in(device);
  constexpr int64_t length = in.length, heads = in.heads, e = in.e, d = in.d, f = in.f, vocabulary = 11,
                    components = 10;
  const int64_t batch = in.batch, rows = in.rows, sequences = in.sequences, n = in.n;
  const auto floats = [&](std::initializer_list<int64_t> shape) { return in.floats(shape); };
  const auto numbers_below = [&](int64_t count, uint32_t below) { return in.numbers_below(count, below); };
  Tensor x0 = in.x0, x1 = in.x1, x2 = in.x2, l = in.l, small1 = in.small;
  const Tensor a = in.a, b = in.b, c = in.c, g = in.g, bias = in.bias, wide = floats({rows, f});
  const Tensor w = floats({f, d}), table = floats({256, d / 2}), code = floats({length, d / 2});
  const Tensor logits = floats({rows, 3 * components});
  Tensor y_wide(Shape{rows, f}, device), weight_gradient(Shape{f, d}, device), small0(Shape{f * d}, device);
  Tensor mean = floats({rows}), rstd = Tensor::full({rows}, 1, device);
  Tensor cache_k(Shape{sequences, e, length}, device), cache_v(Shape{sequences, length, e}, device);
  const Indices tokens = numbers_below(rows, vocabulary), bytes = numbers_below(rows, 256);
  const Indices position(Shape{1}, {length - 1}, device);
  Indices out = numbers_below(rows, 1), counter(Shape{1}, {0}, device);
  std::vector<Key> key_list;
  for (uint64_t i = 0; i < static_cast<uint64_t>(rows); ++i) key_list.push_back(Key{i});
  const Keys keys(Shape{rows}, key_list, device);
  const Dropout dropped{0.1f, Key{9}}, none{};
  const AttentionSizes sizes{batch, length, length, heads, e, e, true}, full{batch, length, length, heads, e, e, false};
  const AttentionSizes one_position{batch, 1, length, heads, e, e, true};  // and a cache of `length`
  const FeatureMap map = FeatureMap::elu_plus_one;
  Tensor state = Tensor::full({sequences, e, e}, 0, device), state_z = Tensor::full({sequences, e}, 1, device);
  const double D = d, F = f, L = length, E = e, V = vocabulary, K = components, N = static_cast<double>(n),
               R = static_cast<double>(rows), S = static_cast<double>(sequences);
  const double scores = S * L * (L + 1) / 2;

  std::vector<BenchKernel> all;
  const StridedLoop positions_last{
      3, {batch, heads, length}, {length * d, length * e, e}, {length * d, e, d}, rows * heads, e, 1, 1};
  const StridedLoop side_by_side{0, {}, {}, {}, 1, n, 1, 1}, rows_beside_one{1, {rows}, {d}, {0}, rows, d, 1, 1};
  NAMED("add", 3 * N, N, binary_forward, x0.data(), a.data(), b.data(), Binary::add, side_by_side);
  NAMED("add: a row to each", 2 * N, N, binary_forward, x0.data(), a.data(), bias.data(), Binary::add, rows_beside_one);
  NAMED("multiply: backward", 4 * N, N, binary_backward, x0.data(), g.data(), a.data(), b.data(), Binary::multiply,
        side_by_side, true);
  CASE(2 * N, N, scale, x0.data(), a.data(), 2.0f, n);
  NAMED("sum: over rows", N, N, sum, small1.data(), a.data(), 1, rows, d);
  NAMED("sum: of each row", N, N, sum, mean.data(), a.data(), rows, d, 1);
  NAMED("relu: forward", 2 * N, N, function_forward, x0.data(), a.data(), Function::relu, n);
  NAMED("relu: backward", 3 * N, N, function_backward, x0.data(), g.data(), a.data(), Function::relu, n);
  NAMED("gelu: forward", 2 * N, 4 * N, function_forward, x0.data(), a.data(), Function::gelu, n);
  NAMED("gelu: backward", 3 * N, 8 * N, function_backward, x0.data(), g.data(), a.data(), Function::gelu, n);
  CASE(2 * N, 8 * N, softmax_forward, x0.data(), a.data(), rows, d, false);
  CASE(3 * N, 4 * N, softmax_backward, x0.data(), g.data(), a.data(), rows, d, false);
  CASE(2 * N, N, cumulative_sum, x0.data(), a.data(), batch, length, d, false);
  CASE(2 * N, N, dropout, x0.data(), a.data(), n, dropped);
  CASE(R * D + F * D + R * F, 2 * R * D * F, matmul, y_wide.data(), a.data(), w.data(), 1, rows, f, d, false, true,
       false);
  CASE(R * D + F * D + R * F, 2 * R * D * F, linear_forward, y_wide.data(), y_wide.data(), a.data(), w.data(),
       bias.data(), LinearSizes{1, rows, f, d}, Activation::relu, none);
  CASE(2 * (R * D + F * D + R * F), 4 * R * D * F, linear_backward, x0.data(), weight_gradient.data(), small1.data(),
       wide.data(), a.data(), w.data(), wide.data(), LinearSizes{1, rows, f, d}, Activation::relu, none, false);
  CASE(3 * N, 8 * N, layer_norm_forward, x0.data(), mean.data(), rstd.data(), a.data(), b.data(), bias.data(),
       bias.data(), rows, d, 1e-5f, none);
  CASE(4 * N, 12 * N, layer_norm_backward, x0.data(), nullptr, small0.data(), small1.data(), g.data(), a.data(),
       b.data(), bias.data(), mean.data(), rstd.data(), rows, d, none);
  const ConvolutionSizes four_taps{batch, length, d, 4, true}, next_row{batch, 1, d, 4, true};
  const Tensor taps = floats({d, 4});
  Tensor last_rows = floats({batch, 3, d});
  CASE(2 * N, 8 * N, causal_convolution_forward, x0.data(), a.data(), taps.data(), nullptr, four_taps);
  CASE(3 * N, 24 * N, causal_convolution_backward, x0.data(), small0.data(), nullptr, g.data(), a.data(), taps.data(),
       nullptr, four_taps);
  CASE(8 * N / L, 8 * N / L, causal_convolution_step, x0.data(), last_rows.data(), a.data(), taps.data(), next_row);
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
  CASE(2 * N, 0.0, strided_copy, x0.data(), a.data(), positions_last);
  NAMED("sum: of all", N, N, sum, small1.data(), a.data(), 1, n, 1);
  CASE(2 * S, 0.0, put_row, out.data(), tokens.data(), counter.data(), sequences);
  CASE(2 * R, R, shift, out.data(), tokens.data(), 1, rows);
  CASE(2.0, 1.0, advance, counter.data(), 0);
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
       c.data(), one_position, map, Precision::f32);
  // Strengths and decays with which the state stays bounded.
  Tensor of_gates(Shape{rows * heads}, device);
  const Tensor beta = Tensor::full(Shape{rows * heads}, 0.05f, device),
               decay = Tensor::full(beta.shape(), -0.1f, device);
  const AttentionSizes one_sequence{1, rows, rows, heads, e, e, true};
  for (const AttentionSizes& own : {sizes, one_sequence}) {
    const std::string of = own.batch == 1 ? ": one sequence" : "";
    const GatedInputs gated{a.data(), b.data(), c.data(),          beta.data(), decay.data(),
                            nullptr,  nullptr,  UpdateRule::delta, false,       own};
    NAMED("gated_linear_attention_forward" + of, 4 * N, 6 * N * E, gated_linear_attention_forward, x0.data(),
          state.data(), gated);
    NAMED("gated_linear_attention_backward" + of, 9 * N, 20 * N * E, gated_linear_attention_backward,
          (GatedGradients{x0.data(), x1.data(), x2.data(), l.data(), of_gates.data(), nullptr}), g.data(), nullptr,
          gated);
  }
  NAMED("causal_linear_attention_forward: one sequence", 4 * N, 4 * N * E, causal_linear_attention_forward, x0.data(),
        nullptr, nullptr, a.data(), b.data(), c.data(), nullptr, nullptr, nullptr, one_sequence, map);
  NAMED("causal_linear_attention_backward: one sequence", 8 * N, 12 * N * E, causal_linear_attention_backward,
        x0.data(), x1.data(), x2.data(), nullptr, nullptr, g.data(), nullptr, nullptr, a.data(), a.data(), b.data(),
        c.data(), nullptr, nullptr, nullptr, one_sequence, map);
  CASE(4 * N, 4 * scores * E, softmax_attention_forward, x0.data(), l.data(), a.data(), b.data(), c.data(), nullptr,
       sizes, SoftmaxSettings{});
  CASE(8 * N, 10 * scores * E, softmax_attention_backward, x0.data(), x1.data(), x2.data(), nullptr, g.data(), a.data(),
       l.data(), a.data(), b.data(), c.data(), nullptr, sizes, SoftmaxSettings{});
  constexpr int64_t local = 64;  // queries see their block of so many keys
  std::vector<int32_t> blocks;
  for (int64_t r = 0; r <= blocks_of(length, local); ++r) blocks.push_back(static_cast<int32_t>(r));
  const Indices own(Shape{std::ssize(blocks)}, blocks, device);  // list r begins at r, and is block r
  const double nearby = S * L * std::min<double>(L, local) / 2;
  NAMED("softmax_attention_forward: own block", 4 * N, 4 * nearby * E, softmax_attention_forward, x0.data(), l.data(),
        a.data(), b.data(), c.data(), nullptr, sizes,
        (SoftmaxSettings{.pattern = {local, local, own.data(), own.data(), own.data(), own.data()}}));
  NAMED("softmax_attention_backward: own block", 8 * N, 10 * nearby * E, softmax_attention_backward, x0.data(),
        x1.data(), x2.data(), nullptr, g.data(), a.data(), l.data(), a.data(), b.data(), c.data(), nullptr, sizes,
        (SoftmaxSettings{.pattern = {local, local, own.data(), own.data(), own.data(), own.data()}}));
  const Tensor scores_bias = floats({heads, length, length});
  Tensor bias_gradient(scores_bias.shape(), device);
  const double all_scores = S * L * L, B = static_cast<double>(scores_bias.size());
  NAMED("softmax_attention_forward: bias", 4 * N + B, 4 * all_scores * E, softmax_attention_forward, x0.data(),
        l.data(), a.data(), b.data(), c.data(), nullptr, full,
        (SoftmaxSettings{.bias = {scores_bias.data(), length, length, true}}));
  NAMED("softmax_attention_backward: bias", 8 * N + 2 * B, 10 * all_scores * E, softmax_attention_backward, x0.data(),
        x1.data(), x2.data(), bias_gradient.data(), g.data(), a.data(), l.data(), a.data(), b.data(), c.data(), nullptr,
        full, (SoftmaxSettings{.bias = {scores_bias.data(), length, length, true}}));
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
  const RAdamStep step{.beta1 = 0.9, .beta2 = 0.999, .clip = 1, .global_clip = 0};
  const Tensor rates(Shape{4}, {0, 0, 1, 1e-8f}, device);
  all.push_back({"sums_of_squares", N, 2 * N, [=]() mutable {
                   const RAdamTensor tensor{x0.data(), x1.data(), x2.data(), g.data(), n};
                   DISPATCH(device, sums_of_squares(small1.data(), &tensor, 1));
                 }});
  all.push_back({"radam_step", 7 * N, 12 * N, [=]() mutable {
                   const RAdamTensor tensor{x0.data(), x1.data(), x2.data(), g.data(), n};
                   DISPATCH(device, radam_step(&tensor, 1, small1.data(), rates.data(), step));
                 }});
  all.push_back({"muon_step", 5 * F * D, newton_schulz_steps * (4 * F * D * D + 2 * D * D * D), [=]() mutable {
                   const MuonMatrix matrix{x0.data(), x1.data(), w.data(), f, d};
                   DISPATCH(device, muon_step(&matrix, 1, small1.data(), small1.data(), rates.data(), 0.95));
                 }});
  for (const Package* package : packages())
    if (package->kernels)
      for (BenchKernel& kernel : package->kernels(device)) all.push_back(std::move(kernel));
  return all;
}

void time_on_cuda(const KernelsOptions& o, std::vector<BenchKernel> first,
                  const std::function<std::vector<BenchKernel>()>& another_set,
                  const std::function<void(const BenchKernel&, double seconds)>& report) {
  const int64_t max_sets = cuda_is_emulated() ? 2 : 16;  // which do not fit into an L2 cache together
  std::deque<std::vector<BenchKernel>> sets{std::move(first)};
  for (size_t k = 0; k < sets[0].size(); ++k)
    report(sets[0][k], cuda_seconds(o, o.seconds, [&](int64_t i) {
             const size_t set = static_cast<size_t>(i % max_sets);
             if (set == sets.size()) sets.push_back(another_set());
             sets[set][k].run();
           }));
}

#if RUNNEL_WITH_BENCHMARK

// Google Benchmark finds out how often to call.
class Reporter : public benchmark::BenchmarkReporter {
 public:
  Reporter(const std::vector<BenchKernel>& kernels, std::function<void(const BenchKernel&, double seconds)> report)
      : kernels_(kernels), report_(std::move(report)) {}
  bool ReportContext(const Context&) override { return true; }
  void ReportRuns(const std::vector<Run>& runs) override {
    for (const Run& run : runs)
      report_(*std::find_if(kernels_.begin(), kernels_.end(),
                            [&](const BenchKernel& k) { return k.name == run.run_name.function_name; }),
              run.GetAdjustedRealTime() * 1e-9);
  }

 private:
  const std::vector<BenchKernel>& kernels_;
  std::function<void(const BenchKernel&, double seconds)> report_;
};

void time_on_cpu(const KernelsOptions& o, const std::vector<BenchKernel>& kernels,
                 const std::function<void(const BenchKernel&, double seconds)>& report) {
  for (const BenchKernel& kernel : kernels)
    benchmark::RegisterBenchmark(kernel.name.c_str(),
                                 [&kernel](benchmark::State& state) {
                                   kernel.run();  // the first run waits for fresh pages of memory
                                   for ([[maybe_unused]] auto each : state) kernel.run();
                                 })
        ->UseRealTime()
        ->MinTime(o.seconds);
  Reporter reporter(kernels, report);
  benchmark::RunSpecifiedBenchmarks(&reporter);
}

#else

void time_on_cpu(const KernelsOptions&, const std::vector<BenchKernel>&,
                 const std::function<void(const BenchKernel&, double seconds)>&) {
  fail("bench kernels: this build has no Google Benchmark; install libbenchmark-dev and build again");
}

#endif

// Bytes per second, read and written, of a copy.
double copy_rate(const KernelsOptions& o) {
  const Device device = o.chosen_device();
  const int64_t large = large_array(device);
  const Tensor from = Tensor::full({large}, 1, device), to = Tensor::full({large}, 1, device);
  const auto copy = [&] { DISPATCH(device, scale(Tensor(to).data(), from.data(), 1, large)); };
  return 8.0 * static_cast<double>(large) /
         (device == Device::cpu ? median_seconds(o, copy) : cuda_seconds(o, o.seconds, [&](int64_t) { copy(); }));
}

// Operations over bytes, and operations per second, of each row of the table, whose columns 2, 3 and 4 are us, MB and
// MFLOP. Kernels without operations have no place in it.
void plot_roofline(const Table& table, double bytes, double operations, const std::string& precision) {
  const std::string dots = table.source() + " skip 2 using ($4 > 0 ? $4 / $3 : NaN):(1000 * $4 / $2)";
  plot(table.file("-roofline.png"),
       fmt::format("bytes = {:.6g}; peak = {:.6g}; ", bytes / 1e9, operations / 1e9) +
           "set title 'roofline: each kernel, and what this machine reaches'; set logscale xy; set samples 1000; "
           "set xlabel 'operations per byte'; set ylabel 'GFLOP/s'; set key left top; "
           "set xrange [0.05:1000]; set yrange [1e-4 * peak:3 * peak]; "
           "plot (bytes * x < peak ? bytes * x : peak) with lines lw 2 lc rgb '#3060a0' title sprintf('%.0f GB/s, "
           "%.0f GFLOP/s in products (" +
           precision + ")', bytes, peak), " + dots + " with points pt 7 ps 0.7 lc rgb '#b03020' notitle, " + dots +
           ":1:(($0 - 3 * int($0 / 3) - 1) * 25) with labels left rotate variable offset 0.6,0 font ',8' notitle",
       1600, 1100);
}

int bench_kernels(KernelsOptions& o) {
  const Device device = o.chosen_device();
  const double bytes = copy_rate(o), operations = product_rate(o);
  fmt::print(
      "sizes of the copy task: B {}, L 128, H 8, E = M = 32, D 256, F 1024, float32. Small arrays may lie in a cache. "
      "Ceilings: {:.1f} GB/s for an array of {:.3g} MB, {:.0f} GFLOP/s in a product of {} x {}\n",
      batch_on(device), bytes / 1e9, 4e-6 * static_cast<double>(large_array(device)), operations / 1e9,
      product_size(device), product_size(device));
  const auto chosen = [&] {
    std::vector<BenchKernel> some = kernels(device);
    std::erase_if(some, [&](const BenchKernel& kernel) { return kernel.name.find(o.filter) == std::string::npos; });
    return some;
  };
  const std::vector<BenchKernel> some = chosen();
  check<UsageError>(!some.empty(), "--filter ", o.filter, ": no kernel has this in its name");
  Table table(o, "kernels", {"kernel", "us", "MB", "MFLOP", "GB/s", "% of copy", "GFLOP/s", "% of product"},
              std::ssize(some));
  const auto report = [&](const BenchKernel& kernel, double seconds) {
    const double moved = 4 * kernel.numbers / seconds, computed = kernel.operations / seconds;
    table.row({kernel.name, fmt::format("{:.2f}", 1e6 * seconds), fmt::format("{:.4g}", 4e-6 * kernel.numbers),
               fmt::format("{:.4g}", 1e-6 * kernel.operations), fmt::format("{:.1f}", moved / 1e9),
               fmt::format("{:.0f}", 100 * moved / bytes), fmt::format("{:.1f}", computed / 1e9),
               fmt::format("{:.0f}", 100 * computed / operations)});
  };
  device == Device::cpu ? time_on_cpu(o, some, report) : time_on_cuda(o, some, chosen, report);
  plot(table.file(".png"),
       "set title 'kernels, % of what this machine reaches'; set style data histograms; set style fill solid 0.8; set "
       "logscale y; set yrange [0.1:1000]; "
       "set xtics rotate by -60; set bmargin 14; plot " +
           table.source() + " skip 2 using 6:xtic(1) title 'memory', " + table.source() +
           " skip 2 using 8 title 'arithmetic'",
       1400, 600);
  plot_roofline(table, bytes, operations, device == Device::cpu ? "float32" : o.precision);
  table.finish();
  return 0;
}

}  // namespace

void add_kernels(Subcommand bench) {
  add_command<KernelsOptions>(bench, "kernels", "every kernel by itself, beside what this machine reaches",
                              bench_kernels);
}

}  // namespace runnel
