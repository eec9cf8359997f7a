// Memory that is used round and round, by pieces of what is exchanged on their way.
#pragma once

#include <cstdint>
#include <vector>

#include "base/alignment.h"
#include "gpu/queue.h"
#include "gpu/slots.h"

namespace pfftjax::gpu {

struct Piece {
  char* data = nullptr;  // in the ring, or in that of another rank
  std::int64_t bytes = 0;
  int rank = 0;
  const char* source = nullptr;  // on the device, of what leaves
  char* place = nullptr;         // and of what arrives
  MpiHandle request = 0;         // of a message
  std::int64_t number = -1;      // of a piece in slots; -1: a message
  Event copied;                  // from or to the device
};

// Pieces are freed in the order in which they were taken.
class Ring {
 public:
  // So many of the largest pieces fit, and of smaller ones at most kPieces.
  static constexpr std::int64_t kLargest = 4;
  static std::int64_t BytesFor(std::int64_t largest) {
    return kLargest * RoundUp(largest, kAlign);
  }

  Ring(char* data, std::int64_t bytes) : data_(data), bytes_(bytes), pieces_(kPieces) {}

  // Null where there is no room before others are freed.
  Piece* Take(std::int64_t bytes) {
    if (IsFull()) return nullptr;
    std::int64_t begin = RoundUp(end_, kAlign);
    if (begin % bytes_ + bytes > bytes_) begin = (begin / bytes_ + 1) * bytes_;
    const std::int64_t oldest = freed_ == taken_ ? begin : At(freed_).begin;
    if (begin + bytes - oldest > bytes_) return nullptr;
    end_ = begin + bytes;
    return &Add(begin, data_ + begin % bytes_, bytes);
  }
  // One whose bytes lie elsewhere.
  Piece* TakeElsewhere(std::int64_t bytes) {
    return IsFull() ? nullptr : &Add(end_, nullptr, bytes);
  }
  // The piece that was taken last, once more, if it has come from `source` since Forget; or null.
  Piece* TakeAgain(const char* source, std::int64_t bytes) {
    if (freed_ == taken_ || taken_ == forgotten_ || IsFull()) return nullptr;
    const Slot& last = At(taken_ - 1);
    if (last.piece.source != source || last.piece.bytes != bytes) return nullptr;
    Piece& piece = Add(last.begin, last.piece.data, bytes);
    piece.source = source;
    return &piece;
  }
  // What lies on the device may be other than what was copied.
  void Forget() { forgotten_ = taken_; }
  void FreeOldest() { ++freed_; }

  // Pieces are numbered from the first that was ever taken.
  std::int64_t taken() const { return taken_; }
  std::int64_t freed() const { return freed_; }
  Piece& operator[](std::int64_t number) { return At(number).piece; }

 private:
  struct Slot {
    Piece piece;
    std::int64_t begin = 0;  // in the ring, as if that went on for ever
  };
  static constexpr std::int64_t kAlign = 256;  // where copies are fastest
  bool IsFull() const { return taken_ - freed_ == kPieces; }
  Slot& At(std::int64_t number) { return pieces_[static_cast<std::size_t>(number % kPieces)]; }
  Piece& Add(std::int64_t begin, char* data, std::int64_t bytes) {
    Slot& slot = At(taken_++);
    slot.begin = begin;
    slot.piece.data = data;
    slot.piece.bytes = bytes;
    slot.piece.source = nullptr;
    slot.piece.number = -1;
    return slot.piece;
  }

  char* data_;
  std::int64_t bytes_;
  std::vector<Slot> pieces_;
  std::int64_t taken_ = 0;
  std::int64_t freed_ = 0;
  std::int64_t forgotten_ = 0;
  std::int64_t end_ = 0;
};

}  // namespace pfftjax::gpu
