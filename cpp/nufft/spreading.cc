// The handlers of pfftjax/nufft/_spreading.py: values of points onto the mesh, the transpose of
// that, and the order in which points are gone through. No communication: every point is in this
// rank's block.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/copies.h"
#include "base/pages.h"
#include "fft/select.h"
#include "nufft/points.h"
#include "nufft/tiles.h"
#include "pm/placement.h"
#include "runtime/handlers.h"
#include "runtime/profile.h"
#include "runtime/tasks.h"

namespace pfftjax {
namespace {

using nufft::Beginning;
using nufft::Index;
using nufft::Tiles;
using pm::kAxes;

using Cells = pm::Cells;
using Count = pm::Count;
using Order = ffi::Buffer<ffi::S32, 1>;

// The attributes of each handler.
struct On {
  std::int64_t shape[kAxes];
  std::int64_t rows_comm;
  std::int64_t columns_comm;
  std::int64_t width;
};

// A handler of a function that takes the attributes first.
template <auto kRun>
struct OnMesh;
template <typename... Rest, ffi::Error (*kRun)(const On&, Rest...)>
struct OnMesh<kRun> {
  static ffi::Error Run(std::int64_t n0, std::int64_t n1, std::int64_t n2, std::int64_t rows_comm,
                        std::int64_t columns_comm, std::int64_t width, Rest... rest) {
    return kRun({{n0, n1, n2}, rows_comm, columns_comm, width}, std::move(rest)...);
  }
};

// The points of one call, in an order.
template <typename T>
struct Given {
  const std::int32_t* cells;
  const T* offsets;
  const std::int32_t* order;
  std::int64_t used;
};

constexpr pm::Wording kWording{"point", "points to their owners first (PencilNUFFT.to_owners)"};

// body(tiles, T{}) with the type of the offsets, if all buffers are of points on this mesh.
template <typename Body>
ffi::Error WithTiles(const char* operation, const On& on, const Cells& cells,
                     const Operand& offsets, const Count& used, Body&& body) {
  const std::optional<pm::Mesh> mesh = pm::FindMesh(on.shape, on.rows_comm, on.columns_comm);
  const auto shape = cells.dimensions();
  if (!mesh || on.width < nufft::kLeastWidth || on.width > nufft::kMostWidth ||
      shape[1] != kAxes || CountOf(offsets) != kAxes * shape[0]) {
    return Invalid(std::string(operation) + " of buffers that do not fit");
  }
  const std::int64_t points = *used.typed_data();
  if (points < 0 || points > shape[0]) {
    return Invalid(std::string(operation) + " of " + std::to_string(points) +
                   " points in arrays of " + std::to_string(shape[0]) + " rows");
  }
  const Tiles tiles(*mesh, static_cast<int>(on.width));
  if (offsets.element_type() == ffi::DataType::F32) return body(tiles, float{});
  if (offsets.element_type() == ffi::DataType::F64) return body(tiles, double{});
  return Invalid(std::string(operation) + " works on float32 and float64");
}

// ---- Order -------------------------------------------------------------------------------------

// Sorts the rows by their bins, rows of one bin by their number; the same on any number of
// threads. The first row that is not in the block, or -1.
template <typename T>
std::int64_t SortByBin(ffi::ThreadPool& pool, const Tiles& tiles, const std::int32_t* cells,
                       const T* offsets, std::int64_t used, std::int32_t* order) {
  const std::int64_t bins = tiles.bins();
  const std::int64_t threads = std::max<std::int64_t>(pool.num_threads(), 1);
  // A chunk has a counter for each bin.
  const std::int64_t chunks = std::clamp<std::int64_t>(used / (bins + 4096), 1, threads);
  const auto begin = [=](std::int64_t chunk) { return used * chunk / chunks; };
  const auto bin_of = std::make_unique<std::int32_t[]>(static_cast<std::size_t>(used));
  std::vector<std::int32_t> next(static_cast<std::size_t>(chunks * bins));
  std::vector<std::int64_t> lost(static_cast<std::size_t>(chunks), -1);
  ForEachTask(pool, chunks, threads - 1, [&](std::int64_t chunk) {
    std::int32_t* const counts = next.data() + chunk * bins;
    for (std::int64_t row = begin(chunk); row < begin(chunk + 1); ++row) {
      Beginning<T> beginning;
      if (!tiles.Begin(cells, offsets, row, &beginning)) {
        lost[static_cast<std::size_t>(chunk)] = row;
        return;
      }
      const std::int64_t bin = tiles.BinOf(beginning.first);
      bin_of[row] = static_cast<std::int32_t>(bin);
      ++counts[bin];
    }
  });
  for (const std::int64_t row : lost) {
    if (row >= 0) return row;
  }
  std::int32_t total = 0;
  for (std::int64_t bin = 0; bin < bins; ++bin) {
    for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
      total += std::exchange(next[static_cast<std::size_t>(chunk * bins + bin)], total);
    }
  }
  ForEachTask(pool, chunks, threads - 1, [&](std::int64_t chunk) {
    std::int32_t* const places = next.data() + chunk * bins;
    for (std::int64_t row = begin(chunk); row < begin(chunk + 1); ++row) {
      order[places[bin_of[row]]++] = static_cast<std::int32_t>(row);
    }
  });
  return -1;
}

ffi::Error OrderPoints(const On& on, ffi::ThreadPool pool, Cells cells, Operand offsets,
                       Count used, ffi::Result<Order> order) {
  const Timed timed(Operation::kNufftOrder, BytesOf(offsets));
  return WithTiles("nufft_order", on, cells, offsets, used, [&](const Tiles& tiles, auto zero) {
    using T = decltype(zero);
    const std::int64_t points = *used.typed_data();
    const std::int64_t rows = cells.dimensions()[0];
    std::int32_t* const to = order->typed_data();
    const T* const from = static_cast<const T*>(offsets.untyped_data());
    const std::int64_t lost = SortByBin(pool, tiles, cells.typed_data(), from, points, to);
    if (lost >= 0) {
      return pm::NotHere("nufft_order", tiles.mesh(), cells.typed_data(), from, lost, kWording);
    }
    for (std::int64_t row = points; row < rows; ++row) to[row] = static_cast<std::int32_t>(row);
    return ffi::Error::Success();
  });
}

// ---- Tile by tile ------------------------------------------------------------------------------

template <typename T>
nufft::Polynomials<T> PolynomialsOf(ffi::Span<const double> coefficients, std::int64_t width) {
  nufft::Polynomials<T> result;
  result.width = static_cast<int>(width);
  result.terms = static_cast<int>(static_cast<std::int64_t>(coefficients.size()) / width);
  for (int term = 0; term < result.terms; ++term) {
    for (std::int64_t point = 0; point < width; ++point) {
      const T value = static_cast<T>(coefficients.begin()[term * width + point]);
      result.once[term][point] = value;
      result.twice[term][2 * point] = value;
      result.twice[term][2 * point + 1] = value;
    }
  }
  return result;
}

// A part of the mesh in contiguous memory. Lines end in room for registers that go beyond them.
template <typename T>
class Tile {
 public:
  explicit Tile(const Tiles& tiles)
      : tiles_(tiles), data_(static_cast<std::size_t>(2 * tiles.volume() + kSpare)) {}
  T* data() { return data_.data(); }
  std::int64_t line() const { return tiles_.extent()[2]; }
  std::int64_t plane() const { return tiles_.extent()[1] * line(); }

  void Clear() { std::fill(data_.begin(), data_.end(), T{0}); }
  // Adds the tile that begins at `low` to a block with ghosts.
  void AddTo(T* block, const Index& low) const {
    ForEachRun(low, [&](std::int64_t here, std::int64_t there, std::int64_t count) {
      const T* const from = data_.data() + here;
      T* const to = block + there;
      for (std::int64_t i = 0; i < count; ++i) to[i] += from[i];
    });
  }
  void CopyFrom(const T* block, const Index& low) {
    ForEachRun(low, [&](std::int64_t here, std::int64_t there, std::int64_t count) {
      std::memcpy(data_.data() + here, block + there, static_cast<std::size_t>(count) * sizeof(T));
    });
  }

 private:
  static constexpr std::size_t kSpare = 2 * 2 * nufft::kMostWidth;

  // Calls body(in the tile, in the block, count) for numbers that lie together in both. Along axis
  // 2 the block closes on itself.
  template <typename Body>
  void ForEachRun(const Index& low, Body&& body) const {
    const Index& padded = tiles_.padded();
    const std::int64_t planes = std::min(tiles_.extent()[0], padded[0] - low[0]);
    const std::int64_t lines = std::min(tiles_.extent()[1], padded[1] - low[1]);
    for (std::int64_t x = 0; x < planes; ++x) {
      for (std::int64_t y = 0; y < lines; ++y) {
        const std::int64_t here = x * plane() + y * line();
        const std::int64_t there = ((low[0] + x) * padded[1] + low[1] + y) * padded[2];
        for (std::int64_t z = 0; z < line();) {
          const std::int64_t at = (low[2] + z) % padded[2];
          const std::int64_t count = std::min(line() - z, padded[2] - at);
          body(2 * (here + z), 2 * (there + at), 2 * count);
          z += count;
        }
      }
    }
  }

  const Tiles& tiles_;
  std::vector<T> data_;
};

// The points of one tile, some at a time, as the inner loops take them.
template <typename T>
class Batches {
 public:
  static constexpr std::int64_t kMost = 128;

  Batches(const Tiles& tiles, const Given<T>& given) : tiles_(tiles), given_(given) {}

  // The first place in the order of a point of that column, or of a later one.
  std::int64_t PlaceOf(std::int64_t column) const {
    std::int64_t low = 0;
    std::int64_t high = given_.used;
    while (low < high) {
      const std::int64_t middle = low + (high - low) / 2;
      Beginning<T> beginning;
      if (Begin(middle, &beginning) && tiles_.ColumnOf(beginning.first) < column) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  }

  // Calls body(low, first, count) for points of one tile, which begins at `low`, from place
  // `first` of the order on, with all points of the column. False where the order is none.
  template <typename Body>
  bool ForEach(std::int64_t column, Body&& body) {
    const std::int64_t end = PlaceOf(column + 1);
    std::int64_t place = PlaceOf(column);
    Index low{column / tiles_.tiles()[1] * tiles_.size()[0],
              column % tiles_.tiles()[1] * tiles_.size()[1], 0};
    const std::int64_t line = tiles_.extent()[2];
    const std::int64_t plane = tiles_.extent()[1] * line;
    std::int64_t count = 0;
    const auto flush = [&] {
      if (count > 0) body(low, place - count, count);
      count = 0;
    };
    for (; place < end; ++place) {
      if (place + kAhead < end) Prefetch(given_.order[place + kAhead]);
      Beginning<T> beginning;
      if (!Begin(place, &beginning) || tiles_.ColumnOf(beginning.first) != column) return false;
      const std::int64_t z = beginning.first[2] / tiles_.size()[2] * tiles_.size()[2];
      if (z != low[2] || count == kMost) {
        flush();
        low[2] = z;
      }
      first_[count] = static_cast<std::int32_t>((beginning.first[0] - low[0]) * plane +
                                                (beginning.first[1] - low[1]) * line +
                                                beginning.first[2] - low[2]);
      for (int axis = 0; axis < kAxes; ++axis) at_[kAxes * count + axis] = beginning.at[axis];
      ++count;
    }
    flush();
    return true;
  }

  nufft::Batch<T> Of(const nufft::Polynomials<T>& polynomials, const Tile<T>& tile,
                     std::int64_t count) const {
    return {&polynomials, count, first_, at_, tile.plane(), tile.line()};
  }

 private:
  static constexpr std::int64_t kAhead = 16;

  bool Begin(std::int64_t place, Beginning<T>* beginning) const {
    const std::int64_t row = given_.order[place];
    return row >= 0 && row < given_.used &&
           tiles_.Begin(given_.cells, given_.offsets, row, beginning);
  }
  void Prefetch(std::int64_t row) const {
    if (row < 0 || row >= given_.used) return;
    __builtin_prefetch(given_.cells + kAxes * row);
    __builtin_prefetch(given_.offsets + kAxes * row);
  }

  const Tiles& tiles_;
  const Given<T>& given_;
  std::int32_t first_[kMost];
  T at_[kAxes * kMost];
};

// Values (rows, components) to blocks (components, *padded), which are zero before.
template <typename T>
bool SpreadTiles(ffi::ThreadPool& pool, const Tiles& tiles, const Given<T>& given,
                 const nufft::Polynomials<T>& polynomials, const T* values,
                 std::int64_t components, T* blocks) {
  const nufft::PointLanes& lanes = nufft::PointLanesFor(fft::ChosenLanes());
  const Index& padded = tiles.padded();
  const std::int64_t volume = 2 * padded[0] * padded[1] * padded[2];
  std::atomic<bool> is_order{true};
  const auto spread = [&](std::int64_t column, std::int64_t component) {
    Tile<T> tile(tiles);
    T* const block = blocks + component * volume;
    T some[2 * Batches<T>::kMost];
    Index low{-1, -1, -1};
    const auto add = [&] {
      if (low[0] >= 0) tile.AddTo(block, low);
    };
    Batches<T> batches(tiles, given);
    const bool ended = batches.ForEach(column, [&](const Index& at, auto place, auto count) {
      if (at != low) {
        add();
        tile.Clear();
        low = at;
      }
      for (std::int64_t i = 0; i < count; ++i) {
        const T* const value = values + 2 * (given.order[place + i] * components + component);
        some[2 * i] = value[0];
        some[2 * i + 1] = value[1];
      }
      lanes.Spread(batches.Of(polynomials, tile, count), some, tile.data());
    });
    add();
    if (!ended) is_order = false;
  };
  // Columns of one colour reach no common mesh point, and colours follow each other: every mesh
  // point is the same sum on any number of threads.
  const std::int64_t rows = tiles.tiles()[0];
  const std::int64_t columns = tiles.tiles()[1];
  for (std::int64_t colour = 0; colour < 4; ++colour) {
    const std::int64_t x = colour / 2;
    const std::int64_t y = colour % 2;
    const std::int64_t along = (columns - y + 1) / 2;
    const std::int64_t tasks = (rows - x + 1) / 2 * along;
    ForEachTask(pool, tasks * components, pool.num_threads() - 1, [&](std::int64_t task) {
      const std::int64_t number = task % tasks;
      spread((2 * (number / along) + x) * columns + 2 * (number % along) + y, task / tasks);
    });
  }
  return is_order;
}

// The transpose of that: every row is written once.
template <typename T>
bool ReadTiles(ffi::ThreadPool& pool, const Tiles& tiles, const Given<T>& given,
               const nufft::Polynomials<T>& polynomials, const T* blocks, std::int64_t components,
               T* values) {
  const nufft::PointLanes& lanes = nufft::PointLanesFor(fft::ChosenLanes());
  const Index& padded = tiles.padded();
  const std::int64_t volume = 2 * padded[0] * padded[1] * padded[2];
  std::atomic<bool> is_order{true};
  const std::int64_t columns = tiles.columns();
  ForEachTask(pool, columns * components, pool.num_threads() - 1, [&](std::int64_t task) {
    const std::int64_t component = task / columns;
    Tile<T> tile(tiles);
    T some[2 * Batches<T>::kMost];
    Index low{-1, -1, -1};
    Batches<T> batches(tiles, given);
    const bool ended =
        batches.ForEach(task % columns, [&](const Index& at, auto place, auto count) {
          if (at != low) {
            tile.CopyFrom(blocks + component * volume, at);
            low = at;
          }
          lanes.Read(batches.Of(polynomials, tile, count), tile.data(), some);
          for (std::int64_t i = 0; i < count; ++i) {
            T* const value = values + 2 * (given.order[place + i] * components + component);
            value[0] = some[2 * i];
            value[1] = some[2 * i + 1];
          }
        });
    if (!ended) is_order = false;
  });
  return is_order;
}

// ---- Handlers ----------------------------------------------------------------------------------

// Spreads values of points to the mesh with its ghosts (kRead: reads them there).
template <bool kRead>
ffi::Error Transfer(const On& on, ffi::ThreadPool pool, ffi::Span<const double> coefficients,
                    Cells cells, Operand offsets, Count used, Order order, Operand from,
                    Result result) {
  constexpr const char* operation = kRead ? "nufft_interpolate" : "nufft_spread";
  const Timed timed(kRead ? Operation::kNufftInterpolate : Operation::kNufftSpread, BytesOf(from));
  PrepareToWrite(result->untyped_data(), result->size_bytes());
  if (!kRead) Clear(result->untyped_data(), result->size_bytes());
  const Operand& values = kRead ? *result : from;
  const Operand& blocks = kRead ? from : *result;
  return WithTiles(operation, on, cells, offsets, used, [&](const Tiles& tiles, auto zero) {
    using T = decltype(zero);
    const auto shape = values.dimensions();
    const auto block = blocks.dimensions();
    const auto type = sizeof(T) == 4 ? ffi::DataType::C64 : ffi::DataType::C128;
    const auto terms = static_cast<std::int64_t>(coefficients.size()) / on.width;
    if (shape.size() != 2 || block.size() != 1 + kAxes || shape[0] != cells.dimensions()[0] ||
        shape[0] != order.dimensions()[0] || shape[1] != block[0] ||
        !std::equal(block.begin() + 1, block.end(), tiles.padded().begin()) ||
        values.element_type() != type || blocks.element_type() != type || terms < 1 ||
        terms > nufft::kMostTerms) {
      return Invalid(std::string(operation) + " of buffers that do not fit");
    }
    const Given<T> given{cells.typed_data(), static_cast<const T*>(offsets.untyped_data()),
                         order.typed_data(), *used.typed_data()};
    const auto polynomials = PolynomialsOf<T>(coefficients, on.width);
    T* const of_points = static_cast<T*>(values.untyped_data());
    T* const of_mesh = static_cast<T*>(blocks.untyped_data());
    bool is_order;
    if constexpr (kRead) {
      std::fill(of_points + 2 * given.used * shape[1], of_points + 2 * shape[0] * shape[1], T{0});
      is_order = ReadTiles<T>(pool, tiles, given, polynomials, of_mesh, shape[1], of_points);
    } else {
      is_order = SpreadTiles<T>(pool, tiles, given, polynomials, of_points, shape[1], of_mesh);
    }
    return is_order ? ffi::Error::Success()
                    : Invalid(std::string(operation) +
                              " of points that are not in the order that nufft_order gave");
  });
}

template <auto kRun, typename... Names>
Registration MeshHandler(const char* name, Names... further) {
  return Handler<&OnMesh<kRun>::Run>(name, "n0", "n1", "n2", "rows_comm", "columns_comm", "width",
                                     further...)
      .OnHost();
}

}  // namespace

std::vector<Registration> NufftHandlers() {
  return {MeshHandler<OrderPoints>("pfftjax_nufft_order"),
          MeshHandler<Transfer<false>>("pfftjax_nufft_spread", "coefficients"),
          MeshHandler<Transfer<true>>("pfftjax_nufft_interpolate", "coefficients")};
}

}  // namespace pfftjax
