// Loaded in front of the C library: LD_PRELOAD=libfail_nth.so FAIL=write FAIL_AT=17 makes the 17th call of write fail.
// FAIL: allocate (operator new and aligned_alloc; not what oneDNN has of its own, which it does not check), write,
// fsync, rename or flock, counted from the beginning of main. FAIL_COUNT=FILE: at exit, the number of calls is written
// there.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

namespace {

const char* const what = std::getenv("FAIL");
const char* const at = std::getenv("FAIL_AT");
const long number = at ? std::atol(at) : 0;
std::atomic<long> calls{0};
using Main = int(int, char**, char**);
Main* program = nullptr;
bool has_begun = false;

bool must_fail(const char* call) { return has_begun && what && std::strcmp(what, call) == 0 && ++calls == number; }

template <class F>
F* next(const char* name) {
  return reinterpret_cast<F*>(dlsym(RTLD_NEXT, name));
}

int begin(int count, char** words, char** environment) {
  has_begun = true;
  return program(count, words, environment);
}

struct Count {
  ~Count() {
    const char* const path = std::getenv("FAIL_COUNT");
    if (!path) return;
    char text[32];
    const int size = std::snprintf(text, sizeof text, "%ld\n", calls.load());
    const int file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    syscall(SYS_write, file, text, size);
    close(file);
  }
} count;

}  // namespace

void* operator new(size_t size) {
  if (must_fail("allocate")) throw std::bad_alloc();
  if (void* const p = std::malloc(size ? size : 1)) return p;
  throw std::bad_alloc();
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, size_t) noexcept { std::free(p); }

extern "C" {

int __libc_start_main(Main* main, int argc, char** argv, void (*init)(), void (*fini)(), void (*end)(), void* stack) {
  program = main;
  return next<int(Main*, int, char**, void (*)(), void (*)(), void (*)(), void*)>("__libc_start_main")(
      begin, argc, argv, init, fini, end, stack);
}

void* aligned_alloc(size_t alignment, size_t size) {
  if (must_fail("allocate")) return errno = ENOMEM, nullptr;
  return next<void*(size_t, size_t)>("aligned_alloc")(alignment, size);
}

ssize_t write(int file, const void* bytes, size_t size) {
  if (must_fail("write")) return errno = ENOSPC, -1;
  return syscall(SYS_write, file, bytes, size);
}

int fsync(int file) {
  if (must_fail("fsync")) return errno = EIO, -1;
  return static_cast<int>(syscall(SYS_fsync, file));
}

int flock(int file, int operation) noexcept {
  if (must_fail("flock")) return errno = ENOLCK, -1;
  return static_cast<int>(syscall(SYS_flock, file, operation));
}

int rename(const char* from, const char* to) {
  if (must_fail("rename")) return errno = EACCES, -1;
  return static_cast<int>(syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
}
}
