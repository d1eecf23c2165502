// runnel lra listops: expressions of nested lists, whose value is a digit (Long Range Arena's ListOps).
#include "datasets/lra/listops.h"

#include "apps/lra/classification.h"
#include "datasets/files.h"

namespace runnel {
namespace {

std::string expression(std::span<const uint8_t> symbols) {
  std::string text;
  for (const uint8_t symbol : symbols) {
    if (!text.empty()) text += ' ';
    text += listops_symbols[symbol];
  }
  return text;
}

}  // namespace

const ClassificationDataset tasks::listops{
    .name = "listops",
    .help = "values of nested list operations (Long Range Arena)",
    .data_help = "folder with basic_train.tsv, basic_val.tsv and basic_test.tsv; default: drawn once and cached",
    .vocabulary = 1 + std::ssize(listops_symbols),
    .is_generated = true,
    .load =
        [](const ClassificationSettings& settings, const WorkDone& report) {
          return settings.data.empty() ? drawn_listops({}, cache_directory(), report).sets
                                       : read_listops(settings.data);
        },
    .parse = [](const std::string& line) { return std::vector<std::vector<uint8_t>>{parse_listops(line)}; },
    .text = expression,
    .probes =
        [](const ClassificationSettings&, const ClassificationData& data) {
          const Shortcuts found = shortcuts(data.train, data.test);
          return std::vector<Probe>{{"always the most frequent digit", 100 * found.same_answer},
                                    {"the first operator only", 100 * found.first_byte}};
        }};

}  // namespace runnel
