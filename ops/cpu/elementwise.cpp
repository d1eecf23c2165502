// The elementwise functions and, with broadcasting, those of two numbers: loops over the formulas of
// ops/kernels/formulas.h. They are memory-bound, so each is one pass.
#include "ops/kernels/elementwise.h"
#include "ops/cpu/functions.h"
#include "ops/cpu/loops.h"

namespace runnel {
namespace {

#define BINARY(name, value, da, db)                                                          \
  struct name##_formula {                                                                    \
    RUNNEL_INLINE static Lanes forward([[maybe_unused]] Lanes a, [[maybe_unused]] Lanes b) { \
      [[maybe_unused]] const Lanes zero{}, one = splat(1);                                   \
      return value;                                                                          \
    }                                                                                        \
    RUNNEL_INLINE static Lanes by_a([[maybe_unused]] Lanes a, [[maybe_unused]] Lanes b) {    \
      [[maybe_unused]] const Lanes zero{}, one = splat(1);                                   \
      return da;                                                                             \
    }                                                                                        \
    RUNNEL_INLINE static Lanes by_b([[maybe_unused]] Lanes a, [[maybe_unused]] Lanes b) {    \
      [[maybe_unused]] const Lanes zero{}, one = splat(1);                                   \
      return db;                                                                             \
    }                                                                                        \
  };
#include "ops/kernels/formulas.h"
#undef BINARY

// use(formula of f)
template <class Use>
RUNNEL_INLINE inline void with_formula(Function f, Use use) {
  switch (f) {
#define FUNCTION(name, value, saved, derivative) \
  case Function::name:                           \
    return use(name##_formula{});
#include "ops/kernels/formulas.h"
#undef FUNCTION
  }
}
template <class Use>
RUNNEL_INLINE inline void with_formula(Binary f, Use use) {
  switch (f) {
#define BINARY(name, value, da, db) \
  case Binary::name:                \
    return use(name##_formula{});
#include "ops/kernels/formulas.h"
#undef BINARY
  }
}

// work(place in y, place in a, place in b, count) for pieces of the rows of a loop.
template <class Work>
inline void each_piece(const StridedLoop& s, Work work) {
  constexpr int64_t piece = 1 << 12;
  const int64_t pieces = (s.n + piece - 1) / piece;
  parallel_for(s.rows * pieces, s.rows * s.n >= parallel_from, [&](int64_t i) {
    const int64_t row = i / pieces, first = i % pieces * piece;
    const StridedLoop::Offsets at = s.offsets(row);
    work(row * s.n + first, at.a + first * s.step_a, at.b + first * s.step_b, std::min(piece, s.n - first));
  });
}

// An operand of a loop over j: x[j], or the same number again and again if the step is 0.
class Operand {
 public:
  Operand(const float* x, int64_t step) : x_(step ? x : nullptr), all_(step ? Lanes{} : splat(*x)) {}
  RUNNEL_INLINE Lanes at(int64_t j, int64_t count) const { return x_ ? load(x_ + j, count) : all_; }

 private:
  const float* x_;
  Lanes all_;
};

}  // namespace

void cpu::scale(float* y, const float* x, float s, int64_t n) {
  parallel_map(
      y, n, [s](Lanes v) RUNNEL_INLINE { return s * v; }, x);
}

void cpu::function_forward(float* y, const float* x, Function f, int64_t n) {
  with_formula(f, [=](auto formula) {
    parallel_map(
        y, n, [formula](Lanes v) RUNNEL_INLINE { return formula.forward(v); }, x);
  });
}

void cpu::function_backward(float* dx, const float* dy, const float* saved, Function f, int64_t n) {
  with_formula(f, [=](auto formula) {
    parallel_map(
        dx, n, [formula](Lanes g, Lanes v) RUNNEL_INLINE { return g * formula.backward(v); }, dy, saved);
  });
}

void cpu::binary_forward(float* y, const float* a, const float* b, Binary f, StridedLoop s) {
  with_formula(f, [&](auto formula) {
    each_piece(s, [=](int64_t to, int64_t from_a, int64_t from_b, int64_t count) {
      const Operand p(a + from_a, s.step_a), q(b + from_b, s.step_b);
      for (int64_t j = 0; j < count; j += lanes)
        store(y + to + j, formula.forward(p.at(j, count - j), q.at(j, count - j)), count - j);
    });
  });
}

void cpu::binary_backward(float* d, const float* dy, const float* a, const float* b, Binary f, StridedLoop s,
                          bool by_b) {
  with_formula(f, [&](auto formula) {
    each_piece(s, [=](int64_t to, int64_t from_a, int64_t from_b, int64_t count) {
      const Operand p(a + from_a, s.step_a), q(b + from_b, s.step_b);
      for (int64_t j = 0; j < count; j += lanes) {
        const Lanes va = p.at(j, count - j), vb = q.at(j, count - j), g = load(dy + to + j, count - j);
        store(d + to + j, g * (by_b ? formula.by_b(va, vb) : formula.by_a(va, vb)), count - j);
      }
    });
  });
}

}  // namespace runnel
