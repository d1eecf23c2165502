// A digit is a few strokes through control points in the unit square (x to the right, y down). Each image moves the
// points a little, rounds the strokes into splines, scales, slants, turns and shifts them into the middle of 28 x 28,
// and inks every pixel by its distance to the nearest stroke.
#include "datasets/synthetic_digits.h"

#include <algorithm>
#include <cmath>

#include "engine/check.h"

namespace runnel {
namespace {

constexpr int side = 28;

struct Point {
  float x, y;
  Point operator+(Point b) const { return {x + b.x, y + b.y}; }
  Point operator-(Point b) const { return {x - b.x, y - b.y}; }
  Point operator*(float s) const { return {x * s, y * s}; }
  float dot(Point b) const { return x * b.x + y * b.y; }
};

struct Stroke {
  bool curved;  // a spline through the points, or straight lines between them
  std::vector<Point> points;
};

const std::vector<std::vector<Stroke>> glyphs = {
    {{true, {{.5f, 0}, {.16f, .25f}, {.12f, .62f}, {.42f, 1}, {.8f, .8f}, {.88f, .4f}, {.7f, .06f}, {.5f, 0}}}},
    {{false, {{.34f, .18f}, {.52f, 0}, {.5f, 1}}}},
    {{true, {{.14f, .24f}, {.34f, .02f}, {.72f, .06f}, {.8f, .36f}, {.5f, .7f}, {.12f, 1}}},
     {false, {{.12f, 1}, {.9f, .96f}}}},
    {{true, {{.16f, .12f}, {.48f, 0}, {.8f, .2f}, {.66f, .42f}, {.4f, .48f}}},
     {true, {{.4f, .48f}, {.76f, .56f}, {.86f, .78f}, {.54f, 1}, {.12f, .9f}}}},
    {{false, {{.28f, 0}, {.14f, .56f}, {.92f, .54f}}}, {false, {{.74f, .06f}, {.66f, 1}}}},
    {{false, {{.84f, 0}, {.3f, .03f}, {.22f, .44f}}},
     {true, {{.22f, .44f}, {.6f, .38f}, {.86f, .64f}, {.64f, .96f}, {.14f, .94f}}}},
    {{true,
      {{.66f, 0}, {.34f, .28f}, {.16f, .66f}, {.36f, .98f}, {.72f, .92f}, {.8f, .64f}, {.52f, .5f}, {.2f, .68f}}}},
    {{false, {{.12f, .06f}, {.86f, .02f}, {.42f, 1}}}},
    {{true, {{.74f, .14f}, {.4f, 0}, {.24f, .24f}, {.54f, .48f}, {.8f, .74f}, {.5f, 1}, {.2f, .78f}, {.46f, .52f}}},
     {true, {{.46f, .52f}, {.76f, .3f}, {.74f, .14f}}}},
    {{true, {{.8f, .16f}, {.48f, 0}, {.18f, .2f}, {.34f, .46f}, {.7f, .36f}, {.8f, .12f}}},
     {true, {{.8f, .12f}, {.78f, .46f}, {.7f, .74f}, {.58f, 1}}}},
};

// Catmull-Rom: each piece runs from b to c and keeps the directions c - a and d - b at its ends.
std::vector<Point> spline(const std::vector<Point>& p) {
  constexpr int pieces = 5;
  std::vector<Point> curve = {p.front()};
  for (size_t i = 0; i + 1 < p.size(); ++i) {
    const Point a = p[i ? i - 1 : 0], b = p[i], c = p[i + 1], d = p[std::min(i + 2, p.size() - 1)];
    for (int piece = 1; piece <= pieces; ++piece) {
      const float t = static_cast<float>(piece) / pieces;
      curve.push_back(
          (b * 2 + (c - a) * t + (a * 2 - b * 5 + c * 4 - d) * (t * t) + (b * 3 - a - c * 3 + d) * (t * t * t)) * .5f);
    }
  }
  return curve;
}

// Draws the line `from`-`to` over the image; pixels are full inside the pen's radius and fade over one pixel around it.
void ink(uint8_t* image, Point from, Point to, float radius) {
  const auto pixel = [](float x) { return std::clamp(static_cast<int>(std::floor(x)), 0, side - 1); };
  const float reach = radius + 1;
  const Point along = to - from;
  const float squared = std::max(along.dot(along), 1e-12f);
  for (int y = pixel(std::min(from.y, to.y) - reach); y <= pixel(std::max(from.y, to.y) + reach); ++y)
    for (int x = pixel(std::min(from.x, to.x) - reach); x <= pixel(std::max(from.x, to.x) + reach); ++x) {
      const Point here{static_cast<float>(x) + .5f, static_cast<float>(y) + .5f};
      const float t = std::clamp((here - from).dot(along) / squared, 0.f, 1.f);
      const Point off = here - (from + along * t);
      const float shade = std::clamp(radius + .5f - std::sqrt(off.dot(off)), 0.f, 1.f);
      uint8_t& value = image[y * side + x];
      value = std::max(value, static_cast<uint8_t>(std::lround(255 * shade)));
    }
}

void draw(uint8_t* image, int digit, Key key) {
  uint64_t draws = 0;
  const auto between = [&](float low, float high) { return low + (high - low) * key.uniform(draws++); };

  const float width = between(12, 16), height = between(18, 20);
  const float slant = between(-.1f, .3f), turn = between(-.15f, .15f), radius = between(.8f, 1.5f);
  const Point middle{side / 2 + between(-1, 1), side / 2 + between(-1, 1)};
  const float c = std::cos(turn), s = std::sin(turn);
  const auto place = [&](Point p) {
    const float y = (p.y - .5f) * height, x = (p.x - .5f) * width - slant * y;
    return middle + Point{c * x - s * y, s * x + c * y};
  };

  for (const Stroke& stroke : glyphs[static_cast<size_t>(digit)]) {
    std::vector<Point> points = stroke.points;
    for (Point& p : points) p = p + Point{between(-.05f, .05f), between(-.04f, .04f)};
    if (stroke.curved) points = spline(points);
    for (size_t i = 0; i + 1 < points.size(); ++i) ink(image, place(points[i]), place(points[i + 1]), radius);
  }
}

}  // namespace

ImageSet synthetic_digits(int64_t count, Key key) {
  check(count > 0, "synthetic digits: a set of ", count, " images");
  ImageSet set{
      "synthetic digits (not MNIST)", count, side, side, 1, {}, {}, {"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"}};
  set.pixels.resize(static_cast<size_t>(count * set.size()));
  set.labels.resize(static_cast<size_t>(count));
#pragma omp parallel for schedule(static)
  for (int64_t i = 0; i < count; ++i) {
    const Key image = key.fold(static_cast<uint64_t>(i));
    const uint32_t digit = image.fold(0).below(0, 10);
    set.labels[static_cast<size_t>(i)] = static_cast<int32_t>(digit);
    draw(set.pixels.data() + i * set.size(), static_cast<int>(digit), image);
  }
  return set;
}

}  // namespace runnel
