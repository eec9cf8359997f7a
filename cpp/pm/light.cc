// The handler of pfftjax/observables/_search.py: which copies of this rank's particles light
// passes on its way to an observer. A copy is passed if it is inside of the sphere from which
// light comes when the passage begins, and outside of that from which it comes when the passage
// ends.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "pm/coordinate.h"
#include "pm/placement.h"
#include "runtime/handlers.h"
#include "runtime/profile.h"

namespace pfftjax {
namespace {

using pm::kAxes;

// Rows that are looked at together. Most are far from the spheres in most copies of the box, which
// the box around them tells.
constexpr std::int64_t kBlock = 256;
// What moves a particle: its momentum, the force on it, and its two displacements.
constexpr int kWays = 4;

// A passage, in the order in which Python has written it.
template <typename T>
struct Passage {
  // How far one of a particle's ways leads from where it is at the stage to where it is when light
  // comes from `near` and from `far`; and at most, from the latter to anywhere in the passage.
  struct Way {
    T to_near;
    T to_far;
    T reach;
  };
  T near;
  T far;
  Way ways[kWays];
};
constexpr std::int64_t kNumbers = 2 + 3 * kWays;
static_assert(sizeof(Passage<float>) == kNumbers * sizeof(float));

// Arrays with three numbers of each particle; of displacements, with six, if there are any.
template <typename T>
struct Particles {
  const T* place;
  const T* momentum;
  const T* pull;
  const T* displacements;
};

// The least and the greatest of some numbers, as of particles' coordinates along an axis.
template <typename T>
struct Extent {
  T least = 0;
  T most = 0;

  // How far from zero the nearest and the farthest particles are, in a copy that is so far away.
  // Rounding never puts a particle nearer or farther than these.
  T Nearest(T shift) const { return std::max({T{0}, least + shift, -(most + shift)}); }
  T Farthest(T shift) const { return std::max(std::abs(least + shift), std::abs(most + shift)); }
};

template <typename T>
T SumOfSquares(T x, T y, T z) {
  return x * x + y * y + z * z;
}

// The squares of the least and the greatest distance from the observer in a copy.
template <typename T>
T Nearest(const std::array<Extent<T>, kAxes>& extents, const T* shift) {
  const auto& [x, y, z] = extents;
  return SumOfSquares(x.Nearest(shift[0]), y.Nearest(shift[1]), z.Nearest(shift[2]));
}
template <typename T>
T Farthest(const std::array<Extent<T>, kAxes>& extents, const T* shift) {
  const auto& [x, y, z] = extents;
  return SumOfSquares(x.Farthest(shift[0]), y.Farthest(shift[1]), z.Farthest(shift[2]));
}

// A block of particles at both ends of a passage.
template <typename T>
class Block {
 public:
  // A block with nobody in it, for the search among these particles. Who is passed at distances
  // beyond `within` may be left out.
  Block(const Particles<T>& particles, const Passage<T>& passage, const Extent<T>& within)
      : particles_(particles), passage_(passage), within_(within) {}

  std::int64_t count() const { return count_; }

  // Makes it the block of the rows from `first` to `end`, at least one and kBlock at most.
  void Take(std::int64_t first, std::int64_t end) {
    count_ = end - first;
    std::array<T, kWays> most{};  // squares of the longest of each way
    for (int axis = 0; axis < kAxes; ++axis) {
      Gather<kAxes>(particles_.place + kAxes * first + axis, &near_[axis]);
      far_[axis] = near_[axis];
      Move<kAxes>(particles_.momentum + kAxes * first + axis, 0, axis, &most);
      Move<kAxes>(particles_.pull + kAxes * first + axis, 1, axis, &most);
      if (particles_.displacements) {
        const T* const both = particles_.displacements + 2 * kAxes * first + axis;
        Move<2 * kAxes>(both, 2, axis, &most);
        Move<2 * kAxes>(both + kAxes, 3, axis, &most);
      }
      near_extents_[axis] = ExtentOf(near_[axis]);
      far_extents_[axis] = ExtentOf(far_[axis]);
    }
    reach_ = 0;
    for (int way = 0; way < kWays; ++way) {
      reach_ += passage_.ways[way].reach * std::sqrt(most[way]);
    }
  }

  // Whether light may pass somebody in a copy that is so far away, at a distance on the maps.
  bool MayBePassed(const T* shift) const {
    const T nearest = Nearest(far_extents_, shift);
    if (nearest > passage_.far * passage_.far) return false;
    if (!(Farthest(near_extents_, shift) > passage_.near * passage_.near)) return false;
    // Rounding must not leave anybody out.
    const T more = reach_ + T{1e-5} * passage_.far;
    return std::sqrt(nearest) - more <= within_.most &&
           std::sqrt(Farthest(far_extents_, shift)) + more >= within_.least;
  }

  // Finds out whom light passes in that copy. Returns whether there is somebody.
  bool FindPassed(const T* shift) {
    const T far = passage_.far * passage_.far;
    const T near = passage_.near * passage_.near;
    Flag any = 0;
    for (std::int64_t i = 0; i < kBlock; ++i) {
      const T begin =
          SumOfSquares(far_[0][i] + shift[0], far_[1][i] + shift[1], far_[2][i] + shift[2]);
      const T end =
          SumOfSquares(near_[0][i] + shift[0], near_[1][i] + shift[1], near_[2][i] + shift[2]);
      is_passed_[i] = Flag{begin <= far} & Flag{end > near};
      any |= is_passed_[i];
    }
    return any != 0;
  }
  bool IsPassed(std::int64_t i) const { return is_passed_[i] != 0; }

 private:
  // As wide as a number, so that both are compared and kept in one vector.
  using Flag = std::conditional_t<sizeof(T) == 4, std::int32_t, std::int64_t>;
  using Numbers = std::array<T, kBlock>;

  // Adds one of the ways along an axis, with so many numbers from row to row.
  template <int kStride>
  void Move(const T* way, int number, int axis, std::array<T, kWays>* most) {
    const auto [to_near, to_far, reach] = passage_.ways[number];
    Numbers its;
    Gather<kStride>(way, &its);
    for (std::int64_t i = 0; i < kBlock; ++i) near_[axis][i] += to_near * its[i];
    for (std::int64_t i = 0; i < kBlock; ++i) far_[axis][i] += to_far * its[i];
    const Extent<T> extent = ExtentOf(its);
    const T longest = extent.Farthest(0);
    (*most)[number] += longest * longest;
  }

  // One of every so many numbers for each row. The last block may have fewer rows than others: the
  // first one stands for those.
  template <int kStride>
  void Gather(const T* from, Numbers* to) const {
    for (std::int64_t i = 0; i < count_; ++i) (*to)[i] = from[kStride * i];
    std::fill(to->begin() + count_, to->end(), from[0]);
  }

  // By several at a time, which compilers make vectors of.
  static Extent<T> ExtentOf(const Numbers& x) {
    constexpr std::int64_t kLanes = 16;
    std::array<T, kLanes> least;
    std::copy_n(x.begin(), kLanes, least.begin());
    std::array<T, kLanes> most = least;
    for (std::int64_t i = kLanes; i < kBlock; i += kLanes) {
      for (std::int64_t lane = 0; lane < kLanes; ++lane) {
        const T its = x[i + lane];
        least[lane] = its < least[lane] ? its : least[lane];
        most[lane] = its > most[lane] ? its : most[lane];
      }
    }
    return {*std::min_element(least.begin(), least.end()),
            *std::max_element(most.begin(), most.end())};
  }

  const Particles<T> particles_;
  const Passage<T> passage_;
  const Extent<T> within_;
  std::int64_t count_ = 0;
  T reach_ = 0;
  std::array<Numbers, kAxes> near_;
  std::array<Numbers, kAxes> far_;
  std::array<Extent<T>, kAxes> near_extents_;
  std::array<Extent<T>, kAxes> far_extents_;
  std::array<Flag, kBlock> is_passed_;
};

// Where a search is: the number of a block and of a copy, and a row of the block. A negative
// number of a block says that nobody is left.
struct Cursor {
  std::int32_t block;
  std::int32_t copy;
  std::int32_t row;
};

// Goes on from the cursor until `room` are found: their rows and the numbers of their copies.
// Returns how many there are.
template <typename T>
std::int64_t Find(Block<T>& block, std::int64_t used, const T* shifts, std::int32_t copies,
                  std::int64_t room, Cursor* cursor, std::int32_t* row, std::int32_t* copy) {
  std::int64_t found = 0;
  for (Cursor at = *cursor; at.block >= 0 && at.block * kBlock < used; at = {at.block + 1, 0, 0}) {
    const std::int64_t first = at.block * kBlock;
    block.Take(first, std::min(first + kBlock, used));
    for (; at.copy < copies; ++at.copy, at.row = 0) {
      const T* const shift = shifts + kAxes * at.copy;
      if (!block.MayBePassed(shift) || !block.FindPassed(shift)) continue;
      for (; at.row < block.count(); ++at.row) {
        if (!block.IsPassed(at.row)) continue;
        if (found == room) {
          *cursor = at;
          return found;
        }
        row[found] = static_cast<std::int32_t>(first) + at.row;
        copy[found] = at.copy;
        ++found;
      }
    }
  }
  *cursor = {-1, 0, 0};
  return found;
}

// The number of numbers in `x`, where these are of the type of `like`; else -1.
std::int64_t CountLike(const Operand& x, const Operand& like) {
  return x.element_type() == like.element_type() ? CountOf(x) : -1;
}

ffi::Error LightPassed(Operand place, Operand momentum, Operand pull, Operand displacements,
                       Operand numbers, Operand shifts, pm::Count met, Operand within,
                       pm::Count used, ffi::Buffer<ffi::S32, 1> cursor,
                       ffi::Result<ffi::Buffer<ffi::S32, 1>> row,
                       ffi::Result<ffi::Buffer<ffi::S32, 1>> copy,
                       ffi::Result<ffi::BufferR0<ffi::S32>> count,
                       ffi::Result<ffi::Buffer<ffi::S32, 1>> cursor_after) {
  const Timed timed(Operation::kLightPassed, BytesOf(place));
  const std::int64_t rows = CountOf(place) / kAxes;
  const auto room = static_cast<std::int64_t>(row->element_count());
  const std::int64_t kept = CountLike(displacements, place);
  const std::int32_t copies = *met.typed_data();
  if (CountLike(momentum, place) != kAxes * rows || CountLike(pull, place) != kAxes * rows ||
      (kept != 0 && kept != 2 * kAxes * rows) || CountLike(numbers, place) != kNumbers ||
      copies < 0 || CountLike(shifts, place) < kAxes * copies || CountLike(within, place) != 2 ||
      cursor.element_count() != kAxes || cursor_after->element_count() != kAxes ||
      static_cast<std::int64_t>(copy->element_count()) != room || room < 1 ||
      *used.typed_data() < 0 || *used.typed_data() > rows) {
    return Invalid("light_passed of buffers that do not fit");
  }
  const auto run = [&](auto zero) {
    using T = decltype(zero);
    const auto data = [](const Operand& x) { return static_cast<const T*>(x.untyped_data()); };
    Passage<T> passage;
    std::memcpy(&passage, numbers.untyped_data(), sizeof passage);
    Block<T> block({data(place), data(momentum), data(pull), kept ? data(displacements) : nullptr},
                   passage, {data(within)[0], data(within)[1]});
    Cursor at;
    std::memcpy(&at, cursor.untyped_data(), sizeof at);
    const std::int64_t found = Find(block, *used.typed_data(), data(shifts), copies, room, &at,
                                    row->typed_data(), copy->typed_data());
    std::fill(row->typed_data() + found, row->typed_data() + room,
              static_cast<std::int32_t>(rows));
    std::fill(copy->typed_data() + found, copy->typed_data() + room, 0);
    *count->typed_data() = static_cast<std::int32_t>(found);
    std::memcpy(cursor_after->untyped_data(), &at, sizeof at);
    return ffi::Error::Success();
  };
  if (place.element_type() == ffi::DataType::F32) return run(float{});
  if (place.element_type() == ffi::DataType::F64) return run(double{});
  return Invalid("light_passed works on float32 and float64");
}

}  // namespace

std::vector<Registration> LightHandlers() {
  return {Handler<&LightPassed>("pfftjax_light_passed").OnHost()};
}

}  // namespace pfftjax
