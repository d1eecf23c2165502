#include "apps/cli/subcommand.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <type_traits>

#include "apps/cli/version.h"
#include "engine/check.h"
#include "engine/text.h"
#include "models/settings_text.h"

namespace runnel {
namespace {

// The lists of settings whose flags a subcommand has.
std::map<const CLI::App*, std::function<Settings()>>& flag_lists() {
  static std::map<const CLI::App*, std::function<Settings()>> lists;
  return lists;
}

// The flags of a command that --help shows only with their topic.
std::map<const CLI::App*, std::map<std::string, std::vector<CLI::Option*>>>& topics() {
  static std::map<const CLI::App*, std::map<std::string, std::vector<CLI::Option*>>> flags;
  return flags;
}

// Fills a command when it is first needed.
std::map<CLI::App*, std::function<void()>>& unfilled() {
  static std::map<CLI::App*, std::function<void()>> commands;
  return commands;
}

void fill(CLI::App* command) {
  if (const auto found = unfilled().extract(command)) found.mapped()();
}

void check_text(const std::string& flag, const std::string& text) {
  check<UsageError>(!text.empty(), flag, " needs a value that is not empty");
  check<UsageError>(is_utf8(text), flag, " ", excerpt(text), " is not valid UTF-8");
}

const char* type_name(const Setting& setting) {
  constexpr const char* names[] = {"", "INT", "UINT", "FLOAT", "TEXT", "TEXT"};
  return names[setting.value.index()];
}

// How many characters must be inserted, removed, replaced or swapped with their neighbour to turn a into b.
size_t edits(const std::string& a, const std::string& b) {
  std::vector<std::vector<size_t>> d(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i)
    for (size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        d[i][j] = i + j;
        continue;
      }
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  return d[a.size()][b.size()];
}

// "; did you mean --steps?", or "" if no known word is close.
std::string suggestion(const std::string& word, const std::vector<std::string>& known, const char* prefix) {
  const std::string* closest = nullptr;
  size_t fewest = word.size() > 60 ? 0 : std::max<size_t>(1, word.size() / 3) + 1;
  for (const std::string& candidate : known)
    if (const size_t n = edits(word, candidate); n < fewest) {
      fewest = n;
      closest = &candidate;
    }
  return closest ? std::string("; did you mean ") + prefix + *closest + "?" : "";
}

// "; did you mean lra listops?" for the name of a command one level below, or "".
std::string level_below(const std::string& word, CLI::App& command) {
  for (CLI::App* child : command.get_subcommands({})) {
    fill(child);
    for (const CLI::App* grandchild : child->get_subcommands({}))
      if (grandchild->get_name() == word) return "; did you mean " + child->get_name() + " " + word + "?";
  }
  return "";
}

std::vector<std::string> flag_names(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options())
    for (const std::string& name : option->get_lnames()) names.push_back(name);
  return names;
}

// Throws UsageError unless the words name a complete command and nothing is left over.
void check_understood(CLI::App& program) {
  CLI::App* last = &program;
  std::string words = "runnel";
  std::vector<std::string> left = last->remaining();
  while (!last->get_subcommands().empty()) {
    last = last->get_subcommands()[0];
    check<UsageError>(left.empty(), "what stands before \"", last->get_name(),
                      "\" is not understood: flags come after ", "the command");
    words += " " + last->get_name();
    left = last->remaining();
  }
  std::vector<std::string> commands;
  std::string listed;
  for (const CLI::App* command : last->get_subcommands({})) {
    commands.push_back(command->get_name());
    listed += " " + commands.back();
  }
  const std::string what = left.empty() ? "" : "\"" + excerpt(left[0]) + "\"";
  const std::string below = left.empty() ? "" : level_below(left[0], *last);
  if (!commands.empty())
    fail<UsageError>("after \"", words, "\" comes one of:", listed, left.empty() ? "" : "; not " + what,
                     left.empty() || !below.empty() ? below : suggestion(left[0], commands, ""),
                     "; --help explains them");
  if (left.empty()) return;
  check<UsageError>(left[0].starts_with("-"), "\"", words, "\" takes no ", what, "; --help lists its flags");
  const std::string flag = left[0].substr(0, left[0].find('='));
  const std::string close =
      suggestion(flag.substr(std::min(flag.find_first_not_of('-'), flag.size())), flag_names(*last), "--");
  fail<UsageError>("\"", words, "\" has no flag ", excerpt(flag), close.empty() ? "; --help lists its flags" : close);
}

// Of --help TOPIC: shows the flags of the topic instead of the others, and leaves out the word.
bool shows_topic(CLI::App* command, const std::string& word) {
  const auto found = topics()[command].find(word);
  if (found == topics()[command].end()) return false;
  for (CLI::Option* option : command->get_options()) option->group("");
  for (CLI::Option* option : found->second) option->group("Options");
  command->footer("");
  return true;
}

// Fills the commands that the words name, and checks their switches: the parser takes --resume=5 for true, and throws
// what std::stoll does for --resume=yes.
// Returns the words, but for a topic of --help.
std::vector<char*> fill_named_commands(CLI::App* command, int argc, char** argv) {
  std::vector<char*> words;
  for (int i = 0; i < argc; ++i) {
    const std::string word = argv[i], before = i > 0 ? argv[i - 1] : "";
    if ((before == "--help" || before == "-h") && shows_topic(command, word)) continue;
    words.push_back(argv[i]);
    if (i == 0) continue;
    for (CLI::App* below : command->get_subcommands({}))
      if (below->get_name() == word) {
        fill(command = below);
        break;
      }
    const size_t equals = word.find('=');
    const auto list = flag_lists().find(command);
    if (list == flag_lists().end() || !word.starts_with("--") || equals == std::string::npos) continue;
    for (const Setting& setting : list->second())
      if (std::holds_alternative<bool*>(setting.value) && word.substr(2, equals - 2) == setting.name) {
        const std::string value = word.substr(equals + 1);
        check<UsageError>(value == "true" || value == "false", "--", setting.name, ": ", excerpt(value),
                          " is neither true nor false");
      }
  }
  return words;
}

// The first word of this text that is a flag.
std::string flag_in(const std::string& text) {
  const size_t at = text.find("--");
  if (at == std::string::npos) return "a flag";
  return excerpt(text.substr(at, text.find_first_of(" :=,", at) - at));
}

}  // namespace

std::string Subcommand::name() const { return app_->get_name(); }

void Subcommand::add(const std::string& name, const std::string& help, std::function<void(Subcommand)> fill) const {
  CLI::App* const command = app_->add_subcommand(name, help);
  unfilled()[command] = [=, chosen = chosen_] { fill({*command, *chosen}); };
}

void Subcommand::set_footer(const std::string& text) const {
  const std::string before = app_->get_footer();
  app_->footer(before.empty() ? text : before + "\n\n" + text);
}

void Subcommand::add_flags(const std::function<Settings()>& list) const {
  flag_lists()[app_] = list;
  for (const Setting& setting : list()) {
    const std::string flag = "--" + setting.name;
    const auto now = [list, name = setting.name] {
      const Settings all = list();
      return *std::find_if(all.begin(), all.end(), [&](const Setting& s) { return s.name == name; });
    };
    const auto file = [&](CLI::Option* option) {
      if (setting.topic.empty()) return;
      topics()[app_][setting.topic].push_back(option->group(""));
    };
    if (std::holds_alternative<bool*>(setting.value)) {
      file(app_->add_flag_function(
          flag, [now](int64_t count) { *std::get<bool*>(now().value) = count > 0; }, setting.help));  // =false: -1
      continue;
    }
    const bool takes_many = std::holds_alternative<std::vector<std::string>*>(setting.value);
    const auto store = [now, flag, takes_many](const CLI::results_t& given) {
      for (const std::string& text : given) check_text(flag, text);
      if (takes_many) {
        *std::get<std::vector<std::string>*>(now().value) = given;
      } else {
        const std::string problem = set_value(now(), given.back());
        check<UsageError>(problem.empty(), flag, ": ", problem);
      }
      return true;
    };
    CLI::Option* const option = app_->add_option(flag, store, setting.help);
    if (takes_many) option->expected(1, CLI::detail::expected_max_vector_size)->allow_extra_args()->take_all();
    const std::string description = setting.allowed.description();
    option->type_name(type_name(setting) + (description.empty() ? "" : ":" + description));
    option->default_str(text_of(setting));
    file(option);
  }
  std::string more;
  for (const auto& [topic, options] : topics()[app_]) more += (more.empty() ? "" : ", ") + ("--help " + topic);
  if (!more.empty()) set_footer("More flags: " + more);
}

void Subcommand::add_words(const std::string& name, std::vector<std::string>& words, const std::string& help,
                           int most) const {
  const auto store = [&words, name](const CLI::results_t& given) {
    for (const std::string& text : given) check_text(name, text);
    words = given;
    return true;
  };
  app_->add_option(name, store, help)->expected(1, most)->allow_extra_args()->take_all()->type_name("TEXT");
}

bool Subcommand::is_given(const std::string& flag) const { return app_->get_option("--" + flag)->count() > 0; }

CommandDescription Subcommand::describe() const {
  fill(app_);
  CommandDescription described;
  described.name = app_->get_name();
  described.help = app_->get_description();
  if (const auto list = flag_lists().find(app_); list != flag_lists().end()) described.flags = list->second();
  for (const CLI::Option* option : app_->get_options())
    described.takes_words = described.takes_words || option->get_positional();
  for (CLI::App* command : app_->get_subcommands([](CLI::App*) { return true; }))
    described.commands.push_back(Subcommand(*command, *chosen_).describe());
  return described;
}

void Subcommand::when_parsed(std::function<Command()> choose) const {
  app_->callback([choose, chosen = chosen_] { *chosen = choose(); });
}

void Subcommand::apply_flags() const {
  for (CLI::Option* option : app_->get_options())
    if (option->count()) option->run_callback();
}

namespace {

// A flag's type and default, "INT=1", written the same way with every version of CLI11.
struct Formatter : CLI::Formatter {
  std::string make_option_opts(const CLI::Option* option) const override {
    if (option->get_type_size() == 0) return "";
    std::string text = " " + option->get_type_name();
    if (!option->get_default_str().empty()) text += "=" + option->get_default_str();
    if (option->get_expected_max() > 1) text += " ...";
    if (option->get_required()) text += " REQUIRED";
    return text;
  }
};

}  // namespace

CommandLine::CommandLine()
    : program_(std::make_shared<CLI::App>("Runnel trains and samples transformers with linear attention.")) {
  flag_lists().clear();  // those of an earlier command line, which is gone
  topics().clear();
  unfilled().clear();
  program_->formatter(std::make_shared<Formatter>());
  program_->option_defaults()->always_capture_default()->take_last();  // a flag given twice: the last counts
  program_->set_version_flag("--version", version_text);
  program_->require_subcommand(0, 1);  // one at each level: each subcommand takes this over
}

Command CommandLine::parse(int argc, char** argv) const {
  std::vector<char*> words = fill_named_commands(program_.get(), argc, argv);
  try {
    program_->parse(static_cast<int>(words.size()), words.data());
  } catch (const CLI::Success& help_or_version) {
    std::ostringstream text;
    program_->exit(help_or_version, text, text);
    std::string shown = text.str();  // without the second empty line that a hidden group leaves
    if (const size_t at = shown.find("\n\n\n"); at != std::string::npos) shown.erase(at, 1);
    return [shown] { return fmt::print("{}", shown), 0; };
  } catch (const CLI::ExtrasError&) {
    check_understood(*program_);
    throw;
  } catch (const CLI::ArgumentMismatch& error) {
    fail<UsageError>(flag_in(error.what()), " needs a value");
  } catch (const CLI::ParseError& error) {
    fail<UsageError>("the command line cannot be understood at ", flag_in(error.what()), "; --help explains it");
  }
  check_understood(*program_);
  return *chosen_;
}

}  // namespace runnel
