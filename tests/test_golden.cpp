// A two-layer model against PyTorch: logits, loss, every gradient and ten RAdam updates, and checkpoints of the program
// against the authors' library. The files are written by tests/golden/make.py and interchange.py, in float64.
#include <fstream>
#include <iterator>

#include "models/checkpoint.h"
#include "models/optimizer.h"
#include "models/safetensors.h"
#include "ops/elementwise.h"
#include "ops/losses.h"
#include "ops/reductions.h"
#include "tests/golden.h"

using namespace runnel;
using namespace runnel::test;

namespace {

std::vector<double> difference(const Tensor& a, const Tensor& b) {
  std::vector<double> x = doubles(a), y = doubles(b);
  for (size_t i = 0; i < x.size(); ++i) x[i] -= y[i];
  return x;
}

template <class Loss>
void check_golden(const std::string& file, int64_t vocabulary, int64_t outputs, Loss loss_of) {
  const Golden golden(file);
  const AutoregressiveTransformer model(
      {.encoder = {.layers = 2, .heads = 2, .head_dim = 8, .feed_forward = 32, .dropout = 0},
       .vocabulary = vocabulary,
       .outputs = outputs,
       .max_length = 13},
      Key{1});
  const Parameters parameters = model.parameters();
  Parameters start;
  for (const auto& [name, tensor] : parameters) start.push_back({"parameter." + name, tensor});
  restore(golden.content, golden.path, start);

  const Indices tokens = golden.indices("tokens");
  Adam optimizer(parameters, {.lr = 1e-2, .rectify = true, .weight_decay = 0.01, .clip = 1});
  for (int step = 1; step <= 10; ++step) {
    Tape tape;
    const Tensor logits = model(tokens);
    const Tensor loss = loss_of(logits, golden);
    const Gradients gradients = tape.backward(loss);
    if (step == 1) {
      check_close(logits, doubles(golden.tensor("logits")), reduction);
      check_close(loss, doubles(golden.tensor("loss")), rounding);
      for (const auto& [name, tensor] : parameters) {
        CAPTURE(name);
        CHECK_LE(relative_distance(doubles(gradients.of(tensor)), doubles(golden.tensor("gradient." + name))),
                 reduction);
      }
    }
    optimizer.step(gradients);
  }
  // What ten updates changed. It is some thousandths of the parameters, so float keeps about four digits of it.
  for (const auto& [name, tensor] : parameters) {
    CAPTURE(name);
    const Tensor before = golden.tensor("parameter." + name);
    CHECK_LE(relative_distance(difference(tensor, before), difference(golden.tensor("updated." + name), before)), 1e-3);
  }
}

}  // namespace

TEST_CASE("golden: a model with masked cross-entropy equals PyTorch's") {
  check_golden("cross_entropy", 11, 11, [](const Tensor& logits, const Golden& golden) {
    return cross_entropy(logits, golden.indices("targets"), golden.tensor("mask"));
  });
}

TEST_CASE("golden: a model with a mixture of logistics equals PyTorch's") {
  check_golden("logistic_mixture", 256, 30, [](const Tensor& params, const Golden& golden) {
    const Tensor nll = logistic_mixture_nll(params, golden.indices("targets"));
    return scale(sum(nll), 1.0f / static_cast<float>(nll.size()));
  });
}

TEST_CASE("golden: checkpoints give the same logits in the authors' library") {
  const Golden golden("interchange");
  for (const std::string name : {"line", "grid", "colours", "softmax"}) {
    CAPTURE(name);
    const AutoregressiveTransformer model = load_model<AutoregressiveTransformer>(
        read_checkpoint(source_dir() / "tests/golden" / ("interchange_" + name + ".safetensors")));
    check_close(model(golden.indices(name + ".tokens")), doubles(golden.tensor(name + ".logits")), reduction);
  }
}

TEST_CASE("golden: the Python in docs/run-folder.md is what computed the golden logits") {
  if (!has_sources()) return;
  std::ifstream file(source_dir() / "docs/run-folder.md");
  const std::string page{std::istreambuf_iterator<char>(file), {}}, fence = "```";
  const std::string executed = Golden("interchange").content.metadata.at("lines");
  // If not: run tests/golden/interchange.py, which executes them.
  CHECK(page.find(fence + "python\n" + executed + fence) != std::string::npos);
}
