// docs/speech.md is true.
#include "models/speech/transcriber.h"
#include "tests/tensor_table.h"

using namespace runnel;
using namespace runnel::test;

TEST_CASE("docs: docs/speech.md's table names every tensor of transcribers, and no others") {
  if (!has_sources()) return;
  std::set<std::string> expected;
  for (const char* model : {"transformer", "bilstm"}) {
    TranscriberConfig config{.model = model, .encoder = small_encoder};
    append_names(expected, Transcriber(config, Key{1}).parameters());
  }
  check_names_of_package("speech.md", expected);
}
