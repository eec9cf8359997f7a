// What threads see of memory that others write, and who may touch it when.
//
// The fibres of a simulation run one at a time, and would see every store at once and in order. So
// what C++ says of memory is kept beside the data, by vector clocks. Every plain access to memory
// that ranks share must come after the last one that conflicts with it by a chain of releases and
// acquires (or of messages), or the job fails, whatever the data are. And where the pace says so,
// a load of an atomic finds one of the values that it may find on Arm: the latest, or an older one
// of those that the thread need not know to be replaced.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace pfftjax::simulated {

inline char* shared_begin = nullptr;
inline char* shared_end = nullptr;  // of what ranks have mapped so far in this job

inline bool IsShared(const void* data) { return data >= shared_begin && data < shared_end; }

// What a thread knows of the others: how many releases of each rank, and stores of each thread.
using Counts = std::vector<std::uint32_t>;
struct Knowledge {
  Counts ranks;  // empty before a rank has mapped shared memory
  Counts tasks;  // empty where no older values are found

  void Add(const Knowledge& other);
};

void CheckWrite(const void* data, std::size_t bytes);
void CheckRead(const void* data, std::size_t bytes);

// Nothing is noted of memory that is not shared: ThreadSanitizer sees to a rank's own threads.
inline void NoteWrite(const void* data, std::size_t bytes) {
  if (IsShared(data)) CheckWrite(data, bytes);
}
inline void NoteRead(const void* data, std::size_t bytes) {
  if (IsShared(data)) CheckRead(data, bytes);
}

// A copy takes time where the job has a clock.
void NoteCopy(const void* from, const void* to, std::int64_t bytes);

// So does a load of what another rank has stored.
void NoteLoad(const void* atomic);

// Accesses to an atomic of which `latest` is the value. A load returns what it finds.
std::uint64_t Load(const void* atomic, std::uint64_t latest, std::memory_order order);
void Store(const void* atomic, std::uint64_t latest, std::uint64_t value, std::memory_order order);
// Finds the latest value, and replaces it.
void Change(const void* atomic, std::uint64_t latest, std::uint64_t value,
            std::memory_order order);

// Returns what the running thread knows, to be sent with a message or left with a lock.
Knowledge Tell();
void Learn(const Knowledge& told);

// Forgets the memory of a job.
void ResetMemory();

}  // namespace pfftjax::simulated
