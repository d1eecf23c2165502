// `runnel lra text`, `listops`, `retrieval`, `image` and `pathfinder` from their command lines, on data made here.
#include <nlohmann/json.hpp>

#include "datasets/lra/listops.h"
#include "models/attention_kinds.h"
#include "tests/cluster.h"
#include "tests/folder.h"
#include "tests/overflow.h"
#include "tests/png.h"

namespace runnel::test {
namespace {

const std::string small_model =
    "--preset tiny --precision f32 --layers 1 --width 16 --heads 2 --feed-forward 16 --batch 4 --minutes 0 "
    "--schedule constant --evaluate-every 3 --threads 1 ";

// Texts of a and texts of b, each with what tells them apart in one word.
void write_texts(const fs::path& folder) {
  for (const std::string split : {"train", "test"})
    for (int i = 0; i < 20; ++i) {
      const std::string filler(static_cast<size_t>(5 + i % 7), 'x');
      write_bytes(folder / split / "bad" / (std::to_string(i) + ".txt"), filler + " awful " + filler);
      write_bytes(folder / split / "good" / (std::to_string(i) + ".txt"), filler + " lovely " + filler);
    }
}

// One expression to a line with its value.
std::string expressions(int64_t count) {
  std::string lines = "Source\tTarget\n";
  for (int64_t i = 0; i < count; ++i) {
    const std::string text = "[MAX " + std::to_string(i % 10) + " [MIN 3 " + std::to_string(i % 7) + " ] 2 ]";
    lines += text + "\t" + std::to_string(evaluate_listops(parse_listops(text))) + "\n";
  }
  return lines;
}

}  // namespace

TEST_CASE("text: learns to tell two folders apart, and is evaluated, asked and resumed") {
  const Sandbox box;
  write_texts(box.folder / "texts");
  const std::string train = "lra text train " + small_model + "--data texts --lr 0.01 --out run ";
  const Result trained = succeed(box, train + "--steps 60");
  CHECK(contains(trained.out, "36 samples in 2 classes; 4 for validation"));
  CHECK(contains(read(box.folder / "run" / "metrics.csv"), "step,loss,loss_bits,accuracy,validation,"));
  const std::string preview = read(box.folder / "run" / "samples" / "step-0000060.txt");
  CHECK(contains(preview, "predicted good, truth good\n  xx"));

  const auto evaluated =
      nlohmann::json::parse(succeed(box, "lra text evaluate --model run --threads 1 --precision f32 --json").out);
  CHECK(evaluated["accuracy_percent"] == 100);
  CHECK(evaluated["samples"] == 40);
  CHECK(evaluated["classes"][1]["class"] == "good");
  CHECK(evaluated["classes"][1]["chosen"] == nlohmann::json({0, 20}));
  const Picture confusion = read_png(box.folder / "run" / "confusion.png");
  CHECK(at(confusion, 10, 10) != at(confusion, 10, 200));

  write_bytes(box.folder / "mine.txt", "such a lovely\nthing");
  write_bytes(box.folder / "other.txt", "awful");
  const Result predicted = succeed(box, "lra text predict --model run --threads 1 --input mine.txt --input other.txt");
  CHECK(contains(predicted.out, "mine.txt:  good "));
  CHECK(contains(predicted.out, "other.txt:  bad "));

  write_bytes(box.folder / "long.txt", std::string(1200, 'x'));
  CHECK(contains(succeed(box, "lra text predict --model run --threads 1 --input long.txt").err,
                 "long.txt: only the first 1000 of 1200 are read"));

  // 30 updates and 30 more are 60.
  succeed(box, "lra text train " + small_model + "--data texts --lr 0.01 --out halves --steps 30");
  succeed(box, "lra text train --resume --out halves --steps 60");
  CHECK(untimed(box.folder / "halves" / "metrics.csv") == untimed(box.folder / "run" / "metrics.csv"));
}

TEST_CASE("listops, retrieval, image, pathfinder: train, evaluate and predict") {
  const Sandbox box;
  for (const std::string part : {"train", "val", "test"})
    write_bytes(box.folder / "ops" / ("basic_" + part + ".tsv"), expressions(30));
  for (const std::string part : {"train", "eval", "test"}) {
    std::string lines;
    for (int i = 0; i < 12; ++i) lines += std::to_string(i % 2) + "\ta text\t" + (i % 2 ? "a text" : "another") + "\n";
    write_bytes(box.folder / "pairs" / (part + ".tsv"), lines);
  }
  for (const char batch : {'1', '2', '3', '4', '5'})
    write_bytes(box.folder / "cifar" / (std::string("data_batch_") + batch + ".bin"),
                std::string(3073, '\3') + std::string(3073, '\4'));
  write_bytes(box.folder / "cifar" / "test_batch.bin", std::string(3073, '\3'));
  setenv("XDG_CACHE_HOME", (box.folder / "cache").c_str(), 1);
  struct Case {
    std::string task, data, input, text;
  };
  write_bytes(box.folder / "ask", "[SM 1 2 ]\r\n \n[MAX 1 9 ]\n");
  write_bytes(box.folder / "ask-pairs", "a text\ta text\n");
  const Case cases[] = {{"listops", "--data ops", "ask", "ask:3:"},
                        {"retrieval", "--data pairs", "ask-pairs", "ask-pairs:1:"},
                        {"image", "--data cifar", "cell.png", "cell.png:"},
                        {"pathfinder", "--difficulty easy --generated 100", "cell.png", "cell.png:"}};
  write_png(box.folder / "cell.png", Picture{32, 32, std::vector<uint8_t>(32 * 32 * 3, 100)});
  for (const Case& c : cases) {
    CAPTURE(c.task);
    const std::string run = " --model " + c.task + " --threads 1";
    succeed(box, "lra " + c.task + " train " + small_model + c.data + " --steps 3 --validation 8 --out " + c.task);
    CHECK(fs::exists(box.folder / c.task / "samples" /
                     (c.data.ends_with("s") || c.data.ends_with("ops") ? "step-0000003.txt" : "step-0000003.png")));
    CHECK(contains(succeed(box, "lra " + c.task + " evaluate" + run + " --limit 5").out, "accuracy "));
    CHECK(contains(succeed(box, "lra " + c.task + " predict" + run + " --input " + c.input).out, c.text));
  }
  check_refused(box.run("lra listops predict --model listops --input ask-pairs"), 1, "ask-pairs:1: ");
  check_refused(box.run("lra retrieval predict --model retrieval --input ask"), 1,
                "ask:1: a pair is two texts with a tab");
  check_refused(box.run("lra image predict --model image --input ask"), 1, "ask");
  check_refused(box.run("lra image evaluate --model text"), 1, "there is no file text");
  make_overflow(box.folder / "listops" / "best.safetensors");
  check_refused(box.run("lra listops evaluate --model listops"), 1, "the model puts out numbers that are not finite");
  check_refused(box.run("lra image evaluate --model listops"), 1,
                "is a checkpoint of the app \"listops\", not of \"image\"");

  const fs::path cache = box.folder / "cache" / "runnel" / "pathfinder-easy-0" / "0";
  std::string impossible = read_bytes(cache);
  impossible.replace(impossible.size() - 12, 4, "\2\0\0\0", 4);  // the label of the last image
  write_cache(cache, impossible);
  const std::string evaluate = "lra pathfinder evaluate --model pathfinder --limit 5 --threads 1";
  CHECK(succeed(box, evaluate).err ==
        "runnel: the cache " + cache.string() + " cannot be used and is made again: a label 2 of two classes\n");
  CHECK(succeed(box, evaluate).err.empty());

  // Black pixels that are left out change nothing but the time.
  succeed(box, "lra pathfinder train " + small_model +
                   "--difficulty easy --generated 100 --steps 3 --pool cls --mask-zero --out masked");
  check_refused(box.run("lra listops train --mask-zero"), 2, "--mask-zero");
}

TEST_CASE("classification: every kind of attention trains from the command line") {
  const Sandbox box;
  write_texts(box.folder / "texts");
  for (const AttentionKind* kind : attention_kinds()) {
    if (!kind->full) continue;
    CAPTURE(kind->name);
    succeed(box, "lra text train " + small_model + "--data texts --steps 2 --attention " + kind->name + " --out " +
                     kind->name);
    CHECK(contains(succeed(box, "lra text evaluate --threads 1 --limit 3 --model " + kind->name).out, "accuracy "));
  }
}

TEST_CASE("classification: the paper's preset has Long Range Arena's sizes for each kind") {
  const Sandbox box;
  write_texts(box.folder / "texts");
  succeed(
      box,
      "lra text train --preset paper --data texts --steps 1 --batch 2 --length 32 --layers 1 --threads 1 --out run");
  const auto text = nlohmann::json::parse(read(box.folder / "run" / "config.json"));
  CHECK(text["width"] == 256);
  CHECK(text["layers"] == 1);  // a flag replaces the preset's
  CHECK(text["pool"] == "cls");
  setenv("XDG_CACHE_HOME", (box.folder / "cache").c_str(), 1);
  succeed(
      box,
      "lra pathfinder train --preset paper --attention linear --difficulty easy --generated 100 --steps 1 --batch 2 "
      "--threads 1 --out linear");
  const auto linear = nlohmann::json::parse(read(box.folder / "linear" / "config.json"));
  CHECK(linear["width"] == 128);
  CHECK(linear["projection"] == 64);
  CHECK(linear["mask-zero"] == false);
}

TEST_CASE("classification: names of classes and files cannot write on the terminal, or forge a line") {
  const Sandbox box;
  const std::string forged = "new\nline:fake\x1b]0;title\a";
  for (const std::string& name : {forged, std::string("other")})
    for (int i = 0; i < 10; ++i) write_bytes(box.folder / "texts" / name / (std::to_string(i) + ".txt"), name);
  succeed(box, "lra text train " + small_model + "--data texts --steps 2 --out run");
  write_bytes(box.folder / "\x1b[2J.txt", "x");
  for (const std::string words : {"predict --input \x1b[2J.txt", "evaluate"}) {
    const Result result = succeed(box, "lra text " + words + " --threads 1 --model run");
    CHECK(contains(result.out, "new\\nline:fake\\x1b]0;title\\x07"));
    CHECK_FALSE(contains(result.out + result.err, "\x1b"));
  }
  write_bytes(box.folder / "latin" / "caf\xe9" / "1.txt", "x");
  write_bytes(box.folder / "latin" / "b" / "1.txt", "x");
  check_refused(box.run("lra text train --data latin"), 1, "latin: a class: \"caf\\xe9\" is not UTF-8");
}

TEST_CASE("predict: a line of standard input that is too long is an error, not the end of the input") {
  const Sandbox box;
  for (const std::string part : {"train", "val", "test"})
    write_bytes(box.folder / "ops" / ("basic_" + part + ".tsv"), expressions(30));
  succeed(box, "lra listops train " + small_model + "--data ops --steps 1 --validation 8 --out run");
  write_bytes(box.folder / "stdin", "[MAX 1 2 ]\n" + std::string(17 << 20, 'x') + "\n[MIN 1 2 ]\n");
  check_refused(box.run("lra listops predict --threads 1 --model run"), 1, "standard input: line 2 is longer than");
}

TEST_CASE("classification: what cannot be is one sentence") {
  const Sandbox box;
  write_texts(box.folder / "texts");
  struct {
    std::string words;
    int status;
    std::string sentence;
  } cases[] = {{"lra text train --data missing", 1, "missing"},
               {"lra text train --data texts --heads 3", 2, "--heads 3 does not divide --width 256"},
               {"lra text train --data texts --positions sinusoidal --width 7 --heads 1", 2, "--width 7 is odd"},
               {"lra text train --data texts --pool max", 2, "--pool: max is not one of mean, cls"},
               {"lra text predict", 2, "--model is needed"},
               {"listops train", 2, "not \"listops\"; did you mean lra listops?"},
               {"lra image predict --model missing", 1, "there is no file missing"},
               {"bench lra --attention linear,none", 2, "--attention: none is not one of"},
               {"bench lra --task text --generated 200", 2, "--generated: the samples of text cannot be chosen"},
               {"bench lra --task copy", 2, "--task: copy is not one of"}};
  for (const auto& c : cases) {
    CAPTURE(c.words);
    check_refused(box.run(c.words), c.status, c.sentence);
  }
}

TEST_CASE("classification: help of train") { check_help_of_train(Sandbox(), "lra pathfinder"); }

TEST_CASE("classification: a run and its validation are the same from two processes") {
  const Cluster box;
  if (!box) return;
  check_same_from_two(
      box,
      "lra pathfinder train --generated 100 --difficulty easy --preset tiny --width 16 --layers 1 --feed-forward 16");
}

// A batch is eight of eleven texts, sorted by length: the first process has only short ones, the second also long ones.
TEST_CASE(
    "classification: parts of a batch whose shapes repeat on one GPU and change on another leave the checkpoint of "
    "one") {
  if (!has_gpus()) return;
  const Torchrun box;
  for (int i = 0; i < 12; ++i)
    for (const char* split : {"train", "test"})
      write_bytes(box.folder / "texts" / split / (i % 2 ? "good" : "bad") / (std::to_string(i) + ".txt"),
                  std::string(i < 8 ? 20 : 50, static_cast<char>('a' + i)));
  const std::string flags =
      "lra text train --data texts --threads 1 --quiet --preset tiny --length 64 --layers 1 --width 16 --heads 2 "
      "--feed-forward 16 --batch 8 --micro-batch 2 --steps 20 --minutes 0 --device cuda --out ";
  for (const int count : {1, 2}) {
    const Result result = box.run(box.script(count, flags + std::to_string(count)));
    CAPTURE(result.err);
    REQUIRE(result.status == 0);
  }
  CHECK(read(box.folder / "1/last.safetensors") == read(box.folder / "2/last.safetensors"));
  CHECK(untimed(box.folder / "1/metrics.csv") == untimed(box.folder / "2/metrics.csv"));
}

TEST_CASE("bench lra: a row for each kind beside published results, and runs that are continued") {
  const Sandbox box;
  for (const std::string part : {"train", "val", "test"})
    write_bytes(box.folder / "ops" / ("basic_" + part + ".tsv"), expressions(40));
  const std::string bench =
      "bench lra --task listops --data ops --preset tiny --attention linear,softmax --threads 1 --out tables --steps ";
  succeed(box, bench + "2");
  const Result result = succeed(box, bench + "4");
  CHECK(contains(result.out, "resuming at step 2"));
  CHECK(contains(result.out, "the first operator only"));
  const std::string csv = read(box.folder / "tables" / "listops-tiny.csv");
  CHECK(contains(csv, "\nthe first operator only,-,-,-,"));
  CHECK(contains(csv, "\nlinear,1,4,"));
  CHECK(contains(csv, ",16.13,38.80,-,-\n"));
  CHECK(contains(csv, "\nsoftmax,1,4,"));
}

TEST_CASE("bench lra-speed: a row for each kind and length, relative to softmax") {
  const Sandbox box;
  const Result result = succeed(
      box,
      "bench lra-speed --longest 1024 --layers 1 --heads 1 --head-dim 4 --feed-forward 4 --runs 1 --threads 1 --out t");
  int64_t kinds = 0;
  for (const AttentionKind* kind : attention_kinds()) kinds += kind->full;
  const std::string csv = read(box.folder / "t" / "lra-speed.csv");
  CHECK(std::count(csv.begin(), csv.end(), '\n') == 2 + kinds);
  CHECK(contains(csv, "\nsoftmax,1024,"));
}

}  // namespace runnel::test
