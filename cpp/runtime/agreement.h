// Do all ranks of a communicator mean the same thing? Asked before it can go wrong: once per
// program (the first-call check), and before every call under PFFTJAX_CHECK=1.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "runtime/communicator.h"

namespace pfftjax {

// FNV-1a.
std::uint64_t Hash(const void* bytes, std::size_t size);

// All ranks must mean these alike in a call, besides its operation, dtype and number of elements:
// as a hash, and in words where these are wanted.
class Parameters {
 public:
  explicit Parameters(bool in_words) : in_words_(in_words) {}
  Parameters& Add(const char* name, std::int64_t value) { return Add(name, &value, 1); }
  Parameters& Add(const char* name, const std::int64_t* values, std::size_t size);
  template <typename Values>
  Parameters& Add(const char* name, const Values& values) {
    return Add(name, values.size() == 0 ? nullptr : &*values.begin(), values.size());
  }
  std::uint64_t hash() const { return hash_; }
  // ", axis 1, shape 8 6 8"
  const std::string& words() const { return words_; }

 private:
  bool in_words_;
  std::uint64_t hash_ = 0;
  std::string words_;
};

// Finds whether `hash` is the same on all ranks; an MPI code. Collective.
int AreEqual(const Communicator& comm, std::int64_t hash, bool* are_equal);

// Compares `hash` over the ranks of `comm`; where they differ, compares `text`, a list of lines,
// and names the first rank that differs from rank 0 and the first line in which it does. What
// follows a tabulator in a line is not compared, but named. Collective. Returns an empty string
// when all agree, and otherwise the same text on every rank.
// Where MPI fails, `code` is its code, if it is given, and this rank's answer says only that.
std::string Disagreement(Communicator& comm, std::int64_t hash,
                         const std::function<std::string()>& text, int* code = nullptr);
std::string Disagreement(Communicator& comm, std::int64_t hash, const std::string& text);

// The same for one value in place of a list: "X on rank 2 and Y on rank 0", of the first rank
// whose `text` differs from rank 0's, or an empty string. Collective.
std::string Difference(Communicator& comm, std::int64_t hash, std::string_view text, int* code);

// The text of the first rank that has one, "on rank 2: ...", the same on every rank; empty where
// no rank has one. Collective.
std::string FirstText(Communicator& comm, std::string_view mine);

}  // namespace pfftjax
