#include "tests/check.h"

#include "ops/reductions.h"
#include "ops/speech/ctc_loss.h"

using namespace runnel;
using namespace runnel::test;

namespace {

// What is left of an alignment when repeated symbols are merged and blanks are dropped.
std::vector<int32_t> spelled(const std::vector<int32_t>& alignment, int32_t blank) {
  std::vector<int32_t> labels;
  for (size_t t = 0; t < alignment.size(); ++t)
    if (alignment[t] != blank && (t == 0 || alignment[t] != alignment[t - 1])) labels.push_back(alignment[t]);
  return labels;
}

// The definition: the sum over all V^T alignments of a sequence's first `frames` frames.
double brute_force(const std::vector<double>& z, int64_t frames, int64_t symbols, const std::vector<int32_t>& labels,
                   int32_t blank) {
  double probability = 0;
  std::vector<int32_t> alignment(static_cast<size_t>(frames), 0);
  for (bool more = true; more;) {
    if (spelled(alignment, blank) == labels) {
      double product = 1;
      for (int64_t t = 0; t < frames; ++t) {
        double sum = 0;
        for (int64_t k = 0; k < symbols; ++k) sum += std::exp(z[static_cast<size_t>(t * symbols + k)]);
        product *= std::exp(z[static_cast<size_t>(t * symbols + alignment[static_cast<size_t>(t)])]) / sum;
      }
      probability += product;
    }
    more = false;
    for (int64_t t = 0; t < frames && !more; ++t) {
      int32_t& symbol = alignment[static_cast<size_t>(t)];
      more = ++symbol < symbols;
      if (!more) symbol = 0;
    }
  }
  return -std::log(probability);
}

// z[t][k] = ((3 t + 7 k) mod 11) / 5
Tensor patterned_logits(int64_t frames, int64_t symbols, Device device) {
  std::vector<float> z;
  for (int64_t t = 0; t < frames; ++t)
    for (int64_t k = 0; k < symbols; ++k) z.push_back(static_cast<float>((3 * t + 7 * k) % 11) / 5);
  return Tensor(Shape{1, frames, symbols}, z, device);
}

Indices labels_of(const std::vector<int32_t>& labels, Device device) {
  return Indices(Shape{1, std::ssize(labels)}, labels, device);
}

}  // namespace

TEST_CASE("ctc_loss: equals the sum over all alignments, for each blank and with lengths") {
  constexpr int64_t batch = 4, frames = 5, symbols = 4, most = 3;
  for (const Device device : devices())
    for (const int32_t blank : {0, 2, 3}) {
      CAPTURE(blank);
      const auto other = [&](int32_t n) { return (blank + 1 + n) % 4; };
      const Tensor z = random_tensor(Shape{batch, frames, symbols}, 3, -2, 2, device);
      const std::vector<int32_t> lengths{5, 4, 3, 5}, counts{3, 2, 0, 1};
      const std::vector<int32_t> targets{other(0), other(0), other(2), other(1), other(0), 99,
                                         99,       99,       99,       other(2), 99,       99};
      std::vector<double> expected;
      const std::vector<double> all = doubles(z);
      for (size_t b = 0; b < batch; ++b)
        expected.push_back(brute_force({all.begin() + static_cast<int64_t>(b) * frames * symbols, all.end()},
                                       lengths[b], symbols,
                                       {targets.begin() + static_cast<int64_t>(b) * most,
                                        targets.begin() + static_cast<int64_t>(b) * most + counts[b]},
                                       blank));
      const auto loss = [&](const std::vector<Tensor>& in) {
        return ctc_loss(in[0], Indices(Shape{batch}, lengths, device), Indices(Shape{batch, most}, targets, device),
                        Indices(Shape{batch}, counts, device), {.blank = blank});
      };
      check_close(loss({z}), expected, reduction);
      check_gradients(loss, {z});
    }
}

TEST_CASE("ctc_loss: published values") {
  for (const Device device : devices()) {
    // Of warp-ctc's tests: two frames, whose probabilities are softmax(.1, .6, .1, .1, .1).
    Tensor z = Tensor(Shape{1, 2, 5}, {.1f, .6f, .1f, .1f, .1f, .1f, .1f, .6f, .1f, .1f}, device);
    check_close(ctc_loss(z, {}, labels_of({1, 2}, device), {}), {2.462858}, rounding);
    const std::vector<std::pair<std::vector<int32_t>, double>> values{
        {{}, 14.744239}, {{1}, 10.340588}, {{1, 1}, 8.653510}, {{1, 2, 3}, 6.915166}, {{2, 2, 2, 2}, 11.816736}};
    for (const auto& [labels, loss] : values)
      check_close(ctc_loss(patterned_logits(8, 5, device), {}, labels_of(labels, device), {}), {loss}, rounding);
  }
}

TEST_CASE("ctc_loss: labels that do not fit into the frames") {
  for (const Device device : devices()) {
    Tensor z = patterned_logits(8, 5, device);
    z.set_wants_grad();
    const Indices five = labels_of({1, 1, 1, 1, 1}, device);  // which need four blanks between them
    for (const bool zero_infinity : {false, true}) {
      Tape tape;
      const Tensor loss = ctc_loss(z, {}, five, {}, {.zero_infinity = zero_infinity});
      CHECK(loss.to_vector()[0] == (zero_infinity ? 0 : INFINITY));
      const Gradients gradients = tape.backward(sum(loss));
      for (const float g : gradients.of(z).to_vector()) CHECK(g == 0);
    }
    const Indices none(Shape{1}, {0}, device);
    CHECK(ctc_loss(z, none, labels_of({}, device), {}).to_vector()[0] == 0);  // no frames spell no labels
    CHECK(ctc_loss(z, none, five, {}).to_vector()[0] == INFINITY);
    CHECK(ctc_loss(z, none, five, none).to_vector()[0] == 0);
  }
}

TEST_CASE("ctc_loss: gradients of large problems, and zeros behind the last frame") {
  for (const Device device : devices()) {
    const bool is_slow = device == Device::cuda && cuda_is_emulated();
    constexpr int64_t symbols = 5, most = 5, frames = 10;
    const int64_t batch = is_slow ? 5 : 65;
    std::vector<int32_t> lengths, counts;
    for (int64_t b = 0; b < batch; ++b) {
      counts.push_back(static_cast<int32_t>(b % (most + 1)));
      lengths.push_back(static_cast<int32_t>(std::min(frames, 2 * counts.back() + b % 4)));
    }
    Indices targets = random_indices(Shape{batch, most}, 4, symbols - 1, Device::cpu);
    std::vector<int32_t> labels = targets.to_vector();
    for (int32_t& label : labels) ++label;
    const auto loss = [&](const std::vector<Tensor>& in) {
      return ctc_loss(in[0], Indices(Shape{batch}, lengths, device), Indices(Shape{batch, most}, labels, device),
                      Indices(Shape{batch}, counts, device), {.zero_infinity = true});
    };
    Tensor z = random_tensor(Shape{batch, frames, symbols}, 5, -2, 2, device);
    check_gradients(loss, {z});
    z.set_wants_grad();
    Tape tape;
    const Tensor total = sum(loss({z}));
    const std::vector<float> dz = tape.backward(total).of(z).to_vector();
    for (int64_t b = 0; b < batch; ++b)
      for (int64_t t = lengths[static_cast<size_t>(b)]; t < frames; ++t)
        for (int64_t k = 0; k < symbols; ++k) CHECK(dz[static_cast<size_t>((b * frames + t) * symbols + k)] == 0);
  }
}

TEST_CASE("ctc_loss: long sequences, many labels, and logits of -1e30") {
  // Uniform frames: the number of alignments of U labels, no two neighbours alike, is binomial(T + U, 2 U).
  const auto log_binomial = [](double n, double k) {
    return std::lgamma(n + 1) - std::lgamma(k + 1) - std::lgamma(n - k + 1);
  };
  for (const Device device : devices()) {
    const bool is_slow = device == Device::cuda && cuda_is_emulated();
    const auto check_uniform = [&](int64_t frames, int64_t count) {
      CAPTURE(frames);
      std::vector<int32_t> labels;
      for (int64_t u = 0; u < count; ++u) labels.push_back(static_cast<int32_t>(1 + u % 3));
      Tensor z = Tensor::full(Shape{1, frames, 4}, 0.5f, device);
      z.set_wants_grad();
      Tape tape;
      const Tensor loss = ctc_loss(z, {}, labels_of(labels, device), {});
      const auto t = static_cast<double>(frames), u = static_cast<double>(count);
      check_close(loss, {t * std::log(4) - log_binomial(t + u, 2 * u)}, reduction);
      double sum_of_gradients = 0;
      for (const float g : tape.backward(sum(loss)).of(z).to_vector()) sum_of_gradients += g;
      CHECK(std::abs(sum_of_gradients) < 1e-3 * t);  // of each frame, probabilities less probabilities
    };
    check_uniform(is_slow ? 40 : 500, is_slow ? 17 : 256);
    check_uniform(is_slow ? 150 : 4000, is_slow ? 70 : 40);

    Tensor z = random_tensor(Shape{1, 6, 4}, 8, -1, 1, device);
    std::vector<float> values = z.to_vector();
    for (size_t t = 0; t < 6; ++t) values[t * 4 + 2] = -1e30f;
    z = Tensor(z.shape(), values, device);
    z.set_wants_grad();
    Tape tape;
    const Tensor loss = ctc_loss(z, {}, labels_of({1, 2, 3}, device), {});
    CHECK(loss.to_vector()[0] >= 1e30f);
    for (const float g : tape.backward(sum(loss)).of(z).to_vector()) CHECK(std::abs(g) <= 7);
  }
}

TEST_CASE("ctc_loss: impossible arguments") {
  const Tensor z(Shape{2, 3, 4});
  const Indices targets(Shape{2, 2}, {1, 2, 3, 1});
  check_fails([&] { ctc_loss(Tensor(Shape{2, 3}), {}, targets, {}); }, "ctc_loss: logits [2,3] are not [B,T,V]");
  check_fails([&] { ctc_loss(z, {}, Indices(Shape{1, 2}, {1, 2}), {}); }, "targets [1,2] are not [2,U]");
  check_fails([&] { ctc_loss(z, {}, targets, {}, {.blank = 4}); }, "blank 4 is not in [0, 4)");
  check_fails([&] { ctc_loss(z, {}, targets, {}, {.blank = 2}); }, "label 2 of sequence 0 is the blank");
  check_fails([&] { ctc_loss(z, {}, Indices(Shape{2, 1}, {1, 4}), {}); }, "label 4 of sequence 1");
  check_fails([&] { ctc_loss(z, Indices(Shape{2}, {3, 4}), targets, {}); }, "lengths 4 of sequence 1 is not in [0, 3]");
  check_fails([&] { ctc_loss(z, {}, targets, Indices(Shape{2}, {-1, 2})); }, "target_lengths -1 of sequence 0");
  check_fails([&] { ctc_loss(z, {}, targets, Indices(Shape{3}, {1, 1, 1})); }, "are not one number for each of 2");
}
