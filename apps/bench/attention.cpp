// runnel bench attention: figure 1, time and memory of every kind of attention over the length.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>

#include "apps/bench/bench.h"
#include "engine/check.h"
#include "engine/host.h"
#include "engine/tape.h"
#include "models/attention_kinds.h"
#include "models/config_settings.h"

namespace runnel {
namespace {

struct AttentionOptions : BenchOptions {
  int64_t heads = 8;
  int64_t head_dim = 32;
  std::string lengths = "512,1024,2048,4096,8192,16384,32768,65536";
  int64_t batch = 0;
  std::string attention;
  AttentionConfig values = {};  // of all kinds' own settings
  double limit = 20;
  bool full = false;

  AttentionShape shape(int64_t length) const { return {heads, head_dim, !full, heads * head_dim, length}; }
  Settings list() override {
    return extended(
        extended(
            BenchOptions::list(),
            {{"heads", &heads, in_range(1, 1024), "heads"},
             {"head-dim", &head_dim, in_range(1, 256), "E = M"},
             {"lengths", &lengths, {}, "lengths of sequences, separated by commas"},
             {"batch", &batch, in_range(0, 1 << 20), "sequences; 0: as many as have the longest's positions together"},
             {"attention",
              &attention,
              {},
              "kinds of attention, or variants such as lsh-4, separated by commas; default: all"},
             {"limit", &limit, in_range(0, 1e6), "seconds: a length that would take longer is left out"},
             {"full",
              &full,
              {},
              "every query sees all keys, of the kinds that have this form; default: causal, as in figure 1"}}),
        all_attention_settings(values, attention_names(Forms::either)));
  }
};

struct PerSample {
  double seconds, bytes;  // the most held at any time: inputs, outputs, gradients and all between
};

// A kind of attention with its settings.
struct Method {
  std::string name;  // as in the paper's figures
  AttentionConfig config;
};

// Every variant of every kind that has the form, or those that --attention names.
std::vector<Method> methods_of(const AttentionOptions& o) {
  std::vector<Method> all, chosen;
  Choices names, kinds;  // kinds: of several variants
  for (const AttentionKind* kind : attention_kinds()) {
    if (o.full ? !kind->full : !kind->causal) continue;
    std::vector<AttentionKind::Variant> variants = kind->variants;
    if (variants.empty())
      variants.push_back({kind->name, {}});
    else
      kinds.push_back(kind->name);
    for (const AttentionKind::Variant& variant : variants) {
      Method& method = all.emplace_back(Method{variant.name, {kind->name, o.values.values}});
      for (const auto& [name, value] : variant.values) method.config.values[name] = value;
      names.push_back(variant.name);
    }
  }
  if (o.attention.empty()) return all;
  names.insert(names.end(), kinds.begin(), kinds.end());
  for (const std::string& word : chosen_words("attention", o.attention, names))
    std::copy_if(all.begin(), all.end(), std::back_inserter(chosen),
                 [&](const Method& method) { return method.name == word || method.config.kind == word; });
  return chosen;
}

PerSample measure(const AttentionOptions& o, const Method& method, int64_t length, int64_t batch) {
  const Device device = o.chosen_device();
  const int64_t live = memory_use(device).live;
  reset_peak(device);
  const Shape shape{batch, length, o.heads, o.head_dim};
  std::vector<Tensor> in;
  for (const uint64_t i : {1, 2, 3}) in.push_back(uniform(shape, Key{i}, device).set_wants_grad());
  const Tensor dy = uniform(shape, Key{4}, device);
  const AttentionSeeds keys{.fixed = Key{5}, .init = Key{6}};
  const auto layer = make_attention(method.config, o.shape(length), keys, device);
  const Tensor input = uniform(Shape{batch, length, o.heads * o.head_dim}, Key{7}, device);
  const auto pass = [&] {
    Tape tape;
    const Tensor y = (*layer)(in[0], in[1], in[2], {.key = Key{5}, .input = input});
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

// A length that is not measured yet: seconds and bytes grow as between the last two, and no less than in proportion,
// but at most as the square, since timings of short lengths are noisy.
PerSample foreseen(const Curve& known, double length) {
  const auto grown = [&, ratio = length / known.back().first](double PerSample::*what) {
    const double exponent = known.size() > 1 ? growth({known.end() - 2, known.end()}, what) : 1;
    return known.back().second.*what * std::pow(ratio, std::clamp(exponent, 1.0, 2.0));
  };
  return {grown(&PerSample::seconds), grown(&PerSample::bytes)};
}

// Shorter lengths, from which the cost of the first one is extrapolated if its weights would be 2 GB or more.
std::vector<int64_t> lengths_before(int64_t first, int64_t batch, int64_t heads) {
  std::vector<int64_t> before;
  if (batch * heads * first >= (int64_t{1} << 29) / first)
    for (int64_t length = 64; length < first; length *= 4) before.push_back(length);
  return before;
}

// Where two curves meet, on straight lines in the logarithms between two lengths.
double meeting(double l0, double l1, double a0, double b0, double a1, double b1) {
  const double before = std::log(a0 / b0), after = std::log(a1 / b1);
  return std::exp(std::log(l0) + (std::log(l1) - std::log(l0)) * before / (before - after));
}

int bench_attention(AttentionOptions& o) {
  std::vector<int64_t> lengths = chosen_numbers("lengths", o.lengths, in_range(1, 1 << 24));
  std::sort(lengths.begin(), lengths.end());
  lengths.erase(std::unique(lengths.begin(), lengths.end()), lengths.end());
  const std::vector<Method> methods = methods_of(o);
  for (const Method& method : methods)  // before anything is written
    make_attention(method.config, o.shape(1), {Key{5}}, Device::cpu);
  const auto longest_of_paper = [](const std::string& name) {
    static const std::map<std::string, int64_t> longest{
        {"linear", 65536}, {"softmax", 4096}, {"lsh-1", 65536}, {"lsh-4", 16384}, {"lsh-8", 16384}};
    const auto found = longest.find(name);
    return found == longest.end() ? 0 : found->second;
  };
  const auto batch_of = [&](int64_t length) {
    return o.batch ? o.batch : std::max<int64_t>(1, lengths.back() / length);
  };

  fmt::print("{} attention, forward and backward, H {}, E = M = {}; paper: whether figure 1 has it (11 GB)\n",
             o.full ? "full" : "causal", o.heads, o.head_dim);
  Table table(o, "attention", {"method", "L", "batch", "ms/sample", "MB/sample", "paper"},
              std::ssize(lengths) * std::ssize(methods));
  std::vector<int64_t> measured = lengths_before(lengths[0], batch_of(lengths[0]), o.heads);
  measured.insert(measured.end(), lengths.begin(), lengths.end());
  AttentionOptions once = o;
  once.runs = 1;
  std::vector<Curve> curves;
  for (const Method& method : methods) {
    Curve& curve = curves.emplace_back();
    Curve known;
    for (const int64_t length : measured) {
      const bool is_row = length >= lengths[0];
      const int64_t batch = is_row ? batch_of(length) : 1;
      if (!known.empty()) {
        const PerSample sample = foreseen(known, static_cast<double>(length));
        const double seconds = sample.seconds * static_cast<double>(batch);
        const bool fits =
            sample.bytes * static_cast<double>(batch) < static_cast<double>(free_memory(o.chosen_device()));
        if (seconds > o.limit || !fits) {
          table.note(
              fmt::format("{} from L = {} on: left out, {}", method.name, std::max(length, lengths[0]),
                          fits ? fmt::format("{:.0f} s are above --limit", seconds) : "it does not fit into memory"));
          break;
        }
      }
      const PerSample sample = measure(is_row ? o : once, method, length, batch);
      known.emplace_back(static_cast<double>(length), sample);
      if (!is_row) continue;
      curve.emplace_back(static_cast<double>(length), sample);
      table.row({method.name, std::to_string(length), std::to_string(batch),
                 fmt::format("{:.3f}", 1e3 * sample.seconds), fmt::format("{:.2f}", sample.bytes / 1e6),
                 !o.full && longest_of_paper(method.name) >= length ? "yes" : "no"});
    }
  }

  for (size_t i = 0; i < methods.size(); ++i)
    if (curves[i].size() > 1)
      table.note(fmt::format("{}: time grows as L^{:.2f}, memory as L^{:.2f}, from {} to {}", methods[i].name,
                             growth(curves[i], &PerSample::seconds), growth(curves[i], &PerSample::bytes),
                             curves[i].front().first, curves[i].back().first));

  // Where linear attention becomes faster than softmax: downwards from the first length, if it is faster there already;
  // else upwards through the table.
  const auto index_of = [&](const char* name) {
    for (size_t i = 0; i < methods.size(); ++i)
      if (methods[i].name == name) return i;
    return methods.size();
  };
  const size_t linear = index_of("linear"), softmax = index_of("softmax");
  const auto seconds = [&](size_t method, int64_t length) {
    for (const auto& [l, sample] : curves[method])
      if (static_cast<int64_t>(l) == length) return sample.seconds;
    return measure(o, methods[method], length, batch_of(length)).seconds;
  };
  const auto rows_of = [&](size_t method) { return method < methods.size() ? curves[method].size() : 0; };
  if (const size_t both = std::min(rows_of(linear), rows_of(softmax))) {
    int64_t faster = 0;  // the shortest known length at which linear attention is
    for (size_t i = both; i-- > 0;)
      if (curves[linear][i].second.seconds < curves[softmax][i].second.seconds)
        faster = static_cast<int64_t>(curves[linear][i].first);
    while (faster > 8 && seconds(linear, faster / 2) < seconds(softmax, faster / 2)) faster /= 2;
    if (faster > 8) {
      const int64_t slower = faster / 2;
      fmt::print("linear is faster than softmax from L = {:.0f} on\n",
                 meeting(static_cast<double>(slower), static_cast<double>(faster), seconds(linear, slower),
                         seconds(softmax, slower), seconds(linear, faster), seconds(softmax, faster)));
    } else {
      fmt::print("{}\n", faster ? "linear is faster than softmax at all lengths above 8"
                                : "linear is not faster than softmax at any of these lengths");
    }
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
  table.finish();
  return 0;
}
}  // namespace

void add_attention(Subcommand bench) {
  add_command<AttentionOptions>(bench, "attention",
                                "figure 1: time and memory of the kinds of attention over the length", bench_attention);
}

}  // namespace runnel
