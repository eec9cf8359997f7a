#include "pencils/redistribute.h"

#include "base/copies.h"
#include "base/options.h"
#include "collectives/exchange.h"
#include "collectives/node_exchange.h"
#include "pencils/stream.h"
#include "runtime/window.h"

namespace pfftjax {
namespace {

// Boxes for ranks of this node by the window, as ShareBoxes has it; those for others by messages.
int ByNodes(ffi::ThreadPool& pool, Communicator& comm, Window& window,
            const NodeExchange::Pieces& moved, const void* source, void* target,
            const Transposition& boxes, Element element) {
  NodeExchange exchange(comm, window, NodesOf(comm), moved);
  if (const int code = exchange.Begin()) return code;
  for (int step = 1; step < comm.size; ++step) {
    const int dest = (comm.rank + step) % comm.size;
    LeaveBox(pool, source, boxes.To(dest).at(0), exchange.To(dest), element);
  }
  Drain();
  if (const int code = exchange.Send()) return code;
  CopyOwn(pool, comm, source, target, boxes, element, Arrival::kStore);
  if (const int code = exchange.Arrive()) return code;
  for (int step = 1; step < comm.size; ++step) {
    const int from = (comm.rank + step) % comm.size;
    FetchBox(pool, exchange.From(from), target, boxes.From(from).at(0), element);
  }
  return 0;
}

}  // namespace

bool GoesByNodes(Communicator& comm, Method method) {
  if (!GetOptions().shared_memory || comm.size == 1) return false;
  return (method == Method::kHierarchical || method == Method::kAutomatic) &&
         NodesOf(comm).count() > 1;
}

int Redistribute(ffi::ThreadPool& pool, Communicator& comm, Method method, const void* source,
                 void* target, const Transposition& boxes, Element element) {
  const std::int64_t most = boxes.MostElements();
  if (most == 0) return 0;  // on all ranks
  if (method == Method::kAlltoall) {
    return AlltoallBoxes(comm, source, target, boxes, most, element);
  }
  Window* window = nullptr;
  if (method == Method::kHierarchical && GoesByNodes(comm, method)) {
    const Volume volume = boxes.VolumeOf(element);
    const NodeExchange::Pieces moved{{volume, volume.Most(comm.size)}};
    const std::int64_t bytes = NodeExchange::WindowBytes(NodesOf(comm), moved);
    if (const int code = WindowOnNode(comm, bytes, &window)) return code;
    if (!window) return kNotShared;
    return ByNodes(pool, comm, *window, moved, source, target, boxes, element);
  }
  if (method != Method::kMessages) {
    if (const int code = WindowOf(comm, WindowBytes(comm.size, most, element), &window))
      return code;
    if (window) return ShareBoxes(pool, comm, *window, source, target, boxes, most, element);
    if (method != Method::kAutomatic) return kNotShared;
  }
  return StreamBoxes(pool, comm, source, target, boxes, element, Arrival::kStore);
}

}  // namespace pfftjax
