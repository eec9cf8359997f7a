#include "gpu/boxes.h"

namespace pfftjax::gpu {

void Packed::Add(int rank, const std::vector<Box>& boxes, std::int64_t element_bytes) {
  bytes = (bytes + kPackedAlignment - 1) / kPackedAlignment * kPackedAlignment;
  blocks[rank].offset = bytes;
  for (const Box& box : boxes) {
    Box packed = Contiguous(box);
    packed.offset = bytes / element_bytes;
    parts.push_back({box, packed});
    bytes += box.count() * element_bytes;
  }
  blocks[rank].count = bytes - blocks[rank].offset;
}

PackedBoxes::PackedBoxes(Place place, const BoxesOf& boxes, std::int64_t element_bytes) {
  leaving_.blocks.resize(static_cast<std::size_t>(place.size));
  arriving_.blocks.resize(static_cast<std::size_t>(place.size));
  for (int step = 1; step < place.size; ++step) {
    std::vector<Box> to;
    std::vector<Box> from;
    const int dest = (place.rank + step) % place.size;
    const int origin = (place.rank - step + place.size) % place.size;
    boxes.To(dest, &to);
    leaving_.Add(dest, to, element_bytes);
    boxes.From(origin, &from);
    arriving_.Add(origin, from, element_bytes);
  }
  boxes.To(place.rank, &mine_);
  boxes.From(place.rank, &theirs_);
}

std::vector<BoxCopy> PackedBoxes::Packing(const void* source, void* packed) const {
  std::vector<BoxCopy> copies;
  for (const Packed::Part& part : leaving_.parts) {
    copies.push_back({source, part.array, packed, part.packed});
  }
  return copies;
}

std::vector<BoxCopy> PackedBoxes::Unpacking(const void* received, void* target) const {
  std::vector<BoxCopy> copies;
  for (const Packed::Part& part : arriving_.parts) {
    copies.push_back({received, part.packed, target, part.array});
  }
  return copies;
}

std::vector<BoxCopy> PackedBoxes::Staying(const void* source, void* target) const {
  std::vector<BoxCopy> copies;
  for (std::size_t i = 0; i < mine_.size(); ++i) {
    copies.push_back({source, mine_[i], target, theirs_[i]});
  }
  return copies;
}

void CopyBoxes(const std::vector<BoxCopy>& copies, Element element, Queue& queue,
               const char* what) {
  if (copies.empty()) return;
  Check(Device()->copy_boxes(copies.data(), static_cast<int>(copies.size()), InfoOf(element).bytes,
                             queue.stream()),
        what);
}

int ExchangeBoxes(Communicator& comm, const void* source, void* target, const BoxesOf& boxes,
                  Element element, Arrival arrival, Queue& queue) {
  const std::int64_t bytes = InfoOf(element).bytes;
  const bool adds = arrival == Arrival::kAdd;
  const PackedBoxes packed(comm, boxes, bytes);
  void* const send = queue.Allocate(packed.leaving().bytes);
  void* const recv = queue.Allocate(packed.arriving().bytes);

  // What stays here goes straight to its place, beside the packing or before all other sums.
  std::vector<BoxCopy> before = packed.Packing(source, send);
  std::vector<BoxCopy> after = packed.Unpacking(recv, target);
  const std::vector<BoxCopy> staying = packed.Staying(source, target);
  if (adds) {
    after.insert(after.begin(), staying.begin(), staying.end());
  } else {
    before.insert(before.end(), staying.begin(), staying.end());
  }

  CopyBoxes(before, element, queue, "packing");
  if (comm.size > 1) {
    const int code =
        ExchangeBytes(comm, send, packed.leaving().blocks, recv, packed.arriving().blocks, queue);
    if (code != 0) return code;
  }
  if (!adds) {
    CopyBoxes(after, element, queue, "unpacking");
  } else if (!after.empty()) {
    Check(
        Device()->add_boxes(after.data(), static_cast<int>(after.size()), element, queue.stream()),
        "unpacking");
  }
  return 0;
}

}  // namespace pfftjax::gpu
