// A tensor is a shape, an identity and shared storage on one device. Nobody modifies it after the op that made it,
// except the optimizer. Float32, contiguous, row-major, batch first; indices are 64-bit everywhere.
#pragma once
#include <array>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <ostream>
#include <vector>

#include "engine/check.h"
#include "engine/memory.h"

namespace runnel {

struct Key;  // of random numbers: engine/random.h

class Shape {
 public:
  static constexpr int max_rank = 6;
  Shape() = default;
  Shape(std::initializer_list<int64_t> sizes) : Shape(std::vector<int64_t>(sizes)) {}
  explicit Shape(const std::vector<int64_t>& sizes);  // throws if a size is negative or the product overflows

  int rank() const { return rank_; }
  int64_t operator[](int axis) const { return sizes_[index_of(axis)]; }  // -1: the last; throws if there is none
  std::vector<int64_t> sizes() const { return {sizes_.begin(), sizes_.begin() + rank_}; }
  int64_t size() const;  // number of elements; 1 for rank 0
  // Rank 0 has no first or last axis: these throw.
  Shape with_first(int64_t size) const { return with(0, size); }  // the same shape with another first axis
  Shape with_last(int64_t size) const { return with(-1, size); }  // the same shape with another last axis
  Shape without_last() const;                                     // all axes but the last: the shape of its rows
  Shape without_first() const;
  Shape stacked(int64_t size) const;  // [...] -> [size,...]
  bool operator==(const Shape&) const = default;

 private:
  size_t index_of(int axis) const;
  Shape with(int axis, int64_t size) const;
  std::array<int64_t, max_rank> sizes_{};
  int rank_ = 0;
};
std::ostream& operator<<(std::ostream& out, const Shape& shape);  // [2,3,8,5]

class Storage {
 public:
  Storage(size_t bytes, Device device) : data_(allocate(bytes, device)), bytes_(bytes), device_(device) {}
  ~Storage() { release(data_, bytes_, device_); }
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;
  void* data() const { return data_; }
  Device device() const { return device_; }

 private:
  void* data_;
  size_t bytes_;
  Device device_;
};

// Throws Error if that is more than an address can reach, as it may be where addresses have 32 bits.
size_t byte_count(int64_t numbers, size_t bytes_each);

// A shape over shared storage: the base of Tensor and Indices.
template <class T>
class Array {
 public:
  Array() = default;  // empty: [0], without storage; converts to false
  explicit Array(Shape shape, Device device = Device::cpu)
      : shape_(shape), storage_(std::make_shared<Storage>(byte_count(shape.size(), sizeof(T)), device)) {}
  Array(Shape shape, const std::vector<T>& values, Device device = Device::cpu);  // throws if the sizes differ

  explicit operator bool() const { return storage_ != nullptr; }
  const Shape& shape() const { return shape_; }
  int64_t size() const { return storage_ ? shape_.size() : 0; }
  Device device() const { return storage_ ? storage_->device() : Device::cpu; }
  T* data() { return storage_ ? static_cast<T*>(storage_->data()) + offset_ : nullptr; }
  const T* data() const { return storage_ ? static_cast<const T*>(storage_->data()) + offset_ : nullptr; }
  bool is_shared() const { return storage_.use_count() > 1; }  // does another array have this storage?
  std::vector<T> to_vector() const;                            // copied to the host
  Array to(Device device) const;       // this array on `device`; copied only if it lies elsewhere
  Array viewed_as(Shape shape) const;  // the same storage under another shape

 protected:
  Shape shape_{0};
  std::shared_ptr<Storage> storage_;
  int64_t offset_ = 0;  // of the first element in the storage
};
extern template class Array<float>;
extern template class Array<int32_t>;
extern template class Array<Key>;

using Indices = Array<int32_t>;  // tokens, labels, bytes
using Keys = Array<Key>;

class Tensor : public Array<float> {
 public:
  Tensor() = default;
  explicit Tensor(Shape shape, Device device = Device::cpu)
      : Array(shape, device), identity_(std::make_shared<Identity>()) {}
  Tensor(Shape shape, const std::vector<float>& values, Device device = Device::cpu)
      : Array(shape, values, device), identity_(std::make_shared<Identity>()) {}
  static Tensor full(Shape shape, float value, Device device = Device::cpu);

  Tensor to(Device device) const;  // as Array's; a copy has a new identity and, as views, no gradient

  // Views, of the same storage and with identities of their own: for ops, since they have no gradient. While a tape
  // records, they throw Error if this tensor wants one. Others call reshape and slice.
  Tensor viewed_as(Shape shape) const;
  Tensor part(int64_t first, Shape shape) const;  // elements from `first` on; throws Error if there are not as many
  std::vector<Tensor> parts() const;              // [n,...] -> n times [...]

  // Copies of a handle share its identity, and with it the wish for a gradient.
  uint64_t id() const { return identity_ ? identity_->id : 0; }
  bool wants_grad() const { return identity_ && identity_->wants_grad; }
  // Throws Error if this tensor is empty, or if the wish is withdrawn while a tape records.
  Tensor& set_wants_grad(bool wants = true);
  float item() const;  // the value of a tensor with one element; throws otherwise

 private:
  friend Tensor detach(const Tensor& x);
  friend Tensor stacked(const std::vector<Tensor>& parts);
  struct Identity {
    Identity();
    uint64_t id;
    bool wants_grad = false;
  };
  std::shared_ptr<Identity> identity_;
};

// As nested lists, behind the shape: [2,3] {{1, 2, 3}, {4, 5, 6}}. Of axes longer than 8, the first and the last three.
std::ostream& operator<<(std::ostream& out, const Tensor& x);

// The same numbers in the same storage, as a tensor that wants no gradient: a constant.
Tensor detach(const Tensor& x);

// to = from, in place: of the same shape, on any devices. Throws Error if the shapes differ.
template <class T>
void assign(Array<T>& to, const Array<T>& from) {
  check(to.shape() == from.shape(), "assign: ", from.shape(), " does not match ", to.shape());
  copy(to.data(), to.device(), from.data(), from.device(), static_cast<size_t>(to.size()) * sizeof(T));
}
Tensor clone(const Tensor& x);  // the same numbers in storage of their own; has no gradient
// n times [...] -> [n,...]: the tensor whose parts() these are, in the same storage if they are; else a copy of them.
Tensor stacked(const std::vector<Tensor>& parts);

// The device that all of an op's arguments lie on; empty ones lie anywhere. Throws Error if they do not agree.
template <class First, class... Rest>
Device device_of(const char* op, const First& first, const Rest&... rest) {
  const Device device = first.device();
  const auto agrees = [device](const auto& x) { return !x || x.device() == device; };
  check((agrees(rest) && ...), op, ": its arguments do not all lie on ", name(device), "; move them with .to(device)");
  return device;
}

}  // namespace runnel
