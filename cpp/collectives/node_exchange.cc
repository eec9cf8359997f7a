#include "collectives/node_exchange.h"

#include <algorithm>
#include <chrono>
#include <string>

#include "base/alignment.h"
#include "base/options.h"
#include "collectives/exchange.h"

namespace pfftjax {
namespace {

// A rank has no more bytes than kBytesOnTheirWay on their way to another one at a time, in
// messages of kChunkBytes at most. With 4 MiB on their way a transform took a quarter longer over
// TCP with Open MPI 5.0.11, and as long with MPICH 5.0.2 (docs/design/transforms.md).
constexpr std::int64_t kChunkBytes = std::int64_t{256} << 10;
constexpr std::int64_t kBytesOnTheirWay = std::int64_t{512} << 10;

std::int64_t InLines(std::int64_t bytes) {
  return RoundUp(bytes, static_cast<std::int64_t>(kCacheLine));
}

}  // namespace

// A rank's part of the window has, in this order, what it leaves for others of its node, the
// regions that it sends, and those that it receives.
std::int64_t NodeExchange::WindowBytes(const Nodes& nodes, const Pieces& pieces) {
  std::int64_t result = 0;
  for (int node = 0; node < nodes.count(); ++node) {
    const auto here = static_cast<std::int64_t>(nodes.RanksOn(node).size());
    std::int64_t bytes = 0;
    for (const Moved& moved : pieces) {
      const std::int64_t most = InLines(moved.volume.Most(nodes.size()));
      bytes += (here - 1) * InLines(moved.local);
      bytes += nodes.MostSends(node) * (kHeaderBytes + here * most);
      bytes += (nodes.count() - 1) * kHeaderBytes + (nodes.size() - here) * most;
    }
    result = std::max(result, bytes);
  }
  return result;
}

NodeExchange::NodeExchange(Communicator& comm, Window& window, const Nodes& nodes,
                           const Pieces& pieces)
    : comm_(comm),
      round_(window, comm),
      pieces_(static_cast<int>(pieces.size())),
      to_(static_cast<std::size_t>(comm.size) * pieces.size()),
      from_(to_.size()),
      on_their_way_(static_cast<std::size_t>(comm.size)),
      differs_(kNobody) {
  const int here = nodes.Of(comm.rank);
  const auto count = static_cast<std::int64_t>(nodes.RanksOn(here).size());
  const auto region = [&](const Moved& moved) {
    return kHeaderBytes + count * InLines(moved.volume.Most(comm.size));
  };
  Stride local;
  Stride regions;
  for (const Moved& moved : pieces) {
    local.all += InLines(moved.local);
    regions.all += region(moved);
  }
  const std::int64_t to_neighbours = (count - 1) * local.all;
  char* arriving = window.PartOf(comm.rank) + to_neighbours + nodes.MostSends(here) * regions.all;
  for (int piece = 0; piece < pieces_; ++piece) {
    const Moved& moved = pieces[piece];
    PlaceForNeighbours(piece, window, nodes, local);
    PlaceOutgoing(piece, window, nodes, moved.volume, to_neighbours, regions);
    arriving = PlaceIncoming(piece, arriving, nodes, moved.volume);
    local.before += InLines(moved.local);
    regions.before += region(moved);
  }
}

// Ranks of one node leave for each other what lies in the order of the ranks, without their own.
void NodeExchange::PlaceForNeighbours(int piece, Window& window, const Nodes& nodes,
                                      const Stride& stride) {
  const int place = nodes.places()[comm_.rank];
  for (const int rank : nodes.RanksOn(nodes.Of(comm_.rank))) {
    const int there = nodes.places()[rank];
    if (there == place) continue;
    const auto at = [&](int other) { return other * stride.all + stride.before; };
    to_[Index(rank, piece)] = window.PartOf(comm_.rank) + at(there - (there > place));
    from_[Index(rank, piece)] = window.PartOf(rank) + at(place - (place > there));
  }
}

// The regions of a sender follow what it leaves for its neighbours.
void NodeExchange::PlaceOutgoing(int piece, Window& window, const Nodes& nodes,
                                 const Volume& volume, std::int64_t regions,
                                 const Stride& stride) {
  const int here = nodes.Of(comm_.rank);
  const int place = nodes.places()[comm_.rank];
  const std::vector<int>& neighbours = nodes.RanksOn(here);
  const auto count = static_cast<std::int64_t>(neighbours.size());
  // Blocks have two sizes, so that the sum over the ranks of a node takes two products: with many
  // ranks a loop over them for each other rank would take as long as small exchanges.
  const std::int64_t larger_ranks = volume.gathered % comm_.size;
  const auto bytes_before = [&](std::int64_t ranks, int to) {
    const std::int64_t larger = std::min<std::int64_t>(
        ranks,
        std::lower_bound(neighbours.begin(), neighbours.end(), larger_ranks) - neighbours.begin());
    const int last = comm_.size - 1;
    return larger * InLines(volume.Between(0, to, comm_.size)) +
           (ranks - larger) * InLines(volume.Between(last, to, comm_.size));
  };
  // Each node begins with the one after it: if all began with the first one, its link would be all
  // that is busy.
  for (int step = 1; step < nodes.count(); ++step) {
    for (const int rank : nodes.RanksOn((here + step) % nodes.count())) {
      const int sender = nodes.SenderTo(rank, here);
      char* const region = window.PartOf(sender) + regions +
                           nodes.SentBefore(rank, here) * stride.all + stride.before;
      to_[Index(rank, piece)] = region + kHeaderBytes + bytes_before(place, rank);
      if (sender == comm_.rank) AddChunks(&outgoing_, region, bytes_before(count, rank), rank);
    }
  }
  outgoing_.ends.push_back(outgoing_.all.size());
}

// From `region` on; returns what comes after it.
char* NodeExchange::PlaceIncoming(int piece, char* region, const Nodes& nodes,
                                  const Volume& volume) {
  const int here = nodes.Of(comm_.rank);
  for (int step = 1; step < nodes.count(); ++step) {
    const int node = (here + nodes.count() - step) % nodes.count();
    char* at = region + kHeaderBytes;
    for (const int rank : nodes.RanksOn(node)) {
      from_[Index(rank, piece)] = at;
      at += InLines(volume.Between(rank, comm_.rank, comm_.size));
    }
    AddChunks(&incoming_, region, at - region - kHeaderBytes, nodes.SenderTo(comm_.rank, node));
    region = at;
  }
  incoming_.ends.push_back(incoming_.all.size());
  return region;
}

void NodeExchange::AddChunks(Messages* messages, char* region, std::int64_t bytes, int rank) {
  // Chunks of about one size, with the header in the first one.
  const std::int64_t all = kHeaderBytes + bytes;
  const std::int64_t chunks = (all + kChunkBytes - 1) / kChunkBytes;
  const std::int64_t limit =
      std::max(std::min(GetOptions().max_chunk_bytes, (all + chunks - 1) / chunks), kHeaderBytes);
  ForEachChunk(all, limit, [&](std::int64_t offset, std::int64_t count) {
    messages->all.push_back({region + offset, count, rank, offset == 0});
    return 0;
  });
}

NodeExchange::~NodeExchange() {
  if (!has_begun_ || has_ended_) return;
  // Where a receive could not be begun, others may still be.
  if (posted_ < incoming_.all.size()) Post();
  incoming_.all.resize(posted_);
  std::fill(incoming_.ends.begin(), incoming_.ends.end(), posted_);
  // Ranks of other nodes wait for what this one sends for its node, and what they send to this
  // one wants to be received.
  if (ready_ < pieces_) {
    round_.GiveUp();
    GiveUpRest();
  }
  WaitForMessages(pieces_ - 1);
}

int NodeExchange::Begin() {
  if (const int code = round_.Begin()) return code;
  has_begun_ = true;
  return Post();
}

// Begins the receives that have not begun.
int NodeExchange::Post() {
  const int tag = ExchangeTag(comm_);
  for (; posted_ < incoming_.all.size(); ++posted_) {
    Message& message = incoming_.all[posted_];
    process::Writes(message.at, static_cast<std::size_t>(message.bytes));
    const int code = Mpi()->receive_start(message.at, message.bytes, message.rank, tag,
                                          comm_.control, &message.request);
    if (code != 0) return code;
  }
  return 0;
}

// For what is given up a rank sends the header, and for other chunks messages without bytes.
int NodeExchange::StartSends() {
  const int tag = ExchangeTag(comm_);
  while (started_ < Open()) {
    Message& message = outgoing_.all[started_];
    const bool is_whole = started_ < whole_;
    const std::int64_t shortened = message.has_header ? kHeaderBytes : 0;
    const std::int64_t bytes = is_whole ? message.bytes : shortened;
    std::int64_t& on_their_way = on_their_way_[static_cast<std::size_t>(message.rank)];
    if (on_their_way > 0 && on_their_way + bytes > kBytesOnTheirWay) break;
    if (message.has_header) {
      process::Writes(message.at, sizeof(Header));
      reinterpret_cast<Header*>(message.at)->about =
          is_whole ? MeaningOf(comm_) : Window::Round::kGaveUp;
    }
    process::Reads(message.at, static_cast<std::size_t>(bytes));
    const int code =
        Mpi()->send_start(message.at, bytes, message.rank, tag, comm_.control, &message.request);
    if (code != 0) return code;
    message.bytes = bytes;
    on_their_way += bytes;
    ++started_;
  }
  return 0;
}

// Waits until the ranks of this node have left the next piece.
int NodeExchange::MakeReady() {
  here_ = round_.WaitForAll(MeaningOf(comm_), PublishedAs(ready_));
  if (here_ == 0) {
    whole_ = outgoing_.ends[ready_++];
  } else if (here_ == kOtherCall) {
    GiveUpRest();  // so that the ranks of other nodes learn it
  } else {
    return here_;
  }
  return 0;
}

int NodeExchange::Send(int piece) {
  round_.Publish(MeaningOf(comm_), PublishedAs(piece));
  left_ = piece + 1;
  return Advance();
}

int NodeExchange::Advance() {
  constexpr int kMostCalls = 64;
  constexpr std::chrono::microseconds kOfMoving(10);
  while (ready_ < left_ && round_.IsThere(PublishedAs(ready_))) {
    if (const int code = MakeReady()) return code;
  }
  for (int call = 0; call < kMostCalls; ++call) {
    const auto begin = process::Clock::now();
    if (const int code = StartSends()) return code;
    if (const int code = TestNext()) return code;
    if (process::Clock::now() - begin < kOfMoving) break;
  }
  return 0;
}

int NodeExchange::TestNext() {
  int is_done = 1;
  while (is_done && incoming_.done < incoming_.all.size()) {
    std::int64_t bytes = 0;
    MpiHandle* const request = &incoming_.all[incoming_.done].request;
    if (const int code = Mpi()->test(request, &is_done, &bytes)) return Lost(code);
    if (is_done) Received(bytes);
  }
  is_done = 1;
  while (is_done && outgoing_.done < started_) {
    MpiHandle* const request = &outgoing_.all[outgoing_.done].request;
    if (const int code = Mpi()->test(request, &is_done, nullptr)) return Lost(code);
    if (is_done) Sent();
  }
  return 0;
}

// After an error of MPI's nothing more is waited for: the request that failed is no more.
int NodeExchange::Lost(int code) {
  has_ended_ = true;
  return code;
}

void NodeExchange::Sent() {
  const Message& message = outgoing_.all[outgoing_.done++];
  on_their_way_[static_cast<std::size_t>(message.rank)] -= message.bytes;
}

// Takes note of the message that was to come next.
void NodeExchange::Received(std::int64_t bytes) {
  const Message& message = incoming_.all[incoming_.done++];
  if (message.has_header) {
    const auto& header = *reinterpret_cast<const Header*>(message.at);
    if (bytes < static_cast<std::int64_t>(sizeof header)) {
      is_short_ = true;
    } else if (header.about != MeaningOf(comm_)) {
      differs_ = message.rank;
    }
  }
  is_short_ |= differs_ != message.rank && bytes != message.bytes;
}

// Sends and receives by turns: a rank that waited for one kind only could be part of a circle of
// ranks that wait for each other.
int NodeExchange::WaitForMessages(int piece) {
  const std::size_t receives = incoming_.ends[piece];
  const std::size_t sends = piece + 1 == pieces_ ? outgoing_.all.size() : 0;
  while (ready_ < left_) {
    if (const int code = MakeReady()) return code;
  }
  while (incoming_.done < receives || outgoing_.done < sends) {
    if (const int code = StartSends()) return code;
    int is_receive = 0;
    std::int64_t bytes = 0;
    const bool wants = incoming_.done < receives;
    const bool has_sent = outgoing_.done == started_;
    const int code = Mpi()->wait_either(
        wants ? &incoming_.all[incoming_.done].request : nullptr,
        has_sent ? nullptr : &outgoing_.all[outgoing_.done].request, &is_receive, &bytes);
    if (code != 0) return code;
    if (is_receive) {
      Received(bytes);
    } else {
      Sent();
    }
  }
  return 0;
}

int NodeExchange::Arrive(int piece) {
  const int code = WaitForMessages(piece);
  has_ended_ = piece == pieces_ - 1 || code != 0;
  if (code != 0) return code;
  if (here_ != 0) return here_;
  if (differs_ != kNobody) {
    comm_.difference = "a rank on the node of rank " + std::to_string(differs_) +
                       " has given up this exchange, or is in another one";
    return kOtherCall;
  }
  return is_short_ ? kShortMessage : 0;
}

}  // namespace pfftjax
