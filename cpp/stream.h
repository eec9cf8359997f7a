// Boxes between all pairs of ranks: packed, sent and unpacked in small pieces, several at a time.
//
// A piece is packed into a buffer that stays in the cache, travels, and is unpacked at its place
// while the next ones are on their way: each array is read and written once, and no copy of it is
// ever made.
#pragma once

#include <cstdint>
#include <vector>

#include "box.h"
#include "communicator.h"

namespace pfftjax {

enum class Arrival { kStore, kAdd };

// What one rank exchanges with each of the others. The boxes that `to(p)` describes on this rank
// and those that `from(this rank)` describes on rank p have the same extents, in the same order.
class BoxesOf {
 public:
  virtual ~BoxesOf() = default;
  virtual void To(int rank, std::vector<Box>* boxes) const = 0;
  virtual void From(int rank, std::vector<Box>* boxes) const = 0;
};

// Moves or adds what arrives, in an order that depends only on the boxes. Returns MPI's code.
int StreamBoxes(const Communicator& comm, const void* source, void* target, const BoxesOf& boxes,
                Element element, Arrival arrival);

}  // namespace pfftjax
