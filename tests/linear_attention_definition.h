// Linear attention by its definition, in double: values and gradients, for the tests of all its forms.
#pragma once
#include <algorithm>
#include <array>
#include <bit>

#include "ops/linear_attention.h"
#include "tests/check.h"

namespace runnel::test {

struct Case {
  int64_t b, l, h, e, m;
  Tensor q, k, v;
  Case(int64_t batch, int64_t length, int64_t heads, int64_t feature, int64_t value, Device device)
      : b(batch),
        l(length),
        h(heads),
        e(feature),
        m(value),
        q(random_tensor(Shape{b, l, h, e}, 1, -2, 2, device)),
        k(random_tensor(Shape{b, l, h, e}, 2, -2, 2, device)),
        v(random_tensor(Shape{b, l, h, m}, 3, -2, 2, device)) {}
  size_t at(int64_t n, int64_t i, int64_t head, int64_t width, int64_t c) const {
    return static_cast<size_t>(((n * l + i) * h + head) * width + c);
  }
};

inline double phi(double x) { return x > 0 ? x + 1 : std::exp(x); }

// The definition, O(L^2) in double: y_i = sum_{j<=i} (phi(q_i) . phi(k_j)) v_j / (sum_{j<=i} phi(q_i) . phi(k_j) + eps)
inline std::vector<double> reference(const Case& x) {
  auto q = doubles(x.q), k = doubles(x.k);
  const auto v = doubles(x.v);
  for (auto* features : {&q, &k})
    for (double& number : *features) number = phi(number);
  std::vector<double> y(static_cast<size_t>(x.v.size()), 0);
  for (int64_t n = 0; n < x.b; ++n)
    for (int64_t head = 0; head < x.h; ++head)
      for (int64_t i = 0; i < x.l; ++i) {
        double normaliser = normaliser_eps;
        for (int64_t j = 0; j <= i; ++j) {
          double dot = 0;
          for (int64_t c = 0; c < x.e; ++c) dot += q[x.at(n, i, head, x.e, c)] * k[x.at(n, j, head, x.e, c)];
          normaliser += dot;
          for (int64_t c = 0; c < x.m; ++c) y[x.at(n, i, head, x.m, c)] += dot * v[x.at(n, j, head, x.m, c)];
        }
        for (int64_t c = 0; c < x.m; ++c) y[x.at(n, i, head, x.m, c)] /= normaliser;
      }
  return y;
}

// [B,L,H,W] -> positions [begin, end)
inline Tensor positions(const Tensor& x, int64_t begin, int64_t end) {
  const Shape shape = x.shape();
  const std::vector<float> all = x.to_vector();
  const int64_t row = shape[2] * shape[3];
  std::vector<float> part;
  for (int64_t n = 0; n < shape[0]; ++n)
    part.insert(part.end(), all.begin() + (n * shape[1] + begin) * row, all.begin() + (n * shape[1] + end) * row);
  return Tensor(Shape{shape[0], end - begin, shape[2], shape[3]}, part, x.device());
}

// sum_i x_i c_i for random numbers c.
inline Tensor random_dot(const Tensor& x, uint64_t seed) {
  return weighted_sum(x, random_tensor(Shape{x.size(), 1}, seed, -1, 1, x.device()));
}

// phi' is continuous at 0, but phi'' does not exist there: differences keep off it.
inline Tensor off_zero(const Tensor& t) {
  std::vector<float> values = t.to_vector();
  for (float& value : values) value += value < 0 ? -0.1f : 0.1f;
  return Tensor(t.shape(), values, t.device());
}

// Any of linear_attention's forms: a feature map, causal or not, all keys or some.
struct Form {
  int64_t b, l, s, h, e, m;
  bool causal;
  FeatureMap map;
  Tensor q, k, v;
  Indices lengths;  // or empty
  Form(const std::array<int64_t, 6>& sizes, bool is_causal, FeatureMap feature_map, bool padded, Device device)
      : b(sizes[0]),
        l(sizes[1]),
        s(is_causal ? sizes[1] : sizes[2]),
        h(sizes[3]),
        e(sizes[4]),
        m(sizes[5]),
        causal(is_causal),
        map(feature_map),
        q(features(l, 1, device)),
        k(features(s, 2, device)),
        v(random_tensor(Shape{b, s, h, m}, 3, -2, 2, device)) {
    if (!padded) return;
    std::vector<int32_t> some;  // none, all, and what is between
    for (int64_t n = 0; n < b; ++n) some.push_back(static_cast<int32_t>(n == 1 ? 0 : n == 2 ? s : s - s / (n + 2)));
    lengths = Indices(Shape{b}, some, device);
  }
  // In [-2, 2), off the kinks of the maps by 0.1, or positive if they are to be features already.
  Tensor features(int64_t length, uint64_t seed, Device device) const {
    std::vector<float> values = random_tensor(Shape{b, length, h, e}, seed, -2, 2).to_vector();
    for (float& value : values)
      value = map == FeatureMap::identity ? std::abs(value) + 0.1f : value + (value < 0 ? -0.1f : 0.1f);
    return Tensor(Shape{b, length, h, e}, values, device);
  }
  int64_t keys(int64_t n) const { return lengths ? lengths.to_vector()[static_cast<size_t>(n)] : s; }
  Tensor operator()(const Tensor& queries, const Tensor& keys_of, const Tensor& values) const {
    return linear_attention(queries, keys_of, values, {causal, lengths}, map);
  }
  double phi(double x) const {
    return map == FeatureMap::identity ? x : map == FeatureMap::relu ? std::max(x, 0.0) + 1e-3 : test::phi(x);
  }
  double slope(double x) const { return x > 0 ? 1 : map == FeatureMap::elu_plus_one ? std::exp(x) : 0; }
};

// By the definition, O(L S) in double: y, and for L = sum_i dy_i . y_i the gradients of q, k and v.
struct Reference {
  std::vector<double> y, dq, dk, dv;
  Reference(const Form& x, const std::vector<double>& dy)
      : y(dy.size(), 0),
        dq(static_cast<size_t>(x.q.size()), 0),
        dk(static_cast<size_t>(x.k.size()), 0),
        dv(static_cast<size_t>(x.v.size()), 0) {
    auto q = doubles(x.q), k = doubles(x.k);
    const auto v = doubles(x.v);
    for (auto* features : {&q, &k})
      for (double& number : *features) number = x.phi(number);
    const auto e = static_cast<size_t>(x.e), m = static_cast<size_t>(x.m);
    for (int64_t n = 0; n < x.b; ++n)
      for (int64_t head = 0; head < x.h; ++head)
        for (int64_t i = 0; i < x.l; ++i) {
          const auto row = [&](int64_t t, int64_t length, int64_t width) {
            return static_cast<size_t>(((n * length + t) * x.h + head) * width);
          };
          const size_t qi = row(i, x.l, x.e), yi = row(i, x.l, x.m);
          const int64_t seen = x.causal ? std::min(x.keys(n), i + 1) : x.keys(n);
          std::vector<double> p(static_cast<size_t>(seen), 0);
          double normaliser = normaliser_eps, d = 0;
          for (size_t j = 0; j < p.size(); ++j) {
            const size_t kj = row(static_cast<int64_t>(j), x.s, x.e);
            for (size_t c = 0; c < e; ++c) p[j] += q[qi + c] * k[kj + c];
            normaliser += p[j];
          }
          for (size_t c = 0; c < m; ++c) {
            for (size_t j = 0; j < p.size(); ++j)
              y[yi + c] += p[j] / normaliser * v[row(static_cast<int64_t>(j), x.s, x.m) + c];
            d += dy[yi + c] * y[yi + c];
          }
          for (size_t j = 0; j < p.size(); ++j) {
            const size_t kj = row(static_cast<int64_t>(j), x.s, x.e), vj = row(static_cast<int64_t>(j), x.s, x.m);
            double slope = -d;
            for (size_t c = 0; c < m; ++c) {
              slope += dy[yi + c] * v[vj + c];
              dv[vj + c] += p[j] / normaliser * dy[yi + c];
            }
            for (size_t c = 0; c < e; ++c) {
              dq[qi + c] += slope / normaliser * k[kj + c];
              dk[kj + c] += slope / normaliser * q[qi + c];
            }
          }
        }
    const auto by_slope = [&x](std::vector<double>& dx, const std::vector<double>& at) {
      for (size_t i = 0; i < dx.size(); ++i) dx[i] *= x.slope(at[i]);
    };
    by_slope(dq, doubles(x.q));
    by_slope(dk, doubles(x.k));
  }
};

inline const std::vector<FeatureMap> all_maps = {FeatureMap::elu_plus_one, FeatureMap::relu, FeatureMap::identity};

}  // namespace runnel::test
