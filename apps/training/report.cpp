#include "apps/training/report.h"

#include <algorithm>

#include "engine/file.h"

namespace runnel {
namespace {

namespace fs = std::filesystem;

constexpr const char* beginning = "<!DOCTYPE html>\n<!-- Runnel's report of a run -->\n";
constexpr uint64_t max_picture_bytes = 16 << 20;

// The policy lets a browser use nothing but the page itself, whatever a name or setting may contain.
constexpr const char* head = R"(<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222; background: #fff }
h1, h2 { font-weight: 600; line-height: 1.2 }
h2 { margin-top: 2rem }
table { border-collapse: collapse }
th, td { text-align: left; vertical-align: top; padding: .15rem 1.5rem .15rem 0; border-bottom: 1px solid #ddd }
th { font-weight: 500; white-space: nowrap }
td { overflow-wrap: anywhere; font-variant-numeric: tabular-nums }
.settings { columns: 18rem; column-gap: 2rem }
.settings div { display: flex; justify-content: space-between; gap: 1rem; break-inside: avoid; border-bottom: 1px solid #ddd }
.settings span { overflow-wrap: anywhere; text-align: right }
img { max-width: 100%; height: auto }
figure { margin: 0 0 1rem }
</style>
)";

std::string escaped(const std::string& text) {
  std::string html;
  for (const char c : text)
    html += c == '&' ? "&amp;" : c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '"' ? "&quot;" : std::string(1, c);
  return html;
}

std::string base64(const std::string& bytes) {
  constexpr const char* digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const auto byte = [&](size_t i) { return i < bytes.size() ? static_cast<uint8_t>(bytes[i]) : 0u; };
  std::string text;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    const uint32_t three = byte(i) << 16 | byte(i + 1) << 8 | byte(i + 2);
    for (size_t j = 0; j < 4; ++j) text += i + j > bytes.size() ? '=' : digits[three >> (18 - 6 * j) & 63];
  }
  return text;
}

// The file itself, and not the target of a link: a report may be shown to others.
bool is_own(const fs::path& png) {
  std::error_code error;
  return fs::symlink_status(png, error).type() == fs::file_type::regular;
}

std::string image(const fs::path& png, const std::string& description) {
  return "<figure><img alt=\"" + escaped(description) + "\" src=\"data:image/png;base64," +
         base64(read_file(png, max_picture_bytes)) + "\"><figcaption>" + escaped(description) +
         "</figcaption></figure>\n";
}

// Names of at most twelve pictures in the order of their steps: the first, the last, and evenly spaced ones between.
std::vector<fs::path> pictures_over_time(const fs::path& folder) {
  std::vector<fs::path> all = entries(folder), some;
  std::erase_if(all, [](const fs::path& path) { return path.extension() != ".png" || !is_own(path); });
  std::sort(all.begin(), all.end());
  const size_t count = std::min<size_t>(all.size(), 12);
  for (size_t i = 0; i < count; ++i) some.push_back(all[count == 1 ? 0 : i * (all.size() - 1) / (count - 1)]);
  return some;
}

}  // namespace

void write_report(const fs::path& run, const Report& report) {
  std::string page = beginning;
  page += head;
  page += "<title>" + escaped(report.title) + "</title>\n</head>\n<body>\n<h1>" + escaped(report.title) + "</h1>\n";
  page += "<table class=\"facts\">\n";
  for (const auto& [name, value] : report.facts)
    page += "<tr><th>" + escaped(name) + "</th><td>" + escaped(value) + "</td></tr>\n";
  page += "</table>\n<h2>Loss</h2>\n";
  page += is_own(run / "loss.png") ? image(run / "loss.png", "training and validation loss")
                                   : "<p>No plot: it needs gnuplot. The numbers are in metrics.csv.</p>\n";
  const std::vector<fs::path> pictures = pictures_over_time(run / "samples");
  if (!pictures.empty()) page += "<h2>Samples over time</h2>\n";
  for (const fs::path& png : pictures) page += image(png, png.stem().string());
  page += "<h2>Settings</h2>\n<div class=\"settings\">\n";
  for (const auto& [name, value] : report.settings.items())
    page += "<div><b>--" + escaped(name) + "</b><span>" +
            escaped(value.is_string() ? value.get<std::string>() : value.dump()) + "</span></div>\n";
  page += "</div>\n</body>\n</html>\n";
  check_replaceable(run / "report.html", "a report of this program", beginning);
  write_atomically(run / "report.html", {page});
}

}  // namespace runnel
