// Texts with a class each, as sequences of bytes: one file for a text, one folder for a class. Long Range Arena's task
// Text is IMDb in this form.
#pragma once
#include <cstdint>
#include <filesystem>

#include "datasets/lra/labelled.h"
#include "engine/random.h"

namespace runnel {

// Reads the files *.txt of each class, the first `longest` bytes of each, from `folder`/aclImdb if there is such a
// folder, else from `folder`:
//  * train/CLASS/*.txt and test/CLASS/*.txt, with the same classes in both; a tenth of train is for validation. A class
//    `unsup` (IMDb's texts without a label) is passed over.
//  * or CLASS/*.txt: a tenth each is for validation and testing.
// Classes are in the order of their names (as bytes). The key alone decides which texts are in which set, and their
// order there. Throws Error that names the folder or file and says what to do: it is missing or cannot be read, fewer
// than two classes, a class without texts, other classes in test than in train, too few texts.
ClassificationData load_text_folder(const std::filesystem::path& folder, int64_t longest, Key key);

}  // namespace runnel
