#include "boxes.h"

namespace pfftjax::gpu {
namespace {

// Where parts of the scratch begin, so that kernels may access 16 bytes at a time.
constexpr std::int64_t kAlignment = 256;

// What is packed for each rank, or comes packed from it, one box after the other. A box begins
// where its elements are aligned, however many the one before has.
struct Packed {
  std::vector<Block> blocks;  // of bytes, by rank
  struct Part {
    Box array;
    Box packed;
  };
  std::vector<Part> parts;
  std::int64_t bytes = 0;

  void Add(int rank, const std::vector<Box>& boxes, std::int64_t element_bytes) {
    bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    blocks[rank].offset = bytes;
    for (const Box& box : boxes) {
      Box packed = Contiguous(box);
      packed.offset = bytes / element_bytes;
      parts.push_back({box, packed});
      bytes += box.count() * element_bytes;
    }
    blocks[rank].count = bytes - blocks[rank].offset;
  }
};

}  // namespace

int ExchangeBoxes(Communicator& comm, const void* source, void* target, const BoxesOf& boxes,
                  Element element, Arrival arrival, Queue& queue) {
  const std::int64_t bytes = InfoOf(element).bytes;
  const bool adds = arrival == Arrival::kAdd;
  Packed leaving;
  Packed arriving;
  leaving.blocks.resize(static_cast<std::size_t>(comm.size));
  arriving.blocks.resize(static_cast<std::size_t>(comm.size));
  for (int step = 1; step < comm.size; ++step) {
    std::vector<Box> to;
    std::vector<Box> from;
    const int dest = (comm.rank + step) % comm.size;
    const int origin = (comm.rank - step + comm.size) % comm.size;
    boxes.To(dest, &to);
    leaving.Add(dest, to, bytes);
    boxes.From(origin, &from);
    arriving.Add(origin, from, bytes);
  }
  void* const send = queue.Allocate(leaving.bytes);
  void* const recv = queue.Allocate(arriving.bytes);

  // What stays here goes straight to its place, beside the packing or before all other sums.
  std::vector<BoxCopy> before;
  std::vector<BoxCopy> after;
  for (const Packed::Part& part : leaving.parts) {
    before.push_back({source, part.array, send, part.packed});
  }
  std::vector<Box> mine;
  std::vector<Box> theirs;
  boxes.To(comm.rank, &mine);
  boxes.From(comm.rank, &theirs);
  for (std::size_t i = 0; i < mine.size(); ++i) {
    (adds ? after : before).push_back({source, mine[i], target, theirs[i]});
  }
  for (const Packed::Part& part : arriving.parts) {
    after.push_back({recv, part.packed, target, part.array});
  }

  const DeviceApi& device = *Device();
  if (!before.empty()) {
    Check(device.copy_boxes(before.data(), static_cast<int>(before.size()), bytes, queue.stream()),
          "packing");
  }
  if (comm.size > 1) {
    const int code = ExchangeBytes(comm, send, leaving.blocks, recv, arriving.blocks, queue);
    if (code != 0) return code;
  }
  if (!after.empty()) {
    const int count = static_cast<int>(after.size());
    Check(adds ? device.add_boxes(after.data(), count, element, queue.stream())
               : device.copy_boxes(after.data(), count, bytes, queue.stream()),
          "unpacking");
  }
  return 0;
}

}  // namespace pfftjax::gpu
