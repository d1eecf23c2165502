// runnel bench scaling: training in several processes.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdio>
#include <memory>

#include "apps/bench/bench.h"
#include "apps/cli/waiting.h"
#include "apps/training/communicator.h"
#include "apps/training/settings.h"
#include "apps/training/updater.h"
#include "datasets/images.h"
#include "engine/check.h"
#include "ops/elementwise.h"
#include "ops/losses.h"
#include "ops/reductions.h"

namespace runnel {
namespace {

struct ScalingOptions : BenchOptions {
  int64_t processes = 0;
  int64_t length = 0;
  std::string reduction = "exact", gradients = "f32";

  Settings list() override {
    return extended(BenchOptions::list(),
                    {{"processes", &processes, in_range(0, 1024),
                      "measure 1, 2, 4 ... up to so many; 0: as many as --threads, at most 8"},
                     {"length", &length, in_range(0, 1 << 16), "positions of a sequence; 0: the paper's, 128 and 783"},
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
  double seconds = 0;  // of an update
  double bytes = 0;    // that a process sends
  double sum = 0;      // seconds of the same sum of gradients by itself
  double waited = 0;   // seconds that an update waits for the sum
};

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Of this process; all processes measure together.
Measured measure(const ScalingOptions& o, const Workload& w) {
  Communicator& all = processes();
  const AutoregressiveTransformer model(w.config, Key{1}, o.chosen_device());
  const bool mixture = w.config.outputs == 30;
  const auto loss = [&](const ByteBatch& batch, Key key) {
    const Tensor y = model(batch.tokens, key);
    return mixture ? scale(sum(logistic_mixture_nll(y, batch.targets)), 1e-4f) : cross_entropy(y, batch.targets);
  };
  Updater updater({model.parameters(), authors_options}, o.chosen_device(), Key{2}, loss_of<ByteBatch>(loss), o.sums());
  const int64_t own = parts / all.size(), each = w.batch / parts;
  std::vector<Slice> slices;
  for (int64_t part = all.rank() * own; part < (all.rank() + 1) * own; ++part) {
    std::vector<int32_t> tokens(static_cast<size_t>(each * w.length));
    const Key key = Key{3}.fold(static_cast<uint64_t>(part));
    for (size_t i = 0; i < tokens.size(); ++i)
      tokens[i] = static_cast<int32_t>(key.below(i, static_cast<uint32_t>(w.config.vocabulary)));
    const Indices of_part(Shape{each, w.length}, tokens);
    slices.push_back(slice_of(ByteBatch{of_part, of_part}, static_cast<double>(each), of_part.size()));
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

  std::vector<float> gradients(static_cast<size_t>(element_count(model.parameters())));
  const double sent = all.cost().bytes_sent;
  for (int64_t run = 0; run < o.runs + 1; ++run) {
    all.sum({});
    const double start = now();
    const int64_t at_once = all.floats_at_once();
    for (int64_t first = 0; first < std::ssize(gradients); first += at_once)
      all.start_sum(gradients.data() + first, std::min<int64_t>(at_once, std::ssize(gradients) - first), o.sums());
    all.finish();
    if (run > 0) sums.push_back(now() - start);
  }
  m.sum = median(sums);
  m.bytes = (all.cost().bytes_sent - sent) / static_cast<double>(o.runs + 1);
  return m;
}

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Measured, seconds, bytes, sum, waited)

// All workloads in so many processes, which mpirun starts.
std::vector<Measured> measured_by(const ScalingOptions& o, int64_t count) {
  std::vector<Measured> all;
  if (count == 1) {
    for (const Workload& w : workloads(o)) all.push_back(measure(o, w));
    return all;
  }
  const std::string program = program_path();
  check(!program.empty(), "bench scaling: the system does not say which file this program is");
  const std::string command = fmt::format(
      "mpirun --bind-to none --oversubscribe -n {} {} bench scaling --json --quiet --device cpu --precision {} "
      "--threads {} --runs {} --length {} --reduction {} --gradients {}",
      count, shell_quoted(program), o.precision, std::max<int64_t>(o.threads / count, 1), o.runs, o.length, o.reduction,
      o.gradients);
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
  Table measured(o, "scaling",
                 {"model", "processes", "threads each", "tokens/s", "ratio", "MB sent", "sum ms", "waited ms"},
                 std::bit_width(static_cast<uint64_t>(most)) * std::ssize(all_workloads));
  for (int64_t count = 1; count <= most; count *= 2) {
    const int64_t threads = std::max<int64_t>(o.threads / count, 1);
    const std::vector<Measured> all = measured_by(o, count);
    if (count == 1) one = all;
    for (size_t i = 0; i < all.size(); ++i) {
      const Workload& w = all_workloads[i];
      measured.row({w.name, std::to_string(count), std::to_string(threads),
                    fmt::format("{:.0f}", static_cast<double>(w.batch * w.length) / all[i].seconds),
                    fmt::format("{:.3f}", one[i].seconds / all[i].seconds), fmt::format("{:.1f}", all[i].bytes / 1e6),
                    fmt::format("{:.1f}", 1e3 * all[i].sum), fmt::format("{:.1f}", 1e3 * all[i].waited)});
    }
  }
  measured.finish();
  return 0;
}

}  // namespace

void add_scaling(Subcommand bench) {
  add_command<ScalingOptions>(bench, "scaling", "training in 1, 2, 4 ... processes", bench_scaling);
}

}  // namespace runnel
