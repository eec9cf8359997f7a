// Steps between pencils, and of particles.
#include <algorithm>
#include <cstring>

#include "base/options.h"
#include "pencils/redistribute.h"
#include "steps.h"

namespace pfftjax::simulated {
namespace {

using Shape = std::vector<std::int64_t>;

// Calls body(index in each dimension, linear index) for all elements.
template <typename Body>
void ForEach(const Shape& shape, Body&& body) {
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) count *= extent;
  Shape at(shape.size());
  for (std::int64_t i = 0; i < count; ++i) {
    body(at, i);
    for (std::size_t d = shape.size(); d-- > 0;) {
      if (++at[d] < shape[d]) break;
      at[d] = 0;
    }
  }
}

std::int64_t Linear(const Shape& shape, const Shape& at) {
  std::int64_t index = 0;
  for (std::size_t d = 0; d < shape.size(); ++d) index = index * shape[d] + at[d];
  return index;
}

// Axis lengths of blocks on so many ranks: few each, uneven, at times fewer than ranks.
std::int64_t DrawAxis(Random& random, int ranks) {
  return std::max<std::int64_t>(1, random.Between(ranks / 2, 2 * ranks + 2));
}

// The method is a number in the program; kShared wants memory of all ranks, and kHierarchical of
// those of a node.
Method DrawMethod(Random& random, bool has_memory) {
  constexpr Method methods[] = {Method::kAutomatic, Method::kMessages, Method::kAlltoall,
                                Method::kHierarchical};
  const Method method = random.OneOf(methods);
  return has_memory || method != Method::kHierarchical ? method : Method::kMessages;
}

void Transpose(Rank& rank, std::int64_t number, Random random) {
  const Communicator& comm = rank.On(number);
  const std::uint64_t step = random.Next();
  const std::int64_t dims = random.Between(2, 4);
  Shape whole;
  for (std::int64_t d = 0; d < dims; ++d) whole.push_back(random.Between(1, 3));
  const std::int64_t scatter = random.Below(dims);
  const std::int64_t gather = (scatter + 1 + random.Below(dims - 1)) % dims;
  whole[static_cast<std::size_t>(scatter)] = DrawAxis(random, comm.size);
  whole[static_cast<std::size_t>(gather)] = DrawAxis(random, comm.size);
  Shape order;
  for (std::int64_t d = 0; d < dims; ++d) {
    order.insert(order.begin() + random.Below(static_cast<std::int64_t>(order.size()) + 1), d);
  }
  const bool has_memory = comm.size > 1 && rank.job.refuses == 0 && GetOptions().shared_memory;
  const Method method = DrawMethod(random, has_memory);
  const bool is_wide = random.Chance(0.3);

  const Range mine = BlockOf(whole[static_cast<std::size_t>(gather)], comm.size, comm.rank);
  const Range theirs = BlockOf(whole[static_cast<std::size_t>(scatter)], comm.size, comm.rank);
  Shape from = whole;
  from[static_cast<std::size_t>(gather)] = mine.count;
  Shape to;
  for (const std::int64_t d : order) {
    to.push_back(d == scatter ? theirs.count : whole[static_cast<std::size_t>(d)]);
  }
  const ffi::DataType type = is_wide ? ffi::S64 : ffi::U8;
  const auto value = [&](std::int64_t i) -> std::int64_t {
    return is_wide ? NumberOf(step, 0, 0, i) : ByteOf(step, 0, 0, i);
  };
  Array x(type, from);
  Array y(type, to);
  ForEach(from, [&](Shape at, std::int64_t i) {
    at[static_cast<std::size_t>(gather)] += mine.start;
    const std::int64_t v = value(Linear(whole, at));
    if (is_wide) {
      *x.At<std::int64_t>(i) = v;
    } else {
      *x.At<std::uint8_t>(i) = static_cast<std::uint8_t>(v);
    }
  });
  Expect(CallOn<Dimensions, std::int64_t, std::int64_t, std::int64_t, ffi::ThreadPool>(
      "pfftjax_pencil_transpose", Site(number), Dimensions(order), scatter, gather,
      static_cast<std::int64_t>(method), {}, x, y));
  ForEach(to, [&](const Shape& at, std::int64_t i) {
    Shape source(at.size());
    for (std::size_t d = 0; d < at.size(); ++d) {
      source[static_cast<std::size_t>(order[d])] =
          at[d] + (order[d] == scatter ? theirs.start : 0);
    }
    const std::int64_t found = is_wide ? *y.At<std::int64_t>(i) : *y.At<std::uint8_t>(i);
    ExpectOr(found == value(Linear(whole, source)), [&] {
      return std::string("a transpose by method ") + std::to_string(static_cast<int>(method)) +
             " is wrong at element " + std::to_string(i);
    });
  });
}

struct HaloCase {
  std::int64_t axis;
  std::int64_t whole;
  std::int64_t before;
  std::int64_t after;
  bool is_periodic;
  Shape block;  // of this rank
  Shape padded;
};

HaloCase DrawHalo(Random& random, const Communicator& comm) {
  HaloCase halo;
  const std::int64_t dims = random.Between(1, 3);
  halo.axis = random.Below(dims);
  halo.whole = DrawAxis(random, comm.size);
  const std::int64_t most = random.Chance(0.8) ? 2 : halo.whole + 2;
  halo.before = random.Between(0, most);
  halo.after = random.Between(0, most);
  halo.is_periodic = random.Chance(0.7);
  for (std::int64_t d = 0; d < dims; ++d) halo.block.push_back(random.Between(1, 3));
  const auto axis = static_cast<std::size_t>(halo.axis);
  halo.block[axis] = BlockOf(halo.whole, comm.size, comm.rank).count;
  halo.padded = halo.block;
  halo.padded[axis] += halo.before + halo.after;
  return halo;
}

// The place on the whole axis of place `at` of a padded block; -1: beyond its end.
std::int64_t OwnerPlace(const HaloCase& halo, std::int64_t start, std::int64_t at) {
  const std::int64_t place = start - halo.before + at;
  if (halo.is_periodic) return ((place % halo.whole) + halo.whole) % halo.whole;
  return place < 0 || place >= halo.whole ? -1 : place;
}

void Halo(Rank& rank, std::int64_t number, Random random) {
  const Communicator& comm = rank.On(number);
  const std::uint64_t step = random.Next();
  const HaloCase halo = DrawHalo(random, comm);
  const auto axis = static_cast<std::size_t>(halo.axis);
  Shape whole = halo.block;
  whole[axis] = halo.whole;
  const std::int64_t start = BlockOf(halo.whole, comm.size, comm.rank).start;
  const bool is_exchange = random.Chance(0.5);
  Array block(ffi::S64, halo.block);
  Array padded(ffi::S64, halo.padded);
  const auto call = [&](const char* name, Array& x, Array& y) {
    Expect(CallOn<std::int64_t, std::int64_t, std::int64_t, std::int64_t, bool, ffi::ThreadPool>(
        name, Site(number), halo.axis, halo.whole, halo.before, halo.after, halo.is_periodic, {},
        x, y));
  };
  if (is_exchange) {
    ForEach(halo.block, [&](Shape at, std::int64_t i) {
      at[axis] += start;
      *block.At<std::int64_t>(i) = NumberOf(step, 0, 0, Linear(whole, at));
    });
    call("pfftjax_halo_exchange", block, padded);
    ForEach(halo.padded, [&](Shape at, std::int64_t i) {
      at[axis] = OwnerPlace(halo, start, at[axis]);
      const std::int64_t expected = at[axis] < 0 ? 0 : NumberOf(step, 0, 0, Linear(whole, at));
      ExpectOr(*padded.At<std::int64_t>(i) == expected,
               [&] { return std::string("a halo is wrong at element ") + std::to_string(i); });
    });
    return;
  }
  ForEach(halo.padded, [&](const Shape&, std::int64_t i) {
    *padded.At<std::int64_t>(i) = NumberOf(step, comm.rank, 0, i);
  });
  call("pfftjax_halo_reduce", padded, block);
  std::vector<std::int64_t> sums(block.data.size() / sizeof(std::int64_t));
  for (int other = 0; other < comm.size; ++other) {
    const Range theirs = BlockOf(halo.whole, comm.size, other);
    Shape shape = halo.padded;
    shape[axis] = theirs.count + halo.before + halo.after;
    ForEach(shape, [&](Shape at, std::int64_t i) {
      const std::int64_t place = OwnerPlace(halo, theirs.start, at[axis]);
      if (place < start || place >= start + halo.block[axis]) return;
      at[axis] = place - start;
      sums[static_cast<std::size_t>(Linear(halo.block, at))] += NumberOf(step, other, 0, i);
    });
  }
  for (std::size_t i = 0; i < sums.size(); ++i) {
    ExpectOr(*block.At<std::int64_t>(static_cast<std::int64_t>(i)) == sums[i], [&] {
      return std::string("a sum of ghosts is wrong at element ") + std::to_string(i);
    });
  }
}

// ---- Particles -----------------------------------------------------------------------------

// The rank that owns cell `cell` of an axis.
std::int64_t OwnerOf(std::int64_t cell, std::int64_t n, std::int64_t parts) {
  for (std::int64_t part = 0; part < parts; ++part) {
    const Range range = BlockOf(n, parts, part);
    if (cell >= range.start && cell < range.start + range.count) return part;
  }
  return -1;
}

void Particles(Rank& rank, std::int64_t number, Random random) {
  const Communicator& comm = rank.On(number);
  const std::uint64_t step = random.Next();
  const std::int64_t n[] = {DrawAxis(random, rank.grid.rows), DrawAxis(random, rank.grid.columns),
                            random.Between(1, 3)};
  const std::int64_t most = random.Chance(0.8) ? 6 : 40;
  const std::int64_t members = random.Chance(0.5) ? 1 : random.Between(2, 3);
  const auto used_by = [&](int of, std::int64_t member) {
    return NumberOf(step, of, -1, -member) % (most + 1);
  };
  const auto cell = [&](int of, std::int64_t member, std::int64_t row, int axis) {
    // Also cells outside of the box, which lie in it again.
    const std::int64_t drawn = NumberOf(step, of, axis, 1 + row * members + member);
    return static_cast<std::int32_t>(drawn % (3 * n[axis]) - n[axis]);
  };
  const auto owner = [&](int of, std::int64_t member, std::int64_t row) {
    std::int64_t owners[2];
    for (int axis = 0; axis < 2; ++axis) {
      const std::int64_t inside = ((cell(of, member, row, axis) % n[axis]) + n[axis]) % n[axis];
      owners[axis] = OwnerOf(inside, n[axis], axis == 0 ? rank.grid.rows : rank.grid.columns);
    }
    return owners[0] * rank.grid.columns + owners[1];
  };
  const std::int64_t rows = most + random.Below(3);
  const auto in_batch = [members](std::vector<std::int64_t> shape) {
    if (members > 1) shape.insert(shape.begin(), members);
    return shape;
  };
  Array x(ffi::S32, in_batch({rows, 2}));
  Array order(ffi::S32, in_batch({rows}));
  Array outgoing(ffi::S32, in_batch({comm.size}));
  Array incoming(ffi::S32, in_batch({comm.size}));
  Array in_columns(ffi::S32, {comm.size, members});  // as counts are exchanged
  Array from_each(ffi::S32, {comm.size, members});
  using Integers = ffi::Buffer<ffi::S32>;
  using Order =
      ffi::Error (*)(std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t,
                     ffi::ThreadPool, ffi::Buffer<ffi::S32, 2>, Operand, ffi::BufferR0<ffi::S32>,
                     ffi::Result<Integers>, ffi::Result<Integers>);
  const auto by_owner =
      reinterpret_cast<Order>(FindHandler("pfftjax_order_by_owner", typeid(Order)));
  for (std::int64_t member = 0; member < members; ++member) {
    const std::int64_t used = used_by(comm.rank, member);
    Array cells(ffi::S32, {rows, 3});
    Array offsets(ffi::F32, {rows, 3});
    for (std::int64_t row = 0; row < rows; ++row) {
      for (int axis = 0; axis < 3; ++axis) {
        *cells.At<std::int32_t>(3 * row + axis) =
            row < used ? cell(comm.rank, member, row, axis) : 0;
        *offsets.At<float>(3 * row + axis) = 0.25F;
      }
      const std::int64_t at = 2 * (member * rows + row);
      *x.At<std::int32_t>(at) = comm.rank;
      *x.At<std::int32_t>(at + 1) = static_cast<std::int32_t>(row * members + member);
    }
    Array count(ffi::S32, {});
    *count.At<std::int32_t>() = static_cast<std::int32_t>(used);
    Array own_order(ffi::S32, {rows});
    Array own_outgoing(ffi::S32, {comm.size});
    Expect(by_owner(n[0], n[1], n[2], kRows, kColumns, {}, cells.As<ffi::S32, 2>(), offsets.Any(),
                    count.As<ffi::S32, 0>(), ffi::Result<Integers>(own_order.As<ffi::S32>()),
                    ffi::Result<Integers>(own_outgoing.As<ffi::S32>())));
    for (std::int64_t row = 0; row < rows; ++row) {
      *order.At<std::int32_t>(member * rows + row) = *own_order.At<std::int32_t>(row);
    }
    for (int to = 0; to < comm.size; ++to) {
      const std::int32_t leaving = *own_outgoing.At<std::int32_t>(to);
      *outgoing.At<std::int32_t>(member * comm.size + to) = leaving;
      *in_columns.At<std::int32_t>(to * members + member) = leaving;
    }
  }

  std::int64_t capacity = 0;
  for (std::int64_t member = 0; member < members; ++member) {
    for (int to = 0; to < comm.size; ++to) {
      std::int64_t arriving = 0;
      for (int from = 0; from < comm.size; ++from) {
        for (std::int64_t row = 0; row < used_by(from, member); ++row) {
          arriving += owner(from, member, row) == to;
        }
      }
      capacity = std::max(capacity, arriving);
    }
  }
  capacity += random.Below(2);
  if (random.Chance(0.5)) capacity = std::max(capacity, rows);
  Expect(CallHandler<std::int64_t, std::int64_t, std::string_view, ffi::Buffer<ffi::S32>, Token,
                     ffi::Result<ffi::Buffer<ffi::S32>>, TokenResult>(
      "pfftjax_exchange_counts", Site(number), rows, capacity, "particles",
      in_columns.As<ffi::S32>(), Token{},
      ffi::Result<ffi::Buffer<ffi::S32>>(from_each.As<ffi::S32>()), TokenResult{}));
  for (std::int64_t member = 0; member < members; ++member) {
    for (int from = 0; from < comm.size; ++from) {
      *incoming.At<std::int32_t>(member * comm.size + from) =
          *from_each.At<std::int32_t>(from * members + member);
    }
  }
  // Each row has the number of its sender and its own, and in another array a byte of that.
  Array marks(ffi::U8, in_batch({rows, 1}));
  for (std::int64_t i = 0; i < members * rows; ++i) {
    *marks.At<std::uint8_t>(i) = static_cast<std::uint8_t>(*x.At<std::int32_t>(2 * i + 1) % 200);
  }
  const auto move = [&](const char* name, Array& from, Array& marks_from, Array& to,
                        Array& marks_to) {
    const std::vector<ffi::AnyBuffer> sources = {from.Any(), marks_from.Any()};
    const std::vector<ffi::AnyBuffer> targets = {to.Any(), marks_to.Any()};
    Expect(CallHandler<ffi::ThreadPool, Integers, Integers, Integers, ffi::RemainingArgs,
                       ffi::RemainingRets>(name, Site(number), ffi::ThreadPool{},
                                           order.As<ffi::S32>(), outgoing.As<ffi::S32>(),
                                           incoming.As<ffi::S32>(), sources, targets));
  };
  // They arrive elsewhere, or in the memory that they leave, if there is as much of it.
  Array y(ffi::S32, in_batch({capacity, 2}));
  Array arrived_marks(ffi::U8, in_batch({capacity, 1}));
  const Array sent = x;
  const bool is_in_place = rows == capacity && random.Chance(0.8);
  if (is_in_place) {
    y = x;
    arrived_marks = marks;
    move("pfftjax_move_rows", y, arrived_marks, y, arrived_marks);
  } else {
    move("pfftjax_move_rows", x, marks, y, arrived_marks);
  }
  for (std::int64_t member = 0; member < members; ++member) {
    // Rows that stay keep their places, if these are among those in use. Others take the free
    // ones.
    using Name = std::pair<int, std::int64_t>;
    std::vector<Name> here(static_cast<std::size_t>(capacity), Name{-1, 0});
    std::vector<Name> others;
    std::int64_t used = 0;
    const auto for_each = [&](int from, auto&& body) {
      for (std::int64_t row = 0; row < used_by(from, member); ++row) {
        if (owner(from, member, row) == comm.rank) body(row);
      }
    };
    for (int from = 0; from < comm.size; ++from) for_each(from, [&](auto) { ++used; });
    for_each(comm.rank, [&](std::int64_t row) {
      if (row < used) {
        here[static_cast<std::size_t>(row)] = {comm.rank, row};
      } else {
        others.emplace_back(comm.rank, row);
      }
    });
    for (int from = 0; from < comm.size; ++from) {
      if (from == comm.rank) continue;
      for_each(from, [&](std::int64_t row) { others.emplace_back(from, row); });
    }
    auto next = others.begin();
    for (std::int64_t at = 0; at < capacity; ++at) {
      Name& name = here[static_cast<std::size_t>(at)];
      if (at < used && name.first < 0) name = *next++;
      const std::int64_t number_of_row = at < used ? name.second * members + member : 0;
      const std::int64_t i = member * capacity + at;
      ExpectOr(*y.At<std::int32_t>(2 * i) == (at < used ? name.first : 0) &&
                   *y.At<std::int32_t>(2 * i + 1) == number_of_row &&
                   *arrived_marks.At<std::uint8_t>(i) == number_of_row % 200,
               [&] { return "a wrong particle in row " + std::to_string(at); });
    }
  }
  Array back(ffi::S32, in_batch({rows, 2}));
  Array marks_back(ffi::U8, in_batch({rows, 1}));
  if (is_in_place) {
    move("pfftjax_return_rows", y, arrived_marks, y, arrived_marks);
    back = y;
    marks_back = arrived_marks;
  } else {
    move("pfftjax_return_rows", y, arrived_marks, back, marks_back);
  }
  for (std::int64_t i = 0; i < members * rows; ++i) {
    const bool was_sent = i % rows < used_by(comm.rank, i / rows);
    for (std::int64_t j = 2 * i; j < 2 * i + 2; ++j) {
      Expect(*back.At<std::int32_t>(j) ==
                 (was_sent ? reinterpret_cast<const std::int32_t*>(sent.data.data())[j] : 0),
             "a particle has not come back");
    }
    Expect(*marks_back.At<std::uint8_t>(i) == (was_sent ? *marks.At<std::uint8_t>(i) : 0),
           "the mark of a particle has not come back");
  }
}

}  // namespace

std::vector<StepKind> ArraySteps() {
  return {{"transpose", Transpose}, {"halo", Halo}, {"particles", Particles, true}};
}

}  // namespace pfftjax::simulated
