// Errors as XLA carries them to Python. Every text names the operation and the rank.
#pragma once

#include <string>

#include "base/element.h"
#include "runtime/call_sites.h"
#include "runtime/communicator.h"
#include "xla/ffi/api/ffi.h"

namespace pfftjax {

namespace ffi = xla::ffi;

// "alltoall float32[12]"
inline std::string Describe(Operation operation, Element element, std::int64_t count) {
  return std::string(NameOf(operation)) + " " + InfoOf(element).name + "[" +
         std::to_string(count) + "]";
}

inline std::string FailureText(const std::string& operation, const Communicator& comm,
                               const std::string& why) {
  return "pfftjax: " + operation + " failed on " + comm.Where() + " (communicator " +
         std::to_string(comm.number) + ")" + CalledAt(comm) + ": " + why;
}

inline ffi::Error Failed(const std::string& operation, const Communicator& comm,
                         const std::string& why) {
  return ffi::Error(ffi::ErrorCode::kInternal, FailureText(operation, comm, why));
}
inline ffi::Error Failed(Operation operation, const Communicator& comm, const std::string& why) {
  return Failed(NameOf(operation), comm, why);
}

// Says what an MPI code means, or one that stands in place of one.
inline std::string ReasonOf(int code, const Communicator& comm) {
  if (code == kShortMessage) return "a message was shorter than both sides had agreed";
  if (code == kOtherCall) return comm.difference;
  return "MPI says '" + MpiErrorText(code) + "'";
}

inline ffi::Error MpiFailed(Operation operation, const Communicator& comm, Element element,
                            std::int64_t count, int code) {
  if (code == kNotShared) {
    return Failed(
        operation, comm,
        "its method of exchange goes through memory that all ranks of the communicator, or "
        "of a node, share, and these do not share any, or not so much (they are on several "
        "nodes, or PFFTJAX_SHARED_MEMORY=0, or it is used up); take "
        "ExchangeMethod.MESSAGES, ALLTOALL or AUTOMATIC");
  }
  const std::string reason = ReasonOf(code, comm);
  if (code == kShortMessage) return Failed(operation, comm, reason);
  if (code == kOtherCall) {
    return Failed(operation, comm,
                  reason +
                      "; every rank of a communicator must make the same collectives in the same "
                      "order, with sizes that fit (PFFTJAX_CHECK=1 finds where they part)");
  }
  return Failed(
      operation, comm,
      reason + " for " + std::to_string(count) + " " + InfoOf(element).name + " elements");
}

}  // namespace pfftjax
