// Calls whose results nobody looks at: of programs that are wrong, which must be told so.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "rank.h"
#include "runtime/abort.h"

namespace pfftjax::simulated {

// Collectives that every rank of a communicator has to wait for.
enum class Call { kAllreduce, kAlltoall, kAllgather, kBarrier };
inline constexpr Call kCalls[] = {Call::kAllreduce, Call::kAlltoall, Call::kAllgather,
                                  Call::kBarrier};

// With `count` elements in what it takes, or for each rank.
inline ffi::Error Make(const Rank& rank, std::int64_t number, Call call, std::int64_t count,
                       std::string_view program = {}) {
  const std::int64_t size = rank.On(number).size;
  const Site site(number, program);
  Array x(ffi::S32, {size, count});
  Array y(ffi::S32, {size, count});
  std::fill(x.data.begin(), x.data.end(), 0);
  Array one(ffi::S32, {count});
  std::fill(one.data.begin(), one.data.end(), 0);
  Array other(ffi::S32, {count});
  switch (call) {
    case Call::kAllreduce:
      return CallOn<std::int32_t>("pfftjax_allreduce", site, 0, one, other);
    case Call::kAlltoall:
      return CallOn<>("pfftjax_alltoall", site, x, y);
    case Call::kAllgather:
      return CallOn<>("pfftjax_allgather", site, one, y);
    case Call::kBarrier:
      break;
  }
  return CallHandler<Token, TokenResult>("pfftjax_barrier", site, Token{}, TokenResult{});
}

// Does what Python's hooks do about an error that nobody catches.
inline void EndJobOn(const ffi::Error& error) {
  if (error.failure()) AbortJob(error.message().c_str());
}

}  // namespace pfftjax::simulated
