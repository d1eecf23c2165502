// Checkpoint files. Reading trusts nothing: the file may be anything, so every number in the header is checked against
// the file's size before it is used, and the tensors must tile the data exactly, as the format demands.
#include "models/safetensors.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/check.h"

namespace runnel {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian");

constexpr uint64_t longest_header = 100'000'000;  // bytes, the format's own limit

// Fixed layout: names sorted as JSON sorts them, offsets in the order of the tensors.
std::string header_of(const SafeTensors& content) {
  nlohmann::json header = nlohmann::json::object();
  if (!content.metadata.empty()) header["__metadata__"] = content.metadata;
  int64_t offset = 0;
  for (const auto& [name, tensor] : content.tensors) {
    check(!header.contains(name), "save: two tensors are called \"", name, "\"");
    std::vector<int64_t> shape;
    for (int axis = 0; axis < tensor.shape().rank(); ++axis) shape.push_back(tensor.shape()[axis]);
    const int64_t end = offset + tensor.size() * static_cast<int64_t>(sizeof(float));
    header[name] = {{"dtype", "F32"}, {"shape", shape}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // so that the numbers are aligned in a mapped file
  return text;
}

// A file descriptor, closed on every way out.
struct Descriptor {
  int fd;
  ~Descriptor() { close(); }
  int close() { return fd < 0 ? 0 : ::close(std::exchange(fd, -1)); }
};

// What a header says of one tensor.
struct Entry {
  std::string name;
  Shape shape;
  int64_t begin, end;
};

Entry read_entry(const std::filesystem::path& path, const std::string& name, const nlohmann::json& json) {
  const auto require = [&](bool holds, const auto&... what) {
    check(holds, path.string(), " is damaged: tensor \"", name, "\" ", what...);
  };
  const auto whole = [](const nlohmann::json& n) {  // JSON integers up to 2^64 - 1 come as unsigned
    return n.is_number_unsigned() && n.get<uint64_t>() <= INT64_MAX;
  };
  require(json.is_object() && json.contains("dtype") && json.contains("shape") && json.contains("data_offsets"),
          "has no dtype, shape and data_offsets");
  const nlohmann::json &type = json["dtype"], &shape = json["shape"], &offsets = json["data_offsets"];
  require(type == "F32", "holds ", type.dump(), ", not \"F32\"");
  require(shape.is_array() && shape.size() <= Shape::max_rank && std::all_of(shape.begin(), shape.end(), whole),
          "has the impossible shape ", shape.dump());
  require(
      offsets.is_array() && offsets.size() == 2 && whole(offsets[0]) && whole(offsets[1]) && offsets[0] <= offsets[1],
      "has the impossible offsets ", offsets.dump());
  Entry entry{name, {}, offsets[0].get<int64_t>(), offsets[1].get<int64_t>()};
  try {
    entry.shape = Shape(shape.get<std::vector<int64_t>>());
  } catch (const Error&) {
    require(false, "has the impossible shape ", shape.dump());
  }
  // Shape keeps the number of elements below 2^60, so this does not overflow.
  require(entry.shape.size() * 4 == entry.end - entry.begin, "has the shape ", entry.shape, " but ",
          entry.end - entry.begin, " bytes");
  return entry;
}

}  // namespace

void write_atomically(const std::filesystem::path& path, const std::vector<std::span<const char>>& parts) {
  const std::filesystem::path temporary = path.string() + ".partial";
  const auto give_up = [&] {
    const int reason = errno;
    unlink(temporary.c_str());
    fail("cannot write ", path.string(), ": ", std::strerror(reason));
  };
  Descriptor file{open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)};
  if (file.fd < 0) give_up();
  for (std::span<const char> part : parts)
    while (!part.empty()) {
      const ssize_t written = write(file.fd, part.data(), part.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) give_up();
      part = part.subspan(static_cast<size_t>(written));
    }
  if (fsync(file.fd) || file.close() || rename(temporary.c_str(), path.c_str())) give_up();

  // The new name itself is safe only once the folder is; some file systems cannot do that, and the data is there.
  const std::filesystem::path folder = path.has_parent_path() ? path.parent_path() : ".";
  const Descriptor directory{open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
  if (directory.fd >= 0) fsync(directory.fd);
}

void save_safetensors(const std::filesystem::path& path, const SafeTensors& content) {
  const std::string header = header_of(content);
  const uint64_t length = header.size();
  std::vector<std::span<const char>> parts{{reinterpret_cast<const char*>(&length), sizeof length}, header};
  std::vector<std::vector<float>> on_host;  // of tensors that live elsewhere
  for (const auto& [name, tensor] : content.tensors) {
    const float* data = tensor.data();
    if (tensor.device() != Device::cpu) data = on_host.emplace_back(tensor.to_vector()).data();
    parts.emplace_back(reinterpret_cast<const char*>(data), static_cast<size_t>(tensor.size()) * sizeof(float));
  }
  write_atomically(path, parts);
}

SafeTensors load_safetensors(const std::filesystem::path& path) {
  const auto require = [&](bool holds, const auto&... what) { check(holds, path.string(), " is damaged: ", what...); };
  std::error_code error;
  check(std::filesystem::exists(path, error), "there is no file ", path.string());
  check(std::filesystem::is_regular_file(path, error), path.string(), " is not a file");
  std::ifstream file(path, std::ios::binary);
  check(file.is_open(), "cannot open ", path.string(), ": ", std::strerror(errno));
  const uint64_t size = std::filesystem::file_size(path);

  uint64_t length = 0;
  require(size >= sizeof length && file.read(reinterpret_cast<char*>(&length), sizeof length), "it has ", size,
          " bytes, too few for a header");
  require(length <= longest_header, "its header claims ", length, " bytes, more than the format allows");
  require(length <= size - sizeof length, "its header claims ", length, " bytes in a file of ", size);
  std::string text(length, ' ');
  require(bool(file.read(text.data(), static_cast<std::streamsize>(length))), "its header cannot be read");
  const nlohmann::json header = nlohmann::json::parse(text, nullptr, false);
  require(header.is_object(), "its header is not a JSON object");
  const int64_t data_size = static_cast<int64_t>(size - sizeof length - length);

  SafeTensors content;
  std::vector<Entry> entries;
  for (const auto& [name, value] : header.items()) {
    if (name != "__metadata__") {
      entries.push_back(read_entry(path, name, value));
      continue;
    }
    require(value.is_object(), "its metadata is not an object");
    for (const auto& [key, text_value] : value.items()) {
      require(text_value.is_string(), "its metadata \"", key, "\" is not a text");
      content.metadata[key] = text_value.get<std::string>();
    }
  }

  std::stable_sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  int64_t end = 0;
  for (const Entry& entry : entries) {
    require(entry.end <= data_size, "tensor \"", entry.name, "\" ends at byte ", entry.end, " of ", data_size);
    require(entry.begin >= end, "tensor \"", entry.name, "\" overlaps the one before it");
    require(entry.begin == end, "nothing accounts for the bytes before tensor \"", entry.name, "\"");
    end = entry.end;
  }
  require(end == data_size, data_size - end, " bytes follow the last tensor");

  for (const Entry& entry : entries) {
    Tensor tensor(entry.shape);
    require(bool(file.read(reinterpret_cast<char*>(tensor.data()), entry.end - entry.begin)), "tensor \"", entry.name,
            "\" cannot be read");
    content.tensors.push_back({entry.name, tensor});
  }
  return content;
}

void restore(const SafeTensors& content, const std::filesystem::path& path, Parameters into) {
  std::map<std::string, const Tensor*> by_name;
  for (const auto& [name, tensor] : content.tensors) by_name[name] = &tensor;
  for (const auto& [name, tensor] : into) {
    const auto found = by_name.find(name);
    check(found != by_name.end(), path.string(), " belongs to another model: it has no tensor \"", name, "\"");
    check(found->second->shape() == tensor.shape(), path.string(), " belongs to another model: \"", name, "\" is ",
          found->second->shape(), ", not ", tensor.shape());
  }
  for (auto& [name, tensor] : into) {
    const Tensor& from = *by_name[name];
    copy(tensor.data(), tensor.device(), from.data(), from.device(),
         static_cast<size_t>(tensor.size()) * sizeof(float));
  }
}

}  // namespace runnel
