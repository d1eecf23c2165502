// The command line: subcommands whose flags come from the list of settings of an options struct.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "apps/cli/output.h"
#include "apps/cli/runtime.h"

namespace CLI {
class App;  // CLI11, which takes long to compile: only subcommand.cpp does
}

namespace runnel {

// A parsed command, ready to run; returns the exit status.
using Command = std::function<int()>;

// A subcommand as shell completion sees it.
struct CommandDescription {
  std::string name, help;
  Settings flags;
  bool takes_words = false;
  std::vector<CommandDescription> commands;
};

// A level of the command line: runnel, runnel mnist, runnel mnist train.
class Subcommand {
 public:
  Subcommand(CLI::App& app, Command& chosen) : app_(&app), chosen_(&chosen) {}
  std::string name() const;
  // A command of this level. `fill` adds its flags, words and commands when the command line names it: to make the
  // flags of all commands takes longer than many commands run.
  void add(const std::string& name, const std::string& help, std::function<void(Subcommand)> fill) const;
  void set_footer(const std::string& text) const;  // of --help
  // A flag for each setting. `list` is called whenever a value is to be read or set, so the struct may be reassigned.
  void add_flags(const std::function<Settings()>& list) const;
  // Words that are no flags, at most `most`; they are added to `words`.
  void add_words(const std::string& name, std::vector<std::string>& words, const std::string& help, int most) const;
  bool is_given(const std::string& flag) const;
  CommandDescription describe() const;
  void when_parsed(std::function<Command()> choose) const;  // if the command line ends with this command
  void apply_flags() const;                                 // sets the values of the flags that were given, once more

 private:
  CLI::App* app_;
  Command* chosen_;  // of the command line
};

class CommandLine {
 public:
  CommandLine();
  Subcommand root() const { return {*program_, *chosen_}; }
  // The command that the words choose; with --help or --version, one that prints that. Throws UsageError, or what
  // when_parsed's function throws.
  Command parse(int argc, char** argv) const;

 private:
  std::shared_ptr<CLI::App> program_;
  std::shared_ptr<Command> chosen_ = std::make_shared<Command>();
};

// A subcommand: `run` gets the options, which derive from RuntimeOptions.
template <class Options>
void add_command(Subcommand parent, const char* name, const char* help, std::function<int(Options&)> run,
                 const Options& defaults = Options()) {
  parent.add(name, help, [=](Subcommand command) {
    const auto options = std::make_shared<Options>(defaults);
    command.add_flags([options] { return extended(options->list(), {options->quiet_flag()}); });
    command.when_parsed([=]() -> Command {
      return [=] {
        if (options->json) print_text_to_stderr();
        options->prepare();
        return run(*options);
      };
    });
  });
}

// The same with options for a data set.
template <class Options, class Dataset>
void add_command(Subcommand parent, const Dataset& dataset, const char* name, const char* help,
                 std::function<int(Options&)> run) {
  Options options;
  options.dataset = &dataset;
  add_command<Options>(parent, name, help, run, options);
}

}  // namespace runnel
