#include "apps/training/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "engine/check.h"
#include "engine/file.h"

namespace runnel {
namespace {

namespace fs = std::filesystem;

// Of a lock that is held by another process.
std::string holder_of(const Descriptor& lock) {
  char text[64] = {};
  return pread(lock.fd, text, sizeof text - 1, 0) > 0 ? text : "a process that is just beginning";
}

}  // namespace

FolderLock::FolderLock(const fs::path& folder) : path_(folder / ".lock") {
  for (;;) {
    Descriptor file{open(path_.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666)};
    check(file.fd >= 0, "cannot write ", path_.string(), ": ", std::strerror(errno));
    held_ = flock(file.fd, LOCK_EX | LOCK_NB) == 0;
    if (!held_ && errno == EWOULDBLOCK)
      fail(folder.string(), " is in use by another run: ", holder_of(file),
           "; wait for it, stop it, or choose another folder");
    if (!held_)  // Lustre without -o flock, NFS without lockd
      check(errno == ENOSYS || errno == ENOLCK || errno == ENOTSUP, "cannot lock ", path_.string(), ": ",
            std::strerror(errno));
    struct stat own, named;  // the one before may have removed the file between our opening and our locking it
    if (fstat(file.fd, &own) != 0 || lstat(path_.c_str(), &named) != 0 || own.st_ino != named.st_ino) continue;
    const std::string text = "process " + std::to_string(getpid());
    if (ftruncate(file.fd, 0) == 0)  // the name is for messages: a full disk is no reason to stop
        [[maybe_unused]]
      const ssize_t ignored = pwrite(file.fd, text.data(), text.size(), 0);
    file_ = std::exchange(file.fd, -1);
    return;
  }
}

std::string lock_holder(const fs::path& folder) {
  const Descriptor file{open((folder / ".lock").c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC)};
  return file.fd >= 0 && flock(file.fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK ? holder_of(file) : "";
}

FolderLock::~FolderLock() {
  unlink(path_.c_str());
  close(file_);
}

}  // namespace runnel
