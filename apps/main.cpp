// runnel: the program. Each app adds its subcommands; whatever goes wrong ends here as one sentence on stderr.
#include <fmt/format.h>

#include <csignal>
#include <new>
#include <string>

#include "apps/options.h"

int main(int argc, char** argv) {
  using namespace runnel;
  const auto complain = [](const char* sentence, int status) {
    fmt::print(stderr, "runnel: {}\n", sentence);
    return status;
  };
  std::signal(SIGXFSZ, SIG_IGN);  // a limit on the size of files is then an error like a full disk
  try {
    CLI::App program{"Runnel trains and samples transformers with linear attention."};
    program.option_defaults()->always_capture_default();
    program.set_version_flag("--version", "runnel 0.1");
    program.require_subcommand(1);
    Command chosen;
    add_copy(program, chosen);
    add_mnist(program, chosen);
    add_check(program, chosen);
    add_bench(program, chosen);
    try {
      program.parse(argc, argv);
    } catch (const CLI::Success& help_or_version) {
      return program.exit(help_or_version);
    }
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
