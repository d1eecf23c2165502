// Pictures to look at: PNG files of images, sheets of them, heat maps, and the plot of a loss.
#pragma once
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace runnel {

struct Picture {
  int64_t height = 0, width = 0;
  std::vector<uint8_t> rgb;  // [height,width,3]
};

// From bytes [height,width,channels], grey or RGB. Bytes from number `known` on are left out: their pixels are blue.
Picture picture(std::span<const uint8_t> bytes, int64_t height, int64_t width, int64_t channels,
                int64_t known = INT64_MAX);

// Pictures of one size in rows of `columns`, thin lines between them, each pixel drawn as zoom x zoom. A zoom of 0
// makes each some 84 pixels wide, less if that were more than 2,000 in a row.
Picture sheet(const std::vector<Picture>& cells, int64_t columns, int64_t zoom = 0);

// For a terminal of 24-bit colours: two pixels in each character, as its upper half and its background.
std::string half_blocks(const Picture& picture);

// Values [height,width] from 0 (black) over violet and orange to `largest` (pale yellow).
Picture heat(std::span<const double> values, int64_t height, int64_t width, double largest);

// The same, each zoom x zoom, with the scale as a bar on the right, its largest value at the top.
Picture heat_map(std::span<const double> values, int64_t height, int64_t width, double largest, int64_t zoom);

// The picture in another size, each pixel being the one that lies there.
Picture resized(const Picture& picture, int64_t height, int64_t width);

// Replaces the file only when the new one is whole. Throws Error that names the path, also if what stands there is no
// PNG file.
void write_png(const std::filesystem::path& path, const Picture& picture);
// Throws the same where its folder is missing or cannot be written to, too: for before anything is computed.
void check_png_replaceable(const std::filesystem::path& path);

// Draws what gnuplot's commands say; data files are CSV. Needs gnuplot; says once if it is not there or fails. A plot
// is not worth a run: nothing here throws. False if there is no new plot.
bool plot(const std::filesystem::path& png, const std::string& commands, int width = 900, int height = 540) noexcept;
std::string quoted(const std::string& text);               // a string in gnuplot's commands
std::string data_file(const std::filesystem::path& path);  // the same, of a file to read

// Draws the losses of a metrics.csv over the updates: in nats on a logarithmic axis, or in another unit, whose columns
// end in _bits. If there are
// epochs, of so many updates, then over the hours and over the epochs (figure 5), and below them the column `rate`, in
// per cent, unless its name is empty. Nothing while the file has no row.
void plot_loss(const std::filesystem::path& csv, const std::filesystem::path& png, const std::string& title,
               const std::string& unit, double epoch, const std::string& rate = "") noexcept;

}  // namespace runnel
