#include "apps/commands.h"

#include "apps/package.h"
#include "apps/tasks/tasks.h"

namespace runnel {

void add_check(Subcommand program);
void add_bench(Subcommand program);
void add_runs(Subcommand program);
void add_export(Subcommand program);
void add_completion(Subcommand program);

void add_commands(Subcommand program) {
  for (const auto add : all_tasks) add(program);
  for (const Package* package : packages())
    if (package->add_commands) package->add_commands(program);
  for (const auto add : {add_check, add_bench, add_runs, add_export, add_completion}) add(program);
}

}  // namespace runnel
