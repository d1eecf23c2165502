// A lock on a run folder.
#pragma once
#include <filesystem>
#include <string>

namespace runnel {

// Keeps other processes out of a folder, while it lives, by a lock on its file `.lock`. The lock ends with the process,
// however that ends.
class FolderLock {
 public:
  // Throws Error that names the process that holds the lock, or the reason why there can be none.
  explicit FolderLock(const std::filesystem::path& folder);
  bool is_held() const { return held_; }  // unless the file system has no locks
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  std::filesystem::path path_;
  int file_ = -1;
  bool held_ = false;
};

// The holder of another process's FolderLock, "process 1234"; empty if there is none.
std::string lock_holder(const std::filesystem::path& folder);

}  // namespace runnel
