#include "scheduler.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace pfftjax::simulated {

Scheduler* scheduler = nullptr;
Process* process_outside = nullptr;

// SplitMix64.
std::uint64_t Random::Next() {
  std::uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

Time Random::Spread(Time least, Time most) {
  // Powers of two and a remainder: logarithms may differ in their last digit between libraries.
  int powers = 0;
  while ((least << (powers + 1)) <= most) ++powers;
  const Time base = least << Below(powers + 1);
  return std::min(most, base + Below(base));
}

Task* Scheduler::Start(Process& process, std::function<void()> body) {
  tasks_.push_back(std::make_unique<Task>());
  Task* task = tasks_.back().get();
  task->process = &process;
  task->number = static_cast<int>(tasks_.size());
  task->fibre = std::make_unique<Fibre>([this, body = std::move(body)] {
    body();
    End();
  });
  Push(*task, pace.is_exact ? now_ : now_ + random.Spread(10, 10 * kMicrosecond));
  return task;
}

void Scheduler::Push(Task& task, Time time) {
  queue_.push({time, Order(), &task, ++task.generation, nullptr});
}

void Scheduler::Schedule(Event& event, Time time) {
  queue_.push({time, Order(), nullptr, 0, &event});
}

void Scheduler::Note(std::uint64_t what) {
  trace_ = (trace_ ^ what) * 0x9fb21c651e98df25u;
  trace_ ^= trace_ >> 29;
}

void Scheduler::Run() {
  constexpr std::int64_t kMostSteps = 100'000'000;
  try {
    while (!queue_.empty() && !is_over) {
      const Entry next = queue_.top();
      queue_.pop();
      if (next.task) {
        if (next.generation != next.task->generation || next.task->is_done) continue;
        const Process& process = *next.task->process;
        if (process.is_dead) continue;
        if (process.stopped_until > next.time) {
          Push(*next.task, process.stopped_until + random.Below(kMicrosecond));
          continue;
        }
      }
      now_ = std::max(now_, next.time);
      if (now_ > pace.limit || ++steps_ > kMostSteps) {
        Fail("the job hangs after " + std::to_string(now_ / kMillisecond) + " ms" + Waiting());
      }
      if (next.event) {
        Note(static_cast<std::uint64_t>(now_));
        next.event->Happen();
        continue;
      }
      Note(static_cast<std::uint64_t>(next.task->number) << 48 ^ static_cast<std::uint64_t>(now_));
      current_ = next.task;
      current_->where = "";
      current_->fibre->Enter();
      if (current_->is_done) current_->fibre.reset();
      current_ = nullptr;
    }
    if (is_over) return;
    for (const auto& task : tasks_) {
      if (!task->is_done && !task->process->is_dead) Fail("nobody can go on" + Waiting());
    }
  } catch (const Ended&) {
    // Fail or Stop was called from outside of a fibre.
  }
}

std::string Scheduler::Waiting() const {
  std::string text;
  std::vector<Process*> described;
  for (const auto& task : tasks_) {
    if (task->is_done) continue;
    if (describe && std::count(described.begin(), described.end(), task->process) == 0) {
      described.push_back(task->process);
      text += describe(*task->process);
    }
    text += "\n  rank " + std::to_string(task->process->rank) + ", thread " +
            std::to_string(task->number) +
            (task->process->is_dead ? " is dead" : std::string(" waits in ") + task->where);
  }
  return text;
}

void Scheduler::LoseTurn(Time time, const char* where) {
  Task& task = *current_;
  if (time >= 0) {
    Push(task, time);
  } else {
    ++task.generation;
  }
  task.where = where;
  Fibre::Leave();
}

void Scheduler::Block(const char* where, Time until) { LoseTurn(until, where); }

void Scheduler::Wake(Task& task) {
  if (task.is_done) return;
  Push(task, pace.is_exact ? now_ : now_ + random.Spread(10, kMicrosecond));
}

void Scheduler::Sleep(Time time) {
  LoseTurn(now_ + time + (pace.is_exact ? 0 : random.Below(time / 16 + 100)), "sleep");
}

void Scheduler::Nap(Time time) {
  if (pace.is_exact) return NapUntilChange(time);
  Task& task = *current_;
  // A system may let a thread sleep for longer than it has asked, and so makes long waits cheap.
  const std::int64_t doublings = std::min<std::int64_t>(++task.naps / 4, 9);
  const Time most = std::min<Time>(time << doublings, 10 * kMillisecond);
  LoseTurn(now_ + std::max(time, most) + random.Below(time + 100), "a pause");
}

void Scheduler::NapUntilChange(Time time) {
  Task& task = *current_;
  // A condition may be about several things, of which only the last one is known.
  constexpr Time kLongest = 10 * kMicrosecond;
  const void* at = std::exchange(task.looks_at, nullptr);
  if (at) looking_[at].push_back(&task);
  LoseTurn(now_ + (at ? std::max(time, kLongest) : time), "a pause");
  if (const auto found = looking_.find(at); at && found != looking_.end()) {
    std::vector<Task*>& all = found->second;
    all.erase(std::remove(all.begin(), all.end(), &task), all.end());
    if (all.empty()) looking_.erase(found);
  }
}

void Scheduler::WakeThoseThatLookAt(const void* at) {
  const auto found = looking_.find(at);
  if (found == looking_.end()) return;
  for (Task* task : found->second) Push(*task, now_);
  looking_.erase(found);
}

void Scheduler::Point() {
  if (pace.is_exact) return;
  Task& task = *current_;
  if (--task.points_left > 0) return;
  task.points_left = random.Between(1, pace.points_a_turn);
  if (pace.stops > 0 && random.Chance(pace.stops)) {
    task.process->StopUntil(now_ + random.Spread(kMillisecond, pace.longest_stop));
  }
  const bool is_long = random.Chance(pace.pauses);
  const Time pause = is_long ? random.Spread(kMicrosecond, kMillisecond)
                             : static_cast<Time>(static_cast<double>(random.Spread(10, 1000)) *
                                                 task.process->slowness);
  LoseTurn(now_ + pause, "work");
}

void Scheduler::End() {
  Task& task = *current_;
  task.is_done = true;
  for (Task* other : task.joining) Wake(*other);
  Fibre::Leave(true);
  std::abort();
}

void Scheduler::Fail(const std::string& why) {
  if (failure.empty()) failure = why;
  Stop();
}

void Scheduler::Stop() {
  is_over = true;
  if (!current_) throw Ended{};
  Fibre::Leave();
  std::abort();  // a fibre of a job that is over does not run
}

}  // namespace pfftjax::simulated
