// NCCL on XLA's stream, or beside it: the host enqueues, and waits for nothing.
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>
#include <mutex>
#include <optional>

#include "gpu/in_flight.h"
#include "gpu/nccl_api.h"
#include "gpu/probe.h"
#include "gpu/transport.h"
#include "runtime/abort.h"
#include "runtime/inquiry.h"
#include "runtime/watch.h"

namespace pfftjax::gpu {
namespace nccl {
namespace {

// RCCL is NCCL for AMD's GPUs: the same functions, in a library of another name.
std::string Name() { return Device()->nccl ? Device()->nccl : "NCCL"; }

void* Open(std::string* why) {
  const TransportOptions& options = GetTransportOptions();
  if (!options.nccl.empty()) {
    void* library = dlopen(options.nccl.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library) *why = "PFFTJAX_NCCL=" + options.nccl + ": " + dlerror();
    return library;
  }
  // JAX's own, if there is one: two copies on one device do not know of each other's kernels.
  const char* const file = Device()->nccl_file;
  void* library = dlopen(file, RTLD_NOW | RTLD_NOLOAD);
  if (!library && !options.nccl_wheel.empty()) {
    library = dlopen(options.nccl_wheel.c_str(), RTLD_NOW | RTLD_LOCAL);
  }
  if (!library) library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    *why = "there is no " + Name() + " (" + dlerror() +
           "); install jax[cuda13] (NCCL) or ROCm (RCCL), or set PFFTJAX_NCCL to the path of " +
           file;
  }
  return library;
}

template <typename Function>
bool Find(void* library, const char* name, Function* function, std::string* why) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  if (!*function && why->empty()) *why = "this " + Name() + " has no " + name;
  return *function != nullptr;
}

std::optional<Api> Find(std::string* why) {
  void* library = Open(why);
  if (!library) return std::nullopt;
  Api api{};
  Find(library, "ncclGetVersion", &api.get_version, why);
  Find(library, "ncclGetUniqueId", &api.get_unique_id, why);
  Find(library, "ncclCommInitRank", &api.comm_init_rank, why);
  Find(library, "ncclCommAbort", &api.comm_abort, why);
  Find(library, "ncclCommGetAsyncError", &api.comm_get_async_error, why);
  Find(library, "ncclGetErrorString", &api.get_error_string, why);
  Find(library, "ncclGroupStart", &api.group_start, why);
  Find(library, "ncclGroupEnd", &api.group_end, why);
  Find(library, "ncclSend", &api.send, why);
  Find(library, "ncclRecv", &api.recv, why);
  Find(library, "ncclAllReduce", &api.all_reduce, why);
  Find(library, "ncclReduce", &api.reduce, why);
  Find(library, "ncclReduceScatter", &api.reduce_scatter, why);
  Find(library, "ncclBroadcast", &api.broadcast, why);
  if (!why->empty()) return std::nullopt;
  return api;
}

}  // namespace

const Api* Load(std::string* why) {
  static std::string reason;
  static const std::optional<Api> api = Find(&reason);
  *why = reason;
  return api ? &*api : nullptr;
}

std::string VersionText(int version) {
  // Up to 2.8 a version was 2804, since then it is 22703.
  const int major = version < 10000 ? version / 1000 : version / 10000;
  const int rest = version < 10000 ? version % 1000 : version % 10000;
  return std::to_string(major) + "." + std::to_string(rest / 100) + "." +
         std::to_string(rest % 100);
}

}  // namespace nccl

namespace {

// All that NCCL does on a device, by whatever communicator and on whatever stream, has one order:
// that in which it is enqueued, which is that of the program on all ranks. Kernels of two
// communicators that wait for each other's place on the device, here this one and there that,
// would wait for ever.
class InOrder {
 public:
  explicit InOrder(Queue& queue) : lock_(Mutex()), queue_(queue), last_(Last()) {
    queue.WaitFor(last_);
  }
  InOrder(const InOrder&) = delete;
  InOrder& operator=(const InOrder&) = delete;
  // After what has been enqueued meanwhile.
  void End() { last_.Record(queue_.stream()); }

 private:
  static std::mutex& Mutex() {
    static std::mutex mutex;
    return mutex;
  }
  // The event of the current device. It stays, as CUDA may be gone when the process ends.
  static Event& Last() {
    static auto& events = *new std::map<int, Event>;
    int device = 0;
    pfftjax::gpu::Check(Device()->current_device(&device), "asking for the device");
    return events[device];
  }

  std::lock_guard<std::mutex> lock_;
  Queue& queue_;
  Event& last_;
};

class Nccl final : public Transport {
 public:
  Nccl(const nccl::Api& api, int version, nccl::Comm comm, std::string who)
      : api_(api), version_(version), comm_(comm), who_(std::move(who)) {
    AlsoWatch([this] { Look(); });  // which ends no later than the process, as this does
  }
  // Ended here, kernels of other ranks could still be at work on the other end: it stays, as
  // communicators do, until the process ends.
  ~Nccl() override = default;

  const char* name() const override { return "nccl"; }
  bool RunsAhead() const override { return true; }
  std::string description() const override {
    return "nccl (" + nccl::Name() + " " + nccl::VersionText(version_) + " on XLA's stream)";
  }

  std::string Trouble() override {
    nccl::Result error = nccl::kSuccess;
    const nccl::Result asked = api_.comm_get_async_error(comm_, &error);
    if (asked != nccl::kSuccess) return Say(asked, "ncclCommGetAsyncError");
    return IsTrouble(error) ? Say(error, "an exchange between GPUs") : "";
  }
  void Follow(Queue& queue) override { InOrder in_order(queue); }
  void Accept() override { is_on_trial_ = false; }
  // Its kernels end, and hosts that wait in NCCL for this rank hear of it.
  void Discard() override {
    if (!std::exchange(is_discarded_, true)) api_.comm_abort(comm_);
  }

  int Bcast(Communicator& comm, void* data, std::int64_t bytes, int root, Queue& queue) override {
    ThrowIfBroken();
    if (bytes == 0) return 0;
    return Enqueue(comm, queue, [&] {
      Check(api_.broadcast(data, data, static_cast<std::size_t>(bytes), nccl::kUint8, root, comm_,
                           queue.stream()),
            "ncclBroadcast");
    });
  }

  bool CanReduce(Element element, Reduction reduction) const override {
    return TypeOf(element) && OpOf(element, reduction);
  }

  int Reduce(Communicator& comm, const Reducing& what, const void* send, void* recv,
             Queue& queue) override {
    ThrowIfBroken();
    if (what.count == 0) return 0;
    const auto numbers = static_cast<std::size_t>(what.count * (IsComplex(what.element) ? 2 : 1));
    const nccl::DataType type = *TypeOf(what.element);
    const nccl::RedOp op = *OpOf(what.element, what.reduction);
    return Enqueue(comm, queue, [&] {
      switch (what.spread) {
        case Spread::kAll:
          return Check(api_.all_reduce(send, recv, numbers, type, op, comm_, queue.stream()),
                       "ncclAllReduce");
        case Spread::kRoot:
          return Check(
              api_.reduce(send, recv, numbers, type, op, what.root, comm_, queue.stream()),
              "ncclReduce");
        case Spread::kBlocks:
          return Check(api_.reduce_scatter(send, recv, numbers, type, op, comm_, queue.stream()),
                       "ncclReduceScatter");
      }
    });
  }

 protected:
  int Move(Communicator& comm, const void* send, const std::vector<Block>& to, void* recv,
           const std::vector<Block>& from, Queue& queue) override {
    ThrowIfBroken();
    CopyOwnBlock(comm, send, to, recv, from, queue);
    return Enqueue(comm, queue, [&] {
      Group group(*this);
      const std::int64_t largest = GetOptions().max_chunk_bytes;
      BlockPieces outgoing(comm, to, BlockPieces::Side::kTo, largest);
      for (; !outgoing.AtEnd(); outgoing.Advance()) {
        Check(api_.send(static_cast<const char*>(send) + outgoing.Offset(),
                        static_cast<std::size_t>(outgoing.Bytes()), nccl::kUint8, outgoing.Rank(),
                        comm_, queue.stream()),
              "ncclSend");
      }
      BlockPieces incoming(comm, from, BlockPieces::Side::kFrom, largest);
      for (; !incoming.AtEnd(); incoming.Advance()) {
        Check(api_.recv(static_cast<char*>(recv) + incoming.Offset(),
                        static_cast<std::size_t>(incoming.Bytes()), nccl::kUint8, incoming.Rank(),
                        comm_, queue.stream()),
              "ncclRecv");
      }
      group.End();
    });
  }

 private:
  // Ended on every way out: calls that follow would wait in it for ever.
  class Group {
   public:
    explicit Group(Nccl& nccl) : nccl_(nccl) {
      nccl.Check(nccl.api_.group_start(), "ncclGroupStart");
    }
    Group(const Group&) = delete;
    Group& operator=(const Group&) = delete;
    ~Group() {
      if (!has_ended_) nccl_.api_.group_end();
    }
    void End() {
      has_ended_ = true;
      nccl_.Check(nccl_.api_.group_end(), "ncclGroupEnd");
    }

   private:
    Nccl& nccl_;
    bool has_ended_ = false;
  };

  // What `enqueue()` adds to the stream, seen by the watch where that may end the job.
  template <typename Body>
  int Enqueue(const Communicator& comm, Queue& queue, Body&& enqueue) {
    InOrder in_order(queue);
    const bool is_watched = GetOptions().timeout > 0;
    if (is_watched) in_flight_.Begin(comm.progress, queue.stream());
    enqueue();
    if (is_watched) in_flight_.End(queue.stream());
    in_order.End();
    return 0;
  }

  // The watch's thread calls this. The device waits where no call does: for a rank that is lost,
  // or for one that has enqueued something else.
  void Look() {
    if (is_on_trial_) return;
    nccl::Result error = nccl::kSuccess;
    if (api_.comm_get_async_error(comm_, &error) != nccl::kSuccess) return;
    if (IsTrouble(error)) Lost(error);
    const double timeout = GetOptions().timeout;
    if (timeout <= 0) return;
    const std::optional<InFlight::Unfinished> unfinished = in_flight_.Look();
    if (!unfinished || unfinished->seconds <= timeout) return;
    AbortJob(After(unfinished->seconds) + who_ + " is on its GPU in " + unfinished->what +
             ", by " + nccl::Name() + ", which says '" + api_.get_error_string(error) +
             "': another rank is lost, or its GPU has not come that far (NCCL_DEBUG=INFO says "
             "more)");
  }

  void Check(nccl::Result result, const char* what) {
    if (!IsTrouble(result)) return;
    has_failed_ = true;
    throw std::runtime_error(Say(result, what));
  }

  std::string Say(nccl::Result result, const char* what) const {
    return nccl::Name() + " says '" + api_.get_error_string(result) + "' in " + what +
           " (NCCL_DEBUG=WARN says more)";
  }

  // Errors of what was enqueued before: another rank is gone, or the network.
  void ThrowIfBroken() {
    ThrowIfFailed();
    nccl::Result error = nccl::kSuccess;
    Check(api_.comm_get_async_error(comm_, &error), "ncclCommGetAsyncError");
    if (!IsTrouble(error)) return;
    if (is_on_trial_) Check(error, "an earlier exchange between GPUs");
    Lost(error);
  }

  // Kernels that NCCL gives up end like others: what is computed from them would be taken for
  // good. So the job ends before anything goes on.
  [[noreturn]] void Lost(nccl::Result error) {
    AbortJob(who_ + ": " + Say(error, "an earlier exchange between GPUs"));
  }

  static bool IsTrouble(nccl::Result result) {
    return result != nccl::kSuccess && result != nccl::kInProgress;
  }

  static bool IsComplex(Element element) {
    return element == Element::kC64 || element == Element::kC128;
  }

  // Nothing for bool, and for integers of 16 bits.
  static std::optional<nccl::DataType> TypeOf(Element element) {
    constexpr std::array<int, kElements.size()> types = {-1,
                                                         nccl::kInt8,
                                                         -1,
                                                         nccl::kInt32,
                                                         nccl::kInt64,
                                                         nccl::kUint8,
                                                         -1,
                                                         nccl::kUint32,
                                                         nccl::kUint64,
                                                         nccl::kFloat16,
                                                         nccl::kBfloat16,
                                                         nccl::kFloat32,
                                                         nccl::kFloat64,
                                                         nccl::kFloat32,
                                                         nccl::kFloat64};
    const int type = types[static_cast<std::size_t>(element)];
    return type < 0 ? std::nullopt : std::optional(static_cast<nccl::DataType>(type));
  }

  static std::optional<nccl::RedOp> OpOf(Element element, Reduction reduction) {
    if (reduction == Reduction::kSum) return nccl::kSum;
    if (reduction == Reduction::kProd && !IsComplex(element)) return nccl::kProd;
    // NCCL's extremes of floating-point numbers lose a NaN, or not, by the order of the ranks.
    const bool is_integer = element < Element::kF16;
    if (reduction == Reduction::kMin && is_integer) return nccl::kMin;
    if (reduction == Reduction::kMax && is_integer) return nccl::kMax;
    return std::nullopt;
  }

  const nccl::Api& api_;
  int version_;
  nccl::Comm comm_;
  std::string who_;
  // A discarded one stays on trial for ever: nobody asks any more what NCCL has given up.
  std::atomic<bool> is_on_trial_{true};
  bool is_discarded_ = false;
  InFlight in_flight_;
};

// NCCL has been told, by its own variables, to take ranks on one device: from 2.30 on by the first
// of them, and in tests by the second, which makes it take them for those of several hosts.
bool MayShareDevices() {
  return std::getenv("NCCL_MULTI_RANK_GPU_ENABLE") || std::getenv("NCCL_HOSTID");
}

// Two ranks on one device, if there are, in words.
std::string Duplicate(const Devices& devices) {
  for (std::size_t one = 0; one < devices.size(); ++one) {
    for (std::size_t other = one + 1; other < devices.size(); ++other) {
      if (devices[one] != devices[other]) continue;
      return "ranks " + std::to_string(one) + " and " + std::to_string(other) + " share device " +
             devices[one] + ", and " + nccl::Name() + " wants one for each rank";
    }
  }
  return {};
}

}  // namespace

std::unique_ptr<Transport> MakeNccl(Communicator& comm, const Devices& devices, std::string* why) {
  const nccl::Api* api = nullptr;
  int version = 0;
  // A device that is none has no streams of NVIDIA's or AMD's: only a library that was made for it
  // will do.
  *why = Attempt(comm, [&]() -> std::string {
    if (std::string kept_out = KeptOut("nccl"); !kept_out.empty()) return kept_out;
    if (!Device()->nccl && GetTransportOptions().nccl.empty()) {
      return std::string("NCCL does not know devices of ") + Device()->name;
    }
    std::string reason;
    api = nccl::Load(&reason);
    if (api && api->get_version(&version) != nccl::kSuccess) {
      return nccl::Name() + " has no version";
    }
    return reason;
  });
  if (!why->empty()) return nullptr;
  const std::string text = nccl::Name() + " " + nccl::VersionText(version);
  *why = Disagreement(comm, version, text);
  if (!why->empty()) return nullptr;
  const std::string duplicate = Duplicate(devices);
  // All ranks know of it, but may differ in what NCCL has been told.
  if (!duplicate.empty() && !FirstText(comm, MayShareDevices() ? "" : duplicate).empty()) {
    *why = duplicate;
  }
  if (!why->empty()) return nullptr;

  const auto say = [&](nccl::Result result, const char* what) -> std::string {
    if (result == nccl::kSuccess) return {};
    return nccl::Name() + " says '" + api->get_error_string(result) + "' in " + what +
           " (NCCL_DEBUG=WARN says more)";
  };
  nccl::UniqueId id{};
  *why = Attempt(comm, [&]() -> std::string {
    return comm.rank == 0 ? say(api->get_unique_id(&id), "ncclGetUniqueId") : "";
  });
  if (!why->empty()) return nullptr;
  const int code = Mpi()->bcast(id.internal, sizeof id.internal, Element::kU8, 0, comm.control);
  nccl::Comm made = nullptr;
  *why = FirstText(comm, code == 0 ? "" : "MPI could not broadcast NCCL's identity");
  if (!why->empty()) return nullptr;
  const std::string mine =
      say(api->comm_init_rank(&made, comm.size, id, comm.rank), "ncclCommInitRank");
  ComeOut(comm, mine, "PFFTJAX_GPU_TRANSPORT=ipc or staging does without NCCL");
  *why = FirstText(comm, mine);
  std::unique_ptr<Nccl> nccl;
  if (why->empty()) {
    *why = Attempt(comm, [&]() -> std::string {
      nccl = std::make_unique<Nccl>(
          *api, version, made,
          comm.Where() + " (communicator " + std::to_string(comm.number) + ")");
      return {};
    });
  }
  if (why->empty()) return nccl;
  if (made) api->comm_abort(made);
  static_cast<void>(nccl.release());  // the watch knows it, on trial
  return nullptr;
}

}  // namespace pfftjax::gpu
