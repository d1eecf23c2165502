#include "datasets/cache_file.h"

#include <zlib.h>

#include <cstdio>
#include <cstring>

#include "engine/check.h"
#include "engine/file.h"

namespace runnel {
namespace {

uint32_t add_to(uint32_t crc, std::span<const char> bytes) {
  return static_cast<uint32_t>(crc32_z(crc, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

}  // namespace

bool CacheFile::read(const std::function<void(Archive&)>& take, uint64_t most) const {
  if (std::error_code ignored; !std::filesystem::exists(path_, ignored)) return false;
  try {
    uint32_t sum;
    const size_t around = title_.size() + sizeof sum;
    std::string file = read_file(path_, most > INT64_MAX - around ? INT64_MAX : most + around);
    if (file.size() >= title_.size() && !file.starts_with(title_)) return false;
    check(file.size() >= around, "it ends too early");
    const size_t end = file.size() - sizeof sum;
    std::memcpy(&sum, file.data() + end, sizeof sum);
    check(sum == add_to(0, {file.data(), end}), "its checksum is wrong");
    file.resize(end);
    file.erase(0, title_.size());
    Archive results(std::move(file));
    take(results);
    check(results.left() == 0, "it has ", results.left(), " bytes too many");
    return true;
  } catch (const Error& error) {
    std::fprintf(stderr, "runnel: the cache %s cannot be used and is made again: %s\n", path_.c_str(), error.what());
    return false;
  }
}

bool CacheFile::write(const std::vector<std::span<const char>>& results) const {
  std::vector<std::span<const char>> parts{title_};
  parts.insert(parts.end(), results.begin(), results.end());
  uint32_t sum = 0;
  for (const std::span<const char> part : parts) sum = add_to(sum, part);
  parts.push_back({reinterpret_cast<const char*>(&sum), sizeof sum});
  std::error_code error;
  std::filesystem::create_directories(path_.parent_path(), error);
  try {
    write_atomically(path_, parts);
  } catch (const Error&) {
    return false;
  }
  return true;
}

}  // namespace runnel
