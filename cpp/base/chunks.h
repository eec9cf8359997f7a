// One MPI call may move so much; buffers go in such pieces.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/element.h"
#include "base/options.h"

namespace pfftjax {

// Returns how many elements one MPI call may move.
inline std::int64_t ChunkElements(Element element) {
  constexpr std::int64_t most = INT32_MAX;
  const std::int64_t elements = GetOptions().max_chunk_bytes / InfoOf(element).bytes;
  return std::clamp<std::int64_t>(elements, 1, most);
}

// body(offset, count) for consecutive pieces of at most `limit`; stops at the first MPI error.
template <typename Body>
int ForEachChunk(std::int64_t count, std::int64_t limit, Body&& body) {
  for (std::int64_t offset = 0; offset < count; offset += limit) {
    if (const int code = body(offset, std::min(limit, count - offset))) return code;
  }
  return 0;
}

inline const char* At(const void* base, std::int64_t elements, Element element) {
  return static_cast<const char*>(base) + elements * InfoOf(element).bytes;
}
inline char* At(void* base, std::int64_t elements, Element element) {
  return static_cast<char*>(base) + elements * InfoOf(element).bytes;
}

// A run of elements inside a buffer.
struct Block {
  std::int64_t offset = 0;
  std::int64_t count = 0;
};

}  // namespace pfftjax
