// The MPI of watch_threads.cc: its other ranks are threads, which answer as they like. It shares
// as few locks as it can between the threads of rank 0: each would order what nothing orders in a
// job.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

#include "fake_mpi.h"
#include "runtime/state.h"

namespace pfftjax::peers {

constexpr int kRanks = 3;  // of which rank 0 is real
constexpr int kWords = State::kWords;
constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr int kNoDuplicate = 5;  // an error of MPI's

inline std::atomic<bool> over{false};  // MPI_Finalize has run its callback

using Words = std::array<std::int64_t, kWords>;

struct Message {
  int source;
  Words words;
};

struct Channel {
  explicit Channel(int size) : size(size) {}
  const int size;
  // Control: the watch's messages, and the barrier of the way out.
  Mail<std::pair<int, int>, Message> mail;  // to rank, with tag
  std::atomic<int> departures{0};
  std::array<std::atomic<bool>, kRanks> peer_has_left{};
  // Data: meetings of all ranks.
  std::atomic<std::int64_t> met{0};
  std::array<std::atomic<std::int64_t>, kRanks> peer_met{};
};

// A communicator of the user's.
struct Group {
  explicit Group(int size) : user(size), data(size), control(size) {}
  Channel user;
  Channel data;
  Channel control;
  std::atomic<int> duplicates{0};
  int possible_duplicates = 2;  // the next one fails
};

constexpr int kGroups = 64;
inline std::array<std::unique_ptr<Group>, kGroups> groups;
inline std::atomic<int> used_groups{0};

struct Request {
  Channel* channel;
  enum class Kind { kDuplicate, kBarrier, kSend } kind;
  int tests = 0;
  const std::int64_t* words = nullptr;  // MPI's until the message is sent
  Words sent{};
};

inline Channel& ChannelOf(MpiHandle comm) {
  Expect(!over, "MPI was called after MPI_Finalize");
  Expect(comm != 0, "MPI was called without a communicator");
  return At<Channel>(comm);
}

inline Group& GroupOf(const Channel& user) {
  for (const auto& group : groups) {
    if (group && &group->user == &user) return *group;
  }
  Expect(false, "a duplicate of a private communicator");
  std::abort();
}

inline int FromAddress(const void* address, MpiHandle* comm) {
  *comm = HandleOf(&static_cast<Group*>(const_cast<void*>(address))->user);
  return 0;
}

inline int RankAndSize(MpiHandle comm, int* rank, int* size) {
  *rank = 0;
  *size = ChannelOf(comm).size;
  return 0;
}

inline int DuplicateStart(MpiHandle comm, MpiHandle* duplicate, MpiHandle* request) {
  Group& group = GroupOf(ChannelOf(comm));
  if (group.duplicates == group.possible_duplicates) return kNoDuplicate;
  const int before = group.duplicates.fetch_add(1);
  Expect(before < 2, "duplicated twice");
  *duplicate = HandleOf(before == 0 ? &group.data : &group.control);
  *request = HandleOf(new Request{&ChannelOf(comm), Request::Kind::kDuplicate});
  return 0;
}

inline int SendStart(const void* data, std::int64_t bytes, int dest, int tag, MpiHandle comm,
                     MpiHandle* request) {
  Channel& channel = ChannelOf(comm);
  Message message{0, {}};
  Expect(bytes == sizeof message.words, "a message of other than words");
  std::memcpy(message.words.data(), data, sizeof message.words);
  channel.mail.Put({dest, tag}, message);
  const auto* words = static_cast<const std::int64_t*>(data);
  *request = HandleOf(new Request{&channel, Request::Kind::kSend, 0, words, message.words});
  return 0;
}

inline int ReceiveWords(std::int64_t* words, int count, int tag, MpiHandle comm, int* source,
                        int* found) {
  Message message{};
  *found = ChannelOf(comm).mail.Take({0, tag}, &message);
  if (!*found) return 0;
  *source = message.source;
  std::memcpy(words, message.words.data(), static_cast<std::size_t>(count) * sizeof *words);
  return 0;
}

inline int BarrierStart(MpiHandle comm, MpiHandle* request) {
  Channel& channel = ChannelOf(comm);
  Expect(channel.departures.fetch_add(1, kRelaxed) < 2, "left more than twice");
  *request = HandleOf(new Request{&channel, Request::Kind::kBarrier});
  return 0;
}

inline int Test(MpiHandle* handle, int* done, std::int64_t*) {
  Expect(!over, "a test after MPI_Finalize");
  auto* request = reinterpret_cast<Request*>(*handle);
  *done = 1;
  if (!request) return 0;
  if (request->kind == Request::Kind::kBarrier) {
    for (int rank = 1; rank < request->channel->size; ++rank) {
      if (!request->channel->peer_has_left[rank].load(kRelaxed)) *done = 0;
    }
  } else {
    *done = ++request->tests > 2;
    Expect(
        !request->words || std::equal(request->sent.begin(), request->sent.end(), request->words),
        "a message was changed on its way");
  }
  if (*done) {
    delete request;
    *handle = 0;
  }
  return 0;
}

// The peers always agree.
inline int Allreduce(const void* send, void* recv, std::int64_t count, Element element, Reduction,
                     MpiHandle comm) {
  static_cast<void>(ChannelOf(comm));
  std::memcpy(recv, send, static_cast<std::size_t>(count * InfoOf(element).bytes));
  return 0;
}

inline void (*at_finalize)() = nullptr;

inline const MpiApi* FakeMpi() {
  static const MpiApi api = [] {
    MpiApi made{};
    made.version = kMpiApiVersion;
    made.from_address = FromAddress;
    made.rank_and_size = RankAndSize;
    made.duplicate_start = DuplicateStart;
    made.return_errors = [](MpiHandle) { return 0; };
    made.send_start = SendStart;
    made.receive_words = ReceiveWords;
    made.probe = [](MpiHandle, Envelope*, int* found) { return *found = 0; };
    made.barrier_start = BarrierStart;
    made.test = Test;
    made.allreduce = Allreduce;
    made.abort = [](int) { Expect(false, "the job was ended"); };
    made.on_finalize = [](void (*callback)()) {
      at_finalize = callback;
      return 0;
    };
    return made;
  }();
  return &api;
}

}  // namespace pfftjax::peers
