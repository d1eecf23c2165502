// runnel bench speech-layers: the layers that only speech has, forward and backward, at the sizes that others publish.
#include <fmt/format.h>

#include "apps/bench/bench.h"
#include "datasets/speech/fbank.h"
#include "engine/tape.h"
#include "models/speech/lstm.h"
#include "ops/reductions.h"
#include "ops/speech/ctc_loss.h"

namespace runnel {
namespace {

// T 150, U 40, 28 symbols, batch 64: the sizes of warp-ctc's benchmark.
double ctc_seconds(const BenchOptions& o) {
  constexpr int64_t batch = 64, frames = 150, labels = 40, symbols = 28;
  Tensor logits = uniform(Shape{batch, frames, symbols}, Key{1}, o.chosen_device());
  logits.set_wants_grad();
  std::vector<int32_t> targets;
  for (uint64_t i = 0; i < batch * labels; ++i)
    targets.push_back(static_cast<int32_t>(1 + Key{2}.below(i, symbols - 1)));
  const Indices all(Shape{batch, labels}, targets, o.chosen_device());
  return median_seconds(o, [&] {
    Tape tape;
    const Tensor loss = sum(ctc_loss(logits, {}, all, {}));
    tape.backward(loss);
  });
}

// The paper's Bi-LSTM, of 3 layers 320 wide, on 16 recordings of 400 frames.
double lstm_seconds(const BenchOptions& o) {
  const Lstm model({}, Key{1}, o.chosen_device());
  const Tensor x = uniform(Shape{16, 400, model.config.input_width}, Key{2}, o.chosen_device());
  return median_seconds(o, [&] {
    Tape tape;
    const Tensor y = sum(model(x));
    tape.backward(y);
  });
}

// Filterbank features of a minute of noise, 8,000 samples per second, on one core.
double fbank_seconds(const BenchOptions& o) {
  const std::vector<float> samples = uniform(Shape{60 * 8000}, Key{3}, Device::cpu).to_vector();
  const Fbank fbank({});
  return median_seconds(o, [&] { fbank(samples); });
}

int bench_layers(BenchOptions& o) {
  Table table(o, "speech-layers", {"layer", "ms"}, 3);
  table.row({"ctc_loss", fmt::format("{:.3f}", 1000 * ctc_seconds(o))});
  table.row({"bilstm", fmt::format("{:.1f}", 1000 * lstm_seconds(o))});
  table.row({"fbank", fmt::format("{:.1f}", 1000 * fbank_seconds(o))});
  table.finish();
  return 0;
}

}  // namespace

void add_speech_layers(Subcommand bench) {
  add_command<BenchOptions>(bench, "speech-layers",
                            "time of ctc_loss and of a Bi-LSTM, forward and backward, and of features", bench_layers);
}

}  // namespace runnel
