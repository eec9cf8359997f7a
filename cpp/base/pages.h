// Huge pages.
#pragma once

#include <cstddef>

namespace pfftjax {

// Asks for huge pages under a large result that nobody has touched yet: XLA's buffers are freshly
// mapped, and 4 KiB pages cost a large exchange more than the exchange itself.
void AdviseHugePages(void* data, std::size_t bytes);

}  // namespace pfftjax
