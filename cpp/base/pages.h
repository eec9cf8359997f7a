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

// Prepares memory that nobody has touched yet, mostly a result's: asks for huge pages under it, as
// 4 KiB pages of buffers that are freshly mapped cost a large exchange more than the exchange
// itself; and of 2 MiB and more looks at the memory (`LookAtMemory`).
void PrepareToWrite(void* data, std::size_t bytes);

// Lets malloc keep freed memory. XLA frees what a program used when it ends: without this the
// pages go back to the kernel, which clears them again for the next call. While less than a share
// of the memory is in use (`MemoryInUse`), everything stays. Once more is, what is free goes back,
// but for so many bytes at the end of the heap: holes between arrays in use are no reason to run
// out of memory. What the environment says of malloc stays, and so does another malloc than
// glibc's.
void KeepFreedMemory(int bytes, double most_in_use);

// Looks, but not too often, how much memory is in use, and keeps or gives back what is free.
void LookAtMemory();

}  // namespace pfftjax
