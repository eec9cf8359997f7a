// Transpositions in two halves, of which the exchange goes on beside XLA's stream, on one of our
// own: the first half packs, the second one unpacks, and what XLA is given in between is computed
// meanwhile.
//
//   XLA's stream   pack 0   compute   pack 1   wait 0, unpack 0   compute   pack 2   ...
//   ours              exchange 0 ......   exchange 1 ................
//
// Nobody but XLA knows how long its buffers live: until the last operation that names them has
// been enqueued. So the second half names all that the exchange reads and writes, and lets XLA's
// stream wait for the end of it before it returns.
#pragma once

#include <array>

#include "gpu/boxes.h"
#include "runtime/errors.h"

namespace pfftjax::gpu {

using Bytes = ffi::Buffer<ffi::U8>;  // packed boxes

// The two halves have these buffers of XLA's in common.
struct Halves {
  const void* source;
  Bytes packed;
  Bytes received;
};

// The exchanges of one communicator that have been started and not been waited for; used by one
// call at a time.
//
// They are waited for in the order in which they are started, and the next one but one is started
// after that: of two, the chunks' numbers tell them apart. A number that does not come next is
// left from a program that ended in an error.
class Beside {
 public:
  // Packs. Where the host need not wait for the device, the exchange begins, too.
  int Start(Communicator& comm, Transport& transport, std::int64_t index, const Halves& buffers,
            const BoxesOf& boxes, Element element, Queue& queue);
  // Exchanges unless that has begun, and unpacks into `target`.
  int Wait(Communicator& comm, Transport& transport, std::int64_t index, const Halves& buffers,
           void* target, const BoxesOf& boxes, Element element, Queue& queue);

 private:
  struct Exchange {
    std::int64_t index = -1;  // none
    const void* packed = nullptr;
    void* received = nullptr;
    bool has_begun = false;
    Event is_packed;  // on XLA's stream
    Event has_come;   // on ours
  };
  Exchange& Slot(std::int64_t index) { return slots_[static_cast<std::size_t>(index % 2)]; }
  int Move(Communicator& comm, Transport& transport, Exchange& exchange, const PackedBoxes& boxes);
  void GiveUp(Queue& queue);

  Stream stream_;
  std::array<Exchange, 2> slots_;
  Event last_;
};

}  // namespace pfftjax::gpu
