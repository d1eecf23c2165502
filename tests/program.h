// Shared by the tests of the program: runs `runnel` as a user does, in a temporary folder.
#pragma once
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/paths.h"

namespace runnel::test {

namespace fs = std::filesystem;

inline std::string read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, at);) parts.push_back(part);
  return parts;
}

inline bool has_gnuplot() { return std::system("command -v gnuplot >/dev/null 2>&1") == 0; }

// What the program has said on stderr, but not what it says once of this machine: that there is no gnuplot, or that
// others use its cores.
inline std::string without_plots(std::string err) {
  for (const char* begin : {"gnuplot is not installed: no plots", "runnel: this machine is busy"})
    if (const size_t at = err.find(begin); at != std::string::npos) err.erase(at, err.find('\n', at) + 1 - at);
  return err;
}

struct Result {
  int status;  // exit status, or -signal
  std::string out, err;
};

// A temporary folder in which the program runs. Its file `stdin`, if there is one, is the standard input.
struct Sandbox {
  std::string executable = program();
  fs::path folder = fs::temp_directory_path() / ("runnel_apps_" + std::to_string(getpid()));
  Sandbox() {
    fs::remove_all(folder);
    fs::create_directories(folder);
  }
  ~Sandbox() { fs::remove_all(folder); }

  // Starts the executable with these arguments. file_limit: the largest file it may write, in bytes.
  pid_t start(const std::string& words, rlim_t file_limit = RLIM_INFINITY) const {
    const pid_t child = fork();
    if (child != 0) return child;
    std::vector<std::string> arguments = split(words, ' ');
    std::vector<char*> argv{const_cast<char*>("runnel")};
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    if (const int in = open((folder / "stdin").c_str(), O_RDONLY); in >= 0) dup2(in, STDIN_FILENO);
    dup2(open((folder / "stdout").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666), STDOUT_FILENO);
    dup2(open((folder / "stderr").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666), STDERR_FILENO);
    const rlimit limit{file_limit, RLIM_INFINITY};
    if (chdir(folder.c_str()) || setrlimit(RLIMIT_FSIZE, &limit)) _exit(126);
    unsetenv("RUNNEL_DATA");
    alarm(300);  // survives exec: a time limit
    execv(executable.c_str(), argv.data());
    _exit(127);
  }

  Result finish(pid_t child) const {
    int status = 0;
    waitpid(child, &status, 0);
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status), read(folder / "stdout"),
            without_plots(read(folder / "stderr"))};
  }

  Result run(const std::string& words, rlim_t file_limit = RLIM_INFINITY) const {
    return finish(start(words, file_limit));
  }
};

// Runs it and requires exit status 0.
inline Result succeed(const Sandbox& box, const std::string& words) {
  const Result result = box.run(words);
  CAPTURE(words);
  CAPTURE(result.err);
  REQUIRE(result.status == 0);
  return result;
}

// Checks that it failed with this status and one line on stderr that contains these words.
inline void check_refused(const Result& result, int status, const std::string& words) {
  CAPTURE(result.err);
  CAPTURE(words);
  CHECK(result.status == status);
  CHECK(result.err.starts_with("runnel: "));
  CHECK(std::count(result.err.begin(), result.err.end(), '\n') == 1);
  CHECK(result.err.find(words) != std::string::npos);
}

inline bool contains(const std::string& text, const std::string& words) {
  return text.find(words) != std::string::npos;
}

// `<task> train --help` fits two screens, and names the topics that have the other flags.
inline void check_help_of_train(const Sandbox& box, const std::string& task) {
  CAPTURE(task);
  const std::string text = succeed(box, task + " train --help").out;
  CHECK(std::count(text.begin(), text.end(), '\n') < 88);
  CHECK(contains(text, "\nMore flags: --help attention, --help training\n"));
  CHECK_FALSE(contains(text, "\n\n\n"));
  for (const std::string flag : {"--rounds", "--beta2"}) CHECK_FALSE(contains(text, "\n  " + flag));
  const std::string of_kinds = succeed(box, task + " train --help attention").out;
  CHECK(contains(of_kinds, "\n  --rounds INT:from 1 to 64"));
  CHECK_FALSE(contains(of_kinds, "--beta2"));
  CHECK(contains(succeed(box, task + " train --help training").out, "\n  --beta2 FLOAT"));
}

// metrics.csv without its last two columns, which depend on the clock.
inline std::string untimed(const fs::path& metrics) {
  std::string text;
  for (const std::string& row : split(read(metrics), '\n')) {
    const std::vector<std::string> cells = split(row, ',');
    for (size_t i = 0; i + 2 < cells.size(); ++i) text += cells[i] + ",";
    text += "\n";
  }
  return text;
}

// Waits until `holds`, for at most a minute.
template <class Condition>
bool wait_until(Condition holds) {
  for (int i = 0; i < 6000; ++i) {
    if (holds()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

}  // namespace runnel::test
