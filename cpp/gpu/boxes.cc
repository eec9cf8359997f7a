#include "gpu/boxes.h"

#include "base/alignment.h"

namespace pfftjax::gpu {
namespace {

// Makes room for the boxes of one rank, and calls `add(box, where it is packed)` for each of them.
template <typename Body>
void Pack(const std::vector<Box>& boxes, std::int64_t element_bytes, Packed* packed, int rank,
          Body&& add) {
  std::int64_t& bytes = packed->bytes;
  bytes = RoundUp(bytes, kPackedAlignment);
  const std::int64_t begin = bytes;
  for (const Box& box : boxes) {
    Box place = Contiguous(box);
    place.offset = bytes / element_bytes;
    add(box, place);
    bytes += box.count() * element_bytes;
  }
  packed->blocks[rank] = {begin, bytes - begin};
}

}  // namespace

PackedBoxes::PackedBoxes(Place place, const BoxesOf& boxes, std::int64_t element_bytes) {
  leaving.blocks.resize(static_cast<std::size_t>(place.size));
  arriving.blocks.resize(static_cast<std::size_t>(place.size));
  for (int step = 1; step < place.size; ++step) {
    const int dest = (place.rank + step) % place.size;
    const int origin = (place.rank - step + place.size) % place.size;
    Pack(boxes.To(dest), element_bytes, &leaving, dest, [&](const Box& box, const Box& packed) {
      leaving.copies.push_back({nullptr, box, nullptr, packed});
    });
    Pack(boxes.From(origin), element_bytes, &arriving, origin,
         [&](const Box& box, const Box& packed) {
           arriving.copies.push_back({nullptr, packed, nullptr, box});
         });
  }
  const std::vector<Box> from = boxes.To(place.rank);
  const std::vector<Box> to = boxes.From(place.rank);
  for (std::size_t i = 0; i < from.size(); ++i) {
    staying.push_back({nullptr, from[i], nullptr, to[i]});
  }
}

std::vector<BoxCopy> Between(std::vector<BoxCopy> copies, const void* source, void* target) {
  for (BoxCopy& copy : copies) {
    copy.source = source;
    copy.target = target;
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
  const bool sums = arrival == Arrival::kSum;
  const PackedBoxes packed(comm, boxes, bytes);
  void* const send = queue.Allocate(packed.leaving.bytes);
  void* const recv = queue.Allocate(packed.arriving.bytes);

  // What is stored of what stays here goes straight to its place, beside the packing; what is
  // added of it comes before all other sums.
  std::vector<BoxCopy> before = Between(packed.leaving.copies, source, send);
  std::vector<BoxCopy> after = Between(packed.arriving.copies, recv, target);
  const std::vector<BoxCopy> staying = Between(packed.staying, source, target);
  const auto added = sums && !staying.empty() ? staying.begin() + 1 : staying.end();
  before.insert(before.end(), staying.begin(), added);
  after.insert(after.begin(), added, staying.end());

  CopyBoxes(before, element, queue, "packing");
  if (comm.size > 1) {
    const int code = TransportOf(comm).Exchange(comm, send, packed.leaving.blocks, recv,
                                                packed.arriving.blocks, queue);
    if (code != 0) return code;
  }
  if (!sums) {
    CopyBoxes(after, element, queue, "unpacking");
  } else if (!after.empty()) {
    Check(
        Device()->add_boxes(after.data(), static_cast<int>(after.size()), element, queue.stream()),
        "unpacking");
  }
  return 0;
}

}  // namespace pfftjax::gpu
