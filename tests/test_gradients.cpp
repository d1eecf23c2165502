// Every op of ops/ops.h: each tensor that it takes has a right gradient, or is refused with a sentence if it wants one.
// So no gradient is silently wrong or missing.
#include "ops/causal_convolution.h"
#include "ops/elementwise.h"
#include "ops/gated_linear_attention.h"
#include "ops/layers.h"
#include "ops/linear.h"
#include "ops/linear_attention.h"
#include "ops/losses.h"
#include "ops/lsh_attention.h"
#include "ops/reductions.h"
#include "ops/shapes.h"
#include "ops/softmax_attention.h"
#include "tests/op_gradients.h"

using namespace runnel;
using namespace runnel::test;

namespace {

std::vector<OpCase> all_ops() {
  const Tensor a = numbers({3, 4}, 1), b = random_tensor({4}, 2, 2.5, 3.5), x = around_zero({3, 4}, 3);
  const Tensor q = around_zero({2, 5, 2, 4}, 4), k = around_zero({2, 5, 2, 4}, 5), v = around_zero({2, 5, 2, 3}, 6);
  const Tensor one = around_zero({2, 1, 2, 4}, 7), images = around_zero({1, 4, 5, 2}, 8);
  const Indices rows(Shape{3}, {2, 0, 2}), tokens(Shape{2, 3}, {1, 0, 2, 2, 1, 1}), targets(Shape{3}, {1, 0, 3});
  const Keys keys(Shape{3}, {Key{1}, Key{2}, Key{3}});
  const Dropout dropped{0.25f, Key{9}};
  const Tensor v3 = around_zero({2, 4, 3}, 10), taps = around_zero({3, 3}, 11), before = around_zero({2, 2, 3}, 12);
  const BlockPattern pattern(2, 2, {{0}, {0, 1}, {1, 2}}, 3, Device::cpu);
  std::vector<OpCase> ops;
  for (const auto& [name, f] :
       std::vector<std::pair<const char*, Tensor (*)(const Tensor&)>>{{"exp", exp},
                                                                      {"log", log},
                                                                      {"sqrt", sqrt},
                                                                      {"square", square},
                                                                      {"abs", abs},
                                                                      {"tanh", tanh},
                                                                      {"sigmoid", sigmoid},
                                                                      {"silu", silu},
                                                                      {"softplus", softplus},
                                                                      {"relu", relu},
                                                                      {"gelu", gelu},
                                                                      {"elu_plus_one", elu_plus_one},
                                                                      {"softmax", softmax},
                                                                      {"log_softmax", log_softmax},
                                                                      {"transpose", transpose}})
    ops.push_back({name, {a}, [f = f](const Inputs& in) { return f(in[0]); }});
  for (const auto& [name, f] : std::vector<std::pair<const char*, Tensor (*)(const Tensor&, const Tensor&)>>{
           {"add", add}, {"subtract", subtract}, {"multiply", multiply}, {"divide", divide}, {"maximum", maximum}})
    ops.push_back({name, {a, b}, [f = f](const Inputs& in) { return f(in[0], in[1]); }});
  const auto attend = [](auto f) { return [f](const Inputs& in) { return f(in[0], in[1], in[2]); }; };
  const std::vector<OpCase> others{
      {"where", {a, b, x}, [](const Inputs& in) { return where(in[0], in[1], in[2]); }, {0}},
      {"scale", {x}, [](const Inputs& in) { return scale(in[0], 0.5f); }},
      {"sum", {x}, [](const Inputs& in) { return sum(in[0], 0); }},
      {"mean", {x}, [](const Inputs& in) { return mean(in[0]); }},
      {"argmax", {x}, [](const Inputs& in) { return Tensor(Shape{argmax(in[0]).size()}); }, {0}},
      {"max", {b}, [](const Inputs& in) { return max(in[0]); }},
      {"sum_to", {x}, [](const Inputs& in) { return sum_to(in[0], Shape{4}); }},
      {"cumulative_sum", {x}, [](const Inputs& in) { return cumulative_sum(in[0], 0); }},
      {"rms_norm", {x, b}, [](const Inputs& in) { return rms_norm(in[0], in[1]); }},
      {"l2_normalize", {x}, [](const Inputs& in) { return l2_normalize(in[0]); }},
      {"mean_positions", {around_zero({2, 3, 4}, 1)}, [](const Inputs& in) { return mean_positions(in[0], {}); }},
      {"zero_padding",
       {x},
       [](const Inputs& in) {
         return zero_padding(in[0], Indices(Shape{3}, {4, 0, 1}));
       }},
      {"reshape", {x}, [](const Inputs& in) { return reshape(in[0], Shape{12}); }},
      {"broadcast",
       {b},
       [](const Inputs& in) {
         return broadcast(in[0], Shape{2, 4});
       }},
      {"slice", {x}, [](const Inputs& in) { return slice(in[0], 1, 1, 2); }},
      {"concat",
       {x, a},
       [](const Inputs& in) {
         return concat({in[0], in[1]}, 0);
       }},
      {"stack",
       {x, a},
       [](const Inputs& in) {
         return stack({in[0], in[1]});
       }},
      {"gather", {x}, [=](const Inputs& in) { return gather(in[0], rows); }},
      {"unfold",
       {images},
       [](const Inputs& in) {
         return unfold(in[0], {2, 3, 2, 1});
       }},
      {"matmul",
       {around_zero({2, 3, 4}, 1), around_zero({2, 4, 5}, 2)},
       [](const Inputs& in) { return matmul(in[0], in[1]); }},
      {"linear",
       {x, around_zero({5, 4}, 1), around_zero({5}, 2)},
       [](const Inputs& in) { return linear(in[0], in[1], in[2]); }},
      {"linear, packed",
       {x, around_zero({5, 4}, 1), around_zero({5}, 2)},
       [](const Inputs& in) { return linear(in[0], PackedLinear(in[1], in[2])); },
       {0, 1, 2}},
      {"dropout", {x}, [=](const Inputs& in) { return dropout(in[0], dropped); }},
      {"causal_convolution",
       {v3, taps, before},
       [](const Inputs& in) { return causal_convolution(in[0], in[1], {.silu = true}, in[2]); }},
      {"causal_convolution_step",
       {slice(v3, 1, 0, 1), taps, before},
       [](const Inputs& in) {
         Tensor kept = in[2];
         return causal_convolution_step(in[0], in[1], {}, kept);
       },
       {0, 1, 2}},
      {"layer_norm", {x, b, b + 1}, [](const Inputs& in) { return layer_norm(in[0], in[1], in[2]); }},
      {"add_layer_norm", {x, a, b, b + 1}, [](const Inputs& in) { return add_layer_norm(in[0], in[1], in[2], in[3]); }},
      {"embedding",
       {x, around_zero({3, 2}, 1)},
       [=](const Inputs& in) { return embedding(tokens, in[0], in[1]); },
       {1}},
      {"cross_entropy",
       {x, numbers({3}, 1)},
       [=](const Inputs& in) { return cross_entropy(in[0], targets, in[1]); },
       {1}},
      {"categorical_nll", {x}, [=](const Inputs& in) { return categorical_nll(in[0], targets); }},
      {"categorical_sample",
       {x},
       [=](const Inputs& in) { return Tensor(Shape{categorical_sample(in[0], keys).size()}); },
       {0}},
      {"logistic_mixture_nll",
       {around_zero({3, 6}, 1)},
       [](const Inputs& in) {
         return logistic_mixture_nll(in[0], Indices(Shape{3}, {0, 100, 255}));
       }},
      {"logistic_mixture_sample",
       {around_zero({3, 6}, 1)},
       [=](const Inputs& in) { return Tensor(Shape{logistic_mixture_sample(in[0], keys).size()}); },
       {0}},
      {"byte_nll",
       {around_zero({3, 6}, 1)},
       [](const Inputs& in) {
         return byte_nll(in[0], Indices(Shape{3}, {0, 100, 255}));
       }},
      {"byte_sample",
       {around_zero({3, 6}, 1)},
       [=](const Inputs& in) { return Tensor(Shape{byte_sample(in[0], keys).size()}); },
       {0}},
      {"causal_product", {q, k, v}, attend([](auto... in) { return causal_product(in...); })},
      {"linear_attention", {q, k, v}, attend([](auto... in) { return linear_attention(in...); })},
      {"linear_attention, from a state",
       {q, k, v, numbers({2, 2, 4, 3}, 1), numbers({2, 2, 4}, 2)},
       [](const Inputs& in) {
         return linear_attention(in[0], in[1], in[2], AttentionState{in[3], in[4]}).y;
       }},
      {"linear_attention_step",
       {one, one + 1, one + 2, numbers({2, 2, 4, 4}, 1), numbers({2, 2, 4}, 2)},
       [](const Inputs& in) {
         AttentionState state{in[3], in[4]};
         return linear_attention_step(in[0], in[1], in[2], state);
       },
       {0, 1, 2, 3, 4}},
      {"gated_linear_attention",
       {q, k, v, numbers({2, 5, 2}, 1), scale(numbers({2, 5, 2, 4}, 2), -0.5f), numbers({2, 2, 4, 3}, 3)},
       [](const Inputs& in) {
         return gated_linear_attention(in[0], scale(in[1], 0.5f), in[2], {UpdateRule::delta, in[3], in[4]}, in[5]).y;
       }},
      {"gated_linear_attention_step",
       {one, one + 1, one + 2, numbers({2, 1, 2}, 1), numbers({2, 1, 2}, 2), numbers({2, 2, 4, 4}, 3)},
       [](const Inputs& in) {
         Tensor state = in[5];
         return gated_linear_attention_step(in[0], in[1], in[2], {UpdateRule::delta, in[3], in[4]}, state);
       },
       {0, 1, 2, 3, 4, 5}},
      {"softmax_attention", {q, k, v}, attend([](auto... in) { return softmax_attention(in...); })},
      {"softmax_attention_step",
       {one, one + 1, one + 2},
       [](const Inputs& in) {
         KeyValueCache cache{Tensor(Shape{2, 2, 4, 3}), Tensor(Shape{2, 2, 3, 4})};
         return softmax_attention_step(in[0], in[1], in[2], cache, Indices(Shape{1}, {0}));
       },
       {0, 1, 2}},
      {"softmax_attention",
       {q, k, v},
       [=](const Inputs& in) {
         return softmax_attention(in[0], in[1], in[2], {.causal = false}, {.pattern = pattern});
       }},
      {"softmax_attention",
       {q, k, v, around_zero({2, 5, 5}, 1)},
       [](const Inputs& in) { return softmax_attention(in[0], in[1], in[2], {}, {.bias = in[3]}); }},
      {"lsh_attention",
       {scale(q, 4), v},  // far from where positions change their buckets
       [](const Inputs& in) {
         return lsh_attention(in[0], in[1], {}, {2, 2, 4}, Key{1});
       }},
  };
  ops.insert(ops.end(), others.begin(), others.end());
  return ops;
}

}  // namespace

TEST_CASE("every op: each tensor that it takes has its gradient, or is refused") { check_gradients_of(all_ops()); }

TEST_CASE("every op: the test above knows all that ops.h declares") {
  if (!has_sources()) return;
  CHECK(check_all_have_cases("ops", all_ops(), {"zero_state", "shifted"}) >
        60);  // these return no tensor that could want a gradient
}
