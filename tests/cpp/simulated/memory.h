// Memory that the ranks of a simulated node share, and who may touch it when.
//
// The simulation is sequentially consistent: a store that should have been released, and was not,
// is seen in order all the same. So every access to shared memory is held against what C++ says of
// it, by vector clocks: a plain access must come after the last one that conflicts with it by a
// chain of releases and acquires (or of messages), or the job fails, whatever the data are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace pfftjax::simulated {

inline char* shared_begin = nullptr;
inline char* shared_end = nullptr;  // of what ranks have mapped so far in this job

inline bool IsShared(const void* data) { return data >= shared_begin && data < shared_end; }

void CheckWrite(const void* data, std::size_t bytes);
void CheckRead(const void* data, std::size_t bytes);
void Acquire(const void* atomic);
void Store(const void* atomic, bool is_released);

// Nothing is noted of memory that is not shared: ThreadSanitizer sees to a rank's own threads.
inline void NoteWrite(const void* data, std::size_t bytes) {
  if (IsShared(data)) CheckWrite(data, bytes);
}
inline void NoteRead(const void* data, std::size_t bytes) {
  if (IsShared(data)) CheckRead(data, bytes);
}
inline void NoteAcquire(const void* atomic) {
  if (IsShared(atomic)) Acquire(atomic);
}
inline void NoteStore(const void* atomic, bool is_released) {
  if (IsShared(atomic)) Store(atomic, is_released);
}

// Returns what the running rank knows, to be sent with a message. It is empty where no rank has
// mapped shared memory.
using Knowledge = std::vector<std::uint32_t>;
Knowledge Tell();
void Learn(const Knowledge& told);

// Forgets the memory of a job.
void ResetMemory();

}  // namespace pfftjax::simulated
