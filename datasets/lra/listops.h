// ListOps (Nangia and Bowman, "ListOps: a diagnostic dataset for latent tree learning", 2018) as Long Range Arena draws
// it: an expression such as `[MAX 2 9 [MIN 4 7 ] 0 ]`, whose value, one digit, is its class. MIN and MAX are what they
// say, MED is the median, cut to an integer, and SM is the sum modulo 10.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "datasets/files.h"
#include "datasets/lra/labelled.h"

namespace runnel {

// Bytes are numbers of symbols; 0 .. 9 follow one another.
inline constexpr std::string_view listops_symbols[] = {"[MIN", "[MAX", "[MED", "[SM", "]", "0", "1", "2",
                                                       "3",    "4",    "5",    "6",   "7", "8", "9"};

// The symbols of an expression whose words are separated by blanks. Round brackets, which Long Range Arena's files have
// around each pair, are dropped. Throws Error that says which word is wrong: an unknown one, a bracket that nothing
// opened or closed, an operator without arguments, or words after the end.
std::vector<uint8_t> parse_listops(std::string_view text);

// The value of an expression, 0 .. 9. Throws as parse_listops.
int32_t evaluate_listops(std::span<const uint8_t> symbols);

struct ListOpsOptions {
  int64_t train = 96000, validation = 2000, test = 2000;  // how many
  int64_t longer_than = 500, shorter_than = 2000;         // symbols
  int64_t depth = 10;  // of trees: an argument is an operator with probability 1/4, at this depth a digit
  uint64_t seed = 1;
};

struct ListOpsData {
  ClassificationData sets;           // "ListOps, drawn with seed 1 (train)" ...
  std::filesystem::path cache = {};  // the file that keeps all this for the next time; empty if it cannot be written
  bool from_cache = false;           // it was read from there
};

// Draws different expressions of these lengths, the same on every machine and with any number of threads. An operator
// has from 2 to 10 arguments. They are kept in one file in the folder `cache`; a damaged one is written again. No cache
// is kept if `cache` is empty or cannot be written. progress(done, of) is called now and then; what it throws ends the
// drawing. Throws Error if there are too few expressions of such lengths.
ListOpsData drawn_listops(const ListOpsOptions& options, const std::filesystem::path& cache = cache_directory(),
                          const std::function<void(int64_t, int64_t)>& progress = {});

// Reads basic_train.tsv, basic_val.tsv and basic_test.tsv in Long Range Arena's format: a line "Source", tab, "Target",
// then lines of an expression, a tab and a digit. That the digit is the expression's value is not checked. Throws Error
// that names the file and, if there is one, the line.
ClassificationData read_listops(const std::filesystem::path& folder);

}  // namespace runnel
