#include "runtime/node.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "base/alignment.h"
#include "base/copies.h"
#include "base/options.h"
#include "base/pages.h"

namespace pfftjax {
namespace {

constexpr std::size_t kLine = kCacheLine;
constexpr std::size_t kChoiceEnd = kLine;  // after rank 0's choice (Choose)
constexpr std::int64_t kSlots = 2;
constexpr std::int64_t kSlotBytes = process::Size(std::int64_t{512} << 10);
// Results larger than this do not stay in a cache: they are written past it.
constexpr std::int64_t kCachedResult = std::int64_t{8} << 20;
// Less than this travels faster from cache to cache than through memory, wherever the cores are.
constexpr std::int64_t kCachedPiece = std::int64_t{8} << 10;

constexpr auto kElementCount = static_cast<std::int64_t>(kElements.size());

// Puts what a slot is about into one number.
std::int64_t About(const Node::Blocks& blocks) {
  return 2 * (blocks.bytes * kElementCount + static_cast<std::int64_t>(blocks.element)) +
         blocks.is_same_for_all;
}
std::string Say(std::int64_t about) {
  const ElementInfo& element = kElements[static_cast<std::size_t>(about / 2 % kElementCount)];
  return std::string(about % 2 != 0 ? "allgather" : "alltoall") + " with blocks of " +
         std::to_string(about / 2 / kElementCount) + " bytes of " + element.name;
}

}  // namespace

// One rank tells another this in a round: that its slot is filled, and with what. What fits comes
// with it on the same cache line. A rank begins a round only when it has the notes of all others
// of the round before, and a note says that its writer has read all rounds before it: that is why
// two slots suffice, and why nobody says that it has read.
struct Node::Note {
  static constexpr std::size_t kPayload = kLine - 2 * sizeof(std::int64_t);
  alignas(kLine) process::Atomic<std::int64_t> round;
  process::Atomic<std::int64_t> about;
  char payload[kPayload];
};

std::size_t Node::HeaderBytes(int ranks) {
  const std::size_t notes = static_cast<std::size_t>(ranks) * kSlots * ranks * sizeof(Note);
  // What lies before the memory counts: slots begin on pages.
  return RoundUp(SharedMemory::kBefore + kChoiceEnd + notes, kPage) - SharedMemory::kBefore;
}

std::unique_ptr<Node> Node::Make(Communicator& comm) {
  if (comm.size > kMostRanksWithSlots || !GetOptions().shared_memory) return nullptr;
  static_assert(process::Atomic<std::int64_t>::is_always_lock_free);
  const std::size_t bytes = HeaderBytes(comm.size) + comm.size * kSlots * kSlotBytes;
  std::unique_ptr<SharedMemory> memory = SharedMemory::Make(comm, bytes, kSlots * kSlotBytes);
  if (!memory) return nullptr;
  std::unique_ptr<Node> node(new Node(comm, std::move(memory)));
  // Pages of a rank's own, near it, before the first exchange needs them.
  std::memset(node->Slot(comm.rank, 0), 0, kSlots * kSlotBytes);
  return node;
}

Node::Node(Communicator& comm, std::unique_ptr<SharedMemory> memory)
    : comm_(comm), memory_(std::move(memory)), base_(memory_->data()) {}

Node::~Node() = default;

Node::Note& Node::NoteOf(int source, int dest, std::int64_t round) const {
  auto* notes = reinterpret_cast<Note*>(base_ + kChoiceEnd);
  return notes[(source * kSlots + round % kSlots) * comm_.size + dest];
}

char* Node::Slot(int rank, std::int64_t round) const {
  return base_ + HeaderBytes(comm_.size) + (rank * kSlots + round % kSlots) * kSlotBytes;
}

template <typename Read>
int Node::EndRound(std::int64_t round, std::int64_t about, Read&& read) {
  const int size = comm_.size;
  const int rank = comm_.rank;
  int result = 0;
  for (int step = 1; step < size; ++step) {
    const int source = (rank + size - step) % size;
    const Note& note = NoteOf(source, rank, round);
    const int code = memory_->WaitFor(
        comm_, [&] { return note.round.load(std::memory_order_acquire) == round; });
    if (code != 0) return code;
    if (result != 0) continue;
    const std::int64_t other = note.about.load(std::memory_order_relaxed);
    if (other == about) {
      read(source, note);
    } else {
      // The others are waited for nevertheless: a rank that began its next round now could write
      // to a slot that one of them still reads.
      comm_.difference = "rank " + std::to_string(source) + " is in " + Say(other) +
                         ", and this rank in " + Say(about);
      result = kOtherCall;
    }
  }
  return result;
}

int Node::Compare(const Blocks& blocks) {
  const std::int64_t about = About(blocks);
  const std::int64_t round = ++round_;
  for (int step = 1; step < comm_.size; ++step) {
    Note& note = NoteOf(comm_.rank, (comm_.rank + step) % comm_.size, round);
    note.about.store(about, std::memory_order_relaxed);
    note.round.store(round, std::memory_order_release);
  }
  return EndRound(round, about, [](int, const Note&) {});
}

int Node::ThroughSlots(const void* from_here, void* to_here, const Blocks& blocks, Slots slots) {
  const auto* const send = static_cast<const char*>(from_here);
  auto* const recv = static_cast<char*>(to_here);
  const std::int64_t block = blocks.bytes;
  if (block == 0) return Compare(blocks);  // another rank's may not be empty
  const bool is_same_for_all = blocks.is_same_for_all;
  const int size = comm_.size;
  const int rank = comm_.rank;
  // Returns what one rank has for another in one round.
  const std::int64_t share =
      is_same_for_all ? kSlotBytes : kSlotBytes / size / std::int64_t{kLine} * std::int64_t{kLine};
  const std::int64_t most = std::min(share, GetOptions().max_chunk_bytes);
  const auto place = [&](int dest) { return is_same_for_all ? 0 : dest * share; };
  const std::int64_t about = About(blocks);
  const bool is_past_cache = slots == Slots::kPastCache && std::min(most, block) >= kCachedPiece;
  const auto copy_in = is_past_cache ? CopyPastCache : Copy;
  const auto copy_out = block * size > kCachedResult ? CopyPastCache : Copy;

  for (std::int64_t offset = 0; offset < block; offset += most) {
    const auto piece = static_cast<std::size_t>(std::min(most, block - offset));
    const bool is_noted = piece <= Note::kPayload;
    const std::int64_t round = ++round_;
    char* slot = Slot(rank, round);
    if (is_same_for_all && !is_noted) {
      process::Writes(slot, piece);
      copy_in(slot, send + offset, piece);
    }
    for (int step = 1; step < size; ++step) {
      const int dest = (rank + step) % size;
      const char* from = send + (is_same_for_all ? 0 : dest * block) + offset;
      Note& note = NoteOf(rank, dest, round);
      if (is_noted) {
        process::Writes(note.payload, piece);
        std::memcpy(note.payload, from, piece);
      } else if (!is_same_for_all) {
        process::Writes(slot + place(dest), piece);
        copy_in(slot + place(dest), from, piece);
      }
      note.about.store(about, std::memory_order_relaxed);
      note.round.store(round, std::memory_order_release);
    }

    if (send != recv) {
      copy_out(recv + rank * block + offset, send + (is_same_for_all ? 0 : rank * block) + offset,
               piece);
    }
    // In place, what arrives takes the room of what has just left for the same rank.
    const int code = EndRound(round, about, [&](int source, const Note& note) {
      const char* from = is_noted ? note.payload : Slot(source, round) + place(rank);
      process::Reads(from, piece);
      copy_out(recv + source * block + offset, from, piece);
    });
    if (code != 0) return code;
  }
  return 0;
}

Node::Trials& Node::TrialsOf(std::int64_t bytes, bool is_in_place) {
  int size = 0;
  for (bytes /= kLargeBytes; bytes > 1 && size + 1 < kSizes; bytes /= 2) ++size;
  return trials_[is_in_place ? 1 : 0][size];
}

int Node::Trials::Next(int methods) const {
  constexpr std::int64_t kFirst = 3;    // of each, to begin with
  constexpr std::int64_t kAgain = 128;  // then another one once in so many
  constexpr std::int64_t kRarely = 8;   // and so much more rarely one that was far behind
  constexpr double kBehind = 1.5;
  if (number < methods * kFirst) return static_cast<int>(number % methods);
  const auto fastest =
      std::min_element(seconds.begin(), seconds.begin() + methods) - seconds.begin();
  if (number % kAgain != 0) return static_cast<int>(fastest);
  const std::int64_t turn = number / kAgain;
  const std::int64_t other = turn % methods;
  const bool is_due = turn / methods % kRarely == 0;
  return static_cast<int>(is_due || seconds[other] < kBehind * seconds[fastest] ? other : fastest);
}

void Node::Trials::Took(int method, double took) {
  // A mean over a few of late, without the first ones, which meet new pages; one that the system
  // has interrupted counts for little.
  constexpr double kWeight = 0.25;
  double& mean = seconds[method];
  const bool is_new = number <= 2 * kMethods;
  mean = is_new ? took : std::min((1 - kWeight) * mean + kWeight * took, 2 * mean);
}

int Node::Choose(Trials& trials, int methods, int* method) {
  auto& choice = *reinterpret_cast<process::Atomic<std::int64_t>*>(base_);
  const std::int64_t round = round_ + 1;  // the next one, on all ranks
  if (comm_.rank == 0) {
    *method = trials.Next(methods);
    ++trials.number;
    choice.store(kMethods * round + *method, std::memory_order_release);
    return 0;
  }
  // Rank 0 comes to another choice only when all have ended this round. If it makes a small
  // exchange there is no choice but its note, which goes through the slots, as the comparison does
  // that finds the difference.
  const Note& note = NoteOf(0, comm_.rank, round);
  std::int64_t made = 0;
  const auto is_made = [&] {
    made = choice.load(std::memory_order_acquire);
    return made / kMethods == round;
  };
  const int code = memory_->WaitFor(
      comm_, [&] { return is_made() || note.round.load(std::memory_order_acquire) == round; });
  // A choice is older than the note of the same round.
  *method = code == 0 && is_made() ? static_cast<int>(made % kMethods)
                                   : static_cast<int>(Slots::kPastCache);
  return code;
}

Node* NodeOf(Communicator& comm) {
  auto& node = comm.Attached<std::optional<std::unique_ptr<Node>>>();
  if (!node) node = comm.size > 1 ? Node::Make(comm) : nullptr;
  return node->get();
}

}  // namespace pfftjax
