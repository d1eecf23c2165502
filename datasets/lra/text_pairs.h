// Pairs of texts, which belong together or do not: Long Range Arena's task Retrieval, whose texts are papers of the ACL
// Anthology Network, of which one cites the other or does not.
#pragma once
#include <cstdint>
#include <filesystem>

#include "datasets/lra/labelled.h"

namespace runnel {

// Reads new_aan_pairs.train.tsv, new_aan_pairs.eval.tsv and new_aan_pairs.test.tsv, or train.tsv, eval.tsv or
// validation.tsv, and test.tsv. A line is a label (0 or 1, also 0.0 or 1.0), two names and two texts, or a label and
// two texts, with tabs between them; quotes have no meaning and there is no header. The first `longest` bytes of each
// text are kept. Throws Error that names the file, the line, and what is wrong.
ClassificationData load_text_pairs(const std::filesystem::path& folder, int64_t longest);

}  // namespace runnel
