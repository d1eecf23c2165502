// The copy task of figure 2: a model reads a random sequence of ten symbols and a separator, and must write the
// sequence again. It needs no data and shows within minutes that causal linear attention can look something up.
#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <numeric>

#include "apps/bench.h"
#include "apps/training.h"
#include "datasets/copy_task.h"
#include "models/transformer.h"

namespace runnel {
namespace {

struct CopySettings : Settings {
  int64_t length = 128;

  template <class Each>
  void each(Each&& option) {
    Settings::each(option);
    option("length", length, in_range(5, 1 << 20), "positions: sequence, separator, copy and padding");
  }
};

struct EvaluateOptions : Machine {
  std::string model;
  int64_t sequences = 1000;
  int64_t show = 4;

  template <class Each>
  void each(Each&& option) {
    Machine::each(option);
    option("model", model, Allowed(), "a run folder or a .safetensors file");
    option("sequences", sequences, in_range(1, 1e9), "fresh sequences to measure on");
    option("show", show, in_range(0, 1000), "sequences to print with the model's copy");
  }
};

std::vector<CopySettings> presets() {
  CopySettings paper;  // the defaults
  CopySettings small;
  small.preset = "small";
  small.length = 64;
  small.layers = 2;
  small.width = 128;
  small.heads = 4;
  small.feed_forward = 512;
  small.steps = 4000;
  CopySettings tiny = small;
  tiny.preset = "tiny";
  tiny.length = 32;
  tiny.width = 64;
  tiny.feed_forward = 256;
  tiny.batch = 32;
  tiny.steps = 3000;
  tiny.lr_step = 2500;
  tiny.dropout = 0;
  return {paper, small, tiny};
}

std::vector<int32_t> argmax(const Tensor& logits) {
  const std::vector<float> values = logits.to_vector();
  const int64_t n = logits.shape()[-1];
  std::vector<int32_t> best;
  for (auto row = values.begin(); row != values.end(); row += n)
    best.push_back(static_cast<int32_t>(std::max_element(row, row + n) - row));
  return best;
}

// The positions at which the loss counts.
double asked(const CopyBatch& batch) {
  const std::vector<float> mask = batch.mask.to_vector();
  return std::accumulate(mask.begin(), mask.end(), 0.0);
}

int train_copy(CopySettings& settings) {
  const CopyTask data{.length = settings.length};
  Transformer model(settings.model(data.vocabulary(), data.vocabulary(), data.length),
                    key_for(settings.seed, Purpose::initialisation), settings.where());
  const auto mean_loss = [&](const CopyBatch& batch, std::optional<Key> dropout) {
    return cross_entropy(model(batch.tokens, dropout), batch.targets, batch.mask);
  };
  const auto drawn = [&](int64_t first, int64_t count, Device device) {
    const Key key = key_for(settings.seed, Purpose::training).fold(static_cast<uint64_t>(first / settings.batch));
    return data.batch(key.fold(0), count, device, first % settings.batch);
  };
  const Task task{.app = "copy",
                  .model = model,
                  .tokens = data.length,
                  .epoch = 0,
                  .bits = false,
                  .data = {},
                  .loss = [&](int64_t first, int64_t count,
                              Key key) { return mean_loss(drawn(first, count, model.device()), key.fold(1)); },
                  .weight = [&](int64_t first, int64_t count) { return asked(drawn(first, count, Device::cpu)); },
                  .validate =
                      [&] {
                        const int64_t part = settings.micro_batch ? settings.micro_batch : settings.batch;
                        double total = 0, weight = 0;
                        for (int64_t first = 0; first < settings.batch; first += part) {
                          const int64_t count = std::min(part, settings.batch - first);
                          const CopyBatch batch =
                              data.batch(key_for(settings.seed, Purpose::validation), count, model.device(), first);
                          total += asked(batch) * mean_loss(batch, {}).item();
                          weight += asked(batch);
                        }
                        return total / weight;
                      },
                  .preview = {}};
  return train(task, settings, to_json(settings));
}

std::string letters(const std::vector<int32_t>& symbols) {
  std::string text;
  for (const int32_t symbol : symbols) text += symbol == 0 ? '.' : static_cast<char>('a' + symbol - 1);
  return text;
}

// Reads the sequence and the separator, then goes on by itself, one symbol after another.
std::vector<int32_t> copy_of(const Transformer& model, const std::vector<int32_t>& sequence) {
  const auto copy_with = [&](auto twin) {
    for (const int32_t symbol : sequence) twin.read(Indices({1}, {symbol}, model.device()));
    std::vector<int32_t> written;
    for (int32_t symbol = 0; written.size() < sequence.size(); written.push_back(symbol))
      symbol = argmax(twin.step(Indices({1}, {symbol}, model.device())))[0];
    return written;
  };
  const bool stateful = model.config().attention != Attention::lsh;
  return stateful ? copy_with(RecurrentTransformer(model, 1)) : copy_with(RereadingTransformer(model, 1));
}

int evaluate_copy(EvaluateOptions& options) {
  const Checkpoint checkpoint = load_checkpoint(options.model, "copy", options.where());
  const CopyTask data{.length = checkpoint.model.config().max_length};
  const Key key = key_for(options.seed, Purpose::sampling);

  int64_t right = 0, asked = 0;
  for (int64_t done = 0; done < options.sequences;) {
    const int64_t size = std::min<int64_t>(64, options.sequences - done);
    const CopyBatch batch = data.batch(key.fold(static_cast<uint64_t>(done)), size);
    const std::vector<int32_t> guess = argmax(checkpoint.model(batch.tokens.to(options.where())));
    for (size_t i = 0; i < guess.size(); ++i)
      if (batch.mask.data()[i] > 0) {
        ++asked;
        right += guess[i] == batch.targets.data()[i];
      }
    done += size;
  }
  fmt::print("{}, step {}\n", checkpoint.path.string(), checkpoint.step);
  fmt::print("masked accuracy {:.3f}% on {} fresh sequences ({} of {} symbols)\n",
             100 * static_cast<double>(right) / static_cast<double>(asked), options.sequences, right, asked);

  for (int64_t i = 0; i < options.show; ++i) {
    const CopyBatch one = data.batch(key.fold(0).fold(static_cast<uint64_t>(i)), 1);
    const std::vector<int32_t> tokens = one.tokens.to_vector();
    const std::vector<int32_t> sequence(tokens.begin(), std::find(tokens.begin(), tokens.end(), 0));
    const std::vector<int32_t> written = copy_of(checkpoint.model, sequence);
    const auto wrong =
        std::inner_product(sequence.begin(), sequence.end(), written.begin(), 0, std::plus<>(), std::not_equal_to<>());
    fmt::print("in   {}\nout  {}  {} wrong\n", letters(sequence), letters(written), wrong);
  }
  return 0;
}

// The mean training loss over the last tenth of a metrics.csv.
double last_losses(const std::string& csv) {
  std::ifstream file(csv);
  std::vector<double> losses;
  std::string row;
  for (std::getline(file, row); std::getline(file, row);) losses.push_back(std::stod(row.substr(row.find(',') + 1)));
  const size_t count = (losses.size() + 9) / 10;
  return std::accumulate(losses.end() - static_cast<std::ptrdiff_t>(count), losses.end(), 0.0) /
         static_cast<double>(count);
}

struct ConvergenceOptions : Machine {
  std::string preset = "small";
  int64_t steps = 0;
  std::string out = "runs/convergence";

  template <class Each>
  void each(Each&& option) {
    Machine::each(option);
    option("preset", preset, one_of({"paper", "small", "tiny"}), "as in copy train");
    option("steps", steps, in_range(0), "updates; 0: as many as the preset has");
    option("out", out, Allowed(), "the folder for a run per attention, which it goes on with, and the plot");
  }
};

// The three attentions of the figure, one after the other, on the same batches.
int bench_convergence(ConvergenceOptions& options) {
  const std::vector<CopySettings> all = presets();
  const CopySettings& preset =
      *std::find_if(all.begin(), all.end(), [&](const CopySettings& s) { return s.preset == options.preset; });
  std::string series, losses;
  for (const std::string name : {"linear", "softmax", "lsh"}) {
    CopySettings settings = preset;
    static_cast<Machine&>(settings) = options;
    settings.attention = name;
    settings.out = (std::filesystem::path(options.out) / name).string();
    settings.resume = true;
    if (options.steps) settings.steps = options.steps;
    fmt::print("{} attention\n", name);
    if (const int status = train_copy(settings)) return status;
    const std::string csv = (std::filesystem::path(settings.out) / "metrics.csv").string();
    series +=
        (series.empty() ? "plot " : ", ") + quoted(csv) + " skip 1 using 1:2 with lines lw 2 title " + quoted(name);
    losses += fmt::format("{:<8} {:.6f}\n", name, last_losses(csv));
  }
  fmt::print("mean loss in nats over the last tenth of the updates\n{}", losses);
  const std::filesystem::path png = std::filesystem::path(options.out) / "convergence.png";
  plot(png, "set title 'copy task, preset " + options.preset +
                "'; set xlabel 'updates'; set ylabel 'nats'; "
                "set logscale y; " +
                series);
  fmt::print("{}\n", png.string());
  return 0;
}

}  // namespace

void add_convergence(Word bench, Command& chosen) {
  add_command<ConvergenceOptions>(bench, chosen, "convergence", "figure 2: the copy task's loss with each attention",
                                  bench_convergence);
}

void add_copy(Word program, Command& chosen) {
  const Word copy = program.add("copy", "the copy task (figure 2); needs no data");
  add_training<CopySettings>(copy, chosen, "train a model, with the paper's values unless told otherwise", presets(),
                             train_copy);
  add_command<EvaluateOptions>(copy, chosen, "evaluate", "masked accuracy, and some sequences in and out",
                               evaluate_copy);
}

}  // namespace runnel
