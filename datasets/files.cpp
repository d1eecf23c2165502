#include "datasets/files.h"

#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "engine/check.h"
#include "engine/file.h"
#include "engine/text.h"

namespace runnel {

namespace fs = std::filesystem;

fs::path data_directory(const std::string& option) {
  if (!option.empty()) return option;
  const char* variable = std::getenv("RUNNEL_DATA");
  return variable && *variable ? variable : "data";
}

fs::path cache_directory() {
  const auto absolute = [](const char* variable) {  // the specification has relative paths ignored
    const char* const value = std::getenv(variable);
    return value && *value == '/' ? fs::path(value) : fs::path();
  };
  if (const fs::path cache = absolute("XDG_CACHE_HOME"); !cache.empty()) return cache / "runnel";
  const fs::path home = absolute("HOME");
  return home.empty() ? home : home / ".cache" / "runnel";
}

fs::path find_file(const Source& source, const fs::path& directory, const std::vector<std::string>& names) {
  std::string looked;
  for (const std::string& folder : source.folders) {
    const fs::path inside = folder.empty() ? directory : directory / folder;
    for (const std::string& name : names)
      for (const char* ending : {"", ".gz"}) {
        const fs::path path = inside / (name + ending);
        std::error_code ignored;
        if (fs::exists(path, ignored)) return path;
      }
    looked += (looked.empty() ? "" : " or ") + inside.string();
  }
  fail(source.name, ": no ", names.front(), " (or .gz) in ", looked, "; fetch it with: ", source.download, " ",
       directory.string(), source.otherwise);
}

// gzread also reads files that are not compressed.
DataFile::DataFile(const Source& source, const fs::path& path)
    : download_(source.download), path_(path), file_(gzdopen(open_regular_file(path), "rb"), gzclose) {
  check(file_ != nullptr, path_.string(), ": there is no memory to read it");
}

void DataFile::damaged(const std::string& what) const {
  fail(path_.string(), ": ", what,
       download_.empty() ? "; write it again" : "; remove it and fetch it again with: " + download_);
}

std::vector<uint8_t> DataFile::read(uint64_t size) {
  constexpr uint64_t chunk = 1 << 20;
  std::vector<uint8_t> bytes;
  while (bytes.size() < size) {
    const size_t had = bytes.size(), wanted = std::min<uint64_t>(chunk, size - had);
    bytes.resize(had + wanted);
    const int got = gzread(file_.get(), bytes.data() + had, static_cast<unsigned>(wanted));
    int code = Z_OK;
    const char* message = gzerror(file_.get(), &code);
    if (code == Z_ERRNO) fail(path_.string(), ": cannot be read: ", std::strerror(errno));
    if (code == Z_BUF_ERROR) damaged("truncated: its gzip data ends early");
    if (got < 0 || code != Z_OK) damaged(std::string("damaged gzip data: ") + message);
    bytes.resize(had + static_cast<size_t>(got));
    if (static_cast<size_t>(got) < wanted) break;
  }
  return bytes;
}

LineFile::LineFile(const fs::path& path)
    : name_(path.string()), file_(new int(open_regular_file(path)), [](const int* file) {
        close(*file);
        delete file;
      }) {}

LineFile::LineFile(std::string name, int descriptor)
    : name_(std::move(name)), file_(std::make_shared<const int>(descriptor)) {}

bool LineFile::next(std::string& line) {
  constexpr size_t longest = 16 << 20, block = 1 << 16;
  line.clear();
  for (;;) {
    const size_t end = block_.find('\n', used_), stop = std::min(end, block_.size());
    line.append(block_, used_, stop - used_);
    used_ = stop + (end != std::string::npos);
    if (line.size() > longest) fail(name_, ": line ", number_ + 1, " is longer than ", longest, " bytes");
    if (end != std::string::npos) break;
    block_.resize(block);
    const int64_t got = read_some(*file_, block_.data(), block_.size());
    check(got >= 0, name_, ": cannot be read after line ", number_, ": ", std::strerror(errno));
    block_.resize(static_cast<size_t>(got));
    used_ = 0;
    if (got == 0 && line.empty()) return false;
    if (got == 0) break;
  }
  constexpr std::string_view byte_order_mark = "\xef\xbb\xbf";
  if (++number_ == 1 && line.starts_with(byte_order_mark)) line.erase(0, byte_order_mark.size());
  if (line.ends_with('\r')) line.pop_back();
  return true;
}

bool LineFile::next_text(std::string& line) {
  const bool more = next(line);
  if (more) check_text(line, at());
  return more;
}

std::string LineFile::at() const { return name_ + ":" + std::to_string(number_); }

void LineFile::wrong(const std::string& what) const { fail(at(), ": ", what); }

std::vector<std::string_view> fields(std::string_view line) {
  std::vector<std::string_view> found;
  for (size_t tab = 0; (tab = line.find('\t')) != std::string_view::npos; line.remove_prefix(tab + 1))
    found.push_back(line.substr(0, tab));
  found.push_back(line);
  return found;
}

}  // namespace runnel
