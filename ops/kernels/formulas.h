// The elementwise functions: one line each, for numbers on CUDA and for vectors of them on the CPU. No include guard:
// whoever includes this file defines one of the macros, or both.
//
// FUNCTION(name, y = f(x), s, dy/dx computed from s): the backward pass keeps s, which is x or y.
// BINARY(name, y = f(a, b), dy/da, dy/db)
//
// zero and one are numbers of the type of x. NaN stays NaN.
// clang-format off
#ifdef FUNCTION
FUNCTION(exp, exp(x), y, y)
FUNCTION(log, log(x), x, one / x)
FUNCTION(sqrt, sqrt(x), y, 0.5f / y)
FUNCTION(square, x * x, x, 2.0f * x)
FUNCTION(abs, abs(x), x, x > zero ? one : (x < zero ? -one : x))
FUNCTION(tanh, tanh(x), y, one - y * y)
FUNCTION(sigmoid, sigmoid(x), y, y * (one - y))
FUNCTION(silu, x * sigmoid(x), x, sigmoid(x) * (one + x * (one - sigmoid(x))))
FUNCTION(softplus, (x < zero ? zero : x) + log1p(exp(-abs(x))), x, sigmoid(x))
FUNCTION(relu, x < zero ? zero : x, y, y > zero ? one : zero)
FUNCTION(gelu, x * normal_cdf(x), x, normal_cdf(x) + x * (0.39894228f * exp(-0.5f * (x * x))))
FUNCTION(elu_plus_one, x > zero ? x + one : exp(x), y, y < one ? y : one)
#endif
#ifdef BINARY
BINARY(add, a + b, one, one)
BINARY(subtract, a - b, one, -one)
BINARY(multiply, a * b, b, a)
BINARY(divide, a / b, one / b, -a / (b * b))
BINARY(maximum, a > b ? a : (a == a ? b : a), a >= b ? one : zero, a >= b ? zero : one)
BINARY(where_true, a == zero ? zero : b, zero, a == zero ? zero : one)
BINARY(where_false, a == zero ? b : zero, zero, a == zero ? one : zero)
#endif
