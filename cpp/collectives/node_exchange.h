// An exchange between ranks on several nodes, in few messages: what the ranks of a node have for a
// rank on another one lies together in the window of their node, and one of them sends it, in one
// message if it is not large. Between a pair of nodes with m ranks each there are m of these
// streams, and not m * m.
//
// What is for a rank of the same node, that rank reads from the window. What comes from another
// node arrives in one piece, with what each of its ranks has sent in the order of the ranks, and
// is read where it arrives: no node packs or scatters anything that its ranks have not written.
// Each parcel begins on a cache line, as those of a message are written by several ranks.
//
// An exchange may be cut into pieces, each of which is an exchange as above: one is on its way
// while ranks make the next, or read the one before.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/alignment.h"
#include "base/distribution.h"
#include "runtime/communicator.h"
#include "runtime/nodes.h"
#include "runtime/window.h"

namespace pfftjax {

class NodeExchange {
 public:
  // What a piece moves, the same on all ranks: `volume` between two ranks of different nodes, and
  // `local` bytes at most from one rank to another one of its node.
  struct Moved {
    Volume volume;
    std::int64_t local = 0;
  };
  using Pieces = std::vector<Moved>;  // at most Window::Round::kMostPieces

  // The window must have so many bytes a rank, the same on all ranks.
  static std::int64_t WindowBytes(const Nodes& nodes, const Pieces& pieces);

  NodeExchange(Communicator& comm, Window& window, const Nodes& nodes, const Pieces& pieces);
  NodeExchange(const NodeExchange&) = delete;
  NodeExchange& operator=(const NodeExchange&) = delete;
  // However the exchange ends on this rank, no other one waits for it, if MPI still takes
  // messages.
  ~NodeExchange();

  // Waits until what this node's ranks left in the last exchange has been read and sent. An MPI
  // code, as all that follow.
  int Begin();
  // This rank leaves here what it has for another, after Begin and before the Send that lets the
  // piece go.
  char* To(int rank, int piece = 0) const { return to_[Index(rank, piece)]; }
  // Lets go the pieces up to this one, which this rank has left, once all ranks of this node have
  // done so.
  int Send(int piece = 0);
  // Sends and receives what can be without waiting. To be called now and then between a Send and
  // an Arrive that are far apart: a message gets on while its ends are in calls of MPI.
  int Advance();
  // Waits until the pieces up to this one are there, after all have been sent; kOtherCall if a
  // rank is in another call, or has given up. The last piece waits for all that this rank sends,
  // too.
  int Arrive(int piece = 0);
  // After Arrive, what another rank has left for this one.
  const char* From(int rank, int piece = 0) const { return from_[Index(rank, piece)]; }

 private:
  // Before what the ranks of a node have for another rank.
  struct alignas(kCacheLine) Header {
    std::uint64_t about;  // MeaningOf the call, or Window::Round::kGaveUp
  };
  struct Message {
    char* at = nullptr;
    std::int64_t bytes = 0;
    int rank = 0;             // that it goes to, or comes from
    bool has_header = false;  // it is the first chunk
    MpiHandle request = 0;
  };
  // Those of all pieces, one piece after the other.
  struct Messages {
    std::vector<Message> all;
    std::vector<std::size_t> ends;  // by piece
    std::size_t done = 0;
  };
  static constexpr auto kHeaderBytes = static_cast<std::int64_t>(sizeof(Header));
  // Where a piece lies in memory that has all pieces, one after the other, for each of several.
  struct Stride {
    std::int64_t before = 0;  // bytes of the pieces before it
    std::int64_t all = 0;     // of all pieces
  };

  // The chunks of a region, each as large as one MPI call may move.
  static void AddChunks(Messages* messages, char* region, std::int64_t bytes, int rank);

  std::size_t Index(int rank, int piece) const {
    return static_cast<std::size_t>(piece) * static_cast<std::size_t>(comm_.size) +
           static_cast<std::size_t>(rank);
  }
  // What the round has once this piece is published.
  int PublishedAs(int piece) const {
    return piece + 1 < pieces_ ? piece : Window::Round::kMostPieces - 1;
  }
  void PlaceForNeighbours(int piece, Window& window, const Nodes& nodes, const Stride& stride);
  void PlaceOutgoing(int piece, Window& window, const Nodes& nodes, const Volume& volume,
                     std::int64_t regions, const Stride& stride);
  char* PlaceIncoming(int piece, char* region, const Nodes& nodes, const Volume& volume);

  int Post();
  int MakeReady();
  void GiveUpRest() { ready_ = pieces_; }
  // So many messages may be on their way.
  std::size_t Open() const { return ready_ == pieces_ ? outgoing_.all.size() : whole_; }
  int StartSends();
  int TestNext();
  int Lost(int code);
  int WaitForMessages(int piece);
  void Received(std::int64_t bytes);
  void Sent();

  Communicator& comm_;
  Window::Round round_;
  int pieces_;
  std::vector<char*> to_;
  std::vector<const char*> from_;
  Messages outgoing_;
  Messages incoming_;
  bool has_begun_ = false;
  bool has_ended_ = false;
  int left_ = 0;             // so many pieces this rank has left
  int ready_ = 0;            // so many have been left by all ranks of this node, or given up
  std::size_t whole_ = 0;    // so many messages are sent as they are, those after them given up
  std::size_t started_ = 0;  // so many are, or were
  std::size_t posted_ = 0;   // so many receives are
  std::vector<std::int64_t> on_their_way_;  // bytes, to each rank
  int here_ = 0;                            // how this node's ranks have come together, as a code
  int differs_;                             // a rank on a node that is in another call, or kNobody
  bool is_short_ = false;
};

}  // namespace pfftjax
