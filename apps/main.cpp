// runnel: the program. Every error ends here as one sentence on stderr.
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <csignal>
#include <new>
#include <string>
#include <vector>

#include "apps/cli/subcommand.h"
#include "apps/tasks/tasks.h"
#include "engine/check.h"
#include "engine/version.h"

namespace runnel {

void add_check(Subcommand program, Command& chosen);
void add_bench(Subcommand program, Command& chosen);

}  // namespace runnel

namespace {

// A command line that names no complete command ("runnel mnist", "runnel mnist paint"): lists what there is.
void check_is_command(const CLI::App& program) {
  const CLI::App* last = &program;
  std::string words = "runnel", commands;
  while (!last->get_subcommands().empty()) {
    last = last->get_subcommands()[0];
    words += " " + last->get_name();
  }
  for (const CLI::App* command : last->get_subcommands({})) commands += " " + command->get_name();
  const std::vector<std::string> rest = last->remaining();
  runnel::check<runnel::UsageError>(commands.empty(), "after \"", words, "\" comes one of:", commands,
                                    rest.empty() ? "" : "; not \"" + rest[0] + "\"", "; --help explains them");
}

}  // namespace

int main(int argc, char** argv) {
  using namespace runnel;
  const auto complain = [](const char* sentence, int status) {
    fmt::print(stderr, "runnel: {}\n", sentence);
    return status;
  };
  std::signal(SIGXFSZ, SIG_IGN);  // a limit on the size of files is then an error like a full disk
  try {
    CLI::App program{"Runnel trains and samples transformers with linear attention."};
    program.option_defaults()->always_capture_default()->take_last();  // a flag given twice: the last counts
    program.set_version_flag("--version", [] { return version_text(); });
    program.require_subcommand(0, 1);  // one at each level: each app takes this over
    const Subcommand runnel(program);
    Command chosen;
    for (const auto add : all_tasks) add(runnel, chosen);
    add_check(runnel, chosen);
    add_bench(runnel, chosen);
    try {
      program.parse(argc, argv);
    } catch (const CLI::Success& help_or_version) {
      return program.exit(help_or_version);
    } catch (const CLI::ExtrasError&) {
      check_is_command(program);
      throw;
    }
    check_is_command(program);
    return chosen();
  } catch (const CLI::ParseError& error) {
    return complain((std::string(error.what()) + "; --help says what can be").c_str(), 2);
  } catch (const UsageError& error) {
    return complain(error.what(), 2);
  } catch (const std::bad_alloc&) {
    return complain("out of memory; make the batch, the length or the model smaller", 1);
  } catch (const std::exception& error) {
    return complain(error.what(), 1);
  }
}
