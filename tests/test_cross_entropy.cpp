#include <utility>

#include "ops/elementwise.h"
#include "ops/losses.h"
#include "tests/check.h"

using namespace runnel;
using namespace runnel::test;

namespace {

// -log softmax(z)[target] of each row.
std::vector<double> reference(const std::vector<double>& z, const std::vector<int32_t>& targets) {
  const size_t rows = targets.size(), v = z.size() / rows;
  std::vector<double> nll;
  for (size_t r = 0; r < rows; ++r) {
    double sum = 0;
    for (size_t i = 0; i < v; ++i) sum += std::exp(z[r * v + i] - z[r * v]);
    nll.push_back(std::log(sum) + z[r * v] - z[r * v + static_cast<size_t>(targets[r])]);
  }
  return nll;
}

double mean(const std::vector<double>& nll, const std::vector<double>& mask) {
  double total = 0, weight = 0;
  for (size_t r = 0; r < nll.size(); ++r) {
    total += mask[r] * nll[r];
    weight += mask[r];
  }
  return total / weight;
}

// Whether the probabilities of the categories up to this one first reach u with it, but for the rounding of their sums,
// in which devices differ.
bool is_drawn_at(double u, const float* logits, size_t categories, int32_t category) {
  double total = 0, after = 0;
  for (size_t i = 0; i < categories; ++i) total += std::exp(static_cast<double>(logits[i] - logits[0]));
  for (size_t i = 0; i < categories; ++i) {
    const double before = after;
    after += std::exp(static_cast<double>(logits[i] - logits[0])) / total;
    if (std::cmp_equal(i, category)) return before - reduction <= u && u <= after + reduction;
  }
  return false;
}

}  // namespace

TEST_CASE("categorical_nll is -log softmax at each position, cross_entropy its masked mean") {
  for (Device device : devices())
    for (int64_t v : {1, 3, 11, 65, 257})
      for (int64_t rows : {1, 31, 66}) {
        CAPTURE(v);
        CAPTURE(rows);
        const Tensor logits = random_tensor(Shape{rows, v}, 1, -5, 5, device);
        const Indices targets = random_indices(Shape{rows}, 2, static_cast<uint32_t>(v), device);
        const Tensor mask = random_tensor(Shape{rows}, 3, 0, 2, device);
        const std::vector<double> nll = reference(doubles(logits), targets.to_vector());
        check_close(categorical_nll(logits, targets), nll, rounding);
        check_close(cross_entropy(logits, targets, mask), {mean(nll, doubles(mask))}, rounding);
        check_close(cross_entropy(logits, targets), {mean(nll, std::vector<double>(nll.size(), 1))}, rounding);
      }
}

TEST_CASE("cross_entropy: gradients, and none where the mask is zero") {
  for (Device device : devices()) {
    const Indices targets = random_indices(Shape{3, 5}, 2, 7, device);
    const Tensor mask(Shape{3, 5}, {1, 0, 1, 1, 0, 0, 0, 2, 1, 1, 0, 1, 1, 0, 1}, device);
    check_gradients([&](const std::vector<Tensor>& x) { return cross_entropy(x[0], targets, mask); },
                    {random_tensor(Shape{3, 5, 7}, 1, -2, 2, device)}, {.h = 0.05});
    check_gradients([&](const std::vector<Tensor>& x) { return scale(cross_entropy(x[0], targets), 15); },
                    {random_tensor(Shape{3, 5, 7}, 1, -2, 2, device)}, {.h = 0.05});
    check_gradients([&](const std::vector<Tensor>& x) { return categorical_nll(x[0], targets); },
                    {random_tensor(Shape{3, 5, 7}, 1, -2, 2, device)}, {.h = 0.05});

    const Tensor logits = random_tensor(Shape{3, 5, 7}, 1, -2, 2, device).set_wants_grad();
    Tape tape;
    const auto dlogits = tape.backward(cross_entropy(logits, targets, mask)).of(logits).to_vector();
    for (size_t i = 0; i < 7; ++i) CHECK(dlogits[7 + i] == 0);
  }
}

TEST_CASE("cross_entropy takes logits whose exponentials overflow, and minus infinity for the impossible") {
  for (Device device : devices()) {
    const Tensor large(Shape{2, 3}, {1000, 999, -1000, -2000, -2001, -INFINITY}, device);
    check_close(cross_entropy(large, Indices(Shape{2}, {1, 0}, device)), {0.5 + std::log1p(std::exp(-1))}, rounding);
  }
}

TEST_CASE("categorical_sample draws from the distribution of the loss, at any temperature") {
  const int64_t v = 256;
  const std::vector<float> row = random_tensor(Shape{v}, 5, -4, 4).to_vector();
  for (Device device : devices()) {
    const int64_t draws = device == Device::cuda && cuda_is_emulated() ? 1000 : 20000;  // the emulator is slow
    std::vector<Key> keys;
    for (int64_t i = 0; i < draws; ++i) keys.push_back(Key{99}.fold(static_cast<uint64_t>(i)));
    std::vector<float> values;
    for (int64_t i = 0; i < draws; ++i) values.insert(values.end(), row.begin(), row.end());
    for (float temperature : {1.0f, 0.3f}) {
      CAPTURE(temperature);
      double total = 0;
      std::vector<double> probability;
      for (const float z : row) total += std::exp(static_cast<double>(z / temperature));
      for (const float z : row) probability.push_back(std::exp(static_cast<double>(z / temperature)) / total);
      check_frequencies(
          categorical_sample(Tensor(Shape{draws, v}, values, device), Keys(Shape{draws}, keys, device), temperature)
              .to_vector(),
          probability);
    }
  }
}

TEST_CASE("categorical_sample: nothing in, nothing out; a row draws what its key says, whatever is beside it") {
  CHECK(categorical_sample(Tensor(Shape{0, 5}), Keys(Shape{0})).size() == 0);
  std::vector<Key> keys;
  for (uint64_t i = 0; i < 33; ++i) keys.push_back(Key{i});
  const std::vector<float> values = random_tensor(Shape{33, 65}, 4, -3, 3).to_vector();
  const std::vector<float> tenth(values.begin() + 650, values.begin() + 715);
  for (Device device : devices()) {
    const Tensor logits(Shape{33, 65}, values, device);
    const Keys of_rows(Shape{33}, keys, device);
    const auto all = categorical_sample(logits, of_rows).to_vector();
    CHECK(categorical_sample(Tensor(Shape{1, 65}, tenth, device), Keys(Shape{1}, {keys[10]}, device)).to_vector()[0] ==
          all[10]);
    const auto folded = categorical_sample(logits, of_rows, 1, Indices(Shape{1}, {7}, device)).to_vector();
    CHECK(categorical_sample(Tensor(Shape{1, 65}, tenth, device), Keys(Shape{1}, {keys[10].fold(7)}, device))
              .to_vector()[0] == folded[10]);
    for (size_t r = 0; r < 33; ++r) {
      CHECK(is_drawn_at(keys[r].uniform(0), &values[65 * r], 65, all[r]));
      CHECK(is_drawn_at(keys[r].fold(7).uniform(0), &values[65 * r], 65, folded[r]));
    }
    CHECK(all != folded);
    // What is impossible is never drawn.
    const Tensor one(Shape{1, 3}, {-INFINITY, 2, -INFINITY}, device);
    for (const Key& key : keys) CHECK(categorical_sample(one, Keys(Shape{1}, {key}, device)).to_vector()[0] == 1);
  }
}

TEST_CASE("cross_entropy says what does not fit") {
  const Tensor logits = random_tensor(Shape{2, 3, 4}, 1);
  check_fails(
      [&] {
        cross_entropy(logits, Indices(Shape{2, 4}, std::vector<int32_t>(8)));
      },
      "cross_entropy: targets [2,4] do not match logits [2,3,4]");
  check_fails([&] { cross_entropy(logits, Indices(Shape{2, 3}, {0, 1, 2, 3, 4, 0})); }, "target 4 is not in [0, 4)");
  check_fails([&] { cross_entropy(logits, Indices(Shape{2, 3}, {0, 1, 2, 3, -1, 0})); }, "target -1 is not in [0, 4)");
  check_fails(
      [&] {
        cross_entropy(logits, Indices(Shape{2, 3}, std::vector<int32_t>(6)), random_tensor(Shape{6}, 1));
      },
      "mask [6] does not match targets [2,3]");
  check_fails([&] { categorical_nll(logits, Indices(Shape{6}, std::vector<int32_t>(6))); },
              "categorical_nll: targets [6] do not match logits [2,3,4]");
  check_fails([&] { categorical_nll(logits, Indices(Shape{2, 3}, {0, 1, 2, 3, 4, 0})); }, "target 4 is not in [0, 4)");
  check_fails([&] { categorical_sample(logits, Keys(Shape{5})); }, "5 keys do not match logits [2,3,4]");
  check_fails([&] { categorical_sample(logits, Keys(Shape{6}), 0); }, "temperature 0 is not positive");
  check_fails([&] { categorical_sample(logits, Keys(Shape{6}), 1, Indices(Shape{2})); }, "position [2] is not one");
  check_fails([&] { categorical_sample(Tensor(Shape{2, 0}), Keys(Shape{2})); }, "logits [2,0] of no categories");
}
