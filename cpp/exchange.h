// Blocks between all pairs of ranks, of any size, in MPI calls of bounded size.
#pragma once

#include <algorithm>
#include <cstdint>

#include "communicator.h"
#include "options.h"

namespace pfftjax {

// How many elements one MPI call may move.
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

// Apart from the tags of the watch, and from the wildcards that sendrecv may use on `data`.
inline constexpr int kExchangeTag = 3;

// Sends `to(rank)` of `send` to each rank and receives `from(rank)` of `recv` from it, one pair of
// partners after the other. Both sides of a pair know its size, so empty blocks cost no message,
// and each chunk of a pair is matched by a chunk of the same size.
template <typename To, typename From>
int ExchangeBlocks(const Communicator& comm, const void* send, To&& to, void* recv, From&& from,
                   Element element) {
  const MpiApi& mpi = *Mpi();
  const std::int64_t limit = ChunkElements(element);
  for (int step = 0; step < comm.size; ++step) {
    const int dest = (comm.rank + step) % comm.size;
    const int source = (comm.rank - step + comm.size) % comm.size;
    const Block out = to(dest);
    const Block in = from(source);
    const std::int64_t most = std::max(out.count, in.count);
    for (std::int64_t offset = 0; offset < most; offset += limit) {
      const std::int64_t sent = std::clamp<std::int64_t>(out.count - offset, 0, limit);
      const std::int64_t received = std::clamp<std::int64_t>(in.count - offset, 0, limit);
      Envelope arrived;
      const int code = mpi.sendrecv(At(send, out.offset + (sent > 0 ? offset : 0), element), sent,
                                    element, sent > 0 ? dest : mpi.proc_null, kExchangeTag,
                                    At(recv, in.offset + (received > 0 ? offset : 0), element),
                                    received, element, received > 0 ? source : mpi.proc_null,
                                    kExchangeTag, comm.control, &arrived);
      if (code != 0) return code;
      if (received > 0 && arrived.count != received) return kShortMessage;
    }
  }
  return 0;
}

}  // namespace pfftjax
