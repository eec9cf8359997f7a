// An MPI for simulated ranks: messages and collectives that take as long, and come in any order,
// as the standard allows.
//
// The model: messages of one pair, communicator and tag do not overtake each other, all
// others may; a message is copied at once or waits for its receiver, and MPI need not say which;
// what a rank has begun may go on only while that rank is in a call of MPI's; a collective ends on
// a rank as soon as that rank has what it needs, or only when all have come.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "base/element.h"
#include "memory.h"
#include "mpi/mpi_api.h"
#include "scheduler.h"

namespace pfftjax::simulated {

inline constexpr int kProcNull = -11;
inline constexpr int kAnySource = -12;
inline constexpr int kAnyTag = -13;
// The tag of what MPI sends within a collective.
inline constexpr int kCollectiveTag = -14;

inline constexpr int kErrorTruncate = 15;
inline constexpr int kErrorInjected = 16;

class Comm;

// A request of MPI's, in the hands of the rank that has begun it.
struct Request {
  Process* owner = nullptr;
  int counts = 1;  // among the requests that must not be left
  bool is_done = false;
  int code = 0;
  int source = kProcNull;
  int tag = kAnyTag;
  std::int64_t bytes = 0;
  Task* waiting = nullptr;
  Knowledge knowledge;  // that comes with it
  double overhead = 0;  // of the core that finds it done

  void Complete(int how);
};

// A receive that was posted and has no message yet.
struct Receive {
  Request* request = nullptr;
  char* data = nullptr;
  std::int64_t room = 0;
  int source = 0;
  int tag = 0;

  bool Takes(int from, int with) const {
    return (source == kAnySource || source == from) &&
           (tag == with || (tag == kAnyTag && with != kCollectiveTag));
  }
};

// A message from its sending to its end.
struct Message : Event {
  enum class Stage {
    kLeaving,
    kTravelling,
    kArrived,
    kMatched,
    kMoving,
    kEnded,
    // With a clock also the following: before it goes through the link of its receiver, first
    // itself, then its data; while a core copies what leaves, or what has come.
    kEntering,
    kLoading,
    kDataEntering,
    kStoring
  };

  Comm* comm = nullptr;
  Process* sender = nullptr;
  int from = 0;
  int to = 0;
  int tag = 0;
  std::int64_t bytes = 0;
  std::vector<char> copy;      // where it was copied at once
  const char* data = nullptr;  // where not: the sender's own
  Request* sending = nullptr;  // to be completed when it has been read; null: was complete at once
  Stage stage = Stage::kLeaving;
  Receive receive;  // once it is matched
  Knowledge knowledge;
  bool is_cached = true;  // where MPI does not say which memory is meant

  void Happen() override;
  // The same on a clock.
  void Depart();
  void Match();
  bool IsInNode() const;

 private:
  void HappenOnClock();
  void End();
};

class Meeting;

class Comm {
 public:
  Comm(std::vector<int> members, int number);
  ~Comm();
  Comm(const Comm&) = delete;
  Comm& operator=(const Comm&) = delete;

  int size() const { return static_cast<int>(members.size()); }
  int RankOf(const Process& process) const {
    return ranks[static_cast<std::size_t>(process.rank)];
  }
  Process& ProcessOf(int rank) const;

  // Begins to send from, or to receive on, the running rank.
  // Messages within a collective have sizes only, and no data.
  Request* Send(const void* data, std::int64_t bytes, int to, int tag);
  Request* SendOnClock(const void* data, std::int64_t bytes, int to, int tag, bool is_cached);
  Request* Post(void* data, std::int64_t room, int from, int tag);
  // The first message with that tag, or any, that has come for the running rank, or null.
  Message* Probe(int tag);
  // Matches what has arrived for `rank` with what it waits for.
  void Match(int rank);
  // The same of one message that has arrived, on a clock.
  void MatchArrived(Message& message);

  const std::vector<int> members;  // ranks of the job
  const int number;
  std::vector<int> ranks;  // in this communicator, by rank of the job; -1: none

  // Collectives, in the order in which each rank has come to them.
  std::vector<std::int64_t> entered;
  std::deque<std::unique_ptr<Meeting>> meetings;

  struct Box {
    std::vector<std::unique_ptr<Message>> messages;  // sent to the rank and not taken yet, by time
    std::deque<Receive> receives;
  };
  std::vector<Box> boxes;  // by receiver

 private:
  std::map<std::tuple<int, int, int>, Time> last_arrival_;  // from, to, tag
  friend struct Message;
};

// One collective of all ranks.
enum class Kind {
  kAlltoall,
  kAllgather,
  kReduceScatter,
  kAllreduce,
  kReduce,
  kScan,
  kExscan,
  kBcast,
  kGather,
  kScatter,
  kBarrier,
  kDuplicate,
};

// Holds what a rank brings to a collective.
struct Part {
  Kind kind = Kind::kBarrier;
  std::int64_t count = 0;
  Element element = Element::kBool;
  Reduction reduction = Reduction::kSum;
  int root = 0;
  const void* send = nullptr;
  void* recv = nullptr;
  MpiHandle* duplicate = nullptr;
};

// Makes a collective of the running rank, on a clock.
void CollectOnClock(Comm& comm, const Part& part);
// Begins a collective of the running rank.
Request* Enter(Comm& comm, const Part& part);
// inout = in (op) inout
void ReduceInto(const void* in, void* inout, std::int64_t count, Element element,
                Reduction reduction);

// Lets go on what the running rank has held back. Each call of MPI's begins so.
void Progress();
// Waits for one of the requests, and for which is `*which`; null ones are none.
void WaitForAny(Request* const* requests, int count, int* which);
int WaitFor(Request* request);
// Frees it where it is done. `bytes` may be null.
bool TestRequest(MpiHandle* handle, int* code, std::int64_t* bytes);

// When a message of so many bytes that leaves now arrives, at the earliest.
Time Arrival(const Process& from, const Process& to, std::int64_t bytes);
// Now, or when the rank is in MPI the next time.
void LetGo(Process& process, Event& event, Time delay);

// Text of what is left over at the end of a right job, or empty.
std::string LeftOver();

}  // namespace pfftjax::simulated
