// The kernels of a GPU (cpp/gpu/kernels.cu) beside what the CPU does with the same boxes
// (cpp/pencils/box.cc), on threads that cuda_emulator.h makes. Built and run by
// tests/jobs/test_kernels.py.
#include "gpu/kernels.cu"

#include <sys/mman.h>

#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "requirements.h"

namespace pfftjax::gpu {
namespace {

// Exactly as long as it says, so that AddressSanitizer sees every step beyond it; begins at an odd
// multiple of an element after an aligned address.
class Memory {
 public:
  Memory(std::int64_t elements, std::int64_t element_bytes)
      : gap_(Draw(4) * element_bytes),
        size_(gap_ + elements * element_bytes),
        bytes_(new unsigned char[static_cast<std::size_t>(size_)]) {
    for (std::int64_t i = 0; i < size_; ++i) bytes_[i] = static_cast<unsigned char>(generator());
  }
  Memory(const Memory& other)
      : gap_(other.gap_),
        size_(other.size_),
        bytes_(new unsigned char[static_cast<std::size_t>(size_)]) {
    std::memcpy(bytes_.get(), other.bytes_.get(), static_cast<std::size_t>(size_));
  }
  unsigned char* data() const { return bytes_.get() + gap_; }
  std::int64_t size() const { return size_ - gap_; }
  bool operator==(const Memory& other) const {
    return std::memcmp(bytes_.get(), other.bytes_.get(), static_cast<std::size_t>(size_)) == 0;
  }

 private:
  std::int64_t gap_;
  std::int64_t size_;
  std::unique_ptr<unsigned char[]> bytes_;
};

// A box of these extents in an array whose axes lie in some order, with gaps or without; `end`
// grows to what the array has to hold.
Box Place(const std::vector<std::int64_t>& extents, bool in_order, std::int64_t* end) {
  Box box;
  box.dims = static_cast<int>(extents.size());
  std::vector<int> order(extents.size());
  std::iota(order.begin(), order.end(), 0);
  if (!in_order) std::shuffle(order.begin(), order.end(), generator);
  box.offset = *end + Draw(3);
  std::int64_t stride = Draw(6) == 0 ? 2 : 1;
  std::int64_t last = box.offset;
  for (auto d = order.rbegin(); d != order.rend(); ++d) {
    box.extent[*d] = extents[*d];
    box.stride[*d] = stride;
    last += (extents[*d] - 1) * stride;
    stride *= extents[*d];
    if (Draw(2)) stride += Draw(3);
  }
  if (box.count() > 0) *end = last + 1;
  return box;
}

std::vector<std::int64_t> Extents(std::int64_t most) {
  static const std::int64_t kSome[] = {1, 2, 3, 4, 5, 7, 8, 13, 16, 31, 32, 33, 64, 65, 101};
  while (true) {
    std::vector<std::int64_t> extents(static_cast<std::size_t>(Draw(5)));
    std::int64_t count = 1;
    for (auto& extent : extents) count *= extent = kSome[Draw(std::size(kSome))];
    if (count <= most) return extents;
  }
}

struct Boxes {
  std::vector<Box> from;
  std::vector<Box> to;
  std::int64_t source_elements = 0;
  std::int64_t target_elements = 0;

  void Add(const std::vector<std::int64_t>& extents, bool in_order = false) {
    from.push_back(Place(extents, in_order, &source_elements));
    to.push_back(Place(extents, in_order, &target_elements));
  }
  std::vector<BoxCopy> Between(const Memory& source, const Memory& target) const {
    std::vector<BoxCopy> copies;
    for (std::size_t i = 0; i < from.size(); ++i) {
      copies.push_back({source.data(), from[i], target.data(), to[i]});
    }
    return copies;
  }
};

// Elements of sizes that CopyBox does not know, as bytes along a dimension of their own.
Box InBytes(Box box, std::int64_t element_bytes) {
  for (int d = 0; d < box.dims; ++d) box.stride[d] *= element_bytes;
  box.offset *= element_bytes;
  box.extent[box.dims] = element_bytes;
  box.stride[box.dims++] = 1;
  return box;
}

void ExpectCopied(const Boxes& boxes, std::int64_t element_bytes, const std::string& what,
                  std::int64_t most_words = 0) {
  const Memory source(boxes.source_elements, element_bytes);
  const Memory target(boxes.target_elements, element_bytes);
  const Memory expected(target);
  for (std::size_t i = 0; i < boxes.from.size(); ++i) {
    CopyBox(source.data(), InBytes(boxes.from[i], element_bytes), expected.data(),
            InBytes(boxes.to[i], element_bytes), 1);
  }
  const auto copies = boxes.Between(source, target);
  const int count = static_cast<int>(copies.size());
  int code = 0;
  if (most_words == 0) {
    code = CopyBoxes(copies.data(), count, element_bytes, nullptr);
  } else {
    code = PlanBoxes(
        copies.data(), count, element_bytes, Unit::kWords,
        [](const Batch& batch) { return Launch(CopyKernelOf(batch.word_bytes), batch, nullptr); },
        most_words);
  }
  Require(code == 0 && target == expected,
          what + ", elements of " + std::to_string(element_bytes) + " bytes");
}

void TestDrawnCopies() {
  for (const std::int64_t element_bytes : {1, 2, 4, 8, 16, 3, 12}) {
    for (int round = 0; round < 16; ++round) {
      Boxes boxes;
      for (auto n = Draw(4); n >= 0; --n) boxes.Add(Extents(6000), Draw(3) == 0);
      // Cut, as boxes of more than 2^31 words are.
      ExpectCopied(boxes, element_bytes, "drawn copies", round % 4 == 0 ? 1 + Draw(500) : 0);
    }
    Boxes planes;  // more squares, and more rows, than there are blocks
    planes.Add({301, 1, 299});
    planes.Add({299, 301}, true);
    ExpectCopied(planes, element_bytes, "planes");
    Boxes many;  // more than a launch takes, some of them empty
    for (int i = 0; i < 3 * Batch::kMoves; ++i) many.Add({Draw(4), 5, 1, Draw(9), 2});
    ExpectCopied(many, element_bytes, "many boxes");
  }
}

// Sums must be those of AddBox to the bit, in the order of the boxes, which all have one target.
void TestAdditions() {
  for (int e = 0; e < static_cast<int>(kElements.size()); ++e) {
    const auto element = static_cast<Element>(e);
    const std::int64_t bytes = InfoOf(element).bytes;
    for (int round = 0; round < 4; ++round) {
      Boxes boxes;
      const auto extents = Extents(3000);
      boxes.Add(extents);
      for (int i = 0; i < 3; ++i) {
        boxes.from.push_back(Place(extents, false, &boxes.source_elements));
        boxes.to.push_back(boxes.to[0]);
      }
      const Memory source(boxes.source_elements, bytes);
      const Memory target(boxes.target_elements, bytes);
      for (const Memory* memory : {&source, &target}) {
        unsigned char* data = memory->data();
        for (std::int64_t i = 0; i < memory->size(); ++i) {
          if (element == Element::kBool) data[i] &= 1;
          // No infinities and no NaN: which of two the sum is, is the processor's affair.
          if (element >= Element::kF16 && i % 2 == 1) data[i] &= 0xbb;
        }
      }
      const Memory expected(target);
      for (std::size_t i = 0; i < boxes.from.size(); ++i) {
        AddBox(source.data(), boxes.from[i], expected.data(), boxes.to[i], element);
      }
      const auto copies = boxes.Between(source, target);
      const int code = AddBoxes(copies.data(), static_cast<int>(copies.size()), element, nullptr);
      Require(code == 0 && target == expected, std::string("sums of ") + InfoOf(element).name);
    }
  }
}

// Offsets past 2^32 elements, in memory that is never touched otherwise.
void TestFarStrides() {
  const std::int64_t far = (std::int64_t{1} << 32) + 48;
  const auto bytes = static_cast<std::size_t>(4 * far);
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  Require(memory != MAP_FAILED, "16 GiB of addresses");
  auto* base = static_cast<unsigned char*>(memory);
  for (const bool turned : {false, true}) {
    Box near;
    near.dims = 3;
    near.extent = {3, 7, 33};
    near.stride = {7 * 33, 33, 1};
    Box away = near;
    away.stride = {far, turned ? 1 : 40, turned ? 7 : 1};
    away.offset = 16;
    const Memory source(near.count(), 1);
    const Memory back(near.count(), 1);
    const BoxCopy there{source.data(), near, base, away};
    const BoxCopy again{base, away, back.data(), near};
    Require(CopyBoxes(&there, 1, 1, nullptr) == 0 && CopyBoxes(&again, 1, 1, nullptr) == 0 &&
                std::memcmp(source.data(), back.data(), near.count()) == 0,
            "strides past 2^32");
    Require(base[16 + 2 * far + 6 * away.stride[1] + 32 * away.stride[2]] ==
                source.data()[near.count() - 1],
            "the place of the last element");
  }
  munmap(memory, bytes);
}

// The results cannot tell that each shape goes the way that is fast for it.
Batch PlanOf(const Box& from, const Box& to, std::int64_t element_bytes, std::uintptr_t target) {
  Batch seen{};
  const BoxCopy copy{reinterpret_cast<const void*>(std::uintptr_t{1} << 20), from,
                     reinterpret_cast<void*>(target), to};
  const int code = PlanBoxes(&copy, 1, element_bytes, Unit::kWords, [&seen](const Batch& batch) {
    Require(seen.count == 0, "one batch");
    seen = batch;
    return 0;
  });
  Require(code == 0 && seen.count == 1, "one box is one move");
  return seen;
}

Box Strided(std::initializer_list<std::int64_t> extents,
            std::initializer_list<std::int64_t> strides) {
  Box box;
  for (const auto extent : extents) box.extent[box.dims++] = extent;
  std::copy(strides.begin(), strides.end(), box.stride.begin());
  return box;
}

void TestPlans() {
  const std::uintptr_t aligned = std::uintptr_t{1} << 30;
  const Box whole = Strided({4, 6, 5, 8}, {240, 40, 8, 1});
  Batch batch = PlanOf(whole, whole, 4, aligned);
  Move move = batch.moves[0];
  Require(move.axes_count == 0 && batch.word_bytes == 16 && move.width == 240 && move.height == 1,
          "a box without gaps is one row of the largest words");
  batch = PlanOf(whole, whole, 4, aligned + 4);
  Require(batch.word_bytes == 4 && batch.moves[0].width == 960, "words fit the alignment");

  const Box line = Strided({(1 << 20) + 1}, {1});
  Require(PlanOf(line, line, 16, aligned).tiles == (1 << 10) + 1,
          "all threads take part in a line");

  const Box part = Strided({4, 6, 8}, {480, 16, 1});
  batch = PlanOf(part, Contiguous(part), 8, aligned);
  move = batch.moves[0];
  Require(batch.word_bytes == 16 && move.width == 4 && move.height == 24 && batch.tiles == 1 &&
              move.axes_count == 2,
          "rows");
  const Box odd = Strided({4, 6, 7}, {480, 16, 1});
  batch = PlanOf(odd, Contiguous(odd), 8, aligned);
  move = batch.moves[0];
  Require(batch.word_bytes == 8 && move.width == 7 && batch.tiles == 1, "odd rows");

  batch =
      PlanOf(Strided({3, 40, 70}, {2800, 70, 1}), Strided({3, 40, 70}, {2800, 1, 40}), 8, aligned);
  move = batch.moves[0];
  Require(move.log_width == kSquares && batch.word_bytes == 8 && move.width == 70 &&
              move.height == 40 && batch.tiles == 3 * 3 * 2,
          "squares");
  batch = PlanOf(Strided({40, 70, 2}, {140, 2, 1}), Strided({40, 70, 2}, {2, 80, 1}), 4, aligned);
  Require(batch.moves[0].log_width == kSquares && batch.word_bytes == 8,
          "what stays together is turned together");
  move = PlanOf(Strided({1000, 3}, {3, 1}), Strided({1000, 3}, {1, 1000}), 4, aligned).moves[0];
  Require(move.log_width != kSquares && move.width == 1000 && move.height == 3, "thin squares");

  std::int64_t words = 0;
  const BoxCopy whole_copy{nullptr, whole, nullptr, whole};
  const auto count = [&words](const Batch& batch) {
    for (int m = 0; m < batch.count; ++m) {
      Require(batch.moves[m].width * batch.moves[m].height <= 100, "no more than is counted");
      words += batch.moves[m].width * batch.moves[m].height;
    }
    return 0;
  };
  Require(PlanBoxes(&whole_copy, 1, 16, Unit::kWords, count, 100) == 0 && words == whole.count(),
          "a box that is cut");

  for (int i = 0; i < 20000; ++i) {
    const auto extent = static_cast<std::uint32_t>(1 + (Draw(0x7fffffff) >> Draw(31)));
    const Axis axis = MakeAxis(extent, 0, 0);
    const auto n = static_cast<std::uint32_t>(Draw(std::int64_t{1} << 31));
    const std::uint32_t last = 0x7fffffff / extent * extent;
    for (const std::uint32_t m : {n, last, last - 1, std::uint32_t{0x7fffffff}}) {
      Require(axis.Divide(m) == m / extent, "division by " + std::to_string(extent));
    }
  }
}

void TestLaunches() {
  Boxes boxes;
  boxes.Add({0, 5});
  emulator::launches = 0;
  ExpectCopied(boxes, 4, "nothing");
  Require(emulator::launches == 0, "nothing is not launched");
  while (boxes.from.size() < Batch::kMoves) boxes.Add({5, 33, 2});
  ExpectCopied(boxes, 4, "a batch");
  Require(emulator::launches == 1, "all boxes of a call in one launch");
  const BoxCopy copy{};
  Require(CopyBoxes(&copy, 1, 0, nullptr) != 0 &&
              AddBoxes(&copy, 1, static_cast<Element>(99), nullptr) != 0,
          "no element is of such a size, or type");
}

}  // namespace
}  // namespace pfftjax::gpu

int main() {
  pfftjax::gpu::TestPlans();
  pfftjax::gpu::TestLaunches();
  pfftjax::gpu::TestFarStrides();
  pfftjax::gpu::TestDrawnCopies();
  pfftjax::gpu::TestAdditions();
  std::puts("all data right");
}
