#include "apps/plots/pictures.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <thread>
#include <utility>

#include "datasets/files.h"
#include "engine/check.h"
#include "engine/file.h"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"
#define STB_IMAGE_WRITE_STATIC
#define STB_IMAGE_WRITE_IMPLEMENTATION
#include <stb/stb_image_write.h>
#pragma GCC diagnostic pop

extern char** environ;  // which macOS does not declare

namespace runnel {
namespace {

using Colour = std::array<uint8_t, 3>;
constexpr Colour unknown = {38, 62, 110}, line = {90, 98, 112};

Picture blank(int64_t height, int64_t width, Colour colour) {
  Picture p{height, width, {}};
  p.rgb.reserve(static_cast<size_t>(height * width * 3));
  for (int64_t i = 0; i < height * width; ++i) p.rgb.insert(p.rgb.end(), colour.begin(), colour.end());
  return p;
}

// Puts `from`, enlarged, into `to` with its upper left corner at row y, column x.
void paste(Picture& to, const Picture& from, int64_t y, int64_t x, int64_t zoom) {
  for (int64_t row = 0; row < from.height * zoom; ++row)
    for (int64_t column = 0; column < from.width * zoom; ++column)
      std::copy_n(from.rgb.begin() + (row / zoom * from.width + column / zoom) * 3, 3,
                  to.rgb.begin() + ((y + row) * to.width + x + column) * 3);
}

// Colour map "inferno" (van der Walt and Smith, matplotlib, CC0) at nine points, with straight lines between them.
Colour inferno(double x) {
  constexpr Colour at[] = {{0, 0, 4},     {31, 12, 72},   {85, 15, 109},  {136, 34, 106}, {186, 54, 85},
                           {227, 89, 51}, {249, 140, 10}, {249, 201, 50}, {252, 255, 164}};
  const double position = (x > 0 ? std::min(x, 1.0) : 0) * 8;  // NaN counts as 0
  const size_t i = std::min<size_t>(static_cast<size_t>(position), 7);
  const double part = position - static_cast<double>(i);
  Colour colour;
  for (size_t c = 0; c < 3; ++c)
    colour[c] = static_cast<uint8_t>(std::lround((1 - part) * at[i][c] + part * at[i + 1][c]));
  return colour;
}

constexpr std::chrono::seconds time_limit{10};  // of a plot, which takes less than one

constexpr int not_ended = -1, not_installed = -2;

// The program's exit status, or one of the above. Its output goes into an open file, its messages nowhere.
int run(const char* program, std::vector<std::string> arguments, int output) {
  std::vector<char*> argv = {const_cast<char*>(program)};
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  pid_t child = 0;
  const int error = posix_spawnp(&child, program, &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error) return error == ENOENT ? not_installed : not_ended;
  int status = 0;
  const auto deadline = std::chrono::steady_clock::now() + time_limit;
  for (pid_t ended = 0; ended != child;) {
    ended = waitpid(child, &status, WNOHANG);
    if (ended < 0 && errno != EINTR) return not_ended;
    if (ended == child) break;
    if (std::chrono::steady_clock::now() > deadline) kill(child, SIGKILL);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : not_ended;
}

}  // namespace

Picture picture(std::span<const uint8_t> bytes, int64_t height, int64_t width, int64_t channels, int64_t known) {
  check(channels == 1 || channels == 3, "picture: ", channels, " channels");
  check(static_cast<int64_t>(bytes.size()) == height * width * channels, "picture: ", bytes.size(), " bytes for ",
        height, " x ", width, " pixels of ", channels);
  Picture p = blank(height, width, unknown);
  const int64_t pixels = std::min(height * width, known / channels);
  for (int64_t i = 0; i < pixels; ++i)
    for (int64_t c = 0; c < 3; ++c)
      p.rgb[static_cast<size_t>(3 * i + c)] = bytes[static_cast<size_t>(channels == 1 ? i : 3 * i + c)];
  return p;
}

Picture sheet(const std::vector<Picture>& cells, int64_t columns, int64_t zoom) {
  constexpr int64_t gap = 2;
  check(!cells.empty() && columns > 0, "sheet: no cells or columns");
  const int64_t count = static_cast<int64_t>(cells.size());
  if (zoom == 0)
    zoom =
        std::max<int64_t>(1, std::min(84.0, 2000.0 / double(std::min(columns, count))) / double(cells[0].width) + 0.5);
  const int64_t height = cells[0].height * zoom + gap, width = cells[0].width * zoom + gap;
  Picture all = blank((count + columns - 1) / columns * height + gap, std::min(columns, count) * width + gap, line);
  for (int64_t i = 0; i < count; ++i) {
    const Picture& cell = cells[static_cast<size_t>(i)];
    check(cell.height == cells[0].height && cell.width == cells[0].width, "sheet: picture ", i, " has another size");
    paste(all, cell, i / columns * height + gap, i % columns * width + gap, zoom);
  }
  return all;
}

Picture heat(std::span<const double> values, int64_t height, int64_t width, double largest) {
  check(static_cast<int64_t>(values.size()) == height * width, "heat map: ", values.size(), " values for ", height,
        " x ", width);
  Picture map = blank(height, width, line);
  for (size_t i = 0; i < values.size(); ++i)
    std::ranges::copy(inferno(values[i] / largest), map.rgb.begin() + 3 * static_cast<std::ptrdiff_t>(i));
  return map;
}

Picture heat_map(std::span<const double> values, int64_t height, int64_t width, double largest, int64_t zoom) {
  const Picture map = heat(values, height, width, largest);
  const int64_t steps = height * zoom;
  std::vector<double> falling;
  for (int64_t i = 0; i < steps; ++i)
    falling.push_back(1 - static_cast<double>(i) / static_cast<double>(std::max<int64_t>(steps - 1, 1)));
  Picture all = blank(steps, (width + 2) * zoom, line);
  paste(all, map, 0, 0, zoom);
  paste(all, resized(heat(falling, steps, 1, 1), steps, zoom), 0, (width + 1) * zoom, 1);
  return all;
}

Picture resized(const Picture& from, int64_t height, int64_t width) {
  Picture to = blank(height, width, line);
  for (int64_t y = 0; y < height; ++y)
    for (int64_t x = 0; x < width; ++x)
      std::copy_n(from.rgb.begin() + (y * from.height / height * from.width + x * from.width / width) * 3, 3,
                  to.rgb.begin() + (y * width + x) * 3);
  return to;
}

std::string half_blocks(const Picture& p) {
  const auto pixel = [&](int64_t y, int64_t x) {
    Colour colour;
    std::copy_n(p.rgb.begin() + (y * p.width + x) * 3, 3, colour.begin());
    return colour;
  };
  std::string text;
  for (int64_t y = 0; y < p.height; y += 2) {
    for (int64_t x = 0; x < p.width; ++x) {
      const auto set = [&](const char* what, int64_t at) {  // if it is not set already
        const Colour c = pixel(at, x);
        if (x == 0 || c != pixel(at, x - 1))
          text += "\x1b[" + std::string(what) + ";2;" + std::to_string(c[0]) + ";" + std::to_string(c[1]) + ";" +
                  std::to_string(c[2]) + "m";
      };
      set("38", y);
      if (y + 1 < p.height) set("48", y + 1);
      text += "\u2580";
    }
    text += "\x1b[0m\n";
  }
  return text;
}

void write_png(const std::filesystem::path& path, const Picture& p) {
  std::vector<char> png;
  const auto append = [](void* to, void* data, int size) {
    const char* const bytes = static_cast<const char*>(data);
    static_cast<std::vector<char>*>(to)->insert(static_cast<std::vector<char>*>(to)->end(), bytes, bytes + size);
  };
  const bool done = stbi_write_png_to_func(append, &png, static_cast<int>(p.width), static_cast<int>(p.height), 3,
                                           p.rgb.data(), static_cast<int>(p.width * 3));
  check(done, path.string(), ": a picture of ", p.width, " x ", p.height, " cannot be made into a PNG");
  check_png_replaceable(path);
  write_atomically(path, {png});
}

void check_png_replaceable(const std::filesystem::path& path) {
  const std::filesystem::path folder = path.has_parent_path() ? path.parent_path() : ".";
  const bool is_writable = access((folder / "").c_str(), W_OK | X_OK) == 0;
  check(is_writable, "cannot write ", path.string(), ": its folder: ", std::strerror(errno));
  check_replaceable(path, "a PNG file", "\x89PNG\r\n\x1a\n");
}

std::string quoted(const std::string& text) {  // 'it''s'
  std::string result = "'";
  for (const char c : text) {
    check(static_cast<unsigned char>(c) >= ' ', "plot: a control character in a name");  // would end the command
    result += c == '\'' ? std::string("''") : std::string(1, c);
  }
  return result + "'";
}

// A name that begins with < or | would be a command.
std::string data_file(const std::filesystem::path& path) { return quoted(std::filesystem::absolute(path).string()); }

bool plot(const std::filesystem::path& png, const std::string& commands, int width, int height) noexcept try {
  check_png_replaceable(png);
  const std::string script = "set terminal pngcairo noenhanced size " + std::to_string(width) + "," +
                             std::to_string(height) + "; set datafile separator ','; set grid; " + commands;
  PartialFile file(png);
  const int status = run("gnuplot", {"-d", "-e", script}, file.descriptor());  // -d: without the user's own settings
  if (status == 0) {
    file.commit();
    return true;
  }
  static bool said = false;
  if (!std::exchange(said, true))
    std::fputs(status == not_installed ? "gnuplot is not installed: no plots\n"
               : status == not_ended   ? "gnuplot was ended after ten seconds: no plots\n"
                                       : "gnuplot failed: no plots\n",
               stderr);
  return false;
} catch (const std::exception& error) {
  std::fprintf(stderr, "no plot: %s\n", error.what());
  return false;
}

void plot_loss(const std::filesystem::path& csv, const std::filesystem::path& png, const std::string& title,
               const std::string& unit, double epoch, const std::string& rate) noexcept try {
  LineFile rows(csv);
  std::string row;
  if (!rows.next(row) || !rows.next(row)) return;  // only names so far
  const bool is_nats = unit == "nats";
  const std::string data = data_file(csv), ending = is_nats ? "'" : "_bits'";
  // Columns by name: how many there are depends on the task.
  const auto validation = [&](const std::string& x, const std::string& column) {
    return data + " using " + x + ":" + column +
           " with linespoints pt 7 ps 0.6 lw 2 lc rgb '#b03020' title 'validation'";
  };
  const auto curves = [&](const char* label, const std::string& x) {
    std::string all = std::string("set xlabel '") + label + "'; set ylabel " + quoted(unit) +
                      (is_nats ? "; set logscale y" : "") + "; plot " + data + " using " + x + ":'loss" + ending +
                      " with lines lc rgb '#9fb6d8' title 'training', " + validation(x, "'validation" + ending);
    if (!rate.empty())
      all +=
          "; unset logscale y; set ylabel " + quoted(rate + " in per cent") + "; plot " + validation(x, quoted(rate));
    return all + "; ";
  };
  plot(png,
       std::string("set xrange [0:*]; set multiplot layout ") + (rate.empty() ? "1," : "2,") + (epoch > 0 ? "2" : "1") +
           " columnsfirst title " + quoted(title) + "; " +
           (epoch > 0 ? curves("hours", "(column('seconds')/3600)") +
                            curves("epochs", "(column('step')/" + std::to_string(epoch) + ")")
                      : curves("updates", "'step'")),
       900, rate.empty() ? 540 : 760);
} catch (const std::exception& error) {
  std::fprintf(stderr, "no plot: %s\n", error.what());
}

}  // namespace runnel
