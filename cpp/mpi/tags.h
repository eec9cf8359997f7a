// The tags of messages on the private duplicates of communicators, each apart from all others:
// what one kind of message leaves behind, where a call has failed, is never taken for another
// kind.
#pragma once

namespace pfftjax {

inline constexpr int kAskTag = 1;  // the watch, of other ranks
inline constexpr int kAnswerTag = 2;
inline constexpr int kStagingTag = 3;   // arrays of GPUs by way of the hosts
inline constexpr int kProbeTag = 4;     // whether a transport works
inline constexpr int kAlltoallTag = 5;  // exchanges that go on in the background
inline constexpr int kAllgatherTag = 6;
inline constexpr int kNoTag = 7;        // looked for, so that MPI gets on, and never sent
inline constexpr int kGpuAwareTag = 8;  // arrays of GPUs by MPI itself
// Exchanges have tags by what they mean. MPI has 32768 tags at least.
inline constexpr int kFirstExchangeTag = 1024;
inline constexpr int kExchangeTags = 16381;

}  // namespace pfftjax
