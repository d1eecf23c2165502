// The gradients of the package's ops.
#include "ops/lra/attention.h"
#include "tests/op_gradients.h"

using namespace runnel;
using namespace runnel::test;

namespace {

std::vector<OpCase> all_ops() {
  return {
      {"positive_random_features",
       {around_zero({3, 4}, 3), around_zero({6, 4}, 1)},
       [](const Inputs& in) { return positive_random_features(in[0], in[1]); }},
      {"sinkhorn", {around_zero({2, 3, 2, 3}, 1)}, [](const Inputs& in) { return sinkhorn(in[0], 3, 2); }},
  };
}

}  // namespace

TEST_CASE("every op of lra: each tensor that it takes has its gradient, or is refused") {
  check_gradients_of(all_ops());
}

TEST_CASE("every op of lra: the test above knows all that its headers declare") {
  if (!has_sources()) return;
  CHECK(check_all_have_cases("ops/lra", all_ops(), {"random_projection"}) == 3);
}
