// Short loops shared by several threads without a parallel region for each.
#pragma once
#include <functional>

namespace runnel {

// work() on the calling thread, for whose loops OpenMP's other threads wait meanwhile: they start and end a loop in 0.1
// us, where a parallel region takes 0.4 (two threads, Zen 5), and a step of a decoder has dozens of loops of 1 or 2 us.
// Throws what work throws. Parallel regions that work starts with OpenMP have one thread. Without other threads, in a
// parallel region or within another with_helpers, it is work() alone.
void with_helpers(const std::function<void()>& work);

}  // namespace runnel
