// Causal linear attention (eq. 7 to 12 of the paper) three times: with general ops by its definition as masked
// products, with general ops as a running sum of outer products, and as the op of this library. The numbers and the
// gradients are the same; time and memory are not.
#include <runnel/engine/memory.h>
#include <runnel/engine/random.h>
#include <runnel/engine/tape.h>
#include <runnel/ops/ops.h>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <functional>

using namespace runnel;

using Attention = std::function<Tensor(const Tensor& q, const Tensor& k, const Tensor& v)>;  // each [B,L,H,E]

// phi(q) phi(k)^T of all pairs, of which those with j <= i count: time and memory grow with L^2.
Tensor by_products(const Tensor& q, const Tensor& k, const Tensor& v) {
  const auto heads_first = [](const Tensor& x) { return transpose(x, {0, 2, 1, 3}); };  // [B,H,L,E]
  const int64_t length = q.shape()[1];
  Tensor mask(Shape{length, length});
  for (int64_t i = 0; i < length; ++i)
    for (int64_t j = 0; j < length; ++j) mask.data()[i * length + j] = j <= i ? 1.0f : 0.0f;
  const Tensor weights = mask * matmul(heads_first(elu_plus_one(q)), heads_first(elu_plus_one(k)), false, true);
  return heads_first(matmul(weights, heads_first(v)) / sum(weights, -1, true));
}

// S_i = sum_{j <= i} phi(k_j) v_j^T, all of which are kept: time and memory grow with L E M.
Tensor by_states(const Tensor& q, const Tensor& k, const Tensor& v) {
  const auto with_axis = [](const Tensor& x, int at) {  // [B,L,H,E] -> [B,L,H,E,1] or [B,L,H,1,E]
    const Shape& s = x.shape();
    return reshape(x, at == 4 ? Shape{s[0], s[1], s[2], s[3], 1} : Shape{s[0], s[1], s[2], 1, s[3]});
  };
  const Tensor phi_q = elu_plus_one(q), phi_k = elu_plus_one(k);
  const Tensor states = cumulative_sum(with_axis(phi_k, 4) * with_axis(v, 3), 1);  // [B,L,H,E,M]
  const Tensor sums = cumulative_sum(phi_k, 1);                                    // [B,L,H,E]
  return sum(with_axis(phi_q, 4) * states, 3) / sum(phi_q * sums, -1, true);
}

Tensor fused(const Tensor& q, const Tensor& k, const Tensor& v) { return linear_attention(q, k, v); }

int main() {
  const Shape shape{2, 256, 4, 32};
  const auto random = [&](uint64_t seed) {
    std::vector<float> values(static_cast<size_t>(shape.size()));
    for (size_t i = 0; i < values.size(); ++i) values[i] = Key{seed}.normal(i);
    return Tensor(shape, values).set_wants_grad();
  };
  const Tensor q = random(1), k = random(2), v = random(3), c = detach(random(4));

  std::vector<std::vector<float>> expected;  // of the op: y, dq, dk, dv
  float worst = 0;
  std::printf("%-28s %12s %12s %22s\n", "", "ms", "peak in MB", "differs by at most");
  for (const auto& [name, attention] : std::vector<std::pair<const char*, Attention>>{
           {"linear_attention", fused}, {"masked products", by_products}, {"running sum of states", by_states}}) {
    double fastest = 1e9;
    std::vector<std::vector<float>> found;
    reset_peak(Device::cpu);
    const int64_t before = memory_use(Device::cpu).live;
    for (int i = 0; i < 3; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      Tape tape;
      const Tensor y = attention(q, k, v);
      const Gradients gradients = tape.backward(sum(y * c));
      fastest = std::min(fastest,
                         std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count());
      found = {y.to_vector(), gradients.of(q).to_vector(), gradients.of(k).to_vector(), gradients.of(v).to_vector()};
    }
    if (expected.empty()) expected = found;
    float difference = 0;
    for (size_t n = 0; n < found.size(); ++n)
      for (size_t i = 0; i < found[n].size(); ++i)
        difference = std::max(difference, std::abs(found[n][i] - expected[n][i]));
    worst = std::max(worst, difference);
    std::printf("%-28s %12.2f %12.1f %22.1e\n", name, fastest,
                static_cast<double>(memory_use(Device::cpu).peak - before) / 1e6, difference);
  }
  return worst < 1e-3f ? 0 : 1;
}
