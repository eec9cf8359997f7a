// The memory through which a transform goes in one pass with its exchange, and the ranks that meet
// there.
#pragma once

#include <cstddef>
#include <cstdint>

#include "collectives/exchange.h"
#include "collectives/node_exchange.h"
#include "fft/passage.h"
#include "runtime/window.h"

namespace pfftjax::fft {

// One rank meets nobody.
template <typename T>
class Meeting {
 public:
  Meeting() = default;
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;
  virtual ~Meeting() = default;

  // Waits until this rank may leave something. An MPI code, as what follows.
  virtual int Begin() { return 0; }
  // Where this rank leaves array i of a piece for another one, and where it finds what that one
  // has left.
  virtual char* To(int, int, std::size_t) { return nullptr; }
  virtual const char* From(int, int, std::size_t) { return nullptr; }
  // The pieces up to this one have been left.
  virtual int Leave(int) { return 0; }
  // Waits until all ranks have left what this one fetches of the pieces up to this one.
  virtual int Wait(int) { return 0; }
  // Something to do between two pieces of work, while messages are on their way; or nothing.
  virtual typename Passage<T>::Between Between() { return {}; }
};

// Through the window of the ranks of a node.
template <typename T>
class OnNode : public Meeting<T> {
 public:
  OnNode(Communicator& comm, Window& window, const Parcels<T>& parcels)
      : comm_(comm), window_(window), parcels_(parcels), round_(window, comm) {}

  int Begin() override { return round_.Begin(); }
  char* To(int rank, int, std::size_t i) override {
    return PartOf(comm_.rank, parcels_.To(rank), i);
  }
  const char* From(int rank, int, std::size_t i) override {
    return PartOf(rank, parcels_.From(rank), i);
  }
  int Leave(int) override {
    round_.Publish(MeaningOf(comm_));
    return 0;
  }
  int Wait(int) override { return round_.WaitForAll(MeaningOf(comm_)); }

 private:
  char* PartOf(int rank, const Parcel& parcel, std::size_t i) {
    return window_.PartOf(rank) + static_cast<std::int64_t>(i) * parcels_.MostBytes() +
           parcel.offset;
  }

  Communicator& comm_;
  Window& window_;
  const Parcels<T>& parcels_;
  Window::Round round_;
};

// Through the windows of several nodes, and by messages between them.
template <typename T>
class ByNodes : public Meeting<T> {
 public:
  ByNodes(Communicator& comm, Window& window, const NodeExchange::Pieces& pieces,
          const Passage<T>& passage)
      : exchange_(comm, window, NodesOf(comm), pieces), passage_(passage) {}

  int Begin() override { return exchange_.Begin(); }
  char* To(int rank, int piece, std::size_t i) override {
    return exchange_.To(rank, piece) + After(passage_.parcels(piece).To(rank), i);
  }
  const char* From(int rank, int piece, std::size_t i) override {
    return exchange_.From(rank, piece) + After(passage_.parcels(piece).From(rank), i);
  }
  int Leave(int piece) override { return code_ == 0 ? exchange_.Send(piece) : code_; }
  int Wait(int piece) override { return code_ == 0 ? exchange_.Arrive(piece) : code_; }
  typename Passage<T>::Between Between() override {
    if (passage_.pieces().count() == 1) return {};
    return [this] {
      if (code_ == 0) code_ = exchange_.Advance();
    };
  }

 private:
  static std::int64_t After(const Parcel& parcel, std::size_t i) {
    return static_cast<std::int64_t>(i) * parcel.bytes;
  }

  NodeExchange exchange_;
  const Passage<T>& passage_;
  int code_ = 0;  // of what was done between
};

static_assert(Cuts::kMost - 1 + Cuts::kMost <= Window::Round::kMostPieces, "pieces have marks");

// What the ranks exchange of each piece.
template <typename T>
NodeExchange::Pieces MovedBy(const Passage<T>& passage) {
  NodeExchange::Pieces pieces;
  for (int piece = 0; piece < passage.pieces().count(); ++piece) {
    const Change& change = passage.change(piece);
    const RowSize row = RowBytes<T>(change.precision);
    const int along = passage.parcels(piece).row_axis();
    Volume volume{change.whole[change.scatter], change.whole[change.gather],
                  passage.arrays() * change.batch};
    const std::int64_t third = change.Third().count;
    volume.bytes *= along == change.third() ? row(third) : third;
    if (along == change.scatter) volume.of_scattered = row;
    if (along == change.gather) volume.of_gathered = row;
    volume.scattered_piece = change.piece[change.scatter];
    volume.gathered_piece = change.piece[change.gather];
    pieces.push_back({volume, passage.arrays() * passage.parcels(piece).MostBytesOfOne()});
  }
  return pieces;
}

}  // namespace pfftjax::fft
