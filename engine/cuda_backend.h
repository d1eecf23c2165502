// The functions of cuda/ that the engine calls, besides kernels. Only the engine includes this file, under `if
// constexpr (with_cuda)`.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

namespace runnel::cuda {

std::string why_unavailable();
int devices();
void choose_device(int number);
std::string model_name();
void* allocate(size_t bytes);  // null if there is no more memory
void release(void* memory);
void copy(void* to, const void* from, size_t bytes, bool to_host);
void fill(float* y, float value, int64_t n);
void accumulate(float* y, const float* a, const float* b, int64_t n);  // engine/accumulate.h
void accumulate_bf16(float* y, const float* a, const float* b, int64_t n);
void synchronize();
double seconds(const std::function<void()>& work);  // between two events on the stream
int64_t free_memory();
int64_t cached_memory();  // by the pool, and for graphs that are gone
void trim_memory();
void* capture(const std::function<void()>& work);  // a graph that is ready to launch
void launch_graph(void* graph);
void destroy_graph(void* graph);

}  // namespace runnel::cuda
