// What the files of handlers share: decoding of operands, and the list of what they register.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/call.h"
#include "runtime/errors.h"

namespace pfftjax {

// The handlers by the names that pfftjax lowers to. module.cc registers them.
struct Registration {
  const char* name;
  void* handler;           // for memory of the host
  void* device = nullptr;  // for memory of a GPU; null where there is none
};

// Runs a handler for memory of the host on arrays of a GPU. gpu/staged.cc puts it here.
using StagedRun = XLA_FFI_Error* (*)(XLA_FFI_Handler* host, const char* operation,
                                     XLA_FFI_CallFrame* frame);
inline StagedRun run_staged = nullptr;

template <XLA_FFI_Handler* kHost>
struct Staged {
  static inline const char* operation = "";
  static XLA_FFI_Error* Run(XLA_FFI_CallFrame* frame) {
    return run_staged(kHost, operation, frame);
  }
};

// The registration of a handler for CPUs, which serves GPUs by way of the host.
template <XLA_FFI_Handler* kHost>
Registration WithStaging(const char* name) {
  constexpr std::size_t prefix = sizeof("pfftjax_") - 1;
  Staged<kHost>::operation = name + prefix;
  return {name, reinterpret_cast<void*>(kHost), reinterpret_cast<void*>(&Staged<kHost>::Run)};
}

std::vector<Registration> CollectiveHandlers();
std::vector<Registration> MessageHandlers();
std::vector<Registration> SameHandlers();
std::vector<Registration> ScanHandlers();
std::vector<Registration> SplitHandlers();
std::vector<Registration> ExchangeHandlers();
std::vector<Registration> PencilHandlers();
std::vector<Registration> FftHandlers();
std::vector<Registration> FusedHandlers();
std::vector<Registration> ParticleHandlers();
std::vector<Registration> PaintingHandlers();

using Operand = ffi::AnyBuffer;
using Result = ffi::Result<ffi::AnyBuffer>;
using Token = ffi::Token;
using TokenResult = ffi::Result<ffi::Token>;

// Nothing for a type that has no Element; Python refuses those when it traces.
std::optional<Element> ElementOf(ffi::DataType type);

// Registers the user's MPI_Status at `address`, which stays; its number.
std::int64_t AddStatus(void* address);

ffi::Error BadElement(Operation operation, ffi::DataType type);

// A handler's function for XLA: `kRun`, which takes the site of the call first, with the
// attributes of BindSite in the place of that.
template <Operation kOperation, auto kRun>
struct SiteDecoded;
template <Operation kOperation, typename... Rest, ffi::Error (*kRun)(const CallSite&, Rest...)>
struct SiteDecoded<kOperation, kRun> {
  static ffi::Error Run(std::int64_t comm, std::int64_t ranks, std::int64_t signature,
                        std::string_view program, Rest... rest) {
    return kRun({kOperation, comm, ranks, signature, program}, std::move(rest)...);
  }
};
template <Operation kOperation, auto kRun>
inline constexpr auto WithSite = &SiteDecoded<kOperation, kRun>::Run;

// Runs `body(communicator, element)`, as Run of call.h does. `x` is what all ranks have alike, and
// so is what `detail` and `parameters` stand for (Payload).
template <typename Body>
ffi::Error RunOn(const CallSite& site, const Operand& x, std::string detail,
                 std::uint64_t parameters, Body&& body) {
  const std::optional<Element> element = ElementOf(x.element_type());
  if (!element) return BadElement(site.operation, x.element_type());
  const auto count = static_cast<std::int64_t>(x.element_count());
  return Run(site, Payload{*element, count, std::move(detail), parameters},
             [&](Communicator& comm) { return body(comm, *element); });
}

// The attributes that every operation carries, in the order of CallSite.
template <typename Binding = decltype(ffi::Ffi::Bind())>
auto BindSite(Binding binding = ffi::Ffi::Bind()) {
  return std::move(binding)
      .template Attr<std::int64_t>("comm")
      .template Attr<std::int64_t>("ranks")
      .template Attr<std::int64_t>("signature")
      .template Attr<std::string_view>("program");
}

// After all attributes: one operand and one result, between tokens.
template <typename Binding>
auto OneToOne(Binding binding) {
  return std::move(binding)
      .template Arg<ffi::AnyBuffer>()
      .template Arg<ffi::Token>()
      .template Ret<ffi::AnyBuffer>()
      .template Ret<ffi::Token>();
}

}  // namespace pfftjax
