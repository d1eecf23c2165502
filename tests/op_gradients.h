// Cases for the gradients of ops: the core's are in test_gradients.cpp, a package's in its folder.
#pragma once
#include <fstream>
#include <functional>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "tests/check.h"
#include "tests/paths.h"

namespace runnel::test {

using Inputs = std::vector<Tensor>;

struct OpCase {
  const char* name;
  Inputs inputs;
  std::function<Tensor(const Inputs&)> op;
  std::set<size_t> refused = {};  // inputs that have no gradient
};

inline Tensor numbers(Shape shape, uint64_t seed) { return random_tensor(shape, seed, 0.5, 2); }  // off all kinks
inline Tensor around_zero(Shape shape, uint64_t seed) { return random_tensor(shape, seed); }

// Each input has its four-point gradient, alone and with the others, or is refused with a sentence if it wants one.
inline void check_gradients_of(const std::vector<OpCase>& cases) {
  for (const OpCase& each : cases) {
    CAPTURE(each.name);
    for (size_t n = 0; n < each.inputs.size(); ++n) {
      CAPTURE(n);
      // One input at a time: the others are constants, as the rules must also be able to do.
      const auto of_one = [&](const Inputs& one) {
        Inputs in;
        for (const Tensor& input : each.inputs) in.push_back(detach(input));
        in[n] = one[0];
        return each.op(in);
      };
      Tensor moved = clone(each.inputs[n]);
      if (each.refused.contains(n)) {
        moved.set_wants_grad();
        CHECK_NOTHROW(of_one({moved}));  // no tape records
        Tape tape;
        check_fails([&] { of_one({moved}); }, "which wants one; if it is a constant here, pass detach(");
      } else {
        check_gradients(of_one, {moved});
      }
    }
    if (each.refused.empty()) check_gradients(each.op, each.inputs);  // and all together
  }
}

// Every op that the headers of this folder declare has a case, or is among `without`. Returns how many there are.
inline int check_all_have_cases(const std::filesystem::path& folder, const std::vector<OpCase>& cases,
                                std::set<std::string> without = {}) {
  for (const OpCase& each : cases) without.insert(std::string(each.name).substr(0, std::string(each.name).find(',')));
  int declared = 0;
  for (const auto& file : std::filesystem::directory_iterator(source_dir() / folder)) {
    if (file.path().extension() != ".h" || file.path().stem() == "optimizers") continue;
    std::ifstream in(file.path());
    std::stringstream text;
    text << in.rdbuf();
    const std::string page = text.str();
    const std::regex declaration(
        R"((?:^|\n)(?:Tensor|Indices|LstmResult|LinearAttentionResult|GatedLinearResult|AttentionState|std::vector<Tensor>) ([a-z_0-9]+)\()");
    for (std::sregex_iterator i(page.begin(), page.end(), declaration), end; i != end; ++i, ++declared) {
      CAPTURE((*i)[1].str());
      CHECK(without.contains((*i)[1].str()));
    }
  }
  return declared;
}

}  // namespace runnel::test
