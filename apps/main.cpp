// runnel: the program. Every error ends here as one sentence on stderr.
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <csignal>
#include <new>
#include <string>

#include "apps/cli/output.h"
#include "apps/cli/subcommand.h"
#include "apps/tasks/tasks.h"
#include "engine/check.h"
#include "engine/version.h"

namespace runnel {

void add_check(Subcommand program, Command& chosen);
void add_bench(Subcommand program, Command& chosen);
void add_runs(Subcommand program, Command& chosen);
void add_completion(Subcommand program, Command& chosen);

}  // namespace runnel

namespace {

// Names of files stand in sentences as they are: here they lose control characters, and what no file system would take.
int complain(const std::string& sentence, int status) {
  constexpr size_t longest_name = 255, shown = 60;
  std::string line;
  for (size_t at = 0; at < sentence.size();) {
    const size_t end = std::min(sentence.find_first_of("/ ", at), sentence.size() - 1) + 1;
    const bool is_long = end - at > longest_name + 1;
    line.append(sentence, at, is_long ? shown : end - at);
    if (is_long) line += "... ";
    at = end;
  }
  for (char& c : line)
    if (static_cast<unsigned char>(c) < ' ') c = '?';
  fmt::print(stderr, "runnel: {}\n", line);
  return status;
}

int run(int argc, char** argv) {
  using namespace runnel;
  try {
    CLI::App program{"Runnel trains and samples transformers with linear attention."};
    program.option_defaults()->always_capture_default()->take_last();  // a flag given twice: the last counts
    program.set_version_flag("--version", [] { return version_text(); });
    program.require_subcommand(0, 1);  // one at each level: each app takes this over
    const Subcommand runnel(program);
    Command chosen;
    for (const auto add : all_tasks) add(runnel, chosen);
    for (const auto add : {add_check, add_bench, add_runs, add_completion}) add(runnel, chosen);
    const std::string text = parse(program, argc, argv);
    fmt::print("{}", text);
    return text.empty() ? chosen() : 0;
  } catch (const UsageError& error) {
    return complain(error.what(), 2);
  } catch (const std::bad_alloc&) {
    return complain("out of memory; make the batch, the length or the model smaller", 1);
  } catch (const std::exception& error) {
    return complain(error.what(), 1);
  }
}

}  // namespace

int main(int argc, char** argv) {
  runnel::prepare_output();
  std::signal(SIGXFSZ, SIG_IGN);  // a limit on the size of files is then an error like a full disk
  const int status = run(argc, argv);
  const std::string problem = runnel::output_problem();
  return status == 0 && !problem.empty() ? complain(problem, 1) : status;
}
