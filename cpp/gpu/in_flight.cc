#include "gpu/in_flight.h"

#include <utility>

#include "runtime/errors.h"

namespace pfftjax::gpu {
namespace {

// An error, which whoever computes on the device meets as well, says nothing of the time.
bool IsDone(const Event& event) {
  int done = 0;
  return Device()->is_done(event.handle(), &done) == 0 && done != 0;
}

}  // namespace

InFlight::InFlight() { Check(Device()->current_device(&device_), "asking for the device"); }

void InFlight::Begin(const Progress& call, StreamHandle stream) {
  const std::lock_guard lock(mutex_);
  ForgetFinished();
  // The call has failed between the two.
  if (!exchanges_.empty() && !exchanges_.back().is_enqueued) exchanges_.pop_back();
  if (spare_.empty()) spare_.emplace_back();
  Exchange exchange{std::move(spare_.back()), call.operation, call.element, call.count,
                    call.passed};
  spare_.pop_back();
  exchange.events.before.Record(stream);
  exchanges_.push_back(std::move(exchange));
}

void InFlight::End(StreamHandle stream) {
  const std::lock_guard lock(mutex_);
  exchanges_.back().events.after.Record(stream);
  exchanges_.back().is_enqueued = true;
}

std::optional<InFlight::Unfinished> InFlight::Look() {
  if (Device()->use_device(device_) != 0) return std::nullopt;
  // A call that holds it may wait for room in the stream.
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock) return std::nullopt;
  const double now = clock_.Look();
  ForgetFinished();
  if (exchanges_.empty()) return std::nullopt;
  Exchange& first = exchanges_.front();
  if (!first.is_enqueued || !IsDone(first.events.before)) return std::nullopt;
  if (!first.since) first.since = now;
  return Unfinished{now - *first.since, Describe(first.operation, first.element, first.count) +
                                            ", collective " + std::to_string(first.number)};
}

void InFlight::ForgetFinished() {
  while (!exchanges_.empty() && exchanges_.front().is_enqueued &&
         IsDone(exchanges_.front().events.after)) {
    spare_.push_back(std::move(exchanges_.front().events));
    exchanges_.pop_front();
  }
}

}  // namespace pfftjax::gpu
