// Positive random features (FAVOR+, Choromanski et al. 2021): features whose dot product is on average the exponential
// of softmax attention. For normal w, E exp(w . u) = exp(|u|^2 / 2); with u = q + k,
//
//   exp(q . k) = E f(q) f(k),   f(x) = exp(w . x - |x|^2 / 2)
//
// and the mean is taken over the F rows of a projection. Softmax attention has q . k / sqrt(E): so each x is divided by
// E^(1/4) before. Since w . x - |x|^2 / 2 = |w|^2 / 2 - |w - x|^2 / 2, no feature is larger than exp(|w|^2 / 2): none
// overflows, whatever x, while |w|^2 < 177, and |w|^2 is E on average, with standard deviation sqrt(2 E). Nothing needs
// to be subtracted for that; for keys, nothing could be without changing how they weigh against each other.
//
// With y the features, s = E^(-1/4) and p = x w^T, the rule of the exponential is dp = s dy y and, by way of the norm,
// dx_r = -s^2 x_r sum_c dy_rc y_rc. The product has its own.
#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/cpu/loops.h"
#include "ops/kernels/lra.h"

namespace runnel {

void cpu::positive_random_features_forward(float* y, const float* p, const float* x, int64_t rows, int64_t features,
                                           int64_t e) {
  const float scale = 1 / std::sqrt(std::sqrt(static_cast<float>(e)));
  const float factor = 1 / std::sqrt(static_cast<float>(features));
  parallel_rows(rows, features, [=](int64_t r) {
    const float shift = 0.5f * scale * scale *
                        map_sum(
                            e, [](Lanes v) RUNNEL_INLINE { return v * v; }, x + r * e);
    map(
        y + r * features, features, [=](Lanes v) RUNNEL_INLINE { return factor * exp(scale * v - shift); },
        p + r * features);
  });
}

void cpu::positive_random_features_backward(float* dp, float* dx, const float* dy, const float* y, const float* x,
                                            int64_t rows, int64_t features, int64_t e) {
  const float scale = 1 / std::sqrt(std::sqrt(static_cast<float>(e)));
  parallel_rows(rows, features, [=](int64_t r) {
    const float *const g = dy + r * features, *const feature = y + r * features;
    const float total = map_sum(
        features, [](Lanes p, Lanes q) RUNNEL_INLINE { return p * q; }, g, feature);
    map(
        dp + r * features, features, [=](Lanes p, Lanes q) RUNNEL_INLINE { return scale * (p * q); }, g, feature);
    map(
        dx + r * e, e, [=](Lanes v) RUNNEL_INLINE { return -scale * scale * total * v; }, x + r * e);
  });
}

// Gram and Schmidt take the lengths away; those of other normal rows are put in their place, so that each row by itself
// is a normal one.
void cpu::random_projection(float* w, Key key, int64_t features, int64_t e) {
  const auto normal_row = [e](Key from, int64_t r) {
    std::vector<double> row;
    for (int64_t i = 0; i < e; ++i) row.push_back(static_cast<double>(from.normal(static_cast<uint64_t>(r * e + i))));
    return row;
  };
  const auto dot = [](const std::vector<double>& a, const std::vector<double>& b) {
    double sum = 0;
    for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
    return sum;
  };
  std::vector<std::vector<double>> block;  // orthonormal
  for (int64_t r = 0; r < features; ++r) {
    if (r % e == 0) block.clear();
    std::vector<double> row = normal_row(key.fold(0), r);
    for (const std::vector<double>& other : block) {
      const double along = dot(row, other);
      for (size_t i = 0; i < row.size(); ++i) row[i] -= along * other[i];
    }
    const double length = std::sqrt(dot(row, row));
    for (double& number : row) number /= length;
    const std::vector<double> measure = normal_row(key.fold(1), r);
    const double new_length = std::sqrt(dot(measure, measure));
    for (size_t i = 0; i < row.size(); ++i)
      w[r * e + static_cast<int64_t>(i)] = static_cast<float>(new_length * row[i]);
    block.push_back(std::move(row));
  }
}

}  // namespace runnel
