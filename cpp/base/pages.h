// Pages of memory: huge ones, and those that stay with the process.
#pragma once

#include <cstddef>

namespace pfftjax {

// The largest pages that a kernel for this processor may have, but for huge ones: on Arm
// distributions build it for 4 or for 64 KiB. Memory that lies near a rank begins on such a page.
#if defined(__aarch64__)
inline constexpr std::size_t kPage = std::size_t{64} << 10;
#else
inline constexpr std::size_t kPage = std::size_t{4} << 10;
#endif

// Asks for huge pages under a large result that nobody has touched yet: XLA's buffers are freshly
// mapped, and 4 KiB pages cost a large exchange more than the exchange itself.
void AdviseHugePages(void* data, std::size_t bytes);

// Lets malloc keep up to so many freed bytes at the end of its heap, and put arrays of up to
// 32 MiB there. XLA frees what a program used when it ends: without this the pages go back to the
// kernel, which clears them again for the next call. What the environment says of malloc stays,
// and so does another malloc than glibc's.
void KeepFreedMemory(int bytes);

}  // namespace pfftjax
