// Threads that share the loops of another one.
#include "ops/helpers.h"

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <vector>

#include "ops/cpu/loops.h"
#include "tests/check.h"

namespace runnel::test {
namespace {

// Within 10 seconds, or a check fails.
template <class Condition>
void wait_until(const Condition& is_met) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (!is_met() && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  CHECK(is_met());
}

void let_helpers_sleep() { std::this_thread::sleep_for(std::chrono::milliseconds(20)); }

TEST_CASE("helpers: a loop's iterations are computed once each, also after the helpers have slept") {
  for (const int threads : {1, 2, 3, 5}) {
    CAPTURE(threads);
    const OmpThreads some(threads);
    std::vector<int64_t> times(17);
    const auto work = [&](int64_t i) { ++times[static_cast<size_t>(i)]; };
    with_helpers([&] {
      CHECK_EQ(has_helpers(), omp_get_max_threads() > 1);
      for (int64_t loop = 1; loop <= 1000; ++loop) {
        if (loop % 250 == 0) let_helpers_sleep();
        loop % 2 ? parallel_for(17, true, work) : parallel_for<Share::on_demand>(17, true, work);
        for (const int64_t n : times) REQUIRE_EQ(n, loop);
      }
      let_helpers_sleep();
    });
    CHECK(!has_helpers());
  }
}

TEST_CASE("helpers: every thread computes a share, also one that has slept") {
  for (const int threads : {2, 4}) {
    CAPTURE(threads);
    const OmpThreads some(threads);
    const int all = omp_get_max_threads();
    std::atomic<int> begun{0};
    with_helpers([&] {
      for (int loop = 1; loop <= 3; ++loop) {
        let_helpers_sleep();
        parallel_for(all, true, [&](int64_t) {  // waits until each thread has begun one
          ++begun;
          wait_until([&] { return begun >= loop * all; });
        });
      }
    });
    CHECK_EQ(begun, 3 * all);
  }
}

#ifdef _OPENMP
TEST_CASE("helpers: shares that no helper takes are computed by the owner of the loop") {
  const OmpThreads three(3);
  const int levels = omp_get_max_active_levels();
  omp_set_max_active_levels(0);  // regions have one thread, though three are asked for
  std::vector<int64_t> times(7);
  with_helpers([&] {
    with_helpers([] { CHECK(has_helpers()); });
    CHECK(has_helpers());
    parallel_for(7, true, [&](int64_t i) { ++times[static_cast<size_t>(i)]; });
  });
  omp_set_max_active_levels(levels);
  CHECK(times == std::vector<int64_t>(7, 1));
}
#endif

TEST_CASE("helpers: loops with too little work, and loops within loops, have one thread") {
  const OmpThreads two(2);
  with_helpers([] {
    std::atomic<int64_t> others{0};
    parallel_for(10, false, [&](int64_t) { others += omp_get_thread_num() != 0; });
    CHECK_EQ(others, 0);
    std::vector<int64_t> times(20);
    parallel_for(4, true, [&](int64_t i) {
      const int thread = omp_get_thread_num();
      parallel_for(5, true, [&](int64_t j) {
        CHECK_EQ(omp_get_thread_num(), thread);
        ++times[static_cast<size_t>(5 * i + j)];
      });
    });
    CHECK(times == std::vector<int64_t>(20, 1));
    const bool had = has_helpers();
    with_helpers([=] { CHECK_EQ(has_helpers(), had); });  // the outer ones
    CHECK_EQ(has_helpers(), had);
  });
}

TEST_CASE("helpers: what the work throws reaches the caller") {
  const OmpThreads three(3);
  for (int i = 0; i < 3; ++i) {
    CHECK_THROWS_WITH_AS(with_helpers([] { throw std::runtime_error("from the work"); }), "from the work",
                         std::runtime_error);
    CHECK(!has_helpers());
  }
}

#if defined(__x86_64__)
TEST_CASE("helpers: those of a thread that has allocated nothing flush subnormals, too") {
  std::atomic<int64_t> subnormal{0}, shares{0};
  std::thread([&] {
    const OmpThreads two(2);
    with_helpers([&] {
      parallel_for(omp_get_max_threads(), true, [&](int64_t) {
        volatile float tiny = 1e-20f;
        const volatile float product = tiny * tiny;
        subnormal += product > 0;
        ++shares;
        wait_until([&] { return shares == omp_get_max_threads(); });  // one for each thread
      });
    });
  }).join();
  CHECK_EQ(subnormal, 0);
}
#endif

}  // namespace
}  // namespace runnel::test
