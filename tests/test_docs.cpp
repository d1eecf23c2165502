// The documentation is true: links and file names resolve, README.md is short and its line counts are right, every kind
// of attention has a section, docs/cli.md is what --help says, and the code shown is the code tested.
#include <algorithm>
#include <cctype>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "models/attention_kinds.h"
#include "models/autoregressive.h"
#include "ops/linear_attention.h"
#include "tests/check.h"
#include "tests/chunked_attention.h"
#include "tests/paths.h"
#include "tests/sources.h"
#include "tests/tensor_table.h"

using namespace runnel;
using namespace runnel::test;

namespace {

namespace fs = std::filesystem;

const fs::path root = source_dir();

std::vector<std::string> lines_of(const fs::path& path) {
  std::ifstream file(path);
  REQUIRE_MESSAGE(file.is_open(), "cannot read " << path.string());
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

std::string text_of(const fs::path& path) {
  std::string text;
  for (const std::string& line : lines_of(path)) text += line + "\n";
  return text;
}

// All pages, as paths from the root.
std::vector<std::string> pages() {
  std::vector<std::string> found;
  for (const fs::directory_entry& entry : fs::directory_iterator(root))
    if (entry.path().extension() == ".md") found.push_back(entry.path().filename().string());
  for (const char* folder : {"engine", "ops", "cuda", "models", "datasets", "apps", "tests", "examples", "docs"}) {
    if (!fs::exists(root / folder)) continue;
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(root / folder))
      if (entry.path().extension() == ".md") found.push_back(fs::relative(entry.path(), root).generic_string());
  }
  std::sort(found.begin(), found.end());
  return found;
}

// A page's lines without its code blocks, fenced or indented.
std::vector<std::string> prose_of(const fs::path& page) {
  std::vector<std::string> prose;
  bool fenced = false;
  for (const std::string& line : lines_of(page)) {
    if (line.starts_with("```"))
      fenced = !fenced;
    else if (!fenced && !line.starts_with("    "))
      prose.push_back(line);
  }
  CHECK_MESSAGE(!fenced, page.string() << ": a code block is not closed");
  return prose;
}

std::vector<std::smatch> matches(const std::string& line, const std::regex& regex) {
  return {std::sregex_iterator(line.begin(), line.end(), regex), {}};
}

// The anchors that GitHub makes of a page's headings: lower case, no punctuation, hyphens for spaces.
std::set<std::string> anchors_of(const fs::path& page) {
  std::set<std::string> anchors;
  for (const std::string& line : prose_of(page)) {
    const size_t level = line.find_first_not_of('#');
    if (level == 0 || level == std::string::npos || line[level] != ' ') continue;
    std::string anchor;
    for (const char c : line.substr(level + 1)) {
      if (std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_')
        anchor += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
      else if (c == ' ')
        anchor += '-';
    }
    const std::string first = anchor;
    for (int n = 1; !anchors.insert(anchor).second; ++n) anchor = first + "-" + std::to_string(n);
  }
  return anchors;
}

int64_t line_count(const fs::path& path) { return std::ssize(lines_of(path)); }

// The number of lines that a page states may be this far from the truth, so that small edits need no edit there.
bool about(int64_t stated, int64_t actual) { return std::abs(stated - actual) <= std::max<int64_t>(5, actual / 10); }

}  // namespace

TEST_CASE("docs: links between pages resolve, to files and to headings") {
  if (!has_sources()) return;
  static const std::regex link(R"(\]\(([^)\s]+)\))"), code("`[^`]*`");
  for (const std::string& page : pages()) {
    for (const std::string& line : prose_of(root / page)) {
      const std::string text = std::regex_replace(line, code, "");
      for (const std::smatch& m : matches(text, link)) {
        const std::string target = m.str(1);
        if (target.find("://") != std::string::npos || target.starts_with("mailto:")) continue;
        const size_t hash = target.find('#');
        const std::string file = target.substr(0, hash);
        const fs::path path = file.empty() ? root / page : (root / page).parent_path() / file;
        CHECK_MESSAGE(fs::exists(path), page << " links to " << target);
        if (hash != std::string::npos && fs::exists(path))
          CHECK_MESSAGE(anchors_of(path).contains(target.substr(hash + 1)), page << " links to " << target);
      }
    }
  }
}

TEST_CASE("docs: source files that a page names exist") {
  if (!has_sources()) return;
  static const std::regex file(R"(`((?:engine|ops|cuda|models|datasets|apps|tests|examples|docs)/[\w/.-]+\.\w+)`)");
  for (const std::string& page : pages()) {
    // History, and files that the reader is to write.
    if (page == "CHANGELOG.md" || page == "docs/tutorial.md" || page.starts_with("docs/notes/")) continue;
    for (const std::string& line : prose_of(root / page))
      for (const std::smatch& m : matches(line, file))
        CHECK_MESSAGE(fs::exists(root / m.str(1)), page << " names " << m.str(1));
  }
}

TEST_CASE("docs: files that comments name exist") {
  if (!has_sources()) return;
  static const std::regex file(
      R"(//.*?\b((engine|ops|cuda|models|datasets|apps|tests|docs|examples)/[\w/.-]+\.(h|cpp|cu|md|sh|py))\b)");
  for (const char* folder : {"engine", "ops", "cuda", "models", "datasets", "apps", "tests", "examples"})
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(root / folder)) {
      const fs::path type = entry.path().extension();
      if (type != ".h" && type != ".cpp" && type != ".cu") continue;
      for (const std::string& line : lines_of(entry.path()))
        for (const std::smatch& m : matches(line, file))
          CHECK_MESSAGE(fs::exists(root / m.str(1)), entry.path().string() << " names " << m.str(1));
    }
}

TEST_CASE("docs: README.md has at most 120 lines") {
  if (!has_sources()) return;
  CHECK_LE(line_count(root / "README.md"), 120);
}

// RUNNEL_WRITE_COUNTS=1 in the environment writes the counts of lines into README.md.
TEST_CASE("docs: README.md's route leads through all that a program includes, in order, with true counts of lines") {
  if (!has_sources()) return;
  static const std::regex counted(R"(\]\(([\w/.]+)\) \((\d+)\))"), total(R"(\*\*[\d,]+ lines\*\*)");
  std::set<std::string> route;
  int64_t all_lines = 0;
  std::string written;
  const std::string text = text_of(root / "README.md");
  const std::set<std::string> all = closure("examples/train_copy.cpp");
  auto rest = text.begin();
  for (const std::smatch& m : matches(text, counted)) {
    const std::string file = m.str(1);
    const int64_t stated = std::stoll(m.str(2)), actual = line_count(root / file);
    CHECK_MESSAGE(about(stated, actual), file << " has " << actual << " lines, not " << stated);
    CHECK_MESSAGE(all.contains(file), file << " is not included");
    for (const std::string& included : own_includes(file))
      CHECK_MESSAGE((route.contains(included) || included == "ops/ops.h"), file << " stands before " << included);
    route.insert(file);
    all_lines += actual;
    written.append(rest, m[0].first).append("](" + file + ") (" + std::to_string(actual) + ")");
    rest = m[0].second;
  }
  for (const std::string& file : all) CHECK_MESSAGE(route.contains(file), file << " is missing in the route");
  const std::string sum = std::to_string(all_lines / 1000) + "," + std::to_string(1000 + all_lines % 1000).substr(1);
  written = std::regex_replace(written.append(rest, text.end()), total, "**" + sum + " lines**");
  if (from_environment("RUNNEL_WRITE_COUNTS", "").empty()) {
    const auto sums = matches(text, total);
    REQUIRE(sums.size() == 1);
    const std::string stated = std::regex_replace(sums[0].str(), std::regex("[^0-9]"), "");
    CHECK_MESSAGE(about(std::stoll(stated), all_lines), "in all " << sum << " lines, not " << stated);
  } else {
    std::ofstream(root / "README.md") << written;
  }
}

TEST_CASE("docs: every kind of attention and each of its settings has its place in docs/attention.md") {
  if (!has_sources()) return;
  const std::set<std::string> anchors = anchors_of(root / "docs/attention.md");
  const std::string page = text_of(root / "docs/attention.md");
  for (const AttentionKind* kind : attention_kinds()) {
    CHECK_MESSAGE(anchors.contains(kind->name), kind->name);
    for (const AttentionKind::Option& option : kind->options)
      CHECK_MESSAGE(page.find("`--" + option.name) != std::string::npos, "--" << option.name);
  }
}

TEST_CASE("docs: docs/run-folder.md's table names every tensor of the autoregressive transformer, and no others") {
  if (!has_sources()) return;
  std::set<std::string> expected;
  // Of the core's kinds of attention; a package's page has those of its kinds.
  for (const char* kind : {"linear", "softmax", "lsh", "retention", "gla", "deltanet", "gated-deltanet", "kda"}) {
    EncoderConfig encoder = small_encoder;
    encoder.attention = {kind, {{"convolution", int64_t{4}}}};
    for (const char* positions : {"sinusoidal", "learned"})
      append_names(expected,
                   AutoregressiveTransformer({.positions = positions, .encoder = encoder}, Key{1}).parameters());
  }
  check_names(tensors_of_page("run-folder.md"), expected);
}

TEST_CASE("docs: docs/cli.md is what docs/make-cli.sh makes of --help") {
  if (!has_sources()) return;
  if (!has_package("lra") || !has_package("speech") || !has_package("processes")) {
    MESSAGE("skipped: 1 test, packages are left out");
    return;
  }
  FILE* const pipe = popen((root / "docs/make-cli.sh").string().append(" " + program()).c_str(), "r");
  REQUIRE(pipe != nullptr);
  std::string made;
  for (int c; (c = std::fgetc(pipe)) != EOF;) made += static_cast<char>(c);
  REQUIRE(pclose(pipe) == 0);
  // Its words: versions of CLI11 differ in spaces, line breaks, brackets and capitals.
  const auto words = [](const std::string& text) {
    static const std::regex word("[a-z0-9.-]+");
    std::string lower = text, found;
    std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
    for (const std::smatch& m : matches(lower, word)) found += m.str() + "\n";
    return found;
  };
  CHECK_MESSAGE(words(made) == words(text_of(root / "docs/cli.md")),
                "run: docs/make-cli.sh build/runnel > docs/cli.md");
}

TEST_CASE("docs: the chunked attention that docs/attention.md shows is the one tested here") {
  if (!has_sources()) return;
  const std::string header = text_of(root / "tests/chunked_attention.h");
  const size_t begin = header.find("// y_i = "), end = header.find("\n}\n", begin);
  REQUIRE(begin != std::string::npos);
  REQUIRE(end != std::string::npos);
  const std::string shown = "```cpp\n" + header.substr(begin, end + 3 - begin) + "```\n";
  CHECK(text_of(root / "docs/attention.md").find(shown) != std::string::npos);
}

TEST_CASE("docs: the chunked scan is causal_product, forward and backward") {
  const int64_t l = 37, e = 5, m = 7;
  for (const int64_t chunk : {1, 8, 64}) {
    CAPTURE(chunk);
    const Tensor q = random_tensor(Shape{1, l, 1, e}, 1).set_wants_grad();
    const Tensor k = random_tensor(Shape{1, l, 1, e}, 2).set_wants_grad();
    const Tensor v = random_tensor(Shape{1, l, 1, m}, 3).set_wants_grad();
    Tape tape;
    const Tensor y = causal_product(q, k, v);
    const Tensor dy = random_tensor(Shape{l * m, 1}, 4);
    const Gradients gradients = tape.backward(weighted_sum(y, dy));

    const auto scan = [&](const Tensor& x, const Tensor& a, const Tensor& b, int64_t inner, int64_t width,
                          bool reverse) {
      std::vector<float> out(static_cast<size_t>(l * width));
      chunked_scan(out.data(), x.data(), a.data(), b.data(), l, inner, width, chunk, reverse);
      return std::vector<double>(out.begin(), out.end());
    };
    check_close(y, scan(q, k, v, e, m, false), reduction);
    check_close(gradients.of(q), scan(dy, v, k, m, e, false), reduction);  // eq. 13
    check_close(gradients.of(k), scan(v, dy, q, m, e, true), reduction);   // eq. 14
    check_close(gradients.of(v), scan(k, q, dy, e, m, true), reduction);   // eq. 15
  }
}
