// Shapes, tensors, memory, the tape, random numbers: what every op relies on.
#include <unistd.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <mutex>
#include <set>
#include <sstream>
#include <thread>

#include "engine/finite_guard.h"
#include "engine/host.h"
#include "engine/recompute.h"
#include "engine/threads.h"
#include "models/optimizer.h"
#include "ops/elementwise.h"
#include "ops/layers.h"
#include "ops/linear.h"
#include "ops/numerics.h"
#include "ops/optimizers.h"
#include "ops/reductions.h"
#include "ops/shapes.h"
#include "tests/check.h"

using namespace runnel;
using namespace runnel::test;

namespace {

std::string text(const Shape& shape) {
  std::ostringstream out;
  out << shape;
  return out.str();
}

Tensor leaf(Shape shape, const std::vector<float>& values) {
  Tensor x(shape, values);
  x.set_wants_grad();
  return x;
}

}  // namespace

TEST_CASE("tensors: more bytes than an address can reach are an error") {
  CHECK(byte_count(3, sizeof(float)) == 12);
  CHECK(byte_count(0, sizeof(float)) == 0);
  check_fails([] { byte_count(int64_t{1} << 62, 8); }, "is larger than the memory that this program can address");
}

TEST_CASE("Shape: axes, size, text, equality") {
  const Shape shape{2, 3, 5};
  CHECK(shape.rank() == 3);
  CHECK(shape.size() == 30);
  CHECK(shape[0] == 2);
  CHECK(shape[-1] == 5);
  CHECK(shape[-3] == 2);
  CHECK(shape.with_last(7) == Shape{2, 3, 7});
  CHECK(shape != Shape{2, 3});
  CHECK(Shape{2, 3} != Shape{3, 2});
  CHECK(text(shape) == "[2,3,5]");
  CHECK(Shape{}.size() == 1);
  CHECK(text(Shape{}) == "[]");
  CHECK(Shape{4, 0}.size() == 0);
}

TEST_CASE("Shape: what it refuses") {
  check_fails([] { Shape{2, -1}; }, "cannot have the size -1");
  check_fails([] { Shape{int64_t{1} << 32, int64_t{1} << 32}; }, "too large");
  check_fails([] { Shape{int64_t{1} << 60}; }, "too large");
  check_fails([] { Shape{1, 1, 1, 1, 1, 1, 1}; }, "at most 6 axes, not 7");
  check_fails([] { Shape{}[-1]; }, "a tensor [] has no axis -1");
  check_fails([] { Shape{}[0]; }, "a tensor [] has no axis 0");
  check_fails([] { Shape({2, 3})[2]; }, "a tensor [2,3] has no axis 2");
  check_fails([] { Shape({2, 3})[-3]; }, "a tensor [2,3] has no axis -3");
  check_fails([] { Shape{}.with_first(1); }, "has no axis 0");
  check_fails([] { Shape{}.with_last(1); }, "has no axis -1");
  check_fails([] { Shape{}.without_last(); }, "has no axis -1");
  CHECK(Shape{2}.without_last() == Shape{});
}

TEST_CASE("Tensor: values, identity, storage") {
  for (Device device : devices()) {
    const Tensor x(Shape{2, 2}, {1, 2, 3, 4}, device);
    CHECK(x.to_vector() == std::vector<float>{1, 2, 3, 4});
    CHECK(reinterpret_cast<uintptr_t>(x.data()) % 64 == 0);
    CHECK(bool(x));
    CHECK(!x.wants_grad());
    CHECK(!Tensor(Shape{4}, device).set_wants_grad().viewed_as(Shape{2, 2}).wants_grad());
    const Tensor same = x, view = x.viewed_as(Shape{4});
    CHECK(same.id() == x.id());
    CHECK(view.id() != x.id());
    CHECK(view.data() == x.data());
    CHECK(view.shape() == Shape{4});
    CHECK(Tensor::full(Shape{3}, 2.5f, device).to_vector() == std::vector<float>{2.5f, 2.5f, 2.5f});
    CHECK(Tensor(Shape{}, {7}, device).item() == 7);
    CHECK(Tensor(Shape{0, 3}, device).to_vector().empty());
  }
  CHECK(!Tensor());
  CHECK(Tensor().size() == 0);
  CHECK(Tensor().data() == nullptr);
  CHECK(Indices(Shape{3}, {5, -1, 7}).to_vector() == std::vector<int32_t>{5, -1, 7});
}

TEST_CASE("Tensor: parts share the storage of the whole, and stacked finds it again or copies") {
  const Tensor whole(Shape{3, 2}, {1, 2, 3, 4, 5, 6});
  const std::vector<Tensor> parts = whole.parts();
  REQUIRE(parts.size() == 3);
  CHECK(parts[1].shape() == Shape{2});
  CHECK(parts[1].to_vector() == std::vector<float>{3, 4});
  CHECK(parts[1].data() == whole.data() + 2);
  CHECK(parts[1].id() != parts[2].id());
  CHECK(parts[1].id() != whole.id());
  CHECK(clone(parts[2]).to_vector() == std::vector<float>{5, 6});

  CHECK(stacked(parts).data() == whole.data());
  CHECK(stacked(parts).shape() == whole.shape());
  CHECK(stacked({parts[1], parts[2]}).data() == whole.data() + 2);
  const std::vector<std::vector<Tensor>> copied{
      {parts[1], parts[0]}, {parts[0], parts[2]}, {parts[0], clone(parts[1])}};
  for (const std::vector<Tensor>& some : copied) {
    const Tensor copy = stacked(some);
    CHECK(copy.data() != some[0].data());
    CHECK(copy.parts()[0].to_vector() == some[0].to_vector());
    CHECK(copy.parts()[1].to_vector() == some[1].to_vector());
  }
  CHECK(stacked({parts[0].viewed_as(Shape{1, 2}), parts[1].viewed_as(Shape{1, 2})}).shape() == Shape{2, 1, 2});
  check_fails([&] { stacked({parts[0], whole}); }, "stacked: the shapes [2] and [3,2] differ");
  check_fails([] { Tensor(Shape{}).parts(); }, "a tensor [] has no axis 0");
}

TEST_CASE("Tensor: what it refuses") {
  const Tensor x(Shape{2, 2});
  check_fails([&] { x.item(); }, "item: a tensor [2,2] is not one number");
  check_fails([&] { x.viewed_as(Shape{3}); }, "a tensor [2,2] cannot be viewed as [3]");
  for (const size_t count : {3, 5})
    check_fails(
        [=] {
          Tensor(Shape{2, 2}, std::vector<float>(count));
        },
        "a tensor [2,2] cannot hold " + std::to_string(count) + " values");
#if !RUNNEL_WITH_CUDA
  check_fails([] { Tensor(Shape{2}, Device::cuda); }, "this build has no CUDA; configure with -DRUNNEL_CUDA=ON");
#endif
}

TEST_CASE("check and fail: the kind of error and its words") {
  CHECK_NOTHROW(check(true, "never"));
  check_fails([] { check(1 > 2, "one is not ", 2); }, "one is not 2");
  CHECK_THROWS_AS(check<UsageError>(false, "--heads"), UsageError);
}

TEST_CASE("memory: live bytes follow the tensors, peak remembers the most") {
  for (Device device : devices()) {
    const int64_t before = memory_use(device).live;
    {
      const Tensor a(Shape{1000}, device);
      CHECK(memory_use(device).live == before + 4000);
      const Tensor shared = a, view = a.viewed_as(Shape{10, 100});
      CHECK(memory_use(device).live == before + 4000);
      reset_peak(device);
      { const Tensor b(Shape{500}, device); }
      CHECK(memory_use(device).live == before + 4000);
      CHECK(memory_use(device).peak == before + 6000);
    }
    CHECK(memory_use(device).live == before);
    reset_peak(device);
    CHECK(memory_use(device).peak == before);
  }
}

TEST_CASE("memory: the CPU's pool keeps no more than was ever in use, whatever the number of sizes") {
  trim_memory(Device::cpu);
  CHECK(memory_use(Device::cpu).cached == 0);
  const int64_t live = memory_use(Device::cpu).live, mib = int64_t{1} << 20;
  reset_peak(Device::cpu);
  int64_t total = 0, kept = 0;
  for (int64_t i = 0; i < 1000; ++i) {  // as sampling does whose prefix grows by a byte per step
    const Tensor x(Shape{mib / 4 + 16 * i}), y(Shape{mib / 4 + 16 * i + 8});
    total += 4 * (x.size() + y.size());
    kept = std::max(kept, memory_use(Device::cpu).cached);
  }
  CHECK(total > 2000 * mib);
  for (int64_t i = 0; i < 10; ++i) {  // each larger than what was free before
    const Tensor x(Shape{(40 + 20 * i) * mib / 4});
    kept = std::max(kept, memory_use(Device::cpu).cached);
  }
  CHECK(kept <= std::max(64 * mib, memory_use(Device::cpu).peak));
  CHECK(memory_use(Device::cpu).live == live);
}

TEST_CASE("memory: tensors of every size are aligned and have memory of their own, whatever thread frees them") {
  struct Filled {
    Tensor x;
    float value;
  };
  std::vector<Filled> all;
  std::mutex adding;
  const auto fill = [&](int64_t thread) {
    for (const int64_t n : {0, 1, 16, 17, 1000, 8191, 8192, 8193, 100000}) {
      const auto value = static_cast<float>(1000000 * thread + n);
      const Tensor x = Tensor::full(Shape{n}, value);
      const std::lock_guard lock(adding);
      all.push_back({x, value});
    }
  };
  std::vector<std::thread> threads;
  for (int64_t thread = 0; thread < 3; ++thread) threads.emplace_back(fill, thread);
  for (std::thread& thread : threads) thread.join();
  std::thread([taken = std::move(all)] {
    for (const auto& [x, value] : taken) {
      CHECK(reinterpret_cast<uintptr_t>(x.data()) % 64 == 0);
      CHECK(x.to_vector() == std::vector<float>(static_cast<size_t>(x.size()), value));
    }
  }).join();
}

TEST_CASE("memory: blocks that come and go in any order keep their numbers, and leave nothing behind") {
  trim_memory(Device::cpu);
  std::vector<std::pair<Tensor, float>> living;
  const Key key{7};
  for (uint64_t i = 0; i < 1500; ++i) {
    const bool grows = living.size() < 8 || (living.size() < 64 && key.uniform(2 * i) < 0.5f);
    if (grows) {
      const int64_t n = int64_t{1} << (13 + key.below(2 * i + 1, 8));  // up to 4 MiB; some of 16 MiB
      const Shape shape{(n + key.below(i, 1000)) * (i % 100 == 0 ? 4 : 1)};
      living.emplace_back(Tensor::full(shape, static_cast<float>(i)), static_cast<float>(i));
    } else {
      std::swap(living[key.below(2 * i + 1, static_cast<uint32_t>(living.size()))], living.back());
      const auto& [x, value] = living.back();
      CHECK(std::all_of(x.data(), x.data() + x.size(), [value = value](float number) { return number == value; }));
      living.pop_back();
    }
  }
  living.clear();
  trim_memory(Device::cpu);
  CHECK(memory_use(Device::cpu).cached == 0);  // all free ranges were joined
}

TEST_CASE("memory: small blocks that stay do not keep the memory of larger ones, of ever new sizes, between them") {
  trim_memory(Device::cpu);
  const int64_t mib = int64_t{1} << 20;
  std::vector<Tensor> staying;
  for (int64_t i = 0; i < 500; ++i) {
    const Tensor x(Shape{mib / 4 + 16 * i}), y(Shape{mib / 4 + 16 * i + 8});
    if (i % 5 == 0) staying.emplace_back(Shape{10000});
    CHECK(memory_use(Device::cpu).cached <= 64 * mib);
  }
}

TEST_CASE("memory: a size that is used again comes from the pool, also when many others were in between") {
  trim_memory(Device::cpu);
  for (int step = 0; step < 3; ++step)
    for (int64_t i = 1; i <= 100; ++i) {
      const int64_t cached = memory_use(Device::cpu).cached;
      const Tensor x(Shape{8000 + 1000 * i});  // above 32 KiB: smaller blocks are not the pool's
      if (step > 0 && cached > 0) CHECK(memory_use(Device::cpu).cached < cached);
    }
  trim_memory(Device::cpu);
  CHECK(memory_use(Device::cpu).cached == 0);
}

TEST_CASE("memory: what one step of training used is used again by the next, whatever its sizes") {
  const int64_t mib = int64_t{1} << 20;
  for (const int64_t n : {mib / 100, mib / 4, 3 * mib / 4, 5 * mib}) {  // elements; blocks of up to 20 MiB
    trim_memory(Device::cpu);
    int64_t after_first = 0;
    for (int step = 0; step < 3; ++step) {
      {
        std::vector<Tensor> all;
        for (int64_t i = 0; i < 8; ++i) all.emplace_back(Shape{n + 1000 * i});
        for (int64_t i = 0; i < 8; i += 2) all[static_cast<size_t>(i)] = Tensor(Shape{n / 2 + 1000 * i});
      }
      const int64_t cached = memory_use(Device::cpu).cached;
      if (step == 0) after_first = cached;
      if (8 * n * 4 < 64 * mib) CHECK(cached == after_first);
#if !RUNNEL_WITH_ADDRESS_SANITIZER && !RUNNEL_WITH_THREAD_SANITIZER  // with which there is no pool
      CHECK(cached >= (8 * n * 4 < 64 * mib ? 8 : 6) * n * 4);       // from 64 MiB on, what exceeds the bound goes
#endif
    }
  }
  trim_memory(Device::cpu);
  CHECK(memory_use(Device::cpu).cached == 0);
}

TEST_CASE("limit_memory: more is refused as if there were none, and ops on several threads pass the error on") {
  const auto unlimited = std::numeric_limits<int64_t>::max();
  const auto all = [](const std::vector<Tensor>& x) {
    Tape tape;
    const Tensor h = linear(x[0], x[1], x[2], Activation::relu, {0.1f, Key{1}});
    Gradients g = tape.backward(sum(add_layer_norm(h, h, x[2], x[2], {0.1f, Key{2}})));
    Tensor m = Tensor::full(x[1].shape(), 0);
    muon_step({{clone(detach(x[1])), m, g.of(x[1])}}, sums_of_squares({g.of(x[1])}), Tensor(Shape{2}, {1, 0}), 0.9);
    return g;
  };
  std::vector<Tensor> x{random_tensor(Shape{2000, 48}, 1), random_tensor(Shape{32, 48}, 2),
                        random_tensor(Shape{32}, 3)};
  for (Tensor& leaf : x) leaf.set_wants_grad();
  for (const Precision precision : {Precision::f32, Precision::bf16}) {
    if (precision == Precision::bf16 && !has_bf16()) continue;
    set_precision(precision);
    const std::vector<float> expected = all(x).of(x[1]).to_vector();
    const int64_t live = memory_use(Device::cpu).live;
    reset_peak(Device::cpu);
    all(x);
    const int64_t needed = memory_use(Device::cpu).peak - live;
    constexpr int64_t steps = 200;
    for (int64_t step = 0; step < steps; ++step) {
      limit_memory(Device::cpu, live + needed * step / steps);
      if (step < steps / 2)
        check_fails([&] { all(x); }, "out of memory on cpu: asked for ");
      else
        try {  // how much is in use at once depends on the threads
          all(x);
        } catch (const Error&) {
        }
      limit_memory(Device::cpu, unlimited);
      CHECK(memory_use(Device::cpu).live == live);
    }
    CHECK(all(x).of(x[1]).to_vector() == expected);
  }
  set_precision(Precision::f32);
}

TEST_CASE("limit_memory: up to the limit and not one byte more") {
  limit_memory(Device::cpu, memory_use(Device::cpu).live + 4000);
  CHECK_NOTHROW(Tensor(Shape{1000}));
  check_fails([] { Tensor(Shape{1001}); }, "asked for 4004 bytes");
  limit_memory(Device::cpu, std::numeric_limits<int64_t>::max());
}

TEST_CASE("available_memory: of the machine, or what a control group leaves, with the file pages that can be dropped") {
  namespace fs = std::filesystem;
  const fs::path root = fs::temp_directory_path() / ("runnel-memory-" + std::to_string(getpid()));
  const auto write = [&](const std::string& path, const std::string& text) {
    fs::create_directories((root / path).parent_path());
    std::ofstream(root / path) << text;
  };
  const auto available = [&] { return available_memory(root.string() + "/"); };
  write("proc/meminfo", "MemTotal: 4000 kB\nMemFree:  10 kB\nMemAvailable:  3000 kB\n");
  CHECK(available() == 3000 * 1024);
  write("proc/self/cgroup", "0::/a/b\n");
  write("sys/fs/cgroup/a/b/memory.max", "max\n");
  CHECK(available() == 3000 * 1024);
  write("sys/fs/cgroup/a/memory.max", "1000000\n");  // of the group above
  write("sys/fs/cgroup/a/memory.current", "400000\n");
  CHECK(available() == 600000);
  write("sys/fs/cgroup/a/memory.stat", "anon 7\ninactive_file 1000\n");
  CHECK(available() == 601000);
  write("proc/self/cgroup", "4:cpu,memory:/c\n1:cpu:/c\n");  // v1
  CHECK(available() == 3000 * 1024);
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  CHECK(available() == 3000 * 1024);
  write("sys/fs/cgroup/memory/c/memory.limit_in_bytes", "5000\n");
  write("sys/fs/cgroup/memory/c/memory.usage_in_bytes", "4000\n");
  CHECK(available() == 1000);
  write("sys/fs/cgroup/memory/c/memory.usage_in_bytes", "6000\n");
  CHECK(available() == 0);
  fs::remove_all(root);
  CHECK(available_memory() > 0);
}

TEST_CASE("quota_of_cores: the smallest CPU quota of a control group and those above it, rounded up") {
  namespace fs = std::filesystem;
  const fs::path root = fs::temp_directory_path() / ("runnel-quota-" + std::to_string(getpid()));
  const auto write = [&](const std::string& path, const std::string& text) {
    fs::create_directories((root / path).parent_path());
    std::ofstream(root / path) << text;
  };
  const auto cores = [&] { return quota_of_cores(root.string() + "/"); };
  constexpr int64_t none = std::numeric_limits<int64_t>::max();
  CHECK(cores() == none);
  write("proc/self/cgroup", "0::/a/b\n");
  write("sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
  CHECK(cores() == none);
  write("sys/fs/cgroup/a/cpu.max", "250000 100000\n");  // of the group above
  CHECK(cores() == 3);
  write("sys/fs/cgroup/a/b/cpu.max", "50000 100000\n");
  CHECK(cores() == 1);
  write("proc/self/cgroup", "4:cpu,cpuacct:/c/d\n1:cpuset:/a\n");  // v1
  write("sys/fs/cgroup/cpu/c/d/cpu.cfs_quota_us", "-1\n");
  write("sys/fs/cgroup/cpu/c/d/cpu.cfs_period_us", "100000\n");
  CHECK(cores() == none);
  write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "200000\n");
  CHECK(cores() == none);  // without a period
  write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  CHECK(cores() == 2);
  fs::remove_all(root);
  CHECK(quota_of_cores() > 0);
}

TEST_CASE("free_memory: what is released counts as free, though the pool keeps it") {
  constexpr int64_t bytes = int64_t{64} << 20;
  for (const Device device : devices()) {
    // Trimming changes nothing, but other programs do: on a GPU one undisturbed pair of readings will do, and the
    // memory of the machine is never still.
    const int64_t tolerated = device == Device::cuda ? bytes / 4 : int64_t{1} << 30;
    int64_t change = tolerated + 1;
    for (int attempt = 0; attempt < 10 && std::abs(change) > tolerated; ++attempt) {
      { const Tensor x = Tensor::full(Shape{bytes / 4}, 1, device); }
      synchronize(device);
      if (device == Device::cuda) CHECK(memory_use(device).cached >= bytes);
      const int64_t before = free_memory(device);
      trim_memory(device);
      change = free_memory(device) - before;
    }
    CHECK(std::abs(change) <= tolerated);
  }
}

TEST_CASE("tape: x + x, and a tensor used by several ops") {
  const Tensor x = leaf(Shape{2}, {3, -1});
  {
    Tape tape;
    CHECK(tape.backward(sum(add(x, x))).of(x).to_vector() == std::vector<float>{2, 2});
  }
  {
    Tape tape;
    const Tensor y = add(x, x);                    // 2x
    const Tensor z = add(scale(y, 3), add(y, x));  // 9x
    CHECK(tape.backward(sum(add(z, y))).of(x).to_vector() == std::vector<float>{11, 11});
  }
}

TEST_CASE("tape: gradients of one tensor are added in place, unless another tensor shares the storage") {
  const Tensor x = leaf(Shape{2}, {1, 2});
  const float* returned = nullptr;
  Tensor kept;
  const auto twice = [&](bool keep) {  // 2 x
    return record("twice", {x}, scale(detach(x), 2), [&, keep](const Tensor& dy) -> std::vector<Tensor> {
      Tensor dx = scale(dy, 2);
      returned = dx.data();
      if (keep) kept = dx;
      return {dx};
    });
  };
  for (const bool keep : {false, true}) {
    Tape tape;
    const Tensor other = scale(x, 3), doubled = twice(keep);  // whose rule comes first
    const Gradients gradients = tape.backward(sum(add(other, doubled)));
    CHECK(gradients.of(x).to_vector() == std::vector<float>{5, 5});
    CHECK((gradients.of(x).data() == returned) == !keep);
    if (keep) CHECK(kept.to_vector() == std::vector<float>{2, 2});
  }
}

TEST_CASE("record: a rule adds in place to what others returned, unless another tensor shares it") {
  const Tensor x = leaf(Shape{2}, {1, 2});
  const float* added_to = nullptr;
  const auto twice = [&] {  // 2 x
    return record("twice", {x}, std::vector{scale(detach(x), 2)},
                  [&added_to, x](const std::vector<Tensor>& dy, Tensor so_far) -> std::vector<Tensor> {
                    added_to = so_far.data();
                    Tensor dx = so_far ? so_far : Tensor::full(x.shape(), 0);
                    for (int64_t i = 0; i < dx.size(); ++i) dx.data()[i] += 2 * dy[0].data()[i];
                    return {dx};
                  })[0];
  };
  {
    Tape tape;
    const Tensor first = twice(), second = scale(x, 3);  // whose rule comes first
    const Gradients gradients = tape.backward(sum(add(first, second)));
    CHECK(gradients.of(x).to_vector() == std::vector<float>{5, 5});
    CHECK(gradients.of(x).data() == added_to);
  }
  {
    Tape tape;
    const Tensor first = twice();
    CHECK(tape.backward(sum(add(first, x))).of(x).to_vector() == std::vector<float>{3, 3});  // dL/dx is dL/dfirst
    CHECK(added_to == nullptr);
  }
}

TEST_CASE("Tensor: printed as its shape and nested lists, long axes cut in the middle") {
  const auto printed = [](const Tensor& x) {
    std::ostringstream out;
    out << x;
    return out.str();
  };
  CHECK(printed(Tensor()) == "(empty)");
  CHECK(printed(Tensor(Shape{}, {1.5f})) == "[] 1.5");
  CHECK(printed(Tensor(Shape{2, 3}, {1, 2, 3, 4, 5, -6})) == "[2,3] {{1, 2, 3},\n {4, 5, -6}}");
  CHECK(printed(Tensor(Shape{0, 3})) == "[0,3] {}");
  CHECK(printed(Tensor(Shape{8}, {1, 2, 3, 4, 5, 6, 7, 8})) == "[8] {1, 2, 3, 4, 5, 6, 7, 8}");
  CHECK(printed(Tensor(Shape{9}, {1, 2, 3, 4, 5, 6, 7, 8, 9})) == "[9] {1, 2, 3, ..., 7, 8, 9}");
}

TEST_CASE("check_gradients: passes a right rule, and names input and element of a wrong one") {
  const auto product = [](const std::vector<Tensor>& in, float factor) {  // of two tensors
    return record("product", in, multiply(detach(in[0]), detach(in[1])), [=](const Tensor& dy) -> std::vector<Tensor> {
      return {multiply(dy, in[1]), scale(multiply(dy, in[0]), factor)};
    });
  };
  const Tensor a(Shape{2}, {1, 2}), b(Shape{2}, {3, -1});
  check_gradients([&](const auto& in) { return product(in, 1); }, {a, b});
  check_fails(
      [&] {
        check_gradients([&](const auto& in) { return product(in, 1.01f); }, {a, b});
      },
      "check_gradients: input 1 [2], element ");
  check_fails(
      [&] {
        check_gradients([&](const auto& in) { return product(in, NAN); }, {a, b});
      },
      "the gradient is nan");
  check_fails([&] { check_gradients([&](const auto& in) { return detach(in[0]); }, {a}); },
              "check_gradients: the result does not depend on the inputs");
}

TEST_CASE("Tensor: copies of a handle share the wish for a gradient") {
  Tensor w(Shape{2}, {3, -1});
  const Tensor other = w;
  w.set_wants_grad();
  CHECK(other.wants_grad());
  Tape tape;
  CHECK(tape.backward(sum(add(w, scale(other, 3)))).of(w).to_vector() == std::vector<float>{4, 4});
  check_fails([] { Tensor().set_wants_grad(); }, "set_wants_grad: the tensor is empty");
  Tape second;
  const Tensor y = multiply(w, w);
  check_fails([&] { w.set_wants_grad(false); },
              "set_wants_grad(false): a tape may have recorded that [2] wants a gradient");
  CHECK(second.backward(sum(y)).of(w).to_vector() == std::vector<float>{6, -2});
}

TEST_CASE(
    "detach: the same numbers as a constant; views and copies without a gradient are refused while a tape records") {
  Tensor x = leaf(Shape{2, 2}, {1, 2, 3, 4});
  CHECK(detach(x).data() == x.data());
  CHECK(!detach(x).wants_grad());
  CHECK(!detach(Tensor()));
  CHECK(clone(x).to_vector() == x.to_vector());  // no tape records
  Tape tape;
  const std::string end = " has no gradient for x [2,2], which wants one; if it is a constant here, pass detach(x)";
  check_fails([&] { x.viewed_as(Shape{4}); }, "viewed_as" + end);
  check_fails([&] { x.part(0, Shape{2}); }, "part" + end);
  check_fails([&] { x.parts(); }, "part" + end);
  check_fails([&] { clone(x); }, "clone" + end);
  check_fails([&] { stacked({x, x}); }, "stacked" + end);
#if RUNNEL_WITH_CUDA
  check_fails([&] { x.to(Device::cuda); }, "to" + end);
#endif
  CHECK(tape.backward(sum(add(x, detach(x)))).of(x).to_vector() == std::vector<float>{1, 1, 1, 1});
}

TEST_CASE("tape: leaves are reported one by one, each when its gradient is complete") {
  const Tensor first = leaf(Shape{2}, {3, -1}), shared = leaf(Shape{2}, {1, 2}), last = leaf(Shape{2}, {1, 2});
  const Tensor unused = leaf(Shape{2}, {1, 2});
  Tape tape;
  const Tensor x = add(scale(shared, 2), first);
  const Tensor y = recompute([&] { return add(scale(x, 5), last); });
  scale(unused, 3);  // the loss does not depend on it
  std::vector<uint64_t> order;
  std::vector<std::vector<float>> values;
  tape.backward(sum(add(y, shared)), [&](uint64_t id, const Tensor& gradient) {
    order.push_back(id);
    values.push_back(gradient.to_vector());
  });
  CHECK(order == std::vector<uint64_t>{last.id(), first.id(), shared.id()});
  CHECK(values == std::vector<std::vector<float>>{{1, 1}, {5, 5}, {11, 11}});
}

TEST_CASE("tape: only what wants a gradient gets one") {
  const Tensor x = leaf(Shape{2}, {1, 2}), unused = leaf(Shape{2}, {1, 2}), constant(Shape{2}, {1, 2});
  Tape tape;
  const Tensor aside = scale(unused, 2);  // on the tape, but the loss does not depend on it
  CHECK(aside.wants_grad());
  CHECK(!scale(constant, 2).wants_grad());
  const Tensor loss = sum(add(x, constant));
  const Gradients gradients = tape.backward(loss);
  CHECK(gradients.of(x).to_vector() == std::vector<float>{1, 1});
  check_fails([&] { gradients.of(unused); }, "the loss does not depend on this tensor [2]");
  check_fails([&] { gradients.of(constant); }, "the loss does not depend on this tensor [2]");
  check_fails([&] { gradients.of(loss); }, "the loss does not depend on this tensor []");
}

TEST_CASE("tape: what backward refuses") {
  const Tensor x = leaf(Shape{2}, {1, 2});
  Tape tape;
  check_fails([&] { tape.backward(scale(x, 2)); }, "the loss is a tensor [2], not one number");
  check_fails([&] { tape.backward(Tensor(Shape{}, {1})); }, "does not depend on any tensor that wants a gradient");
}

TEST_CASE("tape: a second backward, and the gradient of a tensor that wants none, are refused") {
  const Tensor x = Tensor(Shape{2}, {1, 2}).set_wants_grad(), constant(Shape{2}, {3, 4});
  Tape tape;
  const Tensor loss = sum(multiply(x, constant));
  const Gradients gradients = tape.backward(loss);
  check_fails([&] { tape.backward(loss); }, "this tape has been used");
  check_fails([&] { gradients.of(constant); }, "this tensor [2], which wants no gradient: call set_wants_grad()");
  Sgd with_constant({{"w", x}, {"frozen", constant}}, 0.1);
  check_fails([&] { with_constant.step(gradients); }, "wants no gradient");
  Adam adam({{"w", x}, {"frozen", constant}});
  check_fails([&] { adam.step(gradients); }, "the parameter frozen wants no gradient");
}

TEST_CASE("Tensor: ops refuse an empty tensor or return an empty one") {
  const Tensor x(Shape{2}, {1, 2}), none;
  check_fails([&] { add(x, none); }, "add: ");
  check_fails([&] { broadcast(none, Shape{2}); }, "broadcast: ");
  check_fails([&] { where(x, x, none); }, "where: ");
  for (const Tensor& y : {relu(none), scale(none, 2), none + 1, clone(none)}) CHECK(y.size() == 0);
}

TEST_CASE("tape: a gradient rule with a wrong number or shape of results is an error that names the op") {
  const Tensor x = leaf(Shape{2}, {1, 2});
  const auto broken = [&](std::vector<Tensor> gradients) {
    return record("broken", {x}, Tensor(Shape{}, {1}), [gradients](const Tensor&) { return gradients; });
  };
  Tape tape;
  check_fails([&] { tape.backward(broken({})); }, "broken: its gradient rule returns 0 tensors for 1 inputs");
  check_fails([&] { tape.backward(broken({Tensor(Shape{3})})); }, "broken: the gradient [3] of input 0");
  // Recording goes on after an error.
  CHECK(tape.backward(sum(scale(x, 2))).of(x).to_vector() == std::vector<float>{2, 2});
}

TEST_CASE("tape: nothing is recorded without one; tensors made before it are constants") {
  const Tensor x = leaf(Shape{1}, {2});
  const Tensor before = scale(x, 3);
  CHECK(!before.wants_grad());
  Tape tape;
  const Gradients gradients = tape.backward(sum(add(scale(x, 5), before)));
  CHECK(gradients.of(x).item() == 5);
}

TEST_CASE("tape: the innermost records") {
  const Tensor x = leaf(Shape{1}, {2});
  Tape outer;
  const Tensor y = scale(x, 3);
  {
    Tape inner;
    const Tensor z = scale(x, 7);
    CHECK(inner.backward(sum(z)).of(x).item() == 7);
  }
  CHECK(outer.backward(sum(scale(y, 5))).of(x).item() == 15);
}

TEST_CASE("tape: rules run ops without recording them") {
  const Tensor x = leaf(Shape{1}, {2});
  Tape tape;
  bool recorded = true;
  const Tensor y = record("probe", {x}, Tensor(Shape{}, {1}), [&](const Tensor& dy) -> std::vector<Tensor> {
    recorded = scale(x, 2).wants_grad();
    return {reshape(dy, Shape{1})};
  });
  tape.backward(y);
  CHECK(!recorded);
}

TEST_CASE("tape: backward and destruction of a chain of 100,000 ops do not recurse") {
  const Tensor x = leaf(Shape{1}, {1});
  {
    Tape tape;
    Tensor y = x;
    for (int i = 0; i < 100000; ++i) y = relu(y);
    CHECK(tape.backward(sum(y)).of(x).item() == 1);
  }
  Tape dropped;
  Tensor y = x;
  for (int i = 0; i < 100000; ++i) y = relu(y);
}

TEST_CASE("tape: memory is freed as backward goes") {
  // relu keeps its output: 10 of them, each of 4000 bytes. Going back, one gradient more and one output less are alive.
  const Tensor x = leaf(Shape{1000}, std::vector<float>(1000, 1));
  const int64_t before = memory_use(Device::cpu).live;
  Tape tape;
  Tensor loss;
  {
    Tensor y = x;
    for (int i = 0; i < 10; ++i) y = relu(y);
    loss = sum(y);
  }
  CHECK(memory_use(Device::cpu).live == before + 10 * 4000 + 4);
  reset_peak(Device::cpu);
  {
    const Gradients gradients = tape.backward(loss);
    CHECK(memory_use(Device::cpu).live == before + 4000 + 4);
  }
  CHECK(memory_use(Device::cpu).peak <= before + 12 * 4000 + 8);
  CHECK(memory_use(Device::cpu).live == before + 4);
}

namespace {

// [a + b, a b] for one number each. `seen` says for which outputs the rule got a gradient.
std::vector<Tensor> sum_and_product(const Tensor& a, const Tensor& b, std::vector<bool>* seen = nullptr) {
  const Tensor total = add(a, b), product(Shape{1}, {a.item() * b.item()});
  return record("sum_and_product", {a, b}, std::vector{detach(total), product},
                [a, b, seen](const std::vector<Tensor>& dy) -> std::vector<Tensor> {
                  if (seen) *seen = {bool(dy[0]), bool(dy[1])};
                  Tensor da(Shape{1}, {0}), db(Shape{1}, {0});
                  if (dy[0]) da = add(da, dy[0]), db = add(db, dy[0]);
                  if (dy[1]) da = add(da, scale(dy[1], b.item())), db = add(db, scale(dy[1], a.item()));
                  return {da, db};
                });
}

}  // namespace

TEST_CASE("record: an op with two outputs, of which the loss uses both, one or none") {
  const Tensor a = leaf(Shape{1}, {3}), b = leaf(Shape{1}, {5});
  std::vector<bool> seen;
  const auto gradients = [&](float of_sum, float of_product, bool use_sum, bool use_product) {
    Tape tape;
    const std::vector<Tensor> y = sum_and_product(a, b, &seen);
    CHECK(y[0].item() == 8);
    CHECK(y[1].item() == 15);
    CHECK((y[0].wants_grad() && y[1].wants_grad()));
    Tensor loss = sum(a);
    if (use_sum) loss = add(loss, sum(scale(y[0], of_sum)));
    if (use_product) loss = add(loss, sum(scale(y[1], of_product)));
    const Gradients g = tape.backward(loss);
    return std::vector{g.of(a).item(), use_sum || use_product ? g.of(b).item() : 0};
  };
  CHECK(gradients(2, 10, true, true) == std::vector<float>{1 + 2 + 50, 2 + 30});
  CHECK(seen == std::vector{true, true});
  CHECK(gradients(2, 10, true, false) == std::vector<float>{1 + 2, 2});
  CHECK(seen == std::vector{true, false});
  CHECK(gradients(2, 10, false, true) == std::vector<float>{1 + 50, 30});
  CHECK(seen == std::vector{false, true});
  seen.clear();
  CHECK(gradients(2, 10, false, false) == std::vector<float>{1, 0});
  CHECK(seen.empty());                                 // the rule is not called
  CHECK_FALSE(sum_and_product(a, b)[1].wants_grad());  // without a tape
}

TEST_CASE("record: an op with two outputs within recompute, and under a FiniteGuard") {
  const Tensor a = leaf(Shape{1}, {3}), b = leaf(Shape{1}, {5});
  for (const bool both : {false, true}) {
    const auto f = [=] {
      const std::vector<Tensor> y = sum_and_product(a, b);
      return both ? add(y[0], y[1]) : y[1];
    };
    Tape tape;
    const Gradients g = tape.backward(sum(recompute(f)));
    CHECK(g.of(a).item() == (both ? 6 : 5));
    CHECK(g.of(b).item() == (both ? 4 : 3));
  }
  const FiniteGuard guard;
  Tape tape;
  check_fails([&] { sum_and_product(a, leaf(Shape{1}, {3e38f})); }, "result 1 of sum_and_product [1] has inf");
}

TEST_CASE("record: both outputs are freed as backward goes") {
  const Tensor x = leaf(Shape{1000}, std::vector<float>(1000, 1));
  const int64_t before = memory_use(Device::cpu).live;
  Tape tape;
  Tensor loss;
  {
    Tensor y = x;
    for (int i = 0; i < 10; ++i) {
      const std::vector<Tensor> both{Tensor::full(Shape{1000}, 1), Tensor::full(Shape{1000}, 2)};
      y = record("two", {y}, both,
                 [both](const std::vector<Tensor>& dy) -> std::vector<Tensor> { return {add(dy[0], both[1])}; })[0];
    }
    loss = sum(y);
  }
  CHECK(memory_use(Device::cpu).live == before + 20 * 4000 + 4);
  reset_peak(Device::cpu);
  tape.backward(loss);
  CHECK(memory_use(Device::cpu).live == before + 4);
  CHECK(memory_use(Device::cpu).peak <= before + 22 * 4000 + 8);
}

TEST_CASE("recompute: the same gradients to the bit, of all that the function uses, nested or not") {
  const Tensor x = random_tensor(Shape{4, 3}, 1).set_wants_grad(), w = random_tensor(Shape{3, 3}, 2).set_wants_grad();
  const Tensor b = random_tensor(Shape{3}, 3).set_wants_grad(), constant = random_tensor(Shape{4, 3}, 4);
  const auto step = [&](const Tensor& h) {  // uses h twice and w in every step
    return add(relu(add(matmul(h, w), constant)), scale(h, 0.5f));
  };
  const auto gradients = [&](const std::function<Tensor(const Tensor&)>& f) {
    Tape tape;
    const Gradients g = tape.backward(sum(add(f(scale(x, 2)), b)));
    return std::vector{g.of(x).to_vector(), g.of(w).to_vector(), g.of(b).to_vector()};
  };
  const auto plain = gradients([&](const Tensor& h) { return step(step(h)); });
  CHECK(gradients([&](const Tensor& h) { return recompute([=] { return step(step(h)); }); }) == plain);
  CHECK(gradients([&](const Tensor& h) {
          return recompute([=] { return step(recompute([=] { return step(h); })); });
        }) == plain);
  // Here w is used inside and outside: the gradients are added in another order.
  const auto apart = gradients([&](const Tensor& h) {
    const Tensor once = recompute([=] { return step(h); });
    return recompute([=] { return step(once); });
  });
  for (size_t i = 0; i < 3; ++i)
    CHECK_LE(distance({apart[i].begin(), apart[i].end()}, {plain[i].begin(), plain[i].end()}), rounding);
}

TEST_CASE("recompute: without a tape, or where there is nothing to differentiate, it is only the function") {
  const Tensor x = leaf(Shape{1}, {2}), constant(Shape{1}, {3});
  int calls = 0;
  const auto twice = [&calls](const Tensor& t) { return recompute([&calls, t] { return ++calls, scale(t, 2); }); };
  CHECK(!twice(x).wants_grad());
  Tape tape;
  CHECK(!twice(constant).wants_grad());
  CHECK(recompute([&] { return x; }).id() == x.id());
  CHECK(calls == 2);
  CHECK(tape.backward(sum(twice(x))).of(x).item() == 2);
  CHECK(calls == 4);
}

TEST_CASE("recompute: exceptions leave recording as it was") {
  const Tensor x = leaf(Shape{1}, {2});
  Tape tape;
  check_fails([&] { recompute([&] { return add(broadcast(x, Shape{3}), Tensor(Shape{2})); }); }, "add: b [2]");
  int calls = 0;
  const Tensor y = recompute([&calls, x] {
    check(++calls == 1, "not again");
    return scale(x, 2);
  });
  check_fails([&] { tape.backward(sum(y)); }, "not again");
  CHECK(tape.backward(sum(scale(x, 7))).of(x).item() == 7);
}

TEST_CASE("recompute: intermediate tensors are not kept") {
  const Tensor x = leaf(Shape{1000}, std::vector<float>(1000, 1));
  Tape tape;
  const int64_t before = memory_use(Device::cpu).live;
  const Tensor y = recompute([x] {
    Tensor h = x;
    for (int i = 0; i < 10; ++i) h = relu(h);
    return h;
  });
  CHECK(memory_use(Device::cpu).live == before + 4000);  // y
  CHECK(tape.backward(sum(y)).of(x).to_vector() == std::vector<float>(1000, 1));
}

TEST_CASE("FiniteGuard: names the first NaN or infinity, forward and backward, also within recompute") {
  const Tensor x = leaf(Shape{2}, {1, 1e-30f}), good = leaf(Shape{2}, {1, 2}), bad = leaf(Shape{2}, {1, NAN});
  const auto huge = [](const Tensor& t) { return scale(t, 1e25f); };
  const auto run = [](const std::function<Tensor()>& f) {
    Tape tape;
    tape.backward(sum(f()));
  };
  CHECK_NOTHROW(run([&] { return huge(huge(x)); }));
  for (const bool again : {false, true}) {
    const FiniteGuard guard;
    const auto guarded = [&](const std::function<Tensor()>& f, const char* words) {
      check_fails([&] { run([&] { return again ? recompute(f) : f(); }); }, words);
    };
    CHECK_NOTHROW(run([&] { return add(good, good); }));
    guarded([&] { return relu(huge(huge(x))); }, "the result of scale [2] has inf at element 0");
    guarded([&] { return add(good, bad); }, "input 1 of add [2] has nan at element 1");
    guarded([&] { return huge(huge(scale(good, 1e-30f))); },
            "the gradient of input 0 of scale [2] has inf at element 0");
    guarded([&] { return scale(add(scale(good, 1.5e38f), scale(good, 1.5e38f)), 1e-3f); },
            "the result of add [2] has inf at element 1");
  }
  CHECK_NOTHROW(run([&] { return add(good, bad); }));
}

#if defined(__x86_64__)
TEST_CASE("flush_subnormals: a thread's first tensor enables it, in the thread and in workers that it already has") {
  constexpr unsigned subnormals = 0x1f80;  // MXCSR as a program starts: subnormals are computed
  const auto threads = static_cast<size_t>(omp_get_max_threads());
  std::vector<int> before(threads, 0), after(threads, 1);  // whether a product is subnormal
  const auto product_is_subnormal = [] {
    volatile float tiny = 1e-20f;
    const volatile float product = tiny * tiny;
    return product > 0 ? 1 : 0;
  };
  std::thread([&] {
#pragma omp parallel
    {
      _mm_setcsr(subnormals);
      before[static_cast<size_t>(omp_get_thread_num())] = product_is_subnormal();
    }
    const Tensor first(Shape{1});
#pragma omp parallel
    after[static_cast<size_t>(omp_get_thread_num())] = product_is_subnormal();
  }).join();
  CHECK(before == std::vector<int>(threads, 1));
  CHECK(after == std::vector<int>(threads, 0));
}
#endif

TEST_CASE("Philox 4x32-10: the known answers published with Random123") {
  CHECK(philox({0, 0, 0, 0}, {0, 0}) == Philox{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  constexpr uint32_t ones = 0xffffffff;
  CHECK(philox({ones, ones, ones, ones}, {ones, ones}) == Philox{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
        Philox{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("Key: bits are the words of the blocks in order, also beyond 32 bits of block") {
  const Key key{0x123456789abcdef};
  for (uint64_t block : {uint64_t{0}, uint64_t{5}, (uint64_t{7} << 32) + 3}) {
    const Philox p = philox({static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), 0, 0}, key.words());
    for (uint64_t w = 0; w < 4; ++w) CHECK(key.bits(4 * block + w) == p[w]);
  }
}

TEST_CASE("Key: its step is the third word of Philox's counter, also after a fold; none is step 0") {
  const int32_t step = 77, zero = 0;
  const Key plain = Key{5}.fold(1), key = Key{5, &step}.fold(1);
  CHECK(key.value == plain.value);
  const Philox p = philox({9, 0, 77, 0}, key.words());
  for (uint64_t w = 0; w < 4; ++w) CHECK(key.bits(4 * 9 + w) == p[w]);
  CHECK(Key{5, &zero}.fold(1).block(9) == plain.block(9));
}

#if RUNNEL_WITH_ADDRESS_SANITIZER || RUNNEL_FRESH_IS_NAN
TEST_CASE("memory: under AddressSanitizer, what nobody wrote is NaN") {
  for (const int64_t n : {1, 33, 5000}) {
    { Tensor::full(Shape{n}, 1); }
    const std::vector<float> values = Tensor(Shape{n}).to_vector();
    CHECK(std::all_of(values.begin(), values.end(), [](float x) { return std::isnan(x); }));
  }
}
#endif

// Runs must draw the same numbers in every version.
TEST_CASE("Key: uniform, bounded, normal and folded numbers are these functions of Philox's words") {
  const Key key{0x123456789abcdef};
  for (uint64_t n : {uint64_t{0}, uint64_t{5}, (uint64_t{7} << 32) + 3}) {
    CAPTURE(n);
    const Philox p = philox({static_cast<uint32_t>(n), static_cast<uint32_t>(n >> 32), 0, 1}, key.words());
    CHECK(key.fold(n).value == p[0] + (uint64_t{p[1]} << 32));
    CHECK(key.uniform(n) == std::ldexp(std::floor(key.bits(n) / 512.0) + 0.5, -23));
    CHECK(key.below(n, 1000) == std::floor(std::ldexp(1000.0 * key.bits(n), -32)));
    const double radius = std::sqrt(-2 * std::log(key.uniform(2 * n))), angle = 2 * M_PI * key.uniform(2 * n + 1);
    CHECK(key.normal(n) == doctest::Approx(radius * std::cos(angle)).epsilon(1e-6));
  }
}

TEST_CASE("Key: moments of uniform and normal numbers") {
  // Tolerances are five standard deviations of the estimate.
  const int n = 200000;
  const Key key{2024};
  double u1 = 0, u2 = 0, z1 = 0, z2 = 0, z4 = 0;
  float lowest = 1, highest = 0;
  for (uint64_t i = 0; i < n; ++i) {
    const double u = key.uniform(i), z = key.fold(1).normal(i);
    lowest = std::min(lowest, key.uniform(i));
    highest = std::max(highest, key.uniform(i));
    u1 += u / n;
    u2 += u * u / n;
    z1 += z / n;
    z2 += z * z / n;
    z4 += z * z * z * z / n;
  }
  CHECK(lowest > 0);
  CHECK(lowest < 1e-4f);
  CHECK(highest < 1);
  CHECK(highest > 1 - 1e-4f);
  CHECK(std::abs(u1 - 0.5) < 5 * 0.2887 / std::sqrt(n));
  CHECK(std::abs(u2 - 1.0 / 3) < 5 * 0.2981 / std::sqrt(n));
  CHECK(std::abs(z1) < 5 / std::sqrt(n));
  CHECK(std::abs(z2 - 1) < 5 * std::sqrt(2.0 / n));
  CHECK(std::abs(z4 - 3) < 5 * std::sqrt(96.0 / n));
}

TEST_CASE("Key: below covers its range evenly") {
  const Key key{5};
  std::array<int, 7> counts{};
  for (uint64_t i = 0; i < 70000; ++i) ++counts.at(key.below(i, 7));
  for (int count : counts) CHECK(std::abs(count - 10000) < 5 * std::sqrt(10000.0 * 6 / 7));
}

TEST_CASE("Key: folded keys differ from each other, from their parent, and in order of folding") {
  const Key key{1};
  std::set<uint64_t> values{key.value};
  for (uint64_t n = 0; n < 1000; ++n) values.insert(key.fold(n).value);
  values.insert(key.fold(uint64_t{1} << 32).value);
  CHECK(values.size() == 1002);
  CHECK(key.fold(1).fold(2).value != key.fold(2).fold(1).value);
  // Sequences of neighbouring keys are uncorrelated.
  const int n = 100000;
  const Key a = key.fold(0), b = key.fold(1);
  double with_sibling = 0, with_parent = 0;
  for (uint64_t i = 0; i < n; ++i) {
    const double u = a.uniform(i) - 0.5;
    with_sibling += 12 * u * (b.uniform(i) - 0.5) / n;
    with_parent += 12 * u * (key.uniform(i) - 0.5) / n;
  }
  CHECK(std::abs(with_sibling) < 5 / std::sqrt(n));
  CHECK(std::abs(with_parent) < 5 / std::sqrt(n));
}
