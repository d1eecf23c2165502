// runnel lra retrieval: whether two texts belong together, both read byte by byte by one encoder (Long Range Arena's
// Retrieval).
#include "apps/lra/classification.h"
#include "datasets/files.h"
#include "datasets/lra/text_pairs.h"
#include "engine/check.h"
#include "engine/text.h"

namespace runnel {

const ClassificationDataset tasks::retrieval{
    .name = "retrieval",
    .help = "whether two texts belong together: AAN's papers (Long Range Arena), or pairs of your own",
    .data_help = "folder with the .tsv files of pairs (default: $RUNNEL_DATA or ./data)",
    .vocabulary = 257,
    .pairs = true,
    .load = [](const ClassificationSettings& settings,
               const WorkDone&) { return load_text_pairs(settings.data, settings.length); },
    .parse =
        [](const std::string& line) {
          const size_t tab = line.find('\t');
          check(tab != std::string::npos && line.find('\t', tab + 1) == std::string::npos,
                "a pair is two texts with a tab between them");
          return std::vector<std::vector<uint8_t>>{
              std::vector<uint8_t>(line.begin(), line.begin() + static_cast<std::ptrdiff_t>(tab)),
              std::vector<uint8_t>(line.begin() + static_cast<std::ptrdiff_t>(tab) + 1, line.end())};
        },
    .text = [](std::span<const uint8_t> bytes) { return excerpt(std::string(bytes.begin(), bytes.end())); }};

}  // namespace runnel
