// The command line: how values are read, what is said of those that cannot be, and output that cannot be written.
#include <sched.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "apps/cli/runtime.h"
#include "engine/text.h"
#include "models/attention_kinds.h"
#include "models/settings.h"
#include "models/settings_text.h"
#include "ops/numerics.h"
#include "tests/program.h"

namespace runnel::test {
namespace {

const std::string train =
    "copy train --threads 1 --length 8 --layers 1 --width 8 --heads 2 --feed-forward 8 --batch 2 --log-every 3 ";

TEST_CASE("settings: numbers are decimal digits") {
  int64_t whole = 7;
  uint64_t seed = 7;
  double real = 7;
  const Setting w{"w", &whole, in_range(-5), ""}, s{"s", &seed, in_range(0), ""}, r{"r", &real, in_range(0, 1e9), ""};
  for (const char* text : {"010", "10"}) {
    CHECK(set_value(w, text) == "");
    CHECK(whole == 10);
  }
  CHECK(set_value(w, "-3") == "");
  CHECK(whole == -3);
  CHECK(set_value(w, "9223372036854775807") == "");
  CHECK(whole == INT64_MAX);
  CHECK(set_value(s, "18446744073709551615") == "");
  CHECK(seed == UINT64_MAX);
  for (const char* text : {"1e-3", "0.001", ".001"}) {
    CHECK(set_value(r, text) == "");
    CHECK(real == 0.001);
  }
  for (const char* text : {"", "+1", " 1", "1 ", "1.0", "1e3", "0x10", "1,000", "1'000", "x"}) {
    CAPTURE(text);
    CHECK(set_value(w, text) == std::string(text) + " is not a whole number of at least -5");
    CHECK(set_value(s, text) == std::string(text) + " is not a whole number of at least 0");
  }
  for (const char* text : {"", "+1", " 1", "1 ", "1,5", "0x1p3", "x"}) {
    CAPTURE(text);
    CHECK(set_value(r, text) == std::string(text) + " is not a number from 0 to 1000000000");
  }
  for (const char* text : {"nan", "inf", "1e999", "-1"}) CHECK(set_value(r, text) != "");
  CHECK(set_value(w, "9223372036854775808") ==
        "9223372036854775808 is not a number of at least -5 and at most 9223372036854775807");
  CHECK(set_value(s, "18446744073709551616") ==
        "18446744073709551616 is not a number of at least 0 and at most 18446744073709551615");
  CHECK(set_value(s, "-1") != "");
  CHECK(whole == INT64_MAX);
  CHECK(seed == UINT64_MAX);
}

TEST_CASE("settings: integers of config.json keep all their digits, and their range") {
  int64_t whole = 0;
  uint64_t seed = 0;
  const Settings list{{"whole", &whole, in_range(0, 9007199254740992.0), ""}, {"seed", &seed, in_range(0), ""}};
  CHECK(read_json(list, {{"whole", 9007199254740991}, {"seed", 9007199254740993u}}) == "");
  CHECK(whole == 9007199254740991);
  CHECK(seed == 9007199254740993u);
  CHECK(read_json(list, {{"whole", 9007199254740993}, {"seed", 1u}}).starts_with("\"whole\": 9007199254740993 is not"));
  CHECK(read_json(list, {{"whole", 9223372036854775808u}, {"seed", 1u}}) == "\"whole\" has another type");
}

TEST_CASE("settings: an excerpt is one short line of valid UTF-8") {
  CHECK(excerpt("plain") == "plain");
  CHECK(excerpt("a\nb\x1b") == "a\\nb\\x1b");
  CHECK(excerpt(std::string(300, 'x')) == std::string(60, 'x') + "...");
  CHECK(excerpt("\xff") == "\\xff");
  std::string umlauts;
  for (int i = 0; i < 100; ++i) umlauts += "\xc3\xa4";
  CHECK(excerpt("x" + umlauts) == "x" + umlauts.substr(0, 58) + "...");
}

TEST_CASE("the command line: a sentence for each thing that cannot be, in the program's own words") {
  const Sandbox box;
  const std::string longest(300, 'x');
  const struct {
    std::string words, sentence;
  } cases[] = {
      {"copy train --steps 1e3", "--steps: 1e3 is not a whole number of at least 1\n"},
      {"copy train --steps 2 --steps 1e3", "--steps: 1e3 is not a whole number"},
      {"copy train --steps 0x10", "--steps: 0x10 is not a whole number"},
      {"copy train --steps 99999999999999999999",
       "--steps: 99999999999999999999 is not a number of at least 1 and at most 9223372036854775807\n"},
      {"copy train --seed 18446744073709551616", "at most 18446744073709551615\n"},
      {"copy train --seed -1", "--seed: -1 is not"},
      {"copy train --steps", "--steps needs a value\n"},
      {"copy train --steps " + longest, "--steps: " + longest.substr(0, 60) + "... is not a whole number"},
      {"copy train --resume=perhaps", "--resume: perhaps is neither true nor false"},
      {"copy train --stesp 5", "\"runnel copy train\" has no flag --stesp; did you mean --steps?\n"},
      {"copy train --stesp=5", "has no flag --stesp; did you mean --steps?\n"},
      {"copy train -steps 5", "has no flag -steps; did you mean --steps?\n"},
      {"copy train --" + longest, "--help lists its flags\n"},
      {"copy train --zzz 5", "\"runnel copy train\" has no flag --zzz; --help lists its flags\n"},
      {"copy tarin", "not \"tarin\"; did you mean train?"},
      {"mnits train", "not \"mnits\"; did you mean mnist?"},
      {"--steps 5 copy train", "what stands before \"copy\" is not understood: flags come after the command\n"},
      {"check twice", "\"runnel check\" takes no \"twice\""},
      {"copy train --out=", "--out needs a value\n"},
      {"copy train --out  --steps 1", "--out needs a value that is not empty\n"},
      {"copy train --out \xff", "--out \\xff is not valid UTF-8\n"},
      {"mnist train --data \xff\xfe", "--data \\xff\\xfe is not valid UTF-8\n"},
      {"copy evaluate --model m/config.json", "--model m/config.json is not a checkpoint; give a run folder"},
      {"mnist sample --model m/config.json", "--model m/config.json is not a checkpoint; give a run folder"},
  };
  fs::create_directories(box.folder / "m");
  std::ofstream(box.folder / "m" / "config.json") << "{}";
  for (const auto& c : cases) {
    CAPTURE(c.words);
    check_refused(box.run(c.words), 2, c.sentence);
  }
  check_refused(box.run("copy train --steps 1 --out " + longest), 1, "File name too long");
  CHECK(contains(succeed(box, train + "--steps 010 --out run").out, "finished at step 10"));
}

// Runs it with its descriptors as a shell redirects them: "> /dev/full".
Result redirected(const std::string& words, const std::string& how) {
  Sandbox box;
  std::ofstream(box.folder / "script") << "exec " + program() + " " + words + " " + how;
  box.executable = "/bin/sh";
  Result result = box.run("script");
  result.out = read(box.folder / "run" / "metrics.csv");
  return result;
}

TEST_CASE("output: a full or closed standard output is a failure, and costs a run nothing") {
  const std::string run = train + "--steps 40 --evaluate-every 1 --out run";
  for (const std::string& words : {std::string("--help"), std::string("--version"), run}) {
    CAPTURE(words);
    check_refused(redirected(words, "> /dev/full"), 1, "cannot write to standard output: No space left on device");
    check_refused(redirected(words, ">&-"), 1, "cannot write to standard output: Bad file descriptor");
  }
  for (const char* how : {"> /dev/full", ">&-", "<&- >&- 2>&-", "2>&-", "2> /dev/full"}) {
    CAPTURE(how);
    const std::string rows = redirected(run, how).out;
    CHECK(std::count(rows.begin(), rows.end(), '\n') == 41);
    CHECK(rows.find("step ") == std::string::npos);  // no progress in the file
  }
  CHECK(redirected(run, "2> /dev/full").status == 0);
  check_refused(redirected("--unknown", ">&- <&-"), 2, "--unknown");
}

TEST_CASE("output: a reader that leaves ends nothing") {
  const Result result = redirected(train + "--steps 400 --evaluate-every 1 --out run", "| true");
  CHECK(result.status == 0);
  CHECK(result.err.empty());
  CHECK(split(result.out, '\n').size() == 401);
}

TEST_CASE("check: --precision bf16 has bounds of its own, where the processor has bf16") {
  const Sandbox box;
  const Result result = box.run("check --precision bf16 --threads 2");
  if (has_bf16()) {
    CAPTURE(result.out);
    CHECK(result.status == 0);
    CHECK(contains(result.out, "bound 2e-02"));
  } else {
    check_refused(result, 1, "has no bfloat16 products");
  }
}

TEST_CASE("--json: one object on standard output and nothing else") {
  const Sandbox box;
  succeed(box, train + "--steps 3 --out run");
  const auto object = [&](const std::string& words) {
    const auto parsed = nlohmann::json::parse(succeed(box, words + " --json").out);
    CAPTURE(words);
    REQUIRE(parsed.is_object());
    return parsed;
  };
  const auto evaluated = object("copy evaluate --model run --sequences 10 --show 2 --threads 1");
  CHECK(evaluated["sequences"] == 10);
  CHECK(evaluated["step"] == 3);
  CHECK(evaluated["copies"].size() == 2);
  CHECK(evaluated["masked_accuracy_percent"].is_number());
  const auto checked = object("check --threads 2");
  CHECK(checked["kept"] == true);
  CHECK(checked["checks"].size() > 20);
  const auto timed = object("bench attention --lengths 16,32 --heads 1 --head-dim 4 --runs 1 --out tables");
  size_t methods = 0;
  for (const AttentionKind* kind : attention_kinds())
    if (kind->causal) methods += std::max<size_t>(1, kind->variants.size());
  CHECK(timed["rows"].size() == 2 * methods);
  CHECK(timed["rows"][0]["L"] == 16);
  const auto converged = object("bench convergence --preset tiny --out figure --steps 2 --attention linear");
  CHECK(converged["rows"][0]["attention"] == "linear");
}

TEST_CASE("copy train: --config is a file of settings between the preset and the flags") {
  const Sandbox box;
  succeed(box, train + "--steps 3 --lr 0.5 --seed 18446744073709551615 --out first");
  succeed(box, "copy train --config first/config.json --out second --lr 0.25 --log-every 1");
  auto first = nlohmann::json::parse(read(box.folder / "first" / "config.json"));
  first["lr"] = 0.25;
  first["log-every"] = 1;
  CHECK(nlohmann::json::parse(read(box.folder / "second" / "config.json")) == first);
  CHECK(first["seed"] == UINT64_MAX);

  const auto with = [&](const std::string& file, const std::string& flags) {
    std::ofstream(box.folder / "file.json") << file;
    return box.run("copy train --config file.json " + flags);
  };
  CHECK(with(R"({"preset": "tiny", "steps": 1, "threads": 1})", "--out third").status == 0);
  const auto third = nlohmann::json::parse(read(box.folder / "third" / "config.json"));
  CHECK(third["preset"] == "tiny");
  CHECK(third["width"] == 64);  // the preset's
  CHECK(third["steps"] == 1);
  check_refused(with(R"({"stesp": 1})", ""), 1, "file.json: \"stesp\" is no setting of this command");
  check_refused(with(R"({"steps": 0})", ""), 1, "file.json: \"steps\": 0 is not a number");
  check_refused(with(R"({"steps": "x"})", ""), 1, "file.json: \"steps\" has another type");
  check_refused(with(R"({"preset": "huge"})", ""), 1, "file.json: \"preset\" is not one of paper, small, tiny");
  check_refused(with("[", ""), 1, "file.json is not a JSON object");
  check_refused(with("{}", "--resume --out first"), 2, "--config and --resume: give one of them");
  check_refused(box.run("copy train --config missing"), 1, "there is no file missing");
}

TEST_CASE("runs, compare: what stands in run folders, damaged ones too") {
  const Sandbox box;
  const fs::path runs = box.folder / "runs";
  succeed(box, train + "--steps 3 --out runs/a");
  succeed(box, train + "--steps 4 --lr 0.5 --out runs/group/b");
  succeed(box, train + "--steps 4 --out runs/c");
  fs::resize_file(runs / "c" / "last.safetensors", 100);
  fs::create_directories(runs / "d");
  std::ofstream(runs / "d" / "config.json") << "{";
  const std::string table = succeed(box, "runs").out;
  CAPTURE(table);
  CHECK(table.starts_with("run           task  preset  step  best"));
  CHECK(contains(table, "\nruns/a        copy  paper   3     validation "));
  CHECK(contains(table, "\nruns/group/b  copy  paper   4     validation "));
  CHECK(contains(table, "\nruns/c  runs/c/last.safetensors is damaged: its header claims "));
  CHECK(contains(table, "\nruns/d  runs/d/config.json is not a JSON object\n"));
  CHECK(contains(succeed(box, "runs runs/group").out, "runs/group/b  copy"));
  fs::create_directories(box.folder / "empty");
  CHECK(succeed(box, "runs empty").out == "no runs in empty\n");
  check_refused(box.run("runs missing"), 1, "there is no folder missing");

  const std::string compared = succeed(box, "compare runs/a runs/group/b").out;
  CAPTURE(compared);
  CHECK(contains(compared, "\n--lr                   0.001    0.5\n"));
  CHECK(contains(compared, "\n--steps                3        4\n"));
  CHECK_FALSE(contains(compared, "--width"));
  CHECK(contains(compared, "\nloss, last "));
  CHECK(contains(compared, "\nvalidation_bits, best "));
  if (contains(compared, "\ncompare.png\n")) CHECK(read(box.folder / "compare.png").starts_with("\x89PNG"));  // gnuplot
  check_refused(box.run("compare runs/a runs/group/b --out none/x.png"), 1,
                "cannot write none/x.png: its folder: No such file or directory");
  std::ofstream(box.folder / "compare.png", std::ios::binary) << "\x89PNG\r\n\x1a\n";
  const std::string path = std::getenv("PATH");
  setenv("PATH", box.folder.c_str(), 1);  // where no gnuplot is
  CHECK_FALSE(contains(succeed(box, "compare runs/a runs/group/b").out, "compare.png"));
  setenv("PATH", path.c_str(), 1);
  fs::copy(runs / "a", runs / "f");
  std::ofstream(runs / "f" / "metrics.csv") << split(read(runs / "a" / "metrics.csv"), '\n')[0] << "\n";
  const Result unbegun = succeed(box, "compare runs/f runs/f --out none.png");
  CHECK(unbegun.err.empty());  // gnuplot is not asked for a plot of nothing
  CHECK_FALSE(contains(unbegun.out, "none.png"));
  check_refused(box.run("compare runs/a"), 2, "compare takes two run folders or more");
  check_refused(box.run("compare runs/a runs/d"), 1, "runs/d/config.json is not a JSON object");

  fs::copy(runs / "a", runs / "e");
  std::string metrics = read(runs / "a" / "metrics.csv");
  std::ofstream(runs / "e" / "metrics.csv") << metrics.replace(metrics.find("validation"), 10, "\x1b[31mred");
  std::ofstream(runs / "d" / "config.json") << "{}";
  std::ofstream(runs / "d" / "metrics.csv") << std::string(5'000'000, ',');
  const Result shown = succeed(box, "runs");
  CHECK(contains(shown.out, "\\x1b[31mred"));
  CHECK(contains(shown.out, "runs/d/metrics.csv:1: more than 1000 columns"));
  CHECK(contains(succeed(box, "compare runs/a runs/e").out, "\\x1b[31mred, last"));
}

TEST_CASE("the command line: more threads than cores are used, with a warning") {
  const Sandbox box;
  const size_t cores = std::thread::hardware_concurrency();
  const Result result = succeed(box, train + "--steps 1 --out run --threads " + std::to_string(cores + 1));
  CHECK(contains(result.err, "runnel: " + std::to_string(cores + 1) + " threads on "));
  CHECK(succeed(box, train + "--steps 1 --out other").err.empty());
}

#if defined(__linux__)  // sched_setaffinity
TEST_CASE("the command line: OMP_NUM_THREADS counts, also where a process has fewer cores than the machine") {
  const Sandbox box;
  cpu_set_t before, one;
  REQUIRE(sched_getaffinity(0, sizeof before, &before) == 0);
  CPU_ZERO(&one);
  CPU_SET(sched_getcpu(), &one);
  REQUIRE(sched_setaffinity(0, sizeof one, &one) == 0);
  const std::string wish = from_environment("OMP_NUM_THREADS", "");
  setenv("OMP_NUM_THREADS", "3", 1);
  const Result result = succeed(box, train + "--threads 0 --steps 1 --out run");
  if (wish.empty())
    unsetenv("OMP_NUM_THREADS");
  else
    setenv("OMP_NUM_THREADS", wish.c_str(), 1);
  REQUIRE(sched_setaffinity(0, sizeof before, &before) == 0);
  CHECK(contains(result.err, "runnel: 3 threads on 1 cores"));
}
#endif

TEST_CASE("the command line: OpenMP's threads spin shortly while they wait, unless the user says how they wait") {
  const Sandbox box;
  const std::string wish = from_environment("OMP_WAIT_POLICY", "");
  setenv("OMP_DISPLAY_ENV", "verbose", 1);
  unsetenv("OMP_WAIT_POLICY");
  const Result ours = succeed(box, "--version");
  setenv("OMP_WAIT_POLICY", "active", 1);
  const Result theirs = succeed(box, "--version");
  if (wish.empty())
    unsetenv("OMP_WAIT_POLICY");
  else
    setenv("OMP_WAIT_POLICY", wish.c_str(), 1);
  unsetenv("OMP_DISPLAY_ENV");
  CHECK(contains(ours.err, "GOMP_SPINCOUNT = '2000'") == contains(ours.err, "GOMP_SPINCOUNT"));
  CHECK_FALSE(contains(theirs.err, "GOMP_SPINCOUNT = '2000'"));
  CHECK(ours.out == theirs.out);
}

TEST_CASE("the command line: a busy machine gets one sentence") {
  CHECK(about_load(3, 2).empty());
  CHECK(about_load(8.25, 2) ==
        "runnel: this machine is busy, with a load average of 8.2 on 2 cores: all takes longer\n");
}

TEST_CASE("--quiet: results and errors, but no progress") {
  const Sandbox box;
  const Result trained = succeed(box, train + "--steps 3 --out run --quiet");
  CHECK(trained.out.empty());
  CHECK(trained.err.empty());
  CHECK_FALSE(contains(read(box.folder / "run" / "config.json"), "quiet"));
  CHECK(contains(succeed(box, "copy evaluate --model run --sequences 2 --threads 1 --quiet").out, "masked accuracy"));
  check_refused(box.run(train + "--steps 3 --out run --quiet"), 2, "already holds a run");
}

TEST_CASE("completion: scripts that know the commands, flags and choices") {
  Sandbox box;
  const std::string bash = succeed(box, "completion bash").out;
  std::ofstream(box.folder / "completion") << bash;
  const struct {
    std::string words, completed;
  } cases[] = {{"copy tr", "train"},
               {"copy train --preset ''", "paper small tiny"},
               {"copy train --preset = t", "tiny"},
               {"mnist train --ste", "--steps"},
               {"copy train --steps ''", ""},
               {"copy evaluate --model com", "completion"},
               {"completion f", "fish"}};
  box.executable = "/bin/bash";
  for (const auto& c : cases) {
    CAPTURE(c.words);
    std::ofstream(box.folder / "try")
        << "source ./completion\nCOMP_WORDS=(runnel " << c.words
        << ")\nCOMP_CWORD=$((${#COMP_WORDS[@]} - 1))\n_runnel\necho \"${COMPREPLY[*]}\"\n";
    CHECK(box.run("try").out == c.completed + "\n");
  }
  box.executable = program();
  CHECK(contains(bash, "'runnel mnist train'"));
  CHECK(succeed(box, "completion zsh").out.ends_with(bash));
  CHECK(contains(succeed(box, "completion fish").out, "-l preset -x -a 'paper small tiny'"));
}

}  // namespace
}  // namespace runnel::test
