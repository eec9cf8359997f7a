// How bytes go from the memory of one rank's GPU to that of another's: NCCL, memory that the
// processes of a node open of each other (CUDA IPC), an MPI that takes device pointers, or staging
// in pinned memory of the host.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "../communicator.h"
#include "../exchange.h"
#include "queue.h"

namespace pfftjax::gpu {

class Transport {
 public:
  virtual ~Transport() = default;
  // "staging", as PFFTJAX_GPU_TRANSPORT has it.
  virtual const char* name() const = 0;

  // Sends to[p] of `send` to rank p and receives from[p] of `recv` from it, for every rank p, this
  // one included; blocks of bytes, of which both sides know the size, so that empty ones cost
  // nothing. After all that is in the queue and before all that follows; the two buffers do not
  // overlap. Collective over `comm`, in one call at a time. Returns MPI's code; throws what the
  // runtime says.
  virtual int Exchange(Communicator& comm, const void* send, const std::vector<Block>& to,
                       void* recv, const std::vector<Block>& from, Queue& queue) = 0;
};

// The transport of a communicator, chosen when it is first wanted, the same on all of its ranks;
// null, with the reason in `why`, where the one that was asked for cannot be had. Collective.
Transport* TransportOf(Communicator& comm, std::string* why);

// Transport::Exchange by it; throws where there is none. A rank alone needs none.
int ExchangeBytes(Communicator& comm, const void* send, const std::vector<Block>& to, void* recv,
                  const std::vector<Block>& from, Queue& queue);

// The transports, in the order in which they are tried. Null where one cannot work for `comm`, on
// all of its ranks alike, with the reason. Collective.
std::unique_ptr<Transport> MakeNccl(Communicator& comm, std::string* why);
std::unique_ptr<Transport> MakeIpc(Communicator& comm, std::string* why);
std::unique_ptr<Transport> MakeGpuAwareMpi(Communicator& comm, std::string* why);
std::unique_ptr<Transport> MakeStaging(Communicator& comm, std::string* why);

}  // namespace pfftjax::gpu
