// `runnel mnist` and `runnel cifar10` from their command lines: training, numbers, and the pictures, which are read
// back pixel by pixel. The models are too small to learn; what is checked here does not depend on what they learned.
#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>
#include <set>

#include "datasets/synthetic_digits.h"
#include "models/attention_kinds.h"
#include "models/checkpoint.h"
#include "models/generation.h"
#include "ops/losses.h"
#include "tests/check.h"
#include "tests/mnist.h"
#include "tests/overflow.h"
#include "tests/png.h"
#include "tests/program.h"

namespace runnel::test {
namespace {

const std::string train =
    "mnist train --preset tiny --precision f32 --data data --side 7 --layers 1 --width 16 --heads 2 "
    "--feed-forward 16 --batch 2 --minutes 0 --schedule constant --evaluate-every 3 --threads 1 ";

// The 7 x 7 pixels of cell i of a sheet: each 12 pixels wide, with lines of 2 between the cells.
std::vector<Colour> cell(const Picture& sheet, int64_t i, int64_t columns) {
  std::vector<Colour> pixels;
  for (int64_t y = 0; y < 7; ++y)
    for (int64_t x = 0; x < 7; ++x)
      pixels.push_back(at(sheet, 2 + i / columns * 86 + 12 * y, 2 + i % columns * 86 + 12 * x));
  return pixels;
}

void check_size(const Picture& sheet, int64_t rows, int64_t columns) {
  CHECK(sheet.height == 2 + 86 * rows);
  CHECK(sheet.width == 2 + 86 * columns);
}

// The drawn test images, as the program says them to be.
ImageSet test_images(int64_t count) { return halved(halved(synthetic_digits(count, Key{2020}.fold(1)))); }

TEST_CASE("mnist with softmax attention: a checkpoint says which attention it is of, a cache changes no image") {
  const WithDigits box;
  succeed(box, train + "--steps 2 --attention softmax --out run");
  const std::string on = " --model run --out ";
  for (const std::string what : {"mnist sample --count 3", "mnist complete --index 0,2 --keep 20 --ways 2"}) {
    succeed(box, what + on + "rereading.png");
    succeed(box, what + " --stateful" + on + "cached.png");
    CHECK(read_png(box.folder / "rereading.png").rgb == read_png(box.folder / "cached.png").rgb);
  }
  const Result softmax = succeed(box, "mnist evaluate --limit 5" + on + "bits.png");
  // The same weights with the other attention are another model.
  SafeTensors content = load_safetensors(box.folder / "run" / "best.safetensors");
  std::string& model = content.metadata["model"];
  REQUIRE(contains(model, "\"attention\":\"softmax\""));
  model.replace(model.find("softmax"), 7, "linear");
  save_safetensors(box.folder / "linear.safetensors", content);
  check_refused(box.run("mnist sample --count 2 --state-precision bf16" + on + "x.png"), 2,
                "--state-precision bf16: softmax attention keeps no state of constant size; leave it out");
  for (const std::string what : {"mnist sample --count 3", "mnist complete --index 0,2 --keep 20 --ways 2"})
    succeed(box, what + " --state-precision bf16 --model linear.safetensors --out rounded.png");
  const Result linear = succeed(box, "mnist evaluate --limit 5 --model linear.safetensors --out linear.png");
  CHECK(linear.out.substr(0, 6) != softmax.out.substr(0, 6));
  model.replace(model.find("\"linear\""), 8, "\"none\"");
  const std::string kinds = one_of(attention_names(Forms::causal)).description();
  save_safetensors(box.folder / "none.safetensors", content);
  check_refused(
      box.run("mnist evaluate --model none.safetensors"), 1,
      "none.safetensors is damaged: it does not describe its model: \"attention\": none is not one of " + kinds);
  check_refused(box.run("mnist train --attention fast --out x"), 2, "--attention: fast is not one of " + kinds);
}

TEST_CASE("RUNNEL_PROFILE=1: where several threads draw images, their times are added up, and none is negative") {
  const WithDigits box;
  succeed(box, train + "--steps 1 --out run");
  setenv("RUNNEL_PROFILE", "1", 1);
  const Result result = box.run("mnist sample --device cpu --threads 4 --count 64 --model run --out x.png");
  unsetenv("RUNNEL_PROFILE");
  CAPTURE(result.err);
  CHECK(result.status == 0);
  CHECK(contains(result.err, "kernel (times of all threads together)"));
  CHECK(contains(result.err, "outside of kernels"));
  CHECK_FALSE(contains(result.err, " -"));
}

TEST_CASE("mnist with lsh attention: it has no keys, and samples without a state") {
  const WithDigits box;
  succeed(box, train + "--steps 2 --attention lsh --rounds 2 --buckets 4 --chunk 7 --out run");
  const SafeTensors content = load_safetensors(box.folder / "run" / "last.safetensors");
  for (const auto& [name, tensor] : content.tensors) CHECK_FALSE(contains(name, "key_projection"));
  CHECK(contains(content.metadata.at("model"), "\"rounds\":2"));
  succeed(box, "mnist evaluate --limit 5 --model run");
  succeed(box, "mnist sample --count 2 --model run");
  check_refused(box.run("mnist sample --count 2 --stateful --model run"), 2,
                "--stateful: lsh attention has no incremental form");
  check_refused(box.run("mnist sample --count 2 --device cpu --precision int8 --model run"), 2,
                "--precision int8: lsh attention recomputes the prefix, in f32 or bf16");
  check_refused(box.run(train + "--resume --rounds 3 --out run"), 2, "--rounds 3: the run to resume began with 2");
}

TEST_CASE("mnist train: the last 200 images are held out, and the validation is of them alone") {
  const WithDigits box;
  const fs::path images = box.folder / "data" / "train-images-idx3-ubyte";
  const std::string bytes = read(images);
  const auto validation = [&](size_t whitened) {  // after an update that changes nothing
    std::string changed = bytes;
    if (whitened < 220) std::fill_n(changed.begin() + 16 + static_cast<std::ptrdiff_t>(784 * whitened), 784, '\xff');
    std::ofstream(images, std::ios::binary) << changed;
    const std::string run = "run" + std::to_string(whitened);
    succeed(box, train + "--steps 1 --lr 0 --out " + run);
    return split(split(read(box.folder / run / "metrics.csv"), '\n').at(1), ',').at(3);
  };
  const std::string unchanged = validation(220);
  CHECK(validation(0) == unchanged);
  CHECK(validation(19) == unchanged);
  CHECK(validation(20) != unchanged);
  CHECK(validation(219) != unchanged);
}

TEST_CASE("mnist train: what a run writes and prints") {
  const WithDigits box;
  const Result trained = succeed(box, train + "--steps 6 --out run");
  CHECK(trained.err.empty());
  CHECK(contains(trained.out, "data: MNIST (train), 20 images of 7 x 7; 200 more choose"));
  CHECK(contains(trained.out, "bits/dim  "));
  CHECK(contains(trained.out, "finished at step 6"));
  std::set<std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(box.folder / "run"))
    if (entry.path().filename() != "loss.png") files.insert(entry.path().filename());  // needs gnuplot
  CHECK(files == std::set<std::string>{"config.json", "metrics.csv", "time.json", "last.safetensors",
                                       "best.safetensors", "samples", "report.html", "step-0000003.png",
                                       "step-0000006.png"});

  const std::vector<std::string> rows = split(read(box.folder / "run" / "metrics.csv"), '\n');
  REQUIRE(rows.size() == 3);
  for (size_t i = 1; i < rows.size(); ++i) {
    const std::vector<std::string> cells = split(rows[i], ',');
    REQUIRE(cells.size() == 8);
    CHECK(cells[0] == std::to_string(3 * i));
    for (const size_t column : {1, 3}) {  // loss, validation: nats, then bits
      CHECK(std::stod(cells[column]) > 0);
      CHECK(std::stod(cells[column + 1]) ==
            doctest::Approx(std::stod(cells[column]) / std::numbers::ln2).epsilon(1e-4));
    }
  }

  // The preview is what `sample` draws from the same weights.
  const Picture preview = read_png(box.folder / "run" / "samples" / "step-0000006.png");
  check_size(preview, 2, 8);
  succeed(box, "mnist sample --precision f32 --model run/last.safetensors --count 16 --threads 1 --out 16.png");
  const Picture sampled = read_png(box.folder / "16.png");
  check_size(sampled, 4, 4);
  for (int64_t i = 0; i < 16; ++i) CHECK(cell(preview, i, 8) == cell(sampled, i, 4));
}

TEST_CASE("mnist train: the same seed gives the same bytes, in one piece, resumed or killed") {
  const WithDigits box;
  const auto last = [&](const std::string& folder) { return read(box.folder / folder / "last.safetensors"); };
  const std::string dropout = train + "--dropout 0.1 ";  // 20 images to train on: the runs go around
  succeed(box, dropout + "--steps 6 --out whole");
  succeed(box, dropout + "--steps 6 --out again");
  CHECK(last("again") == last("whole"));
  CHECK(read(box.folder / "again/samples/step-0000006.png") == read(box.folder / "whole/samples/step-0000006.png"));
  succeed(box, dropout + "--steps 6 --seed 2 --out other");
  CHECK(last("other") != last("whole"));

  succeed(box, dropout + "--steps 3 --out half");
  CHECK(last("half") != last("whole"));
  CHECK(contains(succeed(box, "mnist train --resume --steps 6 --out half").out, "resuming at step 3"));
  CHECK(last("half") == last("whole"));
  CHECK(untimed(box.folder / "half" / "metrics.csv") == untimed(box.folder / "whole" / "metrics.csv"));

  const std::string longer = dropout + "--save-every 10 --evaluate-every 50 --steps 100 --out ";
  succeed(box, longer + "long");
  const pid_t child = box.start(longer + "killed");
  REQUIRE(wait_until([&] { return fs::exists(box.folder / "killed" / "last.safetensors"); }));
  kill(child, SIGKILL);
  const int status = box.finish(child).status;
  CHECK((status == -SIGKILL || status == 0));  // 0: it was faster
  succeed(box, "mnist train --resume --out killed");
  CHECK(last("killed") == last("long"));
  CHECK(read(box.folder / "killed" / "best.safetensors") == read(box.folder / "long" / "best.safetensors"));
}

TEST_CASE("mnist evaluate: bits/dim of the predicted bytes of the test images, and where they are spent") {
  const WithDigits box;
  for (const auto& [run, outputs] : {std::pair{"categorical", 256}, {"mixture", 30}}) {
    CAPTURE(run);
    succeed(box, train + "--steps 3 --distribution " + run + " --out " + run);
    const std::string on = std::string(" --limit 11 --model ") + run;
    const Result evaluated = succeed(box, "mnist evaluate --precision f32 --threads 1" + on);
    double bits = 0;
    int bytes = 0, images = 0;
    REQUIRE(std::sscanf(evaluated.out.c_str(), "%lf bits/dim over %d bytes of each of %d images", &bits, &bytes,
                        &images) == 3);
    CHECK(bytes == 48);
    CHECK(images == 11);
    CHECK(contains(evaluated.out, "MNIST (test)"));
    const auto object =
        nlohmann::json::parse(succeed(box, "mnist evaluate --json --precision f32 --threads 1" + on).out);
    CHECK(object["bits_per_dim"].get<double>() == doctest::Approx(bits).epsilon(1e-4));
    CHECK(object["images"] == 11);
    CHECK(contains(succeed(box, "mnist evaluate --data synthetic" + on).out, "synthetic digits (not MNIST)"));

    const AutoregressiveTransformer model = load_model<AutoregressiveTransformer>(read_checkpoint(box.folder / run));
    CHECK(model.config.outputs == outputs);
    CHECK(model.config.grid.row == 7);
    const ByteBatch batch = byte_batch(test_images(11), 0, 11);
    double nats = 0;
    for (const float nll : byte_nll(model(batch.tokens), batch.targets).to_vector()) nats += nll;
    CHECK(bits == doctest::Approx(nats / (11 * 48) / std::numbers::ln2).epsilon(1e-4));

    const Picture map = read_png(box.folder / run / "bits.png");  // the image, a gap and the scale, 48 pixels each
    CHECK(map.height == 7 * 48);
    CHECK(map.width == 9 * 48);
    CHECK(at(map, 0, 0) ==
          at(map, map.height - 1, map.width - 1));  // the first byte costs nothing, as does the scale's end
    CHECK(at(map, 6 * 48, 6 * 48) != at(map, 0, 0));
    check_size(read_png(box.folder / run / "samples" / "step-0000003.png"), 2, 8);
  }
  check_refused(box.run(train + "--distribution normal --out x"), 2,
                "--distribution: normal is not one of mixture, categorical");
  check_refused(box.run(train + "--resume --distribution categorical --out mixture"), 2,
                "--distribution \"categorical\": the run to resume began with \"mixture\"");
}

TEST_CASE("mnist sample: image i is the same whatever it is drawn with") {
  const WithDigits box;
  succeed(box, train + "--steps 3 --out run");
  const auto sample = [&](const std::string& flags) {
    const Result result = succeed(box, "mnist sample --model run --threads 1 --out sheet.png " + flags);
    CHECK(contains(result.out, " images of 7 x 7 in "));
    CHECK(contains(result.out, " images/s\nsheet.png\n"));
    return read_png(box.folder / "sheet.png");
  };
  const Picture three = sample("--count 3"), seven = sample("--count 7");
  check_size(three, 2, 2);
  check_size(seven, 3, 3);
  std::set<std::vector<Colour>> different;
  for (int64_t i = 0; i < 7; ++i) different.insert(cell(seven, i, 3));
  CHECK(different.size() == 7);
  for (int64_t i = 0; i < 3; ++i) CHECK(cell(three, i, 2) == cell(seven, i, 3));
  for (const Colour colour : cell(seven, 6, 3)) CHECK((colour[0] == colour[1] && colour[1] == colour[2]));
  CHECK(cell(seven, 0, 3)[0] == Colour{0, 0, 0});  // where sampling starts

  // 256 are drawn together; those behind them in a batch of their own.
  const Picture many = sample("--count 258"), more = sample("--count 300");
  check_size(many, 16, 17);
  check_size(more, 17, 18);
  for (const int64_t i : {0, 6, 255, 256, 257}) CHECK(cell(many, i, 17) == cell(more, i, 18));
  CHECK(cell(many, 6, 17) == cell(seven, 6, 3));
  CHECK(cell(many, 256, 17) != cell(many, 0, 17));

  CHECK(sample("--count 7").rgb == seven.rgb);
  CHECK(sample("--count 7 --seed 2").rgb != seven.rgb);
  CHECK(sample("--count 7 --temperature 0.1").rgb != seven.rgb);
  const Picture int8 = sample("--count 7 --device cpu --precision int8");
  CHECK(int8.rgb != sample("--count 7 --device cpu --precision f32").rgb);
  for (int64_t i = 0; i < 3; ++i)
    CHECK(cell(sample("--count 3 --device cpu --precision int8"), i, 2) == cell(int8, i, 3));
  check_refused(box.run("mnist evaluate --model run --precision int8"), 2, "--precision: int8 is not one of auto, f32");
  succeed(box, "mnist sample --model run --count 1 --threads 1");
  check_size(read_png(box.folder / "run" / "samples.png"), 1, 1);
}

TEST_CASE("mnist complete: the first --keep bytes stay, the ways differ, the original stands beside them") {
  const WithDigits box;
  succeed(box, train + "--steps 3 --out run");
  const auto complete = [&](const std::string& flags) {
    succeed(box, "mnist complete --model run --threads 1 --out sheet.png " + flags);
    return read_png(box.folder / "sheet.png");
  };
  const ImageSet images = test_images(5);
  const Colour unknown = at(picture(std::vector<uint8_t>{0}, 1, 1, 1, 0), 0, 0);
  for (const int64_t keep : {1, 20, 48}) {
    CAPTURE(keep);
    const Picture sheet = complete("--index 4,0-1 --ways 3 --keep " + std::to_string(keep));
    check_size(sheet, 3, 5);
    int64_t row = 0;
    for (const int64_t number : {4, 0, 1}) {
      CAPTURE(number);
      std::vector<Colour> original, occluded;
      for (const uint8_t byte : images.image(number)) {
        original.push_back({byte, byte, byte});
        occluded.push_back(static_cast<int64_t>(occluded.size()) < keep ? original.back() : unknown);
      }
      CHECK(cell(sheet, 5 * row, 5) == occluded);
      CHECK(cell(sheet, 5 * row + 4, 5) == original);
      std::set<std::vector<Colour>> ways;
      for (int64_t way = 1; way <= 3; ++way) {
        const std::vector<Colour> completed = cell(sheet, 5 * row + way, 5);
        CHECK(std::equal(completed.begin(), completed.begin() + keep, original.begin()));
        ways.insert(completed);
      }
      if (keep <= 20) CHECK(ways.size() == 3);
      ++row;
    }
  }
  // Neither the other images nor the number of ways change a completion.
  const Picture both = complete("--index 0-1 --ways 3 --keep 20"), one = complete("--index 1 --ways 2 --keep 20");
  for (const int64_t way : {1, 2}) CHECK(cell(one, way, 4) == cell(both, 5 + way, 5));
  CHECK(complete("--index 0-1 --ways 3 --keep 20").rgb == both.rgb);
  CHECK(complete("--index 0-1 --ways 3 --keep 20 --seed 2").rgb != both.rgb);

  // 300 of 784 bytes if not told otherwise: 18 of 49.
  const std::vector<Colour> occluded = cell(complete("--index 2"), 0, 5);
  CHECK(std::count(occluded.begin(), occluded.end(), unknown) == 49 - 18);

  check_refused(box.run("mnist complete --model run --keep 49"), 2, "--keep 49: images have 49 bytes, so give 1 to 48");
  for (const std::string index : {"x", "-1", "10000", "3-1", "1,", "1-", "1;2", "99999999999999999999"})
    check_refused(box.run("mnist complete --model run --index " + index), 2, "--index " + index + ": give numbers");
}

TEST_CASE("mnist: data from files, whole and damaged") {
  const Sandbox box;
  const fs::path data = box.folder / "data";
  write_mnist(data, 202, 2);
  const std::string from_files = train + "--steps 2 --data data --out ";
  CHECK(contains(succeed(box, from_files + "run").out, "data: MNIST (train), 2 images of 7 x 7"));
  const std::string evaluate = "mnist evaluate --model run --threads 1";
  CHECK(contains(succeed(box, evaluate).out, "of each of 2 images of 7 x 7, MNIST (test)"));
  check_refused(box.run("mnist complete --model run --index 2"), 2, "give numbers from 0 to 1");
  make_overflow(box.folder / "run" / "best.safetensors");
  check_refused(box.run(evaluate), 1, "the model puts out numbers that are not finite");

  const struct {
    std::vector<uint32_t> header;
    size_t bytes;
    std::string words;
  } cases[] = {
      {{2051, 202, 28, 28}, 1000, "truncated: its header promises 158368 bytes and 1000 follow"},
      {{0x3c68746d, 0x6c3e3430}, 1000, "its magic number is"},  // <html>404
      {{}, 0, "ends inside its header"},
      {{2051, 0, 28, 28}, 0, "holds no images"},
      {{2051, 201, 28, 28}, 201 * 784, "holds 202 labels, but"},
  };
  for (const auto& c : cases) {
    CAPTURE(c.words);
    write_idx(data / "train-images-idx3-ubyte", c.header, std::vector<uint8_t>(c.bytes));
    check_refused(box.run(from_files + "other"), 1, c.words);
  }
  write_mnist(data, 200, 2);
  check_refused(box.run(from_files + "other"), 1, "200 images; training needs more than 200");
  CHECK_FALSE(fs::exists(box.folder / "other"));

  // Data that is gone is never replaced by the drawn digits.
  fs::remove_all(data);
  check_refused(box.run(evaluate), 1, "MNIST: no t10k-images-idx3-ubyte");
  check_refused(box.run("mnist train --resume --steps 4 --out run"), 1, "MNIST: no train-images-idx3-ubyte");
}

TEST_CASE("mnist: a checkpoint of another model or app, or a damaged one; earlier files stay") {
  const WithDigits box;
  succeed(box, train + "--steps 3 --out run");
  const fs::path best = box.folder / "run" / "best.safetensors";
  const SafeTensors good = load_safetensors(best);
  check_refused(box.run("copy evaluate --model run"), 1, "is a checkpoint of the app \"mnist\", not of \"copy\"");
  check_refused(box.run("copy train --resume --out run"), 1,
                "config.json has no usable settings of this task: \"length\" is missing");
  check_refused(box.run("mnist train --resume --out run --side 14"), 2, "--side 14: the run to resume began with 7");
  check_refused(box.run("mnist train --resume --out run --layers 2"), 2, "--layers 2: the run to resume began with 1");

  const auto with = [&](const std::string& name, const std::string& key, const std::string& from,
                        const std::string& to) {
    SafeTensors changed = good;
    std::string& text = changed.metadata.at(key);
    REQUIRE(contains(text, from));
    text.replace(text.find(from), from.size(), to);
    save_safetensors(box.folder / name, changed);
    return "mnist sample --out kept.png --model " + name;
  };
  std::ofstream(box.folder / "kept.png") << "earlier";
  check_refused(box.run(with("side", "config", "\"side\":7", "\"side\":14")), 1,
                "side: not a model of images of 14 x 14");
  check_refused(box.run(with("no_side", "config", "\"side\"", "\"edge\"")), 1,
                "no_side is damaged: it does not say what images");
  check_refused(box.run(with("words", "config", "\"side\":7", "\"side\":\"x\"")), 1,
                "words is damaged: it does not say");
  check_refused(box.run(with("list", "config", good.metadata.at("config"), "[7]")), 1,
                "list is damaged: it does not say");
  check_refused(box.run(with("outputs", "model", "\"outputs\":256", "\"outputs\":30")), 1, "belongs to another model");
  check_refused(box.run(with("layers", "model", "\"layers\":1", "\"layers\":2")), 1, "larger than the file");
  check_refused(box.run(with("heads", "model", "\"heads\":2", "\"heads\":-2")), 1,
                "\"heads\": -2 is not a number from 1 to 1024");

  const std::string bytes = read(best);
  const auto damaged = [&](std::string file) {
    std::ofstream(box.folder / "damaged", std::ios::binary) << file;
    return box.run("mnist sample --out kept.png --model damaged");
  };
  check_refused(damaged(bytes.substr(0, bytes.size() - 1)), 1, "damaged is damaged");
  check_refused(damaged(std::string(7, '\0') + '\x80' + bytes.substr(8)), 1, "more than 16777216");  // 2^63
  check_refused(damaged(bytes + "x"), 1, "damaged is damaged");
  std::string edited = bytes;
  edited.replace(edited.find("\"data_offsets\":["), 17, "\"data_offsets\":[-");
  check_refused(damaged(edited), 1, "damaged is damaged");
  CHECK(read(box.folder / "kept.png") == "earlier");
}

TEST_CASE("mnist: pictures that cannot be written, and a disk that fills up under one") {
  const WithDigits box;
  succeed(box, train + "--steps 3 --out run");
  fs::create_directories(box.folder / "folder");
  for (const std::string command : {"evaluate --limit 1", "sample --count 1", "complete --index 0"})
    for (const std::string out : {"missing/x.png", "folder", "stdout/x.png", "/proc/x.png"}) {
      CAPTURE(command);
      CAPTURE(out);
      check_refused(box.run("mnist " + command + " --model run --out " + out), 1, out);
    }
  const std::string sample = "mnist sample --model run --threads 1 --out x.png --count ";
  succeed(box, sample + "1");
  const std::string before = read(box.folder / "x.png");
  constexpr rlim_t most = 1100;  // bytes: the OpenMP of clang has a file of 1,024
  check_refused(box.run(sample + "64", most), 1, "cannot write x.png");
  CHECK(read(box.folder / "x.png") == before);
  CHECK_FALSE(fs::exists(box.folder / "x.png.partial"));

  // A run folder whose subfolder is in the way.
  const std::string last = read(box.folder / "run" / "last.safetensors");
  fs::remove_all(box.folder / "run" / "samples");
  std::ofstream(box.folder / "run" / "samples") << "not a folder";
  const Result blocked = box.run("mnist train --resume --steps 6 --out run");
  CHECK(blocked.status == 0);
  CHECK(contains(blocked.err, "run/samples"));
  CHECK(read(box.folder / "run" / "last.safetensors") != last);
}

TEST_CASE("mnist train: a loss that is not a number names the step; the last checkpoint stays") {
  const WithDigits box;
  succeed(box, train + "--steps 3 --distribution mixture --out run");
  const fs::path last = box.folder / "run" / "last.safetensors";
  SafeTensors content = load_safetensors(last);
  for (NamedTensor& t : content.tensors)
    if (t.name == "predictor.bias") t.tensor = Tensor::full(t.tensor.shape(), 3e38f);  // finite, but no sum of them is
  save_safetensors(last, content);
  const std::string before = read(last);
  const Result result = box.run("mnist train --resume --steps 6 --out run");
  check_refused(result, 1, "step 4: the result of sum ");
  CHECK(contains(result.err, "; run/last.safetensors holds step 3; "));
  CHECK(read(last) == before);
}

TEST_CASE("mnist with classes: the model is told them, and draws what it is asked for") {
  const WithDigits box;
  const std::string classes = train + "--classes --steps 4 --evaluate-every 2 --out ";
  succeed(box, classes + "run");
  CHECK(contains(load_safetensors(box.folder / "run" / "last.safetensors").metadata.at("model"), "\"vocabulary\":266"));
  succeed(box, train + "--classes --steps 2 --evaluate-every 2 --out half");
  succeed(box, "mnist train --resume --steps 4 --out half");
  CHECK(read(box.folder / "half" / "last.safetensors") == read(box.folder / "run" / "last.safetensors"));
  check_refused(box.run("mnist train --resume --classes=false --out run"), 2, "--classes false: the run to resume");

  CHECK(contains(succeed(box, "mnist evaluate --limit 3 --model run").out, "over 49 bytes of each of 3 images"));
  const auto sample = [&](const std::string& flags) {
    succeed(box, "mnist sample --model run --threads 1 --out sheet.png " + flags);
    return read_png(box.folder / "sheet.png");
  };
  const Picture in_turn = sample("--count 13"), threes = sample("--count 4 --class 3"),
                twos = sample("--count 4 --class 2");
  CHECK(cell(in_turn, 3, 4) == cell(threes, 3, 2));
  CHECK(cell(in_turn, 2, 4) != cell(threes, 2, 2));
  CHECK(cell(in_turn, 2, 4) == cell(twos, 2, 2));
  CHECK(sample("--count 4 --class 3").rgb == threes.rgb);
  check_refused(box.run("mnist sample --model run --class 10"), 2,
                "--class 10 is none of the model's 10 classes: 0, 1, 2");

  // A completion goes on from the class of its image.
  const auto complete = [&](const std::string& keep) {
    succeed(box, "mnist complete --model run --threads 1 --index 0-2 --out sheet.png --keep " + keep);
    return read_png(box.folder / "sheet.png");
  };
  for (const std::string keep : {"1", "48"}) check_size(complete(keep), 3, 5);
  succeed(box, "mnist state --model run");

  // EMNIST's letters are numbers from 1 on, in files of MNIST's names. Labels count only with --classes.
  for (const auto& [stem, count] : {std::pair{"train", 220u}, {"t10k", 20u}}) {
    std::vector<uint8_t> letters;
    for (uint32_t i = 0; i < count; ++i) letters.push_back(static_cast<uint8_t>(26 - i % 26));
    write_idx(box.folder / "data" / (std::string(stem) + "-labels-idx1-ubyte"), {2049, count}, letters);
  }
  CHECK(contains(succeed(box, train + "--classes --steps 1 --out letters").out, " of 7 x 7 in 27 classes; "));
  CHECK(load_metadata(box.folder / "letters" / "last.safetensors").at("model").find("\"vocabulary\":283") <
        std::string::npos);
  succeed(box, "mnist evaluate --limit 3 --model letters");
  check_refused(box.run("mnist evaluate --model run"), 1,
                "MNIST (test): there is a class \"10\" more than the 10 that run/best.safetensors learned");
  succeed(box, train + "--steps 1 --out untold");
  check_refused(box.run("mnist sample --model untold --class 3"), 2, "was not trained with --classes");
  check_refused(box.run("mnist sample --model untold --class 3 --single --out new"), 2, "was not trained with");
  CHECK_FALSE(fs::exists(box.folder / "new"));
}

TEST_CASE("mnist sample: how images grow, and files of their own") {
  const WithDigits box;
  succeed(box, train + "--steps 3 --out run");
  succeed(box, "mnist sample --model run --threads 1 --count 3");
  const Picture three = read_png(box.folder / "run" / "samples.png");
  CHECK(contains(succeed(box, "mnist sample --model run --threads 1 --count 3 --growth").out, "run/growth.png"));
  const Picture growth = read_png(box.folder / "run" / "growth.png");
  check_size(growth, 3, 8);
  const Colour unknown = at(picture(std::vector<uint8_t>{0}, 1, 1, 1, 0), 0, 0);
  for (int64_t i = 0; i < 3; ++i)
    for (int64_t stage = 1; stage <= 8; ++stage) {
      std::vector<Colour> grown = cell(three, i, 2);
      std::fill(grown.begin() + 49 * stage / 8, grown.end(), unknown);
      CHECK(cell(growth, 8 * i + stage - 1, 8) == grown);
    }
  CHECK(contains(succeed(box, "mnist sample --model run --threads 1 --count 3 --single --out here").out, "here\n"));
  for (int64_t i = 0; i < 3; ++i) {
    const Picture alone = read_png(box.folder / "here" / ("0000" + std::to_string(i) + ".png"));
    CHECK(alone.width == 7);
    std::vector<Colour> pixels;
    for (int64_t p = 0; p < 49; ++p) pixels.push_back(at(alone, p / 7, p % 7));
    CHECK(pixels == cell(three, i, 2));
  }
  succeed(box, "mnist sample --model run --count 1 --single");
  CHECK(fs::exists(box.folder / "run" / "images" / "00000.png"));
  check_refused(box.run("mnist sample --model run --single --growth"), 2, "--growth and --single: give one of them");
  check_refused(box.run("mnist sample --model run --count 10001"), 2, "--count 10001: a sheet shows at most 10000");
  check_refused(box.run("mnist sample --model run --growth --count 1251"), 2,
                "--count 1251: a sheet shows at most 1250");
  std::ofstream(box.folder / "file") << "in the way";
  check_refused(box.run("mnist sample --model run --single --count 1 --out file"), 1, "--out file: cannot be");
}

TEST_CASE("mnist state: what each head remembers at eight moments of an image") {
  const WithDigits box;
  succeed(box, train + "--steps 3 --out run");
  const std::string state = "mnist state --threads 1 --precision f32 --model run ";
  CHECK(contains(succeed(box, state + "--index 4").out, "run/state.png: image 4 of MNIST (test)"));
  const Picture picture = read_png(box.folder / "run" / "state.png");
  CHECK(picture.width == 8 * 98 + 2);
  CHECK(picture.height == 3 * 98 + 2);  // the image and two heads
  const auto pixel = [&](int64_t row, int64_t column, int64_t y, int64_t x, int64_t of) {
    return at(picture, 2 + row * 98 + (2 * y + 1) * 96 / (2 * of), 2 + column * 98 + (2 * x + 1) * 96 / (2 * of));
  };
  const ImageSet images = test_images(5);
  const auto image = images.image(4);
  for (int64_t i = 0; i < 49; ++i) {
    const uint8_t byte = image[static_cast<size_t>(i)];
    CHECK(pixel(0, 7, i / 7, i % 7, 7) == Colour{byte, byte, byte});
  }
  CHECK(pixel(0, 3, 6, 6, 7) == pixel(0, 0, 6, 6, 7));  // not read yet
  std::set<Colour> colours;
  for (int64_t i = 0; i < 64; ++i) colours.insert(pixel(1, 7, i / 8, i % 8, 8));
  CHECK(colours.size() > 8);
  check_refused(box.run(state + "--layer 1"), 2, "--layer 1: the model has 1 layers, counted from 0");
  check_refused(box.run(state + "--index 20"), 2, "--index 20: give numbers from 0 to 19");
  const Picture one = read_png(box.folder / "run" / "state.png");
  CHECK(contains(succeed(box, state + "--index 4,6-7").out, "run/state.png: images 4,6-7 of MNIST (test)"));
  CHECK(read_png(box.folder / "run" / "state.png").height > 2 * one.height);
  succeed(box, train + "--steps 1 --attention softmax --out softmax");
  check_refused(box.run("mnist state --model softmax"), 2, "has softmax attention, which has no state");
}

// CIFAR-10's binary files with so few images; the label, then all red, green and blue bytes. Red is never below 200.
void write_cifar10(const fs::path& folder, size_t images) {
  fs::create_directories(folder);
  for (const std::string name :
       {"data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch"}) {
    std::ofstream file(folder / (name + ".bin"), std::ios::binary);
    for (size_t i = 0; i < images; ++i)
      for (size_t byte = 0; byte < 3073; ++byte)
        file << static_cast<char>(byte == 0 ? i % 10 : byte <= 1024 ? 200 + (i + byte / 256) % 50 : (i + byte) % 100);
  }
}

TEST_CASE("cifar10: trains, evaluates, samples, completes and shows its state") {
  const Sandbox box;
  write_cifar10(box.folder / "data", 50);  // 250 to train on, 50 to test
  const std::string colours =
      "cifar10 train --preset tiny --precision f32 --data data --side 8 --layers 2 --width 24 --heads 3 --feed-forward "
      "16 --batch 2 --minutes 0 --schedule constant --evaluate-every 3 --threads 1 ";
  const Result trained = succeed(box, colours + "--steps 6 --out run");
  CHECK(contains(trained.out, "data: CIFAR-10 (train), 50 images of 8 x 8; 200 more choose"));
  succeed(box, colours + "--steps 3 --out half");
  succeed(box, "cifar10 train --resume --steps 6 --out half");
  CHECK(read(box.folder / "half" / "last.safetensors") == read(box.folder / "run" / "last.safetensors"));

  CHECK(contains(succeed(box, "cifar10 evaluate --model run").out,
                 "over 191 bytes of each of 50 images of 8 x 8, CIFAR-10 (test)"));
  CHECK(read_png(box.folder / "run" / "bits.png").width == (3 * 8 + 2) * 42);
  succeed(box, "cifar10 sample --model run --count 9");
  const Picture sheet = read_png(box.folder / "run" / "samples.png");  // pixels of 11 x 11
  CHECK(sheet.width == 3 * 90 + 2);
  std::set<uint8_t> reds;
  for (int64_t i = 0; i < 9; ++i) {
    const Colour first = at(sheet, 2 + i / 3 * 90, 2 + i % 3 * 90);
    CHECK(first[0] >= 200);  // as in every image of the training set
    reds.insert(first[0]);
  }
  CHECK(reds.size() > 3);
  CHECK(contains(succeed(box, "cifar10 complete --index 1 --model run").out, "the first 96 of 192 bytes"));
  succeed(box, "cifar10 state --layer 1 --index 2 --model run");

  check_refused(box.run("mnist sample --model run"), 1, "is a checkpoint of the app \"cifar10\", not of \"mnist\"");
  check_refused(box.run("cifar10 train --side 28"), 2, "--side: 28 is not one of 32, 16, 8");
  check_refused(box.run("cifar10 train --data nowhere"), 1, "datasets/download.sh cifar10");
}

// tests/golden/runs holds two runs of commit 0fcde0f, before attention kinds, tasks and settings had their present
// form.
TEST_CASE("images: files that are left out are named; other classes than the model's are refused") {
  const Sandbox box;
  setenv("XDG_CACHE_HOME", (box.folder / "cache").c_str(), 1);
  const auto draw = [&](const std::string& folder, uint8_t number) {
    fs::create_directories(box.folder / folder);
    std::vector<uint8_t> bytes;
    for (uint64_t i = 0; i < 48; ++i) bytes.push_back(static_cast<uint8_t>(Key{number}.bits(i)));
    write_png(box.folder / folder / (std::to_string(number) + ".png"), picture(bytes, 4, 4, 3));
  };
  for (uint8_t i = 0; i < 80; ++i) draw(i % 2 ? "own/cats" : "own/dogs", i);
  for (int i = 0; i < 7; ++i) std::ofstream(box.folder / "own" / "cats" / ("text" + std::to_string(i))) << "text";
  fs::rename(box.folder / "own" / "cats" / "text4", box.folder / "own" / "cats" / "text4\ncats.png: fake");
  const std::string command =
      "images train --preset tiny --precision f32 --data own --side 4 --layers 1 --width 16 --heads 2 --feed-forward "
      "16 "
      "--batch 2 --minutes 0 --schedule constant --threads 1 --steps 2 --classes --out run";
  const Result trained = succeed(box, command);
  CHECK(contains(trained.out, " in 2 classes; "));
  const std::vector<std::string> lines = split(trained.err, '\n');
  REQUIRE(lines.size() == 6);
  const std::string start = "runnel: " + (box.folder / "own").string() + ": 7 files are left out; all are in ";
  REQUIRE(lines[0].starts_with(start));
  CHECK(lines[5] == "  cats/text4\\ncats.png: fake: not a PNG or JPEG file");
  const std::vector<std::string> all = split(read(lines[0].substr(start.size())), '\n');
  CHECK(all.size() == 7);
  CHECK(all[6] == "cats/text6: not a PNG or JPEG file");
  for (int i = 0; i < 4; ++i) fs::remove(box.folder / "own" / "cats" / ("text" + std::to_string(i)));
  CHECK(split(succeed(box, "images evaluate --model run").err, '\n').size() == 4);  // without a file
  fs::remove(box.folder / "own" / "cats" / "text4\ncats.png: fake");
  for (int i = 5; i < 7; ++i) fs::remove(box.folder / "own" / "cats" / ("text" + std::to_string(i)));

  const auto refused = [&](const std::string& data, const std::string& words) {
    for (const std::string run : {"evaluate", "complete --index 0", "state"})
      check_refused(box.run("images " + run + " --model run --data " + data), 1, words);
  };
  fs::copy(box.folder / "own", box.folder / "swapped", fs::copy_options::recursive);
  fs::rename(box.folder / "swapped" / "dogs", box.folder / "swapped" / "a dog");
  refused("swapped", "class 0 is \"a dog\", and run/best.safetensors learned it as \"cats\"");
  fs::copy(box.folder / "own", box.folder / "more", fs::copy_options::recursive);
  draw("more/eels", 100);
  refused("more", "there is a class \"eels\" more than the 2 that run/best.safetensors learned");
  refused("own/cats", "there are no classes, and run/best.safetensors learned 2");

  const std::string own = read(box.folder / "own" / "cats" / "1.png");
  check_refused(box.run("images complete --model run --class cats --image own/dogs/2.png own/cats/1.png --out "
                        "own/../own/cats/1.png"),
                1, "this is one of the pictures to complete; choose another name");
  CHECK(read(box.folder / "own" / "cats" / "1.png") == own);
}

TEST_CASE("run folders of an older version: evaluate gives the same numbers, --resume continues them") {
  if (!has_sources()) return;
  const Sandbox box;
  fs::copy(source_dir() / "tests/golden/runs", box.folder, fs::copy_options::recursive);
  CHECK(contains(succeed(box, "copy evaluate --model copy_lsh --sequences 50 --show 0 --precision f32").out,
                 "(29 of 292 symbols)"));
  CHECK(contains(succeed(box, "mnist evaluate --model mnist_linear --limit 50 --precision f32").out, "8.48"));
  succeed(box, "mnist sample --model mnist_linear --count 2 --class 3");
  for (const std::string run : {"copy", "mnist"}) {
    const std::string folder = run == "copy" ? "copy_lsh" : "mnist_linear";
    CHECK(contains(succeed(box, run + " train --resume --steps 15 --out " + folder).out, "resuming at step"));
    const auto config = nlohmann::json::parse(read(box.folder / folder / "config.json"));
    CHECK(config["embedding-dropout"] == config["dropout"]);  // as the older version had it
    CHECK(config["attention-dropout"] == 0);
    check_refused(box.run(run + " train --resume --steps 16 --seed 7 --out " + folder), 2, "--seed 7");
  }
}

}  // namespace
}  // namespace runnel::test
