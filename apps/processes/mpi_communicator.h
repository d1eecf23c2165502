// Processes that MPI connects, if this build has MPI.
#pragma once
#include <memory>
#include <string>

#include "apps/training/communicator.h"

namespace runnel {

// The processes of which mpirun or srun has started this one, as many as the variable says. Throws Error that names the
// variable if MPI connects another number. If some of them do not come within 20 seconds, because they run something
// else, ends this process with a sentence, upon which the launcher ends the others.
std::shared_ptr<Communicator> connect_by_mpi(int64_t count, const std::string& variable);
// "Open MPI v4.1.4", or why there is none.
std::string mpi_version();

}  // namespace runnel
