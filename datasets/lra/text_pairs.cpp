#include "datasets/lra/text_pairs.h"

#include <string>
#include <utility>

#include "datasets/files.h"
#include "engine/check.h"

namespace runnel {
namespace {

namespace fs = std::filesystem;

fs::path found_in(const fs::path& folder, const std::vector<std::string>& names) {
  std::error_code ignored;
  for (const std::string& name : names)
    if (fs::exists(folder / name, ignored)) return folder / name;
  std::string list;
  for (const std::string& name : names) list += (list.empty() ? "" : " or ") + name;
  fail(folder.string(), ": no ", list,
       "; pairs of texts are three such files, for training, validation and testing, as ",
       "new_aan_pairs.*.tsv in tsv_data of the archive lra_release.gz of Long Range Arena");
}

void append(LabelledSequences& set, const fs::path& path, int64_t longest) {
  LineFile file(path);
  for (std::string line; file.next(line);) {
    const std::vector<std::string_view> parts = fields(line);
    if (parts.size() != 3 && parts.size() != 5)
      file.wrong(std::to_string(parts.size()) + (parts.size() == 1 ? " field" : " fields") +
                 "; a label, two names and two texts are 5, a label and two texts are 3, with a tab between them");
    const std::string_view label = parts[0];
    const bool yes = label == "1" || label == "1.0";
    if (!yes && label != "0" && label != "0.0")
      file.wrong("the label is \"" + std::string(label.substr(0, 20)) + "\"; it must be 0 or 1");
    for (const std::string_view text : {parts[parts.size() - 2], parts.back()}) {
      const std::string_view kept = text.substr(0, static_cast<size_t>(longest));
      set.append({reinterpret_cast<const uint8_t*>(kept.data()), kept.size()});
    }
    set.labels.push_back(yes);
  }
  check(set.count() > 0, path.string(), ": it is empty");
}

}  // namespace

ClassificationData load_text_pairs(const fs::path& folder, int64_t longest) {
  check(longest >= 1, folder.string(), ": texts cut at a length of ", longest, "; at least 1 is needed");
  ClassificationData data;
  const struct {
    LabelledSequences& set;
    const char* part;
    std::vector<std::string> names;
  } files[] = {{data.train, " (train)", {"new_aan_pairs.train.tsv", "train.tsv"}},
               {data.validation, " (validation)", {"new_aan_pairs.eval.tsv", "eval.tsv", "validation.tsv"}},
               {data.test, " (test)", {"new_aan_pairs.test.tsv", "test.tsv"}}};
  for (const auto& [set, part, names] : files) {
    set.name = "pairs of " + folder.string() + part;
    set.class_names = {"unrelated", "related"};
    set.per_sample = 2;
    append(set, found_in(folder, names), longest);
  }
  return data;
}

}  // namespace runnel
