// The program against files that somebody made to harm it, and against bad luck: links, pipes, small files that claim
// to be large, two processes on one folder, damaged checkpoints, data that moved.
#include <sys/stat.h>
#include <sys/wait.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "models/checkpoint.h"
#include "tests/check.h"
#include "tests/mnist.h"
#include "tests/overflow.h"
#include "tests/program.h"

namespace runnel::test {
namespace {

const std::string train =
    "copy train --threads 1 --length 8 --layers 1 --width 8 --heads 2 --feed-forward 8 --batch 2 --save-every 5 ";
const std::string mnist =
    "mnist train --preset tiny --data data --side 7 --layers 1 --width 8 --heads 2 --feed-forward 8 --minutes 0 "
    "--steps 2 --batch 2 --threads 1 ";

TEST_CASE("robustness: the name of a folder is no command for gnuplot") {
  const Sandbox box;
  fs::create_directories(box.folder / "home");
  std::ofstream(box.folder / "home" / ".gnuplot") << "system 'touch " << (box.folder / "pwned").string() << "'\n";
  const std::string home = getenv("HOME");
  setenv("HOME", (box.folder / "home").c_str(), 1);
  for (const std::string out : {"<touch${IFS}pwned;", "|touch${IFS}pwned;", "`touch${IFS}pwned`", "x';system'touch",
                                "x\n!touch${IFS}pwned\n"}) {
    CAPTURE(out);
    CHECK(box.run(train + "--steps 3 --out " + out).status == 0);
    CHECK_FALSE(fs::exists(box.folder / "pwned"));
    CHECK(fs::exists(box.folder / out / "last.safetensors"));
  }
  setenv("HOME", home.c_str(), 1);
}

TEST_CASE("robustness: --out of a picture replaces a PNG file or nothing") {
  const WithDigits box;
  succeed(box, mnist + "--out run");
  const std::string best = read(box.folder / "run" / "best.safetensors");
  REQUIRE(mkfifo((box.folder / "fifo").c_str(), 0666) == 0);
  fs::create_symlink("run/best.safetensors", box.folder / "link.png");
  for (const std::string command : {"sample --count 1", "complete --index 0", "evaluate --limit 1", "state"})
    for (const std::string out : {"run/best.safetensors", "fifo", "link.png"}) {
      CAPTURE(command);
      check_refused(box.run("mnist " + command + " --threads 1 --model run --out " + out), 1,
                    "cannot write " + out + ": what stands there is not a PNG file");
    }
  CHECK(read(box.folder / "run" / "best.safetensors") == best);
  CHECK(fs::is_fifo(box.folder / "fifo"));
  CHECK(fs::is_symlink(box.folder / "link.png"));
}

TEST_CASE("robustness: checkpoints that claim large models are refused before they cost memory") {
  const Sandbox box;
  succeed(box, train + "--steps 3 --out run");
  const SafeTensors good = load_safetensors(box.folder / "run" / "best.safetensors");
  const auto refused = [&](const char* key, const nlohmann::json& value, const std::string& words) {
    SafeTensors changed = good;
    nlohmann::json model = nlohmann::json::parse(changed.metadata.at("model"));
    model[key] = value;
    if (std::string(key) == "heads") model["head_dim"] = value;
    changed.metadata["model"] = model.dump();
    save_safetensors(box.folder / "bad", changed);
    CAPTURE(key);
    check_refused(box.run("copy evaluate --model bad"), 1, words);
  };
  refused("layers", 30000, "\"layers\": 30000 is not");
  refused("layers", 1000, "larger than the file");
  refused("heads", 1024, "larger than the file");
  refused("max_length", 1 << 26, "\"max_length\": 67108864 is not");
  refused("vocabulary", 1 << 24, "larger than the file");
  refused("attention", "magic", "\"attention\": magic is not one of");

  const auto with = [&](const std::string& key, const std::string& text) {
    SafeTensors changed = good;
    changed.metadata[key] = text;
    save_safetensors(box.folder / "bad", changed);
    return box.run("copy evaluate --model bad");
  };
  for (const char* key : {"app", "model", "config", "data", "standing"})
    check_refused(with(key, std::string(100'000, '[')), 1, "is not JSON of a checkpoint");
  check_refused(with("app", "\"" + std::string(100'000, 'x') + "\""), 1, "xxx..., not of \"copy\"");
  check_refused(with("standing", R"({"step":-1})"), 1, "does not say where the run stands");

  SafeTensors diverged = good;
  std::vector<float> values = diverged.tensors[0].tensor.to_vector();
  values[3] = NAN;
  diverged.tensors[0].tensor = Tensor(diverged.tensors[0].tensor.shape(), values);
  save_safetensors(box.folder / "bad", diverged);
  check_refused(box.run("copy evaluate --model bad"), 1, "not finite, in " + diverged.tensors[0].name);
  save_safetensors(box.folder / "bad", good);
  make_overflow(box.folder / "bad");
  check_refused(box.run("copy evaluate --model bad"), 1, "the model puts out numbers that are not finite");
}

TEST_CASE("robustness: a text that no checkpoint can hold is found before the run begins") {
  Checkpoint c{.path = "x", .content = {}, .task = "images", .model = {}, .config = {}, .data = {}, .state = {}};
  c.data["class_names"] = {"dog", "caf\xe9"};
  check_fails([&] { check_saveable(c); }, "no checkpoint can be saved: a text of its \"data\" is not UTF-8");
  c.data["class_names"] = {"dog", "caf\xc3\xa9"};
  check_saveable(c);
}

TEST_CASE("robustness: what cannot be is refused before it takes time or memory") {
  const Sandbox box;
  write_mnist(box.folder / "data", 220, 160);
  for (const char* flags : {"--dry-run", "--out run"})
    check_refused(box.run("copy train --width 65536 --layers 1024 --feed-forward 1048576 " + std::string(flags)), 1,
                  "--layers 1024, --width 65536 and --feed-forward 1048576 needs");
  succeed(box, mnist + "--out run");
  check_refused(box.run("mnist complete --index 0-159 --ways 64 --model run"), 2, "160 images in 64 ways");
}

TEST_CASE("robustness: config.json of a run is held to the ranges of the flags") {
  const Sandbox box;
  succeed(box, train + "--steps 3 --out run");
  const fs::path path = box.folder / "run" / "config.json";
  const auto good = nlohmann::json::parse(read(path));
  const auto refused = [&](const char* key, const nlohmann::json& value) {
    nlohmann::json changed = good;
    changed[key] = value;
    std::ofstream(path) << changed;
    CAPTURE(key);
    check_refused(box.run("copy train --resume --out run"), 1,
                  "has no usable settings of this task: \"" + std::string(key));
  };
  for (const char* key : {"heads", "batch", "log-every", "save-every", "evaluate-every", "steps", "layers", "width"})
    refused(key, 0);
  refused("layers", 1'000'000'000);
  refused("schedule", "weekly");
  refused("attention", "magic");
  refused("lr", "fast");
  std::ofstream(path) << std::string(2'000'000, '[');
  check_refused(box.run("copy train --resume --out run"), 1, "config.json");
  fs::remove(path);
  REQUIRE(mkfifo(path.c_str(), 0666) == 0);
  check_refused(box.run("copy train --resume --out run"), 1, "config.json is not a regular file");
}

TEST_CASE("robustness: two processes do not write into one run folder") {
  const Sandbox box;
  const pid_t first = box.start(train + "--steps 1000000000 --out run");
  REQUIRE(wait_until([&] { return fs::exists(box.folder / "run" / "last.safetensors"); }));
  for (const char* flags : {"", "--resume", "--overwrite"})
    check_refused(box.run(std::string("copy train --out run ") + flags), 1,
                  "run is in use by another run: process " + std::to_string(first));
  kill(first, SIGKILL);
  waitpid(first, nullptr, 0);
  succeed(box, "copy train --resume --steps 5 --out run");
}

TEST_CASE("robustness: a run is continued or moved aside, but never written over") {
  const Sandbox box;
  const fs::path run = box.folder / "run";
  succeed(box, train + "--steps 12 --out run");
  const std::string best = read(run / "best.safetensors");
  CHECK_FALSE(read(run / "previous.safetensors") == read(run / "last.safetensors"));
  fs::remove(run / "last.safetensors");
  fs::remove(run / "previous.safetensors");
  check_refused(box.run(train + "--steps 3 --out run"), 2, "already holds a run");
  check_refused(box.run("copy train --resume --out run"), 1, "run/last.safetensors is missing");
  check_refused(box.run("copy train --resume --overwrite --out run"), 2, "--resume and --overwrite");
  std::ofstream(run / "notes.txt") << "mine";
  std::ofstream(run / "bits.png") << "of the old model";
  const Result again = succeed(box, train + "--overwrite --steps 3 --out run");
  CHECK(contains(again.out, "moved the run in run to "));
  CHECK(read(box.folder / "run.old-1" / "best.safetensors") == best);
  CHECK(fs::exists(box.folder / "run.old-1" / "bits.png"));
  CHECK(read(run / "notes.txt") == "mine");
  succeed(box, train + "--overwrite --steps 3 --out run");
  CHECK(fs::exists(box.folder / "run.old-2" / "last.safetensors"));
}

TEST_CASE("robustness: a damaged last checkpoint: the run goes on from the one before, to the same bytes") {
  const Sandbox box;
  succeed(box, train + "--steps 12 --out whole");
  succeed(box, train + "--steps 12 --out run");
  const fs::path last = box.folder / "run" / "last.safetensors";
  std::string bytes = read(last);
  bytes[bytes.size() - 7] = static_cast<char>(bytes[bytes.size() - 7] ^ 4);
  std::ofstream(last, std::ios::binary) << bytes;
  const std::string previous = read(box.folder / "run" / "previous.safetensors");
  CHECK(box.run("copy train --resume --out run", 4000).status == 1);  // a full disk
  CHECK(read(box.folder / "run" / "previous.safetensors") == previous);
  const Result resumed = succeed(box, "copy train --resume --out run");
  CHECK(contains(resumed.err, "run/last.safetensors is damaged: its contents do not have its checksum ("));
  CHECK(contains(resumed.err, "; the run goes on from run/previous.safetensors\n"));
  CHECK(contains(resumed.out, "resuming at step 10"));
  CHECK(read(last) == read(box.folder / "whole" / "last.safetensors"));
  CHECK(untimed(box.folder / "run" / "metrics.csv") == untimed(box.folder / "whole" / "metrics.csv"));

  std::ofstream(last) << "";
  std::ofstream(box.folder / "run" / "previous.safetensors") << "";
  check_refused(box.run("copy train --resume --out run"), 1, "last.safetensors is damaged: it has 0 bytes");
}

TEST_CASE("robustness: a terminal that closes saves the run, unless nohup has the signal ignored") {
  const Sandbox box;
  const pid_t child = box.start(train + "--steps 1000000000 --save-every 1000000000 --out run");
  REQUIRE(wait_until([&] { return split(read(box.folder / "run" / "metrics.csv"), '\n').size() > 3; }));
  kill(child, SIGHUP);
  CHECK(box.finish(child).status == 130);
  CHECK(fs::exists(box.folder / "run" / "last.safetensors"));
}

TEST_CASE("robustness: metrics.csv that is a pipe or a link") {
  const Sandbox box;
  succeed(box, train + "--steps 3 --out run");
  const fs::path metrics = box.folder / "run" / "metrics.csv";
  fs::remove(metrics);
  REQUIRE(mkfifo(metrics.c_str(), 0666) == 0);
  check_refused(box.run("copy train --resume --steps 6 --out run"), 1, "metrics.csv is not a regular file");
}

TEST_CASE("robustness: a run whose data moved goes on with the same data, and says so if they are others") {
  const WithDigits box;
  succeed(box, mnist + "--out run");
  const auto config = nlohmann::json::parse(read(box.folder / "run" / "config.json"));
  CHECK(config["data"] == fs::canonical(box.folder / "data").string());
  const Checkpoint kept = read_checkpoint(box.folder / "run" / "last.safetensors");
  CHECK(kept.data["checksum"].is_number_unsigned());
  CHECK(contains(box.run("mnist train --resume --steps 3 --out run --data moved").err, "moved"));

  nlohmann::json data = kept.data;
  data["checksum"] = 1;
  Checkpoint other = kept;
  other.data = data;
  save_checkpoint(other);
  const Result resumed = succeed(box, "mnist train --resume --steps 3 --out run");
  CHECK(contains(resumed.err, "the training data are not those that the run began with"));
}

}  // namespace
}  // namespace runnel::test
