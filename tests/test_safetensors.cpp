// Checkpoint files: round trips, and one clear error for every kind of damage.
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "models/safetensors.h"
#include "tests/check.h"

namespace runnel::test {
namespace {

namespace fs = std::filesystem;

// A temporary folder for each test.
struct Folder {
  fs::path path = fs::temp_directory_path() / ("runnel_safetensors_" + std::to_string(getpid()));
  Folder() { fs::create_directories(path); }
  ~Folder() { fs::remove_all(path); }
};

std::string read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write(const fs::path& path, const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; }

std::string little_endian(uint64_t n) { return {reinterpret_cast<const char*>(&n), sizeof n}; }

// A file with this header and so many bytes of data.
std::string file_of(const std::string& header, size_t data) {
  return little_endian(header.size()) + header + std::string(data, '\0');
}

SafeTensors example() {
  return {{{"b.weight", random_tensor({2, 3}, 1)},
           {"a.bias", random_tensor({5}, 2)},
           {"scalar", random_tensor({}, 3)},
           {"nothing", Tensor(Shape{0, 4})}},
          {{"app", "copy"}, {"note", "quotes \" and \\ and \n"}}};
}

const NamedTensor* found(const SafeTensors& content, const std::string& name) {  // null: there is none
  const auto at = std::ranges::find(content.tensors, name, &NamedTensor::name);
  return at == content.tensors.end() ? nullptr : &*at;
}

TEST_CASE("safetensors: saving and loading round-trips, in the order of the data") {
  const Folder folder;
  const fs::path path = folder.path / "x.safetensors";
  const SafeTensors saved = example();
  save_safetensors(path, saved);
  const SafeTensors loaded = load_safetensors(path);
  CHECK(loaded.metadata == saved.metadata);
  REQUIRE(loaded.tensors.size() == saved.tensors.size());
  for (const auto& [name, tensor] : saved.tensors) {
    CAPTURE(name);
    const NamedTensor* const same = found(loaded, name);
    REQUIRE(same);
    CHECK(same->tensor.shape() == tensor.shape());
    CHECK(same->tensor.to_vector() == tensor.to_vector());
  }
  CHECK(loaded.tensors[0].name == "b.weight");
  CHECK(loaded.tensors[1].name == "a.bias");

  const std::string bytes = read(path);
  const auto header_length = [&] {
    uint64_t length;
    std::memcpy(&length, read(path).data(), sizeof length);
    return length;
  };
  CHECK(bytes.size() == 8 + header_length() + 4 * (6 + 5 + 1));
  for (size_t size = 0; size < 8; ++size) {
    save_safetensors(path, {{}, {{"note", std::string(size, 'x')}}});
    CHECK(header_length() % 8 == 0);
  }
  save_safetensors(path, loaded);  // over an existing file
  CHECK(read(path) == bytes);
  CHECK(std::distance(fs::directory_iterator(folder.path), {}) == 1);  // no temporary file is left
}

TEST_CASE("safetensors: a file without tensors is valid") {
  const Folder folder;
  save_safetensors(folder.path / "empty", {});
  CHECK(load_safetensors(folder.path / "empty").tensors.empty());
}

TEST_CASE("safetensors: two tensors with the same name are refused") {
  const Folder folder;
  const Tensor x = random_tensor({2}, 1);
  check_fails([&] { save_safetensors(folder.path / "x", {{{"a", x}, {"a", x}}, {}}); }, "two tensors are called \"a\"");
}

TEST_CASE("safetensors: the error for a damaged file names the file and the damage") {
  const Folder folder;
  const fs::path path = folder.path / "damaged.safetensors";
  const auto one = [](const std::string& rest) { return "{\"t\":{" + rest + "}}"; };
  const std::string two = R"("dtype":"F32","shape":[2],"data_offsets":)";
  std::string lists;
  for (int i = 0; i < 500'000; ++i) lists += "[],";
  const struct {
    const char* what;
    std::string bytes;
    const char* words;
  } cases[] = {
      {"empty", "", "it has 0 bytes"},
      {"shorter than the length", "1234567", "it has 7 bytes"},
      {"header past the end", little_endian(1000) + "{}", "claims 1000 bytes in a file of 10"},
      {"header over the format's limit", little_endian(100'000'001) + "{}", "more than 16777216"},
      {"header of 2^63", little_endian(uint64_t{1} << 63) + "{}", "more than 16777216"},
      {"header of 2^64 - 1", little_endian(~uint64_t{0}) + "{}", "more than 16777216"},
      {"not JSON", file_of("garbage!", 0), "not a JSON object"},
      {"cut JSON", file_of("{\"t\":", 0), "not a JSON object"},
      {"no header", file_of("", 0), "not a JSON object"},
      {"another JSON", file_of("[1,2]", 0), "not a JSON object"},
      {"deep JSON", file_of(std::string(100'000, '['), 0), "not a JSON object"},
      {"deep type", file_of(one("\"dtype\":" + std::string(100'000, '[')), 0), "not a JSON object"},
      {"deep shape", file_of(one(R"("dtype":"F32","shape":[[[1]]],"data_offsets":[0,4])"), 4), "not a JSON object"},
      {"a million lists", file_of("{\"t\":[" + lists + "[]]}", 0), "not a JSON object"},
      {"a long name", file_of("{\"" + std::string(100'000, 'F') + "\":1}", 0),
       "tensor \"FFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFF... has no"},
      {"tensor is no object", file_of("{\"t\":1}", 0), "has no dtype, shape and data_offsets"},
      {"nothing in it", file_of(one(""), 0), "has no dtype, shape and data_offsets"},
      {"half precision", file_of(one(R"("dtype":"F16","shape":[2],"data_offsets":[0,8])"), 8), "[2] but 8 bytes"},
      {"type is a number", file_of(one(R"("dtype":32,"shape":[2],"data_offsets":[0,8])"), 8), "impossible type 32"},
      {"integers past the end", file_of(one(R"("dtype":"I64","shape":[1],"data_offsets":[0,8])"), 7), "byte 8 of 7"},
      {"negative size", file_of(one(R"("dtype":"F32","shape":[-2],"data_offsets":[0,8])"), 8), "impossible shape [-2]"},
      {"fractional size", file_of(one(R"("dtype":"F32","shape":[2.5],"data_offsets":[0,8])"), 8), "impossible shape"},
      {"size of 2^63", file_of(one(R"("dtype":"F32","shape":[9223372036854775808],"data_offsets":[0,8])"), 8),
       "impossible shape"},
      {"sizes that overflow", file_of(one(R"("dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0])"), 0),
       "impossible shape"},
      {"2^62 floats, whose bytes overflow to 0",
       file_of(one(R"("dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,0])"), 0), "impossible shape"},
      {"too many axes", file_of(one(R"("dtype":"F32","shape":[1,1,1,1,1,1,2],"data_offsets":[0,8])"), 8),
       "impossible shape"},
      {"shape is no list", file_of(one(R"("dtype":"F32","shape":2,"data_offsets":[0,8])"), 8), "impossible shape"},
      {"negative offset", file_of(one(two + "[-8,0]"), 8), "impossible offsets [-8,0]"},
      {"offsets backwards", file_of(one(two + "[8,0]"), 8), "impossible offsets [8,0]"},
      {"offset of 2^63", file_of(one(two + "[0,9223372036854775808]"), 8), "impossible offsets"},
      {"offset of 2^64", file_of(one(two + "[0,18446744073709551616]"), 8), "impossible offsets"},
      {"three offsets", file_of(one(two + "[0,4,8]"), 8), "impossible offsets"},
      {"shape and bytes differ", file_of(one(two + "[0,12]"), 12), "has the shape [2] but 12 bytes"},
      {"past the end", file_of(one(two + "[0,8]"), 7), "ends at byte 8 of 7"},
      {"far past the end", file_of(one(two + "[9223372036854775799,9223372036854775807]"), 8), "ends at byte"},
      {"a hole in front", file_of(one(two + "[8,16]"), 16), "nothing accounts for the bytes before"},
      {"trailing bytes", file_of(one(two + "[0,8]"), 11), "3 bytes follow the last tensor"},
      {"overlap", file_of("{\"t\":{" + two + "[0,8]},\"u\":{" + two + "[4,12]}}", 12), "\"u\" overlaps"},
      {"the same bytes twice", file_of("{\"t\":{" + two + "[0,8]},\"u\":{" + two + "[0,8]}}", 8), "overlaps"},
      {"a hole between", file_of("{\"t\":{" + two + "[0,8]},\"u\":{" + two + "[12,20]}}", 20), "nothing accounts"},
      {"metadata is a number", file_of(R"({"__metadata__":1})", 0), "its metadata is not an object"},
      {"metadata holds a number", file_of(R"({"__metadata__":{"step":1}})", 0), "its metadata \"step\""},
  };
  for (const auto& c : cases) {
    CAPTURE(c.what);
    write(path, c.bytes);
    check_fails([&] { load_safetensors(path); }, c.words);
    check_fails([&] { load_safetensors(path); }, "damaged.safetensors is damaged");
  }
}

TEST_CASE("safetensors: a file truncated at any byte is refused") {
  const Folder folder;
  const fs::path path = folder.path / "cut";
  save_safetensors(path, example());
  const std::string whole = read(path);
  for (size_t size = 0; size < whole.size(); ++size) {
    CAPTURE(size);
    write(path, whole.substr(0, size));
    check_fails([&] { load_safetensors(path); }, "is damaged");
  }
}

TEST_CASE("safetensors: any byte that changes is refused, but in files of other programs, which have no checksum") {
  const Folder folder;
  const fs::path path = folder.path / "flipped";
  save_safetensors(path, example());
  verify_safetensors(path);
  const std::string whole = read(path), key = "\"crc32\":\"";
  const size_t name = whole.find(key);  // where another name makes it a file without checksum
  for (size_t i = 0; i < whole.size(); i += i + 1 == name ? key.size() + 1 : 1)
    for (const char bit : {'\1', '\20'}) {
      CAPTURE(i);
      std::string changed = whole;
      changed[i] = static_cast<char>(changed[i] ^ bit);
      write(path, changed);
      check_fails([&] { load_safetensors(path); }, "is damaged");
      if (i >= 8) check_fails([&] { verify_safetensors(path); }, "is damaged");
    }
  std::string foreign = whole;
  foreign.back() = '\1';
  write(path, foreign);
  check_fails([&] { load_safetensors(path); }, "must leave \"crc32\" out of the metadata)");
  foreign.replace(foreign.find("crc32"), 5, "other");
  write(path, foreign);
  CHECK(load_safetensors(path).metadata.contains("other"));
}

TEST_CASE("safetensors: a missing file and a folder are refused") {
  const Folder folder;
  check_fails([&] { load_safetensors(folder.path / "missing"); }, "there is no file");
  check_fails([&] { load_safetensors(folder.path); }, "is not a regular file");
}

TEST_CASE("safetensors: tensors may lie in another order than their names") {
  const Folder folder;
  const fs::path path = folder.path / "order";
  write(path, file_of(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]},)"
                      R"("b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
                      8));
  CHECK(load_safetensors(path).tensors[0].name == "b");
}

TEST_CASE("safetensors: a header of many tensors takes linear time") {
  const Folder folder;
  std::string header = "{";
  for (int i = 0; i < 30'000; ++i)
    header += (i ? ",\"" : "\"") + std::to_string(i) + R"(":{"dtype":"F32","shape":[0],"data_offsets":[0,0]})";
  write(folder.path / "many", file_of(header + "}", 0));
  CHECK(load_safetensors(folder.path / "many").tensors.size() == 30'000);
}

TEST_CASE("safetensors: F16 and BF16 become float32, and tensors of other types are left out") {
  const Folder folder;
  const fs::path path = folder.path / "halves";
  const uint16_t halves[] = {0x3c00, 0xc001, 0x0001, 0x83ff, 0x7bff, 0x8000, 0x7c00, 0xfe00}, one = 0x3f80,
                 largest = 0xff7f;
  std::string data(8, '\1');  // an integer
  data.append(reinterpret_cast<const char*>(halves), sizeof halves);
  data.append(reinterpret_cast<const char*>(&one), sizeof one).append(reinterpret_cast<const char*>(&largest), 2);
  const std::string header = R"({"n":{"dtype":"I64","shape":[1,1,1,1,1,1,1],"data_offsets":[0,8]},)"
                             R"("f":{"dtype":"F16","shape":[2,4],"data_offsets":[8,24]},)"
                             R"("b":{"dtype":"BF16","shape":[2],"data_offsets":[24,28]}})";
  write(path, little_endian(header.size()) + header + data);
  const SafeTensors loaded = load_safetensors(path);
  REQUIRE(loaded.tensors.size() == 2);
  CHECK(loaded.tensors[0].tensor.shape() == Shape{2, 4});
  const std::vector<float> f = loaded.tensors[0].tensor.to_vector(), b = loaded.tensors[1].tensor.to_vector();
  CHECK(std::vector(f.begin(), f.begin() + 5) ==
        std::vector<float>{1, -2 - 0x1p-9f, 0x1p-24f, -0x1p-14f + 0x1p-24f, 65504});
  CHECK(f[5] == 0);
  CHECK(std::signbit(f[5]));
  CHECK(f[6] == INFINITY);
  CHECK(std::isnan(f[7]));
  CHECK(b == std::vector<float>{1, -0x1.fep127f});
  check_fails([&] { restore(loaded, "file", {{"n", Tensor(Shape{1})}}); }, "no tensor \"n\" of type F32, F16 or BF16");
}

TEST_CASE("safetensors: matrices in int8 come back to half a step, all else as it was") {
  const Folder folder;
  const fs::path path = folder.path / "rounded";
  SafeTensors saved = example();
  saved.tensors.push_back({"zeros", Tensor::full({2, 3}, 0)});
  saved.tensors.push_back({"cube", random_tensor({2, 3, 4}, 4)});
  save_safetensors(path, saved, MatrixStorage::int8);
  const SafeTensors loaded = load_safetensors(path);
  REQUIRE(loaded.tensors.size() == saved.tensors.size());
  for (const auto& [name, tensor] : saved.tensors) {
    CAPTURE(name);
    const NamedTensor* const same = found(loaded, name);
    REQUIRE(same);
    REQUIRE(same->tensor.shape() == tensor.shape());
    const std::vector<float> x = tensor.to_vector(), y = same->tensor.to_vector();
    const bool is_matrix = tensor.shape().rank() == 2;
    const size_t columns = is_matrix ? static_cast<size_t>(tensor.shape()[1]) : 1;
    for (size_t i = 0; i < x.size(); ++i) {
      const auto row = x.begin() + static_cast<std::ptrdiff_t>(i / columns * columns);
      float largest = 0;
      for (size_t c = 0; is_matrix && c < columns; ++c)
        largest = std::max(largest, std::abs(row[static_cast<std::ptrdiff_t>(c)]));
      CHECK(std::abs(y[i] - x[i]) <= largest / 254 * 1.0001f);
    }
  }
  saved.tensors.push_back({"diverged", Tensor::full({2, 2}, NAN)});
  check_fails([&] { save_safetensors(path, saved, MatrixStorage::int8); },
              "diverged holds numbers that are not finite");
  // Rounded once more, nothing changes but the last bit of the scales.
  save_safetensors(folder.path / "again", loaded, MatrixStorage::int8);
  const SafeTensors again = load_safetensors(folder.path / "again");
  for (size_t i = 0; i < loaded.tensors.size(); ++i) {
    const std::vector<float> x = loaded.tensors[i].tensor.to_vector(), y = again.tensors[i].tensor.to_vector();
    for (size_t j = 0; j < x.size(); ++j) CHECK(y[j] == doctest::Approx(x[j]).epsilon(1e-6));
  }
}

TEST_CASE("safetensors: I8 without scales of its rows is left out, as other types are") {
  const Folder folder;
  const auto load = [&](const std::string& scales, size_t bytes) {
    const std::string header = R"({"m":{"dtype":"I8","shape":[2,3],"data_offsets":[0,6]},)" + scales +
                               "\"v\":" + R"({"dtype":"I8","shape":[2],"data_offsets":[)" + std::to_string(bytes - 2) +
                               "," + std::to_string(bytes) + "]}}";
    write(folder.path / "x", file_of(header, bytes));
    return load_safetensors(folder.path / "x").tensors;
  };
  CHECK(load("", 8).empty());
  CHECK(load(R"("m.scale":{"dtype":"F32","shape":[2],"data_offsets":[6,14]},)", 16).size() == 1);
  CHECK(load(R"("many":{"dtype":"I8","shape":[1,1,1,1,1,1,1],"data_offsets":[6,7]},)", 9).empty());
  const Parameters other = load(R"("m.scale":{"dtype":"F32","shape":[3],"data_offsets":[6,18]},)", 20);
  REQUIRE(other.size() == 1);
  CHECK(other[0].name == "m.scale");
}

TEST_CASE("safetensors: restore copies all tensors by name, or none") {
  const SafeTensors from{{{"a", random_tensor({2}, 1)}, {"b", random_tensor({3}, 2)}, {"more", random_tensor({1}, 3)}},
                         {}};
  const Tensor a = Tensor::full({2}, 7), b = Tensor::full({3}, 7), other = Tensor::full({3, 1}, 7);
  check_fails(
      [&] {
        restore(from, "file", {{"a", a}, {"c", b}});
      },
      "file belongs to another model: it has no tensor \"c\"");
  check_fails([&] { restore(from, "file", {{"a", a}, {"b", other}}); }, "\"b\" is [3], not [3,1]");
  CHECK(a.to_vector() == std::vector<float>{7, 7});
  restore(from, "file", {{"b", b}, {"a", a}});
  CHECK(a.to_vector() == from.tensors[0].tensor.to_vector());
  CHECK(b.to_vector() == from.tensors[1].tensor.to_vector());
}

TEST_CASE("safetensors: a full disk leaves the old file unchanged") {
  const Folder folder;
  const fs::path path = folder.path / "x.safetensors";
  save_safetensors(path, example());
  const std::string before = read(path);

  // A limit on file size simulates a full disk: write() stops short, then fails.
  rlimit old_limit;
  REQUIRE(getrlimit(RLIMIT_FSIZE, &old_limit) == 0);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit limit = old_limit;
  limit.rlim_cur = 64 << 10;
  REQUIRE(setrlimit(RLIMIT_FSIZE, &limit) == 0);
  check_fails([&] { save_safetensors(path, {{{"large", random_tensor({100, 1000}, 1)}}, {}}); }, "cannot write");
  setrlimit(RLIMIT_FSIZE, &old_limit);
  std::signal(SIGXFSZ, old_handler);

  CHECK(read(path) == before);
  CHECK(std::distance(fs::directory_iterator(folder.path), {}) == 1);
}

TEST_CASE("safetensors: saving where no file can be made is refused") {
  const Folder folder;
  check_fails([&] { save_safetensors(folder.path / "missing" / "x", example()); }, "cannot write");
  write(folder.path / "plain", "x");
  check_fails([&] { save_safetensors(folder.path / "plain" / "x", example()); }, "cannot write");
  fs::create_directories(folder.path / "in_the_way" / "full");
  check_fails([&] { save_safetensors(folder.path / "in_the_way", example()); }, "cannot write");
  CHECK(fs::exists(folder.path / "in_the_way" / "full"));
  CHECK_FALSE(fs::exists(folder.path / "in_the_way.partial"));
}

}  // namespace
}  // namespace runnel::test
