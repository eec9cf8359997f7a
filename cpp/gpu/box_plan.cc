#include "gpu/box_plan.h"

#include <algorithm>
#include <array>
#include <cstdlib>

namespace pfftjax::gpu {
namespace {

struct Dimension {
  std::int64_t extent;
  std::int64_t from;  // strides in bytes
  std::int64_t to;
};

// A box in as few dimensions as describe it, those of the largest strides in the target first.
struct Shape {
  const unsigned char* source = nullptr;
  unsigned char* target = nullptr;
  std::int64_t word = 1;
  int dims = 0;
  std::array<Dimension, kMaxDims + 1> dim{};  // one more: the bytes of an element

  std::int64_t words() const {
    std::int64_t product = 1;
    for (int d = 0; d < dims; ++d) product *= dim[d].extent;
    return product;
  }
  Dimension Take(int d) {
    const Dimension taken = dim[d];
    std::copy(dim.begin() + d + 1, dim.begin() + dims, dim.begin() + d);
    --dims;
    return taken;
  }
  // The dimension along which words follow each other; -1 if there is none.
  int ContiguousIn(std::int64_t Dimension::* stride) const {
    for (int d = dims - 1; d >= 0; --d) {
      if (dim[d].*stride == word) return d;
    }
    return -1;
  }
};

void Merge(Shape* shape) {
  // Which dimension comes first makes no difference to a copy.
  std::sort(
      shape->dim.begin(), shape->dim.begin() + shape->dims,
      [](const Dimension& a, const Dimension& b) { return std::abs(a.to) > std::abs(b.to); });
  int merged = 0;
  for (int d = 0; d < shape->dims; ++d) {
    const Dimension next = shape->dim[d];
    if (merged > 0) {
      Dimension& last = shape->dim[merged - 1];
      if (last.from == next.extent * next.from && last.to == next.extent * next.to) {
        last = {last.extent * next.extent, next.from, next.to};
        continue;
      }
    }
    shape->dim[merged++] = next;
  }
  shape->dims = merged;
}

// Goes from bytes to the largest words whose multiples all addresses, strides and the run of bytes
// that both sides have in one piece are; a run of one word is no dimension any more.
void Widen(Shape* shape) {
  std::int64_t run = 1;
  if (shape->dims > 0) {
    const Dimension& last = shape->dim[shape->dims - 1];
    if (last.from == 1 && last.to == 1) {
      run = last.extent;
      --shape->dims;
    }
  }
  std::uint64_t all = reinterpret_cast<std::uintptr_t>(shape->source) |
                      reinterpret_cast<std::uintptr_t>(shape->target) |
                      static_cast<std::uint64_t>(run) | 16;
  for (int d = 0; d < shape->dims; ++d) {
    all |= static_cast<std::uint64_t>(shape->dim[d].from | shape->dim[d].to);
  }
  shape->word = static_cast<std::int64_t>(all & (~all + 1));
  if (run > shape->word) {
    shape->dim[shape->dims++] = {run / shape->word, shape->word, shape->word};
  }
}

Shape ShapeOf(const BoxCopy& copy, std::int64_t element_bytes, Unit unit) {
  Shape shape;
  shape.source = static_cast<const unsigned char*>(copy.source) + copy.from.offset * element_bytes;
  shape.target = static_cast<unsigned char*>(copy.target) + copy.to.offset * element_bytes;
  for (int d = 0; d < copy.from.dims; ++d) {
    if (copy.from.extent[d] == 1) continue;
    shape.dim[shape.dims++] = {copy.from.extent[d], copy.from.stride[d] * element_bytes,
                               copy.to.stride[d] * element_bytes};
  }
  if (unit == Unit::kElements) {
    shape.word = element_bytes;
    Merge(&shape);
    return shape;
  }
  if (element_bytes > 1) shape.dim[shape.dims++] = {element_bytes, 1, 1};
  Merge(&shape);
  Widen(&shape);
  return shape;
}

std::int64_t Tiles(std::int64_t words, std::int64_t side) { return (words + side - 1) / side; }

std::int64_t RowTiles(std::int64_t width, std::int64_t rows, std::int64_t word, int log_width) {
  return Tiles(width, std::int64_t{1} << log_width) *
         Tiles(rows, std::int64_t{1} << (LogRowTile(word) - log_width));
}

// The width of which there are the fewest tiles, the widest of them; less than a warp only where
// rows are shorter. To find the place of each word costs more than a few idle threads: rows are
// wide where that takes no more than a third more tiles.
std::int8_t LogWidth(std::int64_t width, std::int64_t rows, std::int64_t word) {
  std::int8_t least = 0;
  while (least < 5 && std::int64_t{1} << least < width) ++least;
  const auto fewest = [&](int first) {
    int best = first;
    for (int log = first; log <= LogRowTile(word); ++log) {
      if (RowTiles(width, rows, word, log) <= RowTiles(width, rows, word, best)) best = log;
    }
    return best;
  };
  const int any = fewest(least);
  const int wide = fewest(std::max<int>(least, LogWideRow(word)));
  const bool is_wide =
      3 * RowTiles(width, rows, word, wide) <= 4 * RowTiles(width, rows, word, any);
  return static_cast<std::int8_t>(is_wide ? wide : any);
}

// x and y are taken out of the shape, so that the dimensions between squares are left.
Move SquaresOf(Shape* shape, int in, int out, std::int64_t* tiles) {
  const Dimension x = shape->Take(in);
  const Dimension y = shape->Take(out > in ? out - 1 : out);
  Move move{};
  move.log_width = kSquares;
  move.width = static_cast<std::uint32_t>(x.extent);
  move.height = static_cast<std::uint32_t>(y.extent);
  move.x_from = x.from;
  move.x_to = x.to;
  move.y_from = y.from;
  const std::int64_t side = SquareSide(shape->word);
  *tiles = Tiles(x.extent, side) * Tiles(y.extent, side) * shape->words();
  return move;
}

// x is taken out likewise, so that the dimensions that make rows are left.
Move RowsOf(Shape* shape, int along, std::int64_t* tiles) {
  const Dimension x = along >= 0 ? shape->Take(along) : Dimension{1, shape->word, shape->word};
  const std::int64_t rows = shape->words();
  Move move{};
  move.log_width = LogWidth(x.extent, rows, shape->word);
  move.width = static_cast<std::uint32_t>(x.extent);
  move.height = static_cast<std::uint32_t>(rows);
  move.x_from = x.from;
  move.x_to = x.to;
  *tiles = RowTiles(x.extent, rows, shape->word, move.log_width);
  return move;
}

// Takes out of the shape what a tile extends along. Only words that move can go through squares.
Move TilesOf(Shape* shape, Unit unit, std::int64_t* tiles) {
  // With a few words to a line most of a square would be idle; the caches do as well then.
  constexpr std::int64_t kFew = 4;
  const int in = shape->ContiguousIn(&Dimension::from);
  const int out = shape->ContiguousIn(&Dimension::to);
  if (in < 0 || out < 0) {
    return RowsOf(shape, out >= 0 ? out : in >= 0 ? in : shape->dims - 1, tiles);
  }
  const std::int64_t x = shape->dim[in].extent;
  const std::int64_t y = shape->dim[out].extent;
  if (unit == Unit::kWords && in != out && std::min(x, y) > kFew) {
    return SquaresOf(shape, in, out, tiles);
  }
  return RowsOf(shape, x > y ? in : out, tiles);
}

class Batches {
 public:
  Batches(const std::function<int(const Batch&)>& launch, Unit unit, std::int64_t most_words)
      : launch_(launch), unit_(unit), most_words_(most_words) {}

  int Add(const Shape& shape) {
    if (shape.words() <= most_words_) return Put(shape);
    const auto longest = std::max_element(
        shape.dim.begin(), shape.dim.begin() + shape.dims,
        [](const Dimension& a, const Dimension& b) { return a.extent < b.extent; });
    const auto d = longest - shape.dim.begin();
    Shape first = shape;
    Shape second = shape;
    const std::int64_t half = longest->extent / 2;
    first.dim[d].extent = half;
    second.dim[d].extent -= half;
    second.source += half * longest->from;
    second.target += half * longest->to;
    if (const int code = Add(first)) return code;
    return Add(second);
  }

  int FlushAll() {
    for (Open& open : open_) {
      if (const int code = Flush(&open)) return code;
    }
    return 0;
  }

 private:
  // A batch for each size of words; mostly all boxes of a call have the same. Only
  // the moves and axes that are there have values.
  struct Open {
    Open() { Clear(); }
    void Clear() {
      batch.count = 0;
      batch.tiles = 0;
      axes = 0;
    }
    Batch batch;
    int axes;
  };

  int Flush(Open* open) {
    if (open->batch.count == 0) return 0;
    const int code = launch_(open->batch);
    open->Clear();
    return code;
  }

  int Put(Shape shape) {
    std::int64_t tiles = 0;
    Move move = TilesOf(&shape, unit_, &tiles);
    move.source = shape.source;
    move.target = shape.target;
    // Neighbouring rows are neighbours in memory, on one side at least.
    std::sort(shape.dim.begin(), shape.dim.begin() + shape.dims,
              [](const Dimension& a, const Dimension& b) {
                return std::min(std::abs(a.from), std::abs(a.to)) <
                       std::min(std::abs(b.from), std::abs(b.to));
              });

    int log_word = 0;
    while (std::int64_t{1} << log_word < shape.word) ++log_word;
    Open& open = open_[log_word];
    Batch& batch = open.batch;
    if (batch.count == Batch::kMoves || open.axes + shape.dims > Batch::kAxes ||
        batch.tiles + tiles > std::numeric_limits<std::int32_t>::max()) {
      if (const int code = Flush(&open)) return code;
    }
    move.axes_begin = static_cast<std::int8_t>(open.axes);
    move.axes_count = static_cast<std::int8_t>(shape.dims);
    for (int d = 0; d < shape.dims; ++d) {
      const Dimension& along = shape.dim[d];
      batch.axes[open.axes++] =
          MakeAxis(static_cast<std::uint32_t>(along.extent), along.from, along.to);
    }
    move.tiles_begin = batch.tiles;
    batch.tiles += static_cast<std::uint32_t>(tiles);
    move.tiles_end = batch.tiles;
    batch.word_bytes = static_cast<std::int32_t>(shape.word);
    batch.moves[batch.count++] = move;
    return 0;
  }

  const std::function<int(const Batch&)>& launch_;
  const Unit unit_;
  const std::int64_t most_words_;
  std::array<Open, kWordSizes> open_;
};

}  // namespace

Axis MakeAxis(std::uint32_t extent, std::int64_t from, std::int64_t to) {
  // With 2^(s - 1) < extent <= 2^s and m = 2^(31 + s) / extent + 1, rounded down, m * extent is
  // above 2^(31 + s) by at most 2^s, too little to matter for n below 2^31 (Granlund and
  // Montgomery, "Division by invariant integers using multiplication", theorem 4.2).
  int s = 0;
  while (std::uint64_t{1} << s < extent) ++s;
  const std::uint64_t multiplier = (std::uint64_t{1} << (31 + s)) / extent + 1;
  return {from, to, extent, static_cast<std::uint32_t>(multiplier), 31 + s};
}

int PlanBoxes(const BoxCopy* copies, int count, std::int64_t element_bytes, Unit unit,
              const std::function<int(const Batch&)>& launch, std::int64_t most_words) {
  Batches batches(launch, unit, most_words);
  for (const BoxCopy* copy = copies; copy < copies + count; ++copy) {
    if (copy->from.count() == 0) continue;
    if (const int code = batches.Add(ShapeOf(*copy, element_bytes, unit))) return code;
  }
  return batches.FlushAll();
}

}  // namespace pfftjax::gpu
