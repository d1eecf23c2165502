// Several processes: sums of gradients over a tree of parts, and runs that mpirun starts, which leave the same bytes
// whatever their number.
#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdlib>
#include <thread>

#include "apps/processes/launcher.h"
#include "apps/processes/tree_sum.h"
#include "apps/training/communicator.h"
#include "apps/training/gradient_sum.h"
#include "apps/training/settings.h"
#include "apps/training/updater.h"
#include "apps/training/workers.h"
#include "engine/check.h"
#include "engine/device.h"
#include "engine/threads.h"
#include "models/safetensors.h"
#include "ops/elementwise.h"
#include "ops/numerics.h"
#include "ops/reductions.h"
#include "tests/check.h"
#include "tests/cluster.h"
#include "tests/folder.h"
#include "tests/mnist.h"

namespace runnel::test {
namespace {

// To the nearest bfloat16, ties to even.
float rounded(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  return std::bit_cast<float>((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000);
}

// The sum of x[begin] .. x[end - 1] with the longer half, a power of two, on the left. bf16: each sum and each number
// is rounded.
float tree_sum(const std::vector<float>& x, bool bf16, size_t begin, size_t end) {
  const size_t middle = begin + std::bit_ceil(end - begin) / 2;
  const float sum = end - begin == 1 ? x[begin] : tree_sum(x, bf16, begin, middle) + tree_sum(x, bf16, middle, end);
  return bf16 ? rounded(sum) : sum;
}

// The parameters and moments that a run left, together.
std::vector<double> numbers(const fs::path& run) {
  std::vector<double> all;
  for (const auto& [name, tensor] : load_safetensors(run / "last.safetensors").tensors)
    for (const float x : tensor.to_vector()) all.push_back(x);
  return all;
}

const std::string copy_flags =
    "copy train --threads 1 --quiet --preset tiny --length 16 --width 16 --heads 2 --layers 1 --feed-forward 16 "
    "--dropout 0.1 --batch 8 --log-every 1 --evaluate-every 4 ";

}  // namespace

TEST_CASE("gradient sum: any number of parts is added as a binary tree over their numbers, whoever comes when") {
  for (Device device : devices())
    for (const bool bf16 : {false, true}) {
      CAPTURE(bf16);
      Tensor p = random_tensor(Shape{3, 5}, 1, -1, 1, device), q = random_tensor(Shape{40}, 2, -1, 1, device);
      p.set_wants_grad();
      q.set_wants_grad();
      GradientSum sum({{"p", p}, {"q", q}}, {.bf16 = bf16});
      for (int64_t parts : {1, 2, 3, 4, 5, 6, 7, 8, 13, 1}) {
        CAPTURE(parts);
        std::vector<std::vector<float>> dp(15), dq(40);
        std::vector<float> losses;
        std::vector<std::pair<Tensor, Gradients>> all;
        for (int64_t i = 0; i < parts; ++i) {
          const auto seed = static_cast<uint64_t>(100 * parts + i);
          const Tensor a = random_tensor(p.shape(), seed, -1, 1, device);
          const Tensor b = random_tensor(q.shape(), seed + 50, -1, 1, device);
          Tape tape;
          const Tensor loss = add(runnel::sum(multiply(p, a)), runnel::sum(multiply(q, b)));
          losses.push_back(loss.item());
          for (size_t j = 0; j < dp.size(); ++j) dp[j].push_back(a.to_vector()[j]);
          for (size_t j = 0; j < dq.size(); ++j) dq[j].push_back(b.to_vector()[j]);
          all.emplace_back(loss, tape.backward(loss));
        }
        const auto add_part = [&](int64_t i) {
          const auto& [loss, gradients] = all[static_cast<size_t>(i)];
          sum.add(i, q.id(), scale(gradients.of(q), 1));  // may be added to in place
          sum.add(i, p.id(), gradients.of(p));            // others have this storage
          sum.add_loss(i, loss);
        };
        const auto check_result = [&] {
          const auto [loss, gradients] = sum.finish();
          CHECK(loss.item() == tree_sum(losses, false, 0, losses.size()));
          const auto check_sums = [bf16](const Tensor& gradient, const std::vector<std::vector<float>>& of_parts) {
            for (size_t j = 0; j < of_parts.size(); ++j)
              CHECK(gradient.to_vector()[j] == tree_sum(of_parts[j], bf16, 0, of_parts[j].size()));
          };
          check_sums(gradients.of(p), dp);
          check_sums(gradients.of(q), dq);
        };
        sum.begin(parts);
        for (int64_t i = 0; i < parts; ++i) add_part(i);
        check_result();
        sum.begin(parts);
        for (int64_t i = parts - 1; i >= 0; --i) add_part(i);
        check_result();
        if (device == Device::cuda) continue;  // whose work is given by one thread
        sum.begin(parts);
        Workers(4, 1).run(parts, add_part);
        check_result();
      }
      sum.begin(2);
      sum.add(0, q.id(), q);
      sum.begin(2);  // forgets what was begun
      sum.add(1, q.id(), q);
      for (const int64_t part : {0, 1}) {
        sum.add(part, p.id(), p);
        sum.add_loss(part, runnel::sum(p));
      }
      check_fails([&] { sum.finish(); },
                  "there is no gradient of q: the loss of a part of the batch does not depend on it");
      sum.begin(1);
      check_fails([&] { sum.add(0, Tensor(Shape{2}).id(), p); }, "a tensor [3,5] that is not among the parameters");
    }
}

TEST_CASE("Updater: threads compute the parts, and the caller alone sends, the last parameters first") {
  struct Recorder : Communicator {
    Recorder() {
      size_ = 2;
      floats_at_once_ = 24;
    }
    void start_sum(float* x, int64_t n, SumOptions options) override {
      if (sent.empty()) first_number = x[0];
      sent.emplace_back(n, options.any_order);
      if (std::this_thread::get_id() != caller) by_others = true;
    }
    std::string gather(const std::string& bytes) override { return bytes + bytes; }
    std::vector<std::pair<int64_t, bool>> sent;
    float first_number = 0;
    bool by_others = false;
    std::thread::id caller = std::this_thread::get_id();
  };
  const auto all = std::make_shared<Recorder>();
  set_processes(all);
  const OmpThreads threads(4);
  Tensor p = random_tensor(Shape{40}, 1), q = random_tensor(Shape{15}, 2);
  p.set_wants_grad();
  q.set_wants_grad();
  std::atomic<bool> fails = false;
  std::atomic<int> begun = 0;
  const int workers = std::min(omp_get_max_threads(), 4);
  Updater updater({{{"p", p}, {"q", q}}, {}}, Device::cpu, Key{1},
                  [&](const Slice& slice, Key) {
                    for (++begun; begun < workers;) std::this_thread::yield();  // until each worker has one
                    if (fails && slice.weight == 3) fail("no loss");
                    return scale(add(sum(p), scale(sum(q), 100)), static_cast<float>(slice.weight));
                  },
                  {.any_order = true});
  const std::vector<Slice> slices{{{}, {}, 1, 1}, {{}, {}, 2, 1}, {{}, {}, 3, 1}, {{}, {}, 4, 1}};
  for (int64_t step = 0; step < 20; ++step) {
    all->sent.clear();
    begun = 0;
    CHECK(updater.update(step, slices).is_finite);
    // q in 16 floats and p in 48, as whole lines of the cache; then the loss, exactly.
    CHECK(all->sent == std::vector<std::pair<int64_t, bool>>{{24, true}, {24, true}, {16, true}, {16, false}});
    CHECK(all->first_number > 50);  // the gradient of q
    fails = true;
    begun = 0;
    check_fails([&] { updater.update(step, slices); }, "no loss");
    fails = false;
  }
  CHECK_FALSE(all->by_others);
  set_processes(std::make_shared<Communicator>());
}

TEST_CASE("processes: exchanges of halves leave the sums of the tree everywhere") {
  for (const int size : {1, 2, 4, 8, 16})
    for (const int64_t n : {0, 1, 3, 16, 37}) {
      CAPTURE(size);
      CAPTURE(n);
      std::vector<std::vector<float>> x;  // [size,n]
      for (int rank = 0; rank < size; ++rank)
        x.push_back(random_tensor(Shape{n}, static_cast<uint64_t>(rank), -1, 1).to_vector());
      const std::vector<std::vector<float>> own = x;
      for (size_t step = 0; step < tree_exchanges(0, size, n).size(); ++step) {
        const std::vector<std::vector<float>> before = x;
        for (int rank = 0; rank < size; ++rank) {
          const Exchange e = tree_exchanges(rank, size, n)[step];
          const Exchange other = tree_exchanges(e.neighbour, size, n)[step];
          CHECK(other.neighbour == rank);
          CHECK(other.sent.first == e.received.first);
          CHECK(other.sent.count == e.received.count);
          for (int64_t i = e.received.first; i < e.received.first + e.received.count; ++i) {
            float& sum = x[static_cast<size_t>(rank)][static_cast<size_t>(i)];
            sum = (e.adds ? sum : 0) + before[static_cast<size_t>(e.neighbour)][static_cast<size_t>(i)];
          }
        }
      }
      for (size_t i = 0; i < static_cast<size_t>(n); ++i) {
        std::vector<float> of_ranks;
        for (const std::vector<float>& numbers : own) of_ranks.push_back(numbers[i]);
        const float sum = tree_sum(of_ranks, false, 0, of_ranks.size());
        for (const std::vector<float>& numbers : x) CHECK(numbers[i] == sum);
      }
    }
}

TEST_CASE("processes: 1, 2 and 4 leave the same checkpoint and metrics") {
  const Cluster box;
  if (!box) return;
  std::vector<std::string> all{"--steps 6", "--steps 6 --gradients bf16 --shard --optimizer muon",
                               "--steps 6 --attention lsh --shard",
                               // Three ranges of gradients, of which two are sent while the backward pass goes on:
                               "--steps 3 --width 256 --feed-forward 600"};
  if (has_gpus()) all.push_back("--steps 3 --gradients bf16 --shard --micro-batch 1 --device cuda");
  for (const std::string& flags : all) {
    CAPTURE(flags);
    for (const int count : {1, 2, 4})
      box.succeed(count, copy_flags + (count > 1 ? "--threads 2 " : "") + flags + " --overwrite --out " +
                             std::to_string(count));
    for (const char* run : {"2", "4"}) {
      CHECK(box.last(run) == box.last("1"));
      CHECK(untimed(box.folder / run / "metrics.csv") == untimed(box.folder / "1" / "metrics.csv"));
      CHECK(read(box.folder / run / "best.safetensors") == read(box.folder / "1" / "best.safetensors"));
    }
  }
}

TEST_CASE("processes: images and their validation are the same from two") {
  const Cluster box;
  if (!box) return;
  write_mnist(box.folder / "data", 220, 20);
  check_same_from_two(
      box, "mnist train --data data --preset tiny --side 7 --width 16 --layers 1 --feed-forward 16 --minutes 0");
  for (const std::string count : {"1", "2"})
    box.succeed(std::stoi(count), "mnist complete --quiet --model 1 --index 0-2 --ways 2 --out " + count + ".png");
  CHECK(read(box.folder / "2.png") == read(box.folder / "1.png"));
}

TEST_CASE("processes: two that torchrun starts leave the checkpoint of one") {
  if (!has_gpus()) return;
  const Torchrun box;
  const std::string flags = copy_flags + "--device cuda --micro-batch 1 --steps 3 --out ";
  for (const int count : {1, 2}) {
    const Result result = box.run(box.script(count, flags + std::to_string(count)));
    CAPTURE(result.err);
    REQUIRE(result.status == 0);
  }
  CHECK(read(box.folder / "1/last.safetensors") == read(box.folder / "2/last.safetensors"));
}

TEST_CASE("processes: one that torchrun starts is connected by NCCL, and leaves the checkpoint of one by itself") {
  if (!has_gpus()) return;
  Torchrun box;
  const std::string flags =
      copy_flags + "--device cuda --micro-batch 1 --reduction fast --shard --steps 3 --overwrite --out ";
  setenv("NCCL_DEBUG", "INFO", 1);
  const Result launched = box.run(box.script(1, flags + "launched"));
  box.executable = program();
  const Result alone = box.run(flags + "alone");
  unsetenv("NCCL_DEBUG");
  CAPTURE(launched.err);
  CHECK(contains(launched.err, "NCCL: rank 0 of 1 is connected"));
  CHECK_FALSE(contains(alone.err, "is connected"));
  REQUIRE(launched.status == 0);
  REQUIRE(alone.status == 0);
  CHECK(read(box.folder / "launched/last.safetensors") == read(box.folder / "alone/last.safetensors"));
}

TEST_CASE("processes: one whose GPU waits for a process that is gone ends with a sentence") {
  if (!has_gpus()) return;
  const Torchrun box;
  const pid_t running = box.start(box.script(2, copy_flags + "--device cuda --steps 1000000 --log-every 1 --out run"));
  REQUIRE(wait_until([&] { return fs::exists(box.folder / "run/metrics.csv"); }));
  const std::vector<std::string> pids = split(read(box.folder / "pids"), ' ');
  REQUIRE(pids.size() == 2);
  kill(std::stoi(pids[1]), SIGKILL);
  const Result result = box.finish(running);
  CHECK(result.status == 1);
  CHECK(result.err.find("rank 0 on host") != std::string::npos);
  CHECK(result.err.find("has lost another process") != std::string::npos);
}

TEST_CASE("processes: --reduction fast differs by rounding") {
  const Cluster box;
  if (!box) return;
  for (const std::string device : {"cpu", "cuda"}) {
    if (device == "cuda" && !has_gpus()) continue;
    const std::string flags = copy_flags + "--steps 2 --overwrite --device " + device;
    box.succeed(4, flags + " --out exact");
    box.succeed(4, flags + " --reduction fast --out fast");
    CHECK_LE(distance(numbers(box.folder / "fast"), numbers(box.folder / "exact")), rounding);
    CHECK(box.last("fast") != box.last("exact"));
  }
}

TEST_CASE("processes: a run begun by four goes on with two, and then with one, to the same bytes") {
  const Cluster box;
  if (!box) return;
  box.succeed(1, copy_flags + "--optimizer muon --steps 9 --out whole");
  box.succeed(4, copy_flags + "--optimizer muon --steps 3 --shard --out parts");
  box.succeed(2, "copy train --resume --out parts --steps 6");
  box.succeed(1, "copy train --resume --out parts --quiet --steps 9");
  CHECK(numbers(box.folder / "parts") == numbers(box.folder / "whole"));
}

TEST_CASE("processes: what cannot be divided, or was started with other flags, is refused once, by name") {
  const Cluster box;
  if (!box) return;
  const bool is_open_mpi_5 = contains(box.run("--version").out, "(Open MPI) 5.");
  const auto refused = [&](const std::string& words, int status, const std::string& sentence) {
    const Result result = box.run(words);
    CAPTURE(words);
    CAPTURE(result.err);
    if (result.status == -SIGSEGV && contains(words, " : ") && is_open_mpi_5) {
      MESSAGE("this mpirun crashes when it is to start two programs");
      return;
    }
    CHECK(result.status == status);
    const size_t at = result.err.find(sentence);
    CHECK(at != std::string::npos);
    CHECK(result.err.find(sentence, at + 1) == std::string::npos);
  };
  refused(box.on(2, copy_flags + "--batch 9 --out x"), 2,
          "--batch 9 in parts of --micro-batch 9 cannot be divided among 2 processes, but among 1: ");
  refused(box.on(3, copy_flags + "--out x"), 1, "started as 3 processes: their number must be a power of two");
  refused(box.on(2, copy_flags + "--lr -3"), 2, "--lr: -3 is not a number");
  refused("--bind-to none -n 1 " + program() + " " + copy_flags + "--out x : -n 1 " + program() + " " + copy_flags +
              "--lr 0.5 --out x",
          1, "all processes must be started alike, but rank 1 on host ");
  // Another command, and other instructions, by which replicas of the weights would drift apart.
  refused("--bind-to none -n 1 " + program() + " " + copy_flags + "--out x : -n 1 " + program() + " copy evaluate", 1,
          " has command \"copy evaluate\", and rank 0 \"copy train\"");
  const std::string set = "-x RUNNEL_INSTRUCTION_SET=baseline -n 1 " + program() + " " + copy_flags + "--out x";
  if (instruction_set() != InstructionSet::baseline)
    refused("--bind-to none -n 1 " + program() + " " + copy_flags + "--out x : " + set, 1,
            " has instruction set \"baseline\", and rank 0 ");
  CHECK_FALSE(fs::exists(box.folder / "x" / "last.safetensors"));
  if (cuda_is_emulated())
    refused(box.on(2, copy_flags + "--device cuda:0"), 2, "each has the GPU of its number; give --device cuda");
}

TEST_CASE("processes: torchrun's variables without a GPU, or with some missing, are refused") {
  Sandbox box;
  const auto refused = [&](const std::string& variables, const std::string& sentence) {
    box.executable = "/usr/bin/env";
    const Result result = box.run(variables + " " + program() + " " + copy_flags + "--device cpu");
    CAPTURE(result.err);
    CHECK(result.status == 1);
    CHECK(result.err.find(sentence) != std::string::npos);
  };
  const std::string two = "RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT=";
  refused(two + "29500", "torchrun connects processes on GPUs only");
  refused(two + "many", "MASTER_PORT=many is not a number from 1 to 65534");
  refused(two + "29500 RANK=-1", "RANK=-1 is not a number from 0 to 1");
}

TEST_CASE("processes: variables of a launcher that has not started the program change nothing") {
  Sandbox box;
  box.executable = "/usr/bin/env";
  const auto run = [&](const std::string& variables, const std::string& words) {
    return box.run(variables + " " + program() + " " + words);
  };
  setenv("LSAN_OPTIONS", "detect_leaks=0", 1);  // Open MPI leaves some memory
  const std::string task = "SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=0 SLURM_STEP_ID=0";
  const std::vector<std::string> all{"SLURM_STEP_NUM_TASKS=4", "OMPI_COMM_WORLD_SIZE=4", "PMI_SIZE=4 PMI_RANK=0",
                                     "WORLD_SIZE=4 RANK=1", task + " SLURM_PTY_PORT=40000"};
  for (const std::string& variables : all) {
    CAPTURE(variables);
    const Result result = run(variables, copy_flags + "--steps 1 --overwrite --out run");
    CAPTURE(result.err);
    CHECK(result.status == 0);
    const std::string size = variables.substr(0, variables.find('='));
    CHECK(contains(result.err, "computes by itself; unset " + size + "\n") == !contains(variables, "PTY"));
  }
  // One of a job of Slurm, of which nothing connects it to the others.
  check_refused(run(task, copy_flags + "--out x"), 1,
                "SLURM_STEP_NUM_TASKS=4 says that this is one of so many processes");
  CHECK(run(task, "runs run").status == 0);
}

TEST_CASE("processes: the parts of a batch do not change with their number once a run has begun") {
  struct Many : Communicator {
    explicit Many(int count) { size_ = count; }
  };
  const auto part = [](int count, TrainSettings s) {
    set_processes(std::make_shared<Many>(count));
    std::string result;
    try {
      result = std::to_string(s.sequences_at_a_time());
    } catch (const UsageError& error) {
      result = error.what();
    }
    set_processes(std::make_shared<Communicator>());
    return result;
  };
  TrainSettings begins, old, kept;
  old.resume = kept.resume = true;  // old: its config.json does not say
  kept.micro_batch = 4;
  for (const int count : {1, 2, 8}) {
    CHECK(part(count, begins) == "8");
    CHECK(part(count, old) == "8");
    CHECK(part(count, kept) == "4");
  }
  TrainSettings uneven;
  uneven.batch = 12;
  uneven.micro_batch = 2;
  CHECK(contains(part(2, uneven), "cannot be divided among 2 processes, but among 1: "));
  CHECK(part(16, begins) == "4");
  CHECK(part(16, kept) == "4");
  CHECK(contains(part(16, old),
                 "--batch 64 in parts of --micro-batch 8 cannot be divided among 16 processes, but "
                 "among 1, 2, 4, 8: "));

  const Sandbox box;
  succeed(box, copy_flags + "--device cpu --steps 1 --out run");  // a GPU takes a batch as a whole
  CHECK(contains(read(box.folder / "run/config.json"), "\"micro-batch\": 1,"));
}

TEST_CASE("bench scaling: measures one and two processes") {
  if (!Cluster()) return;
  const Sandbox box;
  const Result result = succeed(box,
                                "bench scaling --device cpu --precision f32 --threads 2 --processes 2 --length 2 "
                                "--runs 1 --out tables");
  CHECK(contains(result.out, "tables/scaling.csv"));
  const std::string measured = read(box.folder / "tables" / "scaling.csv");
  CAPTURE(measured);
  for (const char* row : {"\ncopy task,1,2,", "\nMNIST,1,2,", "\ncopy task,2,1,", "\nMNIST,2,1,"})
    CHECK(contains(measured, row));
  CHECK(contains(measured, ",12.7,"));  // 4 bytes for each of 3.2 million parameters, once there and once back
  CHECK(contains(measured, ",25.4,"));
}

}  // namespace runnel::test
