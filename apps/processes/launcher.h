// Who has started this program: a user, or mpirun, srun or torchrun, as one of several processes.
#pragma once
#include <string>

namespace runnel {

// Looks who that was, and connects nothing yet: processes() is this process by itself, with its rank, so that one of
// several speaks. Its connect() connects them; throws Error that names the variable which says that there are several
// if that cannot be, or if their number is not a power of two.
void find_launcher();

std::string version_of_libraries();  // lines of --version

}  // namespace runnel
