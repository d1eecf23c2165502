// Long Range Arena (Tay et al. 2021): tasks that classify sequences, and benchmarks of them.
#include "apps/package.h"
#include "apps/lra/classification.h"

namespace runnel::packages_of {

extern const Package lra;
const Package lra{.add_commands = add_classification_tasks,
                  .add_benchmarks =
                      [](Subcommand bench) {
                        add_lra(bench);
                        add_lra_speed(bench);
                      },
                  .kernels = lra_kernels};

}  // namespace runnel::packages_of
