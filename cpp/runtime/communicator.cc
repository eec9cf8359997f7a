#include "runtime/communicator.h"

#include <dlfcn.h>

#include <array>
#include <chrono>
#include <mutex>
#include <stdexcept>
#include <utility>

#include "runtime/agreement.h"
#include "runtime/departure.h"
#include "runtime/terminate.h"
#include "runtime/watch.h"

namespace pfftjax {
namespace {

process::Own<const MpiApi*> mpi;

process::Own<std::array<process::Atomic<Communicator*>, kMaxCommunicators>> communicators;
process::Own<process::Atomic<std::int64_t>> communicator_count;

void BecomePrivate(Communicator& comm) {
  comm.is_private.store(true, std::memory_order_release);
  comm.is_gathering.store(false, std::memory_order_release);
}

// The error stays. A second try could be matched by what other ranks have begun for the first one.
int GiveUp(Communicator& comm, int code) {
  comm.failed_duplication = code;
  comm.is_gathering.store(false, std::memory_order_release);
  comm.is_duplicating = false;
  return code;
}

}  // namespace

std::string Communicator::Where() const {
  return "rank " + std::to_string(rank) + " of " + std::to_string(size);
}

const MpiApi* Mpi() { return *mpi; }

std::string MpiErrorText(int code) {
  std::array<char, 1024> text{};
  Mpi()->error_text(code, text.data(), text.size());
  return text.data();
}

void ShareMpi(const std::string& user) {
  void* library = dlopen(user.c_str(), RTLD_NOW | RTLD_NOLOAD);
  if (!library) throw std::runtime_error(user + " is not loaded");
  // The search goes through the libraries that it is linked with.
  void* function = dlsym(library, "MPI_Initialized");
  Dl_info place{};
  if (function && dladdr(function, &place) != 0) {
    dlopen(place.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_GLOBAL);
  }
  dlclose(library);
}

void LoadMpi(const std::string& path) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) throw std::runtime_error(dlerror());
  using Getter = const MpiApi* (*)();
  const auto getter = reinterpret_cast<Getter>(dlsym(library, "pfftjax_mpi_api"));
  if (!getter) throw std::runtime_error(dlerror());
  const MpiApi* api = getter();
  if (api->version != kMpiApiVersion) {
    throw std::runtime_error(path + " is from another version of pfftjax; reinstall pfftjax");
  }
  *mpi = api;
  Mpi()->on_finalize(PrepareToFinalize);
}

std::int64_t AddCommunicator(const void* address, std::vector<int> world_ranks) {
  const std::int64_t number = communicator_count->load();
  if (number >= kMaxCommunicators) {
    throw std::runtime_error("more than " + std::to_string(kMaxCommunicators) +
                             " communicators in one process; make them once and reuse them");
  }
  auto comm = new Communicator;  // stays: asynchronous work may look it up until the process ends
  comm->number = number;
  comm->world_ranks = std::move(world_ranks);
  comm->group = Hash(comm->world_ranks.data(), comm->world_ranks.size() * sizeof(int));
  Mpi()->from_address(address, &comm->user);
  if (Mpi()->rank_and_size(comm->user, &comm->rank, &comm->size) != 0) {
    delete comm;
    throw std::runtime_error("MPI does not know this communicator; has it been freed?");
  }
  (*communicators)[number].store(comm, std::memory_order_release);
  *communicator_count = number + 1;
  return number;
}

Communicator* FindCommunicator(std::int64_t number) {
  if (number < 0 || number >= kMaxCommunicators) return nullptr;
  return (*communicators)[number].load(std::memory_order_acquire);
}

std::int64_t CommunicatorCount() { return communicator_count->load(); }

int WorldRank(const Communicator& comm, int rank) {
  return comm.world_ranks.empty() ? rank : comm.world_ranks[static_cast<std::size_t>(rank)];
}

std::string FreedText(const std::string& operation, const Communicator& comm) {
  return "pfftjax: " + operation + " on " + comm.Where() +
         ": the communicator was freed before its first collective, or before a message on it had "
         "begun; wait for results by jax.block_until_ready before comm.Free()";
}

int MakePrivate(Communicator& comm, const std::string& operation) {
  constexpr auto kPause = std::chrono::microseconds(100);
  if (comm.is_private) return 0;
  if (const int code = MakePrivateStart(comm, operation)) return code;
  for (bool done = false;;) {
    if (const int code = MakePrivatePoll(comm, &done)) return code;
    if (done) return 0;
    process::SleepFor(kPause);
  }
}

int MakePrivateStart(Communicator& comm, const std::string& operation, const std::string& line) {
  const std::lock_guard lock(comm.making);
  if (comm.failed_duplication != 0) return comm.failed_duplication;
  if (comm.is_duplicating) return 0;  // by a call that was interrupted
  comm.is_duplicating = true;
  comm.gathers_for = operation;
  if (!line.empty()) comm.gathers_at = ", called at " + line;
  if (comm.size > 1) {
    comm.is_gathering.store(true, std::memory_order_release);
    StartWatch();
    static const bool once = (ReportTermination(), true);
    static_cast<void>(once);
  }
  int code = Mpi()->duplicate_start(comm.user, &comm.data, &comm.duplicating[0]);
  if (code == 0) {
    code = Mpi()->duplicate_start(comm.user, &comm.control, &comm.duplicating[1]);
  }
  return code == 0 ? 0 : GiveUp(comm, code);
}

int MakePrivatePoll(Communicator& comm, bool* done) {
  const std::lock_guard lock(comm.making);
  *done = comm.is_private;
  if (*done || !comm.is_duplicating) return comm.failed_duplication;
  ++comm.looks;
  for (MpiHandle& request : comm.duplicating) {
    int complete = 0;
    if (int code = Mpi()->test(&request, &complete, nullptr)) return GiveUp(comm, code);
    if (!complete) return 0;
  }
  if (int code = Mpi()->return_errors(comm.data)) return GiveUp(comm, code);
  if (int code = Mpi()->return_errors(comm.control)) return GiveUp(comm, code);
  BecomePrivate(comm);
  *done = true;
  return 0;
}

int MaxTag() {
  static const int limit = [] {
    int value = 0;
    Mpi()->tag_limit(&value);
    return (value - 1) / 2;  // twice as many and one fit: see PointToPoint
  }();
  return limit;
}

bool PointToPoint(const Communicator& comm, int send_tag, int recv_tag, Channel* channel) {
  if (comm.is_private) {
    *channel = {comm.data, send_tag, recv_tag < 0 ? Mpi()->any_tag : recv_tag};
    return true;
  }
  if (recv_tag == kAnyTag) return false;
  const int base = MaxTag() + 1;
  *channel = {comm.user, base + send_tag, base + (recv_tag < 0 ? send_tag : recv_tag), base};
  return true;
}

}  // namespace pfftjax
