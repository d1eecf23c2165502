// Who has started this program: a user, or mpirun, srun or torchrun, as one of several processes.
#pragma once

namespace runnel {

// If it is one of several: connects them, so that processes() are they. Throws Error if that cannot be, or if their
// number is not a power of two.
void connect_processes();

}  // namespace runnel
