// runnel runs, runnel compare: tables of run folders, read from config.json, metrics.csv and the header of the
// last checkpoint. Folders may be damaged or in use: a run that cannot be read is a line that says so.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "apps/cli/subcommand.h"
#include "apps/cli/terminal.h"
#include "apps/plots/pictures.h"
#include "apps/training/folder_lock.h"
#include "apps/training/metrics.h"
#include "engine/check.h"
#include "engine/file.h"
#include "engine/text.h"
#include "models/json.h"
#include "models/safetensors.h"

namespace runnel {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

json read_settings(const fs::path& run) {
  const fs::path path = run / "config.json";
  json config = parse_json(read_file(path, 1 << 20));
  check(config.is_object(), path.string(), " is not a JSON object");
  return config;
}

struct Standing {
  std::string task = "-";
  int64_t step = -1;
};

// From the checkpoint's header: its tensors are not read.
Standing read_standing(const fs::path& checkpoint) {
  const auto metadata = load_metadata(checkpoint);
  const auto text = [&](const char* key) { return metadata.contains(key) ? metadata.at(key) : ""; };
  const json task = parse_json(text("app")), state = parse_json(text("standing"));
  check(task.is_string() && state.is_object() && state.contains("step") && state["step"].is_number_unsigned(),
        checkpoint.string(), " does not say where the run stands");
  return {task, state["step"]};
}

// A column of metrics.csv: its last value and its best.
struct Column {
  std::string name;
  double last = NAN, best = NAN;
};

struct Table {
  int64_t step = 0;
  std::vector<Column> metrics;  // loss and the metrics of validations, each in its units
};

Table read_metrics(const fs::path& run) {
  MetricsRows rows(run);
  const std::vector<std::string>& names = rows.names();
  Table all;
  for (size_t i = 1; i + 3 < names.size(); ++i) all.metrics.push_back({names[i]});
  while (rows.next()) {
    all.step = std::strtoll(rows.text(0).c_str(), nullptr, 10);
    for (size_t i = 0; i < all.metrics.size(); ++i) {
      Column& metric = all.metrics[i];
      if (rows.text(i + 1).empty()) continue;
      metric.last = std::strtod(rows.text(i + 1).c_str(), nullptr);
      // Columns in nats or bits are losses.
      const bool is_loss =
          metric.name.ends_with("_bits") || std::find(names.begin(), names.end(), metric.name + "_bits") != names.end();
      if (std::isnan(metric.best) || (is_loss ? metric.last < metric.best : metric.last > metric.best))
        metric.best = metric.last;
    }
  }
  return all;
}

// Rows of cells as columns; the first row is a heading.
void print_table(std::vector<std::vector<std::string>> rows) {
  std::vector<size_t> widths;
  for (auto& row : rows)
    for (std::string& cell : row) cell = shown(cell);
  for (const auto& row : rows)
    for (size_t i = 0; i < row.size(); ++i) {
      widths.resize(std::max(widths.size(), i + 1));
      if (i + 1 < row.size()) widths[i] = std::max(widths[i], row[i].size());
    }
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) line += (i ? "  " : "") + fmt::format("{:<{}}", row[i], widths[i]);
    fmt::print("{}\n", line.substr(0, line.find_last_not_of(' ') + 1));
  }
}

std::string number_or_dash(double value) { return std::isnan(value) ? "-" : fmt::format("{:.6g}", value); }

bool is_run(const fs::path& folder) {
  std::error_code error;
  return fs::exists(folder / "config.json", error) || fs::exists(folder / "last.safetensors", error) ||
         fs::exists(folder / "metrics.csv", error);
}

std::vector<std::string> line_of(const fs::path& run) {
  const std::string name = excerpt(run.lexically_normal().string());
  try {
    const json config = read_settings(run);
    const Table metrics = read_metrics(run);
    std::error_code error;
    Standing standing;
    if (fs::exists(run / "last.safetensors", error)) standing = read_standing(run / "last.safetensors");
    std::string best = "-";
    if (metrics.metrics.size() > 2 && !std::isnan(metrics.metrics[2].best)) {  // behind the loss in nats and bits
      const Column& first = metrics.metrics[2];
      best = first.name + " " + number_or_dash(first.best);
      if (metrics.metrics.size() > 3 && metrics.metrics[3].name == first.name + "_bits")
        best += " nats, " + number_or_dash(metrics.metrics[3].best) + " bits";
    }
    const auto written = fs::last_write_time(run / "metrics.csv");
    const double age = std::chrono::duration<double>(fs::file_time_type::clock::now() - written).count();
    return {name,
            standing.task == "-" ? "-" : excerpt(standing.task),
            config.contains("preset") && config["preset"].is_string() ? excerpt(config["preset"]) : "-",
            grouped(static_cast<double>(std::max(standing.step, metrics.step))),
            best,
            lock_holder(run).empty() ? duration_text(std::max(age, 0.0)) : "running"};
  } catch (const Error& problem) {
    return {name, problem.what()};
  } catch (const fs::filesystem_error& problem) {
    return {name, "cannot be read: " + problem.code().message()};
  }
}

int list_runs(const fs::path& folder) {
  std::error_code error;
  check(fs::is_directory(folder, error), "there is no folder ", excerpt(folder.string()));
  std::set<fs::path> runs;
  if (is_run(folder)) runs.insert(folder);
  fs::recursive_directory_iterator at(folder, fs::directory_options::skip_permission_denied, error), end;
  while (at != end && !error) {
    if (at->is_directory(error) && is_run(at->path())) {
      runs.insert(at->path());
      at.disable_recursion_pending();
    }
    if (at.depth() >= 4) at.disable_recursion_pending();
    at.increment(error);
  }
  if (runs.empty()) {
    fmt::print("no runs in {}\n", excerpt(folder.string()));
    return 0;
  }
  std::vector<std::vector<std::string>> rows{{"run", "task", "preset", "step", "best", "age"}}, damaged;
  for (const fs::path& run : runs) {
    std::vector<std::string> line = line_of(run);
    (line.size() == 2 ? damaged : rows).push_back(line);
  }
  if (rows.size() > 1) print_table(rows);
  for (const auto& line : damaged) fmt::print("{}  {}\n", line[0], line[1]);
  return 0;
}

std::string text_of_value(const json& config, const std::string& name) {
  if (!config.contains(name)) return "-";
  return config[name].is_string() ? excerpt(config[name]) : excerpt(config[name].dump());
}

// Training losses as pale lines, validation losses as lines with points.
bool plot_losses(const std::vector<std::string>& runs, const fs::path& png) {
  constexpr const char* colours[] = {"b03020", "2060a0", "208040", "906010", "704090", "606060"};
  std::string series;
  for (size_t i = 0; i < runs.size(); ++i) {
    const std::string colour = colours[i % std::size(colours)], data = data_file(fs::path(runs[i]) / "metrics.csv");
    series += (i ? ", " : "plot ") + data + " using 'step':'loss' with lines lc rgb '#b0" + colour + "' notitle, " +
              data + " using 'step':'validation' with linespoints pt 7 ps 0.6 lw 2 lc rgb '#" + colour + "' title " +
              quoted(runs[i]);
  }
  return plot(png,
              "set title 'loss: pale while training, with points at validations'; set xlabel 'updates'; "
              "set ylabel 'nats'; set logscale y; " +
                  series);
}

int compare(const std::vector<std::string>& runs, const fs::path& png) {
  check<UsageError>(runs.size() > 1, "compare takes two run folders or more");
  check_png_replaceable(png);
  std::vector<json> configs;
  std::vector<Table> all;
  std::set<std::string> settings;
  std::vector<std::string> metrics;
  for (const std::string& run : runs) {
    configs.push_back(read_settings(run));
    all.push_back(read_metrics(run));
    for (const auto& [name, value] : configs.back().items()) settings.insert(name);
    for (const Column& metric : all.back().metrics)
      if (std::find(metrics.begin(), metrics.end(), metric.name) == metrics.end()) metrics.push_back(metric.name);
  }

  std::vector<std::vector<std::string>> rows(1);
  const auto add = [&](const std::string& name, const auto& text) {
    std::vector<std::string>& row = rows.emplace_back();
    row.push_back(name);
    for (size_t i = 0; i < runs.size(); ++i) row.push_back(text(i));
  };
  rows[0].push_back("");
  for (const std::string& run : runs) rows[0].push_back(excerpt(run));
  for (const std::string& name : settings) {
    const auto text = [&](size_t i) { return text_of_value(configs[i], name); };
    bool differs = false;
    for (size_t i = 1; i < runs.size(); ++i)
      differs = differs || configs[i].contains(name) != configs[0].contains(name) ||
                (configs[i].contains(name) && configs[i][name] != configs[0][name]);
    if (differs) add("--" + name, text);
  }
  add("step", [&](size_t i) { return grouped(static_cast<double>(all[i].step)); });
  for (const std::string& name : metrics)
    for (const bool best : {false, true})
      add(name + (best ? ", best" : ", last"), [&](size_t i) -> std::string {
        for (const Column& metric : all[i].metrics)
          if (metric.name == name) return number_or_dash(best ? metric.best : metric.last);
        return "-";
      });
  print_table(rows);
  std::vector<std::string> begun;  // those with rows to plot
  for (size_t i = 0; i < runs.size(); ++i)
    if (all[i].step > 0) begun.push_back(runs[i]);
  if (!begun.empty() && plot_losses(begun, png)) fmt::print("{}\n", shown(png.string()));
  return 0;
}

}  // namespace

void add_runs(Subcommand program) {
  program.add("runs", "a table of the runs below a folder", [](Subcommand runs) {
    const auto folder = std::make_shared<std::vector<std::string>>();
    runs.add_words("folder", *folder, "where to look; default: runs", 1);
    runs.when_parsed([=]() -> Command {
      return [=] {
        check<UsageError>(folder->size() <= 1, "runs takes one folder");
        return list_runs(folder->empty() ? "runs" : folder->front());
      };
    });
  });
  program.add(
      "compare", "settings in which runs differ, their metrics side by side, and a plot of their losses",
      [](Subcommand comparison) {
        const auto compared = std::make_shared<std::vector<std::string>>();
        comparison.add_words("runs", *compared, "run folders, two or more", 100);
        const auto png = std::make_shared<std::string>("compare.png");
        comparison.add_flags([=] { return Settings{{"out", png.get(), {}, "PNG file of the losses to write"}}; });
        comparison.when_parsed([=]() -> Command { return [=] { return compare(*compared, *png); }; });
      });
}

}  // namespace runnel
