// The tags of messages on the private duplicates of communicators, each apart from all others:
// what one kind of message leaves behind, where a call has failed, is never taken for another
// kind.
#pragma once

#include <cstdint>

namespace pfftjax {

inline constexpr int kAskTag = 1;  // the watch, of other ranks
inline constexpr int kAnswerTag = 2;
inline constexpr int kProbeTag = 4;     // whether a transport works
inline constexpr int kAlltoallTag = 5;  // exchanges that go on in the background
inline constexpr int kAllgatherTag = 6;
inline constexpr int kNoTag = 7;  // looked for, so that MPI gets on, and never sent

// Exchanges have tags that depend on what all ranks mean alike by them. Ranks that mean different
// things wait for each other, where the watch finds them, and do not take each other's messages,
// which may be of one size. MPI has 32768 tags at least.
struct TagsByMeaning {
  int first;
  int count;  // a prime, as all meanings are odd
  constexpr int End() const { return first + count; }
  int Of(std::uint64_t meaning) const { return first + static_cast<int>(meaning % count); }
};
inline constexpr TagsByMeaning kExchangeTags{1024, 16381};
// Arrays of GPUs go by way of the hosts, or by MPI itself.
inline constexpr TagsByMeaning kStagingTags{kExchangeTags.End(), 7681};
inline constexpr TagsByMeaning kGpuAwareTags{kStagingTags.End(), 7681};
static_assert(kGpuAwareTags.End() <= 32768);

}  // namespace pfftjax
