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
#include <deque>
#include <string>
#include <unordered_map>
#include <utility>
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
  Counts read;  // by rank; 0: not since it was written
};

std::unordered_map<std::uintptr_t, Line>& Lines() {
  static auto* lines = new std::unordered_map<std::uintptr_t, Line>;
  return *lines;
}

// A value of an atomic, and what whoever finds it by an acquire learns.
struct Value {
  std::uint64_t bits = 0;
  std::uint32_t task = 0;    // that has stored it; 0: nobody
  std::uint32_t number = 0;  // of that thread's stores
  bool is_seq_cst = false;
  Time time = 0;
  Knowledge told;
};

struct Values {
  std::uint64_t first = 0;   // the number of the oldest that is kept
  std::deque<Value> values;  // in the order in which they were stored
  // By thread, the latest value that it has found: it never finds an older one again.
  std::vector<std::uint64_t> found;
};

std::unordered_map<const void*, Values>& Atomics() {
  static auto* atomics = new std::unordered_map<const void*, Values>;
  return *atomics;
}

// Others see a store after so long at the latest. A real machine takes less than this.
constexpr Time kSeenByAll = 20 * kMicrosecond;
constexpr std::size_t kMostKept = 16;

Counts& Mine() {
  Process& process = CurrentProcess();
  if (process.knows.empty()) {
    process.knows.resize(static_cast<std::size_t>(TheJob().ranks));
    process.knows[static_cast<std::size_t>(process.rank)] = 1;
  }
  return process.knows;
}

bool FindsOlderValues() { return scheduler->pace.older_values > 0; }

// The clock of the job, on which nothing is kept beside the data.
Clock* TheClock() { return scheduler ? TheJob().clock.get() : nullptr; }

bool Releases(std::memory_order order) {
  return order != std::memory_order_relaxed && order != std::memory_order_acquire &&
         order != std::memory_order_consume;
}
bool Acquires(std::memory_order order) {
  return order != std::memory_order_relaxed && order != std::memory_order_release;
}

template <typename T>
T& At(std::vector<T>& counts, std::size_t index) {
  if (counts.size() <= index) counts.resize(index + 1);
  return counts[index];
}

// Whether a thread must know that this has been stored.
bool Knows(const Task& task, const Value& value) {
  return value.task == 0 ||
         (value.task < task.knows.size() && task.knows[value.task] >= value.number);
}

void AddTo(Counts& counts, const Counts& other) {
  if (counts.size() < other.size()) counts.resize(other.size());
  for (std::size_t i = 0; i < other.size(); ++i) counts[i] = std::max(counts[i], other[i]);
}

void Push(Values& atomic, std::uint64_t latest, Value value, std::memory_order order) {
  Task& self = *scheduler->current();
  self.naps = 0;
  if (atomic.values.empty()) {
    atomic.values.emplace_back();
    atomic.values.back().bits = latest;
  }
  const auto number = static_cast<std::size_t>(self.number);
  value.task = static_cast<std::uint32_t>(self.number);
  value.number = ++At(self.knows, number);
  value.is_seq_cst = order == std::memory_order_seq_cst;
  value.time = scheduler->now();
  atomic.values.push_back(std::move(value));
  const std::size_t kept = FindsOlderValues() ? kMostKept : 1;
  while (atomic.values.size() > kept ||
         (atomic.values.size() > 1 && atomic.values[1].time + kSeenByAll < scheduler->now())) {
    atomic.values.pop_front();
    ++atomic.first;
  }
  At(atomic.found, number) = atomic.first + atomic.values.size() - 1;
}

bool Knows(const Counts& mine, int rank, std::uint32_t count) {
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
  if (Clock* clock = TheClock()) {
    return clock->Announce(data, static_cast<std::int64_t>(bytes), false);
  }
  const Counts& mine = Mine();
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
  if (Clock* clock = TheClock()) {
    return clock->Announce(data, static_cast<std::int64_t>(bytes), true);
  }
  const Counts& mine = Mine();
  const auto self = static_cast<std::size_t>(CurrentProcess().rank);
  ForEachLine(data, bytes, [&](Line& line) {
    if (line.written.rank >= 0 && !Knows(mine, line.written.rank, line.written.count)) {
      Race("reads what is written by", line.written.rank, data);
    }
    if (line.read.empty()) line.read.resize(mine.size());
    line.read[self] = mine[self];
  });
}

void NoteCopy(const void* from, const void* to, std::int64_t bytes) {
  Clock* clock = TheClock();
  if (clock && scheduler->current()) clock->Copy(from, to, bytes);
}

void NoteLoad(const void* atomic) {
  Clock* clock = TheClock();
  if (!clock || !scheduler->current() || !IsShared(atomic)) return;
  clock->ReadAtomic(atomic);
  scheduler->current()->looks_at = atomic;
}

std::uint64_t Load(const void* atomic, std::uint64_t latest, std::memory_order order) {
  if (TheClock()) return latest;
  if (!scheduler->current() || !(IsShared(atomic) || FindsOlderValues())) return latest;
  const auto found = Atomics().find(atomic);
  if (found == Atomics().end()) return latest;
  Values& values = found->second;
  const Task& self = *scheduler->current();
  std::uint64_t& mine = At(values.found, static_cast<std::size_t>(self.number));
  const std::uint64_t last = values.first + values.values.size() - 1;
  std::uint64_t chosen = last;
  if (FindsOlderValues() && scheduler->random.Chance(scheduler->pace.older_values)) {
    // Down to the latest that this thread must know of, or that all see by now.
    const std::uint64_t oldest = std::max(mine, values.first);
    std::uint64_t least = last;
    while (least > oldest) {
      const Value& value = values.values[least - values.first];
      if (Knows(self, value) || value.time + kSeenByAll <= scheduler->now() ||
          (value.is_seq_cst && order == std::memory_order_seq_cst)) {
        break;
      }
      --least;
    }
    const auto others = static_cast<std::int64_t>(last - least + 1);
    chosen = scheduler->random.Chance(0.5)
                 ? least
                 : last - static_cast<std::uint64_t>(scheduler->random.Below(others));
  }
  mine = chosen;
  const Value& value = values.values[chosen - values.first];
  if (Acquires(order)) Learn(value.told);
  return value.bits;
}

void Store(const void* atomic, std::uint64_t latest, std::uint64_t value,
           std::memory_order order) {
  if (!scheduler->current() || !(IsShared(atomic) || FindsOlderValues())) return;
  if (Clock* clock = TheClock()) return clock->ChangeAtomic(atomic);
  Value stored;
  stored.bits = value;
  if (Releases(order)) stored.told = Tell();
  Push(Atomics()[atomic], latest, std::move(stored), order);
}

void Change(const void* atomic, std::uint64_t latest, std::uint64_t value,
            std::memory_order order) {
  if (!scheduler->current() || !(IsShared(atomic) || FindsOlderValues())) return;
  if (Clock* clock = TheClock()) return clock->ChangeAtomic(atomic);
  Values& values = Atomics()[atomic];
  Value stored;
  stored.bits = value;
  // Who finds what this leaves has found what was there before as well.
  if (!values.values.empty()) stored.told = values.values.back().told;
  if (Acquires(order)) Learn(stored.told);
  if (Releases(order)) stored.told.Add(Tell());
  Push(values, latest, std::move(stored), order);
}

void Knowledge::Add(const Knowledge& other) {
  AddTo(ranks, other.ranks);
  AddTo(tasks, other.tasks);
}

Knowledge Tell() {
  Knowledge told;
  if (scheduler->pace.is_exact) return told;
  if (shared_begin != shared_end) {
    told.ranks = Mine();
    ++Mine()[static_cast<std::size_t>(CurrentProcess().rank)];
  }
  if (scheduler->current() && FindsOlderValues()) told.tasks = scheduler->current()->knows;
  return told;
}

void Learn(const Knowledge& told) {
  if (!told.ranks.empty()) AddTo(Mine(), told.ranks);
  if (scheduler->current()) AddTo(scheduler->current()->knows, told.tasks);
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
  Atomics().clear();
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
