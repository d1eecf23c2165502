// The program from its command line: what it prints, what it writes, and that whatever is wrong ends as one sentence.
#include <algorithm>
#include <cmath>
#include <csignal>
#include <nlohmann/json.hpp>
#include <set>

#include "apps/cli/runtime.h"
#include "datasets/copy_task.h"
#include "models/attention_kinds.h"
#include "models/checkpoint.h"
#include "models/safetensors.h"
#include "ops/numerics.h"
#include "tests/check.h"
#include "tests/folder.h"
#include "tests/program.h"

namespace runnel::test {
namespace {

int times(const std::string& text, const std::string& words) {
  int count = 0;
  for (size_t at = text.find(words); at != std::string::npos; at = text.find(words, at + 1)) ++count;
  return count;
}

// A copy task that takes milliseconds.
const std::string train =
    "copy train --threads 1 --length 8 --layers 1 --width 8 --heads 2 --feed-forward 8 --batch 2 --log-every 3 "
    "--evaluate-every 10 --save-every 4 ";

TEST_CASE("copy train: what a run writes and prints") {
  const Sandbox box;
  const Result result = box.run(train + "--steps 25 --out run");
  CAPTURE(result.err);
  REQUIRE(result.status == 0);
  CHECK(result.err.empty());
  CHECK(contains(result.out, "step 10 of 25"));
  CHECK(contains(result.out, "step 25 of 25"));
  CHECK(contains(result.out, "finished at step 25"));
  CHECK_FALSE(contains(result.out, "\r"));  // not a terminal: plain lines

  const fs::path run = box.folder / "run";
  const auto config = nlohmann::json::parse(read(run / "config.json"));
  CHECK(config["preset"] == "paper");
  CHECK(config["length"] == 8);
  CHECK(config["lr"] == 1e-3);
  CHECK(config["seed"] == 1);
  CHECK(config["threads"] == 1);

  const std::vector<std::string> rows = split(read(run / "metrics.csv"), '\n');
  CHECK(rows[0] == "step,loss,loss_bits,validation,validation_bits,lr,tokens_per_second,seconds");
  std::vector<std::string> steps;
  for (size_t i = 1; i < rows.size(); ++i) {
    const std::vector<std::string> cells = split(rows[i], ',');
    REQUIRE(cells.size() == 8);
    steps.push_back(cells[0]);
    CHECK(std::stod(cells[2]) == doctest::Approx(std::stod(cells[1]) / 0.693147).epsilon(1e-4));
    CHECK(cells[3].empty() == !(cells[0] == "10" || cells[0] == "20" || cells[0] == "25"));
  }
  CHECK(steps == std::vector<std::string>{"3", "6", "9", "10", "12", "15", "18", "20", "21", "24", "25"});

  const SafeTensors last = load_safetensors(run / "last.safetensors"),
                    best = load_safetensors(run / "best.safetensors");
  CHECK(last.metadata.at("app") == "\"copy\"");
  CHECK(nlohmann::json::parse(last.metadata.at("standing"))["step"] == 25);
  CHECK(last.tensors.size() == 3 * best.tensors.size());  // weights and two moments
  const auto has = [&](const std::string& name) {
    return std::any_of(last.tensors.begin(), last.tensors.end(), [&](const NamedTensor& t) { return t.name == name; });
  };
  CHECK(has("transformer.layers.0.attention.query_projection.weight"));
  CHECK(has("optimizer.m.transformer.layers.0.attention.query_projection.weight"));

  SUBCASE("evaluate shows accuracy, and sequences in and out") {
    const Result evaluated = box.run("copy evaluate --model run --sequences 10 --show 2 --threads 1");
    CHECK(evaluated.status == 0);
    CHECK(contains(evaluated.out, "masked accuracy"));
    CHECK(contains(evaluated.out, "10 fresh sequences"));
    CHECK(contains(evaluated.out, "\nin   "));
    CHECK(contains(evaluated.out, "\nout  "));
  }
  SUBCASE("evaluate's accuracy is the share of the symbols that the model finds most likely") {
    const Result evaluated = box.run("copy evaluate --model run --sequences 64 --show 0 --threads 1 --json");
    REQUIRE(evaluated.status == 0);
    const AutoregressiveTransformer model =
        load_model<AutoregressiveTransformer>(read_checkpoint(run, "copy"), Device::cpu);
    const CopyBatch batch = CopyTask{.length = 8}.batch(key_for(1, Purpose::sampling).fold(0), 64);
    const Tensor logits = model(batch.tokens);
    const std::vector<float> x = logits.to_vector();
    const auto n = static_cast<size_t>(logits.shape()[-1]);
    int64_t counted = 0, right = 0;
    for (size_t i = 0; i * n < x.size(); ++i) {
      if (batch.mask.data()[i] == 0) continue;
      const auto target = static_cast<size_t>(batch.targets.data()[i]);
      ++counted;
      right += std::all_of(x.begin() + static_cast<std::ptrdiff_t>(i * n),
                           x.begin() + static_cast<std::ptrdiff_t>((i + 1) * n),
                           [&](float other) { return other <= x[i * n + target]; });
    }
    const nlohmann::json said = nlohmann::json::parse(evaluated.out);
    CHECK(said["symbols"] == counted);
    CHECK(said["symbols_right"] == right);
    CHECK(right > 0);
  }
  SUBCASE("a second run does not write over the first") {
    const std::string before = read(run / "last.safetensors");
    check_refused(box.run(train + "--steps 3 --out run"), 2,
                  "--out run already holds a run (config.json); add --resume");
    CHECK(read(run / "last.safetensors") == before);
  }
  SUBCASE("a finished run that is resumed changes nothing") {
    const std::string before = read(run / "last.safetensors"), metrics = read(run / "metrics.csv");
    CHECK(box.run("copy train --resume --out run").status == 0);
    CHECK(read(run / "last.safetensors") == before);
    CHECK(read(run / "metrics.csv") == metrics);
  }
  SUBCASE("what a run cannot change on the way") {
    check_refused(box.run("copy train --resume --out run --batch 3"), 2, "--batch 3: the run to resume began with 2");
    check_refused(box.run("copy train --resume --out run --seed 2"), 2, "--seed 2");
  }
  SUBCASE("the same seed gives the same bytes, another seed does not") {
    CHECK(box.run(train + "--steps 25 --out again").status == 0);
    CHECK(read(box.folder / "again" / "last.safetensors") == read(run / "last.safetensors"));
    CHECK(box.run(train + "--steps 25 --out other --seed 2").status == 0);
    CHECK(read(box.folder / "other" / "last.safetensors") != read(run / "last.safetensors"));
  }
  SUBCASE("a checkpoint of another app or model, or a damaged one") {
    check_refused(box.run("mnist sample --model run"), 1, "is a checkpoint of the app \"copy\", not of \"mnist\"");
    save_safetensors(run / "plain.safetensors", {best.tensors, {}});
    check_refused(box.run("copy evaluate --model run/plain.safetensors"), 1, "is not a checkpoint of this program");
    SafeTensors changed = best;
    changed.metadata["model"] = R"({"layers":1,"heads":2,"head_dim":3,"feed_forward":8,"vocabulary":11,"outputs":11,)"
                                R"("max_length":8,"dropout":0})";
    save_safetensors(run / "other.safetensors", changed);
    check_refused(box.run("copy evaluate --model run/other.safetensors"), 1, "belongs to another model");
    changed.metadata["model"] = R"({"layers":1,"heads":1000000000,"head_dim":4,"feed_forward":8,"vocabulary":11,)"
                                R"("outputs":11,"max_length":8,"dropout":0})";
    save_safetensors(run / "huge.safetensors", changed);
    check_refused(box.run("copy evaluate --model run/huge.safetensors"), 1,
                  "\"heads\": 1000000000 is not a number from 1 to 1024");
    changed.metadata["model"] = "{\"layers\":1}";
    save_safetensors(run / "less.safetensors", changed);
    check_refused(box.run("copy evaluate --model run/less.safetensors"), 1, "does not describe its model");
    fs::remove(run / "previous.safetensors");
    fs::resize_file(run / "last.safetensors", 1000);
    check_refused(box.run("copy train --resume --out run --steps 30"), 1, "last.safetensors is damaged");
  }
  SUBCASE("a disk that fills up while saving leaves the last checkpoint as it was") {
    const std::string before = read(run / "last.safetensors");
    const Result full = box.run("copy train --resume --out run --steps 40", 4000);
    CHECK(full.status == 1);
    CHECK(full.err.starts_with("runnel: cannot write run/last.safetensors: "));
    CHECK(times(full.err, "run/last.safetensors: ") == 1);
    CHECK(contains(full.err, "; the run goes on and will try again\n"));
    CHECK(
        full.err.ends_with("\nrunnel: the run ends at step 40, which could not be saved; run/last.safetensors holds "
                           "step 25: free some disk space, then --resume continues from there\n"));
    CHECK(read(run / "last.safetensors") == before);
    CHECK(box.run("copy train --resume --out run --steps 40").status == 0);
    CHECK(split(untimed(run / "metrics.csv"), '\n').back().starts_with("40,"));
  }
}

TEST_CASE("copy train: a disk that fills up while metrics.csv grows") {
  const Sandbox box;
  REQUIRE(box.run(train + "--steps 10 --out run").status == 0);
  std::string padding = read(box.folder / "run" / "metrics.csv");  // rows as if the run had been long
  for (int i = 0; i < 4000; ++i)  // more than all other files: some versions of gnuplot draw large plots
    padding += "10,1.000000,1.442695,,,0.001,1000,0.0\n";
  std::ofstream(box.folder / "run" / "metrics.csv") << padding;
  const std::string before = read(box.folder / "run" / "last.safetensors");
  REQUIRE(before.size() < padding.size());
  const Result result = box.run("copy train --resume --out run --steps 20 --save-every 100", padding.size() + 10);
  CHECK(result.status == 0);
  CHECK(result.err.starts_with("runnel: cannot write run/metrics.csv: "));
  CHECK(std::count(result.err.begin(), result.err.end(), '\n') == 1);
  CHECK(read(box.folder / "run" / "last.safetensors") != before);
}

#if defined(__linux__)  // prlimit
TEST_CASE("copy train: a disk that is full for a while costs a run nothing") {
  const Sandbox box;
  const fs::path run = box.folder / "run";
  const pid_t child = box.start(train + "--steps 1000000000 --out run");
  const auto complaints = [&] { return without_plots(read(box.folder / "stderr")); };
  CHECK(wait_until([&] { return fs::exists(run / "last.safetensors"); }));
  const rlimit full{4000, RLIM_INFINITY}, none{RLIM_INFINITY, RLIM_INFINITY};
  REQUIRE(prlimit(child, RLIMIT_FSIZE, &full, nullptr) == 0);
  CHECK(wait_until([&] { return contains(complaints(), "last.safe") && contains(complaints(), "metrics.csv"); }));
  REQUIRE(prlimit(child, RLIMIT_FSIZE, &none, nullptr) == 0);
  fs::remove(run / "last.safetensors");  // until what could not be written has been
  if (contains(complaints(), "best.safe")) fs::remove(run / "best.safetensors");
  CHECK(wait_until([&] { return fs::exists(run / "last.safetensors") && fs::exists(run / "best.safetensors"); }));
  kill(child, SIGINT);
  CHECK(box.finish(child).status == 130);
  CHECK(times(complaints(), "the run goes on") == times(complaints(), "\n"));
  CHECK(times(complaints(), "metrics.csv") == 1);

  std::vector<int> steps;  // every third and every tenth, none lost and none broken
  const std::vector<std::string> rows = split(read(run / "metrics.csv"), '\n');
  for (size_t i = 1; i < rows.size(); ++i) {
    CHECK(split(rows[i], ',').size() == 8);
    steps.push_back(std::stoi(rows[i]));
  }
  std::vector<int> expected;
  for (int step = 1; step <= steps.back(); ++step)
    if (step % 3 == 0 || step % 10 == 0) expected.push_back(step);
  CHECK(steps == expected);
}
#endif

TEST_CASE("copy train: a run whose first checkpoint cannot be saved ends then, not at its end") {
  const Sandbox box;
  const Result result = box.run(train + "--steps 1000000000 --out run", 4000);
  check_refused(result, 1,
                "cannot write run/last.safetensors: File too large; it would have been the first checkpoint");
  CHECK_FALSE(fs::exists(box.folder / "run" / "last.safetensors"));
}

TEST_CASE("copy train: a run that is killed and resumed ends in the same bytes") {
  const Sandbox box;
  const std::string flags = train + "--dropout 0.1 --steps 200 --out ";
  REQUIRE(box.run(flags + "whole").status == 0);

  // Killed three times, each time as soon as a checkpoint later than the last one was seen.
  const fs::path last = box.folder / "killed" / "last.safetensors";
  for (int kill_number = 0; kill_number < 3; ++kill_number) {
    const std::string before = fs::exists(last) ? read(last) : "";
    const pid_t child = box.start(kill_number == 0 ? flags + "killed" : "copy train --resume --out killed");
    REQUIRE(wait_until([&] { return fs::exists(last) && read(last) != before; }));
    kill(child, SIGKILL);
    const Result result = box.finish(child);
    CHECK((result.status == -SIGKILL || result.status == 0));  // 0: it was faster
  }
  REQUIRE(box.run("copy train --resume --out killed").status == 0);
  for (const char* file : {"last.safetensors", "best.safetensors", "config.json"}) {
    CAPTURE(file);
    CHECK(read(box.folder / "killed" / file) == read(box.folder / "whole" / file));
  }
  CHECK(untimed(box.folder / "killed" / "metrics.csv") == untimed(box.folder / "whole" / "metrics.csv"));
}

// The parameters and moments that a run left, together.
std::vector<double> numbers(const fs::path& run) {
  std::vector<double> all;
  for (const auto& [name, tensor] : load_safetensors(run / "last.safetensors").tensors)
    for (const float x : tensor.to_vector()) all.push_back(x);
  return all;
}

TEST_CASE("copy train: --micro-batch makes the same update from parts of the batch") {
  const Sandbox box;
  const std::string flags = train + "--length 16 --batch 8 --steps 1 --dropout 0 --precision f32 --out ";
  succeed(box, flags + "whole --micro-batch 8");
  for (const std::string size : {"0", "1", "3", "7"}) {
    CAPTURE(size);
    succeed(box, flags + "parts --micro-batch " + size);
    CHECK_LE(distance(numbers(box.folder / "parts"), numbers(box.folder / "whole")), rounding);
    const auto standing = [&](const std::string& run) {
      return nlohmann::json::parse(
                 load_safetensors(box.folder / run / "last.safetensors").metadata.at("standing"))["best"]
          .get<double>();
    };
    CHECK(standing("parts") == doctest::Approx(standing("whole")).epsilon(rounding));
    fs::remove_all(box.folder / "parts");
  }
  succeed(box, flags + "more --micro-batch 9");
  CHECK(numbers(box.folder / "more") == numbers(box.folder / "whole"));
}

TEST_CASE("copy train: --recompute changes no number, and is not part of the model") {
  const Sandbox box;
  const std::string flags = train + "--layers 2 --dropout 0.1 --steps 3 --out ";
  succeed(box, flags + "kept");
  succeed(box, flags + "again --recompute");
  CHECK(numbers(box.folder / "again") == numbers(box.folder / "kept"));
  CHECK(untimed(box.folder / "again" / "metrics.csv") == untimed(box.folder / "kept" / "metrics.csv"));
  const auto model = [&](const char* run) {
    return load_safetensors(box.folder / run / "last.safetensors").metadata.at("model");
  };
  CHECK(model("again") == model("kept"));
}

TEST_CASE("copy train: a run in parts is resumed to the same bytes; an older run knows nothing of parts") {
  const Sandbox box;
  const std::string flags = train + "--batch 5 --micro-batch 2 --dropout 0.1 --out ";
  succeed(box, flags + "whole --steps 12");
  succeed(box, flags + "halves --steps 6");
  succeed(box, "copy train --resume --out halves --steps 12");
  const auto last = [&](const char* run) { return read(box.folder / run / "last.safetensors"); };
  CHECK(numbers(box.folder / "halves") == numbers(box.folder / "whole"));

  auto config = nlohmann::json::parse(read(box.folder / "whole" / "config.json"));
  config.erase("micro-batch");
  std::ofstream(box.folder / "whole" / "config.json") << config;
  const std::string before = last("whole");
  succeed(box, "copy train --resume --out whole --steps 13");
  CHECK(last("whole") != before);
}

TEST_CASE("copy train: rows beyond the checkpoint and half a row are cut on resume") {
  const Sandbox box;
  const std::string flags = train + "--out ";
  REQUIRE(box.run(flags + "whole --steps 40").status == 0);
  REQUIRE(box.run(flags + "cut --steps 20").status == 0);
  std::ofstream(box.folder / "cut" / "metrics.csv", std::ios::app) << "21,9,9,,,0.001,1,1\n24,9";
  REQUIRE(box.run("copy train --resume --out cut --steps 40").status == 0);
  CHECK(untimed(box.folder / "cut" / "metrics.csv") == untimed(box.folder / "whole" / "metrics.csv"));
  CHECK(read(box.folder / "cut" / "last.safetensors") == read(box.folder / "whole" / "last.safetensors"));
}

TEST_CASE("copy train --optimizer muon: a run that is resumed ends in the same bytes, and stays with Muon") {
  const Sandbox box;
  const std::string flags = train + "--dropout 0.1 --optimizer muon --out ";
  REQUIRE(box.run(flags + "whole --steps 40").status == 0);
  REQUIRE(box.run(flags + "cut --steps 20").status == 0);
  check_refused(box.run("copy train --resume --out cut --optimizer radam"), 2,
                "--optimizer \"radam\": the run to resume");
  REQUIRE(box.run("copy train --resume --out cut --steps 40").status == 0);
  CHECK(read(box.folder / "cut" / "last.safetensors") == read(box.folder / "whole" / "last.safetensors"));
  CHECK(read(box.folder / "cut" / "best.safetensors") == read(box.folder / "whole" / "best.safetensors"));
  CHECK(untimed(box.folder / "cut" / "metrics.csv") == untimed(box.folder / "whole" / "metrics.csv"));

  const std::string value = "transformer.layers.0.attention.value_projection.weight";
  std::set<std::string> names;
  for (const NamedTensor& tensor : load_safetensors(box.folder / "cut" / "last.safetensors").tensors)
    names.insert(tensor.name);
  CHECK(names.contains("optimizer.m." + value));
  CHECK_FALSE(names.contains("optimizer.v." + value));
}

TEST_CASE("copy train: the time trained is kept at each checkpoint, not only at rows of metrics.csv") {
  const Sandbox box;
  succeed(box, train + "--steps 6 --out run");
  const fs::path time = box.folder / "run" / "time.json";
  CHECK(nlohmann::json::parse(read(time))["step"] == 6);
  const auto resumed_to = [&](const std::string& text, int steps) {
    write_bytes(time, text);
    succeed(box, "copy train --resume --out run --minutes 30 --steps " + std::to_string(steps));
    const SafeTensors last = load_safetensors(box.folder / "run" / "last.safetensors");
    return nlohmann::json::parse(last.metadata.at("standing"))["step"].get<int>();
  };
  CHECK(resumed_to(R"({"seconds":1801.5,"step":6})", 8) == 6);  // its time is over
  CHECK(resumed_to(R"({"seconds":1801.5,"step":7})", 8) == 8);  // of a later checkpoint, which was lost
  CHECK(resumed_to("older versions write none", 9) == 9);
}

TEST_CASE("copy train: an interrupt saves, says how to go on, and leaves") {
  for (const int signal : {SIGINT, SIGTERM}) {
    const Sandbox box;
    const pid_t child = box.start(train + "--steps 1000000000 --save-every 1000000000 --out run");
    REQUIRE(wait_until([&] { return split(read(box.folder / "run" / "metrics.csv"), '\n').size() > 3; }));
    kill(child, signal);
    const Result result = box.finish(child);
    CHECK(result.status == 130);
    CHECK(contains(result.out, "continue with: runnel copy train --resume --out run"));
    CHECK(fs::exists(box.folder / "run" / "last.safetensors"));
  }
}

TEST_CASE("copy train: a loss that is not a number names the step; the last good checkpoint stays") {
  const Sandbox box;
  // Each update multiplies the weights by 1 - 100: they overflow soon.
  const Result result =
      box.run(train + "--steps 500 --lr 100 --weight-decay 1 --schedule constant --save-every 2 --out run");
  check_refused(result, 1, "runnel: step ");
  for (const char* words : {" of ", " has ", " at element ", "last.safetensors holds step "})
    CHECK(contains(result.err, words));
  for (const auto& [name, tensor] : load_safetensors(box.folder / "run" / "last.safetensors").tensors) {
    CAPTURE(name);
    const std::vector<float> values = tensor.to_vector();
    if (!name.starts_with("optimizer."))
      CHECK(std::all_of(values.begin(), values.end(), [](float x) { return std::isfinite(x); }));
  }
  fs::remove_all(box.folder / "run");
  check_refused(box.run(train + "--steps 500 --lr 100 --weight-decay 1 --schedule constant --evaluate-every 1000 "
                                "--save-every 1000 --out run"),
                1, "; nothing was saved yet");
  CHECK_FALSE(fs::exists(box.folder / "run" / "last.safetensors"));
}

TEST_CASE("copy train: a number that is not finite is traced to the op that has it first; nothing is saved of it") {
  const Sandbox box;
  succeed(box, train + "--steps 4 --dropout 0.1 --out run");
  const fs::path last = box.folder / "run" / "last.safetensors";
  SafeTensors content = load_safetensors(last);
  for (auto& [name, tensor] : content.tensors)
    if (name == "transformer.layers.0.linear1.weight") tensor.data()[5] = 3e38f;
  save_safetensors(last, content);
  const std::string before = read(last);
  for (const std::string flags : {"", " --recompute", " --micro-batch 1"}) {
    CAPTURE(flags);
    check_refused(box.run("copy train --resume --out run --steps 9" + flags), 1,
                  "; run/last.safetensors holds step 4; ");
    CHECK(contains(box.run("copy train --resume --out run --steps 9" + flags).err, "step 5: the result of linear ["));
    CHECK(read(last) == before);
  }
  for (auto& [name, tensor] : content.tensors)
    if (name == "optimizer.m.transformer.layers.0.linear1.weight") tensor.data()[5] = NAN;
  save_safetensors(last, content);
  check_refused(box.run("copy train --resume --out run --steps 9"), 1,
                "run/last.safetensors holds numbers that are not finite, in optimizer.m.transformer.layers.0.linear1");
}

TEST_CASE("copy train: --dry-run says what it would take and writes nothing") {
  const Sandbox box;
  const Result result = box.run("copy train --preset tiny --threads 1 --dry-run");
  CHECK(result.status == 0);
  for (const char* words : {"parameters", "memory", "one update", "the whole run", "nothing was written"})
    CHECK(contains(result.out, words));
  CHECK_FALSE(fs::exists(box.folder / "runs"));
}

// The megabytes that follow these words.
double megabytes(const std::string& text, const std::string& words) {
  const size_t at = text.find(words);
  REQUIRE(at != std::string::npos);
  size_t end = 0;
  const double number = std::stod(text.substr(at + words.size()), &end);
  REQUIRE(text.substr(at + words.size() + end).starts_with(" MB"));
  return number;
}

TEST_CASE("copy train: --dry-run foresees what a run takes, in parts and recomputed or not") {
  const Sandbox box;
  const std::string flags = "copy train --threads 1 --layers 3 --width 32 --heads 2 --feed-forward 128 --steps 2 ";
  const auto foreseen = [&](const std::string& more) {
    return megabytes(succeed(box, flags + more + " --dry-run").out, "memory ");
  };
  const auto taken = [&](const std::string& more) {
    fs::remove_all(box.folder / "run");
    return megabytes(succeed(box, flags + more + " --out run").out, "with up to ");
  };
  for (const std::string lengths : {"--length 128 --batch 1", "--length 128 --batch 64", "--length 3072 --batch 5"})
    for (const std::string how : {"", " --micro-batch 2", " --recompute", " --micro-batch 3 --recompute"}) {
      CAPTURE(lengths + how);
      CHECK(foreseen(lengths + how) == doctest::Approx(taken(lengths + how)).epsilon(0.1));
    }
  const auto of_length = [&](int length) {
    return foreseen("--batch 16 --micro-batch 16 --length " + std::to_string(length));
  };
  CHECK(of_length(3072) / of_length(768) == doctest::Approx(4).epsilon(0.05));
  for (const char* less : {" --micro-batch 4", " --micro-batch 16 --recompute"})
    CHECK(foreseen("--batch 16 --length 256" + std::string(less)) < 0.6 * of_length(256));
  const std::string four_parts = "--batch 4 --length 3072";  // which several threads compute side by side
  CHECK(foreseen(four_parts + " --threads 4") > 2 * foreseen(four_parts));
}

TEST_CASE("copy train: a gnuplot that hangs is ended, and the run goes on") {
  const Sandbox box;
  fs::create_directories(box.folder / "bin");
  std::ofstream(box.folder / "bin" / "gnuplot") << "#!/bin/sh\nexec sleep 1000\n";
  fs::permissions(box.folder / "bin" / "gnuplot", fs::perms::owner_all);
  const std::string path = getenv("PATH");
  setenv("PATH", ((box.folder / "bin").string() + ":" + path).c_str(), 1);
  const auto start = std::chrono::steady_clock::now();
  const Result result = box.run(train + "--steps 3 --out run");
  setenv("PATH", path.c_str(), 1);
  CHECK(result.status == 0);
  CHECK(contains(result.out, "finished at step 3"));
  CHECK_FALSE(fs::exists(box.folder / "run" / "loss.png"));
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(300));  // and not 1000
}

TEST_CASE("copy train: --minutes ends a run, over all its resumes") {
  const Sandbox box;
  REQUIRE(box.run(train + "--steps 1000000000 --minutes 0.01 --schedule quadratic --out run").status == 0);
  const std::string before = read(box.folder / "run" / "last.safetensors");
  CHECK(contains(box.run("copy train --resume --out run").out, "finished at step"));
  CHECK(read(box.folder / "run" / "last.safetensors") == before);
}

TEST_CASE("copy train: the learning rate follows its schedule") {
  const Sandbox box;
  const auto rates = [&](const std::string& flags) {
    fs::remove_all(box.folder / "run");
    REQUIRE(box.run(train + "--steps 4 --log-every 1 --lr 0.01 --out run " + flags).status == 0);
    std::string column;
    const std::vector<std::string> rows = split(read(box.folder / "run" / "metrics.csv"), '\n');
    for (size_t i = 1; i < rows.size(); ++i) column += split(rows[i], ',')[5] + " ";
    return column;
  };
  CHECK(rates("--schedule constant") == "0.01 0.01 0.01 0.01 ");
  CHECK(rates("--schedule step --lr-step 3") == "0.01 0.01 0.01 0.001 ");
  CHECK(rates("--schedule quadratic") == "0.01 0.005625 0.0025 0.000625 ");
  CHECK(rates("--schedule constant --warmup 4") == "0.0025 0.005 0.0075 0.01 ");
  CHECK(rates("--schedule one-cycle --warmup 2") == "0.005 0.01 0.01 0.005 ");
  CHECK(rates("--schedule cosine").starts_with("0.01 0.00853"));
  CHECK(rates("--schedule cosine --warmup 2") == "0.005 0.01 0.01 0.005 ");
  CHECK(rates("--schedule rsqrt --warmup 1").starts_with("0.01 0.00707"));
}

TEST_CASE("copy train: checkpoints are the same bytes with any number of threads") {
  const Sandbox box;
  const auto trained_with = [&](const std::string& threads) {
    CHECK(
        box.run(
               "copy train --width 32 --feed-forward 40 --layers 1 --heads 2 --length 61 --batch 24 --steps 2 --out t" +
               threads + " --threads " + threads)
            .status == 0);
    return box.folder / ("t" + threads) / "last.safetensors";
  };
  const fs::path path = trained_with("1");
  const auto one = load_safetensors(path).tensors;
  // The batch's eight parts are computed by 2, 1, 2 and 8 workers, with teams of 1, 5, 3 and 1 threads.
  for (const std::string threads : {"2", "5", "6", "8"}) {
    const fs::path other = trained_with(threads);
    const auto some = load_safetensors(other).tensors;
    REQUIRE(some.size() == one.size());
    for (size_t i = 0; i < one.size(); ++i)
      CHECK_MESSAGE(some[i].tensor.to_vector() == one[i].tensor.to_vector(),
                    one[i].name << ", " << threads << " threads");
    CHECK_MESSAGE(read(other) == read(path), threads << " threads");
  }
}

TEST_CASE("RUNNEL_INSTRUCTION_SET: --version names the set that is used, and what cannot be is one sentence") {
  const Sandbox box;
  const auto with = [&](const std::string& value) {
    setenv("RUNNEL_INSTRUCTION_SET", value.c_str(), 1);
    Result result = box.run("--version");
    unsetenv("RUNNEL_INSTRUCTION_SET");
    return result;
  };
  CHECK(contains(with("baseline").out, "used as baseline"));
  check_refused(with("sse9"), 1,
                "RUNNEL_INSTRUCTION_SET is 'sse9'; it can be baseline, avx2, avx512, avx512_bf16, amx or dotprod");
}

TEST_CASE("--precision auto: bf16 on a CPU that trains faster with it, else f32") {
#if defined(__x86_64__)
  const bool is_intel = contains(read("/proc/cpuinfo"), "GenuineIntel");
  const Sandbox box;
  for (const InstructionSet set : {InstructionSet::avx512, InstructionSet::avx512_bf16, InstructionSet::amx}) {
    if (!has_instructions(set)) continue;
    CAPTURE(name(set));
    setenv("RUNNEL_INSTRUCTION_SET", name(set), 1);
    succeed(box, train + "--device cpu --steps 1 --out " + name(set));
    unsetenv("RUNNEL_INSTRUCTION_SET");
    const bool bf16 = set == InstructionSet::amx || (set == InstructionSet::avx512_bf16 && !is_intel);
    CHECK(nlohmann::json::parse(read(box.folder / name(set) / "config.json"))["precision"] == (bf16 ? "bf16" : "f32"));
  }
#endif
}

TEST_CASE("RUNNEL_PROFILE=1 on the CPU: a table of the kernels on stderr") {
  const Sandbox box;
  setenv("RUNNEL_PROFILE", "1", 1);
  const Result result = box.run(
      "copy train --device cpu --width 32 --feed-forward 40 --layers 2 --heads 2 --length 20 --batch 2 --micro-batch 2 "
      "--steps 3 --out run");
  unsetenv("RUNNEL_PROFILE");
  CHECK(result.status == 0);
  const std::string& table = result.err;
  CHECK(contains(table, "outside of kernels"));
  CHECK(
      contains(table, "\ncausal_linear_attention_backward" + std::string(18, ' ') + "6 "));  // once a layer and update
}

TEST_CASE("the command line: help and version") {
  const Sandbox box;
  const Result help = box.run("copy train --help");
  CHECK(help.status == 0);
  CHECK(contains(help.out, "--lr FLOAT"));
  CHECK(contains(help.out, "=0.001"));
  CHECK(contains(help.out, "  tiny    as small, but --length 32 --width 64 "));
  for (const std::string task : {"copy", "mnist"}) check_help_of_train(box, task);
  CHECK(succeed(box, "copy train --help rubbish").out == help.out);
  CHECK(contains(box.run("--version").out, "runnel 0.1"));
  CHECK(box.run("--help").status == 0);
}

TEST_CASE("the command line: what cannot be is one sentence that names the flag") {
  const auto if_there = [](const std::string& package, const std::string& words) {
    return has_package(package) ? words : "";
  };
  const std::string of_packages = if_there("lra", "lra ") + if_there("speech", "speech "),
                    benchmarks_of_packages = if_there("lra", " lra lra-speed") +
                                             if_there("speech", " speech speech-layers") +
                                             if_there("processes", " scaling");
  const Sandbox box;
  const struct {
    std::string words, sentence;
  } cases[] = {
      {"copy train --unknown 3", "--unknown"},
      {"copy train --layers", "--layers"},
      {"copy train --layers 0", "--layers: 0 is not a number"},
      {"copy train --layers -1", "--layers: -1 is not a number"},
      {"copy train --layers 1.5", "--layers"},
      {"copy train --layers x", "--layers: x is not a whole number"},
      {"copy train --layers 99999999999999999999", "--layers"},
      {"copy train --heads 7", "--heads 7 does not divide --width 256"},
      {"copy train --heads 0", "--heads: 0 is not a number"},
      {"copy train --width 9 --heads 3", "--width 9 is odd"},
      {"copy train --length 0", "--length: 0 is not a number"},
      {"copy train --batch 0", "--batch: 0 is not a number"},
      {"copy train --steps 0", "--steps: 0 is not a number"},
      {"copy train --dropout 1", "--dropout: 1 is not a number"},
      {"copy train --dropout nan", "--dropout: nan is not a number"},
      {"copy train --lr inf", "--lr: inf is not a number"},
      {"copy train --lr -0.1", "--lr: -0.1 is not a number"},
      {"copy train --seed -1", "--seed"},
      {"copy train --threads 100000", "--threads: 100000 is not a number"},
      {"copy train --preset huge", "--preset: huge is not one of paper, small, tiny"},
      {"copy train --device tpu", "--device: tpu is not one of auto, cpu, cuda"},
      {"copy train --schedule linear", "--schedule: linear is not one of"},
      {"copy evaluate", "--model is needed"},
      {"copy evaluate --model x --sequences 0", "--sequences: 0 is not a number"},
      {"mnist train --side 15", "--side: 15 is not one of"},
      {"mnist sample --count 0", "--count: 0 is not a number"},
      {"mnist train --side 0", "--side: 0 is not one of 28, 14, 7"},
      {"mnist train --heads 5", "--heads 5 does not divide --width 256"},
      {"mnist train --unknown", "--unknown"},
      {"mnist evaluate", "--model is needed"},
      {"mnist evaluate --limit -1", "--limit: -1 is not a number"},
      {"mnist sample", "--model is needed"},
      {"mnist sample --temperature 0", "--temperature: 0 is not a number"},
      {"mnist complete --ways 0", "--ways: 0 is not a number"},
      {"mnist complete --keep -1", "--keep: -1 is not a number"},
      {"bench attention --lengths 64,0", "--lengths: 0 is not a number from 1 to 16777216"},
      {"bench attention --lengths 64,x", "--lengths: x is not a whole number from 1 to 16777216"},
      {"bench attention --head-dim 0", "--head-dim: 0 is not a number"},
      {"bench attention --longest 8", "\"runnel bench attention\" has no flag --longest"},
      {"bench attention --attention linear,fast", "--attention: fast is not one of linear, softmax, "},
      {"bench attention --buckets 3", "--buckets 3 is odd"},
      {"bench ladder --batch 2", "--batch 2 needs --length, too"},
      {"bench ladder --heads 0", "--heads: 0 is not a number"},
      {"bench training --runs 0", "--runs: 0 is not a number"},
      {"bench training --attention fast",
       "--attention: fast is not one of " + one_of(attention_names(Forms::causal)).description()},
      {"bench generation --images faces", "--images: faces is not one of mnist, cifar10"},
      {"bench generation --method linear,fast",
       "--method: fast is not one of softmax, stateful-softmax, lsh-1, lsh-4, linear, linear-bf16-state"},
      {"bench convergence --preset large", "--preset: large is not one of paper, small, tiny"},
      {"copy train --attention lsh --buckets 7 --out x", "--buckets 7 is odd"},
      {"check --unknown", "--unknown"},
      {"check twice", "twice"},
      {"", "after \"runnel\" comes one of: copy mnist cifar10 images text recall " + of_packages +
               "check bench runs compare export completion; --help"},
      {"sing", "after \"runnel\" comes one of: copy mnist cifar10 images text recall " + of_packages +
                   "check bench runs compare export completion; not \"sing\""},
      {"--unknown", "not \"--unknown\""},
      {"copy", "after \"runnel copy\" comes one of: train evaluate; --help"},
      {"copy sing", "after \"runnel copy\" comes one of: train evaluate; not \"sing\""},
      {"mnist", "after \"runnel mnist\" comes one of: train evaluate sample complete state; --help"},
      {"mnist sing", "; not \"sing\""},
      {"mnist --count 3", "; not \"--count\""},
      {"bench", "after \"runnel bench\" comes one of: attention training generation convergence recall kernels ladder" +
                    benchmarks_of_packages + "; --help"},
      {"bench sing", "; not \"sing\""},
      {"copy train mnist train", "mnist"},
      {"copy evaluate train", "train"},
  };
  for (const auto& c : cases) {
    CAPTURE(c.words);
    check_refused(box.run(c.words), 2, c.sentence);
  }
  CHECK(std::distance(fs::directory_iterator(box.folder), {}) == 2);  // stdout and stderr, nothing else
}

TEST_CASE("the command line: files and folders that are not there or not what they should be") {
  const Sandbox box;
  std::ofstream(box.folder / "plain") << "text";
  fs::create_directories(box.folder / "empty");
  fs::create_directories(box.folder / "wrong");
  std::ofstream(box.folder / "wrong" / "config.json") << "{\"preset\": \"paper\"}";
  fs::create_directories(box.folder / "garbage");
  std::ofstream(box.folder / "garbage" / "config.json") << "{\"preset\":";
  const struct {
    std::string words, sentence;
  } cases[] = {
      {"copy evaluate --model missing", "there is no file missing"},
      {"copy evaluate --model plain", "plain is damaged"},
      {"copy evaluate --model empty", "there is no file empty/last.safetensors"},
      {"copy train --out plain", "cannot make the run folder plain"},
      {"copy train --out plain/run", "cannot make the run folder plain/run"},
      {"copy train --out /proc/run", "cannot make the run folder /proc/run"},
      {"copy train --resume --out missing", "there is no run to resume"},
      {"copy train --resume --out wrong", "wrong/config.json has no usable"},
      {"copy train --resume --out garbage", "garbage/config.json is damaged"},
      {"mnist train --data missing", "MNIST: no train-images-idx3-ubyte (or .gz) in "},
      {"mnist sample --model missing", "there is no file missing"},
  };
  for (const auto& c : cases) {
    CAPTURE(c.words);
    check_refused(box.run(c.words), 1, c.sentence);
  }
  CHECK(read(box.folder / "plain") == "text");
}

TEST_CASE("check: the forms agree") {
  const Sandbox box;
  const Result result = box.run("check --threads 2");
  CAPTURE(result.out);
  CHECK(result.status == 0);
  CHECK(contains(result.out, "L 65536"));
  CHECK(contains(result.out, "all forms agree"));
}

TEST_CASE("bench attention: a table with a line on the machine and the paper's column") {
  const Sandbox box;
  const std::string bench =
      "bench attention --lengths 64,16,32 --heads 1 --head-dim 4 --runs 1 --threads 1 --limit 1000 --out "
      "tables";
  const Result result = succeed(box, bench);
  for (const std::string words : {"linear: time grows as L^", "lsh-8: time grows as L^", "tables/attention.csv"})
    CHECK(contains(result.out, words));
  const std::string csv = read(box.folder / "tables" / "attention.csv");
  CHECK(csv.starts_with("# "));
  CHECK(contains(csv, "\nmethod,L,batch,ms/sample,MB/sample,paper\nlinear,16,4,"));
  int64_t methods = 0;
  for (const AttentionKind* kind : attention_kinds())
    if (kind->causal) methods += std::max<int64_t>(1, std::ssize(kind->variants));
  CHECK(std::count(csv.begin(), csv.end(), '\n') == 2 + methods * 3);
  CHECK(contains(succeed(box, bench + " --limit 0").out, "softmax from L = 32 on: left out, 0 s are above --limit"));
}

TEST_CASE("bench generation: without softmax among the methods there is no ratio to it, but to the paper's") {
  const Sandbox box;
  const std::string out =
      succeed(box, "bench generation --device cpu --method linear --runs 1 --limit 1 --threads 1 --out tables").out;
  CHECK_FALSE(contains(out, "recomputes the prefix"));
  CHECK(contains(out, has_bf16() ? " threads, bf16;" : " threads, f32;"));  // which waits for weights
  const auto rows = split(read(box.folder / "tables" / "generation-mnist.csv"), '\n');
  REQUIRE(rows.size() == 3);
  const auto cells = split(rows[2], ',');
  CHECK(cells[0] == "linear");
  for (const size_t here : {3, 7}) CHECK(cells[here] == "-");
  for (const size_t paper : {4, 5, 8, 9, 10}) CHECK(std::stod(cells[paper]) > 0);
}

TEST_CASE("bench convergence: a run for each attention, which it goes on with") {
  const Sandbox box;
  const std::string bench = "bench convergence --preset tiny --out figure --steps ";
  const Result result = succeed(box, bench + "3");
  for (const std::string name : {"linear", "softmax", "lsh"}) {
    CHECK(contains(result.out, "\n" + name + " "));
    CHECK(fs::exists(box.folder / "figure" / "convergence-tiny" / (name + "-1") / "last.safetensors"));
  }
  CHECK(contains(succeed(box, bench + "4").out, "resuming at step 3"));
}

TEST_CASE("bench kernels on CUDA: each as a graph of many calls") {
  if (!why_unavailable(Device::cuda).empty()) return;
  const Sandbox box;
  const Result result =
      succeed(box, "bench kernels --device cuda --seconds 0.001 --runs 2 --filter advance --out tables");
  const std::string csv = read(box.folder / "tables" / "kernels.csv");
  CHECK(contains(csv, "\nkernel,us,MB,MFLOP,GB/s,% of copy,GFLOP/s,% of product\nadvance,"));
}

TEST_CASE("bench ladder: every rung, and how many times faster than the first it is") {
  const Sandbox box;
  const Result result =
      succeed(box, "bench ladder --device cpu --length 40 --batch 2 --heads 1 --runs 1 --threads 1 --out tables");
  CHECK(contains(result.out, "tables/ladder.csv"));
  const std::string csv = read(box.folder / "tables" / "ladder.csv");
  CHECK(contains(csv, "\nrung,B,L,us,times faster,idea\n1_definition,2,40,"));
  CHECK(contains(csv, ",1.0,the formula in plain loops\n2_state,2,40,"));
  CHECK(std::count(csv.begin(), csv.end(), '\n') == 2 + 4);
}

TEST_CASE("bench ladder on CUDA: a row for every rung") {
  if (!why_unavailable(Device::cuda).empty()) return;
  const Sandbox box;
  succeed(box, "bench ladder --device cuda --length 40 --heads 1 --runs 1 --out tables");
  const std::string csv = read(box.folder / "tables" / "ladder.csv");
  CHECK(contains(csv, "\nrung,B,L,us,times faster,idea\n1_thread,1,40,"));
  CHECK(std::count(csv.begin(), csv.end(), '\n') == 2 + 7);
}

TEST_CASE("bench kernels: some of them, if Google Benchmark is there") {
  const Sandbox box;
  const Result result = box.run("bench kernels --seconds 0.001 --filter step");
  if (contains(result.err, "has no Google Benchmark")) {
    MESSAGE("skipped: 1 test, this build has no Google Benchmark");
    return;
  }
  CHECK(result.status == 0);
  CHECK(contains(result.out, "\nradam_step "));
  CHECK_FALSE(contains(result.out, "\nscale "));
  check_refused(box.run("bench kernels --filter nothing"), 2, "--filter nothing: no kernel has this in its name");
}

}  // namespace
}  // namespace runnel::test
