// What the web page computes (apps/web/session.h), without a browser: tests/web/check.mjs opens it in one.
#include <cmath>

#include "apps/plots/pictures.h"
#include "apps/web/session.h"
#include "ops/reductions.h"
#include "tests/check.h"
#include "tests/png.h"
#include "tests/program.h"

namespace runnel::test {
namespace {

fs::path digits() { return source_dir() / "apps/web/digits.safetensors"; }

// The upper part of a seven.
std::vector<uint8_t> drawing(const PictureModel& model) {
  std::vector<uint8_t> picture(static_cast<size_t>(model.size()));
  const auto side = static_cast<size_t>(model.side);
  for (size_t x = 8; x < 20; ++x) picture[6 * side + x] = picture[7 * side + x] = 250;
  for (size_t y = 8; y < 26; ++y) picture[y * side + 18] = picture[y * side + 17] = 200;
  return picture;
}

TEST_CASE("web page: completions of a class are those of the program") {
  if (!has_sources()) return;
  const PictureModel model(digits());
  const std::vector<uint8_t> picture = drawing(model);
  const int64_t n = model.size(), known = n - 2 * model.side, ways = 3;
  Completion completion(model, picture, known, 7, ways, 1, 5);
  while (completion.step()) CHECK(completion.position() < n);
  CHECK(completion.position() == n);
  CHECK_FALSE(completion.step());

  const Sandbox box;
  std::vector<uint8_t> rgb;
  for (const uint8_t pixel : picture) rgb.insert(rgb.end(), 3, pixel);
  write_png(box.folder / "drawn.png", {model.side, model.side, rgb});
  succeed(box, "mnist complete --model " + digits().string() + " --image drawn.png --class 7 --ways 3 --keep " +
                   std::to_string(known) + " --seed 5 --precision f32 --out sheet.png");
  const Picture sheet = read_png(box.folder / "sheet.png");
  std::vector<Picture> cells{runnel::picture(picture, model.side, model.side, 1, known)};
  for (int64_t way = 0; way < ways; ++way)
    cells.push_back(
        runnel::picture(std::span(completion.pictures()).subspan(static_cast<size_t>(way * n), static_cast<size_t>(n)),
                        model.side, model.side, 1));
  cells.push_back(runnel::picture(picture, model.side, model.side, 1));
  CHECK(sheet.rgb == runnel::sheet(cells, ways + 2).rgb);
}

// A model of pictures of 6 x 6 with random weights, as a checkpoint.
Checkpoint unlearned(const std::string& attention, int64_t classes) {
  const AutoregressiveConfig config{
      .encoder = {.layers = 1, .heads = 2, .head_dim = 4, .feed_forward = 8, .attention = {attention}},
      .vocabulary = 256 + classes,
      .outputs = 30,
      .max_length = 35 + (classes ? 1 : 0)};
  Checkpoint checkpoint;
  checkpoint.path = "unlearned.safetensors";
  checkpoint.content.tensors = AutoregressiveTransformer(config, Key{1}).parameters();
  checkpoint.model = model_json(config);
  checkpoint.config = {{"side", 6}};
  checkpoint.data = {{"first_bytes", std::vector<int>(256)}};
  return checkpoint;
}

TEST_CASE("web page: a model without classes, of another size, predicts all bytes but the first") {
  const PictureModel model(unlearned("linear", 0));
  CHECK(model.side == 6);
  const std::vector<uint8_t> picture(36, 9);
  Completion completion(model, picture, 5, -1, 2, 1, 1);
  while (completion.step()) CHECK(completion.position() <= 36);
  CHECK(completion.class_probabilities() == std::vector<float>{1});
  CHECK(completion.label(1) == 0);
  for (size_t i = 0; i < 5; ++i) CHECK(completion.pictures()[36 + i] == 9);
  Reading reading(model, picture, 0);
  const std::vector<float> bits = reading.bits();
  CHECK(bits[0] == 0);
  CHECK(*std::min_element(bits.begin() + 1, bits.end()) > 0);
  CHECK(reading.state(35, 0).size() == 2 * 4 * 4);
  check_fails([&] { Completion(model, picture, 0, 0, 1, 1, 1); }, "from 1 to 35 bytes, not 0");
  // With classes, the first byte is drawn, too.
  const PictureModel classes(unlearned("linear", 3));
  Completion first(classes, picture, 0, -1, 2, 1, 1);
  while (first.step()) CHECK(first.position() <= 36);
  CHECK(first.class_probabilities().size() == 3);
  CHECK(Reading(classes, picture, 2).bits()[0] > 0);
}

TEST_CASE("web page: without a class, each way has one drawn from what the model thinks of the known bytes") {
  if (!has_sources()) return;
  const PictureModel model(digits());
  const std::vector<uint8_t> picture = drawing(model);
  const int64_t n = model.size(), known = 9 * model.side;
  Completion completion(model, picture, known, -1, 4, 1, 1);
  while (completion.position() < known) completion.step();
  const std::vector<float> probabilities = completion.class_probabilities();
  REQUIRE(std::ssize(probabilities) == model.classes);
  // The same from whole sequences, by Bayes' rule.
  std::vector<double> joint;
  double sum = 0;
  for (int64_t label = 0; label < model.classes; ++label) {
    const std::vector<float> bits = Reading(model, picture, label).bits();
    double all = 0;
    for (size_t t = 0; t < static_cast<size_t>(known); ++t) all += bits[t];
    joint.push_back(std::exp2(-all));
    sum += joint.back();
  }
  for (size_t label = 0; label < joint.size(); ++label)
    CHECK(probabilities[label] == doctest::Approx(joint[label] / sum).epsilon(1e-3));
  // A way goes on as a picture of its class would, whatever the other ways are.
  completion.step();
  Completion alone(model, picture, known, completion.label(0), 1, 1, 1);
  while (alone.position() <= known) alone.step();
  CHECK(alone.pictures()[static_cast<size_t>(known)] == completion.pictures()[static_cast<size_t>(known)]);
  CHECK(completion.pictures()[static_cast<size_t>(n + known - 1)] == picture[static_cast<size_t>(known - 1)]);
}

TEST_CASE("web page: the state after some pixels is the decoder's, forwards and backwards") {
  if (!has_sources()) return;
  const PictureModel model(digits());
  const std::vector<uint8_t> picture = drawing(model);
  Reading reading(model, picture, 7);
  const auto decoder = incremental_decoder(model.model, 1);
  for (int64_t t = 0; t < 70; ++t) decoder->read(Indices(Shape{1}, {model.token(t, picture, 7)}));
  const AttentionState state = decoder->recurrent_state(1);
  const std::vector<float> s = state.s.to_vector(), z = state.z.to_vector();
  const size_t values = s.size() / z.size();
  reading.state(90, 0);
  const std::vector<float> shown = reading.state(70, 1);
  REQUIRE(shown.size() == s.size());
  for (size_t i = 0; i < s.size(); ++i) CHECK(shown[i] == std::abs(s[i]) / z[i / values]);
  for (const float number : reading.state(0, 0)) CHECK(number == 0);
  check_fails([&] { reading.state(0, 99); }, "there is no state after 0 tokens in layer 99");
}

TEST_CASE("web page: the copy task is learned, and a copy has the form s . s") {
  CopyLearner learner(1);
  const float first = learner.update();
  float last = 0;
  for (int i = 1; i < 30; ++i) last = learner.update();
  CHECK(first == doctest::Approx(std::log(11)).epsilon(0.2));
  CHECK(last < first - 0.1f);
  const std::vector<int32_t> copy = learner.example();
  const int64_t n = learner.length(copy);
  CHECK(std::ssize(copy) == 2 * n + 1);
  CHECK(copy[static_cast<size_t>(n)] == 0);
}

TEST_CASE("web page: a text goes on as the model's whole sequences say, with a state that does not grow") {
  if (!has_sources()) return;
  const TextModel model(source_dir() / "apps/web/text.safetensors");
  const std::string prompt = "ROMEO:\n";
  Writer writer(model, prompt, 1e-4f, 1);  // the most probable byte
  const int64_t state = writer.state_bytes();
  std::string text = prompt;
  for (int i = 0; i < 20; ++i) text += static_cast<char>(writer.next());
  CHECK(writer.read() == std::ssize(text) - 1);
  CHECK(writer.state_bytes() == state);
  CHECK(writer.cache_bytes() == writer.read() * 2 * 3 * 80 * 4);
  std::vector<int32_t> tokens;
  for (const char byte : text) tokens.push_back(static_cast<uint8_t>(byte));
  const std::vector<int32_t> next = argmax(model.model(Indices(Shape{1, std::ssize(tokens)}, tokens))).to_vector();
  for (size_t t = prompt.size(); t < tokens.size(); ++t) CHECK(tokens[t] == next[t - 1]);
  check_fails([&] { Writer(model, "", 1, 1); }, "at least one byte");
  check_fails([&] { TextModel{digits()}; }, "is not a model of bytes that keeps a state of constant size");
}

TEST_CASE("web page: what is no model of digits is one sentence") {
  if (!has_sources()) return;
  const Sandbox box;
  check_fails([&] { PictureModel(box.folder / "none.safetensors"); }, "there is no file ");
  std::string bytes = read(digits());
  bytes[bytes.size() / 2] ^= 1;
  std::ofstream(box.folder / "changed.safetensors", std::ios::binary) << bytes;
  check_fails([&] { PictureModel(box.folder / "changed.safetensors"); }, "its contents do not have its checksum");
  check_fails([&] { PictureModel(source_dir() / "apps/web/text.safetensors"); },
              "is not a model of gray, square pictures");
  for (const nlohmann::json& config : {nlohmann::json("text"), nlohmann::json({{"side", "six"}}), nlohmann::json()}) {
    Checkpoint damaged = unlearned("linear", 0);
    damaged.config = config;
    check_fails([&] { PictureModel{damaged}; }, "unlearned.safetensors is not a model of gray, square pictures");
  }
  check_fails([&] { PictureModel(unlearned("softmax", 0)); }, "has softmax attention, which has no state S, Z");

  const PictureModel model(digits());
  const std::vector<uint8_t> picture(static_cast<size_t>(model.size()));
  check_fails([&] { Completion(model, {}, 1, 0, 1, 1, 1); }, "a picture of 0 bytes, not 784");
  check_fails([&] { Completion(model, picture, 784, 0, 1, 1, 1); }, "from 1 to 783 bytes, not 784");
  check_fails([&] { Completion(model, picture, 1, 10, 1, 1, 1); }, "there is no class 10");
  check_fails([&] { Completion(model, picture, 1, 0, 0, 1, 1); }, "at least one way");
  check_fails([&] { Reading(model, picture, -1); }, "there is no class -1");
}

TEST_CASE("export: an exported model has a third of the size at most, and evaluate reads it") {
  const Sandbox box;
  succeed(box, "copy train --preset tiny --steps 20 --minutes 0 --precision f32 --out run");
  const std::string said = succeed(box, "export --model run --out small.safetensors").out;
  CHECK(contains(said, "small.safetensors: "));
  CHECK(contains(said, "matrices in int8"));
  CHECK(fs::file_size(box.folder / "small.safetensors") < 0.35 * fs::file_size(box.folder / "run/best.safetensors"));
  CHECK(fs::file_size(box.folder / "run/best.safetensors") < 0.5 * fs::file_size(box.folder / "run/last.safetensors"));
  succeed(box, "export --model run/last.safetensors --out last.safetensors");
  CHECK(load_safetensors(box.folder / "last.safetensors").tensors.size() ==
        load_safetensors(box.folder / "run/best.safetensors").tensors.size());
  succeed(box, "copy evaluate --model small.safetensors");
  // Of data outside of the folder it keeps the name, not the path.
  Checkpoint elsewhere = read_checkpoint(box.folder / "run");
  elsewhere.path = box.folder / "elsewhere.safetensors";
  for (const auto& [data, kept] :
       {std::pair{"/home/me/texts/", "texts"}, {"/home/me/a.txt", "a.txt"}, {"synthetic", "synthetic"}, {"", ""}}) {
    elsewhere.config["data"] = data;
    save_checkpoint(elsewhere);
    fs::remove(box.folder / "named.safetensors");
    succeed(box, "export --model elsewhere.safetensors --out named.safetensors");
    CHECK(read_checkpoint(box.folder / "named.safetensors").config["data"] == kept);
  }

  check_refused(box.run("export --model run"), 2, "--out is needed");
  check_refused(box.run("export --out x.safetensors"), 2, "--model is needed");
  check_refused(box.run("export --model run --out x.bin"), 2, "--out x.bin: give a name that ends in .safetensors");
  check_refused(box.run("export --model run --out run/last.safetensors"), 1,
                "--out run/last.safetensors exists already");
  check_refused(box.run("export --model run --out none/x.safetensors"), 1, "cannot write none/x.safetensors");
}

}  // namespace
}  // namespace runnel::test
