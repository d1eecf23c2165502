#include "ops/cpu/dropout.h"
#include "ops/layers.h"
#include "tests/check.h"

using namespace runnel;
using namespace runnel::test;

namespace {

// The definition: element i is kept if 16 of its word's 32 bits say so.
std::vector<double> reference(const std::vector<double>& x, const Dropout& dropout) {
  std::vector<double> y(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const uint32_t number = (dropout.key.bits(i / 2) >> (16 * (i % 2))) & 0xffff;
    y[i] =
        number >= std::round(static_cast<double>(dropout.p) * 65536) ? x[i] / (1 - static_cast<double>(dropout.p)) : 0;
  }
  return y;
}

}  // namespace

TEST_CASE("dropout: the mask is that of the definition, for any length") {
  for (Device device : devices())
    for (float p : {0.0f, 0.1f, 0.5f, 0.999999f})
      for (int64_t n : {0, 1, 3, 31, 127, 128, 129, 1000, 40001}) {
        CAPTURE(p);
        CAPTURE(n);
        const Dropout options{p, Key{42}.fold(7)};
        const Tensor x = random_tensor(Shape{n}, 1, -1, 1, device);
        check_close(dropout(x, options), reference(doubles(x), options), rounding);
      }
}

TEST_CASE("apply_dropout: pieces make up the whole, in place too") {
  const Dropout options{0.3f, Key{9}};
  const Tensor x = random_tensor(Shape{1000}, 2);
  const std::vector<float> whole = dropout(x, options).to_vector();
  for (int64_t piece : {1, 7, 64, 128, 130, 999}) {
    CAPTURE(piece);
    std::vector<float> y = x.to_vector();
    for (int64_t i = 0; i < 1000; i += piece)
      apply_dropout(y.data() + i, y.data() + i, i, std::min(piece, 1000 - i), options);
    CHECK(y == whole);
  }
  // Far into a tensor, where a block's number needs more than 32 bits.
  const int64_t far = (int64_t{1} << 35) + 5;
  float y[300];
  const std::vector<float> ones(300, 1.0f);
  apply_dropout(y, ones.data(), far, 300, options);
  int different = 0;
  for (uint64_t i = 0; i < 300; ++i) {
    const uint64_t element = static_cast<uint64_t>(far) + i;
    const bool kept = ((options.key.bits(element / 2) >> (16 * (element % 2))) & 0xffff) >= 19661;
    different += kept != (y[i] != 0);
  }
  CHECK(different == 0);
}

TEST_CASE("dropout: keeps what it should on average, and keys differ") {
  const Tensor ones = Tensor::full(Shape{100000}, 1);
  double total = 0;
  for (double value : doubles(dropout(ones, {0.1f, Key{3}}))) total += value;
  CHECK(std::abs(total / 100000 - 1) < 0.005);  // the standard deviation of this mean is 0.001
  CHECK(dropout(ones, {0.1f, Key{3}}).to_vector() != dropout(ones, {0.1f, Key{4}}).to_vector());
}

TEST_CASE("dropout: gradient") {
  for (Device device : devices())
    check_gradients(
        [](const std::vector<Tensor>& in) {
          return dropout(in[0], {0.4f, Key{5}});
        },
        {random_tensor(Shape{3, 65}, 3, -1, 1, device)});
}

TEST_CASE("dropout: what it refuses") {
  for (float p : {-0.1f, 1.0f, NAN})
    check_fails([&] { dropout(Tensor(Shape{2}), {p, {}}); }, "dropout: the dropout probability");
}
