// A transform, a change of pencil and another transform, as FFI handlers.
#include <cstring>

#include "../agreement.h"
#include "../handlers.h"
#include "../scratch.h"
#include "../transposition.h"
#include "../window.h"
#include "passage.h"

namespace pfftjax {
namespace {

using fft::Change;
using fft::Ends;
using fft::Kind;
using fft::MaybeFft;
using fft::Parcel;
using fft::Passage;
using fft::PlaneFft;
using fft::Three;

constexpr std::int64_t kNothing = -1;  // in place of a kind

// What the program says about the transforms and the change between them.
struct Attributes {
  ffi::Span<const std::int64_t> first;   // kind or kNothing, axes, length
  ffi::Span<const std::int64_t> second;  // the same
  ffi::Span<const double> scales;
  ffi::Span<const std::int64_t> order;  // with the batch
  std::int64_t scatter;                 // without
  std::int64_t gather;
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
};

// Nothing if the buffers are not those of this rank's blocks.
template <typename T>
std::optional<Task<T>> MakeTask(const Attributes& a, int ranks, int rank, Dimensions x,
                                Dimensions y) {
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
  // What travels, seen from both ends.
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
  return task;
}

// On more than one node: the same in three steps, by messages.
template <typename T>
int ByMessages(const Communicator& comm, const Attributes& a, const Task<T>& task,
               const Operand& x, Result& y, Element element, ffi::ThreadPool& pool) {
  const Change& change = task.change;
  const auto planes = [&](const PlaneFft<T>& transform, const T* from, T* to, std::int64_t rows,
                          std::int64_t lines) {
    const std::int64_t tile = transform.both_axes() ? rows : 4 * transform.width();
    if (tile == 0) return;
    ForEachTask(pool, (lines + tile - 1) / tile, pool.num_threads() - 1,
                [=, &transform](std::int64_t task_number) {
                  const std::int64_t line = task_number * tile;
                  transform.Run(from + line * transform.in_numbers(),
                                to + line * transform.out_numbers(), std::min(tile, lines - line));
                });
  };
  std::vector<std::int64_t> before(x.dimensions().begin(), x.dimensions().end());
  std::vector<std::int64_t> after(y->dimensions().begin(), y->dimensions().end());
  const std::size_t last = before.size() - 1;
  std::int64_t leaving = change.batch;
  std::int64_t arriving = change.batch;
  for (const std::int64_t extent : change.Before()) leaving *= extent;
  for (const std::int64_t extent : change.After()) arriving *= extent;
  const auto bytes = [](std::int64_t numbers) {
    return static_cast<std::size_t>(numbers) * 2 * sizeof(T);
  };
  // Where the result has no room for complex numbers, what arrives needs memory of its own.
  const bool has_room = y->size_bytes() >= bytes(arriving);
  const Scratch scratch((task.first ? bytes(leaving) : 0) + (has_room ? 0 : bytes(arriving)));
  auto* const own = static_cast<T*>(scratch.data());
  const auto* outgoing = static_cast<const T*>(x.untyped_data());
  if (task.first) {
    before[last] = change.whole[2];
    planes(*task.first, outgoing, own, before[last - 1],
           before[last] > 0 ? leaving / before[last] : 0);
    outgoing = own;
  }
  if (task.second) after[last] = task.second->in_length();
  auto* const result = static_cast<T*>(y->untyped_data());
  T* const incoming = has_room ? result : own + (task.first ? 2 * leaving : 0);
  const auto lead = static_cast<std::int64_t>(last) - 2;
  const Transposition boxes(comm, Dimensions(before.data(), before.size()),
                            Dimensions(after.data(), after.size()), a.order, lead + a.scatter,
                            lead + a.gather);
  const int code = StreamBoxes(comm, outgoing, incoming, boxes, element, Arrival::kStore);
  if (code == 0 && task.second) {
    planes(*task.second, incoming, result, after[last - 1],
           after[last] > 0 ? arriving / after[last] : 0);
  }
  return code;
}

template <typename T>
int OnNode(Communicator& comm, const Task<T>& task, const Passage<T>& passage, Window* window,
           std::uint64_t about, const void* x, void* y) {
  std::optional<Window::Round> round;
  if (window) {
    round.emplace(*window, comm);
    if (const int code = round->Begin()) return code;
  }
  const Scratch scratch(passage.parcels().OwnBytes());
  Ends<T> ends;
  for (int rank = 0; rank < task.change.ranks; ++rank) {
    const auto part = [&](int of, const Parcel& parcel) {
      char* base =
          rank == task.change.rank ? static_cast<char*>(scratch.data()) : window->PartOf(of);
      return reinterpret_cast<T*>(base) + 2 * parcel.offset;
    };
    ends.to.push_back(part(task.change.rank, passage.parcels().To(rank)));
    ends.from.push_back(part(rank, passage.parcels().From(rank)));
  }
  passage.Leave(static_cast<const T*>(x), ends);
  if (round) {
    round->Publish(about);
    if (const int code = round->WaitForAll(about)) return code;
  }
  passage.Fetch(ends, static_cast<T*>(y));
  return 0;
}

std::uint64_t About(const Attributes& a, const Change& change, Element element) {
  std::vector<std::int64_t> words(a.first.begin(), a.first.end());
  words.insert(words.end(), a.second.begin(), a.second.end());
  words.insert(words.end(), change.order.begin(), change.order.end());
  words.insert(words.end(), change.whole.begin(), change.whole.end());
  words.insert(words.end(), {a.scatter, a.gather, change.batch, static_cast<int>(element)});
  for (const double scale : a.scales) {
    std::memcpy(&words.emplace_back(), &scale, sizeof scale);
  }
  // 0 is for a rank that has given up.
  return Hash(words.data(), words.size() * sizeof(std::int64_t)) | 1;
}

bool IsDouble(const Operand& x) {
  return x.element_type() == ffi::DataType::F64 || x.element_type() == ffi::DataType::C128;
}

template <typename T>
ffi::Error Exchanged(const CallSite& site, const Attributes& a, ffi::ThreadPool& pool,
                     const Operand& x, Result& y) {
  const Element element = sizeof(T) == sizeof(float) ? Element::kC64 : Element::kC128;
  // The same on all ranks of the row: what it holds together.
  std::int64_t count = 1;
  const std::size_t lead = x.dimensions().size() - 3;
  for (std::size_t d = 0; d < x.dimensions().size(); ++d) {
    const bool is_gathered = d == lead + static_cast<std::size_t>(a.gather);
    count *= is_gathered ? 1 : x.dimensions()[d];
  }
  return Run(site, Payload{element, count}, [&](Communicator& comm) {
    const auto task = MakeTask<T>(a, comm.size, comm.rank, x.dimensions(), y->dimensions());
    if (!task) {
      return Failed(site.operation, comm,
                    "the buffers do not have the shapes of this rank's blocks");
    }
    const Passage<T> passage(task->change, task->first, task->second, pool);
    Window* const window =
        passage.IsPossible() ? WindowOf(comm, passage.parcels().MostBytes()) : nullptr;
    const int code = window ? OnNode(comm, *task, passage, window, About(a, task->change, element),
                                     x.untyped_data(), y->untyped_data())
                            : ByMessages(comm, a, *task, x, y, element, pool);
    return code == 0 ? ffi::Error::Success()
                     : MpiFailed(site.operation, comm, element, count, code);
  });
}

ffi::Error FftAcross(std::int64_t number, std::int64_t ranks, std::int64_t signature,
                     std::string_view program, ffi::Span<const std::int64_t> first,
                     ffi::Span<const std::int64_t> second, ffi::Span<const double> scales,
                     Dimensions order, std::int64_t scatter, std::int64_t gather,
                     ffi::ThreadPool pool, Operand x, Token, Result y, TokenResult) {
  const CallSite site{Operation::kFft, number, ranks, signature, program};
  const Attributes attributes{first, second, scales, order, scatter, gather};
  AdviseHugePages(y->untyped_data(), y->size_bytes());
  return IsDouble(x) ? Exchanged<double>(site, attributes, pool, x, y)
                     : Exchanged<float>(site, attributes, pool, x, y);
}

template <typename T>
ffi::Error Alone(const Attributes& a, ffi::ThreadPool& pool, const Operand& x, Result& y) {
  Communicator alone;
  const auto task = MakeTask<T>(a, 1, 0, x.dimensions(), y->dimensions());
  if (!task) {
    return ffi::Error(ffi::ErrorCode::kInvalidArgument, "pfftjax: fft of buffers that do not fit");
  }
  const Passage<T> passage(task->change, task->first, task->second, pool);
  if (!passage.IsPossible()) {
    return ffi::Error(ffi::ErrorCode::kInvalidArgument, "pfftjax: fft without a way to do it");
  }
  OnNode(alone, *task, passage, nullptr, 0, x.untyped_data(), y->untyped_data());
  return ffi::Error::Success();
}

// The same on one rank: no communication, and no order of execution.
ffi::Error FftAlone(ffi::Span<const std::int64_t> first, ffi::Span<const std::int64_t> second,
                    ffi::Span<const double> scales, Dimensions order, std::int64_t scatter,
                    std::int64_t gather, ffi::ThreadPool pool, Operand x, Result y) {
  const Attributes attributes{first, second, scales, order, scatter, gather};
  AdviseHugePages(y->untyped_data(), y->size_bytes());
  return IsDouble(x) ? Alone<double>(attributes, pool, x, y)
                     : Alone<float>(attributes, pool, x, y);
}

template <typename Binding>
auto BindAttributes(Binding binding) {
  return std::move(binding)
      .template Attr<ffi::Span<const std::int64_t>>("first")
      .template Attr<ffi::Span<const std::int64_t>>("second")
      .template Attr<ffi::Span<const double>>("scales")
      .template Attr<Dimensions>("order")
      .template Attr<std::int64_t>("scatter")
      .template Attr<std::int64_t>("gather")
      .template Ctx<ffi::ThreadPool>();
}

XLA_FFI_DEFINE_HANDLER(kFftAcross, FftAcross,
                       BindAttributes(BindSite(ffi::Ffi::Bind()))
                           .Arg<ffi::AnyBuffer>()
                           .Arg<ffi::Token>()
                           .Ret<ffi::AnyBuffer>()
                           .Ret<ffi::Token>());
XLA_FFI_DEFINE_HANDLER(
    kFftAlone, FftAlone,
    BindAttributes(ffi::Ffi::Bind()).Arg<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>());

}  // namespace

std::vector<Registration> FusedHandlers() {
  return {{"pfftjax_fft_across", reinterpret_cast<void*>(kFftAcross)},
          {"pfftjax_fft_alone", reinterpret_cast<void*>(kFftAlone)}};
}

}  // namespace pfftjax
