#include "datasets/image_folder.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <set>
#include <sstream>
#include <tuple>
#include <utility>

#include "datasets/cache_file.h"
#include "datasets/image_file.h"
#include "engine/check.h"
#include "engine/random.h"
#include "engine/text.h"

namespace runnel {
namespace {

namespace fs = std::filesystem;

constexpr size_t max_named = 5;  // of the files that are skipped, in an error

// 64-bit FNV-1a. As a Key, it gives numbers of which each bit depends on the whole content.
struct Hash {
  uint64_t value = 0xcbf29ce484222325;
  void add(const void* data, size_t size) {
    const uint8_t* const bytes = static_cast<const uint8_t*>(data);
    for (size_t i = 0; i < size; ++i) value = (value ^ bytes[i]) * 0x100000001b3;
  }
  void add(const std::string& text) { add(text.c_str(), text.size() + 1); }  // with its end
  void add(int64_t number) { add(&number, sizeof number); }
};

struct File {
  std::string path;            // inside the folder
  std::string problem = {};    // why it is skipped
  int64_t size = 0, time = 0;  // bytes; nanoseconds
  Key content = {};            // hash
  std::vector<uint8_t> pixels = {};
};

int64_t modified(const struct stat& status) {
#if defined(__APPLE__)
  const timespec& time = status.st_mtimespec;
#else
  const timespec& time = status.st_mtim;
#endif
  return time.tv_sec * 1'000'000'000 + time.tv_nsec;
}

std::string class_of(const File& file) {
  const size_t slash = file.path.find('/');
  return slash == std::string::npos ? "." : file.path.substr(0, slash);
}

// All files below a folder, in the order of their names.
class Walk {
 public:
  explicit Walk(const fs::path& canonical) : root_(canonical) {
    fs::path folder = root_ / ".";  // and those that contain it
    do {
      folder = folder.parent_path();
      struct stat status;
      if (stat(folder.c_str(), &status) == 0) visited_.emplace(status.st_dev, status.st_ino);
    } while (folder.has_relative_path());
    visit("");
  }
  std::vector<File> files;

 private:
  void visit(const std::string& inside) {
    std::error_code error;
    std::vector<std::string> names;
    for (fs::directory_iterator entry(root_ / inside, error), end; !error && entry != end; entry.increment(error))
      if (const std::string name = entry->path().filename(); name[0] != '.') names.push_back(name);
    if (error) {
      check(!inside.empty(), root_.string(), ": cannot be read: ", error.message());
      files.push_back({inside, "a folder that cannot be read: " + error.message()});
      return;
    }
    std::sort(names.begin(), names.end());
    for (const std::string& name : names) {
      const std::string path = inside.empty() ? name : inside + "/" + name;
      struct stat status;
      if (stat((root_ / path).c_str(), &status) != 0)
        files.push_back({path, "cannot be read: " + std::error_code(errno, std::generic_category()).message()});
      else if (S_ISDIR(status.st_mode) && visited_.emplace(status.st_dev, status.st_ino).second)
        visit(path);
      else if (S_ISREG(status.st_mode))
        files.push_back({path, "", status.st_size, modified(status)});
      else if (!S_ISDIR(status.st_mode))
        files.push_back({path, "not a regular file"});
    }
  }

  fs::path root_;
  std::set<std::pair<dev_t, ino_t>> visited_;
};

void transfer(Archive& archive, ImageFolder& folder) {
  archive.strings(folder.train.class_names);
  for (ImageSet* const set : {&folder.train, &folder.validation, &folder.test}) {
    archive.number(set->count);
    archive.array(set->labels);
    archive.array(set->pixels);
    set->class_names = folder.train.class_names;
  }
  archive.strings(folder.skipped);
}

// Of a cache's contents.
void check_possible(const ImageFolder& folder) {
  const int64_t classes = std::max<int64_t>(1, std::ssize(folder.train.class_names));
  for (const ImageSet* const set : {&folder.train, &folder.validation, &folder.test}) {
    check(set->count > 0 && set->count == std::ssize(set->labels) && std::ssize(set->pixels) % set->count == 0 &&
              std::ssize(set->pixels) / set->count == set->size(),
          set->count, " pictures of ", set->labels.size(), " labels and ", set->pixels.size(), " bytes");
    for (const int32_t label : set->labels)
      check(label >= 0 && label < classes, "a label ", label, " of ", classes, " classes");
  }
}

void read_pictures(const fs::path& folder, std::vector<File>& files, int64_t side, int64_t channels,
                   const std::function<void(int64_t, int64_t)>& progress) {
  constexpr int64_t at_once = 256;
  const int64_t count = std::ssize(files);
  for (int64_t first = 0; first < count; first += at_once) {
    const int64_t last = std::min(first + at_once, count);
#pragma omp parallel for schedule(dynamic)
    for (int64_t i = first; i < last; ++i) {
      File& file = files[static_cast<size_t>(i)];
      if (file.problem.empty()) try {
          const std::vector<uint8_t> bytes = read_picture_file(folder / file.path);
          file.pixels = scaled_picture(bytes, side, channels);
          Hash hash;
          hash.add(bytes.data(), bytes.size());
          file.content = {hash.value};
        } catch (const std::exception& error) {
          file.problem = error.what();
        }
    }
    if (progress) progress(last, count);
  }
}

std::string counted(int64_t count, const char* noun) {
  return std::to_string(count) + " " + noun + (count == 1 ? "" : "s");
}

}  // namespace

ImageFolder load_image_folder(const fs::path& folder, int64_t side, int64_t channels, const fs::path& cache,
                              const std::function<void(int64_t, int64_t)>& progress) {
  std::error_code ignored;
  const std::string name = folder.string();
  check(side >= 1 && side <= 4096 && (channels == 1 || channels == 3), name, ": pictures of ", side, " x ", side, " x ",
        channels, "; channels are 1 or 3");
  check(fs::exists(folder, ignored), name, ": no such folder; give one with PNG or JPEG files");
  check(fs::is_directory(folder, ignored), name, ": not a folder; give one with PNG or JPEG files");

  const fs::path canonical = fs::canonical(folder);
  std::vector<File> files = Walk(canonical).files;
  for (const File& file : files)
    if (file.problem.empty()) check_text(class_of(file), name + ": a class");
  Hash key, place;
  for (Hash* const hash : {&key, &place}) {
    hash->add(canonical.string());
    hash->add(side);
    hash->add(channels);
  }
  for (const File& file : files) {
    key.add(file.path);
    key.add(file.problem);
    key.add(file.size);
    key.add(file.time);
  }

  const auto named = [&](const char* part) {
    return ImageSet{"pictures of " + name + " (" + part + ")", 0, side, side, channels, {}, {}};
  };
  ImageFolder result{named("train"), named("validation"), named("test")};
  ImageSet* const parts[] = {&result.train, &result.validation, &result.test};
  std::ostringstream file_name, title;
  file_name << "images-" << std::hex << place.value << ".cache";
  title << "3 images " << std::hex << key.value;
  const CacheFile stored(cache / file_name.str(), title.str());
  if (!cache.empty()) {
    ImageFolder read = result;
    const bool done = stored.read([&](Archive& archive) {
      transfer(archive, read);
      check_possible(read);
    });
    if (done) {
      read.cache = stored.path();
      read.from_cache = true;
      return read;
    }
  }

  read_pictures(folder, files, side, channels, progress);
  const auto good = std::stable_partition(files.begin(), files.end(), [](const File& f) { return f.problem.empty(); });
  for (auto file = good; file != files.end(); ++file) result.skipped.push_back(file->path + ": " + file->problem);
  if (good == files.begin()) {
    std::string found;
    for (const std::string& skipped : std::span(result.skipped).first(std::min(result.skipped.size(), max_named)))
      found += (found.empty() ? "; skipped " : ", ") + skipped;
    if (result.skipped.size() > max_named) found += ", ...";
    fail(name, ": no PNG or JPEG picture among ", counted(std::ssize(result.skipped), "file"), found);
  }
  files.erase(good, files.end());

  std::map<std::string, int32_t> classes;
  for (const File& file : files) classes[class_of(file)] = 0;
  if (classes.size() > 1 || !classes.contains("."))
    for (auto& [text, label] : classes) {
      label = static_cast<int32_t>(result.train.class_names.size());
      result.train.class_names.push_back(text);
    }
  const auto order = [](const File& f) { return std::tuple(f.content.fold(0).value, f.content.value, f.path); };
  std::sort(files.begin(), files.end(), [&](const File& a, const File& b) { return order(a) < order(b); });
  const auto part_of = [&](const File& file) -> ImageSet& {
    const uint32_t tenth = file.content.below(0, 10);
    return *parts[tenth < 8 ? 0 : tenth - 7];
  };
  for (const File& file : files) ++part_of(file).count;
  for (ImageSet* const part : parts) {
    part->labels.reserve(static_cast<size_t>(part->count));
    part->pixels.reserve(static_cast<size_t>(part->count * part->size()));
    part->class_names = result.train.class_names;
  }
  for (File& file : files) {
    ImageSet& part = part_of(file);
    part.labels.push_back(classes.at(class_of(file)));
    part.pixels.insert(part.pixels.end(), file.pixels.begin(), file.pixels.end());
    file.pixels = {};  // so that they are not in memory twice
  }
  check(result.train.count && result.validation.count && result.test.count, name, ": only ",
        counted(std::ssize(files), "picture"), ", of which ", result.train.count, " fell to training, ",
        result.validation.count, " to validation and ", result.test.count,
        " to testing; each needs one: add pictures (with 100 they suffice)");

  Archive archive;
  if (!cache.empty()) transfer(archive, result);
  if (!cache.empty() && stored.write({archive.bytes()})) result.cache = stored.path();
  return result;
}

}  // namespace runnel
