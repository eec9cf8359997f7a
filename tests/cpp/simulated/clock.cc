#include "clock.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

namespace pfftjax::simulated {
namespace {

Time Whole(double time) { return static_cast<Time>(std::ceil(time - 1e-6)); }

struct Waking : Event {
  Task* task = nullptr;
  bool has_happened = false;
  void Happen() override {
    has_happened = true;
    scheduler->Wake(*task);
  }
};

}  // namespace

bool Machine::Set(const std::string& name, double value) {
  static const std::map<std::string, double Machine::*> numbers = {
      {"latency", &Machine::latency},
      {"overhead", &Machine::overhead},
      {"gap", &Machine::gap},
      {"rate", &Machine::rate},
      {"latency_in_node", &Machine::latency_in_node},
      {"overhead_in_node", &Machine::overhead_in_node},
      {"flag", &Machine::flag},
      {"core_rate", &Machine::core_rate},
      {"memory_rate", &Machine::memory_rate},
      {"cache", &Machine::cache},
      {"eager", &Machine::eager},
      {"copies", &Machine::copies},
      {"congestion", &Machine::congestion}};
  const auto found = numbers.find(name);
  if (found == numbers.end()) return false;
  this->*found->second = value;
  return true;
}

// The memory of a node, which all cores that use it share alike. Each gets what one core can take
// at most. `served_` is what a core would have got that had used it from the beginning; so each
// that comes is done when that has grown by what it needs.
class Clock::Memory : public Event {
 public:
  Memory(double core_rate, double rate) : core_rate_(core_rate), rate_(rate) {}

  void Add(double bytes, Event& then) {
    Advance();
    waiting_.emplace(served_ + bytes, &then);
    Plan();
  }

  void Happen() override {
    if (scheduler->now() != next_) return;  // others have come since this was planned
    Advance();
    // The first one is done by now, whatever was rounded.
    if (!waiting_.empty()) served_ = std::max(served_, waiting_.begin()->first);
    while (!waiting_.empty() && waiting_.begin()->first <= served_ + 1e-3) {
      Event* then = waiting_.begin()->second;
      waiting_.erase(waiting_.begin());
      then->Happen();
    }
    Plan();
  }

 private:
  double Rate() const {
    return std::min(core_rate_, rate_ / static_cast<double>(waiting_.size()));
  }
  void Advance() {
    const Time now = scheduler->now();
    if (!waiting_.empty()) served_ += static_cast<double>(now - since_) * Rate();
    since_ = now;
  }
  void Plan() {
    if (waiting_.empty()) return;
    next_ = since_ + std::max<Time>(Whole((waiting_.begin()->first - served_) / Rate()), 0);
    scheduler->Schedule(*this, next_);
  }

  const double core_rate_;
  const double rate_;
  std::multimap<double, Event*> waiting_;  // those of one size in the order in which they came
  double served_ = 0;
  Time since_ = 0;
  Time next_ = -1;
};

// A core does one thing after the other.
class Clock::Core : public Event {
 public:
  Core(Memory& memory, double rate) : memory_(memory), rate_(rate) {}

  void Add(const Work& work, Event& then) {
    todo_.push_back({work, &then});
    if (todo_.size() == 1) Begin();
  }

  void Happen() override {
    if (double& bytes = todo_.front().work.uncached; bytes > 0) {
      memory_.Add(std::exchange(bytes, 0), *this);
      return;
    }
    Event* then = todo_.front().then;
    todo_.pop_front();
    if (!todo_.empty()) Begin();
    then->Happen();
  }

 private:
  struct Todo {
    Work work;
    Event* then;
  };
  void Begin() {
    scheduler->Schedule(*this, scheduler->now() + std::llround(todo_.front().work.cached / rate_));
  }

  Memory& memory_;
  const double rate_;
  std::deque<Todo> todo_;
};

Clock::Clock(const Machine& machine, int ranks, int ranks_a_node)
    : machine(machine), ranks_a_node_(ranks_a_node), ranks_(static_cast<std::size_t>(ranks)) {
  const auto nodes = (ranks_ - 1) / static_cast<std::size_t>(ranks_a_node) + 1;
  out_.resize(nodes);
  in_.resize(nodes);
  caches_.resize(ranks_);
  for (std::size_t node = 0; node < nodes; ++node) {
    memories_.push_back(std::make_unique<Memory>(machine.core_rate, machine.memory_rate));
  }
  for (std::size_t rank = 0; rank < ranks_; ++rank) {
    Memory& memory = *memories_[rank / static_cast<std::size_t>(ranks_a_node)];
    cores_.push_back(std::make_unique<Core>(memory, machine.core_rate));
  }
}

Clock::~Clock() = default;

void Clock::Spend(double time) {
  if (time > 0) scheduler->Sleep(Whole(time));
}

// ---- Copies ------------------------------------------------------------------------------------

void Clock::Bring(Cache& cache, const void* at, std::int64_t bytes) {
  cache.bytes += static_cast<double>(bytes);
  cache.brought[at] = cache.bytes;
}

Clock::Work Clock::Touching(const Process& process, const void* at, std::int64_t bytes) {
  const auto size = static_cast<double>(bytes);
  if (!at) return {size, 0};
  Cache& cache = caches_[static_cast<std::size_t>(process.rank)];
  const auto found = cache.brought.find(at);
  if (found != cache.brought.end() && cache.bytes - found->second + size <= machine.cache) {
    return {size, 0};
  }
  Bring(cache, at, bytes);
  return {0, size};
}

void Clock::Do(const Process& process, const Work& work, Event& then) {
  cores_[static_cast<std::size_t>(process.rank)]->Add(work, then);
}

void Clock::Do(const Work& work) {
  if (work.cached + work.uncached <= 0) return;
  Waking waking;
  waking.task = scheduler->current();
  Do(CurrentProcess(), work, waking);
  while (!waking.has_happened) scheduler->Block("a copy");
}

Clock::Cache& Clock::Mine() { return caches_[static_cast<std::size_t>(CurrentProcess().rank)]; }

void Clock::Announce(const void* at, std::int64_t bytes, bool is_read) {
  HandToMpi(nullptr);
  Cache& mine = Mine();
  mine.announced = at;
  mine.announced_bytes = bytes;
  mine.is_read = is_read;
}

void Clock::HandToMpi(const void* at) {
  Cache& mine = Mine();
  const void* const before = std::exchange(mine.announced, nullptr);
  if (!before || before == at) return;
  if (mine.is_read) {
    Bring(mine, before, mine.announced_bytes);
    Do({0, static_cast<double>(mine.announced_bytes)});
  } else {
    Do(Touching(CurrentProcess(), before, mine.announced_bytes));
  }
}

void Clock::Copy(const void* from, const void* to, std::int64_t bytes) {
  HandToMpi(nullptr);
  Work work = Touching(CurrentProcess(), from, bytes);
  work.Add(Touching(CurrentProcess(), to, bytes));
  Do(work);
}

void Clock::ChangeAtomic(const void* at) {
  HandToMpi(nullptr);
  Mine().atomics[at] = ++atomics_[at];
  scheduler->WakeThoseThatLookAt(at);
}

void Clock::ReadAtomic(const void* at) {
  HandToMpi(nullptr);
  const auto found = atomics_.find(at);
  if (found == atomics_.end()) return;
  std::int64_t& known = Mine().atomics[at];
  if (known == found->second) return;
  Spend(machine.flag);
  known = found->second;
}

// ---- Links -------------------------------------------------------------------------------------

// When a message that comes to a link now has begun to go through it, and has gone.
Clock::Passage Clock::Pass(Link& link, std::int64_t bytes) {
  const double takes = std::max(machine.gap, static_cast<double>(bytes) / machine.rate);
  const auto now = static_cast<double>(scheduler->now());
  const double begin = machine.congestion == 0 ? now : std::max(now, link.free_at);
  link.free_at = begin + takes;
  return {begin, link.free_at};
}

void Clock::Leave(const Process& from, std::int64_t bytes, bool is_request, Event& then) {
  traffic.messages += is_request ? 0 : 1;
  traffic.bytes += bytes;
  const Passage passage = Pass(out_[static_cast<std::size_t>(NodeOf(from))], bytes);
  scheduler->Schedule(then, Whole(passage.begin + machine.latency));
}

void Clock::Enter(const Process& to, std::int64_t bytes, Event& then) {
  scheduler->Schedule(then, Whole(Pass(in_[static_cast<std::size_t>(NodeOf(to))], bytes).end));
}

void Clock::Meet() {
  HandToMpi(nullptr);
  meeting_.push_back(scheduler->current());
  if (meeting_.size() < ranks_) {
    scheduler->Block("a meeting");
    return;
  }
  met_ = {scheduler->now(), traffic};
  for (Task* task : std::exchange(meeting_, {})) {
    if (task != scheduler->current()) scheduler->Wake(*task);
  }
}

}  // namespace pfftjax::simulated
