// runnel completion: scripts that complete command lines in bash, zsh and fish, made from the commands and their flags.
#include <fmt/format.h>

#include "apps/cli/subcommand.h"

namespace runnel {
namespace {

// Calls `visit` with each command and its words, "runnel copy train".
void walk(const CommandDescription& command, const std::string& words,
          const std::function<void(const CommandDescription&, const std::string&)>& visit) {
  visit(command, words);
  for (const CommandDescription& below : command.commands) walk(below, words + " " + below.name, visit);
}

std::string joined(const std::vector<std::string>& words, const char* between) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : between) + word;
  return text;
}

bool is_switch(const Setting& flag) { return std::holds_alternative<bool*>(flag.value); }
bool is_text(const Setting& flag) {
  return std::holds_alternative<std::string*>(flag.value) ||
         std::holds_alternative<std::vector<std::string>*>(flag.value);
}

std::string for_bash(const CommandDescription& program) {
  std::vector<std::string> commands;
  std::string values, words;
  walk(program, "runnel", [&](const CommandDescription& command, const std::string& name) {
    if (name != "runnel") commands.push_back("'" + name + "'");
    std::vector<std::string> next, files, numbers;
    for (const CommandDescription& below : command.commands) next.push_back(below.name);
    for (const Setting& flag : command.flags) {
      const std::string pattern = "'" + name + " --" + flag.name + "'";
      next.push_back("--" + flag.name);
      if (const Choices choices = flag.allowed.choices(); !choices.empty())
        values += fmt::format("    {})\n      words='{}' ;;\n", pattern, joined(choices, " "));
      else if (is_text(flag))
        files.push_back(pattern);
      else if (!is_switch(flag))
        numbers.push_back(pattern);
    }
    if (!files.empty()) values += fmt::format("    {})\n      files=1 ;;\n", joined(files, "|"));
    if (!numbers.empty()) values += fmt::format("    {})\n      return ;;\n", joined(numbers, "|"));
    if (command.takes_words)
      words += fmt::format("    '{}')\n      files=1 words='--help' ;;\n", name);
    else
      words += fmt::format("    '{}')\n      words='{} --help' ;;\n", name, joined(next, " "));
  });
  return fmt::format(R"(_runnel() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} command=runnel words='' files='' i
  COMPREPLY=()
  for ((i = 1; i < COMP_CWORD; ++i)); do
    case "$command ${{COMP_WORDS[i]}}" in
    {})
      command="$command ${{COMP_WORDS[i]}}" ;;
    esac
  done
  if [[ $word == = ]]; then word=''; fi
  if [[ $before == = ]]; then before=${{COMP_WORDS[COMP_CWORD-2]}}; fi
  case "$command $before" in
{}  esac
  if [[ -z $words && -z $files ]]; then
    case "$command" in
{}    esac
  fi
  if [[ -n $files && $word != -* ]]; then
    compopt -o filenames 2> /dev/null
    COMPREPLY=($(compgen -f -- "$word"))
  else
    COMPREPLY=($(compgen -W "$words" -- "$word"))
  fi
}}
complete -F _runnel runnel
)",
                     joined(commands, "|"), values, words);
}

std::string for_fish(const CommandDescription& program) {
  const auto quote = [](const std::string& text) {
    std::string escaped;
    for (const char c : text) escaped += c == '\'' || c == '\\' ? std::string("\\") + c : std::string(1, c);
    return "'" + escaped + "'";
  };
  std::string lines;
  std::vector<std::string> commands;
  walk(program, "runnel", [&](const CommandDescription& command, const std::string& name) {
    if (name != "runnel") commands.push_back(quote(name));
    const std::string here = "complete -c runnel -n 'test (__runnel_command) = \"" + name + "\"' ";
    if (command.takes_words) lines += here + "-F\n";
    for (const CommandDescription& below : command.commands)
      lines += here + "-a " + below.name + " -d " + quote(below.help) + "\n";
    for (const Setting& flag : command.flags) {
      const Choices choices = flag.allowed.choices();
      const std::string value = !choices.empty()  ? " -x -a " + quote(joined(choices, " "))
                                : is_switch(flag) ? ""
                                : is_text(flag)   ? " -r -F"
                                                  : " -x";
      lines += here + "-l " + flag.name + value + " -d " + quote(flag.help) + "\n";
    }
    lines += here + "-l help -d 'print what there is'\n";
  });
  return fmt::format(R"(function __runnel_command
  set -l command runnel
  for word in (commandline -opc)[2..-1]
    switch "$command $word"
      case {}
        set command "$command $word"
    end
  end
  echo $command
end
complete -c runnel -f
{})",
                     joined(commands, " "), lines);
}

}  // namespace

void add_completion(Subcommand program) {
  struct Shell {
    const char *name, *help, *before;
    std::string (*script)(const CommandDescription&);
  };
  static constexpr Shell shells[] = {
      {"bash", "for ~/.bashrc: source <(runnel completion bash)", "", for_bash},
      {"zsh", "for ~/.zshrc: source <(runnel completion zsh)",
       "autoload -Uz compinit bashcompinit && compinit && bashcompinit\n", for_bash},
      {"fish", "for ~/.config/fish/config.fish: runnel completion fish | source", "", for_fish}};
  program.add("completion", "a script that completes command lines in a shell", [=](Subcommand completion) {
    for (const Shell& shell : shells)
      completion.add(shell.name, shell.help, [=](Subcommand command) {
        command.when_parsed([=]() -> Command {
          return [=] { return fmt::print("{}{}", shell.before, shell.script(program.describe())), 0; };
        });
      });
  });
}

}  // namespace runnel
