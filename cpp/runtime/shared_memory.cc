#include "runtime/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "base/options.h"
#include "runtime/agreement.h"

namespace pfftjax {
namespace {

// The ranks of a node must know this to map the memory of the first of them.
struct Offer {
  std::uint64_t secret = 0;  // at the beginning of the memory, to recognise it
  std::int64_t process = 0;
  std::int64_t file = -1;
  cpu_set_t cores;  // that this rank may use
};

// Ranks of which this differs cannot open each other's files: it stands for this boot of this
// kernel, for the name space of process numbers, and for what tests say.
std::uint64_t MachineNumber() {
  std::string id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
  if (id.empty()) id = std::to_string(std::random_device{}());
  struct stat status{};
  if (stat("/proc/self/ns/pid", &status) == 0) id += " " + std::to_string(status.st_ino);
  id += " " + std::to_string(GetOptions().node);
  return Hash(id.data(), id.size());
}

// A file without a name: it goes when the last rank has gone, however that ends.
int MakeFile(std::size_t bytes) {
  const int file = memfd_create("pfftjax", MFD_CLOEXEC);
  if (file >= 0 && ftruncate(file, static_cast<off_t>(bytes)) != 0) {
    close(file);
    return -1;
  }
  return file;
}

// Takes memory for this part of a file, near this process. Where the system has none left this
// fails, while a later write to the file would end the process (SIGBUS).
bool Reserve(int file, std::size_t from, std::size_t to) {
  // A signal undoes the call that it interrupts: pieces are short, so that each succeeds some
  // time.
  constexpr std::size_t kPiece = std::size_t{8} << 20;
  while (from < to) {
    const std::size_t piece = std::min(kPiece, to - from);
    if (fallocate(file, 0, static_cast<off_t>(from), static_cast<off_t>(piece)) == 0) {
      from += piece;
    } else if (errno == EOPNOTSUPP || errno == ENOSYS) {
      return true;  // such a system cannot say
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

// Says whether it is one of ours, and as large: /proc may lead to another one.
bool IsFileOf(int file, std::size_t bytes) {
  struct stat status{};
  return file >= 0 && fstat(file, &status) == 0 && S_ISREG(status.st_mode) &&
         status.st_size >= static_cast<off_t>(bytes);
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

}  // namespace

std::vector<int> FirstRanksOnNodes(const Communicator& comm) {
  const std::uint64_t mine = MachineNumber();
  std::vector<std::uint64_t> all(static_cast<std::size_t>(comm.size));
  const int code = Mpi()->allgather(&mine, all.data(), 1, Element::kU64, comm.control);
  std::vector<int> nodes;
  for (int rank = 0; rank < comm.size; ++rank) {
    const auto first = std::find(all.begin(), all.begin() + rank, all[rank]);
    nodes.push_back(code == 0 ? static_cast<int>(first - all.begin()) : rank);
  }
  return nodes;
}

std::unique_ptr<SharedMemory> SharedMemory::Make(const Communicator& comm, std::size_t bytes,
                                                 std::size_t bytes_a_rank) {
  const std::vector<int> nodes = FirstRanksOnNodes(comm);
  const auto is_first = [](int node) { return node == 0; };
  if (!std::all_of(nodes.begin(), nodes.end(), is_first)) return nullptr;
  return Make(comm, nodes, bytes, bytes_a_rank);
}

std::unique_ptr<SharedMemory> SharedMemory::Make(const Communicator& comm,
                                                 const std::vector<int>& nodes, std::size_t bytes,
                                                 std::size_t bytes_a_rank) {
  const MpiApi& mpi = *Mpi();
  const int node = nodes[comm.rank];
  const bool is_wanted = bytes > 0;
  bytes += kBefore;
  const auto on_node = static_cast<std::size_t>(std::count(nodes.begin(), nodes.end(), node));
  const auto place =
      static_cast<std::size_t>(std::count(nodes.begin(), nodes.begin() + comm.rank, node));
  const std::size_t parts = bytes - on_node * bytes_a_rank;  // where they begin
  Offer mine;
  mine.process = getpid();
  mine.cores = Cores();
  void* base = nullptr;
  int file = -1;
  if (is_wanted && comm.rank == node) {
    std::random_device random;
    mine.secret = (std::uint64_t{random()} << 32) | random();
    file = MakeFile(bytes);
    if (file >= 0 && Reserve(file, 0, parts)) base = MapFile(file, bytes);
    if (base) {
      mine.file = file;
      std::memcpy(base, &mine.secret, sizeof mine.secret);
    }
  }
  std::vector<Offer> all(static_cast<std::size_t>(comm.size));
  bool ok = mpi.allgather(&mine, all.data(), sizeof mine, Element::kU8, comm.control) == 0;

  const Offer& first = all[node];
  cpu_set_t cores;
  CPU_ZERO(&cores);
  int ranks = 0;
  for (int rank = 0; rank < comm.size; ++rank) {
    if (nodes[rank] != node) continue;
    CPU_OR(&cores, &cores, &all[rank].cores);
    ++ranks;
  }
  if (ok && is_wanted && comm.rank != node && first.file >= 0) {
    const std::string path =
        "/proc/" + std::to_string(first.process) + "/fd/" + std::to_string(first.file);
    file = open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (IsFileOf(file, bytes)) base = MapFile(file, bytes);
    ok = base && std::memcmp(base, &first.secret, sizeof first.secret) == 0;
  }
  const std::size_t part = parts + place * bytes_a_rank;
  ok &= !is_wanted || (base && Reserve(file, part, part + bytes_a_rank));
  // This is a barrier, too: the first rank's file is open until all have it.
  std::int64_t able = ok;
  std::int64_t all_able = 0;
  const int code =
      mpi.allreduce(&able, &all_able, 1, Element::kS64, Reduction::kMin, comm.control);
  if (file >= 0) close(file);
  if (code != 0 || !all_able || !is_wanted) {
    if (base) munmap(base, bytes);
    return nullptr;
  }
  // Ranks of other communicators want cores as well.
  if (CPU_COUNT(&first.cores) == CPU_COUNT(&cores)) {
    ranks = std::max(ranks, GetOptions().local_ranks);
  }
  const bool is_crowded = CPU_COUNT(&cores) < ranks;
  return std::unique_ptr<SharedMemory>(
      new SharedMemory(static_cast<char*>(base), bytes, is_crowded));
}

SharedMemory::~SharedMemory() { munmap(base_, bytes_); }

}  // namespace pfftjax
