#include "agreement.h"

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

std::string Line(const std::vector<std::string_view>& lines, std::size_t index) {
  return index < lines.size() ? std::string(lines[index]) : "nothing";
}

}  // namespace

std::uint64_t Hash(const void* bytes, std::size_t size) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  const auto* p = static_cast<const unsigned char*>(bytes);
  for (std::size_t i = 0; i < size; ++i) hash = (hash ^ p[i]) * 0x100000001b3u;
  return hash;
}

std::string Disagreement(Communicator& comm, std::int64_t hash, std::string_view text) {
  // The maximum of the hash and of its complement: equal to one's own on all ranks or on none.
  const std::array<std::int64_t, 2> mine = {hash, ~hash};
  std::array<std::int64_t, 2> most{};
  int code =
      Mpi()->allreduce(mine.data(), most.data(), 2, Element::kS64, Reduction::kMax, comm.control);
  if (code == 0 && most[0] == ~most[1]) return {};

  const std::string reference = code == 0 ? Broadcast(comm, text, 0, &code) : std::string{};
  std::int64_t candidate = comm.rank > 0 && text != reference ? comm.rank : comm.size;
  std::int64_t first = comm.size;
  if (code == 0) {
    code = Mpi()->allreduce(&candidate, &first, 1, Element::kS64, Reduction::kMin, comm.control);
  }
  if (code == 0 && first == comm.size) {
    return "the ranks differ further on than the first collectives listed:\n" + reference;
  }
  const std::string other =
      code == 0 ? Broadcast(comm, text, static_cast<int>(first), &code) : std::string{};
  if (code != 0) return "the ranks differ, and the comparison itself failed in MPI";

  const auto expected = Lines(reference);
  const auto found = Lines(other);
  std::size_t at = 0;
  while (at < expected.size() && at < found.size() && expected[at] == found[at]) ++at;
  return "number " + std::to_string(at + 1) + " is " + Line(found, at) + " on rank " +
         std::to_string(first) + " and " + Line(expected, at) + " on rank 0";
}

std::string FirstText(Communicator& comm, std::string_view mine) {
  const std::int64_t candidate = mine.empty() ? comm.size : comm.rank;
  std::int64_t first = comm.size;
  int code = Mpi()->allreduce(&candidate, &first, 1, Element::kS64, Reduction::kMin, comm.control);
  if (code == 0 && first == comm.size) return {};
  const std::string text =
      code == 0 ? Broadcast(comm, mine, static_cast<int>(first), &code) : std::string{};
  if (code != 0) return "the ranks could not compare what they found, as MPI failed";
  return "on rank " + std::to_string(first) + ": " + text;
}

}  // namespace pfftjax
