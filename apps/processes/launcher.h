// Who has started this program: a user, or mpirun, srun or torchrun, as one of several processes.
#pragma once
#include <nlohmann/json.hpp>
#include <string>

namespace runnel {

// Looks who that was, and connects nothing yet: processes() is this process by itself, with its rank, so that one of
// several speaks. `command`: what it was started for, "copy train".
void find_launcher(const std::string& command);

// If it is one of several: connects them, so that processes() are they. Throws Error that names the variable which says
// that there are several if that cannot be, or if their number is not a power of two.
void connect_processes();

// Makes processes(), on whose GPUs this program will compute, exchange everything by NCCL. Throws Error if that cannot
// be. A single one does so if it was launched and NCCL is there, so that NCCL can be tried on one GPU.
void connect_gpus();

// Throws Error that names the first process whose values, or whose command, are not those of rank 0. Collective.
void check_that_all_agree(nlohmann::json values);

}  // namespace runnel
