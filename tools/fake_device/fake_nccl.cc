// A libnccl.so.2 without GPUs, for streams of the fake device: what is enqueued runs when the
// stream does, between processes of one node, through rings of memory that they share. Rings are
// small, so that a send does not end before its receive has begun; and, as in NCCL, calls between
// ncclGroupStart and ncclGroupEnd are enqueued at the end, as one thing that makes progress with
// all of them, while calls outside of a group follow each other. A device has place for one such
// thing at a time: a second one that no event keeps back until the first is done, and which NCCL
// may start first on another rank, ends the process.
//
// PFFTJAX_FAKE_NCCL_FAIL=FUNCTION makes that function return an error, PFFTJAX_FAKE_NCCL_LOST=N
// the N-th question for asynchronous errors, and those after it; with PFFTJAX_FAKE_NCCL_HANG what
// is enqueued from then on never ends, unless its communicator is aborted; with
// PFFTJAX_FAKE_NCCL_WRONG=N one bit of what this process receives from its predecessor changes, in
// messages of N bytes and more. PFFTJAX_FAKE_DEVICE is the path of the fake device.
#include <dlfcn.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gpu/nccl_api.h"

namespace {

using namespace pfftjax::gpu::nccl;  // NOLINT: this file implements it

constexpr Result kInvalid = 4;
constexpr Result kRemote = 6;
constexpr std::size_t kRingBytes = 1000;  // not a power of two: pieces end anywhere

// From one rank to another.
struct Ring {
  alignas(64) std::atomic<std::uint64_t> written;
  alignas(64) std::atomic<std::uint64_t> read;
  char data[kRingBytes];

  std::size_t Write(const char* from, std::size_t bytes) {
    const std::uint64_t at = written.load(std::memory_order_relaxed);
    const std::size_t room = kRingBytes - (at - read.load(std::memory_order_acquire));
    const std::size_t count = std::min(bytes, room);
    for (std::size_t i = 0; i < count; ++i) data[(at + i) % kRingBytes] = from[i];
    written.store(at + count, std::memory_order_release);
    return count;
  }
  std::size_t Read(char* to, std::size_t bytes) {
    const std::uint64_t at = read.load(std::memory_order_relaxed);
    const std::size_t there = written.load(std::memory_order_acquire) - at;
    const std::size_t count = std::min(bytes, there);
    for (std::size_t i = 0; i < count; ++i) to[i] = data[(at + i) % kRingBytes];
    read.store(at + count, std::memory_order_release);
    return count;
  }
};

struct Communicator {
  int ranks;
  int rank;
  Ring* rings;  // ranks x ranks, by source
  std::atomic<bool> is_aborted{false};
  Ring& From(int source, int dest) const { return rings[source * ranks + dest]; }
};

struct Operation {
  Communicator* comm;
  bool is_send;
  char* data;
  std::size_t bytes;
  int peer;
  std::size_t done = 0;
};

void MayGoWrong(const Operation& op) {
  const char* least = std::getenv("PFFTJAX_FAKE_NCCL_WRONG");
  const int before = (op.comm->rank + op.comm->ranks - 1) % op.comm->ranks;
  if (op.is_send || op.peer != before || !least) return;
  if (op.bytes >= std::strtoull(least, nullptr, 10)) op.data[op.bytes / 2] ^= 4;
}

// Holds what a stream runs at once; operations with one peer in one direction follow each other.
struct Work {
  std::vector<Operation> operations;
  std::function<void()> at_end;
  bool hangs = std::getenv("PFFTJAX_FAKE_NCCL_HANG") != nullptr;

  bool IsAborted() const {
    return std::any_of(operations.begin(), operations.end(),
                       [](const Operation& op) { return op.comm->is_aborted.load(); });
  }

  bool Step() {
    // Under the device's lock, as all steps.
    static const Work* running = nullptr;
    if (running && running->IsAborted()) running = nullptr;
    if (running && running != this) {
      std::fputs("the fake NCCL: two operations of one device have no order\n", stderr);
      std::abort();
    }
    if (IsAborted()) return true;
    running = this;
    bool all = !hangs;
    for (std::size_t i = 0; i < operations.size(); ++i) {
      Operation& op = operations[i];
      if (op.done == op.bytes) continue;
      bool is_first = true;
      for (std::size_t j = 0; j < i; ++j) {
        const Operation& before = operations[j];
        if (before.peer == op.peer && before.is_send == op.is_send && before.done < before.bytes) {
          is_first = false;
        }
      }
      if (is_first) {
        char* const at = op.data + op.done;
        const std::size_t left = op.bytes - op.done;
        const int rank = op.comm->rank;
        op.done += op.is_send ? op.comm->From(rank, op.peer).Write(at, left)
                              : op.comm->From(op.peer, rank).Read(at, left);
        if (op.done == op.bytes) MayGoWrong(op);
      }
      all &= op.done == op.bytes;
    }
    if (all && at_end) at_end();
    if (all) running = nullptr;
    return all;
  }
};

// The fake device's: calls `step(state)` whenever the stream may run, until it is not 0.
using Enqueue = int (*)(void* stream, int (*step)(void*), void* state);

Result Put(Stream stream, std::unique_ptr<Work> work) {
  static const auto enqueue = [] {
    const char* path = std::getenv("PFFTJAX_FAKE_DEVICE");
    void* device = path ? dlopen(path, RTLD_NOW | RTLD_NOLOAD) : nullptr;
    return device ? reinterpret_cast<Enqueue>(dlsym(device, "pfftjax_fake_enqueue")) : nullptr;
  }();
  if (!enqueue) return kInvalid;
  const auto step = [](void* state) {
    auto* work = static_cast<Work*>(state);
    if (!work->Step()) return 0;
    delete work;
    return 1;
  };
  return enqueue(stream, step, work.release()) == 0 ? kSuccess : kInvalid;
}

thread_local int depth = 0;
thread_local std::unique_ptr<Work> group;
thread_local Stream group_stream = nullptr;

bool IsToFail(const char* function) {
  const char* wanted = std::getenv("PFFTJAX_FAKE_NCCL_FAIL");
  return wanted && std::strcmp(wanted, function) == 0;
}

Result Add(const Operation& operation, Stream stream) {
  if (depth == 0) {
    auto work = std::make_unique<Work>();
    work->operations.push_back(operation);
    return Put(stream, std::move(work));
  }
  if (!group) group = std::make_unique<Work>();
  group->operations.push_back(operation);
  group_stream = stream;
  return kSuccess;
}

template <typename Number>
void Reduce(RedOp op, const char* source, char* target, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    Number a;
    Number b;
    std::memcpy(&a, target + i * sizeof a, sizeof a);
    std::memcpy(&b, source + i * sizeof b, sizeof b);
    switch (op) {
      case kSum:
        a = static_cast<Number>(a + b);
        break;
      case kProd:
        a = static_cast<Number>(a * b);
        break;
      case kMax:
        a = std::max(a, b);
        break;
      case kMin:
        a = std::min(a, b);
        break;
    }
    std::memcpy(target + i * sizeof a, &a, sizeof a);
  }
}

struct Arithmetic {
  std::size_t bytes;
  void (*reduce)(RedOp op, const char* source, char* target, std::size_t count);
};

// Without those of 16 bits, which tests leave out.
Arithmetic Of(DataType type) {
  switch (type) {
    case kInt8:
      return {1, Reduce<std::int8_t>};
    case kUint8:
      return {1, Reduce<std::uint8_t>};
    case kInt32:
      return {4, Reduce<std::int32_t>};
    case kUint32:
      return {4, Reduce<std::uint32_t>};
    case kInt64:
      return {8, Reduce<std::int64_t>};
    case kUint64:
      return {8, Reduce<std::uint64_t>};
    case kFloat32:
      return {4, Reduce<float>};
    case kFloat64:
      return {8, Reduce<double>};
    default:
      return {0, nullptr};
  }
}

}  // namespace

#define NCCL_FUNCTION extern "C" __attribute__((visibility("default")))

NCCL_FUNCTION Result ncclGetVersion(int* version) {
  *version = 22703;
  return kSuccess;
}

NCCL_FUNCTION Result ncclGetUniqueId(UniqueId* id) {
  static int number = 0;
  if (IsToFail("ncclGetUniqueId")) return kInvalid;
  std::snprintf(id->internal, sizeof id->internal, "/pfftjax-fake-nccl-%d-%d", getpid(), number++);
  return kSuccess;
}

NCCL_FUNCTION Result ncclCommInitRank(Comm* comm, int ranks, UniqueId id, int rank) {
  if (IsToFail("ncclCommInitRank")) return kInvalid;
  struct Header {
    std::atomic<int> joined;
  };
  constexpr std::size_t kHeader = 64;
  static_assert(sizeof(Header) <= kHeader);
  const std::size_t bytes = kHeader + sizeof(Ring) * ranks * ranks;
  const int file = shm_open(id.internal, O_CREAT | O_RDWR, 0600);
  if (file < 0 || ftruncate(file, static_cast<off_t>(bytes)) != 0) return kInvalid;
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (memory == MAP_FAILED) return kInvalid;
  auto* header = static_cast<Header*>(memory);
  if (header->joined.fetch_add(1) + 1 == ranks) shm_unlink(id.internal);
  while (header->joined < ranks) sched_yield();
  *comm = new Communicator{
      ranks, rank, reinterpret_cast<Ring*>(static_cast<char*>(memory) + kHeader), {}};
  return kSuccess;
}

// Enqueued operations still refer to it.
NCCL_FUNCTION Result ncclCommAbort(Comm comm) {
  static_cast<Communicator*>(comm)->is_aborted = true;
  return kSuccess;
}

NCCL_FUNCTION Result ncclCommGetAsyncError(Comm, Result* error) {
  static int asked = 0;
  const char* lost = std::getenv("PFFTJAX_FAKE_NCCL_LOST");
  *error = lost && ++asked >= std::atoi(lost) ? kRemote : kSuccess;
  return kSuccess;
}

NCCL_FUNCTION const char* ncclGetErrorString(Result result) {
  switch (result) {
    case kInvalid:
      return "invalid argument";
    case kRemote:
      return "remote process exited or there was a network error";
    default:
      return "no error";
  }
}

NCCL_FUNCTION Result ncclGroupStart() {
  ++depth;
  return kSuccess;
}

NCCL_FUNCTION Result ncclGroupEnd() {
  if (depth == 0 || IsToFail("ncclGroupEnd")) return kInvalid;
  if (--depth > 0 || !group) return kSuccess;
  return Put(group_stream, std::move(group));
}

NCCL_FUNCTION Result ncclSend(const void* data, std::size_t count, DataType type, int peer,
                              Comm comm, Stream stream) {
  if (type != kUint8 || IsToFail("ncclSend")) return kInvalid;
  auto* const bytes = const_cast<char*>(static_cast<const char*>(data));  // read only
  return Add({static_cast<Communicator*>(comm), true, bytes, count, peer}, stream);
}

NCCL_FUNCTION Result ncclRecv(void* data, std::size_t count, DataType type, int peer, Comm comm,
                              Stream stream) {
  if (type != kUint8 || IsToFail("ncclRecv")) return kInvalid;
  return Add({static_cast<Communicator*>(comm), false, static_cast<char*>(data), count, peer},
             stream);
}

namespace {

// Every rank sends `count` numbers to each of the ranks from `first` to `last`, which reduce what
// all have sent them, in the same order: to all the same ones, or block by block (is_apart).
Result Combine(const char* function, const void* send, bool is_apart, void* recv,
               std::size_t count, DataType type, RedOp op, int first, int last, Comm handle,
               Stream stream) {
  const Arithmetic arithmetic = Of(type);
  if (!arithmetic.reduce || depth > 0 || IsToFail(function)) return kInvalid;
  auto* const comm = static_cast<Communicator*>(handle);
  const std::size_t bytes = count * arithmetic.bytes;
  auto all = std::make_shared<std::vector<char>>(bytes * comm->ranks);
  auto work = std::make_unique<Work>();
  auto* const mine = const_cast<char*>(static_cast<const char*>(send));  // read only
  const bool receives = first <= comm->rank && comm->rank <= last;
  for (int peer = 0; peer < comm->ranks; ++peer) {
    if (first <= peer && peer <= last) {
      work->operations.push_back({comm, true, mine + is_apart * peer * bytes, bytes, peer});
    }
    if (receives) {
      work->operations.push_back({comm, false, all->data() + peer * bytes, bytes, peer});
    }
  }
  work->at_end = [=, ranks = comm->ranks] {
    if (!receives) return;
    auto* const target = static_cast<char*>(recv);
    std::memcpy(target, all->data(), bytes);
    for (int peer = 1; peer < ranks; ++peer) {
      arithmetic.reduce(op, all->data() + peer * bytes, target, count);
    }
  };
  return Put(stream, std::move(work));
}

}  // namespace

NCCL_FUNCTION Result ncclAllReduce(const void* send, void* recv, std::size_t count, DataType type,
                                   RedOp op, Comm comm, Stream stream) {
  const int last = static_cast<Communicator*>(comm)->ranks - 1;
  return Combine("ncclAllReduce", send, false, recv, count, type, op, 0, last, comm, stream);
}

NCCL_FUNCTION Result ncclReduce(const void* send, void* recv, std::size_t count, DataType type,
                                RedOp op, int root, Comm comm, Stream stream) {
  return Combine("ncclReduce", send, false, recv, count, type, op, root, root, comm, stream);
}

NCCL_FUNCTION Result ncclReduceScatter(const void* send, void* recv, std::size_t count,
                                       DataType type, RedOp op, Comm comm, Stream stream) {
  const int last = static_cast<Communicator*>(comm)->ranks - 1;
  return Combine("ncclReduceScatter", send, true, recv, count, type, op, 0, last, comm, stream);
}

NCCL_FUNCTION Result ncclBroadcast(const void* send, void* recv, std::size_t count, DataType type,
                                   int root, Comm handle, Stream stream) {
  if (type != kUint8 || depth > 0 || IsToFail("ncclBroadcast")) return kInvalid;
  auto* const comm = static_cast<Communicator*>(handle);
  auto work = std::make_unique<Work>();
  auto* const mine = const_cast<char*>(static_cast<const char*>(send));  // read only
  for (int peer = 0; comm->rank == root && peer < comm->ranks; ++peer) {
    work->operations.push_back({comm, true, mine, count, peer});
  }
  work->operations.push_back({comm, false, static_cast<char*>(recv), count, root});
  return Put(stream, std::move(work));
}
