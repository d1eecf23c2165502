// runnel bench scaling: training in several processes, and what to expect of more.
//
// An update by P processes takes as long as the parts that each computes, the optimizer, and what of the sum of
// gradients is not hidden behind the backward pass of the last part. Recursive halving and doubling sends
// 2 n (1 - 1 / P) numbers in 2 log2(P) steps. All ranges of gradients are sent at the same time, so a step waits for
// the network once, for three latencies: by MPI's rendezvous protocol a large message is a request, an
// acknowledgement and the data.
//   sum = 2 (1 - 1 / P) bytes / bandwidth + 2 log2(P) 3 latency
#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <utility>

#include "apps/bench/bench.h"
#include "apps/training/communicator.h"
#include "apps/training/settings.h"
#include "apps/training/updater.h"
#include "engine/check.h"
#include "engine/tape.h"
#include "ops/elementwise.h"
#include "ops/losses.h"
#include "ops/reductions.h"

namespace runnel {
namespace {

struct ScalingOptions : BenchOptions {
  int64_t processes = 0;
  int64_t length = 0;
  double bandwidth = 0;
  double latency = 50;
  std::string reduction = "exact", gradients = "f32";

  Settings list() override {
    return extended(
        BenchOptions::list(),
        {{"processes", &processes, in_range(0, 1024),
          "measure 1, 2, 4 ... up to so many; 0: as many as --threads, at most 8"},
         {"length", &length, in_range(0, 1 << 16), "positions of a sequence; 0: the paper's, 128 and 783"},
         {"bandwidth", &bandwidth, in_range(0, 1e6), "of the network, in Gbit/s, to predict for; 0: 1, 10 and 100"},
         {"latency", &latency, in_range(0, 1e6), "of the network, in microseconds, to predict for"},
         {"reduction", &reduction, one_of({"exact", "fast"}), "as in train"},
         {"gradients", &gradients, one_of({"f32", "bf16"}), "as in train"}});
  }
  SumOptions sums() const { return sum_options(reduction, gradients); }
};

constexpr int64_t parts = 8;  // of a batch

struct Workload {
  const char* name;
  AutoregressiveConfig config;
  int64_t batch, length;
};

std::vector<Workload> workloads(const ScalingOptions& o) {
  std::vector<Workload> all = {{"copy task", AutoregressiveConfig{}, 64, 128},
                               {"MNIST", paper_image_model("mnist"), 16, 783}};
  for (Workload& w : all)
    if (o.length) w.length = w.config.max_length = o.length;
  return all;
}

struct Measured {
  double seconds = 0;    // of an update
  double optimizer = 0;  // of that, the optimizer's
  double bytes = 0;      // that a process sends
  double sum = 0;        // seconds of the same sum of gradients by itself
  double waited = 0;     // seconds that an update waits for the sum
  double parameters = 0;
};

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Of this process; all processes measure together.
Measured measure(const ScalingOptions& o, const Workload& w) {
  Communicator& all = processes();
  const AutoregressiveTransformer model(w.config, Key{1}, o.chosen_device());
  ShardedOptimizer optimizer(model.parameters(), authors_options);
  const bool mixture = w.config.outputs == 30;
  Updater updater(
      optimizer, o.chosen_device(), Key{2},
      [&](const Slice& slice, Key key) {
        const Tensor y = model(slice.indices[0], key);
        return mixture ? scale(sum(logistic_mixture_nll(y, slice.indices[1])), 1e-4f)
                       : cross_entropy(y, slice.indices[1]);
      },
      o.sums());
  const int64_t own = parts / all.size(), each = w.batch / parts;
  std::vector<Slice> slices;
  for (int64_t part = all.rank() * own; part < (all.rank() + 1) * own; ++part) {
    std::vector<int32_t> tokens(static_cast<size_t>(each * w.length));
    const Key key = Key{3}.fold(static_cast<uint64_t>(part));
    for (size_t i = 0; i < tokens.size(); ++i)
      tokens[i] = static_cast<int32_t>(key.below(i, static_cast<uint32_t>(w.config.vocabulary)));
    const Indices of_part(Shape{each, w.length}, tokens);
    slices.push_back({{of_part, of_part}, {}, static_cast<double>(each), of_part.size()});
  }
  int64_t step = 0;
  std::vector<double> seconds, waited, sums;
  for (int64_t run = 0; run < o.runs + 2; ++run) {  // two warm up: new memory is slow
    all.sum({});
    const double start = now(), before = all.cost().seconds_waited;
    updater.update(step++, slices);
    if (run < 2) continue;
    seconds.push_back(now() - start);
    waited.push_back(all.cost().seconds_waited - before);
  }
  Measured m{.seconds = median(seconds), .waited = median(waited)};
  for (const NamedTensor& p : model.parameters()) m.parameters += static_cast<double>(p.tensor.size());

  std::vector<float> gradients(static_cast<size_t>(m.parameters));
  const double sent = all.cost().bytes_sent;
  for (int64_t run = 0; run < o.runs + 1; ++run) {
    all.sum({});
    const double start = now();
    const int64_t at_once = all.floats_at_once();
    for (int64_t first = 0; first < std::ssize(gradients); first += at_once)
      all.start_sum(gradients.data() + first, std::min(at_once, std::ssize(gradients) - first), o.sums());
    all.finish();
    if (run > 0) sums.push_back(now() - start);
  }
  m.sum = median(sums);
  m.bytes = (all.cost().bytes_sent - sent) / static_cast<double>(o.runs + 1);

  Tape tape;  // what the optimizer takes by itself
  const Tensor loss = scale(sum(model(slices[0].indices[0], Key{5})), 1e-6f);
  const Gradients one = tape.backward(loss);
  m.optimizer = median_seconds(o, [&] {
    optimizer.begin_update();
    optimizer.update(one, optimizer.squares(one));
  });
  return m;
}

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Measured, seconds, optimizer, bytes, sum, waited, parameters)

// All workloads in so many processes, which mpirun starts.
std::vector<Measured> measured_by(const ScalingOptions& o, int64_t count) {
  std::vector<Measured> all;
  if (count == 1) {
    for (const Workload& w : workloads(o)) all.push_back(measure(o, w));
    return all;
  }
  const std::string command = fmt::format(
      "mpirun --bind-to none --oversubscribe -n {} {} bench scaling --json --quiet --device cpu --precision {} "
      "--threads {} --runs {} --length {} --reduction {} --gradients {}",
      count, shell_quoted(std::filesystem::read_symlink("/proc/self/exe").string()), o.precision,
      std::max<int64_t>(o.threads / count, 1), o.runs, o.length, o.reduction, o.gradients);
  std::fflush(stdout);
  std::string text;
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), pclose);
  char part[4096];
  while (const size_t size = pipe ? std::fread(part, 1, sizeof part, pipe.get()) : 0) text.append(part, size);
  const auto rows = nlohmann::json::parse(text, nullptr, false);
  check(rows.is_array(), count, " processes could not be started; this is what was tried: ", command);
  for (const nlohmann::json& row : rows) all.push_back(row.get<Measured>());
  return all;
}

// What of a sum is not hidden behind the backward pass of the last part, which takes two thirds of the part's time.
double exposed(double sum, double last_part) { return std::max(0.0, sum - 2.0 / 3 * last_part); }

double sum_seconds(const ScalingOptions& o, double parameters, double count, double gigabits) {
  const double bytes = (o.gradients == "bf16" ? 2 : 4) * parameters, rendezvous = 3 * o.latency * 1e-6;
  return 2 * (1 - 1 / count) * bytes * 8 / (gigabits * 1e9) + 2 * std::log2(count) * rendezvous;
}

int bench_scaling(ScalingOptions& o) {
  if (processes().size() > 1) {
    nlohmann::json rows = nlohmann::json::array();
    for (const Workload& w : workloads(o)) rows.push_back(measure(o, w));
    print_json(rows);
    return 0;
  }
  check<UsageError>(o.chosen_device() == Device::cpu, "bench scaling measures processes on the CPU; give --device cpu");
  o.sums();  // throws if the flags do not go together
  const int64_t wanted = o.processes ? o.processes : std::min(o.threads, parts);
  const auto most = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(wanted)));
  check<UsageError>(most <= parts, "--processes ", most, ": a batch of these workloads has ", parts, " parts");
  const std::vector<Workload> all_workloads = workloads(o);
  std::vector<Measured> one;
  Table measured(
      o, "scaling",
      {"model", "processes", "threads each", "tokens/s", "ratio", "predicted", "MB sent", "sum ms", "waited ms"},
      std::bit_width(static_cast<uint64_t>(most)) * std::ssize(all_workloads));
  for (int64_t count = 1; count <= most; count *= 2) {
    const int64_t threads = std::max<int64_t>(o.threads / count, 1);
    omp_set_num_threads(static_cast<int>(threads));
    const std::vector<Measured> alone = measured_by(o, 1), all = count == 1 ? alone : measured_by(o, count);
    omp_set_num_threads(static_cast<int>(o.threads));
    if (count == 1) one = alone;
    for (size_t i = 0; i < all.size(); ++i) {
      const Workload& w = all_workloads[i];
      const double load = static_cast<double>(threads * count) / static_cast<double>(o.threads);  // of each core
      const double part = load * (alone[i].seconds - alone[i].optimizer) / parts;
      const double predicted =
          part * parts / static_cast<double>(count) + load * alone[i].optimizer + exposed(all[i].sum, part);
      const auto tokens = static_cast<double>(w.batch * w.length);
      measured.row({w.name, std::to_string(count), std::to_string(threads),
                    fmt::format("{:.0f}", tokens / all[i].seconds),
                    fmt::format("{:.3f}", one[i].seconds / all[i].seconds),
                    fmt::format("{:.3f}", one[i].seconds / predicted), fmt::format("{:.1f}", all[i].bytes / 1e6),
                    fmt::format("{:.1f}", 1e3 * all[i].sum), fmt::format("{:.1f}", 1e3 * all[i].waited)});
    }
  }
  measured.finish();

  const std::vector<double> networks = o.bandwidth > 0 ? std::vector{o.bandwidth} : std::vector<double>{1, 10, 100};
  fmt::print(
      "\npredicted for machines like this one, a process each, {} us latency: times as many tokens/s as one machine "
      "has\n",
      o.latency);
  Table table(o, "scaling-predicted", {"model", "batch", "Gbit/s", "processes", "times", "efficiency"}, 0);
  for (size_t i = 0; i < one.size(); ++i) {
    const Workload& w = all_workloads[i];
    const double compute = one[i].seconds - one[i].optimizer;
    for (const bool weak : {false, true})
      for (const double gigabits : networks)
        for (int64_t count = 8; count <= (weak ? 1024 : w.batch); count *= count == 8 ? 2 : 4) {
          const double share = weak ? 1 : 1 / static_cast<double>(count);
          const double last_part = compute * std::min(share, 1.0 / parts);
          const double sum = sum_seconds(o, one[i].parameters, static_cast<double>(count), gigabits);
          const double seconds = compute * share + one[i].optimizer + exposed(sum, last_part);
          const double times = one[i].seconds / seconds * (weak ? static_cast<double>(count) : 1);
          table.row({w.name, weak ? fmt::format("{} each", w.batch) : fmt::format("{} in all", w.batch),
                     fmt::format("{:g}", gigabits), std::to_string(count), fmt::format("{:.1f}", times),
                     fmt::format("{:.0f}%", 100 * times / static_cast<double>(count))});
        }
  }
  if (!o.json) table.finish();  // --json prints one object, what was measured
  std::string names;
  for (const double gigabits : networks) names += fmt::format("{:g} ", gigabits);
  std::string commands =
      "set logscale x 2; set xrange [8:*]; set yrange [0:105]; set key below; set xlabel 'processes'; set ylabel "
      "'efficiency in per cent'; set multiplot layout 1,2; ";
  for (const auto& [title, batch] : {std::pair("one batch for all (strong scaling)", "in all"),
                                     std::pair("as large a batch for each (weak scaling)", "each")})
    commands += fmt::format(
        "set title '{}'; plot for [model in 'copy MNIST'] for [g in '{}'] {} using (strstrt(strcol(1), model) && "
        "strstrt(strcol(2), '{}') && strcol(3) eq g ? column(4) : 1/0):(100*column(5)/column(4)) with linespoints "
        "title model.', '.g.' Gbit/s'; ",
        title, names, table.source(), batch);
  plot(table.file(".png"), commands, 1100, 480);
  return 0;
}

}  // namespace

void add_scaling(Subcommand bench, Command& chosen) {
  add_command<ScalingOptions>(bench, chosen, "scaling", "training in 1, 2, 4 ... processes, and what to expect of more",
                              bench_scaling);
}

}  // namespace runnel
