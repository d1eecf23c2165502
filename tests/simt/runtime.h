// Between runtime.cpp and cublas.cpp: putting work on a stream.
#pragma once
#include <functional>
#include <string>

#include "scheduler.h"

namespace simt {

using Work = std::function<void()>;
cudaError_t enqueue(cudaStream_t stream, Work work);
bool is_capturing(cudaStream_t stream);

// SIMT_FAULT in the environment, or "".
std::string fault();

// Fails unless they are null or device memory, in use.
void require_device_memory(const std::vector<const void*>& pointers, const char* where);

}  // namespace simt
