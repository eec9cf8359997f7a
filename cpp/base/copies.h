// Copies, through the cache or past it.
#pragma once

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace pfftjax {

// Buffers without bytes may have no address, which memset does not take.
inline void Clear(void* at, std::size_t bytes) {
  if (bytes > 0) std::memset(at, 0, bytes);
}

inline void Copy(char* to, const char* from, std::size_t bytes) { std::memcpy(to, from, bytes); }

// The same without reading what is overwritten, and without a place in the cache for it. Nobody
// else may read it before Drain.
inline void CopyUndrained(char* to, const char* from, std::size_t bytes) {
#if defined(__x86_64__)
  constexpr std::size_t line = 64;
  const std::size_t misaligned = reinterpret_cast<std::uintptr_t>(to) % line;
  std::size_t done = misaligned == 0 ? 0 : std::min(bytes, line - misaligned);
  std::memcpy(to, from, done);
  for (; done + line <= bytes; done += line) {
    const auto* source = reinterpret_cast<const __m128i*>(from + done);
    auto* target = reinterpret_cast<__m128i*>(to + done);
    const __m128i a = _mm_loadu_si128(source);
    const __m128i b = _mm_loadu_si128(source + 1);
    const __m128i c = _mm_loadu_si128(source + 2);
    const __m128i d = _mm_loadu_si128(source + 3);
    _mm_stream_si128(target, a);
    _mm_stream_si128(target + 1, b);
    _mm_stream_si128(target + 2, c);
    _mm_stream_si128(target + 3, d);
  }
  std::memcpy(to + done, from + done, bytes - done);
#else
  std::memcpy(to, from, bytes);
#endif
}

inline void Drain() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

inline void CopyPastCache(char* to, const char* from, std::size_t bytes) {
  CopyUndrained(to, from, bytes);
  Drain();
}

}  // namespace pfftjax
