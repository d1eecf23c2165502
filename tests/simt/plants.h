// Kernels with a planted bug, and some without: plants.cu has them, plant.cpp runs one, test_detector.cpp reads the
// report.
#pragma once
#include <vector>

struct Buffers {  // device memory
  static constexpr int size = 128;
  float* x;    // 0, 1, 2, ...
  float* out;  // zeros
};

struct Plant {
  const char* name;
  void (*run)(const Buffers& buffers);
  float (*expected)(int i);  // in out
};
extern const std::vector<Plant> plants;
