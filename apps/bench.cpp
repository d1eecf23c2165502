// Speed, measured: attention over lengths (figure 1), training with the paper's models, reading data. Every number is
// the median of several runs in this process; machines are noisy, so compare within one run.
#include "apps/bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "datasets/cifar10.h"
#include "datasets/copy_task.h"
#include "datasets/mnist.h"
#include "engine/tape.h"
#include "models/optimizer.h"
#include "models/safetensors.h"

namespace runnel {

double median_seconds(const Timing& o, const std::function<void()>& call) {
  const auto once = [&] {
    const auto start = std::chrono::steady_clock::now();
    call();
    synchronize(o.where());
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  const double first = once();
  if (first > 2) return first;
  std::vector<double> seconds(static_cast<size_t>(o.runs));
  std::generate(seconds.begin(), seconds.end(), once);
  std::nth_element(seconds.begin(), seconds.begin() + o.runs / 2, seconds.end());
  return seconds[static_cast<size_t>(o.runs / 2)];
}

namespace {

Tensor uniform(Shape shape, Key key, Device device) {
  std::vector<float> values(static_cast<size_t>(shape.size()));
  for (size_t i = 0; i < values.size(); ++i) values[i] = 2 * key.uniform(i) - 1;
  return Tensor(shape, values, device);
}

}  // namespace

double product_rate(const Timing& o) {
  constexpr int64_t n = 2048;
  const Tensor a = uniform(Shape{n, n}, Key{1}, o.where()), b = uniform(Shape{n, n}, Key{2}, o.where());
  return 2.0 * n * n * n / median_seconds(o, [&] { matmul(a, b); });
}

std::string hardware(const Timing& o, double rate) {
  return fmt::format("{}, {} threads, {}; products of 2048 x 2048 in float32: {:.0f} GFLOP/s", model_name(o.where()),
                     o.threads, o.precision, rate / 1e9);
}

// --- tables ----------------------------------------------------------------------------------------------------------

namespace {

template <class Format>
std::string joined(const std::vector<std::string>& cells, const char* between, Format format) {
  std::string line;
  for (size_t i = 0; i < cells.size(); ++i) {
    if (i) line += between;
    line += format(i);
  }
  return line;
}

}  // namespace

Table::Table(const BenchOptions& o, const std::string& name, std::vector<std::string> columns)
    : stem_(std::filesystem::path(o.out) / name), columns_(std::move(columns)) {
  std::error_code error;
  std::filesystem::create_directories(o.out, error);
  check(!error, "--out ", o.out, ": cannot be made: ", error.message());
  const std::string machine = hardware(o, product_rate(o));
  fmt::print("{}\n", machine);
  csv_ = "# " + machine + "\n";
  row(columns_);
}

void Table::row(const std::vector<std::string>& cells) {
  fmt::print("{}\n", joined(cells, "  ", [&](size_t i) {
               const size_t width = std::max<size_t>(columns_[i].size(), i ? 8 : 16);
               return i ? fmt::format("{:>{}}", cells[i], width) : fmt::format("{:<{}}", cells[i], width);
             }));
  std::fflush(stdout);
  csv_ += joined(cells, ",", [&](size_t i) { return cells[i]; }) + "\n";
  write_atomically(file(".csv"), {{csv_.begin(), csv_.end()}});
}

// --- attention -------------------------------------------------------------------------------------------------------

namespace {

struct AttentionOptions : BenchOptions {
  int64_t heads = 8;
  int64_t head_dim = 32;
  int64_t shortest = 512;
  int64_t longest = 65536;
  int64_t batch = 0;
  int64_t buckets = 64;
  int64_t chunk = 32;
  double limit = 20;

  template <class Each>
  void each(Each&& option) {
    BenchOptions::each(option);
    option("heads", heads, in_range(1, 1024), "heads");
    option("head-dim", head_dim, in_range(1, 256), "E = M");
    option("shortest", shortest, in_range(1, 1 << 24), "the first length; each is twice the one before");
    option("longest", longest, in_range(1, 1 << 24), "no length is above this");
    option("batch", batch, in_range(0, 1 << 20), "sequences; 0: as many as have --longest positions together");
    option("buckets", buckets, in_range(2, 4096), "of lsh, an even number");
    option("chunk", chunk, in_range(1, 256), "of lsh");
    option("limit", limit, in_range(0, 1e6), "seconds: what would take longer is left out");
  }
};

struct PerSample {
  double seconds, bytes;  // the most held at any time: inputs, outputs, gradients and all between
};

PerSample measure(const AttentionOptions& o, const Method& method, int64_t length, int64_t batch) {
  const Device device = o.where();
  const int64_t live = memory_use(device).live;
  reset_peak(device);
  const Shape shape{batch, length, o.heads, o.head_dim};
  std::vector<Tensor> in;
  for (const uint64_t i : {1, 2, 3}) in.push_back(uniform(shape, Key{i}, device).set_wants_grad());
  const Tensor dy = uniform(shape, Key{4}, device);
  const auto pass = [&] {
    Tape tape;
    const Tensor y = attend(in[0], in[1], in[2], method.attention, method.lsh, Key{5});
    // A loss whose gradient is dy, and which costs nothing.
    tape.backward(record("loss", {y}, Tensor::full({}, 0, device), [&](const Tensor&) { return std::vector{dy}; }));
  };
  const double seconds = median_seconds(o, pass), samples = static_cast<double>(batch);
  return {seconds / samples, static_cast<double>(memory_use(device).peak - live) / samples};
}

using Curve = std::vector<std::pair<double, PerSample>>;  // by length

// The exponent p of L^p, by least squares in the logarithms.
double growth(const Curve& curve, double PerSample::*what) {
  double n = 0, x = 0, y = 0, xx = 0, xy = 0;
  for (const auto& [length, sample] : curve) {
    const double a = std::log(length), b = std::log(sample.*what);
    n += 1, x += a, y += b, xx += a * a, xy += a * b;
  }
  return (n * xy - x * y) / (n * xx - x * x);
}

// Where two curves meet, on straight lines in the logarithms between two lengths.
double meeting(double l0, double l1, double a0, double b0, double a1, double b1) {
  const double before = std::log(a0 / b0), after = std::log(a1 / b1);
  return std::exp(std::log(l0) + (std::log(l1) - std::log(l0)) * before / (before - after));
}

int bench_attention(AttentionOptions& o) {
  check<UsageError>(o.shortest <= o.longest, "--shortest ", o.shortest, " is above --longest ", o.longest);
  check<UsageError>(o.buckets % 2 == 0, "--buckets ", o.buckets, " is odd");
  const auto lsh = [&o](int64_t rounds) { return Lsh{rounds, o.buckets, o.chunk}; };
  const std::vector<Method> methods{{"linear", Attention::linear},
                                    {"softmax", Attention::softmax},
                                    {"lsh-1", Attention::lsh, lsh(1)},
                                    {"lsh-4", Attention::lsh, lsh(4)},
                                    {"lsh-8", Attention::lsh, lsh(8)}};
  const auto longest_of_paper = [](const std::string& name) {
    return name == "softmax" ? 4096 : name == "lsh-4" || name == "lsh-8" ? 16384 : 65536;
  };
  const auto batch_of = [&o](int64_t length) { return o.batch ? o.batch : std::max<int64_t>(1, o.longest / length); };

  fmt::print("causal attention, forward and backward, H {}, E = M = {}; paper: whether figure 1 has it (11 GB)\n",
             o.heads, o.head_dim);
  Table table(o, "attention", {"method", "L", "batch", "ms/sample", "MB/sample", "paper"});
  std::vector<Curve> curves;
  for (const Method& method : methods) {
    Curve& curve = curves.emplace_back();
    for (int64_t length = o.shortest; length <= o.longest; length *= 2) {
      const int64_t batch = batch_of(length);
      if (!curve.empty()) {  // time grows as before, memory at least twofold
        const PerSample& last = curve.back().second;
        const double factor = curve.size() > 1 ? last.seconds / curve[curve.size() - 2].second.seconds : 2;
        const double seconds = last.seconds * std::max(factor, 1.0) * static_cast<double>(batch);
        const double bytes = 2 * last.bytes * static_cast<double>(batch);
        const bool fits = bytes < static_cast<double>(free_memory(o.where()));
        if (seconds > o.limit || !fits) {
          fmt::print("{} from L = {} on: left out, {}\n", method.name, length,
                     fits ? fmt::format("{:.0f} s are above --limit", seconds) : "it does not fit into memory");
          break;
        }
      }
      const PerSample sample = measure(o, method, length, batch);
      curve.emplace_back(static_cast<double>(length), sample);
      table.row({method.name, std::to_string(length), std::to_string(batch),
                 fmt::format("{:.3f}", 1e3 * sample.seconds), fmt::format("{:.2f}", sample.bytes / 1e6),
                 length <= longest_of_paper(method.name) ? "yes" : "no"});
    }
  }

  for (size_t i = 0; i < methods.size(); ++i)
    if (curves[i].size() > 1)
      fmt::print("{}: time grows as L^{:.2f}, memory as L^{:.2f}, from {} to {}\n", methods[i].name,
                 growth(curves[i], &PerSample::seconds), growth(curves[i], &PerSample::bytes), curves[i].front().first,
                 curves[i].back().first);

  // Downwards from --shortest, if linear attention is the faster one there already; else upwards through the table.
  const auto seconds = [&](size_t method, int64_t length) {
    for (const auto& [l, sample] : curves[method])
      if (static_cast<int64_t>(l) == length) return sample.seconds;
    return measure(o, methods[method], length, batch_of(length)).seconds;
  };
  const size_t both = std::min(curves[0].size(), curves[1].size());
  int64_t faster = 0;  // the shortest known length at which linear attention is
  for (size_t i = both; i-- > 0;)
    if (curves[0][i].second.seconds < curves[1][i].second.seconds) faster = static_cast<int64_t>(curves[0][i].first);
  while (faster > 8 && seconds(0, faster / 2) < seconds(1, faster / 2)) faster /= 2;
  if (faster > 8) {
    const int64_t slower = faster / 2;
    fmt::print("linear is faster than softmax from L = {:.0f} on\n",
               meeting(static_cast<double>(slower), static_cast<double>(faster), seconds(0, slower), seconds(1, slower),
                       seconds(0, faster), seconds(1, faster)));
  } else {
    fmt::print("{}\n", faster ? "linear is faster than softmax at all lengths above 8"
                              : "linear is not faster than softmax at any of these lengths");
  }

  const auto panel = [&](const char* title, const char* unit, int column) {
    std::string series;
    for (const Method& method : methods)
      series += (series.empty() ? "plot " : ", ") + table.source() + " using 2:(strcol(1) eq '" + method.name +
                "' ? $" + std::to_string(column) + " : NaN) with linespoints pt 7 ps 0.6 lw 2 title '" + method.name +
                "'";
    return fmt::format("set title '{}'; set ylabel '{}'; {}; ", title, unit, series);
  };
  plot(table.file(".png"),
       "set multiplot layout 1,2; set logscale xy; set logscale x 2; set key left top; set xlabel 'L'; "
       "set datafile missing NaN; " +
           panel("forward + backward", "ms per sample", 4) + panel("peak memory", "MB per sample", 5),
       1200, 480);
  fmt::print("{}\n", table.file(".csv").string());
  return 0;
}

// --- training --------------------------------------------------------------------------------------------------------

struct TrainingOptions : Timing {
  std::string attention = "linear";

  template <class Each>
  void each(Each&& option) {
    Timing::each(option);
    option("attention", attention, one_of({"linear", "softmax", "lsh"}), "which one");
  }
};

// Multiplications and additions of one token's matrix products in the forward pass; backward takes twice as many.
double product_flops(const TransformerConfig& c) {
  const double d = static_cast<double>(c.width());
  return 2 * (static_cast<double>(c.layers) * (4 * d * d + 2 * d * static_cast<double>(c.feed_forward)) +
              d * static_cast<double>(c.outputs));
}

int bench_training(TrainingOptions& o) {
  const double peak = product_rate(o);
  fmt::print("{}\n{} attention, median of {} steps\n", hardware(o, peak), o.attention, o.runs);
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
  measure("copy task", TransformerConfig{}, 64, [&](const Transformer& model, Key key) {
    const CopyBatch data = CopyTask{}.batch(key.fold(0), 64, o.where());
    return cross_entropy(model(data.tokens, key.fold(1)), data.targets, data.mask);
  });
  measure("MNIST", paper_image_model("mnist"), 10, [&](const Transformer& model, Key key) {
    std::vector<int32_t> bytes(10 * 783);
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<int32_t>(key.below(i, 256));
    const Indices tokens(Shape{10, 783}, bytes, o.where());
    const Tensor nll = logistic_mixture_nll(model(tokens, key.fold(1)), tokens);
    return scale(sum(nll), 1 / static_cast<float>(nll.size()));
  });
  return 0;
}

// --- reading ---------------------------------------------------------------------------------------------------------

struct ReadingOptions : BenchOptions {
  std::string data;

  template <class Each>
  void each(Each&& option) {
    BenchOptions::each(option);
    option("data", data, Allowed(), "the folder with the data sets; $RUNNEL_DATA or ./data if not given");
  }
};

// Files are in the system's cache: it is decompression that is timed.
int bench_reading(ReadingOptions& o) {
  const std::filesystem::path directory = data_directory(o.data);
  const ImageSet mnist = load_mnist(directory, Split::train);
  Table table(o, "reading", {"what", "images", "ms", "images/s"});
  const auto row = [&](const std::string& what, int64_t images, double seconds) {
    table.row({what, std::to_string(images), fmt::format("{:.3f}", 1e3 * seconds),
               fmt::format("{:.0f}", static_cast<double>(images) / seconds)});
  };
  const auto measure = [&](const ImageSet& set, auto load) {
    row(set.name, set.count, median_seconds(o, [&] { load(directory, Split::train); }));
    int64_t step = 0;
    row("a batch of it", 10, median_seconds(o, [&] { byte_batch(set, 10 * step++, 10, o.where()); }));
  };
  measure(mnist, load_mnist);
  try {
    measure(load_cifar10(directory, Split::train), load_cifar10);
  } catch (const Error& error) {
    fmt::print("left out: {}\n", error.what());
  }
  fmt::print("{}\n", table.file(".csv").string());
  return 0;
}

}  // namespace

void add_bench(Word program, Command& chosen) {
  const Word bench = program.add("bench", "how fast this machine is at it: the paper's figures and tables");
  add_command<AttentionOptions>(bench, chosen, "attention", "figure 1: time and memory of the attentions over lengths",
                                bench_attention);
  add_command<TrainingOptions>(bench, chosen, "training", "tokens/s with the paper's models", bench_training);
  add_command<ReadingOptions>(bench, chosen, "reading", "images/s from files, and the time of a batch", bench_reading);
  add_generation(bench, chosen);
  add_convergence(bench, chosen);
  add_kernels(bench, chosen);
}

}  // namespace runnel
