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

// The attributes that every operation carries, in the order of CallSite.
template <typename Binding>
auto BindSite(Binding binding) {
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
