// An exchange between ranks on several nodes, in few messages: what the ranks of a node have for a
// rank on another one lies together in the window of their node, and one of them sends it in one
// message. Between a pair of nodes with m ranks each there are m messages, and not m * m.
//
// What is for a rank of the same node, that rank reads from the window. What comes from another
// node arrives in one piece, with what each of its ranks has sent in the order of the ranks, and
// is read where it arrives: no node packs or scatters anything that its ranks have not written.
// Each parcel begins on a cache line, as those of a message are written by several ranks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/distribution.h"
#include "runtime/communicator.h"
#include "runtime/nodes.h"
#include "runtime/window.h"

namespace pfftjax {

class NodeExchange {
 public:
  // The window must have so many bytes a rank, the same on all ranks. A rank leaves `local` bytes
  // at most for another one of its node, and those of `volume` for others.
  static std::int64_t WindowBytes(const Nodes& nodes, const Volume& volume, std::int64_t local);

  NodeExchange(Communicator& comm, Window& window, const Nodes& nodes, const Volume& volume,
               std::int64_t local);
  NodeExchange(const NodeExchange&) = delete;
  NodeExchange& operator=(const NodeExchange&) = delete;
  // However the exchange ends on this rank, no other one waits for it.
  ~NodeExchange();

  // Waits until what this node's ranks left in the last exchange has been read and sent. An MPI
  // code, as all that follow.
  int Begin();
  // This rank leaves here what it has for another, between Begin and Send.
  char* To(int rank) const { return to_[rank]; }
  // Waits for the ranks of this node, and lets go what they have left for other nodes.
  int Send();
  // Waits until what is for this rank is there, and has been sent what it sends; kOtherSizes if a
  // rank is in another call, or has given up.
  int Arrive();
  // After Arrive, what another rank has left for this one.
  const char* From(int rank) const { return from_[rank]; }

 private:
  // Before what the ranks of a node have for another rank.
  struct alignas(kCacheLine) Header {
    std::uint64_t about;  // MeaningOf the call, or Window::Round::kGaveUp
  };
  struct Message {
    char* at = nullptr;
    std::int64_t bytes = 0;
    int rank = 0;  // that it goes to, or comes from
    MpiHandle request = 0;
  };
  using Messages = std::vector<Message>;
  static constexpr auto kHeaderBytes = static_cast<std::int64_t>(sizeof(Header));
  // Pieces of a region, as large as one MPI call may move.
  static void AddPieces(Messages* messages, char* region, std::int64_t bytes, int rank);

  int StartSends(std::uint64_t about);
  int WaitForMessages(std::uint64_t about);

  Communicator& comm_;
  Window::Round round_;
  std::vector<char*> to_;
  std::vector<const char*> from_;
  Messages outgoing_;
  Messages incoming_;
  bool has_begun_ = false;
  bool has_sent_ = false;
  bool has_ended_ = false;
  int here_ = 0;            // how this node's ranks have come together, as a code
  std::string difference_;  // between them
};

}  // namespace pfftjax
