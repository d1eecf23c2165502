#include "engine/random.h"

#include <cmath>

namespace runnel {

float Key::normal(uint64_t i) const {
  const double radius = std::sqrt(-2 * std::log(static_cast<double>(uniform(2 * i))));
  return static_cast<float>(radius * std::cos(2 * M_PI * uniform(2 * i + 1)));
}

}  // namespace runnel
