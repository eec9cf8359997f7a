// The texts of errors say which line of the user's program makes a call.
//
// Programs are the same on all ranks and in all runs, so they carry no line. Each call carries a
// key of eight characters, as a number in place of a signature or before its list of collectives
// where it has one (`CallSite`), and Python notes which lines of this process a key stands for
// (pfftjax/_runtime/call_sites.py).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/communicator.h"

namespace pfftjax {

// 0 for a program that carries none.
std::uint64_t KeyOf(std::string_view program);
// The list of collectives behind the key.
std::string_view ListOf(std::string_view program);

// A call was lowered in `line`, after the collective that carries the key `before`. `signature` is
// that of the list of collectives that ends with it, 0 for a message; `program` a number of this
// process's.
void NoteCall(std::int64_t comm, std::string_view key, std::string_view before,
              std::int64_t signature, std::int64_t program, const std::string& line);
// A call outside of jit was made in `line`, and will be begun by one of XLA's threads.
void NoteEagerCall(const Communicator& comm, const std::string& operation,
                   const std::string& line);

// Where the call that this rank has begun last on `comm` was made, as "model.py:17", or as "a.py:3
// or b.py:5" where programs begin alike; empty where it is not known.
std::string LinesOf(const Communicator& comm);
// ", called at model.py:17", or nothing.
std::string CalledAt(const Communicator& comm);
// The list of collectives of a program, each line followed by a tabulator and its LinesOf.
std::string WithLines(const Communicator& comm, std::int64_t signature, std::string_view list);

// A text of a few words' length, as a message between ranks carries it; of a longer one the end.
class ShortText {
 public:
  static constexpr int kWords = 12;

  ShortText() = default;
  explicit ShortText(const std::string& text);
  explicit ShortText(const std::int64_t* words);
  void Write(std::int64_t* words) const;
  std::string Text() const;

 private:
  std::array<char, kWords * sizeof(std::int64_t)> text_{};
};

}  // namespace pfftjax
