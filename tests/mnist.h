// MNIST's files with drawn digits, which tests write.
#pragma once
#include "datasets/synthetic_digits.h"
#include "tests/program.h"

namespace runnel::test {

// An IDX file: a header of big-endian numbers, and bytes.
inline void write_idx(const fs::path& path, const std::vector<uint32_t>& header, const std::vector<uint8_t>& bytes) {
  std::ofstream file(path, std::ios::binary);
  for (const uint32_t n : header)
    for (const int shift : {24, 16, 8, 0}) file << static_cast<char>(n >> shift & 255);
  file.write(reinterpret_cast<const char*>(bytes.data()), std::ssize(bytes));
}

// A data set in files: so many of the drawn training digits and of the drawn test digits, as MNIST.
inline void write_mnist(const fs::path& folder, int64_t train_images, int64_t test_images) {
  fs::create_directories(folder);
  const auto write = [&](const std::string& stem, const ImageSet& digits) {
    const auto count = static_cast<uint32_t>(digits.count);
    write_idx(folder / (stem + "-images-idx3-ubyte"), {2051, count, 28, 28}, digits.pixels);
    write_idx(folder / (stem + "-labels-idx1-ubyte"), {2049, count}, {digits.labels.begin(), digits.labels.end()});
  };
  write("train", synthetic_digits(train_images, Key{2020}.fold(0)));
  write("t10k", synthetic_digits(test_images, Key{2020}.fold(1)));
}

// A folder with so little data that reading it takes no time.
struct WithDigits : Sandbox {
  WithDigits() { write_mnist(folder / "data", 220, 20); }
};

}  // namespace runnel::test
