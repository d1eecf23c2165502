// Command lines: words, each ended by a zero byte. They are understood, not obeyed.
#include <filesystem>
#include <vector>

#include "apps/commands.h"
#include "tests/fuzz/file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace runnel;
  static const std::filesystem::path folder = fuzz::write("config.json", data, 0).parent_path();
  std::filesystem::current_path(folder);  // where --config and --resume find nothing but that
  std::string text(reinterpret_cast<const char*>(data), size);
  text += '\0';
  std::vector<char*> words = {const_cast<char*>("runnel")};
  for (size_t at = 0; at < text.size(); at = text.find('\0', at) + 1) words.push_back(text.data() + at);
  static const CommandLine line = [] {  // takes longer than all the rest
    CommandLine all;
    add_commands(all.root());
    return all;
  }();
  return fuzz::ends_well([&] {
    const int count = static_cast<int>(words.size());
    words.push_back(nullptr);
    line.parse(count, words.data());
  });
}
