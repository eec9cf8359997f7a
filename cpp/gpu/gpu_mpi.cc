// Messages of an MPI that takes pointers to a GPU's memory. It works outside of XLA's stream, so
// the host waits: for the stream before, and for the messages after.
#include <array>
#include <thread>

#include "base/stepped_clock.h"
#include "gpu/probe.h"
#include "gpu/transport.h"
#include "mpi/tags.h"
#include "runtime/abort.h"
#include "runtime/errors.h"

namespace pfftjax::gpu {
namespace {

constexpr int kInFlight = 16;  // messages, each way
// Seconds that messages are given to end after an error.
constexpr double kSecondsToEnd = 60;

// Messages of one direction: started in their order, up to kInFlight of them unfinished.
class Messages {
 public:
  Messages(const Communicator& comm, char* data, const std::vector<Block>& blocks,
           BlockPieces::Side side, int tag)
      : comm_(comm),
        tag_(tag),
        data_(data),
        is_sending_(side == BlockPieces::Side::kTo),
        pieces_(comm, blocks, side, GetOptions().max_chunk_bytes) {}

  bool IsDone() const { return pieces_.AtEnd() && HasEnded(); }
  // Whether MPI is at work on none.
  bool HasEnded() const { return active_ == 0; }

  // Starts what may start and ends what has ended, without waiting.
  int Advance() {
    for (Message& message : messages_) {
      if (message.is_active) {
        if (const int code = Test(message)) return code;
      }
      if (!message.is_active && !pieces_.AtEnd()) {
        if (const int code = Start(message)) return code;
      }
    }
    return 0;
  }

  // Ends what has ended, well or not.
  void Forget() {
    for (Message& message : messages_) {
      if (message.is_active) Test(message);
    }
  }

 private:
  struct Message {
    bool is_active = false;
    MpiHandle request = 0;
    std::int64_t bytes = 0;
  };

  int Test(Message& message) {
    int done = 0;
    std::int64_t arrived = 0;
    const int code = Mpi()->test(&message.request, &done, is_sending_ ? nullptr : &arrived);
    if (code == 0 && !done) return 0;
    message.is_active = false;
    --active_;
    return code == 0 && !is_sending_ && arrived != message.bytes ? kShortMessage : code;
  }

  int Start(Message& message) {
    char* const at = data_ + pieces_.Offset();
    const int rank = pieces_.Rank();
    message.bytes = pieces_.Bytes();
    const MpiApi& mpi = *Mpi();
    const int code =
        is_sending_
            ? mpi.send_start(at, message.bytes, rank, tag_, comm_.control, &message.request)
            : mpi.receive_start(at, message.bytes, rank, tag_, comm_.control, &message.request);
    if (code != 0) return code;
    pieces_.Advance();
    message.is_active = true;
    ++active_;
    return 0;
  }

  const Communicator& comm_;
  int tag_;
  char* data_;
  bool is_sending_;
  BlockPieces pieces_;
  int active_ = 0;
  std::array<Message, kInFlight> messages_{};
};

class GpuAwareMpi final : public Transport {
 public:
  const char* name() const override { return "mpi"; }
  std::string description() const override { return "mpi (MPI on device pointers)"; }
  bool WaitsForDevice() const override { return true; }
  void Accept() override { is_on_trial_ = false; }

 protected:
  int Move(Communicator& comm, const void* send, const std::vector<Block>& to, void* recv,
           const std::vector<Block>& from, Queue& queue) override {
    CopyOwnBlock(comm, send, to, recv, from, queue);
    // What is sent has been computed, and what is overwritten has been read.
    queue.Synchronize(comm.control);
    const int tag = kGpuAwareTags.Of(about());
    Messages outgoing(comm, static_cast<char*>(const_cast<void*>(send)), to,
                      BlockPieces::Side::kTo, tag);
    Messages incoming(comm, static_cast<char*>(recv), from, BlockPieces::Side::kFrom, tag);
    // The first message that is not done, in the order of BlockPieces, lies in the windows of both
    // of its ranks.
    while (!incoming.IsDone() || !outgoing.IsDone()) {
      int code = incoming.Advance();
      if (code == 0) code = outgoing.Advance();
      if (code != 0 && !is_on_trial_) EndOrAbort(comm, code, incoming, outgoing);
      if (code != 0) return code;
      std::this_thread::yield();
    }
    return 0;
  }

 private:
  // Waits after an error until MPI is at work on nothing any more. The memory becomes another
  // array's, or is given back, when the operation returns.
  static void EndOrAbort(const Communicator& comm, int code, Messages& incoming,
                         Messages& outgoing) {
    const double patience = Patience(kSecondsToEnd);
    SteppedClock clock(0.5);
    while (true) {
      incoming.Forget();
      outgoing.Forget();
      if (incoming.HasEnded() && outgoing.HasEnded()) return;
      if (clock.Look() > patience) {
        AbortJob("on " + comm.Where() + " an exchange by MPI on device pointers has failed (" +
                 ReasonOf(code, comm) +
                 "), and MPI is still at work on memory that would be given to other arrays");
      }
      std::this_thread::yield();
    }
  }

  bool is_on_trial_ = true;  // the memory of a trial is kept after a failure
};

// Why MPI on device pointers is not to be tried, if so.
std::string WhyNot() {
  const TransportOptions& options = GetTransportOptions();
  const bool is_named = options.name == "mpi";
  if (const std::string why = KeptOut("mpi"); !why.empty()) return why;
  if (Device()->is_host_memory) {
    return is_named ? "" : "it is tried only where PFFTJAX_GPU_TRANSPORT=mpi names it";
  }
  if (options.does_mpi_say && !options.does_mpi_take_pointers) {
    return "this MPI says that it takes no pointers to a GPU's memory (Open MPI: configure "
           "--with-cuda; Cray MPICH: load craype-accel-nvidia80, or the like, and set "
           "MPICH_GPU_SUPPORT_ENABLED=1)";
  }
  if (options.is_cray && !options.is_cray_enabled) {
    return "MPICH_GPU_SUPPORT_ENABLED=1 is not set";
  }
  if (is_named || (options.is_cray && options.does_mpi_say)) return {};
  return "what an MPI says of itself is no proof, so it is tried by itself with Cray's only; "
         "PFFTJAX_GPU_TRANSPORT=mpi names it";
}

}  // namespace

std::unique_ptr<Transport> MakeGpuAwareMpi(Communicator& comm, const Devices&, std::string* why) {
  *why = Attempt(comm, WhyNot);
  if (!why->empty()) return nullptr;
  return std::make_unique<GpuAwareMpi>();
}

}  // namespace pfftjax::gpu
