// That a transport could be made says little. NCCL connects two ranks at their first message,
// where a driver, a plugin or a network may fail; and there are systems on which its protocols
// deliver other bytes than were sent. So the ranks exchange messages on both sides of the sizes at
// which protocols change, and sums, and the host looks at all that has arrived.
#include "gpu/probe.h"

#include <sched.h>

#include <array>
#include <cstring>
#include <functional>
#include <optional>
#include <set>

#include "base/alignment.h"
#include "base/process.h"
#include "base/stepped_clock.h"
#include "mpi/tags.h"
#include "runtime/abort.h"
#include "runtime/errors.h"

namespace pfftjax::gpu {
namespace {

// Up to so many ranks, all pairs exchange; of more, those at distances that are powers of two, as
// each pair that is connected takes time, and memory of the devices.
constexpr int kAllPairs = 16;
// NCCL sends messages of up to 16 KiB by its protocol of low latency (NCCL_P2P_LL_THRESHOLD).
constexpr std::array<std::int64_t, 3> kSizes = {1000, 16384, 20000};
// Where there is no memory for more, messages up to this size have to do.
constexpr std::int64_t kSmallTrial = kSizes.back();
// The largest sum is made so often: what has been seen to go wrong there went wrong now and then.
constexpr int kRepeats = 8;
constexpr std::int64_t kPartAlign = 256;
// Seconds after which a device that is not done counts as one that waits for ever; and those for
// which a rank that has failed waits for the others, before it ends the job.
constexpr double kPatience = 120;
constexpr double kPatienceWithOthers = 60;

bool IsPowerOfTwo(int number) { return (number & (number - 1)) == 0; }

// All exchanges of one trial: what is sent, what is to arrive, and what has.
class Trial {
 public:
  Trial(Communicator& comm, Transport& transport, std::int64_t largest)
      : comm_(comm), transport_(transport), queue_(stream_) {
    const auto is_partner = [this](int distance) {
      return comm_.size <= kAllPairs || IsPowerOfTwo(distance) ||
             IsPowerOfTwo(comm_.size - distance);
    };
    for (const std::int64_t bytes : kSizes) AddExchange(std::min(bytes, largest), is_partner);
    AddExchange(largest, [this](int distance) {
      return distance == 1 || distance == comm_.size - 1 || distance == comm_.size / 2 ||
             distance == comm_.size - comm_.size / 2;
    });
    if (transport.CanReduce(Element::kF32, Reduction::kSum)) {
      const std::int64_t most = std::max<std::int64_t>(largest / 4, 1);
      AddSums(Spread::kAll, std::min<std::int64_t>(most, 250), 1);
      AddSums(Spread::kAll, most, kRepeats);
      AddSums(Spread::kBlocks, std::max<std::int64_t>(most / comm.size, 1), 1);
    }
    Allocate();
  }

  // Says why the transport is not to be used, if so, on all ranks alike. The device may then still
  // be at work on what this holds.
  std::string Run() {
    // What the device has been given before may take as long as it likes.
    std::string failure = Attempt(comm_, [&]() -> std::string {
      transport_.Follow(queue_);
      queue_.Synchronize(comm_.control);
      return {};
    });
    if (!failure.empty()) return failure;
    failure = Enqueue();
    if (failure.empty()) failure = Wait();
    const bool has_failed = !failure.empty();
    if (has_failed) {
      Tell();
      transport_.Discard();  // others may wait in it for this rank
    }
    ComeOut(comm_, failure,
            std::string("take another PFFTJAX_GPU_TRANSPORT than ") + transport_.name());
    Forget(has_failed);
    if (!has_failed && !has_heard_) failure = Difference();
    // What only follows from another rank's failure says less than that.
    const std::string text = FirstText(comm_, is_echo_ ? "" : failure);
    return text.empty() ? FirstText(comm_, failure) : text;
  }

 private:
  // Some of the bytes that are to arrive have this meaning.
  struct Part {
    std::int64_t offset;
    std::int64_t bytes;
    std::string what;
  };

  static std::int64_t Append(std::string& all, std::int64_t bytes) {
    const std::int64_t offset = RoundUp(static_cast<std::int64_t>(all.size()), kPartAlign);
    all.resize(static_cast<std::size_t>(offset + bytes));
    return offset;
  }

  // Appends a message, of bytes that no other one of this trial has.
  Block Message(std::string& all, int source, int dest, std::int64_t bytes) const {
    constexpr std::uint64_t kOdd = 0x9e3779b97f4a7c15u;
    const std::int64_t offset = Append(all, bytes);
    std::uint64_t mixed = (static_cast<std::uint64_t>(source) << 32 |
                           static_cast<std::uint64_t>(dest) << 8 | steps_.size()) *
                          kOdd;
    mixed = (mixed ^ mixed >> 32) * 0xd6e8feb86659fd93u;
    mixed ^= mixed >> 32;
    for (std::int64_t i = 0; i < bytes; ++i) {
      mixed += kOdd;
      all[offset + i] = static_cast<char>((mixed ^ mixed >> 29) * kOdd >> 56);
    }
    return {offset, bytes};
  }

  // Adds an exchange of messages of so many bytes between the ranks at certain distances.
  template <typename Condition>
  void AddExchange(std::int64_t bytes, Condition&& is_partner) {
    std::vector<Block> to(static_cast<std::size_t>(comm_.size));
    std::vector<Block> from(to);
    for (int distance = 1; distance < comm_.size; ++distance) {
      if (!is_partner(distance)) continue;
      const int dest = (comm_.rank + distance) % comm_.size;
      const int source = (comm_.rank + comm_.size - distance) % comm_.size;
      to[dest] = Message(sent_, comm_.rank, dest, bytes);
      from[source] = Message(expected_, source, comm_.rank, bytes);
      parts_.push_back({from[source].offset, bytes, "from rank " + std::to_string(source)});
    }
    steps_.push_back([=] { return transport_.Exchange(comm_, send_, to, recv_, from, queue_); });
  }

  // Adds sums of `count` numbers for all ranks, or for each of them; `times` the same.
  void AddSums(Spread spread, std::int64_t count, int times) {
    const std::int64_t all = spread == Spread::kBlocks ? count * comm_.size : count;
    const std::int64_t begin = spread == Spread::kBlocks ? count * comm_.rank : 0;
    const auto bytes = [](std::int64_t n) { return n * static_cast<std::int64_t>(sizeof(float)); };
    // These are integers so small that their sums are exact in any order.
    const auto number = [](std::int64_t i, int rank) {
      return static_cast<float>(i % 61 + (rank & 31));
    };
    const std::int64_t send = Append(sent_, bytes(all));
    for (std::int64_t i = 0; i < all; ++i) {
      const float value = number(i, comm_.rank);
      std::memcpy(&sent_[send + bytes(i)], &value, sizeof value);
    }
    float of_ranks = 0;
    for (int rank = 0; rank < comm_.size; ++rank) of_ranks += number(0, rank);
    const Reducing what{spread, Reduction::kSum, Element::kF32, count};
    for (int time = 0; time < times; ++time) {
      const std::int64_t recv = Append(expected_, bytes(count));
      for (std::int64_t i = 0; i < count; ++i) {
        const float value = of_ranks + number(begin + i, 0) * static_cast<float>(comm_.size);
        std::memcpy(&expected_[recv + bytes(i)], &value, sizeof value);
      }
      parts_.push_back({recv, bytes(count), "of a sum"});
      steps_.push_back([=] {
        return transport_.Reduce(comm_, what, static_cast<const char*>(send_) + send,
                                 static_cast<char*>(recv_) + recv, queue_);
      });
    }
  }

  void Allocate() {
    const auto bytes = [](const std::string& all) {
      return static_cast<std::int64_t>(all.size());
    };
    send_ = queue_.Allocate(bytes(sent_));
    recv_ = queue_.Allocate(bytes(expected_));
    outgoing_.emplace(bytes(sent_));
    arrived_.emplace(bytes(expected_));
    std::memcpy(outgoing_->data(), sent_.data(), sent_.size());
  }

  // Returns why this rank could not enqueue everything.
  std::string Enqueue() {
    try {
      queue_.Copy(send_, outgoing_->data(), static_cast<std::int64_t>(sent_.size()),
                  Direction::kToDevice);
      queue_.Clear(recv_, static_cast<std::int64_t>(expected_.size()));
      for (const std::function<int()>& step : steps_) {
        if (const int code = step()) {
          is_echo_ = code == kOtherCall;
          return ReasonOf(code, comm_);
        }
      }
      queue_.Copy(arrived_->data(), recv_, static_cast<std::int64_t>(expected_.size()),
                  Direction::kToHost);
      return {};
    } catch (const std::exception& error) {
      return error.what();
    }
  }

  // Waits until the device is done; returns why it will not be, unless another rank knows.
  std::string Wait() {
    const double patience = Patience(kPatience);
    SteppedClock clock(0.5);
    while (true) {
      int is_idle = 0;
      if (const int code = Device()->is_idle(stream_.handle(), &is_idle)) {
        return Device()->error_text(code);
      }
      if (is_idle) return transport_.Trouble();
      if (std::string trouble = transport_.Trouble(); !trouble.empty()) return trouble;
      if (Hear()) return {};
      if (clock.Look() > patience) return "a GPU waited in vain for messages of other ranks";
      sched_yield();
    }
  }

  // This rank has failed, and others may wait for its messages. They hear of it by one word each.
  void Tell() {
    for (int rank = 0; rank < comm_.size; ++rank) {
      if (rank == comm_.rank) continue;
      told_.push_back(0);
      CheckMpi(
          Mpi()->send_start(&word_, sizeof word_, rank, kProbeTag, comm_.control, &told_.back()));
    }
  }
  bool Hear() {
    std::int64_t word = 0;
    int source = 0;
    int found = 0;
    CheckMpi(Mpi()->receive_words(&word, 1, kProbeTag, comm_.control, &source, &found));
    if (!found) return false;
    heard_.insert(source);
    has_heard_ = true;
    return true;
  }
  void CheckMpi(int code) const {
    if (code != 0) throw std::runtime_error(ReasonOf(code, comm_));
  }
  // All words are received, so that no later trial takes them for its own.
  void Forget(bool has_failed) {
    std::vector<std::int8_t> failed(static_cast<std::size_t>(comm_.size));
    const std::int8_t mine = has_failed;
    CheckMpi(Mpi()->allgather(&mine, failed.data(), 1, Element::kS8, comm_.control));
    std::set<int> missing;
    for (int rank = 0; rank < comm_.size; ++rank) {
      if (failed[rank] && rank != comm_.rank && heard_.count(rank) == 0) missing.insert(rank);
    }
    for (heard_.clear(); heard_.size() < missing.size(); sched_yield()) Hear();
    for (MpiHandle& request : told_) {
      for (int done = 0; !done; sched_yield()) CheckMpi(Mpi()->test(&request, &done, nullptr));
    }
  }

  // Says what has arrived and was not sent, if anything.
  std::string Difference() const {
    for (const Part& part : parts_) {
      for (std::int64_t i = part.offset; i < part.offset + part.bytes; ++i) {
        if (arrived_->data()[i] == expected_[i]) continue;
        return "byte " + std::to_string(i - part.offset) + " of " + std::to_string(part.bytes) +
               " " + part.what + " arrived wrong";
      }
    }
    return {};
  }

  Communicator& comm_;
  Transport& transport_;
  Stream stream_;
  Queue queue_;
  std::string sent_;
  std::string expected_;
  std::vector<Part> parts_;
  std::vector<std::function<int()>> steps_;
  void* send_ = nullptr;
  void* recv_ = nullptr;
  std::optional<PinnedMemory> outgoing_;
  std::optional<PinnedMemory> arrived_;
  const std::int64_t word_ = 0;
  std::vector<MpiHandle> told_;
  std::set<int> heard_;
  bool has_heard_ = false;
  bool is_echo_ = false;
};

}  // namespace

double Patience(double longest) {
  const double timeout = GetOptions().timeout;
  return timeout > 0 ? std::min(longest, timeout / 4) : longest;
}

std::string Probe(Communicator& comm, Transport& transport) {
  std::unique_ptr<Trial> trial;
  std::string why;
  const auto make = [&](std::int64_t largest) {
    why = Attempt(comm, [&]() -> std::string {
      trial = std::make_unique<Trial>(comm, transport, largest);
      return {};
    });
    return why.empty();
  };
  const std::int64_t largest = GetTransportOptions().probe_bytes;
  if (largest == 0) return {};
  if (!make(largest) && !make(std::min(largest, kSmallTrial))) {
    if (comm.rank == 0) {
      process::WriteError(
          "pfftjax: warning: " + std::string(transport.name()) +
          " is used between GPUs without a trial, for which there was no memory: " + why + "\n");
    }
    return {};
  }
  // After a failure, of MPI's also, the device may be at work on what it holds.
  Trial& running = *trial.release();
  why = running.Run();
  if (why.empty()) trial.reset(&running);
  return why;
}

void ComeOut(Communicator& comm, const std::string& failure, const std::string& remedy) {
  const double patience = Patience(kPatienceWithOthers);
  SteppedClock clock(0.5);
  MpiHandle request = 0;
  int code = Mpi()->barrier_start(comm.control, &request);
  for (int done = 0; code == 0 && !done; sched_yield()) {
    code = Mpi()->test(&request, &done, nullptr);
    if (!done && !failure.empty() && clock.Look() > patience) {
      AbortJob("on " + comm.Where() + " " + failure + ", and others wait in it for this one; " +
               remedy);
    }
  }
  if (code != 0) throw std::runtime_error("MPI's barrier failed while a transport was set up");
}

}  // namespace pfftjax::gpu
