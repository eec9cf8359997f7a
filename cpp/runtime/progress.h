// A rank's own call writes what the rank does on a communicator; the watch thread reads it.
#pragma once

#include <cstdint>

#include "base/element.h"
#include "base/process.h"
#include "runtime/operation.h"

namespace pfftjax {

// These stand in place of a rank that a message waits for.
inline constexpr int kNobody = -1;
inline constexpr int kAnybody = -2;

// Tags as sendrecv passes them: 0 and above as given, or one of these.
inline constexpr int kAnyTag = -1;
inline constexpr int kDefaultTag = -2;  // any tag where no other library's message can match

enum class Stage : std::int32_t { kIdle, kChecking, kRunning };

// What a message waits for, as a number: one of its pieces, and which halves of that one have
// ended. It changes whenever the message has come further.
class Awaited {
 public:
  static constexpr std::int64_t kSendEnded = 1;
  static constexpr std::int64_t kReceiveEnded = 2;

  Awaited() = default;
  explicit Awaited(std::int64_t number) : number_(number) {}
  static Awaited Piece(std::int64_t index, bool sends, bool receives) {
    return Awaited(4 * index + (sends ? 0 : kSendEnded) + (receives ? 0 : kReceiveEnded));
  }

  Awaited Without(std::int64_t half) const { return Awaited(number_ | half); }
  bool IsSend() const { return (number_ & kSendEnded) == 0; }
  bool IsReceive() const { return (number_ & kReceiveEnded) == 0; }
  std::int64_t piece() const { return number_ / 4; }
  explicit operator std::int64_t() const { return number_; }
  bool operator==(Awaited other) const { return number_ == other.number_; }
  bool operator!=(Awaited other) const { return number_ != other.number_; }

 private:
  std::int64_t number_ = 0;
};

// The meaning of a collective that has failed, or of one before the first.
inline constexpr std::uint32_t kUnknown = 0;

// The call writes here what this rank does on a communicator, and the watch thread reads it. All
// that every call writes lies on one cache line.
struct alignas(64) Progress {
  process::Atomic<std::int64_t> entered{0};  // calls begun
  process::Atomic<std::int64_t> passed{0};   // collectives that got beyond their checks
  process::Atomic<std::int64_t> count{0};
  process::Atomic<Stage> stage{Stage::kIdle};
  process::Atomic<Operation> operation{Operation::kNone};
  process::Atomic<Element> element{Element::kBool};
  // What all ranks must mean alike (operation, element, count, roots, axes, shapes), as a hash: of
  // collective number `passed` and of those before. The next one takes another place than the
  // latest two, which a reader takes for true if `passed` is the same before and after.
  static constexpr std::int64_t kMeanings = 4;
  process::Atomic<std::uint32_t> meanings[kMeanings] = {};  // or kUnknown
  // It leads to the line that made the call (call_sites.h).
  process::Atomic<std::uint64_t> key{0};

  process::Atomic<std::int64_t> signature{0};  // of the program that is running
  process::Atomic<std::int64_t> checks{0};     // comparisons over the ranks that have begun
  // Only messages set these: the ranks that one waits for, or kNobody or kAnybody, its tags, and
  // what it waits for.
  process::Atomic<int> source{kNobody};
  process::Atomic<int> dest{kNobody};
  process::Atomic<int> send_tag{kAnyTag};
  process::Atomic<int> recv_tag{kAnyTag};
  process::Atomic<Awaited> awaited{Awaited()};
  // Written by the watch for signal handlers, which can look nothing up: CalledAt of the call that
  // was number `called_for`.
  process::Atomic<const char*> called{nullptr};
  process::Atomic<std::int64_t> called_for{-1};

  process::Atomic<std::uint32_t>& MeaningOf(std::int64_t collective) {
    return meanings[static_cast<std::uint64_t>(collective) % kMeanings];
  }
  std::uint32_t MeaningOf(std::int64_t collective) const {
    return meanings[static_cast<std::uint64_t>(collective) % kMeanings];
  }
};

}  // namespace pfftjax
