// What the readers of data sets share: where a set is looked for, its files, gzip'd or not, and where a cache is kept.
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

struct gzFile_s;

namespace runnel {

enum class Split { train, test };

// Where data sets are looked for: `option` (what --data says), else $RUNNEL_DATA, else ./data.
std::filesystem::path data_directory(const std::string& option = {});

// Where to keep what can be computed again: $XDG_CACHE_HOME/runnel, else $HOME/.cache/runnel. Empty if neither is set.
std::filesystem::path cache_directory();

struct Source {
  std::string name;                  // "MNIST"
  std::string download;              // the command that fetches it, without the directory
  std::vector<std::string> folders;  // inside the data directory, in the order of looking; "" is the directory itself
  std::string otherwise = {};        // what else to do where it cannot be fetched
};

// The first file that is there under one of these names, with or without .gz. Throws Error that says where it looked
// and what to do.
std::filesystem::path find_file(const Source& source, const std::filesystem::path& directory,
                                const std::vector<std::string>& names);

// One file, read from its beginning; gzip is decompressed on the way.
class DataFile {
 public:
  // Throws Error that names the file if it cannot be opened.
  DataFile(const Source& source, const std::filesystem::path& path);

  // The next `size` bytes, fewer at the end of the file. Grows as bytes arrive: an absurd size costs nothing.
  // Throws Error that names the file if it cannot be read or its gzip data is damaged.
  std::vector<uint8_t> read(uint64_t size);

  // Throws Error: the file, what is wrong with it, and how to fetch it again.
  [[noreturn]] void damaged(const std::string& what) const;

 private:
  std::string download_;
  std::filesystem::path path_;
  std::unique_ptr<gzFile_s, int (*)(gzFile_s*)> file_;
};

}  // namespace runnel
