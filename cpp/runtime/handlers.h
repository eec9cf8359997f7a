// The files of handlers share this: decoding of operands, handlers as XLA calls them, and the list
// of what they register.
#pragma once

#include <exception>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "runtime/call.h"
#include "runtime/errors.h"

namespace pfftjax {

// The handlers by the names that pfftjax lowers to. module.cc registers them.
struct Registration {
  const char* name;
  void* handler;           // for memory of the host; null where only the device's is registered
  void* device = nullptr;  // for memory of a GPU; null where there is none
};

// Runs a handler for memory of the host on arrays of a GPU. gpu/staged.cc puts it here.
using StagedRun = XLA_FFI_Error* (*)(XLA_FFI_Handler* host, const char* operation,
                                     XLA_FFI_CallFrame* frame);
inline StagedRun run_staged = nullptr;

std::vector<Registration> CollectiveHandlers();
std::vector<Registration> MessageHandlers();
std::vector<Registration> SameHandlers();
std::vector<Registration> ScanHandlers();
std::vector<Registration> SplitHandlers();
std::vector<Registration> RowHandlers();
std::vector<Registration> PencilHandlers();
std::vector<Registration> FftHandlers();
std::vector<Registration> FusedHandlers();
std::vector<Registration> OwnerHandlers();
std::vector<Registration> RouteHandlers();
std::vector<Registration> PaintingHandlers();
std::vector<Registration> LightHandlers();
std::vector<Registration> NufftHandlers();

// Those for arrays on GPUs that do not go by way of the host's (gpu/staged.cc): they take the
// place of these.
namespace gpu {
std::vector<Registration> CollectiveHandlers();
std::vector<Registration> PaintingHandlers();
std::vector<Registration> PencilHandlers();
std::vector<Registration> RowHandlers();
}  // namespace gpu

using Operand = ffi::AnyBuffer;
using Result = ffi::Result<ffi::AnyBuffer>;
using Token = ffi::Token;
using TokenResult = ffi::Result<ffi::Token>;

inline std::int64_t CountOf(const Operand& x) {
  return static_cast<std::int64_t>(x.element_count());
}
inline std::int64_t BytesOf(const Operand& x) { return static_cast<std::int64_t>(x.size_bytes()); }
inline bool IsDouble(const Operand& x) {
  return x.element_type() == ffi::DataType::F64 || x.element_type() == ffi::DataType::C128;
}
// The number of elements in a row of an array whose rows are along the first `axes`.
inline std::int64_t WidthOf(const Operand& x, std::size_t axes) {
  std::int64_t width = 1;
  for (std::size_t i = axes; i < x.dimensions().size(); ++i) width *= x.dimensions()[i];
  return width;
}

// Throws std::runtime_error for a type that cannot be sent; Python refuses those when it traces.
Element ElementOf(ffi::DataType type);

// Registers the user's MPI_Status at `address`, which stays; its number.
std::int64_t AddStatus(void* address);

// An error of an operation that has thrown. One without a call site has no communicator: its rank
// is the one in MPI_COMM_WORLD.
inline ffi::Error Thrown(const char* operation, const std::exception& error) {
  const Communicator* world = FindCommunicator(0);
  return ffi::Error(ffi::ErrorCode::kInternal, "pfftjax: " + std::string(operation) + " failed" +
                                                   (world ? " on " + world->Where() : "") + ": " +
                                                   error.what());
}

// An error of a call that Python would not have made.
inline ffi::Error Invalid(const std::string& why) {
  return ffi::Error::InvalidArgument("pfftjax: " + why);
}

// Runs `body(communicator, element)`, as Run of call.h does. `x` is what all ranks have alike, and
// so is what `detail` and `parameters` stand for (Payload).
template <typename Body>
ffi::Error RunOn(const CallSite& site, const Operand& x, std::string detail,
                 std::uint64_t parameters, Body&& body) {
  const Element element = ElementOf(x.element_type());
  return Run(site, Payload{element, CountOf(x), std::move(detail), parameters},
             [&](Communicator& comm) { return body(comm, element); });
}

// ---- Handlers from functions: the parameters say what XLA is to pass ---------------------------

template <typename...>
struct Types {};

template <typename T>
inline constexpr bool kIsAttribute =
    std::is_arithmetic_v<T> || std::is_same_v<T, std::string_view>;
template <typename T>
inline constexpr bool kIsAttribute<ffi::Span<T>> = true;

template <typename T>
inline constexpr bool kIsOperand = false;
template <>
inline constexpr bool kIsOperand<ffi::AnyBuffer> = true;
template <>
inline constexpr bool kIsOperand<ffi::Token> = true;
template <ffi::DataType type, std::size_t rank>
inline constexpr bool kIsOperand<ffi::Buffer<type, rank>> = true;

template <typename T>
struct Returned : std::false_type {};
template <typename T>
struct Returned<ffi::Result<T>> : std::true_type {
  using Type = T;
};

// Binds `function`, of whose parameters `binding` has all but the last ones, `Rest`. Attributes
// have the names that follow in `names`; what is neither attribute nor buffer is asked of XLA's
// context, as its threads or its stream.
template <typename Function, typename Binding>
auto Bind(Function* function, const char* const*, Types<>, Binding&& binding) {
  return std::move(binding).To(function);
}
template <typename Function, typename First, typename... Rest, typename Binding>
auto Bind(Function* function, const char* const* names, Types<First, Rest...>, Binding&& binding) {
  const Types<Rest...> rest;
  if constexpr (kIsAttribute<First>) {
    return Bind(function, names + 1, rest, std::move(binding).template Attr<First>(*names));
  } else if constexpr (kIsOperand<First>) {
    return Bind(function, names, rest, std::move(binding).template Arg<First>());
  } else if constexpr (Returned<First>::value) {
    using Type = typename Returned<First>::Type;
    return Bind(function, names, rest, std::move(binding).template Ret<Type>());
  } else if constexpr (std::is_same_v<First, ffi::RemainingArgs>) {
    return Bind(function, names, rest, std::move(binding).RemainingArgs());
  } else if constexpr (std::is_same_v<First, ffi::RemainingRets>) {
    return Bind(function, names, rest, std::move(binding).RemainingRets());
  } else {
    return Bind(function, names, rest, std::move(binding).template Ctx<First>());
  }
}

// XLA calls this for the function `kRun`. It is bound when it is registered, and stays.
template <auto kRun>
class Handler;
template <typename... Parameters, ffi::Error (*kRun)(Parameters...)>
class Handler<kRun> {
 public:
  template <typename... Names>
  Handler(const char* name, Names... attributes) : name_(name) {
    static_assert(sizeof...(Names) == (std::size_t{kIsAttribute<Parameters>} + ... + 0),
                  "each attribute has a name");
    if (bound) return;  // A function that is registered by several names goes by the first one.
    constexpr std::size_t prefix = sizeof("pfftjax_") - 1;
    operation = name + prefix;
    const char* const names[] = {attributes..., nullptr};
    bound = Bind(&Run, names, Types<Parameters...>{}, ffi::Ffi::Bind()).release();
  }

  Registration OnHost() const { return {name_, reinterpret_cast<void*>(&Call)}; }
  Registration OnDevice() const { return {name_, nullptr, reinterpret_cast<void*>(&Call)}; }
  // Serves CPUs, and GPUs by way of the host.
  Registration WithStaging() const {
    return {name_, reinterpret_cast<void*>(&Call), reinterpret_cast<void*>(&CallStaged)};
  }

 private:
  // Nothing is thrown through XLA, which would not say what has failed, and on which rank.
  static ffi::Error Run(Parameters... parameters) {
    try {
      return kRun(std::forward<Parameters>(parameters)...);
    } catch (const std::exception& error) {  // no memory, no thread, or a type that cannot be sent
      return Thrown(operation, error);
    }
  }
  static XLA_FFI_Error* Call(XLA_FFI_CallFrame* frame) { return bound->Call(frame); }
  static XLA_FFI_Error* CallStaged(XLA_FFI_CallFrame* frame) {
    return run_staged(&Call, operation, frame);
  }

  static inline const ffi::Ffi* bound = nullptr;
  static inline const char* operation = "";
  const char* name_;
};

// The same for a function that takes the site of its call first: four attributes of every
// operation, which are not among those that are named.
template <Operation kOperation, auto kRun>
struct SiteDecoded;
template <Operation kOperation, typename... Rest, ffi::Error (*kRun)(const CallSite&, Rest...)>
struct SiteDecoded<kOperation, kRun> {
  static ffi::Error Run(std::int64_t comm, std::int64_t ranks, std::int64_t signature,
                        std::string_view program, Rest... rest) {
    return kRun({kOperation, comm, ranks, signature, program}, std::move(rest)...);
  }
};
template <Operation kOperation, auto kRun, typename... Names>
auto HandlerAtSite(const char* name, Names... attributes) {
  return Handler<&SiteDecoded<kOperation, kRun>::Run>(name, "comm", "ranks", "signature",
                                                      "program", attributes...);
}
// Serves CPUs, and GPUs by way of the host.
template <Operation kOperation, auto kRun, typename... Names>
Registration SiteHandler(const char* name, Names... attributes) {
  return HandlerAtSite<kOperation, kRun>(name, attributes...).WithStaging();
}
// Serves GPUs.
template <Operation kOperation, auto kRun, typename... Names>
Registration DeviceHandler(const char* name, Names... attributes) {
  return HandlerAtSite<kOperation, kRun>(name, attributes...).OnDevice();
}

}  // namespace pfftjax
