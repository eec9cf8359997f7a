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
#include <utility>
#include <vector>

#include "base/cores.h"
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

// A rank's mapping of the memory of its node, and the file that the memory is while ranks map it.
class Mapping {
 public:
  explicit Mapping(std::size_t bytes) : bytes_(bytes) {}
  ~Mapping() {
    if (base_) munmap(base_, bytes_);
    if (file_ >= 0) close(file_);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  // Makes a file without a name, which goes when the last rank has gone, however that ends. The
  // first bytes of it are taken for good, and begin with `secret`.
  void Make(std::size_t taken, std::uint64_t secret) {
    file_ = memfd_create("pfftjax", MFD_CLOEXEC);
    if (file_ < 0 || ftruncate(file_, static_cast<off_t>(bytes_)) != 0) return;
    if (Take(0, taken)) Map();
    if (base_) std::memcpy(base_, &secret, sizeof secret);
  }

  // Opens the file of another rank. /proc may lead to another file than that.
  void Open(const Offer& offer) {
    const std::string path =
        "/proc/" + std::to_string(offer.process) + "/fd/" + std::to_string(offer.file);
    file_ = open(path.c_str(), O_RDWR | O_CLOEXEC);
    struct stat status{};
    if (file_ < 0 || fstat(file_, &status) != 0 || !S_ISREG(status.st_mode) ||
        status.st_size < static_cast<off_t>(bytes_)) {
      return;
    }
    Map();
    if (!base_ || std::memcmp(base_, &offer.secret, sizeof offer.secret) == 0) return;
    munmap(base_, bytes_);
    base_ = nullptr;
  }

  // What others open, or -1.
  int file() const { return base_ ? file_ : -1; }

  // Takes memory for this part of it, near this process. Where there is none left this fails,
  // while a later write would end the process (SIGBUS).
  bool Reserve(std::size_t from, std::size_t to) const { return base_ && Take(from, to); }

  char* Release() { return static_cast<char*>(std::exchange(base_, nullptr)); }

 private:
  bool Take(std::size_t from, std::size_t to) const {
    // A signal undoes the call that it interrupts: pieces are short, so that each succeeds some
    // time.
    constexpr std::size_t kPiece = std::size_t{8} << 20;
    while (from < to) {
      const std::size_t piece = std::min(kPiece, to - from);
      if (fallocate(file_, 0, static_cast<off_t>(from), static_cast<off_t>(piece)) == 0) {
        from += piece;
      } else if (errno == EOPNOTSUPP || errno == ENOSYS) {
        return true;  // such a system cannot say
      } else if (errno != EINTR) {
        return false;
      }
    }
    return true;
  }
  void Map() {
    void* const base = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
    if (base != MAP_FAILED) base_ = base;
  }

  const std::size_t bytes_;
  int file_ = -1;
  void* base_ = nullptr;
};

// Says whether the ranks of a node are more than the cores that they may use.
bool IsCrowded(const std::vector<Offer>& offers, const std::vector<int>& nodes, int node) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  int ranks = 0;
  for (std::size_t rank = 0; rank < offers.size(); ++rank) {
    if (nodes[rank] != node) continue;
    CPU_OR(&cores, &cores, &offers[rank].cores);
    ++ranks;
  }
  // Ranks of other communicators want cores as well.
  if (CPU_COUNT(&offers[node].cores) == CPU_COUNT(&cores)) {
    ranks = std::max(ranks, GetOptions().local_ranks);
  }
  return CPU_COUNT(&cores) < ranks;
}

// Says on all ranks whether all of them can. None returns before all have come here.
bool AllCan(const Communicator& comm, bool can) {
  const std::int64_t mine = can;
  std::int64_t least = 0;
  const int code =
      Mpi()->allreduce(&mine, &least, 1, Element::kS64, Reduction::kMin, comm.control);
  return code == 0 && least != 0;
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
  const int node = nodes[comm.rank];
  const bool is_wanted = bytes > 0;
  bytes += kBefore;
  const auto on_node = static_cast<std::size_t>(std::count(nodes.begin(), nodes.end(), node));
  const auto place =
      static_cast<std::size_t>(std::count(nodes.begin(), nodes.begin() + comm.rank, node));
  const std::size_t parts = bytes - on_node * bytes_a_rank;  // where they begin
  const std::size_t part = parts + place * bytes_a_rank;
  Mapping mapping(bytes);
  Offer mine;
  mine.process = getpid();
  mine.cores = AllowedCores();
  if (is_wanted && comm.rank == node) {
    std::random_device random;
    mine.secret = (std::uint64_t{random()} << 32) | random();
    mapping.Make(parts, mine.secret);
    mine.file = mapping.file();
  }
  std::vector<Offer> all(static_cast<std::size_t>(comm.size));
  const int code = Mpi()->allgather(&mine, all.data(), sizeof mine, Element::kU8, comm.control);
  if (code == 0 && is_wanted && comm.rank != node && all[node].file >= 0) mapping.Open(all[node]);
  const bool can = code == 0 && (!is_wanted || mapping.Reserve(part, part + bytes_a_rank));
  // The first rank's file is open until all have opened it.
  if (!AllCan(comm, can) || !is_wanted) return nullptr;
  return std::unique_ptr<SharedMemory>(
      new SharedMemory(mapping.Release(), bytes, IsCrowded(all, nodes, node)));
}

SharedMemory::~SharedMemory() { munmap(base_, bytes_); }

}  // namespace pfftjax
