// Running out of memory on purpose.
#pragma once
#include <sys/resource.h>

#include <cstdlib>

#include "tests/check.h"

namespace runnel::test {

// That f() throws the Error for too little memory where no block of a megabyte is left. An exception that leaves a
// parallel region would end the process instead.
inline void check_out_of_memory(const std::function<void()>& f) {
#if RUNNEL_WITH_ADDRESS_SANITIZER || RUNNEL_WITH_THREAD_SANITIZER
  return;  // sanitizers map memory of their own
#endif
  check_fails([] { Tensor(Shape{int64_t{1} << 45}); }, "out of memory");  // and the pool gives back what is free
  struct NoMemory {
    rlimit before{};
    std::vector<void*> blocks;
    std::vector<Tensor> tensors;
    NoMemory() {
      blocks.reserve(1 << 16);
      tensors.reserve(1 << 10);
      REQUIRE(getrlimit(RLIMIT_AS, &before) == 0);
      rlimit none = before;
      none.rlim_cur = 0;  // nothing more is mapped
      REQUIRE(setrlimit(RLIMIT_AS, &none) == 0);
      while (blocks.size() < blocks.capacity())
        if (void* const block = std::malloc(1 << 20))
          blocks.push_back(block);
        else
          break;
      try {  // to use up what the pool keeps
        while (tensors.size() < tensors.capacity()) tensors.emplace_back(Shape{1 << 18});
      } catch (const Error&) {
      }
    }
    ~NoMemory() {
      for (void* const block : blocks) std::free(block);
      setrlimit(RLIMIT_AS, &before);
    }
  };
  std::string text = "no error";
  try {
    const NoMemory none;
    f();
  } catch (const Error& error) {
    text = error.what();
  }
  CAPTURE(text);
  CHECK(text.find("out of memory on cpu") != std::string::npos);
}

}  // namespace runnel::test
