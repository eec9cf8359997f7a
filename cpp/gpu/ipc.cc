// Memory that the processes of a node open of each other's (CUDA IPC).
//
// XLA's own memory cannot be shared: it is one pool, or none that may be exported. So each rank
// has an arena, of two halves. In a round it copies what the others are to have into one of them,
// records an event, and notes in memory that the hosts share where it lies; the others let their
// streams wait for the event, copy their parts out, and record events in turn, for which the
// owner's stream waits before it writes that half again, two rounds later. A wait takes the record
// that an event has when it is made, so each host first waits for the others' hosts to have
// recorded, which costs microseconds.
//
// That a wait keeps the record it was made for when another process records again is not what we
// rely on: an event is recorded again once no stream has such a wait before it any more. There are
// events for so many rounds that hosts run 14 of them ahead before they wait for a device.
#include <array>
#include <atomic>

#include "base/alignment.h"
#include "gpu/transport.h"
#include "runtime/node.h"
#include "runtime/shared_memory.h"

namespace pfftjax::gpu {
namespace {

constexpr int kHalves = 2;
constexpr int kRecords = 16;          // rounds that have events of their own
constexpr std::int64_t kAlign = 256;  // for copies at full speed

// Each rank has these in the memory that the hosts share.
struct Flags {
  alignas(kCacheLine) std::atomic<std::int64_t> written;  // its last round whose event is recorded
  std::atomic<std::int32_t> has_more[kHalves];            // after that round
  std::atomic<std::int32_t> has_failed;
  alignas(kCacheLine) std::atomic<std::int64_t> read;  // its last round of reading, likewise
};

// One rank has left this for another in a half.
struct Note {
  std::uint64_t about;  // what the exchange is about
  std::int64_t offset;
  std::int64_t bytes;
};

// A rank tells the others this once.
struct Offer {
  SharedHandle arena;
  SharedHandle written[kRecords];
  SharedHandle read[kRecords];
};

// Memory and events of a rank: its own, or opened.
struct Peer {
  char* arena = nullptr;
  std::array<EventHandle, kRecords> written{};
  std::array<EventHandle, kRecords> read{};
};

class Ipc final : public Transport {
 public:
  Ipc(const Communicator& comm, std::unique_ptr<SharedMemory> memory);
  ~Ipc() override;

  const char* name() const override { return "ipc"; }
  std::string description() const override { return "ipc (CUDA IPC within the node)"; }

  // The parts of making one, between which the ranks agree.
  std::string MakeOwn(Offer* offer);
  std::string Open(const std::vector<Offer>& offers, const Devices& devices);
  // Closes what was opened of others, before they give their own back.
  void Close();
  void Discard() override { FlagsOf(rank_).has_failed.store(1, std::memory_order_release); }

 protected:
  int Move(Communicator& comm, const void* send, const std::vector<Block>& to, void* recv,
           const std::vector<Block>& from, Queue& queue) override;
  // However an exchange ends, the others do not wait for this rank for ever, and nothing is copied
  // into memory that XLA gives to others.
  void GiveUp(Queue& queue) override {
    Discard();
    for (const std::unique_ptr<Lane>& lane : lanes_) {
      if (!lane) continue;
      try {
        lane->end.Record(lane->stream.handle());
        queue.WaitFor(lane->end);
      } catch (const std::exception&) {  // the first error says more
      }
    }
  }

 private:
  struct Traffic;
  // Gives back what a rank has: this one's own memory, or what was opened of another's.
  void Free(int rank);
  int Round(Communicator& comm, Traffic& traffic, Queue& queue);
  int WaitForReaders(Communicator& comm, Queue& queue);
  int WaitForRecords(Communicator& comm);
  void Leave(const Communicator& comm, Traffic& traffic, Queue& queue);
  int Take(Communicator& comm, Traffic& traffic, Queue& queue);
  // `condition()` of another rank, or that it has failed.
  template <typename Condition>
  int WaitFor(Communicator& comm, int rank, Condition&& condition);

  Flags& FlagsOf(int rank) const { return reinterpret_cast<Flags*>(memory_->data())[rank]; }
  Note& NoteOf(int source, int dest, int half) const {
    auto* notes = reinterpret_cast<Note*>(memory_->data() + ranks_ * sizeof(Flags));
    return notes[(source * kHalves + half) * ranks_ + dest];
  }
  int Half() const { return static_cast<int>(round_ % kHalves); }
  // A Peer keeps the events of a round at this index.
  static int Record(std::int64_t round) { return static_cast<int>(round % kRecords); }

  int ranks_;
  int rank_;
  std::unique_ptr<SharedMemory> memory_;
  std::int64_t half_bytes_;
  std::vector<Peer> peers_;
  // For each half, whether a rank was left something in it when it was last written.
  std::array<std::vector<char>, kHalves> readers_;
  std::int64_t round_ = 0;
  // From each rank something is copied on a stream of its own: links between pairs of devices work
  // at the same time.
  struct Lane {
    Stream stream;
    Event end;
  };
  std::vector<std::unique_ptr<Lane>> lanes_;
  Event begin_;
};

// One exchange.
struct Ipc::Traffic {
  const char* send;
  const std::vector<Block>& to;
  char* recv;
  const std::vector<Block>& from;
  std::vector<std::int64_t> sent;  // bytes so far, by rank
  std::vector<std::int64_t> received;
  bool has_more = true;  // any rank has
};

Ipc::Ipc(const Communicator& comm, std::unique_ptr<SharedMemory> memory)
    : ranks_(comm.size),
      rank_(comm.rank),
      memory_(std::move(memory)),
      peers_(comm.size),
      lanes_(comm.size) {
  const std::int64_t least = kAlign * ranks_;
  const std::int64_t half = GetTransportOptions().arena_bytes / kHalves / kAlign * kAlign;
  half_bytes_ = std::max(half, least);
  for (std::vector<char>& readers : readers_) readers.assign(ranks_, 0);
}

std::string Ipc::MakeOwn(Offer* offer) {
  const DeviceApi& device = *Device();
  Peer& mine = peers_[rank_];
  void* arena = nullptr;
  Check(device.allocate(&arena, kHalves * half_bytes_),
        "allocating the arena of PFFTJAX_GPU_ARENA_BYTES");
  mine.arena = static_cast<char*>(arena);
  Check(device.export_memory(arena, &offer->arena), "exporting memory");
  for (int record = 0; record < kRecords; ++record) {
    Check(device.make_shared_event(&mine.written[record], &offer->written[record]),
          "making an event for other processes");
    Check(device.make_shared_event(&mine.read[record], &offer->read[record]),
          "making an event for other processes");
  }
  return {};
}

std::string Ipc::Open(const std::vector<Offer>& offers, const Devices& devices) {
  const DeviceApi& device = *Device();
  for (int rank = 0; rank < ranks_; ++rank) {
    if (rank == rank_) continue;
    Peer& peer = peers_[rank];
    const Offer& offer = offers[rank];
    void* arena = nullptr;
    int code = device.open_memory(&offer.arena, &arena);
    peer.arena = static_cast<char*>(arena);
    for (int record = 0; record < kRecords && code == 0; ++record) {
      code = device.open_event(&offer.written[record], &peer.written[record]);
      if (code == 0) code = device.open_event(&offer.read[record], &peer.read[record]);
    }
    if (code != 0) {
      return "it cannot open what rank " + std::to_string(rank) + " shares of device " +
             devices[rank] + " ('" + device.error_text(code) +
             "'); each rank must see the GPUs of all ranks of its node: srun --gpu-bind=none in "
             "place of --gpus-per-task";
    }
  }
  return {};
}

void Ipc::Close() {
  for (int rank = 0; rank < ranks_; ++rank) {
    if (rank != rank_) Free(rank);
  }
}

void Ipc::Free(int rank) {
  const DeviceApi& device = *Device();
  Peer& peer = peers_[rank];
  for (int record = 0; record < kRecords; ++record) {
    if (peer.written[record]) device.free_event(peer.written[record]);
    if (peer.read[record]) device.free_event(peer.read[record]);
  }
  if (peer.arena) rank == rank_ ? device.free(peer.arena) : device.close_memory(peer.arena);
  peer = {};
}

Ipc::~Ipc() {
  Close();
  Free(rank_);
}

int Ipc::Move(Communicator& comm, const void* send, const std::vector<Block>& to, void* recv,
              const std::vector<Block>& from, Queue& queue) {
  Traffic traffic{static_cast<const char*>(send),    to,
                  static_cast<char*>(recv),          from,
                  std::vector<std::int64_t>(ranks_), std::vector<std::int64_t>(ranks_)};
  CopyOwnBlock(comm, send, to, recv, from, queue);
  while (traffic.has_more) {
    if (const int code = Round(comm, traffic, queue)) return code;
  }
  for (int rank = 0; rank < ranks_; ++rank) {
    if (rank == rank_ || traffic.received[rank] == from[rank].count) continue;
    comm.difference = "rank " + std::to_string(rank) + " sends " +
                      std::to_string(traffic.received[rank]) +
                      " bytes to this rank, which expects " + std::to_string(from[rank].count);
    return kOtherCall;
  }
  return 0;
}

int Ipc::Round(Communicator& comm, Traffic& traffic, Queue& queue) {
  ++round_;
  if (const int code = WaitForReaders(comm, queue)) return code;
  if (const int code = WaitForRecords(comm)) return code;
  Leave(comm, traffic, queue);
  return Take(comm, traffic, queue);
}

template <typename Condition>
int Ipc::WaitFor(Communicator& comm, int rank, Condition&& condition) {
  const Flags& theirs = FlagsOf(rank);
  bool is_met = false;
  const int code = memory_->WaitFor(comm, [&] {
    // The order matters: what a rank did before it failed still counts.
    const bool has_failed = theirs.has_failed.load(std::memory_order_acquire) != 0;
    is_met = condition();
    return is_met || has_failed;
  });
  if (code != 0 || is_met) return code;
  comm.difference = "rank " + std::to_string(rank) + " has given up an exchange between GPUs";
  return kOtherCall;
}

// Until the half is free: on the host that the events are recorded, on the stream for them.
int Ipc::WaitForReaders(Communicator& comm, Queue& queue) {
  std::vector<char>& readers = readers_[Half()];
  for (int rank = 0; rank < ranks_; ++rank) {
    if (rank == rank_) continue;
    const int code = WaitFor(comm, rank, [&] {
      return FlagsOf(rank).read.load(std::memory_order_acquire) >= round_ - kHalves;
    });
    if (code != 0) return code;
    if (!readers[rank]) continue;
    Check(Device()->wait(queue.stream(), peers_[rank].read[Record(round_ - kHalves)]),
          "waiting for a reader");
    readers[rank] = 0;
  }
  return 0;
}

// Waits until no stream has to wait any more for what this round's events were last recorded for:
// for having written, streams wait in that round, and for having read, kHalves rounds later.
// Rounds may be on different streams, so both are asked for. The hosts have recorded them, as
// WaitForReaders has seen later ones. This rank asks for its own, too: the fake device runs only
// while somebody asks.
int Ipc::WaitForRecords(Communicator& comm) {
  static_assert(kRecords >= 2 * kHalves);
  for (const int record : {Record(round_), Record(round_ + kHalves)}) {
    for (int rank = 0; rank < ranks_; ++rank) {
      const int code = WaitFor(comm, rank, [&] {
        int done = 0;
        Check(Device()->is_done(peers_[rank].read[record], &done), "asking for a reader");
        return done != 0;
      });
      if (code != 0) return code;
    }
  }
  return 0;
}

// Copies as much of what is to be sent as the half holds, in equal shares.
void Ipc::Leave(const Communicator& comm, Traffic& traffic, Queue& queue) {
  const int half = Half();
  int receivers = 0;
  for (int rank = 0; rank < ranks_; ++rank) {
    if (rank != rank_ && traffic.sent[rank] < traffic.to[rank].count) ++receivers;
  }
  const std::int64_t share = half_bytes_ / std::max(receivers, 1) / kAlign * kAlign;
  std::int64_t offset = half * half_bytes_;
  bool has_more = false;
  for (int step = 1; step < ranks_; ++step) {
    const int dest = (comm.rank + step) % ranks_;
    const Block& block = traffic.to[dest];
    std::int64_t& sent = traffic.sent[dest];
    const std::int64_t bytes = std::min(share, block.count - sent);
    NoteOf(rank_, dest, half) = {about(), offset, bytes};
    if (bytes == 0) continue;
    queue.Copy(peers_[rank_].arena + offset, traffic.send + block.offset + sent, bytes,
               Direction::kOnDevice);
    readers_[half][dest] = 1;
    sent += bytes;
    offset += RoundUp(bytes, kAlign);
    has_more |= sent < block.count;
  }
  if (receivers > 0) {
    Check(Device()->record(peers_[rank_].written[Record(round_)], queue.stream()),
          "recording an event");
  }
  Flags& mine = FlagsOf(rank_);
  mine.has_more[half].store(has_more, std::memory_order_relaxed);
  mine.written.store(round_, std::memory_order_release);
}

// Copies what the others have left for this rank.
int Ipc::Take(Communicator& comm, Traffic& traffic, Queue& queue) {
  const int half = Half();
  // Copies of less than this take no longer than what it takes to begin them.
  const std::int64_t least_apart = half_bytes_ / (32 * ranks_);
  traffic.has_more = false;
  std::vector<Lane*> used;
  for (int step = 1; step < ranks_; ++step) {
    const int source = (comm.rank + ranks_ - step) % ranks_;
    const Flags& theirs = FlagsOf(source);
    const int code = WaitFor(
        comm, source, [&] { return theirs.written.load(std::memory_order_acquire) >= round_; });
    if (code != 0) return code;
    traffic.has_more |= theirs.has_more[half].load(std::memory_order_relaxed) != 0;
    const Note note = NoteOf(source, rank_, half);
    if (note.about != about()) {
      comm.difference = InAnotherCall(source);
      return kOtherCall;
    }
    if (note.bytes == 0) continue;
    const Block& block = traffic.from[source];
    std::int64_t& received = traffic.received[source];
    if (note.bytes > block.count - received) {
      comm.difference = "rank " + std::to_string(source) + " sends more than the " +
                        std::to_string(block.count) + " bytes that this rank expects of it";
      return kOtherCall;
    }
    const bool is_apart = ranks_ > 2 && note.bytes >= least_apart;
    StreamHandle stream = queue.stream();
    if (is_apart) {
      if (used.empty()) begin_.Record(stream);
      if (!lanes_[source]) lanes_[source] = std::make_unique<Lane>();
      used.push_back(lanes_[source].get());
      used.back()->stream.WaitFor(begin_);
      stream = used.back()->stream.handle();
    }
    Check(Device()->wait(stream, peers_[source].written[Record(round_)]), "waiting for a sender");
    Check(
        Device()->copy(traffic.recv + block.offset + received, peers_[source].arena + note.offset,
                       note.bytes, Direction::kOnDevice, stream),
        "copying");
    if (is_apart) used.back()->end.Record(stream);
    received += note.bytes;
  }
  for (const Lane* lane : used) queue.WaitFor(lane->end);
  traffic.has_more |= FlagsOf(rank_).has_more[half].load(std::memory_order_relaxed) != 0;
  Check(Device()->record(peers_[rank_].read[Record(round_)], queue.stream()),
        "recording an event");
  FlagsOf(rank_).read.store(round_, std::memory_order_release);
  return 0;
}

}  // namespace

std::unique_ptr<Transport> MakeIpc(Communicator& comm, const Devices& devices, std::string* why) {
  if (!NodeOf(comm)) {
    *why = "the ranks are not on one node, or their processes share no memory there";
    return nullptr;
  }
  const std::size_t ranks = static_cast<std::size_t>(comm.size);
  std::unique_ptr<SharedMemory> memory =
      SharedMemory::Make(comm, ranks * (sizeof(Flags) + kHalves * ranks * sizeof(Note)));
  if (!memory) {
    *why = "the ranks' processes could not share memory of the host";
    return nullptr;
  }
  std::unique_ptr<Ipc> ipc;
  Offer mine;
  *why = Attempt(comm, [&] {
    ipc = std::make_unique<Ipc>(comm, std::move(memory));
    return ipc->MakeOwn(&mine);
  });
  if (!why->empty()) return nullptr;
  std::vector<Offer> offers(ranks);
  const int code = Mpi()->allgather(&mine, offers.data(), sizeof mine, Element::kU8, comm.control);
  *why = Attempt(comm, [&]() -> std::string {
    return code == 0 ? ipc->Open(offers, devices) : "MPI could not gather the handles";
  });
  if (why->empty()) return ipc;
  ipc->Close();
  FirstText(comm, "");  // all have closed what others give back
  return nullptr;
}

}  // namespace pfftjax::gpu
