// ListOps: the value of expressions, what is wrong with others, drawn sets and their cache, Long Range Arena's files.
#include "datasets/lra/listops.h"

#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <stdexcept>

#include "tests/check.h"
#include "tests/folder.h"

namespace runnel::test {
namespace {

namespace fs = std::filesystem;

int32_t value_of(const std::string& text) { return evaluate_listops(parse_listops(text)); }

std::string text_of(std::span<const uint8_t> symbols) {
  std::string text;
  for (const uint8_t symbol : symbols) text.append(text.empty() ? "" : " ").append(listops_symbols[symbol]);
  return text;
}

TEST_CASE("listops: values of expressions") {
  CHECK(value_of("7") == 7);
  CHECK(value_of("[MAX 2 9 [MIN 4 7 ] 0 ]") == 9);
  CHECK(value_of("[MIN 2 9 [MIN 4 7 ] 1 ]") == 1);
  CHECK(value_of("[SM 9 9 [SM 5 ] 4 ]") == 7);
  CHECK(value_of("[MED 9 1 5 ]") == 5);
  CHECK(value_of("[MED 9 1 ]") == 5);
  CHECK(value_of("[MED 8 3 1 4 ]") == 3);  // 3.5, cut
  CHECK(value_of("[MED 1 [MAX 4 8 ] [SM 3 [MIN 9 9 ] 2 ] ]") == 4);
  CHECK(value_of("  ( ( ( [MAX 2 )\t9 ) ] )\r\n") == 9);  // as in Long Range Arena's files
  CHECK(parse_listops("[MIN 0 ]") == std::vector<uint8_t>{0, 5, 4});
  CHECK(parse_listops("( ( ( [SM 9 ) 1 ) ] )") == std::vector<uint8_t>{3, 14, 6, 4});
  const std::string deep = [] {
    std::string begin, end;
    for (int i = 0; i < 100'000; ++i) begin += "[MIN 9 ", end += "] ";
    return begin + "4 " + end;
  }();
  CHECK(value_of(deep) == 4);
}

TEST_CASE("listops: an error says which word is wrong") {
  const auto fails = [](const std::string& text, const std::string& words) {
    CAPTURE(text);
    check_fails([&] { parse_listops(text); }, words);
  };
  fails("", "it is empty");
  fails("( )", "it is empty");
  fails("[MAX 2 ( [AVG 3 ) ] ]", "word 3, \"[AVG\", is none of [MIN [MAX [MED [SM ] and 0 to 9");
  fails("10", "word 1, \"10\"");
  fails("[MAX 2 aaaaaaaaaaaaaaaaaaaaaaaaa", "word 3, \"aaaaaaaaaaaaaaaaaaaa...\"");
  fails("[MAX 2 ] ]", "word 4, \"]\", closes nothing");
  fails("]", "word 1, \"]\", closes nothing");
  fails("[MAX 2 ] 3", "word 4, \"3\", stands behind the end");
  fails("3 [MAX 2 ]", "word 2, \"[MAX\", stands behind the end");
  fails("[MAX 2 [MED ] ]", "word 4, \"]\", closes an operator without arguments");
  fails("[MAX 2 [MED 1", "it ends before 2 of its operators are closed by ]");
  check_fails([] { evaluate_listops(std::vector<uint8_t>{15}); }, "there is no symbol 15");
}

ListOpsOptions few(uint64_t seed = 1) {
  ListOpsOptions options;
  options.train = 1500, options.validation = 60, options.test = 300, options.seed = seed;
  return options;
}

TEST_CASE("listops: a drawn set has different expressions of the wanted lengths, with their values") {
  const ListOpsData data = drawn_listops(few(), {});
  CHECK(data.cache.empty());
  CHECK(!data.from_cache);
  CHECK(data.sets.train.count() == 1500);
  CHECK(data.sets.validation.count() == 60);
  CHECK(data.sets.test.count() == 300);
  CHECK(data.sets.train.name == "ListOps, drawn with seed 1 (train)");
  CHECK(data.sets.test.class_names.size() == 10);
  CHECK(data.sets.test.class_names[3] == "3");

  std::set<std::string> different;
  double symbols = 0, operators = 0, arguments = 0, closed = 0;
  for (const LabelledSequences* const set : {&data.sets.train, &data.sets.validation, &data.sets.test})
    for (int64_t i = 0; i < set->count(); ++i) {
      const auto sequence = set->sequence(i);
      CHECK(sequence.size() > 500);
      CHECK(sequence.size() < 2000);
      const std::string text = text_of(sequence);
      different.insert(text);
      CHECK(value_of(text) == set->labels[static_cast<size_t>(i)]);
      symbols += static_cast<double>(sequence.size());
      std::vector<int> open;  // numbers of arguments
      size_t deepest = 0;
      for (const uint8_t symbol : sequence)
        if (symbol == 4) {
          CHECK(open.back() >= 2);
          CHECK(open.back() <= 10);
          arguments += open.back();
          ++closed;
          open.pop_back();
        } else {
          if (!open.empty()) ++open.back();
          if (symbol < 4) open.push_back(0), ++operators;
          deepest = std::max(deepest, open.size());
        }
      CHECK(deepest <= 9);  // operators, and digits below
    }
  CHECK(different.size() == 1860);
  CHECK(symbols / 1860 > 990);  // 1,037 of 100,000
  CHECK(symbols / 1860 < 1085);
  CHECK(closed == operators);
  CHECK(arguments / operators > 5.8);  // 6, but for the chosen lengths
  CHECK(arguments / operators < 6.6);
}

TEST_CASE("listops: what reading one symbol reaches") {
  ListOpsOptions options = few();
  options.train = 20000, options.test = 5000;
  const ListOpsData data = drawn_listops(options, {});
  const Shortcuts found = shortcuts(data.sets.train, data.sets.test);
  CHECK(found.same_answer > .15);  // .170 in Long Range Arena's
  CHECK(found.same_answer < .19);
  CHECK(found.first_byte > .34);  // .362
  CHECK(found.first_byte < .384);
}

TEST_CASE("listops: a set is a function of its options, with any number of threads") {
  const auto sums = [](uint64_t seed) {
    const ClassificationData sets = drawn_listops(few(seed), {}).sets;
    return std::vector{checksum(sets.train), checksum(sets.validation), checksum(sets.test)};
  };
  const auto first = sums(1);
  CHECK(first != sums(2));
  for (const int threads : {1, 3}) {
    const OmpThreads limit(threads);
    CHECK(sums(1) == first);
  }
}

TEST_CASE("listops: few expressions are drawn completely, and no more can be had") {
  ListOpsOptions options;
  options.train = 5, options.validation = 3, options.test = 2;
  options.longer_than = 0, options.shorter_than = 2;  // the digits
  const ClassificationData sets = drawn_listops(options, {}).sets;
  std::set<int32_t> values;
  for (const LabelledSequences* const set : {&sets.train, &sets.validation, &sets.test})
    values.insert(set->labels.begin(), set->labels.end());
  CHECK(values.size() == 10);
  options.train = 6;
  check_fails([&] { drawn_listops(options, {}); },
              "ListOps: found only 10 of 11 different expressions of more than 0 and fewer than 2 symbols");
  options.longer_than = 50, options.shorter_than = 60, options.depth = 1;
  check_fails([&] { drawn_listops(options, {}); }, "found only 0 of 11 different expressions");
  options.longer_than = 59;
  check_fails([&] { drawn_listops(options, {}); }, "no length is above 59 and below 60");
  options = few();
  options.validation = 0;
  check_fails([&] { drawn_listops(options, {}); }, "sets of 1500, 0 and 300 expressions");
  options = few();
  options.depth = 0;
  check_fails([&] { drawn_listops(options, {}); }, "trees of depth 0");
}

TEST_CASE("listops: the cache is read, and written again if it is damaged") {
  const Folder cache;
  int calls = 0;
  int64_t last = 0;
  const auto progress = [&](int64_t done, int64_t of) {
    ++calls, last = done;
    CHECK(of == 1860);
  };
  const ListOpsData drawn = drawn_listops(few(), cache.path / "new", progress);
  CHECK(calls > 0);
  CHECK(last == 1860);
  CHECK(!drawn.from_cache);
  CHECK(drawn.cache == cache.path / "new" / "listops-1500-60-300-500-2000-10-1.cache");
  const auto again = [&](bool from_cache) {
    const ListOpsData kept = drawn_listops(few(), cache.path / "new");
    CHECK(kept.from_cache == from_cache);
    CHECK(kept.cache == drawn.cache);
    for (const auto set : {&ClassificationData::train, &ClassificationData::validation, &ClassificationData::test}) {
      CHECK(checksum(kept.sets.*set) == checksum(drawn.sets.*set));
      CHECK((kept.sets.*set).name == (drawn.sets.*set).name);
    }
  };
  again(true);
  const std::string whole = read_bytes(drawn.cache);
  for (const size_t at : {size_t{0}, size_t{40}, whole.size() / 2, whole.size() - 1}) {
    CAPTURE(at);
    std::string damaged = whole;
    damaged[at] ^= 1;
    write_bytes(drawn.cache, damaged);
    again(false);
    again(true);
  }
  for (const size_t size : {size_t{0}, size_t{3}, whole.size() - 1}) {
    CAPTURE(size);
    write_bytes(drawn.cache, whole.substr(0, size));
    again(false);
  }
  for (const size_t at : {whole.find('\n') + 1, whole.size() - 5}) {  // the first value, the last symbol
    CAPTURE(at);
    std::string impossible = whole;
    impossible[at] = 100;
    write_cache(drawn.cache, impossible);
    again(false);
  }
  CHECK(!drawn_listops(few(2), cache.path / "new").from_cache);
  write_bytes(cache.path / "file", "");
  CHECK(drawn_listops(few(), cache.path / "file").cache.empty());  // which is no folder
  CHECK_THROWS_AS(drawn_listops(few(), {}, [](int64_t, int64_t) { throw std::runtime_error("stop"); }),
                  std::runtime_error);
}

TEST_CASE("listops: Long Range Arena's files") {
  const Folder folder;
  const std::string header = "Source\tTarget\r\n";
  write_bytes(folder.path / "basic_train.tsv", header + "( ( ( [MAX 2 ) 9 ) ] )\t9\r\n[MIN 3 4 ]\t3\r\n");
  write_bytes(folder.path / "basic_val.tsv", "Source\tTarget\n[SM 3 4 ]\t7\n");
  check_fails([&] { read_listops(folder.path); }, "no basic_test.tsv; ListOps is three files");
  const fs::path test = folder.path / "basic_test.tsv";
  write_bytes(test, header + "5\t0");
  const ClassificationData data = read_listops(folder.path);
  CHECK(data.train.name == "ListOps of " + folder.path.string() + " (train)");
  CHECK(data.train.bytes == std::vector<uint8_t>{1, 7, 14, 4, 0, 8, 9, 4});
  CHECK(data.train.first == std::vector<int64_t>{0, 4, 8});
  CHECK(data.train.labels == std::vector<int32_t>{9, 3});
  CHECK(data.validation.labels == std::vector<int32_t>{7});
  CHECK(data.test.labels == std::vector<int32_t>{0});  // not compared with the value

  const auto fails = [&](const std::string& text, const std::string& words) {
    CAPTURE(text);
    write_bytes(test, text);
    check_fails([&] { read_listops(folder.path); }, test.string() + words);
  };
  fails("", ":0: not \"Source\", a tab and \"Target\"");
  fails("[MIN 3 4 ]\t3\n", ":1: not \"Source\", a tab and \"Target\"");
  fails(header, ": no expressions behind its first line");
  fails(header + "[MIN 3 4 ]\t3\n\n", ":3: not an expression, a tab and its value");
  fails(header + "[MIN 3 4 ]\t3\t4\n", ":2: not an expression, a tab and its value");
  fails(header + "[MIN 3 4 ]\t10\n", ":2: the value is \"10\", no digit");
  fails(header + "[MIN 3 4 ]\tx\n", ":2: the value is \"x\", no digit");
  fails(header + "1\t1\n[MIN 3 4\t3\n", ":3: ListOps expression: it ends before 1 of its operators");
}

}  // namespace
}  // namespace runnel::test
