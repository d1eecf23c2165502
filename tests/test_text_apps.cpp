// `runnel text` from its command line.
#include <nlohmann/json.hpp>

#include "tests/check.h"
#include "tests/program.h"

namespace runnel::test {
namespace {

const std::string train =
    "text train --preset tiny --precision f32 --data text.txt --length 8 --layers 1 --width 16 --heads 2 "
    "--feed-forward 16 --batch 4 --minutes 0 --schedule constant --log-every 1 --evaluate-every 5 --threads 1 ";

void write_text(const Sandbox& box, const std::string& text) { std::ofstream(box.folder / "text.txt") << text; }

std::string repeated(const std::string& text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += text;
  return all;
}

TEST_CASE("text: bits per byte fall on a text that repeats itself, which the model then goes on with") {
  const Sandbox box;
  write_text(box, repeated("abcd", 250));
  for (const std::string kind : {"linear", "softmax"}) {
    CAPTURE(kind);
    const Result result =
        succeed(box, train + "--steps 200 --lr 1e-2 --evaluate-every 100 --out run --overwrite --attention " + kind);
    CHECK(contains(result.out, "text.txt, 900 bytes; 100 more choose the best checkpoint\n"));
    CHECK(contains(result.out, " bits/byte\n"));
    const std::vector<std::string> rows = split(read(box.folder / "run/metrics.csv"), '\n');
    CHECK(rows[0] == "step,loss,loss_bits,validation,validation_bits,lr,tokens_per_second,seconds");
    CHECK(std::stod(split(rows.back(), ',')[4]) < 0.1);
    CHECK(contains(read(box.folder / "run/samples/step-0000200.txt"), "abcd|abcdabcdabcdabcd"));
    CHECK(contains(succeed(box, "runs run").out, "text  tiny"));
    const auto report = nlohmann::json::parse(succeed(box, "text evaluate --model run --json").out);
    CHECK(report["bits_per_byte"].get<double>() < 0.1);
    CHECK(report["nats_per_byte"].get<double>() ==
          doctest::Approx(report["bits_per_byte"].get<double>() * std::log(2)));
    CHECK(report["bytes"] == 100);
    CHECK(report["carries_state"] == (kind != "softmax"));
    CHECK(succeed(box, "text generate --model run --prompt abc --bytes 50 --temperature 0").out ==
          ("d" + repeated("abcd", 13)).substr(0, 50));
  }
}

TEST_CASE(
    "text train: a run that is resumed ends in the same bytes, with other threads, in the middle of a text, too") {
  const Sandbox box;
  write_text(box, repeated("to be or not to be, ", 40));
  for (const std::string kind : {"kda", "softmax"}) {
    CAPTURE(kind);
    succeed(box, train + "--overwrite --steps 20 --out whole --attention " + kind);
    succeed(box, train + "--overwrite --steps 12 --out parts --threads 4 --attention " + kind);
    succeed(box, "text train --resume --out parts --steps 20 --threads 2");
    CHECK(read(box.folder / "whole/last.safetensors") == read(box.folder / "parts/last.safetensors"));
    CHECK(contains(read(box.folder / "whole/last.safetensors"), "memory.0.0") == (kind != "softmax"));
    CHECK_FALSE(contains(read(box.folder / "whole/best.safetensors"), "memory.0.0"));
  }
  write_text(box, repeated("that is a question. ", 40));
  CHECK(contains(box.run("text train --resume --out parts --steps 21").err, "the training data are not those"));
  CHECK(contains(box.run("text evaluate --model parts").err, "text.txt has changed since the model was trained"));
}

TEST_CASE("text generate: a prompt from a file or standard input, draws, stops, whole characters") {
  const Sandbox box;
  write_text(box, repeated("\xc3\xa4\xc3\xb6|", 200));
  succeed(box, train + "--steps 150 --lr 1e-2 --evaluate-every 100 --out run");
  const std::string generate = "text generate --model run ";
  const auto text = [&](const std::string& flags) { return succeed(box, generate + flags).out; };
  CHECK(text("--prompt | --bytes 3 --temperature 0") == "\xc3\xa4\xc3\xb6");  // the character is completed
  CHECK(text("--prompt | --bytes 3 --temperature 0 --exact") == "\xc3\xa4\xc3");
  CHECK(text("--prompt | --bytes 4 --top-k 1") == "\xc3\xa4\xc3\xb6");
  CHECK(text("--prompt | --bytes 4 --top-p 0.001") == "\xc3\xa4\xc3\xb6");
  CHECK(text("--bytes 30 --temperature 9") == text("--bytes 30 --temperature 9"));
  CHECK(text("--bytes 30 --temperature 9") != text("--bytes 30 --temperature 9 --seed 2"));
  CHECK(text("--prompt | --bytes 100 --temperature 0 --stop \xc3\xb6|") == "\xc3\xa4");
  std::ofstream(box.folder / "prompt") << repeated("\xc3\xa4\xc3\xb6|", 30);
  CHECK(text("--prompt-file prompt --bytes 4 --temperature 0") == "\xc3\xa4\xc3\xb6");
  std::ofstream(box.folder / "stdin") << "\xc3\xa4";
  CHECK(text("--prompt-file - --bytes 2 --temperature 0") == "\xc3\xb6");
  const auto object = nlohmann::json::parse(text("--prompt | --bytes 4 --temperature 0 --json"));
  CHECK(object["text"] == "\xc3\xa4\xc3\xb6");
  CHECK(object["bytes"] == 4);
  CHECK(contains(succeed(box, generate + "--bytes 5").err, " bytes/s, after 1 of prompt in "));

  check_refused(box.run(generate + "--prompt-file none"), 1, "none");
  std::ofstream(box.folder / "empty") << "";
  check_refused(box.run(generate + "--prompt-file empty"), 2, "--prompt-file: an empty text");
  check_refused(box.run(generate + "--temperature -1"), 2, "--temperature");
  check_refused(box.run("text generate"), 2, "--model is needed");
}

TEST_CASE("text train: what cannot be is one sentence") {
  const Sandbox box;
  check_refused(box.run("text train --out run"), 2, "--data is needed: a text file");
  check_refused(box.run(train + "--out run"), 1, "text.txt is not there");
  write_text(box, std::string(89, 'x'));
  check_refused(box.run(train + "--out run"), 1, "89 bytes; for windows of 8 it takes 90 or more");
  check_refused(box.run(train + "--out run --heads 3"), 2, "--heads 3 does not divide --width 16");
  check_refused(box.run(train + "--out run --positions learned"), 2, "--carry yes needs --positions none, not learned");
  check_refused(box.run(train + "--out run --recompute"), 2, "--carry yes and --recompute do not go");
  check_refused(box.run(train + "--out run --attention softmax --carry yes --positions none"), 2,
                "--carry yes: softmax attention keeps no state of constant size");
  check_refused(box.run(train + "--out run --attention softmax --positions sinusoidal --carry no --tied"), 2,
                "--tied needs --positions learned or none");
  CHECK_FALSE(fs::exists(box.folder / "run"));
}

}  // namespace
}  // namespace runnel::test
