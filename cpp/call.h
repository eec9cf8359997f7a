// The frame of every operation: finds the communicator, checks what is to be checked, keeps the
// watch thread informed, and turns MPI's codes into errors. An operation adds only its MPI calls.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>

#include "communicator.h"
#include "errors.h"
#include "options.h"

namespace pfftjax {

// What a program says about one of its operations, besides the operands. The attributes are equal
// on all ranks and in all runs (no handles, no ranks), so that compiled programs can be cached.
struct CallSite {
  Operation operation;
  std::int64_t comm;       // number of the communicator
  std::int64_t ranks;      // its size when the program was traced
  std::int64_t signature;  // of all collectives of the program on this communicator; 0: not first
  std::string_view program;  // the same as text, one collective a line
};

// What the operands say.
struct Payload {
  Element element = Element::kBool;
  std::int64_t count = 0;
  std::string detail{};  // root, reduction: what else must agree under PFFTJAX_CHECK
  int source = kNobody;  // ranks that a message waits for
  int dest = kNobody;
};

class Call {
 public:
  Call(const CallSite& site, const Payload& payload) : site_(site), payload_(payload) {}
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  ~Call();

  // Everything that happens before the operation itself.
  ffi::Error Begin();
  Communicator& comm() { return *comm_; }

 private:
  ffi::Error Check();
  bool IsPointToPoint() const { return IsMessage(site_.operation); }

  const CallSite& site_;
  const Payload& payload_;
  Communicator* comm_ = nullptr;
  std::int64_t started_ns_ = 0;
};

// Runs `body(communicator)`, which returns an MPI code or an ffi::Error.
template <typename Body>
ffi::Error Run(const CallSite& site, const Payload& payload, Body&& body) {
  Call call(site, payload);
  if (ffi::Error error = call.Begin(); error.failure()) return error;
  if constexpr (std::is_same_v<std::invoke_result_t<Body, Communicator&>, int>) {
    if (const int code = body(call.comm()); code != 0) {
      return MpiFailed(site.operation, call.comm(), payload.element, payload.count, code);
    }
    return ffi::Error::Success();
  } else {
    return body(call.comm());
  }
}

// Asks for huge pages under a large result that nobody has touched yet: XLA's buffers are freshly
// mapped, and 4 KiB pages cost a large exchange more than the exchange itself.
void AdviseHugePages(void* data, std::size_t bytes);

}  // namespace pfftjax
