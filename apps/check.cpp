// runnel check: the paper's claim, measured. Causal linear attention has several forms, and they are one function:
//
//   parallel    the whole sequence in one call (training)
//   chunked     pieces of 37 positions, each going on from the state that the last one left
//   recurrent   one position at a time (eq. 16-20)
//   definition  y_i = sum_{j<=i} phi(q_i)^T phi(k_j) v_j / sum_{j<=i} phi(q_i)^T phi(k_j), eq. 3 and 8, O(L^2), in
//   double
//
// and its gradients are those of Algorithm 1 behind the feature map, with the quotient rule for the normaliser. Each
// line is the largest difference, relative to the largest magnitude (at least 1), beside the bound that it must keep.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/cli/subcommand.h"
#include "apps/cli/terminal.h"
#include "engine/check.h"
#include "engine/tape.h"
#include "models/attention_kinds.h"
#include "models/decoder.h"
#include "ops/elementwise.h"
#include "ops/linear.h"
#include "ops/linear_attention.h"
#include "ops/shapes.h"

namespace runnel {
namespace {

struct CheckOptions : RuntimeOptions {
  CheckOptions() { precision = "f32"; }  // it measures rounding

  Settings list() override { return extended(RuntimeOptions::list(), {json_flag()}); }
};

Tensor uniform(Shape shape, Key key) {
  std::vector<float> values(static_cast<size_t>(shape.size()));
  for (size_t i = 0; i < values.size(); ++i) values[i] = 2 * key.uniform(i) - 1;
  return Tensor(shape, values);
}

// Largest difference of a from b [B,L,...], relative to the largest magnitude at the same position: late outputs and
// gradients are small, and would hide behind early ones. NaN if any number is not finite. Positions in front of `first`
// are compared as they are.
template <class A, class B>
double difference(const A& a, const B& b, const Shape& shape, size_t first = 0) {
  const size_t batch = static_cast<size_t>(shape[0]), length = static_cast<size_t>(shape[1]);
  const size_t row = b.size() / (batch * length);
  double most = 0;
  for (size_t l = 0; l < length; ++l) {
    double largest = l < first ? 1 : 0, difference = 0;
    for (size_t n = 0; n < batch; ++n)
      for (size_t i = (n * length + l) * row; i < (n * length + l + 1) * row; ++i) {
        const double x = a[i], y = b[i];
        if (!std::isfinite(x) || !std::isfinite(y)) return NAN;
        largest = std::max(largest, std::abs(y));
        difference = std::max(difference, std::abs(x - y));
      }
    if (difference > 0) most = std::max(most, difference / largest);
  }
  return most;
}

double difference(const Tensor& a, const Tensor& b, size_t first = 0) {
  return difference(a.to_vector(), b.to_vector(), b.shape(), first);
}

// Positions first .. first + count - 1 of x [B,L,...].
template <class T>
T slice(const T& x, int64_t first, int64_t count) {
  const Shape& s = x.shape();
  const int64_t row = x.size() / (s[0] * s[1]);
  T y(s.rank() == 2 ? Shape{s[0], count} : Shape{s[0], count, s[2], s[3]});
  for (int64_t b = 0; b < s[0]; ++b)
    std::copy_n(x.data() + (b * s[1] + first) * row, count * row, y.data() + b * count * row);
  return y;
}

struct Inputs {
  Tensor q, k, v;  // [B,L,H,E] [B,L,H,E] [B,L,H,M]
};

// The same sequence in pieces of `piece` positions, with the state carried from one to the next.
Tensor in_pieces(const Inputs& in, int64_t piece) {
  const Shape& y_shape = in.v.shape();
  const int64_t length = y_shape[1], row = y_shape[2] * y_shape[3];
  AttentionState state;
  Tensor y(y_shape);
  for (int64_t first = 0; first < length; first += piece) {
    const int64_t count = std::min(piece, length - first);
    const Inputs at{slice(in.q, first, count), slice(in.k, first, count), slice(in.v, first, count)};
    Tensor part;
    if (piece == 1) {
      part = linear_attention_step(at.q, at.k, at.v, state);
    } else {
      LinearAttentionResult result = linear_attention(at.q, at.k, at.v, state);
      part = result.y;
      state = result.state;
    }
    for (int64_t b = 0; b < y_shape[0]; ++b)
      std::copy_n(part.data() + b * count * row, count * row, y.data() + (b * length + first) * row);
  }
  return y;
}

std::vector<double> definition(const Inputs& in) {
  const int64_t batch = in.q.shape()[0], length = in.q.shape()[1], heads = in.q.shape()[2], e = in.q.shape()[3],
                m = in.v.shape()[3];
  const auto phi = [](double x) { return x > 0 ? x + 1 : std::exp(x); };
  std::vector<double> y(static_cast<size_t>(in.v.size()));
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t i = 0; i < length; ++i) {
        const auto at = [&](int64_t position, int64_t size) { return ((b * length + position) * heads + h) * size; };
        double* const row = y.data() + at(i, m);
        double normaliser = normaliser_eps;
        for (int64_t j = 0; j <= i; ++j) {
          double similarity = 0;
          for (int64_t d = 0; d < e; ++d) similarity += phi(in.q.data()[at(i, e) + d]) * phi(in.k.data()[at(j, e) + d]);
          normaliser += similarity;
          for (int64_t d = 0; d < m; ++d) row[d] += similarity * in.v.data()[at(j, m) + d];
        }
        for (int64_t d = 0; d < m; ++d) row[d] /= normaliser;
      }
  return y;
}

// sum_i x_i c_i, recorded.
Tensor dot(const Tensor& x, const Tensor& c) { return matmul(reshape(x, {1, x.size()}), c.viewed_as({c.size(), 1})); }

// The largest difference between the gradients of q, k and v.
double gradient_difference(Inputs in, Key key) {
  for (Tensor* x : {&in.q, &in.k, &in.v}) x->set_wants_grad();
  const Tensor dy = uniform(in.v.shape(), key);
  const auto fused = [&] {
    Tape tape;
    return tape.backward(dot(linear_attention(in.q, in.k, in.v), dy));
  }();

  // y = n / d, so dn = dy / d and dd = -(dy . y) / d; n and d are Algorithm 1 with v, and with a column of ones.
  const Shape& s = in.v.shape();
  Tape tape;
  const Tensor phi_q = elu_plus_one(in.q), phi_k = elu_plus_one(in.k);
  const Tensor n = causal_product(phi_q, phi_k, in.v);
  const Tensor d = causal_product(phi_q, phi_k, Tensor::full({s[0], s[1], s[2], 1}, 1));
  Tensor dn(n.shape()), dd(d.shape());
  for (int64_t r = 0; r < d.size(); ++r) {
    const float divisor = d.data()[r] + normaliser_eps;
    double product = 0;
    for (int64_t i = r * s[3]; i < (r + 1) * s[3]; ++i) {
      dn.data()[i] = dy.data()[i] / divisor;
      product += static_cast<double>(dn.data()[i]) * n.data()[i];
    }
    dd.data()[r] = static_cast<float>(-product / divisor);
  }
  const auto composed = tape.backward(add(dot(n, dn), dot(d, dd)));

  // y_0 = v_0 whatever q_0 and k_0 are: the gradient of q_0 is zero, and with L = 1 that of k_0.
  const double dq = difference(fused.of(in.q), composed.of(in.q), 1);
  const double dk = difference(fused.of(in.k), composed.of(in.k), s[1] == 1);
  const double dv = difference(fused.of(in.v), composed.of(in.v));
  return std::isnan(dq + dk + dv) ? NAN : std::max({dq, dk, dv});
}

double transformer_difference(const AutoregressiveTransformer& model, int64_t batch, Key key) {
  const AutoregressiveConfig& config = model.config;
  Indices tokens({batch, config.max_length});
  for (int64_t i = 0; i < tokens.size(); ++i)
    tokens.data()[i] =
        static_cast<int32_t>(key.fold(1).below(static_cast<uint64_t>(i), static_cast<uint32_t>(config.vocabulary)));
  const std::vector<float> parallel = model(tokens).to_vector();
  std::vector<float> recurrent(parallel.size());
  const std::unique_ptr<Decoder> decoder = incremental_decoder(model, batch);
  for (int64_t l = 0; l < config.max_length; ++l) {
    Indices column({batch});
    for (int64_t b = 0; b < batch; ++b) column.data()[b] = tokens.data()[b * config.max_length + l];
    const Tensor out = decoder->step(column);
    for (int64_t b = 0; b < batch; ++b)
      std::copy_n(out.data() + b * config.outputs, config.outputs,
                  recurrent.data() + (b * config.max_length + l) * config.outputs);
  }
  return difference(recurrent, parallel, {batch, config.max_length, config.outputs});
}

int check_all(CheckOptions& options) {
  const struct {
    int64_t batch, length, heads, e, m;
  } shapes[] = {{2, 1, 3, 5, 7}, {2, 33, 3, 32, 32}, {3, 130, 2, 17, 40}, {1, 1000, 4, 64, 16}, {1, 65536, 2, 32, 24}};
  // At most four of each shape, and one of each kind of attention.
  const int64_t max_checks = 4 * std::ssize(shapes) + std::ssize(attention_kinds());
  const Key key = key_for(options.seed, Purpose::sampling);
  bool holds = true;
  nlohmann::json checks = nlohmann::json::array();
  std::string subject;
  const Progress progress("checked");
  const auto print = [&](const std::string& text) {
    progress.erase();
    if (!options.json) fmt::print("{}\n", text);
    std::fflush(stdout);
  };
  const auto begin = [&](std::string what) {
    subject = std::move(what);
    print(subject);
  };
  const auto report = [&](const std::string& what, double most, double bound) {
    const bool kept = most <= bound;  // false for NaN
    holds = holds && kept;
    checks.push_back({{"of", subject}, {"what", what}, {"difference", most}, {"bound", bound}, {"kept", kept}});
    print(fmt::format("  {}{} {:.1e}   bound {:.0e}{}", what, std::string(42 - std::min<size_t>(what.size(), 42), ' '),
                      most, bound, kept ? "" : "   EXCEEDED"));
    progress(std::ssize(checks), max_checks);
  };

  // In bf16, forms that differ in float32's last bits round some operands of the linear layers to neighbours, which lie
  // up to 2^-7 apart; measured on 20 seeds, 4e-3 at most. Linear attention itself is computed in float32 on the CPU.
  const double transformer_bound = options.precision == "bf16" ? 2e-2 : 1e-4;

  for (const auto& s : shapes) {
    begin(fmt::format("linear_attention, B {}, L {}, H {}, E {}, M {}", s.batch, s.length, s.heads, s.e, s.m));
    const Key own = key.fold(static_cast<uint64_t>(s.length));
    const Inputs in{uniform({s.batch, s.length, s.heads, s.e}, own.fold(0)),
                    uniform({s.batch, s.length, s.heads, s.e}, own.fold(1)),
                    uniform({s.batch, s.length, s.heads, s.m}, own.fold(2))};
    const Tensor parallel = linear_attention(in.q, in.k, in.v);
    report("parallel - chunked", difference(parallel, in_pieces(in, 37)), 1e-5);
    report("parallel - recurrent", difference(parallel, in_pieces(in, 1)), 1e-5);
    if (s.length <= 1000)
      report("parallel - definition", difference(parallel.to_vector(), definition(in), in.v.shape()), 1e-5);
    report("gradients - gradients of Algorithm 1", gradient_difference(in, own.fold(3)), 1e-4);
  }

  for (const AttentionKind* kind : attention_kinds()) {
    if (!kind->causal) continue;
    const AutoregressiveTransformer model(
        {.encoder =
             {.layers = 3, .heads = 4, .head_dim = 8, .feed_forward = 48, .dropout = 0, .attention = {kind->name}},
         .vocabulary = 11,
         .outputs = 13,
         .max_length = 150},
        key.fold(0));
    if (!has_incremental_form(model)) continue;
    begin(fmt::format("transformer with {} attention, 3 layers, width 32, L 150", kind->name));
    report("parallel - recurrent", transformer_difference(model, 3, key), transformer_bound);
  }

  if (options.json)
    print_json({{"kept", holds}, {"device", options.device}, {"precision", options.precision}, {"checks", checks}});
  print(holds ? "all forms agree" : "some forms do not agree");
  return holds ? 0 : 1;
}

}  // namespace

void add_check(Subcommand program) {
  add_command<CheckOptions>(program, "check", "the equality of the forms of linear attention, and its gradients",
                            check_all);
}

}  // namespace runnel
