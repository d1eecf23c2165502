// An LSTM and its loss against PyTorch; tests/golden/make.py writes the file, in float64.
#include "models/checkpoint.h"
#include "models/speech/lstm.h"
#include "ops/reductions.h"
#include "ops/speech/ctc_loss.h"
#include "tests/golden.h"

using namespace runnel;
using namespace runnel::test;

TEST_CASE("golden: an LSTM of two bidirectional layers and ctc_loss equal PyTorch's, with gradients") {
  const Golden golden("lstm");
  for (const Device device : devices()) {
    const Lstm model({.input_width = 5, .width = 4, .layers = 2}, Key{1}, device);
    Parameters parameters;
    model.append_parameters(parameters, "parameter");
    restore(golden.content, golden.path, parameters);
    Tensor x = golden.tensor("x").to(device);
    x.set_wants_grad();
    const auto indices = [&](const char* name) { return golden.indices(name).to(device); };
    Tape tape;
    const Tensor y = model(x, indices("lengths"));
    check_close(y, doubles(golden.tensor("y")), reduction);
    const Tensor losses = ctc_loss(y, indices("lengths"), indices("targets"), indices("target_lengths"));
    check_close(losses, doubles(golden.tensor("losses")), reduction);
    const Gradients gradients = tape.backward(sum(losses));
    check_close(gradients.of(x), doubles(golden.tensor("gradient.x")), reduction);
    for (const auto& [name, tensor] : parameters) {
      CAPTURE(name);
      const std::string own = "gradient" + name.substr(name.find('.'));
      CHECK(relative_distance(doubles(gradients.of(tensor)), doubles(golden.tensor(own))) < 1e-4);
    }
  }
}
