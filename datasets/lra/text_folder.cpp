#include "datasets/lra/text_folder.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <map>
#include <utility>

#include "datasets/batch.h"
#include "engine/check.h"
#include "engine/file.h"
#include "engine/text.h"

namespace runnel {
namespace {

namespace fs = std::filesystem;

constexpr const char* advice =
    "; texts are in train/CLASS/*.txt and test/CLASS/*.txt, or in CLASS/*.txt. For IMDb, fetch aclImdb_v1.tar.gz from "
    "the page \"Large Movie Review Dataset\" of Stanford's AI Lab, and unpack it there: it makes the folder aclImdb";

struct Text {
  fs::path path;
  int32_t label;
};

// The sub-folders that are classes, by name.
std::map<std::string, fs::path> classes_in(const fs::path& folder) {
  std::map<std::string, fs::path> classes;
  std::error_code error;
  for (const fs::path& path : entries(folder))
    if (const std::string name = path.filename(); fs::is_directory(path, error) && name[0] != '.' && name != "unsup") {
      check_text(name, folder.string() + ": a class");
      classes[name] = path;
    }
  check(!classes.empty(), folder.string(), ": no sub-folders", advice);
  check(classes.size() > 1, folder.string(), ": only one class, ", classes.begin()->first, advice);
  return classes;
}

std::vector<Text> texts_in(const std::map<std::string, fs::path>& classes) {
  std::vector<Text> texts;
  int32_t label = 0;
  for (const auto& [name, folder] : classes) {
    const size_t before = texts.size();
    for (fs::path& path : entries(folder))
      if (path.extension() == ".txt") texts.push_back({std::move(path), label});
    check(texts.size() > before, folder.string(), ": no files *.txt", advice);
    std::sort(texts.begin() + static_cast<int64_t>(before), texts.end(),
              [](const Text& a, const Text& b) { return a.path.native() < b.path.native(); });
    ++label;
  }
  return texts;
}

std::vector<uint8_t> read_beginning(const fs::path& path, int64_t longest) {
  constexpr size_t chunk = 1 << 16;
  const int file = open_regular_file(path);
  std::vector<uint8_t> bytes;
  int64_t got = 1;
  while (got > 0 && std::ssize(bytes) < longest) {
    const size_t had = bytes.size();
    bytes.resize(had + std::min(chunk, static_cast<size_t>(longest) - had));
    got = read_some(file, bytes.data() + had, bytes.size() - had);
    bytes.resize(had + static_cast<size_t>(std::max<int64_t>(got, 0)));
  }
  const int code = errno;
  close(file);
  check(got >= 0, path.string(), ": cannot be read: ", std::strerror(code));
  return bytes;
}

// Appends texts of these numbers.
void append(LabelledSequences& set, const std::vector<Text>& texts, std::span<const int64_t> numbers, int64_t longest) {
  std::vector<std::vector<uint8_t>> contents(numbers.size());
  std::exception_ptr error;
#pragma omp parallel for schedule(dynamic, 16)
  for (size_t i = 0; i < numbers.size(); ++i) try {
      contents[i] = read_beginning(texts[static_cast<size_t>(numbers[i])].path, longest);
    } catch (...) {
#pragma omp critical
      error = std::current_exception();
    }
  if (error) std::rethrow_exception(error);
  for (size_t i = 0; i < numbers.size(); ++i) {
    set.append(contents[i]);
    set.labels.push_back(texts[static_cast<size_t>(numbers[i])].label);
  }
}

}  // namespace

ClassificationData load_text_folder(const fs::path& folder, int64_t longest, Key key) {
  std::error_code ignored;
  check(longest >= 1, folder.string(), ": texts cut at a length of ", longest, "; at least 1 is needed");
  check(fs::is_directory(folder, ignored), folder.string(), ": no such folder", advice);
  const fs::path inside = fs::is_directory(folder / "aclImdb", ignored) ? folder / "aclImdb" : folder;
  const bool has_test = fs::is_directory(inside / "train", ignored) && fs::is_directory(inside / "test", ignored);
  const auto classes = classes_in(has_test ? inside / "train" : inside);
  const std::vector<Text> texts = texts_in(classes);

  ClassificationData data;
  const std::pair<LabelledSequences*, const char*> parts[] = {
      {&data.train, " (train)"}, {&data.validation, " (validation)"}, {&data.test, " (test)"}};
  for (const auto& [set, part] : parts) {
    set->name = "texts of " + inside.string() + part;
    for (const auto& named : classes) set->class_names.push_back(named.first);
  }
  const std::vector<int64_t> order = shuffled(std::ssize(texts), key.fold(0));
  const std::span<const int64_t> all(order);
  const size_t tenth = all.size() / 10, held_out = has_test ? tenth : 2 * tenth;
  check(tenth > 0, inside.string(), ": only ", all.size(), " texts", has_test ? " in train" : "",
        "; at least 10 are needed, of which one is for validation");
  append(data.train, texts, all.first(all.size() - held_out), longest);
  append(data.validation, texts, all.subspan(all.size() - held_out, tenth), longest);
  if (has_test) {
    const auto test_classes = classes_in(inside / "test");
    const bool same = std::equal(classes.begin(), classes.end(), test_classes.begin(), test_classes.end(),
                                 [](const auto& a, const auto& b) { return a.first == b.first; });
    check(same, inside.string(), ": train and test have different sub-folders; they must have the same classes");
    const std::vector<Text> test = texts_in(test_classes);
    append(data.test, test, shuffled(std::ssize(test), key.fold(1)), longest);
  } else {
    append(data.test, texts, all.last(tenth), longest);
  }
  return data;
}

}  // namespace runnel
