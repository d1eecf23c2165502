// Files that are written whole or not at all, and never in the place of something else; folders with one writer.
#include "engine/file.h"

#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__linux__)
#include <sys/syscall.h>
#endif

#include <cerrno>

#include "apps/training/folder_lock.h"
#include "tests/check.h"
#include "tests/program.h"

#if defined(__linux__)
namespace {
int lock_error = 0;
}

// In place of the C library's: fails if lock_error says so.
extern "C" int flock(int file, int operation) noexcept {
  if (lock_error) return errno = lock_error, -1;
  return static_cast<int>(syscall(SYS_flock, file, operation));
}
#endif

namespace runnel::test {
namespace {

TEST_CASE("file: a partial file is a new one, whatever links stand beside it, and goes if it is not committed") {
  const Sandbox box;
  const fs::path path = box.folder / "x";
  std::ofstream(box.folder / "victim") << "victim";
  fs::create_symlink("victim", path);
  fs::create_symlink("victim", box.folder / "x.partial");
  {
    PartialFile first(path), second(path);
    CHECK(first.name() != second.name());
    CHECK(first.name().extension() == ".partial");
    first.write({"first", 5});
    first.commit();
  }
  CHECK(read(path) == "first");
  CHECK_FALSE(fs::is_symlink(path));
  CHECK(read(box.folder / "victim") == "victim");
  CHECK(std::distance(fs::directory_iterator(box.folder), {}) == 3);

  std::ofstream(box.folder / "y.abc.partial") << "left by a killed process";
  remove_partial_files(box.folder);
  CHECK_FALSE(fs::exists(box.folder / "y.abc.partial"));
  CHECK(fs::is_symlink(box.folder / "x.partial"));
}

TEST_CASE("file: a result replaces a result of its kind, and nothing else") {
  const Sandbox box;
  const fs::path path = box.folder / "x";
  const auto check_it = [&] { check_replaceable(path, "a table", "# "); };
  check_it();  // nothing stands there
  std::ofstream(path) << "";
  check_it();
  std::ofstream(path) << "# a table\n";
  check_it();
  std::ofstream(path) << "#";
  check_fails(check_it, "what stands there is not a table");
  fs::rename(path, box.folder / "other");
  fs::create_symlink("other", path);
  check_fails(check_it, "x: what stands there is not a table; choose another name, or remove it");
  fs::remove(path);
  REQUIRE(mkfifo(path.c_str(), 0666) == 0);
  check_fails(check_it, "is not a table");
  check_fails([&] { read_file(path, 10); }, "is not a regular file");
  check_fails([&] { open_regular_file("/dev/null"); }, "is not a regular file");
  check_fails([&] { read_file(box.folder / "missing", 10); }, "there is no file");
  std::ofstream(box.folder / "long") << "12345678901";
  check_fails([&] { read_file(box.folder / "long", 10); }, "has 11 bytes, more than 10");
  CHECK(read_file(box.folder / "long", 11) == "12345678901");
}

TEST_CASE("file: a locked folder names its process; the lock ends with the process") {
  const Sandbox box;
  int ready[2];
  REQUIRE(pipe(ready) == 0);
  const pid_t child = fork();
  if (child == 0) {
    const FolderLock lock(box.folder);
    [[maybe_unused]] const ssize_t ignored = ::write(ready[1], "x", 1);
    pause();
  }
  char byte;
  REQUIRE(::read(ready[0], &byte, 1) == 1);
  CHECK(lock_holder(box.folder) == "process " + std::to_string(child));
  check_fails([&] { FolderLock lock(box.folder); }, "is in use by another run: process " + std::to_string(child));
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  CHECK(lock_holder(box.folder).empty());
  CHECK(fs::exists(box.folder / ".lock"));
  { const FolderLock lock(box.folder); }
  CHECK_FALSE(fs::exists(box.folder / ".lock"));
  close(ready[0]);
  close(ready[1]);
}

#if defined(__linux__)
TEST_CASE("file: where the file system has no locks, a folder can be used, and says that it is unprotected") {
  const Sandbox box;
  for (const int error : {ENOSYS, ENOLCK, ENOTSUP}) {
    lock_error = error;
    const FolderLock one(box.folder), other(box.folder);
    CHECK_FALSE(one.is_held());
  }
  lock_error = EIO;
  check_fails([&] { FolderLock lock(box.folder); }, "cannot lock ");
  lock_error = 0;
  const FolderLock lock(box.folder);
  CHECK(lock.is_held());
}
#endif

}  // namespace
}  // namespace runnel::test
