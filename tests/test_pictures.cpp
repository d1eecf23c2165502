// Pictures: PNG files are read back by another library and compared pixel by pixel.
#include "apps/plots/pictures.h"

#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "tests/check.h"
#include "tests/png.h"
#include "tests/program.h"

namespace runnel::test {
namespace {

namespace fs = std::filesystem;

struct Folder {
  fs::path path = fs::temp_directory_path() / ("runnel_pictures_" + std::to_string(getpid()));
  Folder() { fs::create_directories(path); }
  ~Folder() { fs::remove_all(path); }
};

TEST_CASE("pictures: PNG files round-trip") {
  const Folder folder;
  const std::vector<uint8_t> rgb = {1, 2, 3, 4, 5, 6, 250, 251, 252, 253, 254, 255, 9, 8, 7, 6, 5, 4};
  write_png(folder.path / "x.png", picture(rgb, 2, 3, 3));
  const Picture read = read_png(folder.path / "x.png");
  CHECK(read.height == 2);
  CHECK(read.width == 3);
  CHECK(read.rgb == rgb);
  CHECK(std::distance(fs::directory_iterator(folder.path), {}) == 1);  // no temporary file is left

  const Picture grey = picture(std::vector<uint8_t>{0, 7, 255, 3}, 2, 2, 1, 3);
  CHECK(at(grey, 0, 1) == Colour{7, 7, 7});
  CHECK(at(grey, 1, 0) == Colour{255, 255, 255});
  const Colour left_out = at(grey, 1, 1);
  CHECK(left_out[2] > left_out[0]);  // blue: the image has no such pixel
  check_fails([&] { picture(rgb, 2, 2, 3); }, "18 bytes for 2 x 2 pixels of 3");
  check_fails([&] { write_png(folder.path / "no" / "x.png", grey); }, (folder.path / "no" / "x.png").string());
}

TEST_CASE("pictures: a sheet enlarges its cells and separates them by lines") {
  std::vector<Picture> cells;
  for (const uint8_t shade : {10, 20, 30, 40, 50}) cells.push_back(picture(std::vector<uint8_t>(6, shade), 2, 3, 1));
  const Picture all = sheet(cells, 2, 4);  // 3 rows of 2 cells, each 8 x 12 and a line of 2
  CHECK(all.height == 3 * 10 + 2);
  CHECK(all.width == 2 * 14 + 2);
  const auto is_cell = [&](int64_t y, int64_t x, uint8_t shade) {
    return at(all, y, x) == Colour{shade, shade, shade} && at(all, y + 7, x + 11) == Colour{shade, shade, shade};
  };
  CHECK(is_cell(2, 2, 10));
  CHECK(is_cell(2, 16, 20));
  CHECK(is_cell(12, 2, 30));
  CHECK(is_cell(12, 16, 40));
  CHECK(is_cell(22, 2, 50));
  for (int64_t x = 0; x < all.width; ++x) CHECK(at(all, 10, x) == at(all, 0, 0));
  CHECK(at(all, 5, 15) == at(all, 0, 0));
  check_fails([] { sheet({}, 1, 1); }, "no cells");
  check_fails([&] { sheet({cells[0], picture(std::vector<uint8_t>(4), 2, 2, 1)}, 1, 1); }, "another size");
}

TEST_CASE("pictures: a sheet's cells are larger when there are few") {
  const std::vector<Picture> small(3, picture(std::vector<uint8_t>(49), 7, 7, 1)),
      many(10000, picture(std::vector<uint8_t>(784), 28, 28, 1));
  CHECK(sheet(small, 3).width == 3 * (84 + 2) + 2);
  CHECK(sheet(many, 100).width == 100 * (28 + 2) + 2);
}

TEST_CASE("pictures: half blocks on a terminal: two pixels per character, colours set where they change") {
  Picture p = picture(std::vector<uint8_t>{1, 2, 3, 1, 2, 3, 7, 7, 7, 1, 2, 3, 9, 9, 9, 9, 9, 9}, 3, 2, 3);
  CHECK(half_blocks(p) ==
        "\x1b[38;2;1;2;3m\x1b[48;2;7;7;7m\u2580\x1b[48;2;1;2;3m\u2580\x1b[0m\n"
        "\x1b[38;2;9;9;9m\u2580\u2580\x1b[0m\n");
}

TEST_CASE("pictures: resizing repeats the nearest pixel") {
  const Picture p = resized(picture(std::vector<uint8_t>{10, 20, 30, 40}, 2, 2, 1), 4, 6);
  CHECK(p.height == 4);
  CHECK(p.width == 6);
  CHECK(at(p, 1, 2) == Colour{10, 10, 10});
  CHECK(at(p, 1, 3) == Colour{20, 20, 20});
  CHECK(at(p, 3, 5) == Colour{40, 40, 40});
}

TEST_CASE("pictures: a heat map's brightness rises with the value, as its scale's does") {
  const auto brightness = [](Colour c) { return c[0] + c[1] + c[2]; };
  std::vector<double> values;
  for (int i = 0; i <= 20; ++i) values.push_back(i / 10.0);
  const Picture map = heat_map(values, 1, 21, 2, 3);
  CHECK(map.height == 3);
  CHECK(map.width == 23 * 3);
  for (int64_t x = 1; x < 21; ++x) CHECK(brightness(at(map, 0, 3 * x)) > brightness(at(map, 2, 3 * x - 1)));
  CHECK(at(map, 0, 68) == at(map, 0, 62));  // the top of the scale is the largest value
  CHECK(at(map, 2, 68) == at(map, 0, 0));
  const Picture outside = heat_map(std::vector<double>{-1, NAN, INFINITY}, 1, 3, 1, 1);
  CHECK(at(outside, 0, 0) == at(map, 0, 0));
  CHECK(at(outside, 0, 1) == at(map, 0, 0));
  CHECK(at(outside, 0, 2) == at(map, 0, 62));
}

TEST_CASE("pictures: the loss plot is drawn with gnuplot, and skipped without") {
  const Folder folder;
  const fs::path csv = folder.path / "it's.csv", png = folder.path / "a 'plot'.png";
  std::ofstream(csv) << "step,loss,loss_bits,accuracy,validation,validation_bits,lr,tokens_per_second,seconds\n"
                        "1,2,3,,,,1,1,1\n2,1.5,2.2,,,,1,1,2\n3,1,1.4,50,1.1,1.6,1,1,3\n";
  const bool there = has_gnuplot();
  for (const bool bits : {false, true}) {
    plot_loss(csv, png, "it's a title", bits ? "bits/dim" : "nats", bits ? 7.5 : 0, bits ? "accuracy" : "");
    CHECK(fs::exists(png) == there);
    if (there) CHECK(read_png(png).width == 900);
    fs::remove(png);
  }
  if (!there) MESSAGE("skipped: 1 test, gnuplot is not installed");
  plot_loss(folder.path / "missing.csv", png, "nothing", "bits/dim", 0);
  CHECK_FALSE(fs::exists(png));
  CHECK(std::distance(fs::directory_iterator(folder.path), {}) == 1);
}

TEST_CASE("pictures: gnuplot is not asked for a plot of a file without a row") {
  const Folder folder;
  const fs::path csv = folder.path / "metrics.csv", asked = folder.path / "asked";
  std::ofstream(folder.path / "gnuplot") << "#!/bin/sh\n: > '" + asked.string() + "'\nexit 1\n";
  fs::permissions(folder.path / "gnuplot", fs::perms::owner_all);
  const std::string path = std::getenv("PATH");
  setenv("PATH", folder.path.c_str(), 1);
  std::ofstream(csv) << "step,loss,validation,lr,tokens_per_second,seconds\n";
  plot_loss(csv, folder.path / "loss.png", "run", "nats", 0);
  CHECK_FALSE(fs::exists(asked));
  std::ofstream(csv, std::ios::app) << "1,2,,1,1,1\n";
  plot_loss(csv, folder.path / "loss.png", "run", "nats", 0);
  CHECK(fs::exists(asked));
  setenv("PATH", path.c_str(), 1);
}

}  // namespace
}  // namespace runnel::test
