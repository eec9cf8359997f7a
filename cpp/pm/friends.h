// Groups of particles that chains of short distances hold together.
#pragma once

#include <array>
#include <cstdint>

#include "pm/coordinate.h"

namespace pfftjax::pm {

// The most cells along a side, so that three cell numbers fit into 64 bits. A linking length that
// asks for more is refused.
inline constexpr std::int64_t kMostLinkCells = std::int64_t{1} << 21;

// Friends of friends: two particles are in one group if they are within `length` of each other, or
// if a chain of such pairs leads from one to the other. Sets group[i] to the lowest row in the
// group of row i.
//
// `positions` has `count` rows of three coordinates, each in [0, side) of a periodic box.
// Distances are those to the nearest image, computed from the coordinates as they are given: two
// ranks that both have a pair decide alike. Returns false where `length` is not positive, exceeds
// half of a side, or asks for more than kMostLinkCells cells along one.
bool LinkFriends(const double* positions, std::int64_t count,
                 const std::array<double, kAxes>& sides, double length, std::int64_t* group);

}  // namespace pfftjax::pm
