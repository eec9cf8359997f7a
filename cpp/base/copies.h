// Copies, through the cache or past it.
#pragma once

#if defined(__x86_64__)
#include <emmintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
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

namespace past_cache {

constexpr std::size_t kLine = 64;

#if defined(__x86_64__)
inline void CopyLine(char* to, const char* from) {
  const auto* source = reinterpret_cast<const __m128i*>(from);
  auto* target = reinterpret_cast<__m128i*>(to);
  const __m128i a = _mm_loadu_si128(source);
  const __m128i b = _mm_loadu_si128(source + 1);
  const __m128i c = _mm_loadu_si128(source + 2);
  const __m128i d = _mm_loadu_si128(source + 3);
  _mm_stream_si128(target, a);
  _mm_stream_si128(target + 1, b);
  _mm_stream_si128(target + 2, c);
  _mm_stream_si128(target + 3, d);
}
#elif defined(__aarch64__)
// For the memory model these are stores like all others: only the cache is told otherwise.
inline void CopyLine(char* to, const char* from) {
  const auto* source = reinterpret_cast<const std::uint8_t*>(from);
  const uint8x16_t a = vld1q_u8(source);
  const uint8x16_t b = vld1q_u8(source + 16);
  const uint8x16_t c = vld1q_u8(source + 32);
  const uint8x16_t d = vld1q_u8(source + 48);
  asm volatile(
      "stnp %q1, %q2, [%0]\n\t"
      "stnp %q3, %q4, [%0, #32]"
      :
      : "r"(to), "w"(a), "w"(b), "w"(c), "w"(d)
      : "memory");
}
#else
inline void CopyLine(char* to, const char* from) { std::memcpy(to, from, kLine); }
#endif

}  // namespace past_cache

// The same without reading what is overwritten, and without a place in the cache for it. Nobody
// else may read it before Drain.
inline void CopyUndrained(char* to, const char* from, std::size_t bytes) {
  constexpr std::size_t line = past_cache::kLine;
  const std::size_t misaligned = reinterpret_cast<std::uintptr_t>(to) % line;
  std::size_t done = misaligned == 0 ? 0 : std::min(bytes, line - misaligned);
  std::memcpy(to, from, done);
  for (; done + line <= bytes; done += line) past_cache::CopyLine(to + done, from + done);
  std::memcpy(to + done, from + done, bytes - done);
}

// On x86 a release does not order such stores.
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
