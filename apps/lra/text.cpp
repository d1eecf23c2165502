// runnel lra text: classes of texts, byte by byte: reviews of films (Long Range Arena's Text), or a user's own folders.
#include "engine/text.h"
#include "apps/lra/classification.h"
#include "datasets/files.h"
#include "datasets/lra/text_folder.h"

namespace runnel {
const ClassificationDataset tasks::text{
    .name = "text",
    .help = "texts classified byte by byte: IMDb's reviews (Long Range Arena), or a folder of your own",
    .data_help =
        "folder with aclImdb, or with a sub-folder of .txt files for each class (default: $RUNNEL_DATA or ./data)",
    .vocabulary = 257,
    .load = [](const ClassificationSettings& settings,
               const WorkDone&) { return load_text_folder(settings.data, settings.length, Key{2020}); },
    .parse =
        [](const std::string& line) {
          return std::vector<std::vector<uint8_t>>{std::vector<uint8_t>(line.begin(), line.end())};
        },
    .whole_files = true,
    .text = [](std::span<const uint8_t> bytes) { return excerpt(std::string(bytes.begin(), bytes.end())); }};

}  // namespace runnel
