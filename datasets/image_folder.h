// A data set of the user's own: a folder of PNG and JPEG files.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "datasets/files.h"
#include "datasets/images.h"

namespace runnel {

struct ImageFolder {
  ImageSet train, validation, test;  // "pictures of FOLDER (train)" ...; all have the same class names

  std::vector<std::string> skipped = {};  // files that are no pictures or are damaged: "PATH INSIDE THE FOLDER: REASON"

  std::filesystem::path cache = {};  // the file that keeps all this for the next time; empty if it cannot be written
  bool from_cache = false;           // it was read from there
};

// Reads every PNG and JPEG file below the folder, known by its content and not by its name, scaled as scaled_picture
// says.
//  * Sub-folders at the first level are the classes, in the order of their names (as bytes). Pictures beside them form
//    a class called ".". Without such sub-folders there are no classes.
//  * Names that begin with a dot are passed over. Symbolic links are followed; a folder is visited once, and one that
//    contains `folder` never.
//  * A hash of the file's content decides whether a picture is for training (8 of 10), validation (1) or testing (1),
//    and where it stands in that set. So classes are mixed, copies of a file are never in two sets, and a picture stays
//    in its set when files are added, removed or renamed. (The same picture in another size or format counts as
//    another one.)
//  * The result is kept in one file in the folder `cache` and read from there until the path, size or time of a file
//    changes. A damaged cache is ignored. No cache is kept if `cache` is empty or cannot be written.
// progress(done, of) is called between files; what it throws ends the reading. Throws Error that names the folder and
// says what to do: it is missing, no folder, cannot be read, has no pictures, or so few that a set stays empty, or the
// name of a class is not UTF-8.
ImageFolder load_image_folder(const std::filesystem::path& folder, int64_t side, int64_t channels,
                              const std::filesystem::path& cache = cache_directory(),
                              const std::function<void(int64_t, int64_t)>& progress = {});

}  // namespace runnel
