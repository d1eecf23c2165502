// Processes that MPI connects, if this build has MPI.
#pragma once
#include <string>

namespace runnel {

// If mpirun or srun has started this program as one of several: connects them, so that processes() are they. Throws
// Error if that cannot be, or if their number is not a power of two.
void connect_processes();
// "Open MPI v4.1.4", or why there is none.
std::string mpi_version();

}  // namespace runnel
