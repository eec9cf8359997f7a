// A handler with a parameter of type Queue gets XLA's stream by this.
#pragma once

#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "gpu/queue.h"
#include "xla/ffi/api/ffi.h"

namespace xla::ffi {

template <>
struct CtxDecoding<pfftjax::gpu::Queue> {
  using Type = pfftjax::gpu::Queue;
  static std::optional<Type> Decode(const XLA_FFI_Api* api, XLA_FFI_ExecutionContext* ctx,
                                    DiagnosticEngine& diagnostic) {
    if (pfftjax::gpu::Device()->is_host_memory) return Type(nullptr);
    const std::optional<void*> stream =
        CtxDecoding<PlatformStream<void*>>::Decode(api, ctx, diagnostic);
    auto scratch = CtxDecoding<ScratchAllocator>::Decode(api, ctx, diagnostic);
    if (!stream || !scratch) return std::nullopt;
    // Freed in the order of the stream: XLA may hand it on before what is enqueued has run.
    auto owned = std::make_shared<ScratchAllocator>(std::move(*scratch));
    return Type(*stream, [owned](std::int64_t bytes) {
      constexpr std::size_t alignment = 16;  // the most that XLA promises
      const std::optional<void*> memory =
          owned->Allocate(static_cast<std::size_t>(bytes), alignment);
      if (!memory) {
        throw std::runtime_error("XLA has no " + std::to_string(bytes) +
                                 " bytes of the device left for what is exchanged");
      }
      return *memory;
    });
  }
};

}  // namespace xla::ffi
