#include "engine/tensor.h"

#include <atomic>
#include <limits>

#include "engine/check.h"
#include "engine/cuda_backend.h"
#include "engine/random.h"
#include "engine/tape.h"

namespace runnel {

Shape::Shape(const std::vector<int64_t>& sizes) : rank_(static_cast<int>(sizes.size())) {
  check(rank_ <= max_rank, "a tensor has at most ", int{max_rank}, " axes, not ", rank_);
  int64_t product = 1;
  for (size_t axis = 0; axis < sizes.size(); ++axis) {
    check(sizes[axis] >= 0, "a tensor's axis cannot have the size ", sizes[axis]);
    check(!__builtin_mul_overflow(product, sizes[axis], &product) && product < int64_t{1} << 60,
          "a tensor of that many elements is too large");
    sizes_[axis] = sizes[axis];
  }
}

int64_t Shape::size() const {
  int64_t product = 1;
  for (int axis = 0; axis < rank_; ++axis) product *= (*this)[axis];
  return product;
}

size_t Shape::index_of(int axis) const {
  check(axis < rank_ && axis >= -rank_, "a tensor ", *this, " has no axis ", axis);
  return static_cast<size_t>(axis < 0 ? rank_ + axis : axis);
}

Shape Shape::with(int axis, int64_t size) const {
  Shape shape = *this;
  shape.sizes_[index_of(axis)] = size;
  return shape;
}

Shape Shape::without_last() const {
  Shape shape = *this;
  shape.sizes_[index_of(-1)] = 0;  // unused entries are equal, as == expects
  --shape.rank_;
  return shape;
}

Shape Shape::without_first() const {
  check(rank_ > 0, "a tensor [] has no axis 0");
  return Shape(std::vector<int64_t>(sizes_.begin() + 1, sizes_.begin() + rank_));
}

Shape Shape::stacked(int64_t size) const {
  std::vector<int64_t> all = sizes();
  all.insert(all.begin(), size);
  return Shape(all);
}

std::ostream& operator<<(std::ostream& out, const Shape& shape) {
  out << '[';
  for (int axis = 0; axis < shape.rank(); ++axis) out << (axis ? "," : "") << shape[axis];
  return out << ']';
}

size_t byte_count(int64_t numbers, size_t bytes_each) {
  check(static_cast<uint64_t>(numbers) <= std::numeric_limits<size_t>::max() / bytes_each, "a tensor of ", numbers,
        " elements is larger than the memory that this program can address");
  return static_cast<size_t>(numbers) * bytes_each;
}

template <class T>
Array<T>::Array(Shape shape, const std::vector<T>& values, Device device) : Array(shape, device) {
  check(static_cast<int64_t>(values.size()) == shape.size(), "a tensor ", shape, " cannot hold ", values.size(),
        " values");
  copy(data(), device, values.data(), Device::cpu, values.size() * sizeof(T));
}

template <class T>
std::vector<T> Array<T>::to_vector() const {
  std::vector<T> values(static_cast<size_t>(size()));
  copy(values.data(), Device::cpu, data(), device(), values.size() * sizeof(T));
  return values;
}

template <class T>
Array<T> Array<T>::viewed_as(Shape shape) const {
  check(shape.size() == size(), "a tensor ", shape_, " cannot be viewed as ", shape);
  Array view = *this;
  view.shape_ = shape;
  return view;
}

template <class T>
Array<T> Array<T>::to(Device device) const {
  if (!storage_ || device == storage_->device()) return *this;
  Array there(shape_, device);
  copy(there.data(), device, data(), storage_->device(), static_cast<size_t>(size()) * sizeof(T));
  return there;
}

template class Array<float>;
template class Array<int32_t>;
template class Array<Key>;

Tensor Tensor::full(Shape shape, float value, Device device) {
  Tensor all(shape, device);
  float* x = all.data();
  const int64_t n = shape.size();
  if constexpr (with_cuda)
    if (device == Device::cuda) {
      cuda::fill(x, value, n);
      return all;
    }
#pragma omp parallel for simd schedule(static) if (n >= 1 << 15)
  for (int64_t i = 0; i < n; ++i) x[i] = value;
  return all;
}

namespace {

void print(std::ostream& out, const float* x, const Shape& shape) {
  if (shape.rank() == 0) {
    out << *x;
    return;
  }
  const Shape inner = shape.without_first();
  const int64_t n = shape[0], shown = n > 8 ? 3 : n;  // at each end
  out << '{';
  for (int64_t i = 0; i < n; ++i) {
    if (i > 0) out << (inner.rank() > 0 ? ",\n " : ", ");
    if (i == shown && n > shown) {
      out << "...";
      i = n - shown - 1;
      continue;
    }
    print(out, x + i * inner.size(), inner);
  }
  out << '}';
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const Tensor& x) {
  if (!x) return out << "(empty)";
  const std::vector<float> values = x.to_vector();
  out << x.shape() << ' ';
  print(out, values.data(), x.shape());
  return out;
}

Tensor::Identity::Identity() {
  static std::atomic<uint64_t> last{0};
  id = ++last;
}

Tensor& Tensor::set_wants_grad(bool wants) {
  check(identity_ != nullptr, "set_wants_grad: the tensor is empty");
  check(wants || !identity_->wants_grad || !is_recording(), "set_wants_grad(false): a tape may have recorded that ",
        shape_, " wants a gradient; where it is a constant, pass detach(x)");
  identity_->wants_grad = wants;
  return *this;
}

Tensor detach(const Tensor& x) {
  Tensor y = x;
  if (x) y.identity_ = std::make_shared<Tensor::Identity>();
  return y;
}

Tensor Tensor::viewed_as(Shape shape) const {
  refuse_gradient("viewed_as", "x", *this);
  Tensor view = detach(*this);
  static_cast<Array&>(view) = Array::viewed_as(shape);
  return view;
}

Tensor Tensor::part(int64_t first, Shape shape) const {
  refuse_gradient("part", "x", *this);
  check(first >= 0 && first + shape.size() <= size(), "part: a tensor ", shape_, " has no ", shape, " from element ",
        first, " on");
  Tensor part = detach(*this);
  part.shape_ = shape;
  part.offset_ += first;
  return part;
}

std::vector<Tensor> Tensor::parts() const {
  const Shape shape = shape_.without_first();
  std::vector<Tensor> parts;
  for (int64_t i = 0; i < shape_[0]; ++i) parts.push_back(part(i * shape.size(), shape));
  return parts;
}

Tensor stacked(const std::vector<Tensor>& parts) {
  const Tensor& first = parts.at(0);
  const Shape shape = first.shape().stacked(std::ssize(parts));
  bool are_parts = true;
  int64_t offset = first.offset_;
  for (const Tensor& part : parts) {
    refuse_gradient("stacked", "x", part);
    check(part.shape() == first.shape(), "stacked: the shapes ", first.shape(), " and ", part.shape(), " differ");
    are_parts = are_parts && part.storage_ == first.storage_ && part.offset_ == offset;
    offset += part.size();
  }
  if (are_parts) {
    Tensor stack = detach(first);
    stack.shape_ = shape;
    return stack;
  }
  Tensor stack(shape, first.device());
  std::vector<Tensor> places = stack.parts();
  for (size_t i = 0; i < parts.size(); ++i) assign(places[i], parts[i]);
  return stack;
}

Tensor Tensor::to(Device device) const {
  if (!storage_ || device == storage_->device()) return *this;
  refuse_gradient("to", "x", *this);
  Tensor there(shape_, device);
  assign(there, *this);
  return there;
}

float Tensor::item() const {
  check(size() == 1, "item: a tensor ", shape_, " is not one number");
  return to_vector()[0];
}

Tensor clone(const Tensor& x) {
  refuse_gradient("clone", "x", x);
  Tensor y(x.shape(), x.device());
  assign(y, x);
  return y;
}

}  // namespace runnel
