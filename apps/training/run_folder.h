// The folder of a run: what is in it, who may write into it, and the checkpoints that a run continues from.
#pragma once
#include <filesystem>
#include <functional>
#include <string>

#include "apps/training/folder_lock.h"

namespace runnel {

class RunFolder {
 public:
  // Makes the folder, locks it, and removes the half-written files of killed processes. If there are files of a run in
  // it, they must be wanted: `resume`; or they are moved aside: `overwrite`. Throws Error that names the folder if not,
  // or if another process writes into it.
  RunFolder(std::filesystem::path folder, bool resume, bool overwrite);

  std::filesystem::path operator/(const std::string& file) const { return path_ / file; }
  const std::filesystem::path& path() const { return path_; }
  std::string name() const { return path_.string(); }
  std::string last() const { return (path_ / "last.safetensors").string(); }

  // Calls `load` with last.safetensors; if that throws Error, says so and calls it with previous.safetensors.
  void load_last(const std::function<void(const std::filesystem::path&)>& load);
  // Writes last.safetensors with `save` and proves that it can be read. The one before becomes previous.safetensors, if
  // it could be read, too: one readable checkpoint remains, whatever happens.
  void save_last(const std::function<void(const std::filesystem::path&)>& save);

  // time.json: how many seconds the run had been trained at a step; at least so many at this one, 0 if it does not say.
  // It is no part of a checkpoint, whose bytes do not depend on the clock.
  double seconds_at(int64_t step) const;
  void save_seconds(int64_t step, double seconds) const;

 private:
  struct Made {  // the folder, which must be there before the lock
    explicit Made(const std::filesystem::path& folder);
  };
  std::filesystem::path path_;
  Made made_;
  FolderLock lock_;
  bool last_is_readable_ = true;
};

}  // namespace runnel
