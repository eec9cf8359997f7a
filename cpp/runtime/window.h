// Memory in which each rank of a node leaves what the others are to read, as large as an exchange.
// Where the ranks of a communicator are on several nodes, those of each node have a window.
//
// A Round has three parts: Begin, after which this rank may write its part of the window; Publish,
// after which the others may read it, once they have waited for it; and its destruction. What a
// rank leaves may be published piece by piece.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/communicator.h"
#include "runtime/nodes.h"
#include "runtime/shared_memory.h"

namespace pfftjax {

class Window {
 public:
  // For the ranks of each node. Null where those of one cannot share so much memory, on all ranks
  // alike. Collective.
  static std::unique_ptr<Window> Make(const Communicator& comm, const Nodes& nodes,
                                      std::int64_t bytes_a_rank);

  std::int64_t bytes_a_rank() const { return bytes_; }
  // The rank is on this rank's node.
  char* PartOf(int rank) const { return data_ + places_[rank] * bytes_; }

  // One exchange of this rank with those of its node. However it ends, the others do not wait for
  // it. What the ranks are in is that of Communicator::progress, for the texts of errors.
  class Round {
   public:
    Round(Window& window, Communicator& comm) : window_(window), comm_(comm) {}
    Round(const Round&) = delete;
    Round& operator=(const Round&) = delete;
    ~Round();

    // Waits until the others have read what this rank left in the last exchange.
    int Begin();
    // The pieces up to this one, of fewer than kMostPieces, or all. `about` is the same on all
    // ranks that are in the same call, and odd.
    void Publish(std::uint64_t about, int piece = kMostPieces - 1);
    // In place of Publish where this rank cannot leave what it should.
    void GiveUp() { Publish(kGaveUp); }
    // Says whether all ranks have published this piece.
    bool IsThere(int piece) const;
    // Waits for that; kOtherCall if a rank is in another call, or has given up.
    int WaitForAll(std::uint64_t about, int piece = kMostPieces - 1);

    static constexpr int kMostPieces = 16;

    // Stands in place of what an exchange is about, which is odd.
    static constexpr std::uint64_t kGaveUp = 0;

   private:
    // The value of Flags::written from when a rank has published this piece.
    std::int64_t Mark(int piece) const { return window_.round_ * kMostPieces + piece + 1; }

    Window& window_;
    Communicator& comm_;
    bool has_begun_ = false;
    int published_ = 0;  // pieces
  };

 private:
  struct Flags;
  Window(std::unique_ptr<SharedMemory> memory, std::vector<int> ranks, std::vector<int> places,
         std::int64_t bytes);
  Flags& FlagsOf(int rank) const;
  static std::int64_t FlagsBytes(int ranks);

  std::unique_ptr<SharedMemory> memory_;
  std::vector<int> ranks_;   // of this node
  std::vector<int> places_;  // by rank, among those of its node
  std::int64_t bytes_;
  char* data_;
  std::int64_t round_ = 0;
};

// The nodes of the communicator's ranks, found when first asked for. Collective then.
const Nodes& NodesOf(Communicator& comm);

// Says whether this communicator's ranks can share memory at all. Where they cannot share a
// little, they cannot share much. Collective.
bool SharesMemory(Communicator& comm);

// The window of `comm`, with at least `bytes_a_rank`; null where there is none. Collective where
// it grows; kOtherCall on all ranks if they do not want the same number of bytes then, or if some
// are already in an exchange that needs less.
int WindowOf(Communicator& comm, std::int64_t bytes_a_rank, Window** window);
// The same for the ranks of each node, on however many nodes they are.
int WindowOnNode(Communicator& comm, std::int64_t bytes_a_rank, Window** window);
// Gives its memory back, on all ranks alike.
void ReleaseWindow(Communicator& comm);

}  // namespace pfftjax
