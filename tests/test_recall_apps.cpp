// `runnel recall` and its benchmark from their command lines.
#include <nlohmann/json.hpp>

#include "tests/check.h"
#include "tests/program.h"

namespace runnel::test {
namespace {

const std::string sizes =
    "--preset tiny --precision f32 --vocabulary 32 --length 16 --pairs 4 --width 32 --heads 1 --feed-forward 32 "
    "--minutes 0 --threads 1 --batch 16 --schedule constant ";

TEST_CASE("recall: four pairs are learned, and more than in training can be asked for") {
  const Sandbox box;
  succeed(box, "recall train " + sizes + "--steps 250 --warmup 20 --attention softmax --out run");
  const auto object =
      nlohmann::json::parse(succeed(box, "recall evaluate --model run --sequences 50 --out recall.png --json").out);
  REQUIRE(object["recall"].size() == 2);
  CHECK(object["recall"][0]["pairs"] == 4);
  CHECK(object["recall"][0]["accuracy_percent"].get<double>() > 95);  // a guess among the values: 25
  CHECK(object["recall"][1]["length"] == 32);
  CHECK(fs::exists(box.folder / "recall.png") == has_gnuplot());
  CHECK(contains(succeed(box, "recall evaluate --model run --sequences 5").out, " pairs  length  accuracy\n"));
}

TEST_CASE("recall train: a run that is resumed ends in the same bytes") {
  const Sandbox box;
  succeed(box, "recall train " + sizes + "--steps 10 --evaluate-every 5 --out whole");
  succeed(box, "recall train " + sizes + "--steps 5 --evaluate-every 5 --out parts");
  succeed(box, "recall train --resume --out parts --steps 10");
  CHECK(read(box.folder / "whole/last.safetensors") == read(box.folder / "parts/last.safetensors"));
}

TEST_CASE("bench recall: a row for a kind of attention, and a plot") {
  const Sandbox box;
  const Result result = succeed(box, "bench recall --preset tiny --steps 1 --out figure --attention deltanet");
  CHECK(contains(result.out, "pairs_4   pairs_8  pairs_16  pairs_32  pairs_64\n"));
  const std::vector<std::string> rows = split(read(box.folder / "figure/recall-tiny.csv"), '\n');
  CHECK(contains(rows.back(), "deltanet,1,1,"));
  CHECK(fs::exists(box.folder / "figure/recall-tiny.png") == has_gnuplot());
}

TEST_CASE("recall: what cannot be is one sentence") {
  const Sandbox box;
  check_refused(box.run("recall train --pairs 65"), 2, "--length 256 is too short for --pairs 65: 260 positions");
  check_refused(box.run("recall train --vocabulary 100"), 2, "--vocabulary 100 has fewer keys than --pairs 64");
  check_refused(box.run("recall evaluate"), 2, "--model is needed");
  check_refused(box.run("bench recall --attention fast"), 2, "--attention: fast is not one of linear");
}

}  // namespace
}  // namespace runnel::test
