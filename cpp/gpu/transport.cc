#include "transport.h"

#include <exception>

#include "../agreement.h"

namespace pfftjax::gpu {
namespace {

// Each on all ranks of `comm`, or on none.
std::shared_ptr<Transport> Choose(Communicator& comm, std::string* why) {
  std::shared_ptr<Transport> transport;
  std::string mine;
  try {
    transport = MakeStaging(comm, why);
  } catch (const std::exception& error) {
    *why = error.what();
  }
  // Pieces are cut alike on both sides.
  mine = transport ? std::string(transport->name()) + " in pieces of " +
                         std::to_string(GetOptions().gpu_chunk_bytes) + " and of " +
                         std::to_string(GetOptions().max_chunk_bytes) + " bytes at most"
                   : "none (" + *why + ")";
  const auto hash = static_cast<std::int64_t>(Hash(mine.data(), mine.size()));
  const std::string how = Disagreement(comm, hash, mine);
  if (how.empty()) return transport;
  *why = "the ranks differ in it: " + how;
  return nullptr;
}

}  // namespace

Transport* TransportOf(Communicator& comm, std::string* why) {
  if (!comm.is_transport_known) {
    comm.transport = Choose(comm, &comm.why_no_transport);
    comm.is_transport_known = true;
  }
  *why = comm.why_no_transport;
  return comm.transport.get();
}

int ExchangeBytes(Communicator& comm, const void* send, const std::vector<Block>& to, void* recv,
                  const std::vector<Block>& from, Queue& queue) {
  if (comm.size == 1) {
    queue.Copy(static_cast<char*>(recv) + from[0].offset,
               static_cast<const char*>(send) + to[0].offset, to[0].count, Direction::kOnDevice);
    return 0;
  }
  std::string why;
  Transport* const transport = TransportOf(comm, &why);
  if (!transport) throw std::runtime_error("there is no way between the ranks' GPUs: " + why);
  return transport->Exchange(comm, send, to, recv, from, queue);
}

}  // namespace pfftjax::gpu
