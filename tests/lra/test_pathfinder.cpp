// Pathfinder: that an image is a function of its number, that images look as the original's do, the cache on disk
// whole, damaged and interrupted, and the rules that know nothing of paths.
#include "datasets/lra/pathfinder.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "tests/check.h"
#include "tests/folder.h"

namespace runnel::test {
namespace {

namespace fs = std::filesystem;

struct Cache : Folder {
  fs::path file(int number) const { return path / "pathfinder-easy-7" / std::to_string(number); }
};

PathfinderOptions easy(int64_t count) { return {"easy", count, 7}; }

bool same(const PathfinderSet& a, const PathfinderSet& b) {
  return a.images.pixels == b.images.pixels && a.images.labels == b.images.labels && a.markers == b.markers;
}

// Whether one gets from one marker to the other by steps of at most two pixels over what is not black.
bool reachable(const PathfinderImage& image) {
  const auto& [from_y, from_x, to_y, to_x] = image.markers;
  std::vector<bool> seen(1024);
  std::vector<int> open{from_y * 32 + from_x};
  while (!open.empty()) {
    const int at = open.back();
    open.pop_back();
    for (int y = std::max(at / 32 - 2, 0); y <= std::min(at / 32 + 2, 31); ++y)
      for (int x = std::max(at % 32 - 2, 0); x <= std::min(at % 32 + 2, 31); ++x) {
        const size_t p = static_cast<size_t>(y * 32 + x);
        if (seen[p] || image.pixels[p] <= 20) continue;
        seen[p] = true;
        open.push_back(y * 32 + x);
      }
  }
  return seen[static_cast<size_t>(to_y * 32 + to_x)];
}

TEST_CASE("pathfinder: an image is a function of difficulty, seed and number, on any number of threads") {
  const PathfinderSet set = pathfinder_images({"hard", 60, 1}, "");
  CHECK(set.images.name == "Pathfinder (hard, generated with seed 1)");
  CHECK(set.images.size() == 1024);
  CHECK(set.images.class_names == std::vector<std::string>{"separate", "connected"});
  CHECK(set.generated == 60);
  CHECK(set.cache.empty());
  for (const int count : {1, 3}) {
    const OmpThreads threads(count);
    CHECK(same(pathfinder_images({"hard", 60, 1}, ""), set));
  }
  const PathfinderImage last = pathfinder_image("hard", 1, 59);
  CHECK(std::ranges::equal(set.images.image(59), last.pixels));
  CHECK(set.images.labels[59] == last.connected);
  CHECK(set.markers[59] == last.markers);
  for (const auto& other : {pathfinder_image("hard", 1, 58), pathfinder_image("hard", 2, 59),
                            pathfinder_image("easy", 1, 59), pathfinder_image("intermediate", 1, 59)})
    CHECK(other.pixels != last.pixels);
}

TEST_CASE("pathfinder: pixels, labels, markers and attempts are distributed as in the original") {
  struct Expected {
    const char* difficulty;
    double zeros, mean, attempts;  // of 20,000 images, confirmed for hard with the original's 400
  };
  for (const auto& [difficulty, zeros, mean, attempts] :
       {Expected{"easy", 0.773, 13.0, 22}, {"intermediate", 0.735, 15.4, 64}, {"hard", 0.662, 20.1, 281}}) {
    CAPTURE_AS(name, std::string(difficulty));
    constexpr int count = 400;
    double black = 0, sum = 0, tried = 0, connected = 0, largest = 0;
    std::set<std::pair<int, int>> begins;  // of first paths
    for (int i = 0; i < count; ++i) {
      const PathfinderImage image = pathfinder_image(difficulty, 3, i);
      black += static_cast<double>(std::ranges::count(image.pixels, 0));
      sum += std::accumulate(image.pixels.begin(), image.pixels.end(), 0);
      tried += image.attempts;
      connected += image.connected;
      CHECK(*std::ranges::max_element(image.pixels) == 255);
      const auto& [y, x, v, u] = image.markers;
      CHECK(std::hypot(y - 15, x - 15) < 9.5);  // it lies where a path begins: in the middle, or 7 pixels from there
      if (std::abs(y - 15) <= 1 && std::abs(x - 15) <= 1) begins.emplace(y, x);
      CHECK(std::min({y, x, v, u}) >= 2);
      CHECK(std::max({y, x, v, u}) <= 29);
      const double marker = image.pixels[static_cast<size_t>(v * 32 + u)];
      CHECK(marker >= 149);  // 1.7 before scaling, if distractors were drawn over each other, is never reached
      largest += 255 / marker / count;
    }
    CHECK(begins.size() == 9);
    CHECK(black / count / 1024 == doctest::Approx(zeros).epsilon(0.02));
    CHECK(sum / count / 1024 == doctest::Approx(mean).epsilon(0.04));
    CHECK(tried / count == doctest::Approx(attempts).epsilon(0.15));
    CHECK(connected / count == doctest::Approx(0.5).epsilon(0.15));
    CHECK(largest == doctest::Approx(1.073).epsilon(0.01));
  }
}

TEST_CASE("pathfinder: a disc is what Pillow draws, where nothing brighter covers it") {
  constexpr int disc[3][3] = {{228, 254, 133}, {255, 255, 190}, {132, 178, 55}};  // around its middle
  int equal = 0;
  for (int i = 0; i < 100; ++i) {
    const PathfinderImage image = pathfinder_image("easy", 5, i);
    const auto& [y, x, v, u] = image.markers;
    const double scale =
        std::min(image.pixels[static_cast<size_t>(v * 32 + u)], image.pixels[static_cast<size_t>(v * 32 + u - 1)]) /
        255.0;
    for (int row = 0; row < 3; ++row)
      for (int column = 0; column < 3; ++column) {
        const int pixel = image.pixels[static_cast<size_t>((v + row - 1) * 32 + u + column - 1)];
        equal += std::abs(pixel - scale * disc[row][column]) < 1.5;
      }
  }
  CAPTURE(equal);
  CHECK(equal > 650);
}

TEST_CASE("pathfinder: the discs of a connected image are more often joined by what is drawn") {
  double count[2] = {}, joined[2] = {};
  for (int i = 0; i < 400; ++i) {
    const PathfinderImage image = pathfinder_image("easy", 1, i);
    ++count[image.connected];
    joined[image.connected] += reachable(image);
  }
  CHECK(joined[1] / count[1] > 0.75);
  CHECK(joined[0] / count[0] < 0.6);  // paths may cross
}

TEST_CASE("pathfinder: the cache goes on where it was interrupted, and a larger set uses a smaller one's") {
  const Cache cache;
  const PathfinderSet fresh = pathfinder_images(easy(2300), "");
  std::vector<int64_t> calls;
  CHECK_THROWS_AS(pathfinder_images(easy(1500), cache.path,
                                    [&](int64_t done, int64_t of) {
                                      CHECK(of == 1500);
                                      calls.push_back(done);
                                      throw std::runtime_error("Ctrl-C");
                                    }),
                  std::runtime_error);
  CHECK(calls == std::vector<int64_t>{1000});

  const PathfinderSet smaller =
      pathfinder_images(easy(1500), cache.path, [&](int64_t done, int64_t) { calls.push_back(done); });
  CHECK(calls == std::vector<int64_t>{1000, 1000, 1500});
  CHECK(smaller.generated == 500);
  CHECK(smaller.cache == cache.file(0).parent_path());
  const PathfinderSet larger = pathfinder_images(easy(2300), cache.path);
  CHECK(larger.generated == 800);
  CHECK(same(larger, fresh));
  const PathfinderSet again = pathfinder_images(easy(1500), cache.path);
  CHECK(again.generated == 0);
  CHECK(same(again, smaller));
  CHECK(pathfinder_images(easy(2300), cache.path).generated == 0);  // a smaller set leaves the files as they are
}

TEST_CASE("pathfinder: damaged files of the cache are made anew; one that cannot be written is no error") {
  const Cache cache;
  const PathfinderSet fresh = pathfinder_images(easy(300), cache.path);
  const std::string whole = read_bytes(cache.file(0));
  std::string changed = whole, other = whole;
  changed[whole.size() / 2] ^= 1;
  other.replace(0, 1, "2");
  for (const std::string& damaged : {std::string(), whole.substr(0, 10), whole.substr(0, whole.size() - 1036),
                                     whole.substr(0, whole.size() - 1), whole + "x", changed, other}) {
    write_bytes(cache.file(0), damaged);
    const PathfinderSet set = pathfinder_images(easy(300), cache.path);
    CHECK(set.generated == 300);
    CHECK(same(set, fresh));
    CHECK(read_bytes(cache.file(0)) == whole);
  }
  // What no generator wrote, though the checksum is right. The last image ends in its markers, label and attempts.
  const size_t markers = whole.size() - 4 - sizeof(PathfinderImage) + 1024;
  for (const auto& [at, value] : {std::pair{markers, 32}, {markers + 3, 255}, {markers + 4, 2}, {markers + 7, 128}}) {
    CAPTURE(at);
    std::string impossible = whole;
    impossible[at] = static_cast<char>(value);
    write_cache(cache.file(0), impossible);
    const PathfinderSet set = pathfinder_images(easy(300), cache.path);
    CHECK(set.generated == 300);
    CHECK(same(set, fresh));
    CHECK(read_bytes(cache.file(0)) == whole);
  }
  CHECK(pathfinder_images({"easy", 300, 8}, cache.path).generated == 300);
  fs::copy_file(cache.file(0), cache.path / "pathfinder-easy-8" / "0", fs::copy_options::overwrite_existing);
  CHECK(pathfinder_images({"easy", 300, 8}, cache.path).generated == 300);  // the file is another seed's

  const PathfinderSet set = pathfinder_images(easy(300), cache.file(0));  // a file, where the folder should be
  CHECK(set.cache.empty());
  CHECK(same(set, fresh));
}

TEST_CASE("pathfinder: the distance of markers and a regression on pixels find what they can find, and no more") {
  const PathfinderSet hard = pathfinder_images({"hard", 1000, 1}, "");
  CHECK(std::abs(marker_distance_accuracy(hard, 600) - 0.53) < 0.1);
  CHECK(std::abs(pixel_regression_accuracy(hard.images, 600) - 0.5) < 0.1);

  PathfinderSet set{{"test", 400, 1, 2, 1, {}, {}, {"no", "yes"}}};
  for (const int nearest : {2, 9, 18}) {  // of those that are far
    for (const int32_t far : {0, 1}) {    // their label
      set.images.labels.clear(), set.images.pixels.clear(), set.markers.clear();
      for (int i = 0; set.images.labels.size() < 400; i = (i + 7) % 20) {
        set.markers.push_back({5, 30, 5, static_cast<uint8_t>(30 - i)});
        set.images.labels.push_back(i >= nearest ? far : 1 - far);
        set.images.pixels.insert(set.images.pixels.end(), {100, static_cast<uint8_t>(i >= nearest ? 255 : 0)});
      }
      CHECK(marker_distance_accuracy(set, 300) == 1);
      CHECK(pixel_regression_accuracy(set.images, 300) >=
            (nearest == 9 ? 1 : 0.9));  // few of a class: it learns slowly
    }
  }
  for (int32_t& label : set.images.labels) label = 1;
  CHECK(marker_distance_accuracy(set, 300) == 1);
  CHECK(pixel_regression_accuracy(set.images, 300) == 1);
}

TEST_CASE("pathfinder: errors") {
  check_fails(
      [] {
        pathfinder_images({"harder", 10, 1}, "");
      },
      "pathfinder: there is no difficulty harder; there are easy, intermediate and hard");
  check_fails([] { pathfinder_images({"hard", 0, 1}, ""); }, "pathfinder: a set of 0 images");
  PathfinderSet set = pathfinder_images({"easy", 4, 1}, "");
  check_fails([&] { marker_distance_accuracy(set, 4); }, "marker_distance_accuracy: 4 images of 4 to learn from");
  check_fails([&] { pixel_regression_accuracy(set.images, 0); }, "pixel_regression_accuracy: 0 images of 4");
  set.images.class_names.pop_back();
  check_fails([&] { pixel_regression_accuracy(set.images, 2); }, "has 1 classes; two are needed");
}

}  // namespace
}  // namespace runnel::test
