// A folder of recordings: the bytes up to the first zero are its list, TSV or JSON lines, or its lexicon, as the first
// byte says; what follows that zero is the recording a.wav.
#include <algorithm>
#include <string_view>

#include "datasets/speech/speech_folder.h"
#include "tests/fuzz/file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace runnel;
  if (size == 0) return 0;
  const uint8_t* const end = std::find(data + 1, data + size, 0);
  const auto list_size = static_cast<size_t>(end - data - 1);
  const uint8_t* const audio = std::min(end + 1, data + size);
  const auto folder = fuzz::write("a.wav", audio, static_cast<size_t>(data + size - audio)).parent_path();
  constexpr std::string_view good = "a.wav\ta\n";
  for (const char* name : {"train.tsv", "validation.tsv", "test.tsv"})
    fuzz::write(name, reinterpret_cast<const uint8_t*>(good.data()), good.size());
  for (const char* name : {"train.jsonl", "lexicon.txt"}) std::filesystem::remove(folder / name);
  if (data[0] % 3 == 1) std::filesystem::remove(folder / "train.tsv");
  fuzz::write(data[0] % 3 == 0 ? "train.tsv" : data[0] % 3 == 1 ? "train.jsonl" : "lexicon.txt", data + 1, list_size);
  return fuzz::ends_well([&] { read_speech_folder(folder, size % 2, ""); });
}
