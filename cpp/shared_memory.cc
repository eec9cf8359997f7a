#include "shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "agreement.h"

namespace pfftjax {
namespace {

// What ranks tell each other to find out whether they can share memory.
struct Offer {
  std::uint64_t kernel = 0;     // of this boot of this kernel
  std::uint64_t processes = 0;  // the name space of process numbers
  std::uint64_t secret = 0;     // at the beginning of the memory, to recognise it
  std::int64_t process = 0;
  std::int64_t file = -1;  // of rank 0's memory
  cpu_set_t cores;         // that this rank may use
};

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

std::unique_ptr<SharedMemory> SharedMemory::Make(const Communicator& comm, std::size_t bytes) {
  const MpiApi& mpi = *Mpi();
  bytes += kCacheLine;
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
  return std::unique_ptr<SharedMemory>(
      new SharedMemory(static_cast<char*>(base), bytes, is_crowded));
}

SharedMemory::~SharedMemory() { munmap(base_, bytes_); }

}  // namespace pfftjax
