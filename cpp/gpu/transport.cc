#include "gpu/transport.h"

#include <array>
#include <mutex>
#include <optional>

#include "base/process.h"
#include "gpu/probe.h"
#include "runtime/call.h"

namespace pfftjax::gpu {
namespace {

std::mutex mutex;
std::vector<Chosen> chosen;  // under `mutex`

// The transport of a communicator of one rank.
class Alone final : public Transport {
 public:
  const char* name() const override { return "copy"; }
  std::string description() const override { return "copy (one rank)"; }
  // These are the identity of one operand; logical operations make 0 and 1 of numbers.
  bool CanReduce(Element, Reduction reduction) const override {
    return reduction <= Reduction::kMax;
  }
  int Reduce(Communicator&, const Reducing& what, const void* send, void* recv,
             Queue& queue) override {
    const std::int64_t bytes = what.count * InfoOf(what.element).bytes;
    if (send != recv) queue.Copy(recv, send, bytes, Direction::kOnDevice);
    return 0;
  }

 protected:
  int Move(Communicator& comm, const void* send, const std::vector<Block>& to, void* recv,
           const std::vector<Block>& from, Queue& queue) override {
    CopyOwnBlock(comm, send, to, recv, from, queue);
    return 0;
  }
};

struct Candidate {
  const char* name;
  std::unique_ptr<Transport> (*make)(Communicator& comm, const Devices& devices, std::string* why);
  bool is_exclusive;  // as `device_transport` says
};

constexpr std::array<Candidate, 4> kCandidates = {{
    {"nccl", MakeNccl, true},
    {"ipc", MakeIpc, false},
    {"mpi", MakeGpuAwareMpi, true},
    {"staging", MakeStaging, false},
}};

// Returns the candidate's transport where it can be had and does what it should. Otherwise null,
// with the reason.
std::unique_ptr<Transport> Try(const Candidate& candidate, Communicator& comm,
                               const Devices& devices, std::string* why) {
  std::unique_ptr<Transport> made = candidate.make(comm, devices, why);
  if (!made) return nullptr;
  *why = Probe(comm, *made);
  if (why->empty()) {
    made->Accept();
    if (candidate.is_exclusive) device_transport = candidate.name;
    return made;
  }
  *why = "it was tried and failed " + *why;
  made->Discard();
  static_cast<void>(made.release());  // a device may be at work on what it holds
  // What follows is slower, and no error.
  if (comm.rank == 0 && GetTransportOptions().name.empty()) {
    process::WriteError("pfftjax: the GPUs of communicator " + std::to_string(comm.number) +
                        " do not exchange by " + candidate.name + ": " + *why + "\n");
  }
  return nullptr;
}

// Returns what the ranks have to do alike before any of them tries.
std::string Terms() {
  const std::string& name = GetTransportOptions().name;
  const Options& options = GetOptions();
  // Messages are cut alike on both sides.
  return "PFFTJAX_GPU_TRANSPORT=" + (name.empty() ? "auto" : name) +
         "\nPFFTJAX_GPU_CHUNK_BYTES=" + std::to_string(GetTransportOptions().chunk_bytes) +
         "\nPFFTJAX_GPU_PROBE_BYTES=" + std::to_string(GetTransportOptions().probe_bytes) +
         "\nPFFTJAX_MAX_CHUNK_BYTES=" + std::to_string(options.max_chunk_bytes) +
         "\nXLA's platform " + Device()->platform;
}

// The identities of the devices that are current on the ranks; what may keep a rank from knowing
// its own is in `why`, alike on all ranks. Collective.
Devices DevicesOf(Communicator& comm, std::string* why) {
  using Name = std::array<char, 96>;
  Name mine{};
  *why = Attempt(comm, [&]() -> std::string {
    int device = 0;
    Check(Device()->current_device(&device), "asking for the device");
    Check(Device()->identity(device, mine.data(), mine.size() - 1), "naming the device");
    return {};
  });
  if (!why->empty()) return {};
  std::vector<Name> all(static_cast<std::size_t>(comm.size));
  const int code =
      Mpi()->allgather(mine.data(), all.data(), sizeof mine, Element::kU8, comm.control);
  *why = FirstText(comm, code == 0 ? "" : "MPI could not gather the names of the devices");
  if (!why->empty()) return {};
  Devices result;
  for (const Name& name : all) result.emplace_back(name.data());
  return result;
}

// "GPU-1c2d..., shared by ranks 0 and 1"
std::string Say(const Devices& devices, int rank) {
  std::string text = devices[rank];
  std::string sharing;
  int others = 0;
  for (std::size_t other = 0; other < devices.size(); ++other) {
    if (devices[other] != devices[rank]) continue;
    if (static_cast<int>(other) != rank) ++others;
    sharing += (sharing.empty() ? "" : ", ") + std::to_string(other);
  }
  return others == 0 ? text : text + ", shared by ranks " + sharing;
}

// The transport of a communicator, and how it came to be it.
struct Choice {
  std::unique_ptr<Transport> transport;
  std::string refusal;  // why there is none
  std::string text;     // which one, and why none before it; alike on all ranks
  std::string device;   // of this rank, and who shares it
};

Choice Choose(Communicator& comm) {
  Choice choice;
  if (comm.size == 1) {
    choice.transport = std::make_unique<Alone>();
    choice.text = choice.transport->description();
    std::string why;
    const Devices devices = DevicesOf(comm, &why);
    choice.device = why.empty() ? devices[0] : "unknown";
    return choice;
  }
  const std::string terms = Terms();
  const std::string how =
      Disagreement(comm, static_cast<std::int64_t>(Hash(terms.data(), terms.size())), terms);
  if (!how.empty()) {
    choice.refusal = "the ranks would exchange GPU arrays in different ways: " + how +
                     "; export it to all of them (with Open MPI: mpirun -x PFFTJAX_GPU_TRANSPORT)";
    return choice;
  }
  const Devices devices = DevicesOf(comm, &choice.refusal);
  if (!choice.refusal.empty()) return choice;
  choice.device = Say(devices, comm.rank);

  const std::string& named = GetTransportOptions().name;
  std::string refused;
  for (const Candidate& candidate : kCandidates) {
    if (!named.empty() && named != candidate.name) continue;
    std::string why;
    choice.transport = Try(candidate, comm, devices, &why);
    if (choice.transport) break;
    refused += std::string(refused.empty() ? "" : "; ") + candidate.name + ": " + why;
  }
  if (!choice.transport) {
    choice.refusal = (named.empty() ? "no way between the ranks' GPUs was found"
                                    : "PFFTJAX_GPU_TRANSPORT=" + named +
                                          " cannot be had here; unset it for "
                                          "the best that can") +
                     " (" + refused + ")";
    return choice;
  }
  choice.text = choice.transport->description();
  if (!named.empty()) choice.text += ", named by PFFTJAX_GPU_TRANSPORT";
  if (!refused.empty()) choice.text += ", and not " + refused;
  return choice;
}

}  // namespace

int Transport::Exchange(Communicator& comm, const void* send, const std::vector<Block>& to,
                        void* recv, const std::vector<Block>& from, Queue& queue) {
  ThrowIfFailed();
  about_ = MeaningOf(comm);
  return OrGiveUp([&] { return Move(comm, send, to, recv, from, queue); },
                  [&] {
                    has_failed_ = true;
                    GiveUp(queue);
                  });
}

void Transport::ThrowIfFailed() const {
  if (!has_failed_) return;
  throw std::runtime_error(std::string("an exchange by ") + name() + " has failed before");
}

// Sent straight to every rank, (size - 1) bytes leave the root for each byte. In parts, one for
// each rank, which the ranks then give to all others, no link carries more than 2 a byte: worth
// one exchange more once what the root sends less takes longer than that.
int Transport::Bcast(Communicator& comm, void* data, std::int64_t bytes, int root, Queue& queue) {
  constexpr std::int64_t kSaved = std::int64_t{64} << 10;
  constexpr std::int64_t kAlign = 256;  // parts begin where copies are fastest
  const bool is_root = comm.rank == root;
  const std::int64_t share = ((bytes - 1) / comm.size / kAlign + 1) * kAlign;
  const auto part = [&](int rank) {
    const std::int64_t offset = std::min(rank * share, bytes);
    return Block{offset, std::min(share, bytes - offset)};
  };
  const bool is_direct = (comm.size - 2) * bytes <= kSaved;

  std::vector<Block> to(static_cast<std::size_t>(comm.size));
  std::vector<Block> from(to);
  for (int rank = 0; is_root && rank < comm.size; ++rank) {
    if (rank != root) to[rank] = is_direct ? Block{0, bytes} : part(rank);
  }
  if (!is_root) from[root] = is_direct ? Block{0, bytes} : part(comm.rank);
  const int code = Exchange(comm, data, to, data, from, queue);
  if (code != 0 || is_direct) return code;

  for (int rank = 0; rank < comm.size; ++rank) {
    to[rank] = rank == comm.rank || rank == root ? Block{} : part(comm.rank);
    from[rank] = rank == comm.rank || is_root ? Block{} : part(rank);
  }
  return Exchange(comm, data, to, data, from, queue);
}

Transport& TransportOf(Communicator& comm) {
  auto& choice = comm.Attached<std::optional<Choice>>();
  if (!choice) {
    // Before the ranks try anything together, and before the first exchange of a transport that
    // runs ahead: this call began before anyone knew that calls are to be compared.
    if (comm.size > 1) comm.under_way->MustAgree();
    choice = Choose(comm);
    comm.runs_ahead = choice->transport && choice->transport->RunsAhead();
    const std::string& text = choice->transport ? choice->text : choice->refusal;
    const std::lock_guard lock(mutex);
    chosen.push_back({comm.number, text, choice->device});
  }
  if (!choice->transport) throw std::runtime_error(choice->refusal);
  return *choice->transport;
}

std::string KeptOut(const char* name) {
  const char* other = device_transport;
  if (!other || !GetTransportOptions().name.empty() || std::string_view(other) == name) return {};
  return std::string("this process already has a communicator by ") + other +
         ", and both on one device are not safe";
}

std::vector<Chosen> ChosenTransports() {
  const std::lock_guard lock(mutex);
  return chosen;
}

}  // namespace pfftjax::gpu
