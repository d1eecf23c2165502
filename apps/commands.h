// All commands of the program.
#pragma once
#include "apps/cli/subcommand.h"

namespace runnel {

void add_commands(Subcommand program);

}  // namespace runnel
