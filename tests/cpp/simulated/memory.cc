#include "memory.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstring>
#include <string>
#include <unordered_map>
#include <vector>

#include "job.h"

namespace pfftjax::simulated {
namespace {

constexpr std::size_t kMost = std::size_t{1} << 34;  // reserved, not used
constexpr std::size_t kPage = 4096;
constexpr std::uintptr_t kLine = 64;

// When somebody did something: the count of that rank's releases then.
struct Moment {
  int rank = -1;
  std::uint32_t count = 0;
};

struct Line {
  Moment written;
  Knowledge read;  // by rank; 0: not since it was written
};

std::unordered_map<std::uintptr_t, Line>& Lines() {
  static auto* lines = new std::unordered_map<std::uintptr_t, Line>;
  return *lines;
}
// Holds what a release of each atomic has told.
std::unordered_map<std::uintptr_t, Knowledge>& Releases() {
  static auto* releases = new std::unordered_map<std::uintptr_t, Knowledge>;
  return *releases;
}

Knowledge& Mine() {
  Process& process = CurrentProcess();
  if (process.knows.empty()) {
    process.knows.resize(static_cast<std::size_t>(TheJob().ranks));
    process.knows[static_cast<std::size_t>(process.rank)] = 1;
  }
  return process.knows;
}

bool Knows(const Knowledge& mine, int rank, std::uint32_t count) {
  return mine[static_cast<std::size_t>(rank)] >= count;
}

[[noreturn]] void Race(const char* what, int rank, const void* data) {
  scheduler->Fail("a data race: rank " + std::to_string(CurrentProcess().rank) + " " + what +
                  " rank " + std::to_string(rank) + " at byte " +
                  std::to_string(static_cast<const char*>(data) - shared_begin) +
                  " of shared memory, and nothing orders the two");
}

template <typename Body>
void ForEachLine(const void* data, std::size_t bytes, Body&& body) {
  const auto begin = reinterpret_cast<std::uintptr_t>(data) / kLine;
  const auto end = (reinterpret_cast<std::uintptr_t>(data) + bytes + kLine - 1) / kLine;
  for (auto line = begin; line < end; ++line) body(Lines()[line]);
}

}  // namespace

void CheckWrite(const void* data, std::size_t bytes) {
  if (!scheduler->current()) return;
  const Knowledge& mine = Mine();
  const int self = CurrentProcess().rank;
  ForEachLine(data, bytes, [&](Line& line) {
    if (line.written.rank >= 0 && !Knows(mine, line.written.rank, line.written.count)) {
      Race("writes what was written by", line.written.rank, data);
    }
    for (std::size_t rank = 0; rank < line.read.size(); ++rank) {
      if (!Knows(mine, static_cast<int>(rank), line.read[rank])) {
        Race("writes what is read by", static_cast<int>(rank), data);
      }
    }
    line.written = {self, mine[static_cast<std::size_t>(self)]};
    line.read.clear();
  });
}

void CheckRead(const void* data, std::size_t bytes) {
  if (!scheduler->current()) return;
  const Knowledge& mine = Mine();
  const auto self = static_cast<std::size_t>(CurrentProcess().rank);
  ForEachLine(data, bytes, [&](Line& line) {
    if (line.written.rank >= 0 && !Knows(mine, line.written.rank, line.written.count)) {
      Race("reads what is written by", line.written.rank, data);
    }
    if (line.read.empty()) line.read.resize(mine.size());
    line.read[self] = mine[self];
  });
}

void Acquire(const void* atomic) {
  if (!scheduler->current()) return;
  const auto found = Releases().find(reinterpret_cast<std::uintptr_t>(atomic));
  if (found != Releases().end()) Learn(found->second);
}

void Store(const void* atomic, bool is_released) {
  if (!scheduler->current()) return;
  scheduler->current()->naps = 0;
  if (is_released) {
    Releases()[reinterpret_cast<std::uintptr_t>(atomic)] = Tell();
  } else {
    Releases().erase(reinterpret_cast<std::uintptr_t>(atomic));
  }
}

Knowledge Tell() {
  if (shared_begin == shared_end) return {};
  Knowledge& mine = Mine();
  Knowledge told = mine;
  ++mine[static_cast<std::size_t>(CurrentProcess().rank)];
  return told;
}

void Learn(const Knowledge& told) {
  if (told.empty()) return;
  Knowledge& mine = Mine();
  for (std::size_t rank = 0; rank < mine.size(); ++rank) {
    mine[rank] = std::max(mine[rank], told[rank]);
  }
}

// ---- Files in memory ---------------------------------------------------------------------------

namespace {

char* arena = nullptr;

struct File {
  std::size_t bytes = 0;
  char* data = nullptr;
};
constexpr int kFirstFile = 1 << 20;
std::vector<File> files;

void Reserve() {
  if (arena) return;
  void* memory = mmap(nullptr, kMost, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) std::abort();
  arena = static_cast<char*>(memory);
  shared_begin = shared_end = arena;
}

File* FileOf(int number) {
  const auto index = static_cast<std::size_t>(number - kFirstFile);
  return number >= kFirstFile && index < files.size() ? &files[index] : nullptr;
}

}  // namespace

void ResetMemory() {
  Lines().clear();
  Releases().clear();
  files.clear();
  if (shared_end > shared_begin) {
    madvise(shared_begin, static_cast<std::size_t>(shared_end - shared_begin), MADV_DONTNEED);
  }
  shared_end = shared_begin;
}

}  // namespace pfftjax::simulated

// The linker puts these in place of what cpp/runtime/shared_memory.cc calls (--wrap).
using namespace pfftjax::simulated;  // NOLINT: this file only

extern "C" {

void* __real_mmap(void*, std::size_t, int, int, int, off_t);  // NOLINT
int __real_munmap(void*, std::size_t);                        // NOLINT
int __real_close(int);                                        // NOLINT
int __real_stat(const char*, struct stat*);                   // NOLINT
int __real_fstat(int, struct stat*);                          // NOLINT

int __wrap_memfd_create(const char*, unsigned) {
  if (TheJob().Refuses()) {
    errno = ENFILE;
    return -1;
  }
  files.emplace_back();
  return kFirstFile + static_cast<int>(files.size()) - 1;
}

int __wrap_ftruncate(int number, off_t bytes) {
  File* file = FileOf(number);
  if (!file || TheJob().Refuses()) {
    errno = ENOSPC;
    return -1;
  }
  file->bytes = static_cast<std::size_t>(bytes);
  return 0;
}
int __wrap_posix_fallocate(int number, off_t offset, off_t bytes) {
  File* file = FileOf(number);
  if (!file || TheJob().Refuses()) return ENOSPC;
  file->bytes = std::max(file->bytes, static_cast<std::size_t>(offset + bytes));
  return 0;
}
int __wrap_fallocate(int number, int, off_t offset, off_t bytes) {
  const int code = __wrap_posix_fallocate(number, offset, bytes);
  errno = code;
  return code == 0 ? 0 : -1;
}

// "/proc/<process>/fd/<file>", where all ranks are one process. Those of other nodes cannot.
int __wrap_open(const char* path, int, ...) {
  const char* name = std::strrchr(path, '/');
  const int number = name ? std::atoi(name + 1) : -1;
  if (!FileOf(number) || TheJob().Refuses()) {
    errno = ENOENT;
    return -1;
  }
  return number;
}
int __wrap_close(int number) { return FileOf(number) ? 0 : __real_close(number); }

void* __wrap_mmap(void* at, std::size_t bytes, int protection, int flags, int number,
                  off_t offset) {
  File* file = FileOf(number);
  if (!file) return __real_mmap(at, bytes, protection, flags, number, offset);
  if (TheJob().Refuses()) return MAP_FAILED;
  Reserve();
  if (!file->data) {
    const std::size_t pages = (file->bytes + kPage - 1) / kPage * kPage;
    if (static_cast<std::size_t>(shared_end - arena) + pages > kMost) return MAP_FAILED;
    file->data = shared_end;
    shared_end += pages;
  }
  return file->data;
}
int __wrap_munmap(void* data, std::size_t bytes) {
  return IsShared(data) ? 0 : __real_munmap(data, bytes);
}

// The name space of processes is that of the node.
int __wrap_stat(const char* path, struct stat* status) {
  if (std::strcmp(path, "/proc/self/ns/pid") != 0) return __real_stat(path, status);
  status->st_ino = static_cast<ino_t>(1000 + CurrentProcess().node);
  return 0;
}

int __wrap_fstat(int number, struct stat* status) {
  const File* file = FileOf(number);
  if (!file) return __real_fstat(number, status);
  *status = {};
  status->st_mode = S_IFREG;
  status->st_size = static_cast<off_t>(file->bytes);
  return 0;
}

// As many cores as the job draws, so that ranks spin or yield.
int __wrap_sched_getaffinity(pid_t, std::size_t, cpu_set_t* set) {
  CPU_ZERO(set);
  for (int core = 0; core < TheJob().cores; ++core) CPU_SET(core, set);
  return 0;
}

}  // extern "C"
