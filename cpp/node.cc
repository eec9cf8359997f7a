#include "node.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <new>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "agreement.h"
#include "options.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace pfftjax {
namespace {

constexpr std::size_t kLine = 64;
constexpr std::size_t kChoiceEnd = 2 * kLine;  // after the secret and rank 0's choice (Choose)
constexpr std::int64_t kSlots = 2;
constexpr std::int64_t kSlotBytes = std::int64_t{512} << 10;
// Results larger than this do not stay in a cache: they are written past it.
constexpr std::int64_t kCachedResult = std::int64_t{8} << 20;
// Less than this travels faster from cache to cache than through memory, wherever the cores are.
constexpr std::int64_t kCachedPiece = std::int64_t{8} << 10;
constexpr int kMostRanks = 64;  // beyond, a rank's share of a slot is too small to be worth it

void Pause() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

void Copy(char* to, const char* from, std::size_t bytes) { std::memcpy(to, from, bytes); }

// The same without reading what is overwritten, and without a place in the cache for it.
void CopyPastCache(char* to, const char* from, std::size_t bytes) {
#if defined(__x86_64__)
  const std::size_t misaligned = reinterpret_cast<std::uintptr_t>(to) % kLine;
  std::size_t done = misaligned == 0 ? 0 : std::min(bytes, kLine - misaligned);
  std::memcpy(to, from, done);
  for (; done + kLine <= bytes; done += kLine) {
    const auto* source = reinterpret_cast<const __m128i*>(from + done);
    auto* target = reinterpret_cast<__m128i*>(to + done);
    const __m128i a = _mm_loadu_si128(source);
    const __m128i b = _mm_loadu_si128(source + 1);
    const __m128i c = _mm_loadu_si128(source + 2);
    const __m128i d = _mm_loadu_si128(source + 3);
    _mm_stream_si128(target, a);
    _mm_stream_si128(target + 1, b);
    _mm_stream_si128(target + 2, c);
    _mm_stream_si128(target + 3, d);
  }
  _mm_sfence();
  std::memcpy(to + done, from + done, bytes - done);
#else
  std::memcpy(to, from, bytes);
#endif
}

// What ranks tell each other to find out whether they can share memory.
struct Offer {
  std::uint64_t kernel = 0;     // of this boot of this kernel
  std::uint64_t processes = 0;  // the name space of process numbers
  std::uint64_t secret = 0;     // at the beginning of the memory, to recognise it
  std::int64_t process = 0;
  std::int64_t file = -1;  // of rank 0's memory
  cpu_set_t cores;         // that this rank may use
};

// What a slot is about, in one number.
std::int64_t About(std::int64_t block, bool is_same_for_all) {
  return 2 * block + is_same_for_all;
}
std::string Say(std::int64_t about) {
  return std::string(about % 2 != 0 ? "allgather" : "alltoall") + " with blocks of " +
         std::to_string(about / 2) + " bytes";
}

std::uint64_t KernelNumber() {
  std::string id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
  return id.empty() ? std::random_device{}() : Hash(id.data(), id.size());
}

std::uint64_t ProcessNamespace() {
  struct stat status{};
  return stat("/proc/self/ns/pid", &status) == 0 ? status.st_ino : 0;
}

// A file without a name: it goes when the last rank has gone, however that ends.
int MakeFile(std::size_t bytes) {
#ifdef MFD_CLOEXEC
  const int file = memfd_create("pfftjax", MFD_CLOEXEC);
  if (file >= 0 && ftruncate(file, static_cast<off_t>(bytes)) != 0) {
    close(file);
    return -1;
  }
  return file;
#else
  static_cast<void>(bytes);
  return -1;
#endif
}

void* MapFile(int file, std::size_t bytes) {
  void* base =
      file < 0 ? MAP_FAILED : mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  return base == MAP_FAILED ? nullptr : base;
}

cpu_set_t Cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  sched_getaffinity(0, sizeof set, &set);
  return set;
}

// Of the whole job on this node, as far as the launcher says: other communicators' ranks want
// cores as well.
int RanksOnNode(int at_least) {
  for (const char* name : {"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"}) {
    if (const char* value = std::getenv(name)) return std::max(at_least, std::atoi(value));
  }
  return at_least;
}

}  // namespace

// What one rank tells another in a round: that its slot is filled, and with what. What fits comes
// with it on the same cache line. A rank begins a round only when it has the notes of all others
// of the round before, and a note says that its writer has read all rounds before it: that is why
// two slots suffice, and why nobody says that it has read.
struct Node::Note {
  static constexpr std::size_t kPayload = kLine - 2 * sizeof(std::int64_t);
  alignas(kLine) std::atomic<std::int64_t> round;
  std::atomic<std::int64_t> about;
  char payload[kPayload];
};

std::size_t Node::HeaderBytes(int ranks) {
  constexpr std::size_t page = 4096;
  const std::size_t notes = static_cast<std::size_t>(ranks) * kSlots * ranks * sizeof(Note);
  return (kChoiceEnd + notes + page - 1) / page * page;
}

std::unique_ptr<Node> Node::Make(Communicator& comm) {
  if (comm.size > kMostRanks || !GetOptions().shared_memory) return nullptr;
  static_assert(std::atomic<std::int64_t>::is_always_lock_free);
  const MpiApi& mpi = *Mpi();
  const std::size_t bytes = HeaderBytes(comm.size) + comm.size * kSlots * kSlotBytes;

  Offer mine;
  mine.kernel = KernelNumber();
  mine.processes = ProcessNamespace();
  mine.process = getpid();
  mine.cores = Cores();
  void* base = nullptr;
  int file = -1;
  if (comm.rank == 0) {
    std::random_device random;
    mine.secret = (std::uint64_t{random()} << 32) | random();
    file = MakeFile(bytes);
    mine.file = file;
    base = MapFile(file, bytes);
    if (base) std::memcpy(base, &mine.secret, sizeof mine.secret);
    if (base) new (static_cast<char*>(base) + kLine) std::atomic<std::int64_t>(0);
  }
  std::vector<Offer> all(static_cast<std::size_t>(comm.size));
  bool ok = mpi.allgather(&mine, all.data(), sizeof mine, Element::kU8, comm.control) == 0;

  const Offer& first = all[0];
  cpu_set_t cores;
  CPU_ZERO(&cores);
  for (const Offer& offer : all) {
    ok &= offer.kernel == first.kernel && offer.processes == first.processes;
    CPU_OR(&cores, &cores, &offer.cores);
  }
  ok &= first.file >= 0;
  if (ok && comm.rank > 0) {
    const std::string path =
        "/proc/" + std::to_string(first.process) + "/fd/" + std::to_string(first.file);
    file = open(path.c_str(), O_RDWR | O_CLOEXEC);
    base = MapFile(file, bytes);
    ok = base && std::memcmp(base, &first.secret, sizeof first.secret) == 0;
  }
  ok &= base != nullptr;
  // Also a barrier: rank 0's file is open until all have it.
  std::int64_t able = ok;
  std::int64_t all_able = 0;
  const int code =
      mpi.allreduce(&able, &all_able, 1, Element::kS64, Reduction::kMin, comm.control);
  if (file >= 0) close(file);
  if (code != 0 || !all_able) {
    if (base) munmap(base, bytes);
    return nullptr;
  }
  const int ranks =
      CPU_COUNT(&first.cores) < CPU_COUNT(&cores) ? comm.size : RanksOnNode(comm.size);
  const bool is_crowded = CPU_COUNT(&cores) < ranks;
  std::unique_ptr<Node> node(new Node(comm, base, bytes, is_crowded));
  // Pages of a rank's own, near it, before the first exchange needs them.
  std::memset(node->Slot(comm.rank, 0), 0, kSlots * kSlotBytes);
  return node;
}

Node::Node(Communicator& comm, void* base, std::size_t bytes, bool is_crowded)
    : comm_(comm), base_(static_cast<char*>(base)), bytes_(bytes), is_crowded_(is_crowded) {}

Node::~Node() { munmap(base_, bytes_); }

Node::Note& Node::NoteOf(int source, int dest, std::int64_t round) const {
  auto* notes = reinterpret_cast<Note*>(base_ + kChoiceEnd);
  return notes[(source * kSlots + round % kSlots) * comm_.size + dest];
}

char* Node::Slot(int rank, std::int64_t round) const {
  return base_ + HeaderBytes(comm_.size) + (rank * kSlots + round % kSlots) * kSlotBytes;
}

template <typename Condition>
int Node::WaitFor(Condition&& condition) const {
  constexpr int kSpins = 4000;
  constexpr int kYields = 1000;
  constexpr int kYieldsToProgress = 64;
  for (int i = 0; i < (is_crowded_ ? 1 : kSpins); ++i) {
    if (condition()) return 0;
    Pause();
  }
  for (int i = 0; !condition(); ++i) {
    // Somebody may wait for a message of ours that MPI has not finished.
    if (i % kYieldsToProgress == kYieldsToProgress - 1) {
      if (const int code = Mpi()->progress(comm_.control)) return code;
    }
    if (i < kYields) {
      sched_yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }
  return 0;
}

int Node::Exchange(const char* send, char* recv, std::int64_t block, bool is_same_for_all,
                   Slots slots) {
  const int size = comm_.size;
  const int rank = comm_.rank;
  // What one rank has for another in one round.
  const std::int64_t share =
      is_same_for_all ? kSlotBytes : kSlotBytes / size / std::int64_t{kLine} * std::int64_t{kLine};
  const std::int64_t most = std::min(share, GetOptions().max_chunk_bytes);
  const auto place = [&](int dest) { return is_same_for_all ? 0 : dest * share; };
  const std::int64_t about = About(block, is_same_for_all);
  const bool is_past_cache = slots == Slots::kPastCache && std::min(most, block) >= kCachedPiece;
  const auto copy_in = is_past_cache ? CopyPastCache : Copy;
  const auto copy_out = block * size > kCachedResult ? CopyPastCache : Copy;

  for (std::int64_t offset = 0; offset < block; offset += most) {
    const auto piece = static_cast<std::size_t>(std::min(most, block - offset));
    const bool is_noted = piece <= Note::kPayload;
    const std::int64_t round = ++round_;
    char* slot = Slot(rank, round);
    if (is_same_for_all && !is_noted) copy_in(slot, send + offset, piece);
    for (int step = 1; step < size; ++step) {
      const int dest = (rank + step) % size;
      const char* from = send + (is_same_for_all ? 0 : dest * block) + offset;
      Note& note = NoteOf(rank, dest, round);
      if (is_noted) {
        std::memcpy(note.payload, from, piece);
      } else if (!is_same_for_all) {
        copy_in(slot + place(dest), from, piece);
      }
      note.about.store(about, std::memory_order_relaxed);
      note.round.store(round, std::memory_order_release);
    }

    copy_out(recv + rank * block + offset, send + (is_same_for_all ? 0 : rank * block) + offset,
             piece);
    for (int step = 1; step < size; ++step) {
      const int source = (rank + size - step) % size;
      const Note& note = NoteOf(source, rank, round);
      const int code =
          WaitFor([&] { return note.round.load(std::memory_order_acquire) == round; });
      if (code != 0) return code;
      const std::int64_t other = note.about.load(std::memory_order_relaxed);
      if (other != about) {
        comm_.difference = "rank " + std::to_string(source) + " is in " + Say(other) +
                           ", and this rank in " + Say(about);
        return kOtherSizes;
      }
      const char* from = is_noted ? note.payload : Slot(source, round) + place(rank);
      copy_out(recv + source * block + offset, from, piece);
    }
  }
  return 0;
}

int Node::Choose(int* method) {
  constexpr std::int64_t kTrials = 3;   // of each, to begin with
  constexpr std::int64_t kAgain = 128;  // then any of them once in so many
  auto& choice = *reinterpret_cast<std::atomic<std::int64_t>*>(base_ + kLine);
  const std::int64_t number = choices_++;
  if (comm_.rank == 0) {
    const auto fastest = std::min_element(best_.begin(), best_.end()) - best_.begin();
    *method = static_cast<int>(number < kMethods * kTrials ? number % kMethods
                               : number % kAgain == 0      ? number / kAgain % kMethods
                                                           : fastest);
    choice.store(kMethods * (number + 1) + *method, std::memory_order_release);
    return 0;
  }
  // Rank 0 comes to the next choice only when all have taken part in this exchange.
  std::int64_t made = 0;
  const int code = WaitFor([&] {
    made = choice.load(std::memory_order_acquire);
    return made / kMethods == number + 1;
  });
  *method = static_cast<int>(made % kMethods);
  return code;
}

void Node::Took(int method, std::int64_t bytes, double seconds) {
  // A little forgetful: the system moves processes, and others come and go.
  constexpr double kForget = 1.05;
  const double rate = seconds / static_cast<double>(bytes);
  double& best = best_[method];
  best = best == 0 ? rate : std::min(best * kForget, rate);
}

int Node::Alltoall(const void* send, void* recv, std::int64_t block, Slots slots) {
  return Exchange(static_cast<const char*>(send), static_cast<char*>(recv), block, false, slots);
}

int Node::Allgather(const void* send, void* recv, std::int64_t block, Slots slots) {
  return Exchange(static_cast<const char*>(send), static_cast<char*>(recv), block, true, slots);
}

Node* NodeOf(Communicator& comm) {
  if (!comm.is_node_known) {
    comm.node = comm.size > 1 ? Node::Make(comm) : nullptr;
    comm.is_node_known = true;
  }
  return comm.node.get();
}

}  // namespace pfftjax
