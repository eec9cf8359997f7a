#include "gpu/beside.h"

namespace pfftjax::gpu {
int Beside::Start(Communicator& comm, Transport& transport, std::int64_t index,
                  const Halves& buffers, const BoxesOf& all, Element element, Queue& queue) {
  const PackedBoxes boxes(comm, all, InfoOf(element).bytes);
  const auto start = [&] {
    const Exchange& before = Slot(index + 1);
    const bool is_stale =
        Slot(index).index >= 0 || (before.index >= 0 && before.index != index - 1);
    if (is_stale) GiveUp(queue);
    if (static_cast<std::int64_t>(buffers.packed.size_bytes()) < boxes.leaving.bytes ||
        static_cast<std::int64_t>(buffers.received.size_bytes()) < boxes.arriving.bytes) {
      throw std::logic_error("the memory for packed boxes is too small");
    }
    void* const packed = buffers.packed.untyped_data();
    CopyBoxes(Between(boxes.leaving.copies, buffers.source, packed), element, queue, "packing");
    Exchange& exchange = Slot(index);
    exchange.index = index;
    exchange.packed = packed;
    exchange.received = buffers.received.untyped_data();
    exchange.has_begun = false;
    // This is also after all that has used the memory in which the boxes will arrive.
    exchange.is_packed.Record(queue.stream());
    return transport.WaitsForDevice() ? 0 : Move(comm, transport, exchange, boxes);
  };
  return OrGiveUp(start, [&] { GiveUp(queue); });
}

int Beside::Wait(Communicator& comm, Transport& transport, std::int64_t index,
                 const Halves& buffers, void* target, const BoxesOf& all, Element element,
                 Queue& queue) {
  const PackedBoxes boxes(comm, all, InfoOf(element).bytes);
  const auto wait = [&] {
    Exchange& exchange = Slot(index);
    if (exchange.index != index) {
      throw std::runtime_error("the exchange of chunk " + std::to_string(index) +
                               " is not under way: it has been waited for, or another has been "
                               "started since; wait once for each start");
    }
    // XLA has no reason to copy what nobody else writes to, but if it did, the exchange would go
    // on in the original. Memory without bytes may lie anywhere.
    const void* const received = buffers.received.untyped_data();
    if ((boxes.leaving.bytes > 0 && exchange.packed != buffers.packed.untyped_data()) ||
        (boxes.arriving.bytes > 0 && exchange.received != received)) {
      throw std::runtime_error(
          "XLA has moved the memory of an exchange that is under way; take "
          "ExchangeMethod.AUTOMATIC");
    }
    // What stays on this rank waits for nobody.
    CopyBoxes(Between(boxes.staying, buffers.source, target), element, queue, "copying");
    if (!exchange.has_begun) {
      if (const int code = Move(comm, transport, exchange, boxes)) return code;
    }
    queue.WaitFor(exchange.has_come);
    CopyBoxes(Between(boxes.arriving.copies, received, target), element, queue, "unpacking");
    exchange.index = -1;
    return 0;
  };
  return OrGiveUp(wait, [&] { GiveUp(queue); });
}

int Beside::Move(Communicator& comm, Transport& transport, Exchange& exchange,
                 const PackedBoxes& boxes) {
  stream_.WaitFor(exchange.is_packed);
  Queue ours(stream_);
  const int code = transport.Exchange(comm, exchange.packed, boxes.leaving.blocks,
                                      exchange.received, boxes.arriving.blocks, ours);
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

}  // namespace pfftjax::gpu
