#include "apps/training/run_folder.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "apps/cli/terminal.h"
#include "engine/check.h"
#include "engine/file.h"
#include "models/safetensors.h"

namespace runnel {
namespace {

namespace fs = std::filesystem;

constexpr const char* run_files[] = {"config.json",      "metrics.csv",          "time.json",
                                     "last.safetensors", "previous.safetensors", "best.safetensors",
                                     "loss.png",         "report.html",          "samples"};
constexpr const char* pictures[] = {"bits.png", "samples.png", "growth.png", "completions.png", "state.png"};

bool stands(const fs::path& path) {
  std::error_code error;
  return fs::exists(fs::symlink_status(path, error));
}

// Moves the files of a run, and the pictures drawn with its model, into a new folder beside theirs.
void move_aside(const fs::path& folder) {
  std::error_code error;
  const std::string stem = (fs::canonical(folder, error)).string() + ".old-";
  int number = 1;
  while (stands(stem + std::to_string(number))) ++number;
  const fs::path aside = stem + std::to_string(number);
  if (!error) fs::create_directory(aside, error);
  const auto move = [&](const char* file) {
    if (!error && stands(folder / file)) fs::rename(folder / file, aside / file, error);
  };
  std::ranges::for_each(run_files, move);
  std::ranges::for_each(pictures, move);
  check(!error, "--overwrite: the run in ", folder.string(), " cannot be moved to ", aside.string(), ": ",
        error.message());
  say(fmt::format("moved the run in {} to {}\n", folder.string(), aside.string()));
}

}  // namespace

RunFolder::Made::Made(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  check(!error, "cannot make the run folder ", folder.string(), ": ", error.message());
}

RunFolder::RunFolder(fs::path folder, bool resume, bool overwrite)
    : path_(std::move(folder)), made_(path_), lock_(path_) {
  if (!lock_.is_held())
    warn(fmt::format("runnel: the file system of {} has no locks: nothing keeps a second run out of the folder\n",
                     name()));
  remove_partial_files(path_);
  for (const char* file : run_files) {
    if (resume || !stands(path_ / file)) continue;
    check<UsageError>(overwrite, "--out ", name(), " already holds a run (", file,
                      "); add --resume to continue it or --overwrite to move it aside, or choose another folder");
    move_aside(path_);
    break;
  }
  check(!resume || stands(last()) || stands(path_ / "previous.safetensors"), "--resume: ", last(),
        " is missing: the run ended before its first checkpoint; begin it again with --overwrite");
}

void RunFolder::load_last(const std::function<void(const fs::path&)>& load) {
  try {
    load(last());
  } catch (const Error& error) {
    const fs::path previous = path_ / "previous.safetensors";
    if (!stands(previous)) throw;
    const std::string problem = error.what();
    try {
      load(previous);
    } catch (const Error&) {
      fail(problem);
    }
    last_is_readable_ = false;  // so that it does not replace the one that is
    warn(fmt::format("runnel: {}; the run goes on from {}\n", problem, previous.string()));
  }
}

void RunFolder::save_last(const std::function<void(const fs::path&)>& save) {
  const fs::path previous = path_ / "previous.safetensors", linked = previous.string() + ".partial";
  if (last_is_readable_ && stands(last())) {
    unlink(linked.c_str());
    // A second name, so that last.safetensors is never missing; some file systems have none.
    const bool two_names = link(last().c_str(), linked.c_str()) == 0;
    if (std::rename(two_names ? linked.c_str() : last().c_str(), previous.c_str()) != 0) unlink(linked.c_str());
  }
  save(last());
  last_is_readable_ = false;
  verify_safetensors(last());
  last_is_readable_ = true;
}

double RunFolder::seconds_at(int64_t step) const {
  try {
    const auto time = nlohmann::json::parse(read_file(path_ / "time.json", 1 << 10), nullptr, false);
    return time.at("step") <= step ? std::max(time.at("seconds").get<double>(), 0.0) : 0;
  } catch (const std::exception&) {  // older versions have written none
    return 0;
  }
}

void RunFolder::save_seconds(int64_t step, double seconds) const {
  write_atomically(path_ / "time.json", {nlohmann::json{{"step", step}, {"seconds", seconds}}.dump() + "\n"});
}

}  // namespace runnel
