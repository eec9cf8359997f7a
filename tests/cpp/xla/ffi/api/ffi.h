// This is as much of XLA's header as cpp/runtime/errors.h and call.cc use; the header takes five
// times as long to compile.
#pragma once

#include <string>
#include <utility>

namespace xla::ffi {

enum class ErrorCode { kInternal, kFailedPrecondition };

class Error {
 public:
  Error(ErrorCode, std::string message) : message_(std::move(message)), failed_(true) {}
  static Error Success() { return {}; }
  bool failure() const { return failed_; }
  const std::string& message() const { return message_; }

 private:
  Error() = default;
  std::string message_;
  bool failed_ = false;
};

}  // namespace xla::ffi
