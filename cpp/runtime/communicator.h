// Communicators by number, with the private duplicates that traffic runs on.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/place.h"
#include "base/process.h"
#include "mpi/mpi_api.h"
#include "runtime/attachments.h"
#include "runtime/progress.h"

namespace pfftjax {

// These stand in place of an MPI code: a message was shorter than both sides had agreed; another
// rank is in another call, or has given up this one.
inline constexpr int kShortMessage = -1;
inline constexpr int kOtherCall = -2;
// The method that was asked for needs memory that the ranks do not share.
inline constexpr int kNotShared = -3;

class Call;

struct Communicator : Place {
  std::int64_t number = 0;
  MpiHandle user = 0;     // the caller's own communicator
  MpiHandle data = 0;     // private: MPI's collectives, and sendrecv with the user's tags
  MpiHandle control = 0;  // private: checks, the watch, the way out, exchanges made of messages
  process::Atomic<bool> is_private{false};
  process::Atomic<bool> is_freed{false};  // `user`: MPI may have given its handle to another one

  process::Atomic<bool> busy{false};
  Call* under_way = nullptr;  // the call that has set it
  Progress progress;
  process::Atomic<bool> is_duplicating{false};  // from its first collective on
  process::Atomic<int> failed_duplication{0};   // MPI's code where that cannot be done, for good
  MpiHandle duplicating[2] = {};                // requests of MakePrivateStart
  process::Mutex making;  // a program of jax.export and Python may both wait for the duplicates
  // Whether this rank waits for the others to come and make the duplicates with it, for which
  // operation it does, where that was called (as CalledAt says it), and how often it has looked.
  process::Atomic<bool> is_gathering{false};
  std::string gathers_for;
  std::string gathers_at;
  process::Atomic<std::int64_t> looks{0};
  // Its ranks, as MPI_COMM_WORLD numbers them: these can be asked before the duplicates are there.
  // Empty for MPI_COMM_WORLD itself. As a hash, they are alike on all ranks.
  std::vector<int> world_ranks;
  std::uint64_t group = 0;
  // Whether operations return before they can know of any other rank that it is in the same call.
  // A difference could then hang or mix data unseen, so all calls are compared.
  bool runs_ahead = false;
  // Bytes that this rank hands to the call under way, where its payload does not say: for the
  // profile.
  std::int64_t given_bytes = -1;
  std::string difference;  // how another rank's call differs, where an exchange has seen it

  // The T that a layer keeps here, default-constructed on first use. Touched only by the call that
  // holds `busy`.
  template <typename T>
  T& Attached() {
    return attachments_.Get<T>();
  }

  // "rank 1 of 4"
  std::string Where() const;

 private:
  Attachments attachments_;
};

// The loaded MPI library. Null before LoadMpi.
const MpiApi* Mpi();
// What it says of one of its codes.
std::string MpiErrorText(int code);
// Opens the backend at `path`; throws std::runtime_error with the loader's words.
void LoadMpi(const std::string& path);

// Makes the MPI library that a loaded module is linked with visible to whatever is loaded later.
// Backends are linked with none: they find MPI's functions in what the process has.
void ShareMpi(const std::string& user);

inline constexpr std::int64_t kMaxCommunicators = 1 << 16;

// Adds the communicator whose MPI_Comm lies at `address`; the next free number. No communication.
// The first one is MPI_COMM_WORLD.
std::int64_t AddCommunicator(const void* address, std::vector<int> world_ranks = {});
// What an operation says that needs `user`, which has been freed.
std::string FreedText(const std::string& operation, const Communicator& comm);
// Null for a number that is not registered.
Communicator* FindCommunicator(std::int64_t number);
std::int64_t CommunicatorCount();

// The number of a rank of it in MPI_COMM_WORLD.
int WorldRank(const Communicator& comm, int rank);

// Makes the private duplicates if they are missing, for an operation that errors name. Collective;
// returns MPI's error code.
int MakePrivate(Communicator& comm, const std::string& operation);
// The same without waiting: start, then poll until true. `line` is the user's.
int MakePrivateStart(Communicator& comm, const std::string& operation,
                     const std::string& line = {});
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
