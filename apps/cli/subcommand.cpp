#include "apps/cli/subcommand.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <type_traits>

namespace runnel {

std::string Subcommand::name() const { return app_->get_name(); }

Subcommand Subcommand::add(const std::string& name, const std::string& help, const std::string& footer) const {
  CLI::App* const app = app_->add_subcommand(name, help);
  app->footer(footer);
  return Subcommand(*app);
}

void Subcommand::add_flags(const std::function<Settings()>& list) const {
  for (const Setting& setting : list()) {
    const auto add = [&](auto* value) {
      using T = std::decay_t<decltype(*value)>;
      const auto store = [list, name = setting.name](const T& given) {
        for (const Setting& s : list())
          if (s.name == name) *std::get<T*>(s.value) = given;
      };
      const std::string flag = "--" + setting.name;
      if constexpr (std::is_same_v<T, bool>) {
        app_->add_flag_function(
            flag, [store](int64_t count) { store(count > 0); }, setting.help);  // --flag=false: -1
      } else {
        CLI::Option* const option = app_->add_option_function<T>(flag, store, setting.help);
        option->default_str(text_of(setting));
        if constexpr (std::is_same_v<T, std::vector<std::string>>) option->take_all();
        const std::string description = setting.allowed.description();
        if (!description.empty())
          option->check([allowed = setting.allowed](const std::string& text) { return allowed.problem(text); },
                        description);
      }
    };
    std::visit(add, setting.value);
  }
}

void Subcommand::when_parsed(std::function<void()> call) const { app_->callback(std::move(call)); }

void Subcommand::apply_flags() const {
  for (CLI::Option* option : app_->get_options())
    if (option->count()) option->run_callback();
}

}  // namespace runnel
