// Files that are written whole or not at all, that never replace what they should not, and that are opened
// non-blocking, so that a FIFO cannot hang a program.
#pragma once
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace runnel {

// A new file beside `path`, under a random name, that takes the place of `path` when it is whole: at any moment `path`
// is the old file or the new one. All of it throws Error that names `path` and the reason (no permission, disk full).
class PartialFile {
 public:
  explicit PartialFile(std::filesystem::path path);
  ~PartialFile();  // removes it, unless it was committed
  PartialFile(const PartialFile&) = delete;
  PartialFile& operator=(const PartialFile&) = delete;

  const std::filesystem::path& name() const { return temporary_; }
  int descriptor() const { return file_; }
  void write(std::span<const char> bytes);
  void commit();  // syncs it, renames it, and syncs the folder

 private:
  [[noreturn]] void give_up() const;

  std::filesystem::path path_, temporary_;
  int file_ = -1;
};

// Whether write_atomically() writes nothing from now on: for a process beside another one that writes the same files.
void discard_files(bool discarded);

// Writes the parts one after another into a PartialFile and commits it.
void write_atomically(const std::filesystem::path& path, const std::vector<std::span<const char>>& parts);

// A file descriptor, closed on every way out.
struct Descriptor {
  int fd;
  ~Descriptor();
};

// The paths of a folder's entries, in no order; none if it cannot be listed.
std::vector<std::filesystem::path> entries(const std::filesystem::path& folder);

// Removes the half-written files that killed processes left in this folder.
void remove_partial_files(const std::filesystem::path& folder);

// Throws Error that names the path if there is something at `path` that is not a regular file beginning with `magic`
// (or an empty one): a result may replace an older result, but nothing else. `kind`: "a PNG file".
void check_replaceable(const std::filesystem::path& path, const std::string& kind, std::string_view magic);

// A descriptor for reading. Throws Error that names the path if it is not there, or no regular file: a pipe would
// block.
int open_regular_file(const std::filesystem::path& path);

// As read(2), and again if a signal has interrupted it.
int64_t read_some(int file, void* to, size_t bytes);

// All of a regular file. Throws Error that names the path, also if it is larger than `most` bytes.
std::string read_file(const std::filesystem::path& path, uint64_t most);

}  // namespace runnel
