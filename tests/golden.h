// Files of tests/golden/: numbers of other programs.
#pragma once
#include <cmath>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "models/safetensors.h"
#include "tests/check.h"
#include "tests/paths.h"

namespace runnel::test {

struct Golden {
  std::filesystem::path path;
  SafeTensors content = load_safetensors(path);
  std::map<std::string, Tensor> by_name;

  explicit Golden(const std::string& name) : path((source_dir() / "tests/golden" / (name + ".safetensors")).string()) {
    for (const auto& [key, tensor] : content.tensors) by_name[key] = tensor;
  }
  Tensor tensor(const std::string& name) const {
    REQUIRE_MESSAGE(by_name.count(name), name);
    return by_name.at(name);
  }
  Indices indices(const std::string& name) const {
    const auto values = tensor(name).to_vector();
    return Indices(tensor(name).shape(), {values.begin(), values.end()});
  }
};

// Relative to the largest magnitude of the reference, however small that is.
inline double relative_distance(const std::vector<double>& actual, const std::vector<double>& reference) {
  double largest = 1e-30;
  for (const double x : reference) largest = std::max(largest, std::abs(x));
  std::vector<double> a = actual, r = reference;
  for (double& x : a) x /= largest;
  for (double& x : r) x /= largest;
  return distance(a, r);
}

}  // namespace runnel::test
