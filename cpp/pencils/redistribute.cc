#include "pencils/redistribute.h"

#include "pencils/stream.h"
#include "runtime/window.h"

namespace pfftjax {

int Redistribute(Communicator& comm, Method method, const void* source, void* target,
                 const Transposition& boxes, Element element) {
  const std::int64_t most = boxes.MostElements();
  if (most == 0) return 0;  // on all ranks
  if (method == Method::kAlltoall) {
    return AlltoallBoxes(comm, source, target, boxes, most, element);
  }
  if (method != Method::kMessages) {
    Window* window = nullptr;
    if (const int code = WindowOf(comm, WindowBytes(comm.size, most, element), &window))
      return code;
    if (window) return ShareBoxes(comm, *window, source, target, boxes, most, element);
    if (method != Method::kAutomatic) return kNotShared;
  }
  return StreamBoxes(comm, source, target, boxes, element, Arrival::kStore);
}

}  // namespace pfftjax
