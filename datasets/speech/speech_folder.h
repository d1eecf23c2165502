// A user's own recordings with texts: for training, validation and test each a list, in one of three forms.
//   train.tsv     a line per recording: path, tab, text
//   train.jsonl   a line per recording: {"audio": path, "text": text}
//   train/        Kaldi's form: wav.scp with lines of id and path, text with lines of id and text
// and so validation and test. Paths are relative to the list's folder. A file lexicon.txt, lines of a word and its
// phones, makes phones the labels; without it they are characters.
#pragma once
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "datasets/files.h"
#include "datasets/speech/speech.h"

namespace runnel {

struct SpeechCorpus {
  SpeechData data;  // features that are not normalised yet
  Spelling spelling;
  int64_t rate;                      // samples per second
  std::vector<std::string> skipped;  // why recordings are left out: each names its file
  std::filesystem::path cache = {};  // the file that keeps the features, if there is one
};

bool is_speech_folder(const std::filesystem::path& folder);

// Recordings that are missing, damaged, shorter than a frame or longer than `length` frames are skipped, or, if it is
// to be strict, an error. All must have the rate of the first. The features are kept in one file in the folder `cache`,
// or in none if that is empty, until a list, the size or time of a recording, or `length` changes. Throws Error that
// names file and line of what is wrong in a list. progress(done, of) is called now and then; what it throws ends the
// work.
SpeechCorpus read_speech_folder(const std::filesystem::path& folder, int64_t length, bool strict,
                                const std::filesystem::path& cache = cache_directory(),
                                const std::function<void(int64_t, int64_t)>& progress = {});

}  // namespace runnel
