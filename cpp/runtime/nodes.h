// Which ranks of a communicator run on which node, and which of them speak for it to others.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace pfftjax {

class Nodes {
 public:
  // `first` has for each rank the first one on its node (FirstRanksOnNodes in shared_memory.h).
  explicit Nodes(std::vector<int> first) : first_(std::move(first)) {
    for (int rank = 0; rank < static_cast<int>(first_.size()); ++rank) {
      if (first_[rank] == rank) ranks_.emplace_back();
      of_.push_back(first_[rank] == rank ? count() - 1 : of_[first_[rank]]);
      places_.push_back(static_cast<int>(ranks_[of_[rank]].size()));
      ranks_[of_[rank]].push_back(rank);
    }
  }

  int size() const { return static_cast<int>(of_.size()); }  // in ranks
  int count() const { return static_cast<int>(ranks_.size()); }
  const std::vector<int>& first() const { return first_; }
  // Nodes are numbered by their first ranks.
  const std::vector<int>& of() const { return of_; }
  int Of(int rank) const { return of_[rank]; }
  // By rank: which one it is of the ranks of its node.
  const std::vector<int>& places() const { return places_; }
  const std::vector<int>& RanksOn(int node) const { return ranks_[node]; }
  int RanksOnNodeOf(int rank) const { return static_cast<int>(ranks_[of_[rank]].size()); }
  // The most that one node has.
  int MostRanks() const {
    std::size_t most = 0;
    for (const std::vector<int>& ranks : ranks_) most = std::max(most, ranks.size());
    return static_cast<int>(most);
  }
  // Whether several nodes have ranks, and one of them several.
  bool AreMixed() const { return count() > 1 && count() < size(); }

  // What the ranks of a node have for a rank elsewhere is sent by one of them: they take turns
  // over those ranks, in the order of the ranks.
  int SenderTo(int rank, int node) const {
    const std::vector<int>& here = ranks_[node];
    return here[static_cast<std::size_t>(TurnOf(rank, node)) % here.size()];
  }
  // How many ranks the sender has sent to before this one.
  int SentBefore(int rank, int node) const {
    return TurnOf(rank, node) / static_cast<int>(ranks_[node].size());
  }
  // The most that one rank of a node sends to.
  int MostSends(int node) const {
    const int here = static_cast<int>(ranks_[node].size());
    return (size() - here + here - 1) / here;
  }

 private:
  // How many ranks before this one are not on the node.
  int TurnOf(int rank, int node) const {
    const std::vector<int>& here = ranks_[node];
    return rank -
           static_cast<int>(std::lower_bound(here.begin(), here.end(), rank) - here.begin());
  }

  std::vector<int> first_;
  std::vector<int> of_;
  std::vector<int> places_;
  std::vector<std::vector<int>> ranks_;
};

}  // namespace pfftjax
