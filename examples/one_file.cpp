// "Transformers are RNNs" (Katharopoulos, Vyas, Pappas, Fleuret, ICML 2020) in one file: a transformer with causal
// linear attention learns to copy sequences, in half a minute on one core, with the C++ standard library alone.
//
//   g++ -std=c++20 -O3 -march=native one_file.cpp -o one_file && ./one_file
//
// Attention gives position i a weighted mean over the positions up to it, y_i = sum_j a_ij v_j / sum_j a_ij, j <= i.
// Softmax attention, a_ij = exp(q_i . k_j / sqrt(E)), needs all L^2 weights. With a_ij = phi(q_i) . phi(k_j) there are
// two running sums instead, S = sum_j phi(k_j) v_j^T and z = sum_j phi(k_j), and the cost is linear in the length L.
// S and z are also all that later positions need of the past: the transformer is a recurrent network.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <valarray>
#include <vector>

using Floats = std::valarray<float>;  // a vector with elementwise arithmetic

// 1. Reverse-mode automatic differentiation. A tensor is a matrix with, beside each value, its gradient: the derivative
// of the loss by it. An op computes y from its inputs and puts a function on the tape that, given dy, adds to the
// inputs' gradients. Ops ran after those they depend on, so backward calls these functions from the last to the first.
struct Matrix {
  int rows, cols;
  Floats value = Floats(rows * cols), grad = value, m = {}, v = {};  // m and v: of parameters, for Adam
};
using Tensor = std::shared_ptr<Matrix>;
Tensor zeros(int rows, int cols) { return std::make_shared<Matrix>(Matrix{rows, cols}); }
std::slice row(const Tensor& x, int r) { return std::slice(r * x->cols, x->cols, 1); }
std::vector<std::function<void()>> tape;

void backward(const Tensor& loss) {
  for (loss->grad = 1; !tape.empty(); tape.pop_back()) tape.back()();
}

// 2. Ops. Above each: what it computes;  its gradients, where dy stands for dloss/dy.
//
// y = phi(x) = elu(x) + 1 elementwise, the paper's feature map (eq. 7);  dx = dy where x > 0, else dy e^x = dy y:
// dy min(y, 1), since y > 1 where x > 0
Tensor phi(const Tensor& x) {
  Tensor y = zeros(x->rows, x->cols);
  y->value = x->value.apply([](float v) { return v > 0 ? v + 1 : std::exp(v); });
  tape.push_back([=] { x->grad += y->grad * y->value.apply([](float v) { return std::min(v, 1.0f); }); });
  return y;
}

// C [m,n] += A [m,k] B [k,n], where A(i,p) = a[i row_step + p col_step]: A may be a transposed matrix. n is a multiple
// of 32: so many independent sums at a time let the compiler use vector instructions. Most of the time is spent here.
void add_product(Floats& c, const Floats& a, const Floats& b, int m, int k, int n, int row_step, int col_step) {
  for (int i = 0; i < m; ++i)
    for (int j = 0; j < n; j += 32) {
      float sums[32] = {};
      for (int p = 0; p < k; ++p)
        for (int s = 0; s < 32; ++s) sums[s] += a[i * row_step + p * col_step] * b[p * n + j + s];
      for (int s = 0; s < 32; ++s) c[i * n + j + s] += sums[s];
    }
}

// y = x W, plus r if there is one;  dx = dy W^T,  dW = x^T dy,  dr = dy
Tensor linear(const Tensor& x, const Tensor& w, const Tensor& r = nullptr) {
  const int rows = x->rows, in = w->rows, out = w->cols;
  Tensor y = zeros(rows, out);
  if (r) y->value = r->value;
  add_product(y->value, x->value, w->value, rows, in, out, in, 1);
  tape.push_back([=] {
    Floats transposed(in * out);
    for (int i = 0; i < in * out; ++i) transposed[i % out * in + i / out] = w->value[i];
    add_product(x->grad, y->grad, transposed, rows, out, in, out, 1);
    add_product(w->grad, x->value, y->grad, in, rows, out, 1, in);
    if (r) r->grad += y->grad;
  });
  return y;
}

// y = (x - mean(x)) / deviation(x) in each row;  dx = (dy - mean(dy) - y mean(dy y)) / deviation(x)
// Without the usual scale and shift: the linear layer that follows can learn the same.
Tensor layer_norm(const Tensor& x) {
  const float n = static_cast<float>(x->cols);
  Tensor y = zeros(x->rows, x->cols);
  Floats deviation(x->rows);
  for (int r = 0; r < x->rows; ++r) {
    Floats centred = x->value[row(x, r)];
    centred -= centred.sum() / n;
    deviation[r] = std::sqrt((centred * centred).sum() / n + 1e-5f);
    y->value[row(y, r)] = centred / deviation[r];
  }
  tape.push_back([=] {
    for (int r = 0; r < x->rows; ++r) {
      const Floats dy = y->grad[row(y, r)], yr = y->value[row(y, r)];
      x->grad[row(x, r)] += (dy - dy.sum() / n - yr * ((dy * yr).sum() / n)) / deviation[r];
    }
  });
  return y;
}

// The mean of -log p_r[target_r], p_r = softmax(x_r), over the N rows with a target >= 0;  dx_r = (p_r - onehot_r) / N
Tensor cross_entropy(const Tensor& x, const std::vector<int>& target) {
  const auto n = static_cast<float>(std::count_if(target.begin(), target.end(), [](int t) { return t >= 0; }));
  Tensor loss = zeros(1, 1);
  Floats dx(x->value.size());
  for (int r = 0; r < x->rows; ++r) {
    if (target[r] < 0) continue;
    Floats p = x->value[row(x, r)];
    p = std::exp(p - p.max());
    p /= p.sum();
    loss->value -= std::log(p[target[r]]) / n;
    p[target[r]] -= 1;
    dx[row(x, r)] = p / n;
  }
  tape.push_back([=] { x->grad += dx * loss->grad[0]; });
  return loss;
}

// 3. Causal linear attention. Row i of q, k, v is position i, and phi has been applied to q and k. The numerator is
//   y_i = sum_{j<=i} (q_i . k_j) v_j = S_i^T q_i,   S_i = sum_{j<=i} k_j v_j^T = S_{i-1} + k_i v_i^T         (eq. 8-11)
// so the matrix S is carried from left to right, and the L x L products q_i . k_j are never stored. Nor are they for
// the gradients. A change of y changes the loss by
//   sum_i dy_i . y_i = sum_{j<=i} (q_i . k_j) (v_j . dy_i)
// and the derivative of each term by one of its four vectors is that vector's partner times the other dot product:
//
//   dq_i = sum_{j<=i} (dy_i . v_j) k_j    (eq. 13)    y's sum, with (dy, v, k) in place of (q, k, v)
//   dk_j = sum_{i>=j} (v_j . dy_i) q_i    (eq. 14)    with (v, dy, q), and from right to left
//   dv_j = sum_{i>=j} (k_j . q_i) dy_i    (eq. 15)    with (k, q, dy), and from right to left
//
// That is the paper's Algorithm 1, here one function called four times. Its time is linear in L. Besides inputs and
// outputs its memory is one S: backward computes running sums anew instead of keeping the S of all positions.
//
// y_i += sum of (a_i . b_j) c_j over j <= i, or over j >= i if reversed. The columns are divided among the heads. On
// entry S, [head,E,M], is the sum over the positions before (empty: zeros), on return over these as well.
void scan(Floats& y, const Floats& a, const Floats& b, const Floats& c, int rows, int heads, Floats& S, bool reversed) {
  const int E = static_cast<int>(a.size()) / rows / heads, M = static_cast<int>(c.size()) / rows / heads;
  if (S.size() == 0) S.resize(heads * E * M);
  for (int h = 0; h < heads; ++h)
    for (int n = 0; n < rows; ++n) {
      const int i = (reversed ? rows - 1 - n : n) * heads + h;
      for (int e = 0; e < E; ++e)
        for (int m = 0; m < M; ++m) {
          float& s = S[(h * E + e) * M + m];
          s += b[i * E + e] * c[i * M + m];  // S += b_i c_i^T
          y[i * M + m] += a[i * E + e] * s;  // y_i += S^T a_i
        }
    }
}

Tensor causal_product(const Tensor& q, const Tensor& k, const Tensor& v, int heads, Floats& state) {
  Tensor y = zeros(v->rows, v->cols);
  const bool from_zero = state.size() == 0;
  scan(y->value, q->value, k->value, v->value, y->rows, heads, state, false);
  tape.push_back([=] {
    if (!from_zero) throw std::logic_error("causal_product: gradients are from an empty state only");
    Floats for_dq, for_dk, for_dv;
    scan(q->grad, y->grad, v->value, k->value, y->rows, heads, for_dq, false);
    scan(k->grad, v->value, y->grad, q->value, y->rows, heads, for_dk, true);
    scan(v->grad, k->value, q->value, y->grad, y->rows, heads, for_dv, true);
  });
  return y;
}

// y = a / z: each head divides its columns of a by its column of z;  da = dy / z,  dz = -(dy . y) / z
Tensor divide(const Tensor& a, const Tensor& z) {
  const size_t m = a->cols / z->cols;
  Tensor y = zeros(a->rows, a->cols);
  for (size_t i = 0; i < y->value.size(); ++i) y->value[i] = a->value[i] / z->value[i / m];
  tape.push_back([=] {
    for (size_t i = 0; i < y->value.size(); ++i) {
      a->grad[i] += y->grad[i] / z->value[i / m];
      z->grad[i / m] -= y->grad[i] * y->value[i] / z->value[i / m];
    }
  });
  return y;
}

// 4. The model: the sum of a token's and a position's embedding; layers of attention and a feed-forward network, each
// with layer norm before it and a residual connection around it; a linear layer that predicts the next token.
constexpr int length = 32, symbols = 10, tokens = 32;  // of which 11 are used: all widths are multiples of 32
constexpr int width = 64, heads = 4, hidden = 128, layer_count = 2;

std::mt19937 generator;
float uniform() { return static_cast<float>(generator() >> 8) * 0x1p-23f - 1; }  // in [-1, 1)
int below(unsigned n) { return static_cast<int>(generator() % n); }

std::vector<Tensor> parameters;
Tensor weight(int in, int out, float scale = 1) {
  Tensor w = zeros(in, out);
  for (float& x : w->value) x = scale * uniform() * std::sqrt(3.0f / static_cast<float>(in));
  w->m = w->v = w->grad;
  return parameters.emplace_back(w);
}

struct Layer {
  Tensor query = weight(width, width), key = weight(width, width), value = weight(width, width);
  Tensor out = weight(width, width), up = weight(width, hidden), down = weight(hidden, width);
};
using State = std::vector<Floats>;  // S and z of each layer in turn

struct Transformer {
  Tensor embedding = weight(tokens + length, width, 5), prediction = weight(width, tokens);
  std::vector<Layer> layers = std::vector<Layer>(layer_count);
  // The logits of the token after each of x. Position 0 of x is `first`; what the layers know of those before it is the
  // state, which is advanced. By default x is a whole sequence.
  Tensor operator()(const std::vector<int>& x, int first = 0, State* state = nullptr) const {
    State empty, &sums = state ? *state : empty;
    sums.resize(2 * layers.size());
    const Tensor input = zeros(static_cast<int>(x.size()), tokens + length), ones = zeros(input->rows, heads);
    for (int i = 0; i < input->rows; ++i)  // two ones in each row pick two rows of the embedding
      for (const int column : {x[i], tokens + first + i}) input->value[i * input->cols + column] = 1;
    ones->value = 1;
    Tensor h = linear(input, embedding);
    for (size_t l = 0; l < layers.size(); ++l) {
      const auto& [query, key, value, out, up, down] = layers[l];
      const Tensor n = layer_norm(h), q = phi(linear(n, query)), k = phi(linear(n, key)), v = linear(n, value);
      const Tensor numerator = causal_product(q, k, v, heads, sums[2 * l]);           // S_i^T q_i
      const Tensor denominator = causal_product(q, k, ones, heads, sums[2 * l + 1]);  // z_i^T q_i: the same with v = 1
      h = linear(divide(numerator, denominator), out, h);                             // eq. 12
      h = linear(phi(linear(layer_norm(h), up)), down, h);
    }
    return linear(layer_norm(h), prediction);
  }
};

// 5. Adam (Kingma and Ba, 2015), update number t, counted from 1
void adam(int t, float rate) {
  const float correct_m = 1 - std::pow(0.9f, t), correct_v = 1 - std::pow(0.999f, t);
  for (const Tensor& w : parameters) {
    w->m += 0.1f * (w->grad - w->m);
    w->v += 0.001f * (w->grad * w->grad - w->v);
    w->value -= rate / correct_m * w->m / (std::sqrt(w->v / correct_v) + 1e-8f);
    w->grad = 0;
  }
}

// 6. The copy task: n random symbols 1 .. 10, a separator 0, the same symbols again, zeros. The model has to predict
// the second n. As n is drawn from 8 .. 14, it has to learn from the separator how far back to look.
struct Example {
  std::vector<int> x = std::vector<int>(length, 0), target = std::vector<int>(length, -1);  // -1 does not count
  Example() {
    const int n = length / 4 + below((length - 1) / 2 - length / 4);
    for (int i = 0; i < n; ++i) x[i] = x[i + n + 1] = target[i + n] = 1 + below(symbols);
  }
};

// The derivative of the loss along a random direction of the first layer's keys, which depends on every rule above: by
// backward and by finite differences. Returns how far they are apart.
float gradient_error(const Transformer& model) {
  const Example example;
  const Tensor w = model.layers[0].key;
  const Floats start = w->value;
  Floats direction = start;
  for (float& x : direction) x = uniform();
  const auto loss_at = [&](float h) {
    w->value = start + h * direction;
    return cross_entropy(model(example.x), example.target);
  };
  backward(loss_at(0));
  const float exact = (w->grad * direction).sum(), h = 0.005f;
  const float difference = (loss_at(h)->value[0] - loss_at(-h)->value[0]) / (2 * h);
  std::printf("one derivative: %.5f by backward, %.5f by finite differences\n", exact, difference);
  w->value = start;
  for (const Tensor& p : parameters) p->grad = 0;
  tape.clear();
  return std::abs(difference - exact);
}

// 7. one_file [seed] [updates]. The exit status is 0 if gradients are right, the task is learned.
int main(int argc, char** argv) {
  generator.seed(argc > 1 ? std::stoul(argv[1]) : 1);
  const int updates = argc > 2 ? std::stoi(argv[2]) : 5000;
  const Transformer model;
  const float error = gradient_error(model);
  for (int t = 1; t <= updates; ++t) {
    float mean = 0;
    for (int n = 0; n < 8; ++n) {  // the gradients of 8 sequences add up
      const Example example;
      const Tensor loss = cross_entropy(model(example.x), example.target);
      backward(loss);
      mean += loss->value[0] / 8;
    }
    adam(t, 0.006f * std::min(1.0f, t / 100.0f) * (1 - static_cast<float>(t) / (updates + 1)));
    if (t % 500 == 0)
      std::printf("update %4d   loss %.4f   %4.1f s\n", t, mean, static_cast<double>(std::clock()) / CLOCKS_PER_SEC);
  }

  // Now as a recurrent network: the model reads one token at a time, after the separator those that it has predicted,
  // and all that it has of the past is its state.
  int right = 0, all = 0;
  for (int n = 0; n < 1000; ++n) {
    auto [x, target] = Example();
    State state;
    for (int i = 0; i < length; ++i) {
      const Floats next = model({x[i]}, i, &state)->value;
      if (target[i] < 0) continue;
      x[i + 1] = static_cast<int>(std::max_element(begin(next), end(next)) - begin(next));
      ++all, right += x[i + 1] == target[i];
    }
    tape.clear();
    for (int i = 0; n < 3 && i < length; ++i) std::putchar(x[i] ? 'a' + x[i] - 1 : i + 1 < length ? '.' : '\n');
  }
  std::printf("%.2f%% of the symbols of 1000 new sequences copied correctly\n", 100.0 * right / all);
  return right >= 0.99 * all && error < 0.001f ? 0 : 1;
}
