// Long Range Arena's tables, of ListOps and of pairs of texts, by the reader of lines; and a folder of texts. The first
// byte says which.
#include "datasets/lra/listops.h"
#include "datasets/lra/text_folder.h"
#include "datasets/lra/text_pairs.h"
#include "tests/fuzz/file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace runnel;
  if (size == 0) return 0;
  const auto write = [&](const std::string& name) { return fuzz::write(name, data + 1, size - 1).parent_path(); };
  switch (data[0] % 3) {
    case 0:
      for (const char* name : {"basic_train.tsv", "basic_val.tsv", "basic_test.tsv"}) write(name);
      return fuzz::ends_well([&] { read_listops(write("basic_test.tsv")); });
    case 1:
      for (const char* name : {"train.tsv", "eval.tsv"}) write(name);
      return fuzz::ends_well([&] { load_text_pairs(write("test.tsv"), 100); });
    default:
      std::filesystem::create_directories(write("x") / "good");
      std::filesystem::create_directories(write("x") / "bad");
      for (const char* name : {"good/1.txt", "good/2.txt", "good/3.txt", "bad/1.txt", "bad/2.txt", "bad/3.txt"})
        write(name);
      return fuzz::ends_well([&] { load_text_folder(write("x"), 100, Key{1}); });
  }
}
