// Checkpoint files. Reading trusts nothing: the file may be anything, so every number in the header is checked against
// the file's size before it is used, and the tensors must tile the data exactly, as the format demands.
#include "models/safetensors.h"

#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <deque>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "engine/check.h"
#include "engine/file.h"
#include "models/json.h"

namespace runnel {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian");

constexpr uint64_t longest_header = 16 << 20;  // bytes; the format allows 100 MB, models of this program need 7
constexpr JsonLimits header_limits{.depth = 3, .values = 1'000'000};
const std::string checksum_key = "\"crc32\":\"", no_checksum = "00000000";

// CRC-32 of a whole file but for its first eight bytes, in which the eight digits of the checksum itself count as
// zeros.
class Checksum {
 public:
  void add(const void* data, size_t bytes) {  // crc32_z begins anew if data is null, as of an empty vector
    if (bytes > 0) value_ = crc32_z(value_, static_cast<const Bytef*>(data), bytes);
  }
  std::string text() const {
    char digits[9];
    std::snprintf(digits, sizeof digits, "%08lx", value_);
    return digits;
  }

 private:
  uLong value_ = crc32_z(0, nullptr, 0);
};

// A tensor as the file has it.
struct Stored {
  std::string name;
  const char* type;
  std::vector<int64_t> shape;
  std::span<const char> bytes;
};

// Fixed layout: names sorted as JSON sorts them, offsets in the order of the tensors.
std::string header_of(const std::vector<Stored>& tensors, const SafeTensors& content) {
  nlohmann::json header = nlohmann::json::object();
  header["__metadata__"] = content.metadata;
  header["__metadata__"]["crc32"] = no_checksum;
  size_t offset = 0;
  for (const Stored& tensor : tensors) {
    check(!header.contains(tensor.name), "save: two tensors are called \"", tensor.name, "\"");
    const size_t end = offset + tensor.bytes.size();
    header[tensor.name] = {{"dtype", tensor.type}, {"shape", tensor.shape}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // so that the numbers are aligned in a mapped file
  return text;
}

// A matrix in int8, row by row, and the scales of its rows.
struct Rounded {
  std::vector<int8_t> numbers;
  std::vector<float> scales;
};
Rounded rounded(const std::string& name, const std::vector<float>& matrix, int64_t rows) {
  check(std::ranges::all_of(matrix, [](float x) { return std::isfinite(x); }), "save: ", name,
        " holds numbers that are not finite: its training diverged");
  Rounded to{std::vector<int8_t>(matrix.size()), std::vector<float>(static_cast<size_t>(rows))};
  const size_t columns = rows ? matrix.size() / static_cast<size_t>(rows) : 0;
  for (size_t r = 0; r < to.scales.size(); ++r) {
    const float* const row = matrix.data() + r * columns;
    float largest = 0;
    for (size_t c = 0; c < columns; ++c) largest = std::max(largest, std::abs(row[c]));
    if (largest < 1e-30f) continue;  // zeros
    to.scales[r] = largest / 127;
    for (size_t c = 0; c < columns; ++c)  // as ops/cpu/packed_linear.cpp rounds
      to.numbers[r * columns + c] = static_cast<int8_t>(static_cast<int>(row[c] * (127 / largest) + 128.5f) - 128);
  }
  return to;
}

const std::string scale_ending = ".scale";

// A header's entry of one tensor.
struct Entry {
  std::string name, type;
  Shape shape;  // if the type is one that is read
  int64_t begin, end;
};

float from_f16(uint16_t bits) {
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  const float size = exponent == 31 ? (fraction ? NAN : INFINITY)
                     : exponent > 0 ? std::ldexp(static_cast<float>(1024 + fraction), exponent - 25)
                                    : std::ldexp(static_cast<float>(fraction), -24);  // subnormal, or 0
  return bits >> 15 ? -size : size;
}
float from_bf16(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

// Bytes of a number of the types that are read, 0 of others.
int64_t number_bytes(const std::string& type) {
  return type == "F32" ? 4 : type == "F16" || type == "BF16" ? 2 : type == "I8" ? 1 : 0;
}

Entry read_entry(const std::filesystem::path& path, const std::string& name, const nlohmann::json& json) {
  const auto require = [&](bool holds, const auto&... what) {
    check(holds, path.string(), " is damaged: tensor ", short_text(name), " ", what...);
  };
  const auto whole = [](const nlohmann::json& n) {  // JSON integers up to 2^64 - 1 come as unsigned
    return n.is_number_unsigned() && n.get<uint64_t>() <= INT64_MAX;
  };
  require(json.is_object() && json.contains("dtype") && json.contains("shape") && json.contains("data_offsets"),
          "has no dtype, shape and data_offsets");
  const nlohmann::json &type = json["dtype"], &shape = json["shape"], &offsets = json["data_offsets"];
  require(type.is_string(), "has the impossible type ", short_text(type));
  require(shape.is_array() && std::all_of(shape.begin(), shape.end(), whole), "has the impossible shape ",
          short_text(shape));
  require(
      offsets.is_array() && offsets.size() == 2 && whole(offsets[0]) && whole(offsets[1]) && offsets[0] <= offsets[1],
      "has the impossible offsets ", short_text(offsets));
  Entry entry{name, type.get<std::string>(), {}, offsets[0].get<int64_t>(), offsets[1].get<int64_t>()};
  const int64_t bytes = number_bytes(entry.type);
  if (bytes == 0 || (entry.type == "I8" && shape.size() != 2)) return entry;
  require(shape.size() <= Shape::max_rank, "has the impossible shape ", short_text(shape));
  try {
    entry.shape = Shape(shape.get<std::vector<int64_t>>());
  } catch (const Error&) {
    require(false, "has the impossible shape ", short_text(shape));
  }
  // Shape keeps the number of elements below 2^60, so this does not overflow.
  require(entry.shape.size() * bytes == entry.end - entry.begin, "has the shape ", entry.shape, " but ",
          entry.end - entry.begin, " bytes");
  return entry;
}

}  // namespace

void save_safetensors(const std::filesystem::path& path, const SafeTensors& content, MatrixStorage matrices) {
  const auto bytes_of = [](const auto& numbers, int64_t size) {
    return std::span(reinterpret_cast<const char*>(numbers), static_cast<size_t>(size) * sizeof *numbers);
  };
  std::vector<Stored> tensors;
  std::deque<std::vector<float>> on_host;  // of tensors that live elsewhere
  std::deque<Rounded> in_int8;
  for (const auto& [name, tensor] : content.tensors) {
    std::vector<int64_t> shape;
    for (int axis = 0; axis < tensor.shape().rank(); ++axis) shape.push_back(tensor.shape()[axis]);
    if (matrices == MatrixStorage::int8 && shape.size() == 2) {
      const auto& [numbers, scales] = in_int8.emplace_back(rounded(name, tensor.to_vector(), shape[0]));
      tensors.push_back({name, "I8", shape, bytes_of(numbers.data(), tensor.size())});
      tensors.push_back({name + scale_ending, "F32", {shape[0]}, bytes_of(scales.data(), shape[0])});
      continue;
    }
    const float* data = tensor.data();
    if (tensor.device() != Device::cpu) data = on_host.emplace_back(tensor.to_vector()).data();
    tensors.push_back({name, "F32", shape, bytes_of(data, tensor.size())});
  }
  std::string header = header_of(tensors, content);
  const uint64_t length = header.size();
  std::vector<std::span<const char>> parts{bytes_of(&length, 1), header};
  for (const Stored& tensor : tensors) parts.push_back(tensor.bytes);
  Checksum checksum;
  for (const std::span<const char> part : std::span(parts).subspan(1)) checksum.add(part.data(), part.size());
  header.replace(header.find(checksum_key) + checksum_key.size(), no_checksum.size(), checksum.text());
  write_atomically(path, parts);
}

namespace {

// An open file behind its header, whose checksum has been replaced by zeros.
struct OpenFile {
  std::unique_ptr<FILE, int (*)(FILE*)> file;
  std::string header, checksum;  // "" if it has none
  int64_t data_size = 0;         // bytes

  explicit OpenFile(const std::filesystem::path& path);
  bool read(void* to, uint64_t bytes) { return std::fread(to, 1, bytes, file.get()) == bytes; }
  // Reads so many bytes, a block of full numbers of any type at a time, and gives f each, with its size.
  template <class F>
  bool read_blocks(int64_t bytes, const F& f) {
    std::vector<char> block(static_cast<size_t>(std::min<int64_t>(bytes, 1 << 20)));
    for (; bytes > 0; bytes -= std::ssize(block)) {
      block.resize(static_cast<size_t>(std::min<int64_t>(bytes, std::ssize(block))));
      if (!read(block.data(), block.size())) return false;
      f(block.data(), block.size());
    }
    return true;
  }
};

template <class... What>
void require(bool holds, const std::filesystem::path& path, const What&... what) {
  check(holds, path.string(), " is damaged: ", what...);
}

OpenFile::OpenFile(const std::filesystem::path& path) : file(fdopen(open_regular_file(path), "rb"), std::fclose) {
  check(file != nullptr, "cannot open ", path.string(), ": ", std::strerror(errno));
  struct stat status;
  const bool is_known = fstat(fileno(file.get()), &status) == 0;
  check(is_known, "cannot read ", path.string(), ": ", std::strerror(errno));
  const auto size = static_cast<uint64_t>(status.st_size);
  uint64_t length = 0;
  require(size >= sizeof length && read(&length, sizeof length), path, "it has ", size, " bytes, too few for a header");
  require(length <= longest_header, path, "its header claims ", length, " bytes, more than ", longest_header);
  require(length <= size - sizeof length, path, "its header claims ", length, " bytes in a file of ", size);
  header.resize(length);
  require(read(header.data(), length), path, "its header cannot be read");
  data_size = static_cast<int64_t>(size - sizeof length - length);
  if (const size_t at = header.find(checksum_key); at != std::string::npos) {
    checksum = header.substr(at + checksum_key.size(), no_checksum.size());
    header.replace(at + checksum_key.size(), checksum.size(), no_checksum, 0, checksum.size());
  }
}

nlohmann::json header_of(const OpenFile& file, const std::filesystem::path& path) {
  nlohmann::json header = parse_json(file.header, header_limits);
  require(header.is_object(), path, "its header is not a JSON object of tensors");
  return header;
}

std::map<std::string, std::string> metadata_of(const nlohmann::json& json, const std::filesystem::path& path) {
  require(json.is_object(), path, "its metadata is not an object");
  std::map<std::string, std::string> metadata;
  for (const auto& [key, text] : json.items()) {
    require(text.is_string(), path, "its metadata ", short_text(key), " is not a text");
    metadata[key] = text.get<std::string>();
  }
  return metadata;
}

void require_checksum(const OpenFile& file, const Checksum& sum, const std::filesystem::path& path) {
  require(file.checksum.empty() || file.checksum == sum.text(), path,
          "its contents do not have its checksum (a program that changes them on purpose must leave \"crc32\" out of "
          "the metadata)");
}

}  // namespace

void verify_safetensors(const std::filesystem::path& path) {
  OpenFile file(path);
  Checksum sum;
  sum.add(file.header.data(), file.header.size());
  const auto add = [&](const char* block, size_t bytes) { sum.add(block, bytes); };
  require(file.read_blocks(file.data_size, add), path, "it cannot be read");
  require_checksum(file, sum, path);
}

std::map<std::string, std::string> load_metadata(const std::filesystem::path& path) {
  const nlohmann::json header = header_of(OpenFile(path), path);
  return metadata_of(header.value("__metadata__", nlohmann::json::object()), path);
}

namespace {

// Rows of the named matrices times their scales, which are then left out.
void apply_scales(Parameters& tensors, const std::map<std::string, std::string>& scales) {
  if (scales.empty()) return;
  std::map<std::string, Tensor> by_name;
  for (const auto& [name, tensor] : tensors) by_name[name] = tensor;
  std::set<std::string> applied;
  for (const auto& [matrix, scale] : scales) {
    Tensor& to = by_name.at(matrix);
    const Tensor& by = by_name.at(scale);
    const int64_t columns = to.shape()[1];
    for (int64_t r = 0; r < by.size(); ++r)
      for (int64_t c = 0; c < columns; ++c) to.data()[r * columns + c] *= by.data()[r];
    applied.insert(scale);
  }
  std::erase_if(tensors, [&](const NamedTensor& t) { return applied.contains(t.name); });
}

}  // namespace

SafeTensors load_safetensors(const std::filesystem::path& path) {
  OpenFile file(path);
  const nlohmann::json header = header_of(file, path);
  const int64_t data_size = file.data_size;

  SafeTensors content;
  std::vector<Entry> entries;
  for (const auto& [name, value] : header.items()) {
    if (name != "__metadata__") {
      entries.push_back(read_entry(path, name, value));
      continue;
    }
    content.metadata = metadata_of(value, path);
  }

  std::stable_sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  int64_t end = 0;
  for (const Entry& entry : entries) {
    require(entry.end <= data_size, path, "tensor ", short_text(entry.name), " ends at byte ", entry.end, " of ",
            data_size);
    require(entry.begin >= end, path, "tensor ", short_text(entry.name), " overlaps the one before it");
    require(entry.begin == end, path, "nothing accounts for the bytes before tensor ", short_text(entry.name));
    end = entry.end;
  }
  require(end == data_size, path, data_size - end, " bytes follow the last tensor");

  // Matrices in int8 are read if they have scales of their rows: name of the matrix -> of the scales.
  std::map<std::string, Shape> floats;
  std::map<std::string, std::string> scales;
  for (const Entry& entry : entries)
    if (entry.type == "F32" && entry.name.ends_with(scale_ending)) floats[entry.name] = entry.shape;
  for (const Entry& entry : entries) {
    if (entry.type != "I8" || entry.shape.rank() != 2) continue;
    const auto found = floats.find(entry.name + scale_ending);
    if (found != floats.end() && found->second == Shape{entry.shape[0]}) scales[entry.name] = found->first;
  }

  content.metadata.erase("crc32");
  Checksum sum;
  sum.add(file.header.data(), file.header.size());
  for (const Entry& entry : entries) {
    float* to = nullptr;
    if (entry.type == "I8" ? scales.contains(entry.name) : number_bytes(entry.type) > 0)
      to = content.tensors.emplace_back(NamedTensor{entry.name, Tensor(entry.shape)}).tensor.data();
    const auto take = [&](const char* block, size_t bytes) {
      sum.add(block, bytes);
      if (!to) return;
      if (entry.type == "F32") {
        std::memcpy(to, block, bytes);
        to += bytes / sizeof(float);
        return;
      }
      if (entry.type == "I8") {
        to =
            std::transform(block, block + bytes, to, [](char x) { return static_cast<float>(static_cast<int8_t>(x)); });
        return;
      }
      for (const char* half = block; half < block + bytes; half += sizeof(uint16_t)) {
        uint16_t bits;
        std::memcpy(&bits, half, sizeof bits);
        *to++ = entry.type == "F16" ? from_f16(bits) : from_bf16(bits);
      }
    };
    require(file.read_blocks(entry.end - entry.begin, take), path, "tensor ", short_text(entry.name),
            " cannot be read");
  }
  require_checksum(file, sum, path);
  apply_scales(content.tensors, scales);
  return content;
}

void restore(const SafeTensors& content, const std::filesystem::path& path, Parameters into) {
  std::map<std::string, const Tensor*> by_name;
  for (const auto& [name, tensor] : content.tensors) by_name[name] = &tensor;
  for (const auto& [name, tensor] : into) {
    const auto found = by_name.find(name);
    check(found != by_name.end(), path.string(), " belongs to another model: it has no tensor \"", name,
          "\" of type F32, F16 or BF16, or I8 with scales");
    check(found->second->shape() == tensor.shape(), path.string(), " belongs to another model: \"", name, "\" is ",
          found->second->shape(), ", not ", tensor.shape());
    const std::vector<float> values = found->second->to_vector();
    check(std::ranges::all_of(values, [](float x) { return std::isfinite(x); }), path.string(),
          " holds numbers that are not finite, in ", name, ": its training diverged");
  }
  for (auto& [name, tensor] : into) {
    const Tensor& from = *by_name[name];
    copy(tensor.data(), tensor.device(), from.data(), from.device(),
         static_cast<size_t>(tensor.size()) * sizeof(float));
  }
}

}  // namespace runnel
