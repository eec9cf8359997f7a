// Communicators by number, with the private duplicates that traffic runs on.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "base/element.h"
#include "base/process.h"
#include "mpi/mpi_api.h"

namespace pfftjax {

// In place of an MPI code: a message was shorter than both sides had agreed; another rank is in
// another call, or in one of another size.
inline constexpr int kShortMessage = -1;
inline constexpr int kOtherSizes = -2;
// The method that was asked for needs memory that the ranks do not share.
inline constexpr int kNotShared = -3;
// The method that was asked for is one for arrays on CPUs.
inline constexpr int kOfTheHost = -4;

enum class Operation : std::int32_t {
  kNone,
  kAlltoall,
  kAlltoallv,
  kExchangeCounts,
  kAllgather,
  kAllgatherv,
  kReduceScatter,
  kAllreduce,
  kReduce,
  kScan,
  kBcast,
  kGather,
  kScatter,
  kBarrier,
  kReplicate,
  kSendrecv,
  kSend,
  kRecv,
  kSendrecvAll,
  kStart,
  kWait,
  kTranspose,
  kHaloExchange,
  kHaloReduce,
  kMoveRows,
  kReturnRows,
  kFft,
  kTransposeStart,
  kTransposeWait,
  kSame,
  kExpect,
};

const char* NameOf(Operation operation);

// Whether an operation waits for its partners only, and not for all ranks of a communicator:
// kSendrecvAll, a sendrecv in which all of them take part, is none of these.
constexpr bool IsMessage(Operation operation) {
  return operation == Operation::kSendrecv || operation == Operation::kSend ||
         operation == Operation::kRecv;
}

// Whether the numbers of elements of the ranks may differ: they fit between partners.
constexpr bool HasOwnCount(Operation operation) { return operation == Operation::kSendrecvAll; }

// In place of a rank that a message waits for.
inline constexpr int kNobody = -1;
inline constexpr int kAnybody = -2;

// Tags as sendrecv passes them: 0 and above as given, or one of these.
inline constexpr int kAnyTag = -1;
inline constexpr int kDefaultTag = -2;  // any tag where no other library's message can match

enum class Stage : std::int32_t { kIdle, kChecking, kRunning };

// The meaning of a collective that has failed, or of one before the first.
inline constexpr std::uint32_t kUnknown = 0;

// What this rank does on a communicator, written by the call and read by the watch thread. What
// every call writes lies on one cache line.
struct alignas(64) Progress {
  process::Atomic<std::int64_t> entered{0};  // calls begun
  process::Atomic<std::int64_t> passed{0};   // collectives that got beyond their checks
  process::Atomic<std::int64_t> count{0};
  process::Atomic<Stage> stage{Stage::kIdle};
  process::Atomic<Operation> operation{Operation::kNone};
  process::Atomic<Element> element{Element::kBool};
  // What all ranks must mean alike (operation, element, count, roots, axes, shapes), as a hash: of
  // collective number `passed` and of those before. The next one takes another place than the
  // latest two, which a reader takes for true if `passed` is the same before and after.
  static constexpr std::int64_t kMeanings = 4;
  process::Atomic<std::uint32_t> meanings[kMeanings] = {};  // or kUnknown
  // It leads to the line that made the call (call_sites.h).
  process::Atomic<std::uint64_t> key{0};

  process::Atomic<std::int64_t> signature{0};  // of the program that is running
  process::Atomic<std::int64_t> checks{0};  // comparisons over the ranks begun before collectives
  // Of messages only: the ranks that it waits for, or kNobody or kAnybody, and its tags.
  process::Atomic<int> source{kNobody};
  process::Atomic<int> dest{kNobody};
  process::Atomic<int> send_tag{kAnyTag};
  process::Atomic<int> recv_tag{kAnyTag};
  // Written by the watch for signal handlers, which can look nothing up: CalledAt of the call that
  // was number `called_for`.
  process::Atomic<const char*> called{nullptr};
  process::Atomic<std::int64_t> called_for{-1};

  process::Atomic<std::uint32_t>& MeaningOf(std::int64_t collective) {
    return meanings[static_cast<std::uint64_t>(collective) % kMeanings];
  }
  std::uint32_t MeaningOf(std::int64_t collective) const {
    return meanings[static_cast<std::uint64_t>(collective) % kMeanings];
  }
};

class Node;
class Window;
namespace gpu {
struct Choice;
}

struct Communicator {
  Communicator();
  ~Communicator();
  std::int64_t number = 0;
  MpiHandle user = 0;     // the caller's own communicator
  MpiHandle data = 0;     // private: MPI's collectives, and sendrecv with the user's tags
  MpiHandle control = 0;  // private: checks, the watch, the way out, exchanges made of messages
  process::Atomic<bool> is_private{false};
  int rank = 0;
  int size = 1;

  process::Atomic<bool> busy{false};
  Progress progress;
  process::Atomic<bool> is_duplicating{false};  // from its first collective on, for good
  MpiHandle duplicating[2] = {};                // requests of MakePrivateStart
  // Whether this rank waits for the others to come and make the duplicates with it, for which
  // operation it does, and how often it has looked.
  process::Atomic<bool> is_gathering{false};
  std::string gathers_for;
  process::Atomic<std::int64_t> looks{0};
  // Its ranks, as MPI_COMM_WORLD numbers them: these can be asked before the duplicates are there.
  // Empty for MPI_COMM_WORLD itself. As a hash, they are alike on all ranks.
  std::vector<int> world_ranks;
  std::uint64_t group = 0;
  // Programs whose first call was compared, and places in them where values were (`same`); touched
  // only by the call that holds `busy`.
  std::unordered_set<std::int64_t> verified;
  std::int64_t last_verified = 0;
  // Shared memory of the ranks, made by the first call that wants it (node.h); null where there is
  // none. Touched only by the call that holds `busy`.
  std::unique_ptr<Node> node;
  bool is_node_known = false;
  std::optional<bool> shares_memory;  // of more ranks than those that have a node
  std::unique_ptr<Window> window;     // for transforms (window.h), under the same rules
  std::int64_t refused_window = 0;    // so many bytes a rank could not be had; 0: all could
  // Of a transport between GPUs (gpu/transport.h), under the same rules. Shared, so that this file
  // need not know what it is.
  std::shared_ptr<gpu::Choice> gpu;
  // Whether that returns before the exchange has happened: then a device would wait for what no
  // other rank sends, or take what is meant for another call, and nobody would see it.
  bool runs_ahead = false;
  std::string difference;  // how another rank's call differs, where the node has seen it

  // "rank 1 of 4"
  std::string Where() const;
};

// The loaded MPI library. Null before LoadMpi.
const MpiApi* Mpi();
// Opens the backend at `path`; throws std::runtime_error with the loader's words.
void LoadMpi(const std::string& path);

// True from the start of MPI_Finalize on: no MPI call may be made any more.
bool Finalized();

inline constexpr std::int64_t kMaxCommunicators = 1 << 16;

// Adds the communicator whose MPI_Comm lies at `address`; the next free number. No communication.
// The first one is MPI_COMM_WORLD.
std::int64_t AddCommunicator(const void* address, std::vector<int> world_ranks = {});
// Null for a number that is not registered.
Communicator* FindCommunicator(std::int64_t number);
std::int64_t CommunicatorCount();

// Makes the private duplicates if they are missing, for an operation that errors name. Collective;
// returns MPI's error code.
int MakePrivate(Communicator& comm, const std::string& operation);
// The same without waiting: start, then poll until true.
int MakePrivateStart(Communicator& comm, const std::string& operation);
int MakePrivatePoll(Communicator& comm, bool* done);

// The communicator and the tag that a point-to-point message travels on. Before the private
// duplicates exist, that is the user's own communicator with a tag from the upper half of the
// range: making duplicates would wait for ranks that take no part in the message.
struct Channel {
  MpiHandle comm = 0;
  int send_tag = 0;
  int recv_tag = 0;
  int tag_base = 0;  // what was added to the user's tags
};
// False for kAnyTag on a communicator without private duplicates, where it would take messages
// that are not pfftjax's.
bool PointToPoint(const Communicator& comm, int send_tag, int recv_tag, Channel* channel);
// The largest tag that a user may give.
int MaxTag();

}  // namespace pfftjax
