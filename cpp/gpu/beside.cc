#include "gpu/beside.h"

namespace pfftjax::gpu {
int Beside::Start(Communicator& comm, Transport& transport, std::int64_t index,
                  const Halves& buffers, const BoxesOf& all, Element element, Queue& queue) {
  const PackedBoxes boxes(comm, all, InfoOf(element).bytes);
  return OrGiveUp(queue, [&] {
    const Exchange& before = Slot(index + 1);
    const bool is_stale =
        Slot(index).index >= 0 || (before.index >= 0 && before.index != index - 1);
    if (is_stale) GiveUp(queue);
    if (buffers.packed_bytes < boxes.leaving().bytes ||
        buffers.received_bytes < boxes.arriving().bytes) {
      throw std::logic_error("the memory for packed boxes is too small");
    }
    CopyBoxes(boxes.Packing(buffers.source, buffers.packed), element, queue, "packing");
    Exchange& exchange = Slot(index);
    exchange.index = index;
    exchange.packed = buffers.packed;
    exchange.received = buffers.received;
    exchange.has_begun = false;
    // This is also after all that has used the memory in which the boxes will arrive.
    exchange.is_packed.Record(queue.stream());
    return transport.WaitsForDevice() ? 0 : Move(comm, transport, exchange, buffers, boxes);
  });
}

int Beside::Wait(Communicator& comm, Transport& transport, std::int64_t index,
                 const Halves& buffers, void* target, const BoxesOf& all, Element element,
                 Queue& queue) {
  const PackedBoxes boxes(comm, all, InfoOf(element).bytes);
  return OrGiveUp(queue, [&] {
    Exchange& exchange = Slot(index);
    if (exchange.index != index) {
      throw std::runtime_error("the exchange of chunk " + std::to_string(index) +
                               " is not under way: it has been waited for, or another has been "
                               "started since; wait once for each start");
    }
    // XLA has no reason to copy what nobody else writes to, but if it did, the exchange would go
    // on in the original. Memory without bytes may lie anywhere.
    if ((boxes.leaving().bytes > 0 && exchange.packed != buffers.packed) ||
        (boxes.arriving().bytes > 0 && exchange.received != buffers.received)) {
      throw std::runtime_error(
          "XLA has moved the memory of an exchange that is under way; take "
          "ExchangeMethod.AUTOMATIC");
    }
    // What stays on this rank waits for nobody.
    CopyBoxes(boxes.Staying(buffers.source, target), element, queue, "copying");
    if (!exchange.has_begun) {
      if (const int code = Move(comm, transport, exchange, buffers, boxes)) return code;
    }
    queue.WaitFor(exchange.has_come);
    CopyBoxes(boxes.Unpacking(buffers.received, target), element, queue, "unpacking");
    exchange.index = -1;
    return 0;
  });
}

int Beside::Move(Communicator& comm, Transport& transport, Exchange& exchange,
                 const Halves& buffers, const PackedBoxes& boxes) {
  stream_.WaitFor(exchange.is_packed);
  Queue ours(stream_);
  const int code = transport.Exchange(comm, buffers.packed, boxes.leaving().blocks,
                                      buffers.received, boxes.arriving().blocks, ours);
  if (code != 0) return code;
  exchange.has_come.Record(stream_.handle());
  exchange.has_begun = true;
  return 0;
}

// Forgets all exchanges, after which XLA gives their memory to others: they must have ended by
// then.
void Beside::GiveUp(Queue& queue) {
  for (Exchange& exchange : slots_) exchange.index = -1;
  last_.Record(stream_.handle());
  queue.WaitFor(last_);
}

template <typename Body>
int Beside::OrGiveUp(Queue& queue, Body&& body) {
  const auto give_up = [&] {
    try {
      GiveUp(queue);
    } catch (const std::exception&) {  // the first error says more
    }
  };
  try {
    const int code = body();
    if (code != 0) give_up();
    return code;
  } catch (const std::exception&) {
    give_up();
    throw;
  }
}

}  // namespace pfftjax::gpu
