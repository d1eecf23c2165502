#include "engine/file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "engine/check.h"

namespace runnel {
namespace {

namespace fs = std::filesystem;

constexpr const char* partial_ending = ".partial";
bool are_discarded = false;

std::string random_letters() {
  std::array<unsigned char, 12> bytes{};
  if (getentropy(bytes.data(), bytes.size()) != 0) bytes = {};  // O_EXCL refuses a name that is taken
  std::string letters;
  for (const unsigned char byte : bytes) letters += static_cast<char>('a' + byte % 26);
  return letters;
}

}  // namespace

Descriptor::~Descriptor() {
  if (fd >= 0) close(fd);
}

PartialFile::PartialFile(fs::path path)
    : path_(std::move(path)), temporary_(path_.string() + "." + random_letters() + partial_ending) {
  file_ = open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
  if (file_ < 0) give_up();
}

PartialFile::~PartialFile() {
  if (file_ < 0) return;
  close(file_);
  unlink(temporary_.c_str());
}

void PartialFile::give_up() const { fail("cannot write ", path_.string(), ": ", std::strerror(errno)); }

void PartialFile::write(std::span<const char> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(file_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) give_up();
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
}

void PartialFile::commit() {
  if (fsync(file_) || rename(temporary_.c_str(), path_.c_str())) give_up();
  close(std::exchange(file_, -1));
  // The new name itself is safe only once the folder is; some file systems cannot do that, and the data is there.
  const fs::path folder = path_.has_parent_path() ? path_.parent_path() : ".";
  const Descriptor directory{open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
  if (directory.fd >= 0) fsync(directory.fd);
}

void discard_files(bool discarded) { are_discarded = discarded; }

void write_atomically(const fs::path& path, const std::vector<std::span<const char>>& parts) {
  if (are_discarded) return;
  PartialFile file(path);
  for (const std::span<const char> part : parts) file.write(part);
  file.commit();
}

std::vector<fs::path> entries(const fs::path& folder) {
  // libstdc++'s directory_iterator ends the program when memory runs out.
  const std::unique_ptr<DIR, int (*)(DIR*)> listing(opendir(folder.c_str()), closedir);
  std::vector<fs::path> paths;
  while (const dirent* const entry = listing ? readdir(listing.get()) : nullptr) {
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") paths.push_back(folder / name);
  }
  return paths;
}

void remove_partial_files(const fs::path& folder) {
  std::error_code error;
  for (const fs::path& path : entries(folder))
    if (path.extension() == partial_ending && fs::symlink_status(path, error).type() == fs::file_type::regular)
      unlink(path.c_str());
}

void check_replaceable(const fs::path& path, const std::string& kind, std::string_view magic) {
  struct stat status;
  if (lstat(path.c_str(), &status) != 0) {
    check(errno == ENOENT, "cannot write ", path.string(), ": ", std::strerror(errno));
    return;
  }
  bool replaceable = S_ISREG(status.st_mode);
  if (replaceable && status.st_size > 0) {
    std::string begin(magic.size(), '\0');
    const Descriptor file{open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC)};
    replaceable = file.fd >= 0 && read(file.fd, begin.data(), begin.size()) == std::ssize(begin) && begin == magic;
  }
  check(replaceable, "cannot write ", path.string(), ": what stands there is not ", kind,
        "; choose another name, or remove it");
}

int open_regular_file(const fs::path& path) {
  const int file = open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  check(file >= 0 || errno != ENOENT, "there is no file ", path.string());
  check(file >= 0, "cannot open ", path.string(), ": ", std::strerror(errno));
  struct stat status;
  if (fstat(file, &status) == 0 && S_ISREG(status.st_mode)) return file;
  close(file);
  fail(path.string(), " is not a regular file");
}

int64_t read_some(int file, void* to, size_t bytes) {
  ssize_t got;
  do got = read(file, to, bytes);
  while (got < 0 && errno == EINTR);
  return got;
}

std::string read_file(const fs::path& path, uint64_t most) {
  const Descriptor file{open_regular_file(path)};
  struct stat status;
  const bool is_known = fstat(file.fd, &status) == 0;
  check(is_known, path.string(), " cannot be read: ", std::strerror(errno));
  check(static_cast<uint64_t>(status.st_size) <= most, path.string(), " has ", status.st_size, " bytes, more than ",
        most);
  std::string text(static_cast<size_t>(status.st_size), '\0');
  for (size_t done = 0; done < text.size();) {
    const int64_t got = read_some(file.fd, text.data() + done, text.size() - done);
    check(got >= 0, path.string(), " cannot be read: ", std::strerror(errno));
    if (got == 0) text.resize(done);  // it has become shorter
    done += static_cast<size_t>(got);
  }
  return text;
}

}  // namespace runnel
