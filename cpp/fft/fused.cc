// A transform, a change of pencil and another transform, as FFI handlers: of one array, or of
// those that a gradient or a divergence is made of.
#include <cstring>
#include <optional>
#include <stdexcept>

#include "base/scratch.h"
#include "collectives/exchange.h"
#include "fft/meeting.h"
#include "fft/parcel_boxes.h"
#include "fft/passage.h"
#include "pencils/pencils.h"
#include "pencils/redistribute.h"
#include "pencils/stream.h"
#include "runtime/agreement.h"
#include "runtime/handlers.h"
#include "runtime/profile.h"

namespace pfftjax {
namespace {

using fft::Change;
using fft::Ends;
using fft::Kind;
using fft::MaybeFft;
using fft::Meeting;
using fft::Passage;
using fft::PlaneFft;
using fft::Precision;
using fft::Sums;
using fft::Three;
using fft::Wave;
using fft::What;

constexpr std::int64_t kNothing = -1;  // in place of a kind

// The program says this about the transforms and the change between them.
struct Attributes {
  ffi::Span<const std::int64_t> first;   // kind or kNothing, axes, length
  ffi::Span<const std::int64_t> second;  // the same
  ffi::Span<const double> scales;
  ffi::Span<const std::int64_t> order;  // with the batch
  std::int64_t scatter;                 // without
  std::int64_t gather;
  // The axes of k1 and k2 in what travels, as it comes in; nothing for a transform.
  Dimensions along;
  Method method;
  Precision precision;
  What what;
};

// An operation is given these, apart from the token.
struct Buffers {
  std::vector<Operand> x;
  std::vector<Operand> k;  // none, or k0, k1 and k2
  std::vector<ffi::AnyBuffer> y;

  Dimensions of_x() const { return x[0].dimensions(); }
  Dimensions of_y() const { return y[0].dimensions(); }
  std::int64_t BytesOfX() const { return static_cast<std::int64_t>(x.size() * x[0].size_bytes()); }
  template <typename T>
  std::vector<const T*> From() const {
    std::vector<const T*> data;
    for (const Operand& operand : x) data.push_back(static_cast<const T*>(operand.untyped_data()));
    return data;
  }
  template <typename T>
  std::vector<T*> To() const {
    std::vector<T*> data;
    for (const ffi::AnyBuffer& result : y) data.push_back(static_cast<T*>(result.untyped_data()));
    return data;
  }
};

template <typename T>
MaybeFft<T> MakeFft(ffi::Span<const std::int64_t> what, std::int64_t rows, double scale) {
  if (what[0] == kNothing) return std::nullopt;
  return PlaneFft<T>(static_cast<Kind>(what[0]), what[2], what[1] == 2, rows,
                     static_cast<T>(scale));
}

template <typename T>
struct Task {
  Change change;
  MaybeFft<T> first;
  MaybeFft<T> second;
  Sums<T> sums;
};

// The factors of a gradient or a divergence; nothing if they are not those of the blocks. k0 is
// along the lines that are complex on both sides; k1 and k2 multiply what travels at the end where
// several arrays are made of one, or one of several.
template <typename T>
std::optional<Sums<T>> MakeSums(const Attributes& a, const Task<T>& task, const Buffers& buffers) {
  const bool is_gradient = a.what == What::kGradient;
  const MaybeFft<T>& along_k0 = is_gradient ? task.first : task.second;
  if (!task.first || !task.second || along_k0->both_axes() || a.along.size() != 2 ||
      along_k0->in_numbers() != 2 * along_k0->in_length() ||
      along_k0->out_numbers() != along_k0->in_numbers()) {
    return std::nullopt;
  }
  const Three extents = is_gradient ? task.change.After() : task.change.Before();
  std::array<Wave<T>, 3> waves;
  for (std::size_t i = 0; i < 3; ++i) {
    const std::int64_t axis = i == 0 ? 0 : a.along[i - 1];
    if (axis < 0 || axis > 2) return std::nullopt;
    const std::int64_t length = i == 0 ? along_k0->in_length() : extents[axis];
    if (buffers.k[i].dimensions().size() != 1 || buffers.k[i].dimensions()[0] != length) {
      return std::nullopt;
    }
    waves[i] = {static_cast<const T*>(buffers.k[i].untyped_data()), static_cast<int>(axis)};
  }
  return is_gradient ? fft::GradientOf(waves[0].k, waves[1], waves[2])
                     : fft::DivergenceOf(waves[0].k, waves[1], waves[2]);
}

// Nothing if the buffers are not those of this rank's blocks.
template <typename T>
std::optional<Task<T>> MakeTask(const Attributes& a, int ranks, int rank, const Buffers& buffers) {
  const Dimensions x = buffers.of_x();
  const Dimensions y = buffers.of_y();
  const std::size_t lead = x.size() < 3 ? 0 : x.size() - 3;
  if (x.size() < 3 || y.size() != x.size() || a.order.size() != x.size()) return std::nullopt;
  if (!IsOrder(a.order, x.size()) || a.first.size() != 3 || a.second.size() != 3 ||
      a.scales.size() != 2 || a.scatter == a.gather || std::min(a.scatter, a.gather) < 0 ||
      std::max(a.scatter, a.gather) > 2) {
    return std::nullopt;
  }
  Task<T> task;
  Change& change = task.change;
  change.ranks = ranks;
  change.rank = rank;
  change.scatter = static_cast<int>(a.scatter);
  change.gather = static_cast<int>(a.gather);
  for (std::size_t d = 0; d < lead; ++d) {
    if (a.order[d] != static_cast<std::int64_t>(d) || x[d] != y[d]) return std::nullopt;
    change.batch *= x[d];
  }
  for (int d = 0; d < 3; ++d) {
    change.order[d] = static_cast<int>(a.order[lead + d] - static_cast<std::int64_t>(lead));
  }
  task.first = MakeFft<T>(a.first, x[lead + 1], a.scales[0]);
  task.second = MakeFft<T>(a.second, y[lead + 1], a.scales[1]);
  // These are the extents of what travels, seen from both ends.
  Three before{x[lead], x[lead + 1], x[lead + 2]};
  if (task.first) {
    if (task.first->in_length() != before[2]) return std::nullopt;
    before[2] = task.first->out_length();
  }
  Three after{};
  for (int d = 0; d < 3; ++d) after[change.order[d]] = y[lead + d];
  if (task.second) {
    if (task.second->out_length() != after[change.order[2]]) return std::nullopt;
    after[change.order[2]] = task.second->in_length();
  }
  change.whole = before;
  change.whole[change.gather] = after[change.gather];
  if (change.Before() != before || change.After() != after) return std::nullopt;
  task.sums = fft::OneArray<T>();
  if (a.what != What::kTransform) {
    const auto sums = MakeSums(a, task, buffers);
    if (!sums) return std::nullopt;
    task.sums = *sums;
  }
  return task;
}

// The same in three steps, with the exchange by any method.
template <typename T>
int InSteps(Communicator& comm, const Attributes& a, const Task<T>& task, const Operand& x,
            const ffi::AnyBuffer& y, Element element, ffi::ThreadPool& pool) {
  const Change& change = task.change;
  std::vector<std::int64_t> before(x.dimensions().begin(), x.dimensions().end());
  std::vector<std::int64_t> after(y.dimensions().begin(), y.dimensions().end());
  const std::size_t last = before.size() - 1;
  std::int64_t leaving = change.batch;
  std::int64_t arriving = change.batch;
  for (const std::int64_t extent : change.Before()) leaving *= extent;
  for (const std::int64_t extent : change.After()) arriving *= extent;
  const auto bytes = [](std::int64_t numbers) {
    return static_cast<std::size_t>(numbers) * 2 * sizeof(T);
  };
  // Where the result has no room for complex numbers, what arrives needs memory of its own; where
  // it lies in place of the operand, what leaves does.
  const bool has_room = y.size_bytes() >= bytes(arriving);
  const bool is_in_place = x.untyped_data() == y.untyped_data();
  const std::size_t outgoing_bytes = task.first || is_in_place ? bytes(leaving) : 0;
  const Scratch scratch(outgoing_bytes + (has_room ? 0 : bytes(arriving)));
  auto* const own = static_cast<T*>(scratch.data());
  const auto* outgoing = static_cast<const T*>(x.untyped_data());
  if (task.first) {
    before[last] = change.whole[2];
    TransformPlanes(pool, *task.first, outgoing, own,
                    before[last] > 0 ? leaving / before[last] : 0, before[last - 1]);
    outgoing = own;
  } else if (is_in_place && leaving > 0) {
    std::memcpy(own, outgoing, outgoing_bytes);
    outgoing = own;
  }
  if (task.second) after[last] = task.second->in_length();
  auto* const result = static_cast<T*>(y.untyped_data());
  T* const incoming = has_room ? result : own + outgoing_bytes / sizeof(T);
  const auto lead = static_cast<std::int64_t>(last) - 2;
  const Transposition boxes(comm, Dimensions(before.data(), before.size()),
                            Dimensions(after.data(), after.size()), a.order, lead + a.scatter,
                            lead + a.gather);
  const int code = Redistribute(pool, comm, a.method, outgoing, incoming, boxes, element);
  if (code == 0 && task.second) {
    TransformPlanes(pool, *task.second, incoming, result,
                    after[last] > 0 ? arriving / after[last] : 0, after[last - 1]);
  }
  return code;
}

// What a window would hold goes by messages, or by MPI's alltoall.
template <typename T>
int ParcelsInSteps(ffi::ThreadPool& pool, Communicator& comm, Method method, const Task<T>& task,
                   const Passage<T>& passage, const Buffers& buffers) {
  const auto arrays = static_cast<int>(task.sums.leaving.size());
  const fft::ParcelBoxes<T> boxes(passage.parcels(), arrays, comm.size, comm.rank);
  const std::int64_t own = passage.parcels().OwnBytes();
  const Scratch scratch(
      static_cast<std::size_t>(arrays * (own + boxes.outgoing() + boxes.incoming())));
  // Numbers that are not coded come first, as they have to be aligned.
  char* const staying = static_cast<char*>(scratch.data());
  char* const outgoing = staying + arrays * own;
  char* const incoming = outgoing + arrays * boxes.outgoing();
  std::vector<Ends> ends(arrays);
  for (int i = 0; i < arrays; ++i) {
    for (int rank = 0; rank < comm.size; ++rank) {
      char* const stays = staying + i * own;
      const bool is_own = rank == comm.rank;
      ends[i].to.push_back(is_own ? stays : outgoing + i * boxes.outgoing() + boxes.PlaceTo(rank));
      ends[i].from.push_back(is_own ? stays
                                    : incoming + i * boxes.incoming() + boxes.PlaceFrom(rank));
    }
  }
  const typename Passage<T>::AllEnds all{ends};
  const fft::Some everything{{0}, 0};
  passage.Leave(buffers.From<T>(), all, everything, {});
  const std::int64_t most = arrays * passage.parcels().MostBytesOfOne();
  const int code =
      method == Method::kAlltoall
          ? AlltoallBoxes(comm, outgoing, incoming, boxes, most, Element::kU8)
          : StreamBoxes(pool, comm, outgoing, incoming, boxes, Element::kU8, Arrival::kStore);
  if (code == 0) passage.Fetch(all, buffers.To<T>(), everything, {});
  return code;
}

template <typename T>
int InOnePass(const Task<T>& task, const Passage<T>& passage, const Buffers& buffers,
              Meeting<T>& meeting) {
  if (const int code = meeting.Begin()) return code;
  const std::size_t arrays = task.sums.leaving.size();
  std::int64_t own = 0;
  for (int piece = 0; piece < passage.pieces().count(); ++piece) {
    own += passage.parcels(piece).OwnBytes();
  }
  const Scratch scratch(arrays * static_cast<std::size_t>(own));
  auto* stays = static_cast<char*>(scratch.data());
  typename Passage<T>::AllEnds ends(passage.pieces().count(), std::vector<Ends>(arrays));
  for (int piece = 0; piece < passage.pieces().count(); ++piece) {
    for (std::size_t i = 0; i < arrays; ++i) {
      for (int rank = 0; rank < task.change.ranks; ++rank) {
        const bool is_own = rank == task.change.rank;
        ends[piece][i].to.push_back(is_own ? stays : meeting.To(rank, piece, i));
        ends[piece][i].from.push_back(is_own ? stays : meeting.From(rank, piece, i));
      }
      stays += passage.parcels(piece).OwnBytes();
    }
  }
  const auto between = meeting.Between();
  const std::vector<const T*> x = buffers.From<T>();
  for (const fft::Some& some : passage.pieces().LeftTogether()) {
    passage.Leave(x, ends, some, between);
    if (const int code = meeting.Leave(some.last)) return code;
  }
  const std::vector<T*> y = buffers.To<T>();
  for (const fft::Some& some : passage.pieces().FetchedTogether()) {
    if (const int code = meeting.Wait(some.last)) return code;
    passage.Fetch(ends, y, some, between);
  }
  return 0;
}

// In one pass where the ranks of a node have the memory for that, and says so.
template <typename T>
int ExchangeOnNode(Communicator& comm, const Task<T>& task, const Passage<T>& passage,
                   const Buffers& buffers, bool* is_done) {
  Window* window = nullptr;
  const int code = WindowOf(comm, passage.arrays() * passage.parcels().MostBytes(), &window);
  *is_done = window != nullptr;
  if (code != 0 || !window) return code;
  fft::OnNode<T> meeting(comm, *window, passage.parcels());
  return InOnePass(task, passage, buffers, meeting);
}

// The same on several nodes. Large exchanges go in pieces, one of which is cut again into parts;
// some are on their way while others are transformed.
template <typename T>
int ExchangeByNodes(Communicator& comm, const Task<T>& task, const Passage<T>& whole,
                    const Buffers& buffers, ffi::ThreadPool& pool, bool* is_done) {
  const Nodes& nodes = NodesOf(comm);
  const std::int64_t message = nodes.MostRanks() * fft::MovedBy(whole)[0].volume.Most(comm.size);
  const fft::Cuts cuts = whole.pieces().CutsOf(message, GetOptions().least_piece);
  std::optional<Passage<T>> cut;
  if (cuts.pieces * cuts.parts > 1) {
    cut.emplace(task.change, task.first, task.second, task.sums, pool, cuts);
  }
  const Passage<T>& passage = cut ? *cut : whole;
  const NodeExchange::Pieces moved = fft::MovedBy(passage);
  Window* window = nullptr;
  const int code = WindowOnNode(comm, NodeExchange::WindowBytes(nodes, moved), &window);
  *is_done = window != nullptr;
  if (code != 0 || !window) return code;
  fft::ByNodes<T> meeting(comm, *window, moved, passage);
  return InOnePass(task, passage, buffers, meeting);
}

template <typename T>
int Exchange(Communicator& comm, const Attributes& a, const Task<T>& task,
             const Passage<T>& passage, const Buffers& buffers, Element element,
             ffi::ThreadPool& pool) {
  const bool is_possible = passage.IsPossible();
  // Several arrays, and coded numbers, are only ever parcels; SHARED is not slower for that.
  const bool is_simple = task.sums.leaving.size() == 1 && a.precision == Precision::kFull;
  if (!is_possible && !is_simple) throw std::runtime_error("no way to do this in one pass");
  const bool wants_memory = a.method == Method::kFused || a.method == Method::kHierarchical ||
                            (a.method == Method::kShared && !is_simple);
  if (is_possible && (wants_memory || a.method == Method::kAutomatic)) {
    bool is_done = false;
    const int code = task.change.nodes.empty()
                         ? ExchangeOnNode(comm, task, passage, buffers, &is_done)
                         : ExchangeByNodes(comm, task, passage, buffers, pool, &is_done);
    if (code != 0 || is_done) return code;
  }
  if (is_simple) return InSteps(comm, a, task, buffers.x[0], buffers.y[0], element, pool);
  if (wants_memory) return kNotShared;
  Change change = task.change;
  change.has_gaps = a.precision == Precision::kFull;
  const Passage<T> in_steps(change, task.first, task.second, task.sums, pool);
  return ParcelsInSteps(pool, comm, a.method, task, in_steps, buffers);
}

template <typename T>
ffi::Error Transformed(const CallSite& site, const Attributes& a, ffi::ThreadPool& pool,
                       const Buffers& buffers) {
  const Element element = sizeof(T) == sizeof(float) ? Element::kC64 : Element::kC128;
  const Dimensions x = buffers.of_x();
  const Dimensions y = buffers.of_y();
  // The ranks of the row hold this together; it is the same on all of them.
  std::vector<std::int64_t> shape(x.begin(), x.end());
  const std::size_t gathered = x.size() - 3 + static_cast<std::size_t>(a.gather);
  for (std::size_t d = 0; d < std::min(y.size(), a.order.size()); ++d) {
    const bool is_gathered = a.order[d] == static_cast<std::int64_t>(gathered);
    if (is_gathered && gathered < shape.size()) shape[gathered] = y[d];
  }
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) count *= extent;
  Parameters parameters(GetOptions().check);
  parameters.Add("first", a.first).Add("second", a.second).Add("order", a.order);
  parameters.Add("split axis", a.scatter).Add("gathered axis", a.gather).Add("along", a.along);
  parameters.Add("method", static_cast<std::int64_t>(a.method)).Add("shape", shape);
  parameters.Add("precision", static_cast<std::int64_t>(a.precision));
  parameters.Add("what", static_cast<std::int64_t>(a.what));
  std::array<std::int64_t, 2> scales{};
  std::memcpy(scales.data(), a.scales.begin(),
              std::min(sizeof scales, a.scales.size() * sizeof(double)));
  parameters.Add("bits of scales", scales);
  const Payload payload{element, count, parameters.words(), parameters.hash()};
  return Run(site, payload, [&](Communicator& comm) {
    comm.given_bytes = buffers.BytesOfX();
    auto task = MakeTask<T>(a, comm.size, comm.rank, buffers);
    if (!task) throw std::runtime_error(kOtherShapes);
    task->change.precision = a.precision;
    if (GoesByNodes(comm, a.method)) task->change.nodes = NodesOf(comm).of();
    const Passage<T> passage(task->change, task->first, task->second, task->sums, pool);
    return Exchange(comm, a, *task, passage, buffers, element, pool);
  });
}

template <typename T>
ffi::Error Transformed(const Attributes& a, ffi::ThreadPool& pool, const Buffers& buffers) {
  const Timed timed(Operation::kFftAlone, buffers.BytesOfX());
  const auto task = MakeTask<T>(a, 1, 0, buffers);
  if (!task) return Invalid("fft of buffers that do not fit");
  const Passage<T> passage(task->change, task->first, task->second, task->sums, pool);
  if (!passage.IsPossible()) return Invalid("fft without a way to do it");
  Meeting<T> nobody;
  InOnePass(*task, passage, buffers, nobody);
  return ffi::Error::Success();
}

// An array and its transform; or what GradientOf and DivergenceOf take, then k0, k1 and k2, and
// what they make. The token is the last on both sides.
std::optional<Buffers> BuffersIn(What what, const ffi::RemainingArgs& arguments,
                                 const ffi::RemainingRets& results, std::size_t tokens) {
  const std::size_t arrays = what == What::kDivergence ? 3 : 1;
  const std::size_t operands = arrays + (what == What::kTransform ? 0 : 3);
  const std::size_t made = what == What::kGradient ? 3 : 1;
  if (arguments.size() != operands + tokens || results.size() != made + tokens) {
    return std::nullopt;
  }
  Buffers buffers;
  for (std::size_t i = 0; i < operands; ++i) {
    const auto operand = arguments.get<Operand>(i);
    if (!operand) return std::nullopt;
    (i < arrays ? buffers.x : buffers.k).push_back(*operand);
  }
  for (std::size_t i = 0; i < made; ++i) {
    auto result = results.get<ffi::AnyBuffer>(i);
    if (!result) return std::nullopt;
    buffers.y.push_back(**result);
  }
  return buffers;
}

// Goes between ranks for calls with a site; on one rank there is no communication, and no order of
// execution. Each name has a function of its own, so that errors carry that name.
template <What kWhat, typename... Site>
struct Fused {
  static ffi::Error Run(const Site&... site, Dimensions first, Dimensions second,
                        ffi::Span<const double> scales, Dimensions order, std::int64_t scatter,
                        std::int64_t gather, Dimensions along, std::int64_t method,
                        std::int64_t precision, std::int64_t what, ffi::ThreadPool pool,
                        ffi::RemainingArgs arguments, ffi::RemainingRets results) {
    if (static_cast<What>(what) != kWhat) return Invalid("a transform by the name of another");
    const Attributes a{first,
                       second,
                       scales,
                       order,
                       scatter,
                       gather,
                       along,
                       static_cast<Method>(method),
                       static_cast<Precision>(precision),
                       kWhat};
    const auto buffers = BuffersIn(a.what, arguments, results, sizeof...(Site));
    if (!buffers) return Invalid("fft of arrays that it has not");
    for (const ffi::AnyBuffer& y : buffers->y) PrepareToWrite(y.untyped_data(), y.size_bytes());
    return IsDouble(buffers->x[0]) ? Transformed<double>(site..., a, pool, *buffers)
                                   : Transformed<float>(site..., a, pool, *buffers);
  }
};

template <What kWhat>
Registration Across(const char* name) {
  return HandlerAtSite<Operation::kFft, Fused<kWhat, CallSite>::Run>(
             name, "first", "second", "scales", "order", "scatter", "gather", "along", "method",
             "precision", "what")
      .OnHost();
}
template <What kWhat>
Registration Alone(const char* name) {
  return Handler<Fused<kWhat>::Run>(name, "first", "second", "scales", "order", "scatter",
                                    "gather", "along", "method", "precision", "what")
      .OnHost();
}

}  // namespace

std::vector<Registration> FusedHandlers() {
  return {Across<What::kTransform>("pfftjax_fft_across"),
          Alone<What::kTransform>("pfftjax_fft_alone"),
          Across<What::kGradient>("pfftjax_gradient_across"),
          Alone<What::kGradient>("pfftjax_gradient_alone"),
          Across<What::kDivergence>("pfftjax_divergence_across"),
          Alone<What::kDivergence>("pfftjax_divergence_alone")};
}

}  // namespace pfftjax
