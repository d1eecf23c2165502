// Shared by the readers of data sets: the folders that are searched, files, gzip'd or not, and where a cache is kept.
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

struct gzFile_s;

namespace runnel {

enum class Split { train, test };

// The data directory: `option` (--data), else $RUNNEL_DATA, else ./data.
std::filesystem::path data_directory(const std::string& option = {});

// The folder for caches: $XDG_CACHE_HOME/runnel, else $HOME/.cache/runnel. Empty if neither variable is set.
std::filesystem::path cache_directory();

struct Source {
  std::string name;                  // "MNIST"
  std::string download;              // the command that fetches it, without the directory; empty: it is the user's own
  std::vector<std::string> folders;  // inside the data directory, in search order; "" is the directory itself
  std::string otherwise = {};        // appended to the error: an alternative to fetching it
};

// The first existing file of these names, with or without .gz. Throws Error that lists the searched folders and says
// how to fetch the data.
std::filesystem::path find_file(const Source& source, const std::filesystem::path& directory,
                                const std::vector<std::string>& names);

// One file, read from its beginning; gzip is decompressed transparently.
class DataFile {
 public:
  // Throws Error that names the file if it cannot be opened.
  DataFile(const Source& source, const std::filesystem::path& path);

  // The next `size` bytes, fewer at the end of the file. Memory grows only as bytes arrive, so an absurd size is
  // harmless. Throws Error that names the file if it cannot be read or its gzip data is damaged.
  std::vector<uint8_t> read(uint64_t size);

  // Throws Error: the file, what is wrong with it, and how to fetch it again.
  [[noreturn]] void damaged(const std::string& what) const;

 private:
  std::string download_;
  std::filesystem::path path_;
  std::unique_ptr<gzFile_s, int (*)(gzFile_s*)> file_;
};

// The lines of a text file, one after another, in bounded memory. They end in \n or \r\n; a byte order mark before the
// first one is left out.
class LineFile {
 public:
  explicit LineFile(const std::filesystem::path& path);  // throws Error if it is not there, or no regular file
  LineFile(std::string name, int descriptor);            // of one that is open, as standard input, and stays so

  // The next line, without its end; false at the end of the file. Throws Error if it cannot be read, or is longer than
  // 16 MiB.
  bool next(std::string& line);
  bool next_text(std::string& line);  // and throws Error if the line is not UTF-8

  std::string at() const;  // the file and the number of the last line
  // Throws Error: those, and what is wrong with the line.
  [[noreturn]] void wrong(const std::string& what) const;

 private:
  std::string name_;
  std::shared_ptr<const int> file_;
  std::string block_;  // bytes read from the file, and where the unused ones begin
  size_t used_ = 0;
  int64_t number_ = 0;
};

// The fields of a line, which tabs separate.
std::vector<std::string_view> fields(std::string_view line);

}  // namespace runnel
