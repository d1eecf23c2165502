// Device memory for the length of a scope. It is handed out and taken back in the order of the stream, so a scope may
// end right after the launch of the kernel that reads it.
#pragma once
#include <cstddef>
#include <cstdint>

#include "engine/memory.h"

namespace runnel::cuda {

template <class T>
class Temporary {
 public:
  // n = 0: nothing, and data() is null.
  explicit Temporary(int64_t n)
      : bytes_(static_cast<size_t>(n) * sizeof(T)),
        data_(n ? static_cast<T*>(runnel::allocate(bytes_, Device::cuda)) : nullptr) {}
  ~Temporary() {
    if (data_) runnel::release(data_, bytes_, Device::cuda);
  }
  Temporary(const Temporary&) = delete;
  Temporary& operator=(const Temporary&) = delete;
  T* data() const { return data_; }

 private:
  size_t bytes_;
  T* data_;
};

}  // namespace runnel::cuda
