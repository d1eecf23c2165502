// Rules of the source tree: who includes whom, which files an op has, which kernels the device contract promises.
#include <algorithm>
#include <filesystem>
#include <map>
#include <regex>
#include <set>

#include "tests/check.h"
#include "tests/program.h"
#include "tests/sources.h"

#if RUNNEL_CUDA_IS_EMULATED
#include <cuda_runtime.h>
#endif

using namespace runnel::test;

namespace {

using Names = std::set<std::string>;

const fs::path root = source_dir();

struct Rule {
  Names folders;  // whose headers this folder may include
  Names headers;  // in angle brackets, besides the standard library's and the system's
};
// cuda may also include the headers in `for_cuda` and what they include, all of which is C++17; tests may include
// anything.
const std::map<std::string, Rule> rules = {
    {"engine", {{"engine"}, {"immintrin.h"}}},
    {"ops", {{"engine", "ops"}, {"dnnl.hpp", "immintrin.h", "arm_neon.h"}}},
    {"cuda", {{"cuda"}, {"cuda_runtime.h", "cublasLt.h"}}},
    {"models", {{"engine", "ops", "models"}, {"nlohmann/json.hpp", "nlohmann/json_fwd.hpp", "zlib.h"}}},
    {"datasets", {{"engine", "datasets"}, {"stb/stb_image.h", "zlib.h", "fftw3.h", "sndfile.h", "nlohmann/json.hpp"}}},
    {"apps",
     {{"engine", "ops", "cuda", "models", "datasets", "apps"},
      {"CLI/CLI.hpp", "benchmark/benchmark.h", "fmt/format.h", "mpi.h", "nlohmann/json.hpp", "nlohmann/json_fwd.hpp",
       "stb/stb_image_write.h", "emscripten.h"}}},
};
const Names for_cuda = {"ops/ladder/kernels.h", "ops/numerics.h",        "engine/check.h",
                        "engine/memory.h",      "engine/cuda_backend.h", "engine/profile.h"};
// The package that connects processes, in apps/ and cuda/, and what it may include besides.
const std::string processes = "/processes/";
const Names for_processes = {"apps/training/communicator.h", "apps/processes/nccl_communicator.h",
                             "apps/processes/tree_sum.h", "nccl.h"};
// Who may include the headers that are not for users of the library, or all those of a folder, besides the folders in
// which they lie.
const std::map<std::string, Names> private_headers = {
    {"ops/kernels",
     {"ops", "cuda", "apps/bench/kernels.cpp", "apps/lra/bench_kernels.cpp", "apps/speech/bench_kernels.cpp"}},
    {"ops/ladder/kernels.h", {"ops", "cuda"}},
    {"ops/kernels/dispatch.h", {"ops/kernels", "ops/ladder/kernels.h"}},
    {"engine/profile.h", {"ops/kernels", "cuda/timing.cu"}},
    {"engine/cuda_backend.h", {"cuda/device.cu", "cuda/timing.cu", "cuda/processes/nccl_communicator.cu"}},
};

std::string folder_of(const std::string& file) { return file.substr(0, file.rfind('/')); }
const Names* users_of(const std::string& header) {  // null: everybody
  auto found = private_headers.find(header);
  if (found == private_headers.end()) found = private_headers.find(folder_of(header));
  return found == private_headers.end() ? nullptr : &found->second;
}

std::string text_of(const fs::path& path) {
  REQUIRE_MESSAGE(fs::exists(path), "cannot read " << path.string());
  return read(path);
}

// All files below a folder of these types, as paths from the root.
Names files(const std::string& folder, const Names& types) {
  Names found;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(root / folder))
    if (types.contains(entry.path().extension())) found.insert(fs::relative(entry.path(), root).generic_string());
  return found;
}
Names sources(const std::string& folder) { return files(folder, {".h", ".cpp", ".cu", ".cuh"}); }

// Each match of an expression in a text; ^ in front of an alternative is the beginning of a line, for which g++ 11's
// library has no flag.
std::vector<std::smatch> matches(const std::string& text, const std::string& expression) {
  const std::regex regex(std::regex_replace(expression, std::regex(R"((^|\|)\^)"), "$1(?:^|\n)"));
  return {std::sregex_iterator(text.begin(), text.end(), regex), {}};
}

struct Include {
  bool quoted;
  std::string name;
};
std::vector<Include> includes(const std::string& file) {
  std::vector<Include> found;
  const std::string text = text_of(root / file);
  for (const std::smatch& m : matches(text, R"(^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+))"))
    found.push_back({m.str(1) == "\"", m.str(2)});
  return found;
}

// One of our headers and all of our headers that it includes.
void add_with_includes(Names& all, const std::string& header) {
  if (!all.insert(header).second) return;
  for (const Include& include : includes(header))
    if (include.quoted) add_with_includes(all, include.name);
}

bool is_standard_or_system(const std::string& header) {
  static const Names system = {"cpuid.h", "dirent.h", "dlfcn.h", "fcntl.h", "mach-o/dyld.h",
                               "omp.h",   "poll.h",   "spawn.h", "unistd.h"};
  return header.find('.') == std::string::npos || header.starts_with("sys/") || system.contains(header);
}

Names ops() {
  const std::string cmake = text_of(root / "CMakeLists.txt");
  const auto list = matches(cmake, R"(^set\(OPS\s([^)]*)\))");
  REQUIRE(list.size() == 1);
  std::istringstream words(list[0].str(1));
  return {std::istream_iterator<std::string>(words), {}};
}

// The headers of the device contract.
Names contract_headers() { return files("ops/kernels", {".h"}); }

// The void functions that a file defines, with their namespaces: runnel::cpu::scale.
void add_definitions(Names& all, const std::string& file) {
  std::vector<std::string> scopes{""};
  const std::string text = text_of(root / file);
  for (const std::smatch& m :
       matches(text, R"(^namespace ?([\w:]*) \{|^\}  // (namespace)|^void ([\w:]+)\([^;{]*\) \{)")) {
    if (m[3].matched)
      all.insert(scopes.back() + m.str(3));
    else if (m[2].matched)
      scopes.pop_back();
    else
      scopes.push_back(scopes.back() + m.str(1) + "::");
    REQUIRE_FALSE(scopes.empty());
  }
}

}  // namespace

TEST_CASE("structure: folders include only what they may") {
  if (!has_sources()) return;
  Names contract;
  for (const std::string& header : for_cuda) add_with_includes(contract, header);
  for (const std::string& header : contract_headers()) add_with_includes(contract, header);
  for (const auto& [folder, rule] : rules)
    for (const std::string& file : sources(folder))
      for (const Include& include : includes(file)) {
        const std::string& name = include.name;
        const bool allowed = include.quoted ? rule.folders.contains(name.substr(0, name.find('/'))) ||
                                                  (folder == "cuda" && contract.contains(name)) ||
                                                  (contains(file, processes) && for_processes.contains(name))
                                            : is_standard_or_system(name) || rule.headers.contains(name) ||
                                                  (contains(file, processes) && for_processes.contains(name));
        CHECK_MESSAGE(allowed, file << " must not include " << name);
      }
}

// A package is a folder of its name in each of ours, or a header ops/kernels/<package>.h.
TEST_CASE("structure: a package includes the core and itself, and the core no package") {
  if (!has_sources()) return;
  const auto package_of = [](const std::string& file) -> std::string {
    for (const std::string name : {"lra", "speech", "processes"})
      if (contains(file, "/" + name + "/") || contains(file, "/" + name + ".")) return name;
    return "";
  };
  int64_t files_of_packages = 0;
  for (const std::string folder : {"engine", "ops", "cuda", "models", "datasets", "apps", "examples", "tests"})
    for (const std::string& file : sources(folder)) {
      const std::string own = package_of(file);
      files_of_packages += !own.empty();
      for (const Include& include : includes(file)) {
        const std::string other = package_of(include.name);
        CHECK_MESSAGE((other.empty() || other == own), file << " must not include " << include.name);
      }
    }
  CHECK(files_of_packages > 90);
}

TEST_CASE("structure: private headers are included by the engine, the ops and the kernels only") {
  if (!has_sources()) return;
  for (const auto& rule : rules)
    for (const std::string& file : sources(rule.first))
      for (const Include& include : includes(file)) {
        const std::string& folder = rule.first;
        const Names* const users = users_of(include.name);
        CHECK_MESSAGE((!users || users->contains(file) || users->contains(folder) || users->contains(folder_of(file)) ||
                       include.name.starts_with(folder)),
                      file << " must not include " << include.name);
      }
}

TEST_CASE("structure: public headers include no private ones and define no macro without the prefix RUNNEL_") {
  if (!has_sources()) return;
  Names headers{"ops/ops.h"};
  for (const std::string folder : {"engine", "models", "datasets"}) headers.merge(files(folder, {".h"}));
  Names with_includes;
  for (const std::string& header : headers)
    if (!users_of(header)) add_with_includes(with_includes, header);
  for (const std::string& header : with_includes) {
    CHECK_MESSAGE(!users_of(header), header << " is private but comes with a public header");
    const std::string text = text_of(root / header);
    for (const std::smatch& m : matches(text, R"(^[ \t]*#[ \t]*define[ \t]+(\w+))"))
      CHECK_MESSAGE(m.str(1).starts_with("RUNNEL_"), header << " defines " << m.str(1));
  }
}

// Else an op that is added would compile nearly everything again.
TEST_CASE("structure: ops/ops.h includes every page of ops, and only programs that use the library include it") {
  if (!has_sources()) return;
  const auto is_page = [](const std::string& header) {
    return header.starts_with("ops/") && header.find('/', 4) == std::string::npos && header != "ops/types.h" &&
           header != "ops/check_gradients.h";
  };
  Names included;
  add_with_includes(included, "ops/ops.h");
  for (const std::string& header : files("ops", {".h"}))
    if (is_page(header) && header != "ops/checks.h" && header != "ops/strides.h")
      CHECK_MESSAGE(included.contains(header), header);
  for (const std::string folder : {"engine", "ops", "models", "datasets", "apps", "tests"})
    for (const std::string& file : sources(folder))
      for (const Include& include : includes(file))
        CHECK_MESSAGE(include.name != "ops/ops.h", file << " must include the pages that it needs");
  const std::string cmake = text_of(root / "CMakeLists.txt");
  Names precompiled;
  for (const std::smatch& m : matches(cmake, R"(^ *target_precompile_headers\(([^)]*)\))")) {
    std::istringstream words(m.str(1));
    for (std::string word; words >> word;)
      if (word.ends_with(".h") && fs::exists(root / word)) add_with_includes(precompiled, word);
  }
  CHECK(precompiled.contains("ops/cpu/loops.h"));
  for (const std::string& header : precompiled)
    CHECK_MESSAGE((!is_page(header) && !header.starts_with("ops/kernels/")), header << " is precompiled");
}

// A program that trains a transformer with the library, and all that it includes, with the sources of those headers:
// what README.md's route leads through.
TEST_CASE("structure: the core stays small: at most 2,000 lines of engine, 3,500 for a program that trains") {
  if (!has_sources()) return;
  const auto lines = [](const auto& all) {
    int64_t count = 0;
    for (const std::string& file : all) {
      const std::string text = text_of(root / file);
      count += std::count(text.begin(), text.end(), '\n');
    }
    return count;
  };
  CHECK_LE(lines(sources("engine")), 2000);
  CHECK_LE(lines(closure("examples/train_copy.cpp")), 3500);
}

TEST_CASE("structure: every folder has a README") {
  if (!has_sources()) return;
  for (const auto& rule : rules) CHECK_MESSAGE(fs::exists(root / rule.first / "README.md"), rule.first);
  CHECK(fs::exists(root / "tests/README.md"));
}

TEST_CASE("structure: every op has its rule, its kernels and its test") {
  if (!has_sources()) return;
  const Names tests = files("tests", {".cpp"});
  for (const std::string& op : ops()) {
    for (const std::string& file : {"ops/" + op + ".cpp", "ops/cpu/" + op + ".cpp", "cuda/" + op + ".cu"})
      CHECK_MESSAGE(fs::exists(root / file), file);
    const std::string test = "/test_" + op.substr(op.rfind('/') + 1) + ".cpp";
    CHECK_MESSAGE(std::any_of(tests.begin(), tests.end(), [&](const auto& file) { return file.ends_with(test); }),
                  op << " has no tests" << test);
  }
}

TEST_CASE("structure: every kernel of the contract is defined on the CPU and on CUDA") {
  if (!has_sources()) return;
  Names defined;
  for (const std::string folder : {"engine", "ops", "cuda"})
    for (const std::string& file : files(folder, {".cpp", ".cu"})) add_definitions(defined, file);
  CHECK_FALSE(defined.empty());
  for (const std::string& header : contract_headers()) {
    const std::string text = text_of(root / header);
    for (const std::smatch& m : matches(text, R"(^(CPU_)?KERNEL\((\w+)\()"))
      for (const std::string device : {"cpu", "cuda"})
        if (device == "cpu" || !m[1].matched)
          CHECK_MESSAGE(defined.contains("runnel::" + device + "::" + m.str(2)),
                        header << ": " << device << "::" << m.str(2));
  }
}

// Everywhere else, DISPATCH chooses among the kernels of all instruction sets.
TEST_CASE("structure: only kernels call a kernel of one instruction set") {
  if (!has_sources()) return;
  for (const std::string& file : sources("ops")) {
    const bool is_kernel = file.starts_with("ops/cpu/") || file.starts_with("ops/ladder/");
    if (is_kernel && file != "ops/cpu/gemm.cpp" && file != "ops/ladder/ladder.cpp") continue;
    if (file == "ops/kernels/dispatch.h") continue;  // which chooses
    for (const std::smatch& m : matches(text_of(root / file), R"(\bcpu(_\w+)?::\w+)"))
      FAIL_CHECK(file << " calls " << m.str());
  }
}

// A virtual machine may hide any feature of its processor, so none comes along as part of an -march that is not asked
// for.
TEST_CASE("structure: the kernels of an instruction set are compiled for features that the program asks for") {
  if (!has_sources()) return;
  const std::string cmake = text_of(root / "CMakeLists.txt"), asked = text_of(root / "ops/processor.cpp");
  const auto sets = matches(cmake, R"(^set\((avx\w+) ([^)]*)\))");
  REQUIRE(sets.size() == 3);
  for (const std::smatch& set : sets) {
    std::istringstream options(set.str(2));
    for (std::string option; options >> option;)
      CHECK_MESSAGE(
          (option.starts_with("${avx") || contains(asked, "__builtin_cpu_supports(\"" + option.substr(2) + "\")")),
          set.str(1) << ": " << option);
  }
  CHECK(contains(cmake, "set(dotprod -march=armv8.2-a+dotprod)"));
  for (const char* feature : {"ATOMICS", "CRC32", "ASIMDRDM", "ASIMDDP"})
    CHECK(contains(asked, std::string("HWCAP_") + feature));
}

#if RUNNEL_CUDA_IS_EMULATED
// By this process, whose test files run in alphabetical order, or by those before that left their list in
// $SIMT_LAUNCHED.
TEST_CASE("structure: the tests have launched every CUDA kernel of the contract") {
  if (!has_sources()) return;
  std::ifstream before(from_environment("SIMT_LAUNCHED", ""));
  Names launched{std::istream_iterator<std::string>(before), {}};
  launched.insert(simt::launched().begin(), simt::launched().end());
  if (!launched.contains("add") || !launched.contains("sums_of_squares")) {
    MESSAGE("skipped: 1 test, it needs those of the ops before it");
    return;
  }
  for (const std::string& header : contract_headers()) {
    const std::string text = text_of(root / header);
    for (const std::smatch& m : matches(text, R"(^KERNEL\((\w+?)(_forward|_backward)?\()"))
      CHECK_MESSAGE((launched.contains(m.str(1) + m.str(2)) || launched.contains(m.str(1))), m.str(1) << m.str(2));
  }
}
#endif

TEST_CASE("structure: only two headers know whether there is CUDA") {  // and tests, which may know anything
  if (!has_sources()) return;
  for (const auto& [folder, rule] : rules)
    for (const std::string& file : sources(folder))
      if (file != "ops/kernels/dispatch.h" && file != "engine/device.h")
        CHECK_MESSAGE(text_of(root / file).find("RUNNEL_WITH_CUDA") == std::string::npos, file);
}
