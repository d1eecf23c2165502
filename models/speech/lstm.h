// A stack of long short-term memory layers, in one direction or both: equations, names, layout and initial values are
// those of PyTorch's nn.LSTM with batch_first.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "models/layers.h"
#include "models/settings.h"

namespace runnel {

struct LstmConfig {
  int64_t input_width = 40;
  int64_t width = 320;  // H, of each direction
  int64_t layers = 3;
  bool bidirectional = true;
  double dropout = 0;  // of each layer's result but the last's

  int64_t output_width() const { return width * (bidirectional ? 2 : 1); }
};

struct Lstm {
  struct Direction {
    Tensor weight_ih, weight_hh, bias_ih, bias_hh;  // [4H,in] [4H,H] [4H] [4H]
  };

  LstmConfig config;
  std::vector<std::vector<Direction>> layers;

  // Throws Error if the configuration is impossible.
  Lstm(const LstmConfig& c, Key init, Device device = Device::cpu);

  // lengths as in `lstm` (ops.h); with a key, dropout is drawn from it (training).
  Tensor operator()(Tensor x, const Indices& lengths = {},
                    std::optional<Key> key = {}) const;  // [B,T,in] [B] -> [B,T,output_width]
  void append_parameters(Parameters& all, const std::string& prefix) const;
};

}  // namespace runnel
