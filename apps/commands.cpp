#include "apps/commands.h"

#include "apps/package.h"
#include "apps/tasks/tasks.h"

namespace runnel {

void add_check(Subcommand program, Command& chosen);
void add_bench(Subcommand program, Command& chosen);
void add_runs(Subcommand program, Command& chosen);
void add_completion(Subcommand program, Command& chosen);

void add_commands(Subcommand program, Command& chosen) {
  for (const auto add : all_tasks) add(program, chosen);
  for (const Package* package : packages())
    if (package->add_commands) package->add_commands(program, chosen);
  for (const auto add : {add_check, add_bench, add_runs, add_completion}) add(program, chosen);
}

}  // namespace runnel
