// The generator of Linsley et al. ("Learning long-range spatial dependencies with horizontal gated recurrent units",
// NeurIPS 2018; github.com/drewlinsley/pathfinder) with the settings of Long Range Arena's Pathfinder32, written anew
// for this one size. Angles have rows as y and columns as x.
//  * A path is a chain of paddles, dashes of 2 pixels. Each step moves the pivot 4 pixels ahead, rounded up, and draws
//    one of 18 places around it as the next tip, with probability ~ (1 - occupied) cos^2 of the turn; the paddle runs
//    from the tip back towards the pivot. It occupies its place only with the next step, so that it does not block its
//    successor. If one of two paths finds no room, both begin anew: some 300 times until two paths of 14 fit.
//  * There are 360 + 18 directions, so every image of a paddle, all weights and all steps are tables, and an attempt is
//    a few lookups per step.
//  * Grey values are bytes and weights are integers, as in the original, which drew with Pillow: lines of 1 pixel on a
//    grid of twice the size, made smaller by Lanczos' filter, horizontally and then vertically, rounded after each.
// What one would not expect is the original's:
//  * The last paddle of the first path does not occupy its place, and the second path begins without a look at the
//    first.
//  * A path begins in one of 30 directions, not 360. What must be free there are the paddle's full pixels, shifted by
//    one pixel down and to the right. OpenCV's dilation by them gives the lowest number of all where they lie entirely
//    outside the window, and then the original takes no place as free. Only directions to the upper left never do that.
//    So the first path begins at one of nine places, rows 14 to 16 and columns 14 to 16.
#include "datasets/lra/pathfinder_image.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <set>
#include <utility>
#include <vector>

#include "engine/check.h"
#include "engine/random.h"

namespace runnel {
namespace pathfinder {
namespace {

constexpr int side = 32, border = 1;
constexpr int paddle_length = 2, margin = 1, fine = 2;  // fine: the grid for drawing has that many points per pixel
constexpr int reach = paddle_length + margin + 1, span_of_paddle = 2 * reach + 1;
constexpr int seed_distance = 7, from_border = 2 * seed_distance;
constexpr int fine_marker_radius = 3;
constexpr int paddle_tries = 3, distractor_tries = 5, distractor_paddles = 20;
constexpr int free_below = 77;                 // 0.3 of 255: what a first paddle takes as free
constexpr int collision = 459;                 // 1.8 of 255
constexpr uint32_t weight_one = 1 << 16;       // a factor of 255 more, and a sum of 18, still fit 32 bits
constexpr uint32_t min_weight = 1672;          // 1e-4 of 255 * weight_one
constexpr int degrees = 360, candidates = 18;  // directions 0 .. 359 are -180 .. 179 degrees, then those of candidates
constexpr int directions = degrees + candidates;
constexpr int target_contrast = 3, distractor_contrast = 4, marker_contrast = 2;  // in halves

constexpr std::pair<const char*, int> difficulties[] = {{"easy", 6}, {"intermediate", 9}, {"hard", 14}};  // paddles
constexpr int max_paddles = 14;

struct Place {
  int y = 0, x = 0;
  Place operator+(Place b) const { return {y + b.y, x + b.x}; }
  bool inside() const { return y >= 0 && y < side && x >= 0 && x < side; }
};

// The way from a place at the coordinates `at`, each rounded up after the sum, of which the rounding as a double is
// part: it turns the sine of 180 degrees, 1e-16, into zero.
Place step(double angle, double distance, int at = side / 2) {
  const auto up = [at](double d) { return static_cast<int>(std::ceil(at + d)) - at; };
  return {up(distance * std::sin(angle)), up(distance * std::cos(angle))};
}
constexpr double pi = std::numbers::pi;
double opposite(double angle) { return angle < 0 ? angle + pi : angle - pi; }

// --- Drawing ---------------------------------------------------------------------------------------------------------

template <int n>
struct Square {
  std::array<uint8_t, n * n> cells{};
  uint8_t& operator()(int y, int x) { return cells[static_cast<size_t>(y * n + x)]; }
  uint8_t operator()(int y, int x) const { return cells[static_cast<size_t>(y * n + x)]; }
};

// The filter of Lanczos for a line of `from` points made `to` points: each is a weighted sum of neighbours.
template <int from, int to>
class Lanczos {
 public:
  Lanczos() {
    constexpr double scale = static_cast<double>(from) / to, support = 3 * scale;
    const auto sinc = [](double x) { return x == 0 ? 1 : std::sin(pi * x) / (pi * x); };
    for (int i = 0; i < to; ++i) {
      const double centre = (i + 0.5) * scale;
      Point& point = points_[static_cast<size_t>(i)];
      point.begin = static_cast<int>(std::max(centre - support + 0.5, 0.0));
      const int end = std::min(static_cast<int>(centre + support + 0.5), from);
      double sum = 0;
      for (int n = point.begin; n < end; ++n) {
        const double x = (n - centre + 0.5) / scale;
        point.weights.push_back(std::abs(x) < 3 ? sinc(x) * sinc(x / 3) : 0);
        sum += point.weights.back();
      }
      for (double& w : point.weights) w /= sum;
    }
  }
  template <class Read>
  uint8_t operator()(int i, const Read& read) const {  // point i of the shorter line from read(n) of the longer one
    const Point& point = points_[static_cast<size_t>(i)];
    int n = point.begin;
    double sum = 0;
    for (const double w : point.weights) sum += w * read(n++);
    return static_cast<uint8_t>(std::clamp(sum + 0.5, 0.0, 255.0));
  }

 private:
  struct Point {
    int begin = 0;
    std::vector<double> weights;
  };
  std::array<Point, to> points_;
};

template <int to, int from>
Square<to> smaller(const Square<from>& image) {
  static const Lanczos<from, to> filter;
  std::array<std::array<uint8_t, to>, from> narrow;
  Square<to> result;
  for (int y = 0; y < from; ++y)
    for (int x = 0; x < to; ++x)
      narrow[static_cast<size_t>(y)][static_cast<size_t>(x)] = filter(x, [&](int n) { return image(y, n); });
  for (int y = 0; y < to; ++y)
    for (int x = 0; x < to; ++x)
      result(y, x) = filter(y, [&](int n) { return narrow[static_cast<size_t>(n)][static_cast<size_t>(x)]; });
  return result;
}

template <int n>
void fill_disc(Square<n>& image, int y, int x, int radius) {
  for (int v = std::max(y - radius, 0); v <= std::min(y + radius, n - 1); ++v)
    for (int u = std::max(x - radius, 0); u <= std::min(x + radius, n - 1); ++u)
      if ((v - y) * (v - y) + (u - x) * (u - x) <= radius * radius) image(v, u) = 255;
}

constexpr int fine_centre = reach * fine, fine_span = 2 * fine_centre + 1;

// A line from the centre, one point for each along its longer axis (Bresenham), half a point being rounded away from
// the centre. Every point is a disc.
Square<span_of_paddle> paddle_image(double angle, int radius) {
  Square<fine_span> image;
  const Place end = step(angle, paddle_length * fine, fine_centre);
  const int steps = std::max(std::abs(end.y), std::abs(end.x));
  for (int i = 0; i <= steps; ++i) {
    const auto along = [&](int way) { return static_cast<int>(std::lround(static_cast<double>(way * i) / steps)); };
    fill_disc(image, fine_centre + along(end.y), fine_centre + along(end.x), radius);
  }
  return smaller<span_of_paddle>(image);
}

Square<side> marker(Place at) {
  Square<side * fine> image;
  fill_disc(image, at.y * fine, at.x * fine, fine_marker_radius);
  return smaller<side>(image);
}

// --- What is occupied ------------------------------------------------------------------------------------------------

struct Paddle {
  static constexpr size_t row = 16;  // of which 9 bytes are used: one vector
  static constexpr size_t index(int y, int x) { return static_cast<size_t>(y) * row + static_cast<size_t>(x); }
  std::array<uint8_t, span_of_paddle * row> line, mask;
  std::array<uint8_t, span_of_paddle * row> limit;  // what is occupied may be that much
};

// The window with a border in which a paddle may stick out, and where nothing is ever occupied.
class Grid {
 public:
  static constexpr size_t row = 48, size = (side + 2 * reach) * row;
  static_assert(row >= side - 1 + Paddle::row);
  static constexpr size_t index(Place p) {
    return static_cast<size_t>(p.y + reach) * row + static_cast<size_t>(p.x + reach);
  }
  static constexpr size_t corner(Place p) { return index({p.y - reach, p.x - reach}); }

  const uint8_t* row_at(Place p) const { return &cells_[index(p)]; }
  void set(Place p, uint8_t value) { cells_[index(p)] = value; }

  // The largest of a cell and its four neighbours.
  int dilated(Place p) const {
    const uint8_t* const c = &cells_[index(p)];
    return std::max({c[0], c[1], c[-1], c[row], c[-static_cast<ptrdiff_t>(row)]});
  }

  bool collides(const Paddle& paddle, Place at) const {
    const uint8_t *cell = &cells_[corner(at)], *limit = paddle.limit.data();
    uint8_t any = 0;
    for (int y = 0; y < span_of_paddle; ++y, cell += row, limit += Paddle::row)
      for (size_t x = 0; x < Paddle::row; ++x) any |= static_cast<uint8_t>(cell[x] > limit[x]);
    return any;
  }

  void join(const Paddle& paddle, Place at, const Grid& window) {
    uint8_t* cell = &cells_[corner(at)];
    const uint8_t *inside = &window.cells_[corner(at)], *mask = paddle.mask.data();
    for (int y = 0; y < span_of_paddle; ++y, cell += row, inside += row, mask += Paddle::row)
      for (size_t x = 0; x < Paddle::row; ++x) cell[x] = std::max(cell[x], static_cast<uint8_t>(mask[x] & inside[x]));
  }

 private:
  std::array<uint8_t, size> cells_{};
};

using Kernel = std::vector<Place>;

// The places of the window, in rows, where all that lies under the kernel is free. None if it is empty.
struct FreePlaces {
  int count = 0;
  FreePlaces(const Grid& occupied, const Kernel& kernel) {
    if (kernel.empty()) return;
    for (const Place p : kernel)
      for (int y = 0; y < side; ++y) {
        const uint8_t* const from = occupied.row_at(Place{y, 0} + p);
        uint8_t* const to = &largest_(y, 0);
        for (int x = 0; x < side; ++x) to[x] = std::max(to[x], from[x]);
      }
    for (const uint8_t cell : largest_.cells) count += cell < free_below;
  }
  Place number(size_t n) const {
    int i = 0;
    while (largest_.cells[static_cast<size_t>(i)] >= free_below || n-- > 0) ++i;
    return {i / side, i % side};
  }

 private:
  Square<side> largest_;
};

// --- Tables ----------------------------------------------------------------------------------------------------------

struct Direction {
  Place next_pivot;                          // from the pivot
  std::array<uint32_t, candidates> weights;  // cos^2 of the turn, in units of 1 / weight_one
};

struct FirstPaddle {
  Place head, pivot;               // from the tail
  Kernel kernel;                   // what must be free around the tail
  std::vector<Place> first_tails;  // where the first path may begin
};

struct Tables {
  std::array<Place, candidates> candidate;  // from the pivot, in rows
  std::array<Direction, directions> direction;
  std::array<Paddle, directions> paddle;  // along a direction; that of a candidate from there to the pivot
  std::array<FirstPaddle, degrees> first;
  std::array<Place, degrees> second_tail;  // from the first's
  Grid window, bordered;                   // full inside the window; full at its border

  Tables() {
    std::set<std::pair<int, int>> circle;  // one point per pixel of arc
    constexpr int radius = paddle_length + margin;
    for (int i = 0; i < 2 * pi * radius; ++i) {
      const double arc = i / static_cast<double>(radius);
      circle.emplace(std::floor(radius * std::sin(arc)), std::floor(radius * std::cos(arc)));
    }
    check(circle.size() == candidates, "pathfinder: ", circle.size(), " places around a pivot, not ", candidates);
    std::ranges::transform(circle, candidate.begin(), [](const auto& p) { return Place{p.first, p.second}; });

    std::array<double, directions> angle;
    for (size_t d = 0; d < degrees; ++d) angle[d] = (static_cast<int>(d) - 180) * pi / 180;
    for (size_t c = 0; c < candidates; ++c) angle[degrees + c] = std::atan2(candidate[c].y, candidate[c].x);
    for (size_t d = 0; d < directions; ++d) {
      direction[d].next_pivot = step(angle[d], paddle_length + 2 * margin);
      for (size_t c = 0; c < candidates; ++c) {
        const double apart = std::abs(angle[degrees + c] - angle[d]), turn = std::min(apart, 2 * pi - apart);
        const double cosine = std::cos(std::min(turn, pi / 2));
        direction[d].weights[c] = static_cast<uint32_t>(std::lround(cosine * cosine * weight_one));
      }
      paddle[d] = make_paddle(d < degrees ? angle[d] : opposite(angle[d]));
    }

    Grid far;
    for (int y = 0; y < side; ++y)
      for (int x = 0; x < side; ++x) {
        const int in = std::min({y, x, side - 1 - y, side - 1 - x});
        window.set({y, x}, 255);
        if (in < border) bordered.set({y, x}, 255);
        if (in < from_border) far.set({y, x}, 255);
      }
    for (size_t d = 0; d < degrees; ++d) {
      FirstPaddle& f = first[d];
      f.head = step(angle[d], paddle_length);
      f.pivot = f.head + step(opposite(angle[d]), paddle_length + margin);
      f.kernel = kernel_of(paddle[d]);
      const FreePlaces tails(far, f.kernel);
      for (int n = 0; n < tails.count; ++n) f.first_tails.push_back(tails.number(static_cast<size_t>(n)));
      second_tail[d] = {static_cast<int>(std::nearbyint(seed_distance * std::sin(angle[d]))),
                        static_cast<int>(std::nearbyint(seed_distance * std::cos(angle[d])))};
    }
  }

 private:
  static Paddle make_paddle(double angle) {
    const Square<span_of_paddle> line = paddle_image(angle, 0), mask = paddle_image(angle, margin * fine);
    Paddle paddle{};
    paddle.limit.fill(255);
    for (int y = 0; y < span_of_paddle; ++y)
      for (int x = 0; x < span_of_paddle; ++x) {
        const size_t i = Paddle::index(y, x);
        paddle.line[i] = line(y, x);
        paddle.mask[i] = mask(y, x);
        paddle.limit[i] = static_cast<uint8_t>(std::min(collision - 1 - mask(y, x), 255));
      }
    return paddle;
  }

  // The full pixels of a paddle drawn from (4, 4) of 7 x 7 pixels, of which (3, 3) is the middle. None if all would lie
  // outside the window somewhere, which they then do in one of its corners.
  static Kernel kernel_of(const Paddle& paddle) {
    constexpr int size = 2 * (paddle_length + margin) + 1;
    Kernel kernel;
    for (int y = 0; y < size; ++y)
      for (int x = 0; x < size; ++x)
        if (paddle.mask[Paddle::index(y, x)] == 255) kernel.push_back({y - size / 2, x - size / 2});
    for (const Place corner : {Place{0, 0}, {0, side - 1}, {side - 1, 0}, {side - 1, side - 1}})
      if (std::none_of(kernel.begin(), kernel.end(), [&](Place p) { return (corner + p).inside(); })) return {};
    return kernel;
  }
};

const Tables& tables() {
  static const Tables tables;
  return tables;
}

// --- One image -------------------------------------------------------------------------------------------------------

class Draws {
 public:
  explicit Draws(Key key) : key_(key) {}
  size_t below(size_t n) {
    if (next_ % 4 == 0) block_ = key_.block(next_ / 4);
    return block_[next_++ % 4] * uint64_t{n} >> 32;
  }

 private:
  Key key_;
  uint64_t next_ = 0;
  Philox block_{};
};

// A path grows; it is drawn when it is whole.
struct Path {
  struct Drawn {
    size_t paddle;
    Place at;
  };
  std::array<Drawn, max_paddles> drawn;
  int count = 0;
  Place pivot;
  size_t direction = 0;

  const Drawn& last() const { return drawn[static_cast<size_t>(count - 1)]; }
  void add(size_t paddle, Place at, Place its_pivot) {
    drawn[static_cast<size_t>(count++)] = {paddle, at};
    pivot = its_pivot;
    direction = paddle;
  }
};

class Generator {
 public:
  Generator(int paddles, Key key) : paddles_(paddles), draws_(key) {}

  PathfinderImage operator()() {
    PathfinderImage image{};
    image.connected = static_cast<int32_t>(draws_.below(2));
    std::array<Path, 2> paths;
    do ++image.attempts;
    while (!two_paths(paths));
    for (const Path& path : paths) draw(path, target_contrast);
    distractors();

    const size_t first = draws_.below(2), second = image.connected ? first : 1 - first;
    const Place ends[] = {paths[first].drawn[0].at, paths[second].last().at};
    for (size_t m = 0; m < 2; ++m) {
      const Square<side> disc = marker(ends[m]);
      for (size_t i = 0; i < image_.size(); ++i) image_[i] = std::max(image_[i], marker_contrast * disc.cells[i]);
      image.markers[2 * m] = static_cast<uint8_t>(ends[m].y);
      image.markers[2 * m + 1] = static_cast<uint8_t>(ends[m].x);
    }
    const int largest = std::ranges::max(image_);  // becomes 255
    for (size_t i = 0; i < image_.size(); ++i)
      image.pixels[i] = static_cast<uint8_t>((2 * 255 * image_[i] + largest) / (2 * largest));
    return image;
  }

 private:
  bool begin(Path& path, Place tail, size_t degree) const {
    const FirstPaddle& f = tables_.first[degree];
    const Place pivot = tail + f.pivot;
    if (!(tail + f.head).inside() || !pivot.inside()) return false;
    path.count = 0;
    path.add(degree, tail, pivot);
    return true;
  }

  bool extend(Path& path) {
    const Direction& direction = tables_.direction[path.direction];
    const Place pivot = path.pivot + direction.next_pivot;
    std::array<uint32_t, candidates> until;  // sums of weights
    uint32_t sum = 0;
    for (size_t c = 0; c < candidates; ++c) {
      const Place tip = pivot + tables_.candidate[c];
      if (direction.weights[c] && tip.inside())
        sum += static_cast<uint32_t>(255 - occupied_.dilated(tip)) * direction.weights[c];
      until[c] = sum;
    }
    if (sum < min_weight) return false;
    for (int i = 0; i < paddle_tries; ++i) {
      const size_t drawn = draws_.below(sum);
      const size_t c = static_cast<size_t>(std::ranges::upper_bound(until, drawn) - until.begin());
      const Place tip = pivot + tables_.candidate[c];
      if (occupied_.collides(tables_.paddle[degrees + c], tip)) continue;
      join_last(path);
      path.add(degrees + c, tip, pivot);
      return true;
    }
    return false;
  }

  void join_last(const Path& path) {
    occupied_.join(tables_.paddle[path.last().paddle], path.last().at, tables_.window);
  }

  bool two_paths(std::array<Path, 2>& paths) {
    occupied_ = tables_.bordered;
    const size_t degree = draws_.below(degrees);
    const std::vector<Place>& tails = tables_.first[degree].first_tails;
    if (tails.empty()) return false;
    const Place tail = tails[draws_.below(tails.size())];
    if (!begin(paths[0], tail, degree)) return false;
    const size_t second = draws_.below(degrees);
    if (!begin(paths[1], tail + tables_.second_tail[draws_.below(degrees)], second)) return false;
    for (int i = 1; i < paddles_; ++i)
      for (Path& path : paths)
        if (!extend(path)) return false;
    join_last(paths[1]);
    return true;
  }

  bool distractor(Path& path, int paddles) {
    for (int i = 0;; ++i) {
      if (i == paddle_tries) return false;
      const size_t degree = draws_.below(degrees);
      const FreePlaces tails(occupied_, tables_.first[degree].kernel);
      if (tails.count == 0) return false;
      if (begin(path, tails.number(draws_.below(static_cast<size_t>(tails.count))), degree)) break;
    }
    for (int i = 1; i < paddles; ++i)
      if (!extend(path)) return false;
    join_last(path);
    return true;
  }

  void distractors() {
    const int length = paddles_ / 3;
    for (int n = 0; n < distractor_paddles / length; ++n)
      for (int i = 0; i < distractor_tries; ++i) {
        const Grid before = occupied_;
        Path path;
        if (distractor(path, length)) {
          draw(path, distractor_contrast);
          break;
        }
        occupied_ = before;
      }
  }

  void draw(const Path& path, int contrast) {
    for (int i = 0; i < path.count; ++i) {
      const auto& [paddle, at] = path.drawn[static_cast<size_t>(i)];
      for (int y = 0; y < span_of_paddle; ++y)
        for (int x = 0; x < span_of_paddle; ++x) {
          const Place p{at.y + y - reach, at.x + x - reach};
          if (!p.inside()) continue;
          int& pixel = image_[static_cast<size_t>(p.y * side + p.x)];
          pixel = std::max(pixel, contrast * tables_.paddle[paddle].line[Paddle::index(y, x)]);
        }
    }
  }

  const Tables& tables_ = tables();
  const int paddles_;
  Draws draws_;
  Grid occupied_;
  std::array<int, side * side> image_{};
};

}  // namespace
}  // namespace pathfinder

PathfinderImage pathfinder_image(const std::string& difficulty, uint64_t seed, int64_t i) {
  for (const auto& [name, paddles] : pathfinder::difficulties)
    if (name == difficulty)
      return pathfinder::Generator(paddles,
                                   Key{seed}.fold(static_cast<uint64_t>(paddles)).fold(static_cast<uint64_t>(i)))();
  fail("pathfinder: there is no difficulty ", difficulty, "; there are easy, intermediate and hard");
}

}  // namespace runnel
