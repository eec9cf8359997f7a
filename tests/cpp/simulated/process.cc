#include "process.h"

#include <algorithm>

#include "job.h"

namespace pfftjax::process {

using simulated::scheduler;
using simulated::Task;

unsigned Entropy() { return static_cast<unsigned>(scheduler->random.Next()); }

void WriteError(const std::string& text) { simulated::TheJob().errors += text; }

Thread::Thread(std::function<void()> body)
    : task_(scheduler->Start(simulated::CurrentProcess(), std::move(body))) {
  if (scheduler->current()) task_->knows = scheduler->current()->knows;
}

void Thread::join() {
  while (!task_->is_done) {
    task_->joining.push_back(scheduler->current());
    scheduler->Block("a join");
  }
  simulated::Knowledge told;
  told.tasks = task_->knows;
  simulated::Learn(told);
  task_ = nullptr;
}

// Outside of fibres, where a job is taken apart, nobody waits for anybody.
void Mutex::lock() {
  if (!scheduler || !scheduler->current()) return;
  scheduler->Point();
  while (is_locked_) {
    waiting_.push_back(scheduler->current());
    scheduler->Block("a lock");
  }
  is_locked_ = true;
  simulated::Learn(told_);
}

bool Mutex::try_lock() {
  if (!scheduler || !scheduler->current()) return true;
  scheduler->Point();
  if (std::exchange(is_locked_, true)) return false;
  simulated::Learn(told_);
  return true;
}

void Mutex::unlock() {
  if (!scheduler || !scheduler->current()) return;
  told_.tasks = scheduler->current()->knows;
  is_locked_ = false;
  for (Task* task : std::exchange(waiting_, {})) scheduler->Wake(*task);
}

void Condition::Notify(std::size_t count) {
  if (!scheduler || !scheduler->current()) return;
  scheduler->Point();
  for (; count > 0 && !waiting_.empty(); --count) {
    const auto chosen = static_cast<std::size_t>(
        scheduler->random.Below(static_cast<std::int64_t>(waiting_.size())));
    Task* const task = waiting_[chosen];
    waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(chosen));
    scheduler->Wake(*task);
  }
}

void Condition::WaitUntil(std::unique_lock<Mutex>& lock, simulated::Time until) {
  if (scheduler->pace.wakes_without_reason && scheduler->random.Chance(0.1)) {
    lock.unlock();
    scheduler->Sleep(simulated::kMicrosecond);
    lock.lock();
    return;
  }
  Task* const self = scheduler->current();
  waiting_.push_back(self);
  lock.unlock();
  scheduler->Block("a condition", until);
  waiting_.erase(std::remove(waiting_.begin(), waiting_.end(), self), waiting_.end());
  lock.lock();
}

}  // namespace pfftjax::process
