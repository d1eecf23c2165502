// The program on CUDA against the program on the CPU: the same losses, the same images. Where there is a GPU, on it; in
// a build with the stand-in, on that; otherwise only what it says when there is none.
#include <filesystem>

#if RUNNEL_CUDA_IS_EMULATED
#include <cuda_runtime.h>
#endif

#include "apps/training/updater.h"
#include "engine/host.h"
#include "engine/replay.h"
#include "engine/timing.h"
#include "models/decoder.h"
#include "models/generation.h"
#include "models/muon.h"
#include "ops/elementwise.h"
#include "ops/layers.h"
#include "ops/linear.h"
#include "ops/losses.h"
#include "ops/reductions.h"
#include "ops/shapes.h"
#include "tests/check.h"
#include "tests/mnist.h"
#include "tests/program.h"

namespace runnel::test {
namespace {

bool has_cuda() { return why_unavailable(Device::cuda).empty(); }

std::vector<double> losses(const fs::path& run) {
  std::vector<double> column;
  const std::vector<std::string> rows = split(read(run / "metrics.csv"), '\n');
  for (size_t i = 1; i < rows.size(); ++i) column.push_back(std::stod(split(rows[i], ',')[1]));
  return column;
}

// A GPU's exponentials differ in the last place, so that of a million bytes it draws a few differently, and then what
// follows them. Those of the emulator do not, by default.
void check_same_draws(const fs::path& on_cpu, const fs::path& on_cuda) {
  CHECK(!read(on_cuda).empty());
  if (cuda_is_emulated()) CHECK(read(on_cpu) == read(on_cuda));
}

const std::string copy_by_default =
    "copy train --preset tiny --length 16 --width 16 --heads 2 --feed-forward 32 --batch 4 --steps 6 --log-every 1 "
    "--dropout 0.1 --micro-batch 4 ";
const std::string copy_on_any_threads = copy_by_default + "--precision f32 ";
const std::string copy_train = copy_on_any_threads + "--threads 1 ";
const std::string mnist_train =
    "mnist train --preset tiny --precision f32 --data data --side 7 --layers 1 --width 16 --heads 2 "
    "--feed-forward 16 --batch 2 --micro-batch 2 --minutes 0 --steps 2 --log-every 1 --evaluate-every 2 --threads 1 ";

}  // namespace

TEST_CASE("--device cuda where there is none says so") {
  if (has_cuda()) return;
  const Sandbox box;
  const Result result = box.run("copy train --device cuda --out run");
  CHECK(result.status == 1);
  CHECK(result.err.find("--device cuda: ") != std::string::npos);
  CHECK(!fs::exists(box.folder / "run"));
}

TEST_CASE("--device: what is none, a GPU that is not there, one that is busy or not supported") {
  const Sandbox box;
  for (const std::string device : {"gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:1.5", "cuda:N", "cuda:00000"}) {
    const Result result = box.run("copy train --out run --device " + device);
    CHECK(result.status == 2);
    CHECK(result.err.find("--device: " + device + " is not one of auto, cpu, cuda, cuda:N") != std::string::npos);
  }
  if (!has_cuda()) return;
  succeed(box, copy_train + "--device cuda:0 --out numbered");
  const auto check_refused = [&](const std::string& device, const std::string& fault, const std::string& message) {
    setenv("SIMT_FAULT", fault.c_str(), 1);
    const Result result = box.run("copy train --out run --device " + device);
    unsetenv("SIMT_FAULT");
    CHECK(result.status == 1);
    CHECK_MESSAGE(result.err.find("--device " + device + ": ") != std::string::npos, result.err);
    CHECK_MESSAGE(result.err.find(message) != std::string::npos, result.err);
    CHECK(result.err.find("; compute on the CPU with --device cpu") != std::string::npos);
    CHECK(!fs::exists(box.folder / "run"));
  };
  check_refused("cuda:1000", "", "there is no CUDA device 1000");
  if (!cuda_is_emulated()) return;
  check_refused("cuda", "busy", "busy or unavailable");
  check_refused("cuda", "unsupported", "has compute capability 12.0, for which this build has no kernels");
  for (const std::string fault : {"no-pools", "refused-pools"})
    check_refused("cuda", fault,
                  " has no memory pools (cudaMallocAsync): update the driver; in a virtual machine, use a whole GPU, "
                  "passed through or as a vGPU with unified memory enabled; compute on the CPU");
  setenv("SIMT_FAULT", "no-pools", 1);
  succeed(box, copy_train + "--device auto --out run");
  unsetenv("SIMT_FAULT");
}

TEST_CASE("a GPU that is lost during a run: its checkpoint is good, and the run goes on on the CPU") {
  if (!cuda_is_emulated()) return;
  const Sandbox box;
  setenv("SIMT_FAULT", "lost:600", 1);
  const Result result = box.run(copy_by_default + "--save-every 2 --device cuda --out run");
  unsetenv("SIMT_FAULT");
  CHECK(result.status == 1);
  CHECK_MESSAGE(result.err.find("unspecified launch failure; this process has lost the GPU") != std::string::npos,
                result.err);
  REQUIRE(fs::exists(box.folder / "run" / "last.safetensors"));
  const Result refused = box.run("copy train --resume --out run --device cpu");
  CHECK(refused.err == "runnel: --precision tf32 is for --device cuda; give f32 or bf16\n");
  succeed(box, "copy train --resume --out run --device cpu --precision f32");
  CHECK(losses(box.folder / "run").size() == 6);
}

TEST_CASE("memory of a replayed graph is free again after it") {
  if (!has_cuda()) return;
  const auto kept = [] {
    trim_memory(Device::cuda);  // which leaves what is reserved for graphs
    return memory_use(Device::cuda).cached;
  };
  const int64_t before = kept();
  {
    Replay replay(Device::cuda, [] { Tensor::full(Shape{1 << 20}, 1, Device::cuda); });
    for (int i = 0; i < 3; ++i) replay.run();
    synchronize(Device::cuda);
  }
  CHECK(kept() <= before);
}

TEST_CASE("Tensor::full on CUDA, also in a graph") {
  if (!has_cuda()) return;
  CHECK(Tensor::full(Shape{0}, 1, Device::cuda).to_vector().empty());
  CHECK(Tensor::full(Shape{5}, -2, Device::cuda).to_vector() == std::vector<float>(5, -2));
  Tensor sum = Tensor::full(Shape{1}, 0, Device::cuda);
  Replay replay(Device::cuda, [&] {
    const Tensor next = add(sum, Tensor::full(Shape{1}, 3, Device::cuda));
    copy(sum.data(), Device::cuda, next.data(), Device::cuda, sizeof(float));
  });
  for (int i = 0; i < 4; ++i) replay.run();
  CHECK(sum.item() == 12);
}

TEST_CASE("copy train on CUDA: the losses of the CPU, and the same bytes twice") {
  if (!has_cuda()) return;
  const Sandbox box;
  succeed(box, copy_train + "--device cpu --out cpu");
  succeed(box, copy_train + "--device cuda --out one");
  succeed(box, copy_train + "--device cuda --out two");
  const std::vector<double> on_cpu = losses(box.folder / "cpu"), on_cuda = losses(box.folder / "one");
  REQUIRE(on_cpu.size() == 6);
  CHECK_LE(distance(on_cuda, on_cpu), 2e-5);  // the same dropout masks, sums in another order
  CHECK(read(box.folder / "one" / "metrics.csv").size() > 0);
  CHECK(read(box.folder / "one" / "best.safetensors") == read(box.folder / "two" / "best.safetensors"));
  const Result evaluated =
      succeed(box, "copy evaluate --device cuda --precision f32 --model one --sequences 20 --show 1");
  CHECK(evaluated.out.find("masked accuracy") != std::string::npos);
}

TEST_CASE("training on CUDA: an update that is a graph leaves the bytes of kernels launched one by one") {
  if (!has_cuda()) return;
  const Sandbox box;
  for (const std::string flags :
       {"--attention linear --optimizer radam --micro-batch 3", "--attention lsh --recompute --layers 1"}) {
    CAPTURE(flags);
    const std::string train = copy_train + flags + " --steps 3 --overwrite --device cuda --out ";
    succeed(box, train + "graph");
    setenv("RUNNEL_PROFILE", "1", 1);
    const Result result = box.run(train + "single");
    unsetenv("RUNNEL_PROFILE");
    CHECK(result.status == 0);
    CHECK(read(box.folder / "graph" / "last.safetensors") == read(box.folder / "single" / "last.safetensors"));
  }
}

TEST_CASE("Updater: the losses of the CPU on CUDA, where an update is a graph, also when shapes change") {
  std::vector<std::vector<double>> all_losses;
  for (const Device device : devices()) {
    const AutoregressiveTransformer model(
        {.encoder = {.layers = 1, .heads = 1, .head_dim = 4, .feed_forward = 8, .dropout = 0.2}, .max_length = 6},
        Key{1}, device);
    AdamOptions options = authors_options;
    options.lr = 0.01;
    ShardedOptimizer optimizer(model.parameters(), options, true);
    Updater updater(optimizer, device, Key{2}, [&](const Slice& slice, Key key) {
      return cross_entropy(model(slice.indices[0], key), slice.indices[0], slice.numbers[0]);
    });
    const auto slice = [](int64_t batch, uint64_t seed, float weight) {
      const Shape shape{batch, 6};
      return Slice{{random_indices(shape, seed, 11)}, {Tensor::full(shape, weight)}, static_cast<double>(batch), 0};
    };
    std::vector<double>& losses = all_losses.emplace_back();
    const auto update = [&](const std::vector<Slice>& slices) {
      const Updater::Result result = updater.update(std::ssize(losses), slices);
      CHECK(result.is_finite);
      losses.push_back(result.loss);
    };
    for (uint64_t step = 0; step < 5; ++step) update({slice(2, step, 1)});
    for (uint64_t step = 0; step < 3; ++step) update({slice(3, step, 1)});
    for (uint64_t step = 0; step < 3; ++step) update({slice(1, step, 1), slice(2, step + 9, 1)});
    for (uint64_t step = 0; step < 4; ++step) update({slice(2, step, 1)});

#if RUNNEL_CUDA_IS_EMULATED
    if (device == Device::cuda) {
      const size_t before = simt::launches();
      update({slice(2, 4, 1)});
      // No kernel, but copies: of tokens, mask, share and step, of RAdam's and Muon's rates, and of the result.
      CHECK(simt::launches() - before == 7);
    } else {
      update({slice(2, 4, 1)});
    }
#endif

    std::vector<std::vector<float>> before;
    for (const NamedTensor& parameter : model.parameters()) before.push_back(parameter.tensor.to_vector());
    CHECK_FALSE(updater.update(1, {slice(2, 1, INFINITY)}).is_finite);
    for (size_t i = 0; i < before.size(); ++i) CHECK(model.parameters()[i].tensor.to_vector() == before[i]);
    CHECK(contains(updater.first_non_finite(), "cross_entropy"));
  }
  for (const std::vector<double>& losses : all_losses) CHECK_LE(distance(losses, all_losses[0]), 2e-5);
}

TEST_CASE("mnist with softmax attention on CUDA: the losses and the images of the CPU") {
  if (!has_cuda()) return;
  const WithDigits box;
  for (const std::string device : {"cpu", "cuda"}) {
    succeed(box, mnist_train + "--attention softmax --device " + device + " --out " + device);
    succeed(box, "mnist sample --count 1 --precision f32 --threads 1 --model cpu --device " + device + " --out " +
                     device + ".png");
  }
  CHECK_LE(distance(losses(box.folder / "cuda"), losses(box.folder / "cpu")), 2e-5);
  check_same_draws(box.folder / "cpu.png", box.folder / "cuda.png");
}

TEST_CASE("mnist on CUDA: the losses and the images of the CPU") {
  if (!has_cuda()) return;
  const WithDigits box;
  succeed(box, mnist_train + "--device cpu --out cpu");
  succeed(box, mnist_train + "--device cuda --out cuda");
  CHECK_LE(distance(losses(box.folder / "cuda"), losses(box.folder / "cpu")), 2e-5);
  for (const std::string device : {"cpu", "cuda"}) {
    const std::string where = " --precision f32 --threads 1 --device " + device + " --model cpu --out " + device;
    succeed(box, "mnist sample --count 2" + where + "-samples.png");
    succeed(box, "mnist complete --index 0 --ways 2" + where + "-completions.png");
    succeed(box, "mnist evaluate --limit 2" + where + "-bits.png");
  }
  for (const std::string picture : {"samples", "completions", "bits"})
    check_same_draws(box.folder / ("cpu-" + picture + ".png"), box.folder / ("cuda-" + picture + ".png"));
}

#if RUNNEL_CUDA_IS_EMULATED
// Of the paper's eight layers, with heads that are cut into segments; all else is small.
TEST_CASE(
    "CUDA: at most 305 launches for a training step of eight layers, 64 for a byte that is drawn, 20 of Muon for a "
    "shape") {
  AutoregressiveConfig config;
  config.encoder = {.layers = 8, .heads = 2, .head_dim = 8, .feed_forward = 32, .dropout = 0.1};
  config.vocabulary = 256;
  config.outputs = 30;
  config.max_length = 128;
  const AutoregressiveTransformer model(config, Key{1}, Device::cuda);
  Adam optimizer(model.parameters(), authors_options);
  const Indices tokens(Shape{1, 128}, random_indices(Shape{1, 128}, 2, 256).to_vector(), Device::cuda);
  const auto launches_of = [](const auto& f) {
    const size_t before = simt::launches();
    f();
    return simt::launches() - before;
  };
  const size_t of_step = launches_of([&] {
    Tape tape;
    const Tensor nll = logistic_mixture_nll(model(tokens, Key{3}), tokens);
    optimizer.step(tape.backward(scale(sum(nll), 1.0f / 128)));
  });
  CHECK_LE(of_step, 305);

  const std::unique_ptr<Decoder> decoder = incremental_decoder(model, 2);
  Indices last(Shape{2}, {1, 2}, Device::cuda), bytes(Shape{128, 2}, Device::cuda);
  const Keys keys(Shape{2}, {Key{4}, Key{5}}, Device::cuda);
  const size_t of_byte = launches_of([&] {
    const Indices next = logistic_mixture_sample(decoder->step(last), keys, 1, decoder->position());
    assign(last, next);
    put_row(bytes, next, decoder->position());
  });
  CHECK_LE(of_byte, 64);
  MESSAGE(of_step << " launches for a step, " << of_byte << " for a byte");

  const Parameters all = model.parameters();
  Optimizer muon(all, authors_options, true);
  Optimizer radam(all, authors_options);
  const auto gradients = [&] {
    Tape tape;
    const Tensor nll = logistic_mixture_nll(model(tokens, Key{3}), tokens);
    return tape.backward(sum(nll));
  }();
  const size_t more = launches_of([&] { muon.step(gradients); }) - launches_of([&] { radam.step(gradients); });
  CHECK_LE(more, 3 * 20);  // for each of three shapes
}
#endif

TEST_CASE("fewer threads than were asked for, by OMP_THREAD_LIMIT, change no loss") {
  const Sandbox box;
  succeed(box, copy_train + "--device cpu --out free");
  setenv("OMP_THREAD_LIMIT", "1", 1);
  const pid_t limited = box.start(copy_on_any_threads + "--threads 2 --device cpu --out limited");
  unsetenv("OMP_THREAD_LIMIT");
  REQUIRE(box.finish(limited).status == 0);
  CHECK_LE(distance(losses(box.folder / "limited"), losses(box.folder / "free")), rounding);
}

TEST_CASE(
    "RUNNEL_PROFILE=1 on CUDA: a table of kernels; those of a graph are launched one by one, with the same result") {
  if (!has_cuda()) return;
  const WithDigits box;
  succeed(box, mnist_train + "--device cpu --out run");
  const std::string draw = "mnist sample --count 1 --device cuda --model run --out ";
  succeed(box, draw + "graph.png");
  setenv("RUNNEL_PROFILE", "1", 1);
  const Result result = box.run(draw + "timed.png");
  unsetenv("RUNNEL_PROFILE");
  CHECK(result.status == 0);
  CHECK(read(box.folder / "graph.png") == read(box.folder / "timed.png"));
  for (const std::string kernel : {"linear_attention_step", "put_row"})  // once a byte, of which the first is given
    CHECK(contains(result.err, "\n" + kernel + std::string(49 - kernel.size(), ' ') + "48 "));
  CHECK(contains(result.err, "\nproduct "));
  CHECK(contains(result.err, "\nall kernels "));
  CHECK_FALSE(contains(result.err, "outside of kernels"));
}

TEST_CASE(
    "products whose epilogue cuBLAS refuses: training goes on, each kind is tried once, the profile says so once") {
  if (!cuda_is_emulated()) return;
  const Sandbox box;
  const std::string train = copy_train + "--dropout 0 --steps 3 --device cuda --out ";
  succeed(box, train + "fused");
  const auto with_fault = [&](const std::string& fault, const std::string& profile, const std::string& out) {
    setenv("SIMT_FAULT", fault.c_str(), 1);
    setenv("RUNNEL_PROFILE", profile.c_str(), 1);
    const Result result = box.run(train + out);
    unsetenv("RUNNEL_PROFILE");
    unsetenv("SIMT_FAULT");
    return result;
  };
  CHECK(with_fault("refused-epilogues", "0", "graph").status == 0);
  const Result result = with_fault("refused-epilogues", "1", "single");
  CHECK(result.status == 0);
  CHECK_LE(distance(losses(box.folder / "graph"), losses(box.folder / "fused")), 1e-6);
  CHECK(read(box.folder / "graph" / "last.safetensors") == read(box.folder / "single" / "last.safetensors"));
  std::vector<int64_t> refused;  // calls, in each of the profile's lines about it
  for (const std::string& line : split(result.err, '\n'))
    if (line.starts_with("product whose epilogue cuBLAS refused ")) refused.push_back(std::stoll(line.substr(40)));
  REQUIRE(refused.size() == 1);
  CHECK(refused[0] >= 3);   // bias, bias and relu, the bias' gradient
  CHECK(refused[0] <= 20);  // kinds of product: each was tried once in three steps
  CHECK_FALSE(contains(box.run(train + "--overwrite fused").err, "refused"));

  const Result plain = with_fault("refused-products", "0", "plain");
  CHECK(plain.status == 1);
  CHECK(contains(plain.err, "on this GPU; compute with another --precision, or on the CPU with --device cpu"));
}

TEST_CASE("kernel_time counts the kernels of some work, device_seconds takes as long as all of it") {
  for (const Device device : devices()) {
    const Tensor x = random_tensor(Shape{100, 100}, 1).to(device);
    scale(x, 2);
    KernelTime time;
    const double seconds = device_seconds(device, [&] {
      time = kernel_time(device, [&] {
        for (int i = 0; i < 3; ++i) add(scale(x, 2), x);
      });
    });
    CHECK(time.calls == 6);
    CHECK(time.seconds > 0);
    CHECK(seconds > time.seconds);
    CHECK(kernel_time(device, [] {}).calls == 0);
  }
}

TEST_CASE("ops refuse tensors of two devices") {
  if (!has_cuda()) return;
  const Tensor here = random_tensor(Shape{2, 3}, 1), there = here.to(Device::cuda);
  CHECK(there.to_vector() == here.to_vector());
  check_fails([&] { add(here, there); }, "add: its arguments do not all lie on cpu");
  check_fails([&] { linear(there, here, {}); }, "linear: its arguments do not all lie on cuda");
}

TEST_CASE("CUDA memory is counted, and running out of it is one sentence") {
  if (!has_cuda()) return;
  const int64_t before = memory_use(Device::cuda).live;
  {
    const Tensor x(Shape{1000}, Device::cuda);
    CHECK(memory_use(Device::cuda).live == before + 4000);
  }
  CHECK(memory_use(Device::cuda).live == before);
  check_fails([] { Tensor(Shape{int64_t{1} << 45}, Device::cuda); },
              "out of memory on cuda: asked for 140737488355328 bytes");
}

TEST_CASE("tensors of more than 2^31 elements") {
  constexpr int64_t n = (int64_t{1} << 31) + 37;
  if (!has_cuda() || cuda_is_emulated() || free_memory(Device::cuda) < 5 * n * 4) {
    MESSAGE("skipped: 1 test, it takes a GPU with 43 GB of free memory");
    return;
  }
  const Tensor x = Tensor::full(Shape{n}, 3, Device::cuda);
  Tensor last(Shape{1}, Device::cuda);
  const Tensor y = dropout(scale(x, 2), {0.25f, Key{1}});
  for (const int64_t i : {int64_t{0}, n / 2, n - 2, n - 1}) {
    copy(last.data(), Device::cuda, y.data() + i, Device::cuda, sizeof(float));
    const bool kept = ((Key{1}.bits(static_cast<uint64_t>(i) / 2) >> (16 * (i % 2))) & 0xffff) >= 16384;
    CHECK(last.item() == (kept ? 8 : 0));
  }
}

}  // namespace runnel::test
