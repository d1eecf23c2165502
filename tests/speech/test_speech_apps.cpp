// `runnel speech` from its command line, on tones instead of digits and on a folder of recordings.
#include <sys/stat.h>

#include <nlohmann/json.hpp>

#include "models/safetensors.h"
#include "tests/cluster.h"
#include "tests/folder.h"
#include "tests/overflow.h"
#include "tests/speech/audio.h"

namespace runnel::test {
namespace {

const std::string small_model =
    "--preset tiny --precision f32 --threads 1 --strings 40 --batch 8 --log-every 5 --evaluate-every 10 "
    "--validation 10 --data digits ";

std::vector<int16_t> tone(double angle, int count) {
  std::vector<int16_t> samples;
  for (int n = 0; n < count; ++n) samples.push_back(static_cast<int16_t>(3000 * std::sin(n * angle)));
  return samples;
}

}  // namespace

TEST_CASE("speech: train, resume, evaluate and transcribe") {
  const Sandbox box;
  write_digits(box.folder / "digits");
  const Result trained = succeed(box, "speech train " + small_model + "--steps 20 --augment --out run");
  CHECK(contains(trained.out, "40 recordings, 0.0"));
  CHECK(contains(read(box.folder / "run" / "metrics.csv"), "step,loss,loss_bits,error_rate,validation,"));
  CHECK(contains(read(box.folder / "run" / "samples" / "step-0000020.txt"), "said  "));
  succeed(box, "speech train " + small_model + "--steps 10 --augment --out halves");
  succeed(box, "speech train --resume --out halves --steps 20");

  const auto evaluated =
      nlohmann::json::parse(succeed(box, "speech evaluate --model run --threads 1 --limit 20 --json").out);
  CHECK(evaluated["recordings"] == 20);
  CHECK(evaluated["words"]["reference"] >= 60);
  CHECK(contains(succeed(box, "speech evaluate --model run --threads 1 --limit 20 --beam 4").out, "word error rate"));

  write_wav(box.folder / "mine.wav", tone(0.3, 4000));
  const Result text = succeed(box, "speech transcribe --model run --threads 1 --pictures pictures mine.wav");
  CHECK(contains(text.out, "mine.wav: "));
  CHECK(contains(text.out, "(confidence "));
  CHECK(split(read(box.folder / "pictures" / "mine.csv"), '\n').size() == 1 + 48);
  CHECK(fs::exists(box.folder / "pictures" / "mine.png") == has_gnuplot());
  const auto json =
      nlohmann::json::parse(succeed(box, "speech transcribe --model run --threads 1 --json mine.wav").out);
  CHECK(json["recordings"][0]["file"] == "mine.wav");

  check_refused(box.run("speech transcribe --model run"), 2, "give recordings, or --stream");
  check_refused(box.run("speech transcribe --model run --stream mine.wav"), 2, "--stream reads standard input");
  check_refused(box.run("speech transcribe --model run --stream"), 1, "by causal transformers only");
  check_refused(box.run("speech transcribe --model run none.wav"), 1, "there is no file none.wav");
  const Result some = box.run("speech transcribe --model run --threads 1 --json none.wav mine.wav");
  CHECK(some.status == 1);
  CHECK(contains(some.err, "runnel: there is no file none.wav\nrunnel: 1 of 2 recordings could not be transcribed\n"));
  const auto rest = nlohmann::json::parse(some.out);
  CHECK(rest["recordings"][0]["error"] == "there is no file none.wav");
  CHECK(rest["recordings"][1] == json["recordings"][0]);

  fs::create_directories(box.folder / "other");
  fs::copy_file(box.folder / "mine.wav", box.folder / "other" / "mine.wav");
  check_refused(box.run("speech transcribe --model run --pictures pictures mine.wav other/mine.wav"), 2,
                "mine.wav and other/mine.wav would both be drawn in pictures/mine.csv");
  write_bytes(box.folder / "mine.csv", "my own");
  check_refused(box.run("speech transcribe --model run --pictures . mine.wav"), 1,
                "what stands there is not a table of this program");
  CHECK(read(box.folder / "mine.csv") == "my own");
  succeed(box, "speech transcribe --model run --threads 1 --pictures pictures mine.wav");
  write_wav(box.folder / "fast.wav", tone(0.3, 4000), 16000);
  check_refused(box.run("speech transcribe --model run fast.wav"), 1,
                "16000 samples per second; the model was trained on 8000");
}

TEST_CASE("speech: the Bi-LSTM, a causal model and its stream, halving of the learning rate") {
  Sandbox box;
  write_digits(box.folder / "digits");
  succeed(box, "speech train " + small_model + "--model bilstm --steps 5 --out lstm");
  CHECK(contains(succeed(box, "speech evaluate --model lstm --threads 1 --limit 5").out, "label error rate"));
  make_overflow(box.folder / "lstm" / "best.safetensors");
  check_refused(box.run("speech evaluate --model lstm --limit 5"), 1, "the model puts out numbers that are not finite");

  succeed(box, "speech train " + small_model +
                   "--causal --normalise corpus --steps 40 --schedule plateau --patience 1 --lr 1e-30 --warmup 0 --out "
                   "causal");
  // No validation is better than the first: the learning rate is halved after each of the others.
  const auto rows = split(read(box.folder / "causal" / "metrics.csv"), '\n');
  CHECK(contains(rows.back(), ",2.5e-31,"));
  std::string raw, shell = "/bin/sh";
  for (const int16_t sample : tone(0.3, 4001)) raw.append(reinterpret_cast<const char*>(&sample), 2);
  write_bytes(box.folder / "audio.raw", raw);
  write_bytes(box.folder / "stream.sh",
              "exec " + box.executable + " speech transcribe --model causal --threads 1 --stream <audio.raw");
  // A model that never says the blank has labels everywhere: the stream ends in those of the whole recording.
  SafeTensors loud = load_safetensors(box.folder / "causal" / "last.safetensors");
  for (NamedTensor& parameter : loud.tensors)
    if (parameter.name == "output.bias") {
      std::vector<float> bias = parameter.tensor.to_vector();
      bias[0] = -100;
      parameter.tensor = Tensor(parameter.tensor.shape(), bias);
    }
  save_safetensors(box.folder / "loud", loud);
  for (const int frames : {9, 10, 11, 12}) {
    const std::vector<int16_t> samples = tone(0.3, 200 + 80 * (frames - 1));
    write_wav(box.folder / "whole.wav", samples);
    write_bytes(box.folder / "whole.raw",
                std::string(reinterpret_cast<const char*>(samples.data()), samples.size() * 2));
    write_bytes(box.folder / "whole.sh",
                "exec " + box.executable + " speech transcribe --model loud --threads 1 --stream <whole.raw");
    const auto whole =
        nlohmann::json::parse(succeed(box, "speech transcribe --model loud --threads 1 --json whole.wav").out);
    std::swap(box.executable, shell);
    const std::string streamed = box.run("whole.sh").out;
    std::swap(box.executable, shell);
    CAPTURE(frames);
    CHECK(contains(streamed, "\ntext: " + whole["recordings"][0]["text"].get<std::string>() + "\n"));
  }
  std::swap(box.executable, shell);
  CHECK(contains(box.run("stream.sh").out, "text: "));
  const fs::path microphone = box.folder / "audio.raw";
  fs::remove(microphone);
  REQUIRE(mkfifo(microphone.c_str(), 0600) == 0);
  write_bytes(box.folder / "whole.sh",
              "exec " + program() + " speech transcribe --model loud --threads 1 --stream <audio.raw");
  fs::remove(box.folder / "stdout");
  const pid_t child = box.start("whole.sh");
  const int writer = open(microphone.c_str(), O_RDWR);  // which waits for nobody
  CHECK(write(writer, raw.data(), 4001) == 4001);
  CHECK(wait_until([&] { return contains(read(box.folder / "stdout"), "\n"); }));  // a label, before there is more
  kill(child, SIGINT);
  const Result interrupted = box.finish(child);
  close(writer);
  CHECK(interrupted.status == 130);
  CHECK(contains(interrupted.out, "text: "));
  std::swap(box.executable, shell);

  check_refused(box.run("speech train --causal"), 2, "--causal needs --normalise corpus");
  check_refused(box.run("speech train --causal --normalise corpus --attention sinkhorn --preset tiny"), 2,
                "--attention sinkhorn has no causal form");
  check_refused(box.run("speech train --width 63 --heads 3"), 2, "--width 63 is odd");
  check_refused(box.run("speech train --preset tiny --data none"), 1, "the Free Spoken Digit Dataset is not in none");
}

TEST_CASE("speech: a folder of recordings, of which some cannot be read") {
  const Sandbox box;
  for (int i = 0; i < 12; ++i)
    write_wav(box.folder / "own" / (std::to_string(i) + ".wav"), tone(i % 2 ? 0.2 : 0.9, 3000 + 100 * i));
  std::string list;
  for (int i = 0; i < 12; ++i) list += std::to_string(i) + ".wav\t" + (i % 2 ? "low" : "high") + "\n";
  for (const std::string part : {"train", "validation", "test"})
    write_bytes(box.folder / "own" / (part + ".tsv"), list);
  write_bytes(box.folder / "own" / "3.wav", "damaged");
  const std::string train = "speech train --preset tiny --precision f32 --threads 1 --steps 2 --data own --out run ";
  const Result trained = succeed(box, train);
  CHECK(contains(trained.err, "3 recordings are left out"));
  CHECK(contains(trained.err, "3.wav: no recording that can be read"));
  CHECK(contains(trained.out, "11 recordings"));
  CHECK(contains(box.run(train + "--overwrite --strict").err, "3.wav: no recording that can be read"));
  CHECK(contains(succeed(box, train + "--overwrite --length 40").err,
                 ": longer than 40 frames of 10 ms, the most that --length allows"));
  CHECK(contains(box.run(train + "--overwrite --length 3").err, "none of the 36 recordings can be read; the first: "));
}

TEST_CASE("speech: help of train") { check_help_of_train(Sandbox(), "speech"); }

TEST_CASE("speech: a run and its validation are the same from two processes") {
  const Cluster box;
  if (!box) return;
  write_digits(box.folder / "digits");
  check_same_from_two(
      box,
      "speech train --data digits --preset tiny --strings 40 --validation 10 --width 16 --layers 1 --feed-forward 16");
}

TEST_CASE("bench speech: updates over the length, and audio as it comes") {
  const Sandbox box;
  const std::string bench = "bench speech --preset tiny --systems linear --threads 1 --runs 1 --out out ";
  CHECK(contains(succeed(box, bench + "--frames 1600").out, "linear                1600"));
  const Result stream = succeed(box, bench + "--stream 16");
  const auto rows = split(read(box.folder / "out" / "speech-stream.csv"), '\n');
  REQUIRE(rows.size() == 6);
  CHECK(split(rows[2], ',').back() == split(rows[5], ',').back());  // the size of the state
  check_refused(box.run("bench speech --systems tape"), 2, "--systems: tape is not one of linear, ");
  check_refused(box.run(bench + "--frames 100"), 2, "--frames 100: give 800 or more");
  check_refused(box.run(bench + "--stream 15"), 2, "--stream 15: give 16 seconds or more");
  check_refused(box.run(bench + "--stream 16 --frames 800"), 2, "--frames and --stream are two measurements");
}

}  // namespace runnel::test
