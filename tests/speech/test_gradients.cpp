// The gradients of the package's ops.
#include "ops/speech/ctc_loss.h"
#include "ops/speech/lstm.h"
#include "tests/op_gradients.h"

using namespace runnel;
using namespace runnel::test;

namespace {

std::vector<OpCase> all_ops() {
  return {
      {"lstm",
       {around_zero({2, 3, 8}, 1), around_zero({8, 2}, 2), around_zero({1, 2, 2}, 3), around_zero({1, 2, 2}, 4)},
       [](const Inputs& in) {
         return lstm({in[0]}, {in[1]}, {}, {in[2], in[3]}).y;
       }},
      {"ctc_loss",
       {around_zero({1, 5, 4}, 1)},
       [](const Inputs& in) {
         return ctc_loss(in[0], {}, Indices(Shape{1, 2}, {1, 2}), {});
       }},
  };
}

}  // namespace

TEST_CASE("every op of speech: each tensor that it takes has its gradient, or is refused") {
  check_gradients_of(all_ops());
}

TEST_CASE("every op of speech: the test above knows all that its headers declare") {
  if (!has_sources()) return;
  CHECK(check_all_have_cases("ops/speech", all_ops()) == 2);
}
