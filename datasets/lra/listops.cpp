#include "datasets/lra/listops.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <tuple>
#include <unordered_set>
#include <utility>

#include "datasets/cache_file.h"
#include "engine/check.h"
#include "engine/random.h"

namespace runnel {
namespace {

namespace fs = std::filesystem;

enum Symbol : uint8_t { minimum, maximum, median, sum, end, zero };

constexpr int64_t max_arguments = 10;

int32_t apply(uint8_t operation, std::span<int32_t> arguments) {
  std::sort(arguments.begin(), arguments.end());
  const size_t n = arguments.size();
  int32_t total = 0;
  switch (operation) {
    case minimum:
      return arguments.front();
    case maximum:
      return arguments.back();
    case median:
      return (arguments[(n - 1) / 2] + arguments[n / 2]) / 2;
    default:
      for (const int32_t argument : arguments) total += argument;
      return total % 10;
  }
}

// Draws one tree after another, with random numbers of its own, until one fits.
class Tree {
 public:
  Tree(const ListOpsOptions& options, Key key) : options_(options), key_(key) {}

  std::vector<uint8_t> draw() {  // empty: none fits
    constexpr int max_attempts = 100'000;
    for (int attempt = 0; attempt < max_attempts; ++attempt) {
      symbols.clear();
      if (grow(1) && std::ssize(symbols) > options_.longer_than) return symbols;
    }
    return {};
  }

 private:
  bool grow(int64_t depth) {           // false: it has become too long
    const uint32_t u = below(4 * 10);  // both an event of probability 1/4 and, if it did not happen, a digit
    if (depth == options_.depth || u >= 10) {
      symbols.push_back(static_cast<uint8_t>(zero + u % 10));
    } else {
      const uint32_t v = below(4 * (max_arguments - 1));
      symbols.push_back(static_cast<uint8_t>(v % 4));
      for (uint32_t argument = 0; argument < 2 + v / 4; ++argument)
        if (!grow(depth + 1)) return false;
      symbols.push_back(end);
    }
    return std::ssize(symbols) < options_.shorter_than;
  }

  uint32_t below(uint32_t n) {  // as Key::below of a running number
    constexpr uint64_t blocks = std::tuple_size_v<decltype(bits_)> / 4;
    if (drawn_ % bits_.size() == 0)
      for (uint64_t i = 0; i < blocks; ++i) {
        const Philox block = key_.block(drawn_ / 4 + i);
        for (size_t word = 0; word < 4; ++word) bits_[4 * i + word] = block[word];
      }
    return static_cast<uint32_t>(uint64_t{bits_[drawn_++ % bits_.size()]} * n >> 32);
  }

  const ListOpsOptions& options_;
  Key key_;
  uint64_t drawn_ = 0;
  std::array<uint32_t, 256> bits_;
  std::vector<uint8_t> symbols;
};

std::string quoted(std::string_view word) {
  return '"' + std::string(word.substr(0, 20)) + (word.size() > 20 ? "...\"" : "\"");
}

// Each set's values and symbols. Where an expression ends follows from its symbols.
bool write(const CacheFile& file, const std::array<LabelledSequences*, 3>& sets) {
  std::vector<std::span<const char>> parts;
  for (const LabelledSequences* const set : sets)
    parts.insert(parts.end(), {as_chars(set->labels), as_chars(set->bytes)});
  return file.write(parts);
}

// Adds them to empty sets. False if there is no such file, or it cannot be used: then the sets are to be dropped.
bool read(const CacheFile& file, const std::array<LabelledSequences*, 3>& sets, const std::array<int64_t, 3>& counts) {
  return file.read([&](Archive& archive) {
    std::vector<uint8_t> symbols;
    for (size_t i = 0; i < sets.size(); ++i) {
      std::vector<int32_t>& labels = sets[i]->labels;
      labels.resize(static_cast<size_t>(counts[i]));
      archive.numbers(std::span(labels));
      for (const int32_t label : labels) check(label >= 0 && label <= 9, "a value of ", label);
      while (sets[i]->first.size() <= labels.size()) {
        symbols.clear();
        int64_t open = 0;
        do {
          archive.number(symbols.emplace_back());
          check(symbols.back() < std::size(listops_symbols), "a symbol number ", int{symbols.back()});
          open += symbols.back() < end ? 1 : symbols.back() == end ? -1 : 0;
        } while (open > 0);
        sets[i]->append(symbols);
      }
    }
  });
}

ClassificationData empty_sets(const std::string& name) {
  const auto part = [&](const char* which) {
    LabelledSequences set;
    set.name = name + " (" + which + ")";
    for (const std::string_view digit : std::span(listops_symbols).subspan(zero)) set.class_names.emplace_back(digit);
    return set;
  };
  return {part("train"), part("validation"), part("test")};
}

[[noreturn]] void wrong(size_t word, uint8_t symbol, const char* what) {
  fail("ListOps expression: word ", word, ", ", quoted(listops_symbols[symbol]), ", ", what);
}

}  // namespace

std::vector<uint8_t> parse_listops(std::string_view text) {
  constexpr std::string_view blanks = " \t\r\n";
  std::vector<uint8_t> symbols;
  for (size_t from = 0; (from = text.find_first_not_of(blanks, from)) != std::string_view::npos;) {
    const size_t to = std::min(text.find_first_of(blanks, from), text.size());
    const std::string_view word = text.substr(from, to - from);
    from = to;
    if (word == "(" || word == ")") continue;
    const auto found = std::find(std::begin(listops_symbols), std::end(listops_symbols), word);
    check(found != std::end(listops_symbols), "ListOps expression: word ", symbols.size() + 1, ", ", quoted(word),
          ", is none of [MIN [MAX [MED [SM ] and 0 to 9");
    symbols.push_back(static_cast<uint8_t>(found - std::begin(listops_symbols)));
  }
  evaluate_listops(symbols);  // throws if its brackets are wrong
  return symbols;
}

int32_t evaluate_listops(std::span<const uint8_t> symbols) {
  std::vector<int32_t> values;  // of arguments, of all operators that are open
  struct Open {
    uint8_t operation;
    size_t first;  // of its arguments
  };
  std::vector<Open> open;
  for (size_t i = 0; i < symbols.size(); ++i) {
    const uint8_t symbol = symbols[i];
    check(symbol < std::size(listops_symbols), "ListOps expression: there is no symbol ", int{symbol});
    if (open.empty() && symbol == end) wrong(i + 1, symbol, "closes nothing");
    if (open.empty() && !values.empty()) wrong(i + 1, symbol, "stands behind the end");
    if (symbol < end) {
      open.push_back({symbol, values.size()});
    } else if (symbol > end) {
      values.push_back(symbol - zero);
    } else {
      const auto [operation, first] = open.back();
      if (first == values.size()) wrong(i + 1, symbol, "closes an operator without arguments");
      const int32_t value = apply(operation, std::span(values).subspan(first));
      values.resize(first);
      values.push_back(value);
      open.pop_back();
    }
  }
  check(open.empty(), "ListOps expression: it ends before ", open.size(), " of its operators are closed by ]");
  check(!values.empty(), "ListOps expression: it is empty");
  return values[0];
}

ListOpsData drawn_listops(const ListOpsOptions& options, const fs::path& cache,
                          const std::function<void(int64_t, int64_t)>& progress) {
  constexpr int64_t at_once = 1024;
  const auto& [train, validation, test, longer_than, shorter_than, depth, seed] = options;
  check(train >= 1 && validation >= 1 && test >= 1, "ListOps: sets of ", train, ", ", validation, " and ", test,
        " expressions; each needs at least 1");
  check(depth >= 1 && depth <= 1000, "ListOps: trees of depth ", depth, "; from 1 to 1000 can be drawn");

  const std::string seed_text = std::to_string(seed);
  const ClassificationData empty = empty_sets("ListOps, drawn with seed " + seed_text);
  ListOpsData data{empty};
  const std::array<LabelledSequences*, 3> sets{&data.sets.train, &data.sets.validation, &data.sets.test};
  const std::array<int64_t, 3> counts{train, validation, test};
  std::string kind = "listops";
  for (const int64_t number : {train, validation, test, longer_than, shorter_than, depth})
    kind.append("-").append(std::to_string(number));
  kind.append("-").append(seed_text);
  // The number before it: another one when the same options give other expressions.
  const CacheFile file(cache / (kind + ".cache"), "1 " + kind);
  if (!cache.empty() && read(file, sets, counts)) {
    data.cache = file.path();
    data.from_cache = true;
    return data;
  }
  data.sets = empty;
  check(longer_than >= 0 && shorter_than - longer_than >= 2, "ListOps: no length is above ", longer_than, " and below ",
        shorter_than);
  const int64_t total = train + validation + test;
  std::unordered_set<size_t> seen;  // hashes
  std::vector<std::vector<uint8_t>> drawn(at_once);
  std::vector<int32_t> values(at_once);
  size_t part = 0;
  for (int64_t first = 0; std::ssize(seen) < total; first += at_once) {
    std::atomic<bool> none_fits = false;
#pragma omp parallel for schedule(dynamic, 16)
    for (int64_t i = 0; i < at_once; ++i) {
      std::vector<uint8_t>& symbols = drawn[static_cast<size_t>(i)];
      if (none_fits) continue;
      symbols = Tree(options, Key{options.seed}.fold(static_cast<uint64_t>(first + i))).draw();
      if (symbols.empty()) {
        none_fits = true;
      } else {
        values[static_cast<size_t>(i)] = evaluate_listops(symbols);
      }
    }
    const size_t before = seen.size();
    for (int64_t i = 0; i < at_once && !none_fits && std::ssize(seen) < total; ++i) {
      const std::vector<uint8_t>& symbols = drawn[static_cast<size_t>(i)];
      const std::string_view text(reinterpret_cast<const char*>(symbols.data()), symbols.size());
      if (!seen.insert(std::hash<std::string_view>()(text)).second) continue;
      while (sets[part]->count() == counts[part]) ++part;
      sets[part]->append(symbols);
      sets[part]->labels.push_back(values[static_cast<size_t>(i)]);
    }
    check(seen.size() > before, "ListOps: found only ", before, " of ", total, " different expressions of more than ",
          longer_than, " and fewer than ", shorter_than, " symbols and a depth of up to ", depth,
          "; ask for fewer, or for other lengths");
    if (progress) progress(std::ssize(seen), total);
  }
  if (!cache.empty() && write(file, sets)) data.cache = file.path();
  return data;
}

ClassificationData read_listops(const fs::path& folder) {
  ClassificationData data = empty_sets("ListOps of " + folder.string());
  const std::pair<LabelledSequences*, const char*> files[] = {
      {&data.train, "basic_train.tsv"}, {&data.validation, "basic_val.tsv"}, {&data.test, "basic_test.tsv"}};
  for (const auto& [set, name] : files) {
    check(fs::exists(folder / name), folder.string(), ": no ", name,
          "; ListOps is three files of Long Range Arena's, basic_train.tsv, basic_val.tsv and basic_test.tsv");
    LineFile file(folder / name);
    std::string line;
    if (!file.next(line) || line != "Source\tTarget") file.wrong("not \"Source\", a tab and \"Target\"");
    while (file.next(line)) {
      const std::vector<std::string_view> parts = fields(line);
      if (parts.size() != 2) file.wrong("not an expression, a tab and its value");
      if (parts[1].size() != 1 || parts[1][0] < '0' || parts[1][0] > '9')
        file.wrong("the value is " + quoted(parts[1]) + ", no digit");
      try {
        set->append(parse_listops(parts[0]));
      } catch (const Error& error) {
        file.wrong(error.what());
      }
      set->labels.push_back(parts[1][0] - '0');
    }
    check(set->count() > 0, (folder / name).string(), ": no expressions behind its first line");
  }
  return data;
}

}  // namespace runnel
