// Parallel loops that exceptions can leave: OpenMP itself ends the program where one leaves a parallel region.
#pragma once
#include <exception>

namespace runnel {
namespace {

// Keeps the first exception of any thread. Made before the region, asked after it.
class FirstError {
 public:
  template <class Work>
  void guard(const Work& work) {
    try {
      work();
    } catch (...) {
#pragma omp critical(runnel_first_error)
      if (!error_) error_ = std::current_exception();
    }
  }
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::exception_ptr error_;
};

}  // namespace
}  // namespace runnel
