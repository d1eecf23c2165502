// The ladder: every rung computes causal_product with states of 32 x 32, whatever the sizes.
#include <cstring>
#include <regex>
#include <set>

#include "engine/replay.h"
#include "ops/ladder/ladder.h"
#include "ops/linear_attention.h"
#include "tests/check.h"
#include "tests/paths.h"
#include "tests/program.h"

#if RUNNEL_CUDA_IS_EMULATED
#include <cuda_runtime.h>
#endif

using namespace runnel;
using namespace runnel::test;

namespace {

struct Inputs {
  Tensor x, a, b;
};
Inputs inputs(Shape shape, Device device) {
  return {random_tensor(shape, 1, -1, 1, device), random_tensor(shape, 2, -1, 1, device),
          random_tensor(shape, 3, -1, 1, device)};
}

Tensor scan(const Rung& rung, const Inputs& in) {
  Tensor y(in.x.shape(), in.x.device());
  run(rung, y, in.x, in.a, in.b);
  return y;
}

// y_i = sum_{j<=i} (x_i . a_j) b_j
std::vector<double> definition(const Inputs& in) {
  const std::vector<double> x = doubles(in.x), a = doubles(in.a), b = doubles(in.b);
  const int64_t batch = in.x.shape()[0], length = in.x.shape()[1], heads = in.x.shape()[2], width = 32;
  std::vector<double> y(x.size(), 0);
  for (int64_t n = 0; n < batch * heads; ++n) {
    const auto at = [&](int64_t i, int64_t c) {
      return static_cast<size_t>(((n / heads * length + i) * heads + n % heads) * width + c);
    };
    for (int64_t i = 0; i < length; ++i)
      for (int64_t j = 0; j <= i; ++j) {
        double weight = 0;
        for (int64_t r = 0; r < width; ++r) weight += x[at(i, r)] * a[at(j, r)];
        for (int64_t c = 0; c < width; ++c) y[at(i, c)] += weight * b[at(j, c)];
      }
  }
  return y;
}

bool on_tensor_cores(const Rung& rung) {
  return rung.name == std::string("6_tensor_cores") || rung.name == std::string("7_split");
}

}  // namespace

TEST_CASE("ladder: every rung equals the definition and causal_product") {
  for (const Device device : devices())
    for (const Shape& shape : {Shape{1, 1, 1, 32}, Shape{3, 3, 1, 32}, Shape{1, 31, 2, 32}, Shape{2, 33, 1, 32},
                               Shape{2, 65, 3, 32}, Shape{1, 270, 1, 32}}) {
      const Inputs in = inputs(shape, device);
      const std::vector<double> y = definition(in), by_op = doubles(causal_product(in.x, in.a, in.b));
      for (const Rung& rung : ladder(device)) {
        CAPTURE(rung.name);
        CAPTURE(shape);
        const double tolerance = on_tensor_cores(rung) ? 5e-3 : reduction;  // TF32 has 10 bits of mantissa
        const Tensor by_rung = scan(rung, in);
        check_close(by_rung, y, tolerance);
        check_close(by_rung, by_op, tolerance);
      }
    }
}

TEST_CASE("ladder: every rung gives the same bytes twice, on the CPU with any number of threads") {
  for (const Device device : devices()) {
    const Inputs in = inputs(device == Device::cpu ? Shape{1, 600, 1, 32} : Shape{1, 70, 1, 32}, device);
    for (const Rung& rung : ladder(device)) {
      CAPTURE(rung.name);
      std::vector<std::vector<float>> results;
      for (const int threads : {1, 3}) {
        const OmpThreads some(threads);
        results.push_back(scan(rung, in).to_vector());
      }
      CHECK(std::memcmp(results[0].data(), results[1].data(), results[0].size() * sizeof(float)) == 0);
    }
  }
}

TEST_CASE("ladder: a rung writes y and nothing else, also from a captured graph") {
  for (const Device device : devices()) {
    const Shape shape{1, 40, 1, 32};
    const Inputs in = inputs(shape, device);
    const std::vector<float> a = in.a.to_vector();
    for (const Rung& rung : ladder(device)) {
      CAPTURE(rung.name);
      const Tensor y(shape, device);
      Replay replay(device, [&] { run(rung, y, in.x, in.a, in.b); });
      for (const char* run : {"direct", "captured", "replayed"}) {
        CAPTURE(run);
        const Tensor nan = Tensor::full(shape, NAN, device);  // overwritten, not added to
        copy(Tensor(y).data(), device, nan.data(), device, static_cast<size_t>(y.size()) * sizeof(float));
        replay.run();
        CHECK(y.to_vector() == scan(rung, in).to_vector());
      }
      CHECK(in.a.to_vector() == a);
    }
  }
}

TEST_CASE("ladder: sizes that no rung has are refused in a sentence that names the argument") {
  for (const Device device : devices())
    for (const Rung& rung : ladder(device)) {
      const auto refuse = [&](Shape x, Shape a, Shape b, Shape y, const std::string& words) {
        const Tensor tx(x, device), ta(a, device), tb(b, device);
        check_fails([&] { run(rung, Tensor(y, device), tx, ta, tb); }, rung.name + words);
      };
      const Shape some{2, 5, 3, 32}, other{2, 4, 3, 32}, none{2, 0, 3, 32}, wide{2, 5, 3, 33}, flat{10, 3, 32};
      const std::string all = " is not [B,L,H,32] with at least one position";
      refuse(wide, wide, wide, wide, ": x [2,5,3,33]" + all);
      refuse(none, none, none, none, ": x [2,0,3,32]" + all);
      refuse(flat, flat, flat, flat, ": x [10,3,32]" + all);
      refuse(some, other, some, some, ": a [2,4,3,32] does not match x [2,5,3,32]");
      refuse(some, some, other, some, ": b [2,4,3,32] does not match x [2,5,3,32]");
      refuse(some, some, some, other, ": y [2,4,3,32] does not match x [2,5,3,32]");
    }
}

TEST_CASE("ladder: a rung refuses tensors of another device") {
  if (!why_unavailable(Device::cuda).empty()) return;
  const Inputs on_cpu = inputs(Shape{1, 2, 1, 32}, Device::cpu), on_cuda = inputs(Shape{1, 2, 1, 32}, Device::cuda);
  check_fails([&] { scan(ladder(Device::cuda)[0], on_cpu); }, "1_thread runs on cuda; x is on cpu");
  check_fails([&] { scan(ladder(Device::cpu)[0], on_cuda); }, "1_definition runs on cpu; x is on cuda");
  check_fails(
      [&] {
        scan(ladder(Device::cpu)[0], {on_cpu.x, on_cuda.a, on_cpu.b});
      },
      "1_definition: its arguments do not all lie on cpu");
}

TEST_CASE("ladder: every file is a rung, and the tests have launched every kernel") {
  if (!has_sources()) return;
  for (const Device device : devices()) {
    std::set<std::string> files, rungs;
    const fs::path folder = source_dir() / (device == Device::cpu ? "ops" : "cuda") / "ladder";
    for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
      if (const std::string name = entry.path().stem().string(); std::isdigit(name[0])) files.insert(name);
    }
    for (const Rung& rung : ladder(device)) rungs.insert(rung.name);
    CHECK(files == rungs);
  }
#if RUNNEL_CUDA_IS_EMULATED
  const Inputs in = inputs(Shape{1, 65, 1, 32}, Device::cuda);
  for (const Rung& rung : ladder(Device::cuda)) {
    scan(rung, in);
    const std::string text = read(source_dir() / "cuda/ladder" / (std::string(rung.name) + ".cu"));
    static const std::regex launch(R"raw(launch\("(\w+)")raw");
    for (std::sregex_iterator m(text.begin(), text.end(), launch), end; m != end; ++m)
      CHECK_MESSAGE(simt::launched().contains(m->str(1)), m->str(1));
  }
#endif
}
