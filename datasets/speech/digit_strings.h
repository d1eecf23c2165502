// Strings of spoken digits, made of the recordings of the Free Spoken Digit Dataset (FSDD): a stand-in for a corpus of
// sentences. Each string is one speaker's digits with gaps of noise between them, as loud as that speaker's silence.
#pragma once
#include <filesystem>
#include <functional>
#include <string>

#include "datasets/files.h"
#include "datasets/speech/fbank.h"
#include "datasets/speech/speech.h"

namespace runnel {

// Of zero, one, ..., nine: CMUdict's first pronunciations.
extern const std::vector<std::string> digit_lexicon;

struct DigitStringOptions {
  int64_t train = 5000, validation = 300, test = 600;  // strings
  int64_t shortest = 3, longest = 7;                   // digits of a string
  int64_t length = 3000;                               // frames of the longest recording
  uint64_t seed = 1;
  // A speaker whose strings, of all that speaker's recordings, are the test set, while the others' are for training and
  // validation. Empty: all speakers are in each set. Without one, test strings are made of the recordings with index 0
  // to 4, as the data set's authors ask for, validation strings of those with 5 to 9, the others of the rest.
  std::string held_out = {};
};

// Features that are not normalised yet, at 8 kHz; ids name the recordings. They are kept in one file in the folder
// `cache`, or in none if that is empty. Throws Error if recordings are missing or damaged. progress(done, of) is called
// now and then; what it throws ends the work.
SpeechData digit_strings(const std::filesystem::path& data, const Spelling& spelling, const DigitStringOptions& options,
                         const std::filesystem::path& cache = cache_directory(),
                         const std::function<void(int64_t, int64_t)>& progress = {});

}  // namespace runnel
