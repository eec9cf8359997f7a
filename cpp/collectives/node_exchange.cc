#include "collectives/node_exchange.h"

#include <algorithm>
#include <string>

#include "base/options.h"
#include "collectives/exchange.h"

namespace pfftjax {
namespace {

std::int64_t RoundUp(std::int64_t bytes) {
  constexpr auto line = static_cast<std::int64_t>(kCacheLine);
  return (bytes + line - 1) / line * line;
}

}  // namespace

// A rank's part of the window has, in this order, what it leaves for others of its node, the
// regions that it sends, and those that it receives.
std::int64_t NodeExchange::WindowBytes(const Nodes& nodes, const Volume& volume,
                                       std::int64_t local) {
  const std::int64_t most = RoundUp(volume.Most(nodes.size()));
  std::int64_t result = 0;
  for (int node = 0; node < nodes.count(); ++node) {
    const auto here = static_cast<std::int64_t>(nodes.RanksOn(node).size());
    const std::int64_t local_bytes = (here - 1) * RoundUp(local);
    const std::int64_t outgoing = nodes.MostSends(node) * (kHeaderBytes + here * most);
    const std::int64_t incoming =
        (nodes.count() - 1) * kHeaderBytes + (nodes.size() - here) * most;
    result = std::max(result, local_bytes + outgoing + incoming);
  }
  return result;
}

NodeExchange::NodeExchange(Communicator& comm, Window& window, const Nodes& nodes,
                           const Volume& volume, std::int64_t local)
    : comm_(comm),
      round_(window, comm),
      to_(static_cast<std::size_t>(comm.size)),
      from_(static_cast<std::size_t>(comm.size)) {
  const int here = nodes.Of(comm.rank);
  const std::vector<int>& neighbours = nodes.RanksOn(here);
  const int place = nodes.places()[comm.rank];
  const auto count = static_cast<std::int64_t>(neighbours.size());
  const std::int64_t region_bytes = kHeaderBytes + count * RoundUp(volume.Most(comm.size));

  // Those of one node leave for each other what lies in the order of the ranks, without their own.
  char* const mine = window.PartOf(comm.rank);
  for (const int rank : neighbours) {
    const int there = nodes.places()[rank];
    if (there == place) continue;
    to_[rank] = mine + (there - (there > place)) * RoundUp(local);
    from_[rank] = window.PartOf(rank) + (place - (place > there)) * RoundUp(local);
  }
  const std::int64_t regions = (count - 1) * RoundUp(local);

  // Blocks have two sizes, so that the sum over the ranks of a node takes two products: with many
  // ranks a loop over them for each other rank would take as long as small exchanges.
  const std::int64_t larger_ranks = volume.gathered % comm.size;
  const auto bytes_before = [&](std::int64_t ranks, int to) {
    const std::int64_t larger = std::min<std::int64_t>(
        ranks,
        std::lower_bound(neighbours.begin(), neighbours.end(), larger_ranks) - neighbours.begin());
    const int last = comm.size - 1;
    return larger * RoundUp(volume.Between(0, to, comm.size)) +
           (ranks - larger) * RoundUp(volume.Between(last, to, comm.size));
  };
  // Each node begins with the one after it: if all began with the first one, its link would be all
  // that is busy.
  for (int step = 1; step < nodes.count(); ++step) {
    for (const int rank : nodes.RanksOn((here + step) % nodes.count())) {
      const int sender = nodes.SenderTo(rank, here);
      char* const region =
          window.PartOf(sender) + regions + nodes.SentBefore(rank, here) * region_bytes;
      to_[rank] = region + kHeaderBytes + bytes_before(place, rank);
      if (sender == comm.rank) AddPieces(&outgoing_, region, bytes_before(count, rank), rank);
    }
  }

  char* region = mine + regions + nodes.MostSends(here) * region_bytes;
  for (int step = 1; step < nodes.count(); ++step) {
    const int node = (here + nodes.count() - step) % nodes.count();
    char* at = region + kHeaderBytes;
    for (const int rank : nodes.RanksOn(node)) {
      from_[rank] = at;
      at += RoundUp(volume.Between(rank, comm.rank, comm.size));
    }
    AddPieces(&incoming_, region, at - region - kHeaderBytes, nodes.SenderTo(comm.rank, node));
    region = at;
  }
}

void NodeExchange::AddPieces(Messages* messages, char* region, std::int64_t bytes, int rank) {
  // The header is in one piece.
  const std::int64_t limit = std::max(GetOptions().max_chunk_bytes, kHeaderBytes);
  ForEachChunk(kHeaderBytes + bytes, limit, [&](std::int64_t offset, std::int64_t count) {
    messages->push_back({region + offset, count, rank});
    return 0;
  });
}

NodeExchange::~NodeExchange() {
  if (!has_begun_ || has_ended_) return;
  // Ranks of other nodes wait for what this one sends for its node, and what they send to this
  // one wants to be received.
  if (!has_sent_) {
    round_.GiveUp();
    if (StartSends(Window::Round::kGaveUp) != 0) return;
  }
  WaitForMessages(MeaningOf(comm_));
}

int NodeExchange::Begin() {
  if (const int code = round_.Begin()) return code;
  const int tag = ExchangeTag(comm_);
  for (Message& message : incoming_) {
    process::Writes(message.at, static_cast<std::size_t>(message.bytes));
    const int code = Mpi()->receive_start(message.at, message.bytes, message.rank, tag,
                                          comm_.control, &message.request);
    if (code != 0) return code;
  }
  has_begun_ = true;
  return 0;
}

// A rank that gives up sends the header, and for other pieces messages without bytes.
int NodeExchange::StartSends(std::uint64_t about) {
  const int tag = ExchangeTag(comm_);
  const bool gives_up = about == Window::Round::kGaveUp;
  int latest = -1;
  for (Message& message : outgoing_) {
    const bool is_first = message.rank != latest;
    latest = message.rank;
    if (is_first) {
      process::Writes(message.at, sizeof(Header));
      reinterpret_cast<Header*>(message.at)->about = about;
    }
    const std::int64_t shortened = is_first ? sizeof(Header) : 0;
    const std::int64_t bytes = gives_up ? shortened : message.bytes;
    process::Reads(message.at, static_cast<std::size_t>(bytes));
    const int code =
        Mpi()->send_start(message.at, bytes, message.rank, tag, comm_.control, &message.request);
    if (code != 0) return code;
  }
  return 0;
}

// Sends and receives by turns: a rank that waited for one kind only could be part of a circle of
// ranks that wait for each other.
int NodeExchange::WaitForMessages(std::uint64_t about) {
  std::size_t received = 0;
  std::size_t sent = 0;
  int differs = kNobody;
  bool is_short = false;
  while (received < incoming_.size() || sent < outgoing_.size()) {
    int is_receive = 0;
    std::int64_t bytes = 0;
    const int code = Mpi()->wait_either(
        received < incoming_.size() ? &incoming_[received].request : nullptr,
        sent < outgoing_.size() ? &outgoing_[sent].request : nullptr, &is_receive, &bytes);
    if (code != 0) return code;
    if (!is_receive) {
      ++sent;
      continue;
    }
    const Message& message = incoming_[received];
    const bool is_first = received == 0 || incoming_[received - 1].rank != message.rank;
    if (is_first) {
      const auto& header = *reinterpret_cast<const Header*>(message.at);
      if (bytes < static_cast<std::int64_t>(sizeof header)) {
        is_short = true;
      } else if (header.about != about) {
        differs = message.rank;
      }
    }
    is_short |= differs != message.rank && bytes != message.bytes;
    ++received;
  }
  if (differs != kNobody) {
    comm_.difference = "a rank on the node of rank " + std::to_string(differs) +
                       " has given up this exchange, or is in another one";
    return kOtherSizes;
  }
  return is_short ? kShortMessage : 0;
}

int NodeExchange::Send() {
  const std::uint64_t about = MeaningOf(comm_);
  round_.Publish(about);
  here_ = round_.WaitForAll(about);
  // Where a rank of this node has given up, those of other nodes learn it from what they get.
  if (here_ != 0 && here_ != kOtherSizes) return here_;
  difference_ = comm_.difference;
  has_sent_ = true;
  return StartSends(here_ == 0 ? about : Window::Round::kGaveUp);
}

int NodeExchange::Arrive() {
  const int code = WaitForMessages(MeaningOf(comm_));
  has_ended_ = true;
  if (here_ == 0 || (code != 0 && code != kOtherSizes)) return code;
  comm_.difference = difference_;
  return here_;
}

}  // namespace pfftjax
