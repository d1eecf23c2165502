// Processes that MPI connects, if this build has MPI.
#pragma once
#include <memory>
#include <string>

#include "engine/communicator.h"

namespace runnel {

// The processes of which mpirun or srun has started this one. Throws Error if MPI connects another number.
std::shared_ptr<Communicator> connect_by_mpi(int64_t count);
// "Open MPI v4.1.4", or why there is none.
std::string mpi_version();

}  // namespace runnel
