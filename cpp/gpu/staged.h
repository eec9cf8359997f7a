// Any operation for arrays on a GPU, by its handler for arrays on CPUs: its operands are copied to
// pinned memory of the host, and its results back. Nothing is known of the operation, so all of
// them are there at once; those that move most have handlers of their own (collectives.cc,
// pencils.cc, rows.cc in this folder). Not for handlers that want more of XLA than buffers.
#pragma once

#include "../handlers.h"

namespace pfftjax {

namespace gpu {

// `name` is that of the operation.
XLA_FFI_Error* CallStaged(XLA_FFI_Handler* host, const char* name, XLA_FFI_CallFrame* frame);

template <XLA_FFI_Handler* kHost>
struct Staged {
  static inline const char* name = "";
  static XLA_FFI_Error* Call(XLA_FFI_CallFrame* frame) { return CallStaged(kHost, name, frame); }
};

}  // namespace gpu

// The registration of a handler for CPUs, which serves GPUs by way of the host.
template <XLA_FFI_Handler* kHost>
Registration WithStaging(const char* name) {
  constexpr std::size_t prefix = sizeof("pfftjax_") - 1;
  gpu::Staged<kHost>::name = name + prefix;
  return {name, reinterpret_cast<void*>(kHost),
          reinterpret_cast<void*>(&gpu::Staged<kHost>::Call)};
}

}  // namespace pfftjax
