// Boxes between all pairs of ranks: packed, sent and unpacked in small pieces, several at a time.
//
// A piece is packed into a buffer that stays in the cache, travels, and is unpacked at its place
// while the next ones are on their way: each array is read and written once, and no copy of it is
// ever made.
#pragma once

#include <cstdint>
#include <vector>

#include "pencils/box.h"
#include "runtime/communicator.h"
#include "runtime/errors.h"
#include "runtime/window.h"

namespace pfftjax {

// What arrives is stored, or is summed: then the first box that stays on its rank is stored, as it
// covers the target, and all others are added to it.
enum class Arrival { kStore, kSum };

// One rank exchanges these with each of the others. The boxes that `To(p)` describes on this rank
// and those that `From(this rank)` describes on rank p have the same extents, in the same order.
class BoxesOf {
 public:
  virtual ~BoxesOf() = default;
  virtual std::vector<Box> To(int rank) const = 0;
  virtual std::vector<Box> From(int rank) const = 0;
};

// What stays on this rank. Threads of `pool` share out large boxes, here and below.
void CopyOwn(ffi::ThreadPool& pool, Place place, const void* source, void* target,
             const BoxesOf& boxes, Element element, Arrival arrival);

// Stores or sums what arrives, in an order that depends only on the boxes. Returns MPI's code.
int StreamBoxes(ffi::ThreadPool& pool, const Communicator& comm, const void* source, void* target,
                const BoxesOf& boxes, Element element, Arrival arrival);

// The same by memory that the ranks share: packed into this rank's part of the window, where the
// others unpack it. `most` is the largest number of elements between two ranks, the same on all
// ranks. The boxes of a pair are one box. Returns kOtherCall if another rank is in another call.
int ShareBoxes(ffi::ThreadPool& pool, Communicator& comm, Window& window, const void* source,
               void* target, const BoxesOf& boxes, std::int64_t most, Element element);
// What ShareBoxes needs of the window on so many ranks.
std::int64_t WindowBytes(int ranks, std::int64_t most, Element element);

// A box that another process is to read from `to`, where its elements follow each other, past the
// cache; this thread has to Drain before anybody may read it.
void LeaveBox(ffi::ThreadPool& pool, const void* source, const Box& box, char* to,
              Element element);
// The box that was left so.
void FetchBox(ffi::ThreadPool& pool, const char* from, void* target, const Box& box,
              Element element);

// The same by one collective of MPI's, in the algorithm of its choice: blocks of `most` elements,
// packed and unpacked in memory of their own, as large as what is exchanged. The call's meaning
// travels with each block.
int AlltoallBoxes(Communicator& comm, const void* source, void* target, const BoxesOf& boxes,
                  std::int64_t most, Element element);
// Gives back the memory that it keeps from call to call.
void ReleaseAlltoall();

}  // namespace pfftjax
