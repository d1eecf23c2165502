// Found before the toolkit's own <cuda_runtime.h>: NVIDIA's types and prototypes, then what g++ lacks.
#pragma once
#pragma GCC system_header  // for include_next
#include_next <cuda_runtime.h>
// A static variable would serve, but ThreadSanitizer would see blocks sharing it and AddressSanitizer loses its red
// zones.
#undef __shared__
#define __shared__ static_assert(false, "kernels take shared memory from Shared, see tests/simt/README.md");

#include "simt/device.h"
