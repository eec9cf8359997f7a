#include "runtime/agreement.h"

#include <array>
#include <vector>

namespace pfftjax {
namespace {

std::string Broadcast(Communicator& comm, std::string_view mine, int root, int* code) {
  auto size = static_cast<std::int64_t>(mine.size());
  *code = Mpi()->bcast(&size, 1, Element::kS64, root, comm.control);
  if (*code) return {};
  std::string text(static_cast<std::size_t>(size), ' ');
  if (comm.rank == root) text.assign(mine);
  if (size > 0) *code = Mpi()->bcast(text.data(), size, Element::kU8, root, comm.control);
  return text;
}

std::vector<std::string_view> Lines(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    lines.push_back(text.substr(0, end));
    text = end == std::string_view::npos ? std::string_view{} : text.substr(end + 1);
  }
  return lines;
}

constexpr char kComment = '\t';

// Returns a line without what is not compared.
std::string_view Compared(std::string_view line) { return line.substr(0, line.find(kComment)); }

// "alltoall float32[12] (model.py:17)"
std::string Line(const std::vector<std::string_view>& lines, std::size_t index) {
  if (index >= lines.size()) return "nothing";
  const std::string compared(Compared(lines[index]));
  const std::size_t comment = compared.size() + 1;
  if (comment >= lines[index].size()) return compared;
  return compared + " (" + std::string(lines[index].substr(comment)) + ")";
}

std::string AllCompared(std::string_view text) {
  std::string all;
  for (std::string_view line : Lines(text)) all.append(Compared(line)).append("\n");
  return all;
}

std::string NotCompared(int code) {
  return "the ranks could not be compared, as MPI failed: " + MpiErrorText(code);
}

// A comparison over the ranks has found this, the same on every rank.
struct Comparison {
  bool is_equal = false;
  int code = 0;           // MPI's, where there is no answer
  std::int64_t rank = 0;  // the first one that differs from rank 0; their number where none does
  std::string reference;  // rank 0's text
  std::string other;      // that rank's
};

Comparison Compare(Communicator& comm, std::int64_t hash,
                   const std::function<std::string()>& say) {
  Comparison found;
  int& code = found.code;
  code = AreEqual(comm, hash, &found.is_equal);
  if (found.is_equal || code != 0) return found;

  const std::string text = say();
  found.reference = Broadcast(comm, text, 0, &code);
  const bool differs = AllCompared(text) != AllCompared(found.reference);
  std::int64_t candidate = comm.rank > 0 && differs ? comm.rank : comm.size;
  found.rank = comm.size;
  if (code == 0) {
    code =
        Mpi()->allreduce(&candidate, &found.rank, 1, Element::kS64, Reduction::kMin, comm.control);
  }
  if (code == 0 && found.rank < comm.size) {
    found.other = Broadcast(comm, text, static_cast<int>(found.rank), &code);
  }
  return found;
}

}  // namespace

std::uint64_t Hash(const void* bytes, std::size_t size) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  const auto* p = static_cast<const unsigned char*>(bytes);
  for (std::size_t i = 0; i < size; ++i) hash = (hash ^ p[i]) * 0x100000001b3u;
  return hash;
}

Parameters& Parameters::Add(const char* name, const std::int64_t* values, std::size_t size) {
  hash_ = (hash_ * 31 + size) ^ Hash(values, size * sizeof *values);
  if (!in_words_) return *this;
  words_ += std::string(", ") + name;
  for (std::size_t i = 0; i < size; ++i) words_ += " " + std::to_string(values[i]);
  return *this;
}

std::string Disagreement(Communicator& comm, std::int64_t hash, const std::string& text) {
  return Disagreement(comm, hash, [&] { return text; });
}

int AreEqual(const Communicator& comm, std::int64_t hash, bool* are_equal) {
  // The maximum of the hash and of its complement: equal to one's own on all ranks or on none.
  const std::array<std::int64_t, 2> mine = {hash, ~hash};
  std::array<std::int64_t, 2> most{};
  const int code =
      Mpi()->allreduce(mine.data(), most.data(), 2, Element::kS64, Reduction::kMax, comm.control);
  *are_equal = code == 0 && most[0] == ~most[1];
  return code;
}

std::string Disagreement(Communicator& comm, std::int64_t hash,
                         const std::function<std::string()>& say, int* code) {
  const Comparison found = Compare(comm, hash, say);
  if (code) *code = found.code;
  if (found.is_equal) return {};
  if (found.code != 0) return NotCompared(found.code);
  if (found.rank == comm.size) {
    return "the ranks differ further on than the first collectives listed:\n" +
           AllCompared(found.reference);
  }
  const auto expected = Lines(found.reference);
  const auto other = Lines(found.other);
  std::size_t at = 0;
  while (at < expected.size() && at < other.size() &&
         Compared(expected[at]) == Compared(other[at])) {
    ++at;
  }
  return "number " + std::to_string(at + 1) + " is " + Line(other, at) + " on rank " +
         std::to_string(found.rank) + " and " + Line(expected, at) + " on rank 0";
}

std::string Difference(Communicator& comm, std::int64_t hash, std::string_view text, int* code) {
  const Comparison found = Compare(comm, hash, [&] { return std::string(text); });
  *code = found.code;
  if (found.is_equal) return {};
  if (found.code != 0) return NotCompared(found.code);
  if (found.rank == comm.size) return "different on some ranks, and written alike on all of them";
  return found.other + " on rank " + std::to_string(found.rank) + " and " + found.reference +
         " on rank 0";
}

std::string FirstText(Communicator& comm, std::string_view mine) {
  const std::int64_t candidate = mine.empty() ? comm.size : comm.rank;
  std::int64_t first = comm.size;
  int code = Mpi()->allreduce(&candidate, &first, 1, Element::kS64, Reduction::kMin, comm.control);
  if (code == 0 && first == comm.size) return {};
  const std::string text =
      code == 0 ? Broadcast(comm, mine, static_cast<int>(first), &code) : std::string{};
  if (code != 0) return NotCompared(code);
  return "on rank " + std::to_string(first) + ": " + text;
}

}  // namespace pfftjax
