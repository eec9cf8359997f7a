// The frame of every operation: finds the communicator, checks what is to be checked, keeps the
// watch thread informed, and turns MPI's codes into errors. An operation adds only its MPI calls.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <string>
#include <string_view>
#include <type_traits>
#include <unordered_set>

#include "base/options.h"
#include "base/pages.h"
#include "runtime/agreement.h"
#include "runtime/communicator.h"
#include "runtime/errors.h"
#include "runtime/profile.h"

namespace pfftjax {

// The texts of errors that every rank of a communicator raises end so.
inline constexpr const char* kRaisedByAll = "(all ranks raise this error)";

// What a program says about one of its operations, besides the operands. The attributes are equal
// on all ranks and in all runs (no handles, no ranks), so that compiled programs can be cached.
struct CallSite {
  Operation operation;
  std::int64_t comm;   // number of the communicator
  std::int64_t ranks;  // its size when the program was traced
  // The hash of all collectives of the program on this communicator where the call carries their
  // list, and else the call's key (call_sites.h). To read the text at each call would cost a cache
  // miss.
  std::int64_t signature;
  std::string_view program;  // the list, one collective a line; empty for most calls

  bool HasList() const { return !program.empty(); }
};

// What the operands say.
struct Payload {
  Element element = Element::kBool;
  std::int64_t count = 0;
  std::string detail{};          // root, reduction, axes: what else must agree; for PFFTJAX_CHECK
  std::uint64_t parameters = 0;  // the same as a hash, for all calls
  int source = kNobody;          // ranks that a message waits for
  int dest = kNobody;
  int send_tag = kAnyTag;  // and its tags
  int recv_tag = kAnyTag;
};

// What has been compared over the ranks of a communicator and is not compared again: programs, at
// their first call, and places in them that compare values (`same`).
struct Verified {
  std::unordered_set<std::int64_t> all;
  std::int64_t latest = 0;  // program
};

class Call {
 public:
  Call(const CallSite& site, const Payload& payload)
      : site_(site), payload_(payload), timed_(site.operation) {}
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  ~Call();

  // Everything that happens before the operation itself.
  ffi::Error Begin();
  // The end of a collective that went well; an MPI code. One of nothing moves no data, and a rank
  // whose operand is not empty, by mistake, would wait for ranks that nobody could find there.
  int End();
  Communicator& comm() { return *comm_; }
  // Throws, on all ranks alike, how their calls differ, if they do. Collective, in the call.
  void MustAgree();

 private:
  ffi::Error Check();
  // Says how the ranks differ in `what`, if they do (agreement.h); `*code` is MPI's.
  std::string Compare(std::int64_t hash, const std::function<std::string()>& say, const char* what,
                      int* code);
  // The same of what the call itself is, as collective `number` of the communicator.
  std::string CompareCalls(std::int64_t number, int* code);
  // What a comparison has found, as an error.
  ffi::Error Refusal(const std::string& how, int code) const;
  bool IsPointToPoint() const { return IsMessage(site_.operation); }

  const CallSite& site_;
  const Payload& payload_;
  Communicator* comm_ = nullptr;
  bool has_passed_ = false;     // its checks
  bool has_succeeded_ = false;  // as far as this rank can tell
  std::int64_t started_ns_ = 0;
  Timed timed_;
};

// What else than the operand the ranks must agree on; put into words only where that is checked.
struct Detail {
  int op = -1;
  int root = -1;
  const char* manner = "";

  std::string Say() const { return GetOptions().check ? Words() : std::string(); }
  std::uint64_t Number() const {
    const int known = std::min(op, static_cast<int>(kReductions));
    // 0 for a call of which there is nothing to say.
    const std::uint64_t said = *manner ? Hash(manner, std::strlen(manner)) << 48 : 0;
    return said | (static_cast<std::uint64_t>(known + 1) << 32) |
           static_cast<std::uint32_t>(root + 1);
  }
  // For handlers whose calls may be compared without that (Communicator::runs_ahead).
  std::string Words() const {
    // Each process numbers the operations of its user in its own way.
    const bool is_users = op >= static_cast<int>(kReductions);
    return std::string(manner) +
           (op < 0 ? ""
                   : " reduced by " + (is_users ? "an operation of the user's"
                                                : "operation " + std::to_string(op))) +
           (root < 0 ? "" : " with root " + std::to_string(root));
  }
};

// Runs `body(communicator)`, which returns an MPI code or an ffi::Error. What it throws becomes an
// error that also says where the user has called; a handler knows only its own name (handlers.h).
template <typename Body>
ffi::Error Run(const CallSite& site, const Payload& payload, Body&& body) {
  Call call(site, payload);
  if (ffi::Error error = call.Begin(); error.failure()) return error;
  try {
    if constexpr (std::is_same_v<std::invoke_result_t<Body, Communicator&>, int>) {
      if (const int code = body(call.comm()); code != 0) {
        return MpiFailed(site.operation, call.comm(), payload.element, payload.count, code);
      }
    } else {
      if (ffi::Error error = body(call.comm()); error.failure()) return error;
    }
    const int code = call.End();
    return code == 0
               ? ffi::Error::Success()
               : MpiFailed(site.operation, call.comm(), payload.element, payload.count, code);
  } catch (const std::exception& error) {
    return Failed(site.operation, call.comm(), error.what());
  }
}

}  // namespace pfftjax
