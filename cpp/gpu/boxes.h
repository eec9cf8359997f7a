// Boxes between all pairs of ranks, in arrays on GPUs: packed by one kernel, sent, and unpacked by
// one kernel.
#pragma once

#include "../stream.h"
#include "transport.h"

namespace pfftjax::gpu {

// As StreamBoxes (stream.h), with sums in the same order, so that they have the same bits.
int ExchangeBoxes(Communicator& comm, const void* source, void* target, const BoxesOf& boxes,
                  Element element, Arrival arrival, Queue& queue);

}  // namespace pfftjax::gpu
