// A simulated rank runs operations, called as XLA calls them, and what Python does around
// them.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "job.h"
#include "runtime/communicator.h"
#include "runtime/handlers.h"

namespace pfftjax::simulated {

// An array of a rank's.
struct Array {
  Array(ffi::DataType type, std::vector<std::int64_t> shape);
  ffi::AnyBuffer Any() { return {type, data.data(), shape}; }
  template <ffi::DataType kType, std::size_t kRank = ffi::kAnyRank>
  ffi::Buffer<kType, kRank> As() {
    return {data.data(), shape};
  }
  template <typename T>
  T* At(std::int64_t i = 0) {
    return reinterpret_cast<T*>(data.data()) + i;
  }
  std::int64_t bytes() const { return static_cast<std::int64_t>(data.size()); }

  ffi::DataType type;
  std::vector<std::int64_t> shape;
  std::vector<char> data;
};

// The communicators of a job, by the numbers that every rank gives them.
enum Number : std::int64_t { kWorld, kRows, kColumns, kOther };

// A grid of all ranks: its rows (ranks of one second coordinate) and columns.
struct Grid {
  int rows = 1;
  int columns = 1;
};

class Rank {
 public:
  Rank(Job& job, const Grid& grid, int rank) : job(job), grid(grid), rank(rank) {}

  // As pfftjax does when it is imported, and when it meets the communicators.
  void Begin(bool makes_private);
  // As at the end of a Python program: says that it leaves, waits for the others, MPI_Finalize.
  void End();
  void Leave();
  void Finalize();

  const Communicator& On(std::int64_t number) const { return *FindCommunicator(number); }
  int size() const { return job.ranks; }

  // Time that passes in the program itself.
  void Compute();

  Job& job;
  const Grid& grid;
  const int rank;
};

// Makes the communicators of a grid, before the job runs.
void MakeComms(Job& job, const Grid& grid);

// The site of a call: its first four arguments.
struct Site {
  explicit Site(std::int64_t number, std::string_view program = {});
  std::int64_t number;
  std::int64_t ranks;
  std::int64_t signature;
  std::string_view program;
};

// The handler of that name, as a function of these arguments after those of the site.
void* FindHandler(const char* name, const std::type_info& type);

template <typename... Arguments>
ffi::Error CallHandler(const char* name, const Site& site, Arguments... arguments) {
  using Function =
      ffi::Error (*)(std::int64_t, std::int64_t, std::int64_t, std::string_view, Arguments...);
  const auto function = reinterpret_cast<Function>(FindHandler(name, typeid(Function)));
  return function(site.number, site.ranks, site.signature, site.program, std::move(arguments)...);
}

// One operand and one result, with the operation's attributes between.
template <typename... Attributes>
ffi::Error CallOn(const char* name, const Site& site, Attributes... attributes, Array& x,
                  Array& y) {
  return CallHandler<Attributes..., Operand, Token, Result, TokenResult>(
      name, site, attributes..., x.Any(), Token{}, Result(y.Any()), TokenResult{});
}

// Fails the job.
[[noreturn]] void Wrong(const std::string& what);
// The same where a call has failed, or something is not as it should be; what is said of it is put
// together only then, since most of it is said of single bytes.
void Expect(const ffi::Error& error);
inline void Expect(bool is_right, const char* what) {
  if (!is_right) Wrong(what);
}
template <typename What>
void ExpectOr(bool is_right, What&& what) {
  if (!is_right) Wrong(what());
}

}  // namespace pfftjax::simulated
