// The MPI of threads.cc: its ranks are threads of one process.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>
#include <tuple>
#include <vector>

#include "fake_mpi.h"

namespace pfftjax::ranks {

struct World {
  explicit World(int ranks) : size(ranks) {}

  // All ranks give `bytes`; all get everything.
  std::vector<char> Gather(int rank, const void* mine, std::size_t bytes) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return leaving == 0; });
    gathered.resize(bytes * size);
    std::memcpy(gathered.data() + rank * bytes, mine, bytes);
    if (++arrived == size) {
      leaving = size;
      changed.notify_all();
    }
    changed.wait(lock, [&] { return leaving > 0; });
    std::vector<char> result = gathered;
    if (--leaving == 0) {
      arrived = 0;
      changed.notify_all();
    }
    return result;
  }

  int size;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<char> gathered;
  int arrived = 0;
  int leaving = 0;
  Mail<std::tuple<int, int, int>, std::vector<char>> mail;  // from, to, tag
  std::atomic<int> messages{0};
};

struct Rank {
  World* world;
  int rank;
};

struct Request {
  World* world = nullptr;
  std::tuple<int, int, int> key;
  void* data = nullptr;  // null for a message that was sent
};

inline int Allgather(const void* send, void* recv, std::int64_t count, Element element,
                     MpiHandle comm) {
  const Rank& rank = At<Rank>(comm);
  const auto all =
      rank.world->Gather(rank.rank, send, static_cast<std::size_t>(count * InfoOf(element).bytes));
  std::memcpy(recv, all.data(), all.size());
  return 0;
}

inline int Smallest(const void* send, void* recv, std::int64_t, Element, Reduction,
                    MpiHandle comm) {
  const Rank& rank = At<Rank>(comm);
  const auto all = rank.world->Gather(rank.rank, send, sizeof(std::int64_t));
  std::int64_t least = INT64_MAX;
  for (int i = 0; i < rank.world->size; ++i) {
    std::int64_t value;
    std::memcpy(&value, all.data() + i * sizeof value, sizeof value);
    least = std::min(least, value);
  }
  std::memcpy(recv, &least, sizeof least);
  return 0;
}

inline int SendStart(const void* data, std::int64_t bytes, int dest, int tag, MpiHandle comm,
                     MpiHandle* request) {
  const Rank& rank = At<Rank>(comm);
  const auto* from = static_cast<const char*>(data);
  rank.world->mail.Put({rank.rank, dest, tag}, {from, from + bytes});
  ++rank.world->messages;
  *request = HandleOf(new Request{});
  return 0;
}

inline int ReceiveStart(void* data, std::int64_t, int source, int tag, MpiHandle comm,
                        MpiHandle* request) {
  const Rank& rank = At<Rank>(comm);
  *request = HandleOf(new Request{rank.world, {source, rank.rank, tag}, data});
  return 0;
}

// Messages of one pair come in the order in which they were sent; the tests ask in the order in
// which they were received, backward, one exchange after the other.
inline int Test(MpiHandle* handle, int* done, std::int64_t* bytes) {
  Request& request = At<Request>(*handle);
  *done = 1;
  Expect((bytes != nullptr) == (request.data != nullptr), "only a receive says how much came");
  if (request.data) {
    std::vector<char> message;
    *done = request.world->mail.Take(request.key, &message);
    if (!*done) return 0;
    std::memcpy(request.data, message.data(), message.size());
    *bytes = static_cast<std::int64_t>(message.size());
  }
  delete &request;
  return 0;
}

inline int WaitEither(MpiHandle* receive, MpiHandle* send, int* is_receive, std::int64_t* bytes) {
  while (true) {
    int done = 0;
    if (send) {
      *is_receive = 0;
      return Test(send, &done, nullptr);
    }
    *is_receive = 1;
    if (const int code = Test(receive, &done, bytes); code != 0 || done) return code;
    std::this_thread::yield();
  }
}

inline const MpiApi* FakeMpi() {
  static const MpiApi api = [] {
    MpiApi made{};
    made.allgather = Allgather;
    made.allreduce = Smallest;
    made.send_start = SendStart;
    made.receive_start = ReceiveStart;
    made.test = Test;
    made.wait_either = WaitEither;
    made.progress = [](MpiHandle) { return 0; };
    return made;
  }();
  return &api;
}

}  // namespace pfftjax::ranks
