#include "base/pages.h"

#include <malloc.h>
#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace pfftjax {

void AdviseHugePages(void* data, std::size_t bytes) {
  constexpr std::uintptr_t page = std::uintptr_t{2} << 20;
  const auto begin = (reinterpret_cast<std::uintptr_t>(data) + page - 1) / page * page;
  const auto end = (reinterpret_cast<std::uintptr_t>(data) + bytes) / page * page;
  // A kernel without huge pages refuses; nothing is lost then.
  if (end > begin) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
}

void KeepFreedMemory(int bytes) {
  const char* tunables = std::getenv("GLIBC_TUNABLES");
  if (std::getenv("MALLOC_TRIM_THRESHOLD_") || std::getenv("MALLOC_MMAP_THRESHOLD_") ||
      (tunables && std::strstr(tunables, "glibc.malloc."))) {
    return;
  }
  // By itself glibc raises the first threshold to this, but not once the second one has been set.
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, bytes);
}

}  // namespace pfftjax
