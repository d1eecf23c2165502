// Training in several processes, connected by MPI or NCCL.
#include "apps/package.h"
#include "apps/processes/launcher.h"

namespace runnel {

void add_scaling(Subcommand bench);

namespace packages_of {

extern const Package processes;
const Package processes{.add_benchmarks = add_scaling, .version = version_of_libraries, .find_launcher = find_launcher};

}  // namespace packages_of

}  // namespace runnel
