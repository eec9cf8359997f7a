// In place of functions of the system and of MPI, by LD_PRELOAD: what happens where memory is
// short, or where /proc leads to another file. PFFTJAX_TEST_REFUSAL says what, and on which rank:
// "fallocate 1", "empty 1", "mmap 0" (of pfftjax only), "own 0" (the same for memory of no file),
// "longer 64" (any MPI_Sendrecv of more than 64 elements).
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

// The number after `what`, or -1 where this rank is not to refuse it.
long Refusal(const char* what) {
  const char* refusal = std::getenv("PFFTJAX_TEST_REFUSAL");
  const std::size_t size = std::strlen(what);
  if (!refusal || std::strncmp(refusal, what, size) != 0) return -1;
  return std::atol(refusal + size);
}

bool IsRank(long rank) {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMI_RANK"}) {
    if (const char* value = std::getenv(name)) return std::atol(value) == rank;
  }
  return false;
}

// MPI has files of its own.
bool IsOurs(int file) {
  char name[64] = "";
  const std::string link = "/proc/self/fd/" + std::to_string(file);
  return readlink(link.c_str(), name, sizeof name - 1) > 0 && std::strstr(name, "memfd:pfftjax");
}

// Everything in the process calls mmap; this is true for the code at `address` of pfftjax.
bool IsInNative(void* address) {
  Dl_info found{};
  return dladdr(address, &found) && std::strstr(found.dli_fname, "_native");
}

template <typename Function>
Function Next(const char* name) {
  void* found = dlsym(RTLD_NEXT, name);
  for (const char* library : {"libmpi.so.40", "libmpi.so.12"}) {
    void* loaded = found ? nullptr : dlopen(library, RTLD_NOW | RTLD_NOLOAD);
    if (loaded) found = dlsym(loaded, name);
  }
  return reinterpret_cast<Function>(found);
}

}  // namespace

extern "C" {

int fallocate(int file, int mode, off_t from, off_t bytes) {
  if (IsRank(Refusal("fallocate")) && IsOurs(file)) {
    errno = ENOSPC;
    return -1;
  }
  return Next<int (*)(int, int, off_t, off_t)>("fallocate")(file, mode, from, bytes);
}
int fallocate64(int file, int mode, off_t from, off_t bytes) {
  return fallocate(file, mode, from, bytes);
}

// The file without a byte of memory: whoever touches it is ended by SIGBUS.
int ftruncate(int file, off_t bytes) noexcept {
  if (IsRank(Refusal("fallocate")) && IsOurs(file)) return 0;
  return Next<int (*)(int, off_t)>("ftruncate")(file, bytes);
}
int ftruncate64(int file, off_t bytes) noexcept { return ftruncate(file, bytes); }

void* mmap(void* at, std::size_t bytes, int protection, int flags, int file, off_t from) noexcept {
  const bool refuses = IsRank(Refusal("mmap")) || (file < 0 && IsRank(Refusal("own")));
  if (refuses && IsInNative(__builtin_return_address(0))) {
    errno = ENOMEM;
    return MAP_FAILED;
  }
  return Next<void* (*)(void*, std::size_t, int, int, int, off_t)>("mmap")(at, bytes, protection,
                                                                           flags, file, from);
}

int open(const char* path, int flags, ...) {
  std::va_list arguments;
  va_start(arguments, flags);
  const int mode = va_arg(arguments, int);
  va_end(arguments);
  const bool is_ours = std::strncmp(path, "/proc/", 6) == 0 && std::strstr(path, "/fd/");
  if (is_ours && IsRank(Refusal("empty"))) return memfd_create("empty", 0);
  return Next<int (*)(const char*, int, ...)>("open")(path, flags, mode);
}
int open64(const char* path, int flags, ...) {
  std::va_list arguments;
  va_start(arguments, flags);
  const int mode = va_arg(arguments, int);
  va_end(arguments);
  return open(path, flags, mode);
}

// Handles are pointers or numbers, whichever MPI it is.
int MPI_Sendrecv(void* a, int count, void* b, long c, long d, void* e, long f, void* g, long h,
                 long i, void* j, void* k) {
  const long most = Refusal("longer");
  if (most > 0 && count > most) {
    std::fprintf(stderr, "a message of %d elements, where %ld are allowed\n", count, most);
    std::abort();
  }
  return Next<int (*)(void*, int, void*, long, long, void*, long, void*, long, long, void*,
                      void*)>("MPI_Sendrecv")(a, count, b, c, d, e, f, g, h, i, j, k);
}
}
