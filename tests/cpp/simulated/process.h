// The other side of cpp/base/process.h: what the core takes from the standard library, in a
// simulation.
#pragma once

#include <atomic>  // for the orders
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <mutex>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "simulated/memory.h"
#include "simulated/scheduler.h"

namespace pfftjax::process {

namespace simulated = pfftjax::simulated;

// ---- Objects of a process --------------------------------------------------------------------

inline std::size_t objects_of_a_process = 0;

template <typename T>
class Own {
 public:
  T& operator*() const {
    auto& objects = simulated::CurrentProcess().objects;
    if (objects.size() <= number_) objects.resize(objects_of_a_process);
    auto& object = objects[number_];
    if (!object.data) {
      object = {new T{}, [](void* data) { delete static_cast<T*>(data); }};
    }
    return *static_cast<T*>(object.data);
  }
  T* operator->() const { return &**this; }

 private:
  std::size_t number_ = objects_of_a_process++;
};

template <typename T>
T& Lasting() {
  static Own<T> object;
  return *object;
}

// So that a few hundred bytes fill several slots. Where time is measured, sizes are as they are.
#ifdef PFFTJAX_SIMULATED_SIZES
constexpr std::int64_t Size(std::int64_t bytes) { return bytes; }
#else
constexpr std::int64_t Size(std::int64_t bytes) { return bytes / 128; }
#endif

unsigned Entropy();
void WriteError(const std::string& text);

inline void Writes(const void* data, std::size_t bytes) {
  simulated::Point();
  simulated::NoteWrite(data, bytes);
}
inline void Reads(const void* data, std::size_t bytes) {
  simulated::Point();
  simulated::NoteRead(data, bytes);
}
inline void Copies(const void* from, const void* to, std::int64_t bytes) {
  simulated::NoteCopy(from, to, bytes);
}

// ---- Time ------------------------------------------------------------------------------------

struct Clock {
  using duration = std::chrono::nanoseconds;
  using rep = duration::rep;
  using period = duration::period;
  using time_point = std::chrono::time_point<Clock>;
  static constexpr bool is_steady = true;
  static time_point now() { return time_point(duration(simulated::scheduler->now())); }
};

template <typename Duration>
simulated::Time ToTime(Duration time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time).count();
}

// A short sleep is one of a loop that looks for something.
template <typename Duration>
void SleepFor(Duration duration) {
  const simulated::Time time = ToTime(duration);
  if (time <= simulated::kMillisecond) {
    simulated::scheduler->Nap(time);
  } else {
    simulated::scheduler->Sleep(time);
  }
}
inline void Yield() { simulated::scheduler->Nap(300); }
inline void Pause() { simulated::scheduler->Nap(20); }

// ---- Threads ---------------------------------------------------------------------------------

class Thread {
 public:
  Thread() = default;
  explicit Thread(std::function<void()> body);
  Thread(Thread&& other) noexcept : task_(std::exchange(other.task_, nullptr)) {}
  Thread& operator=(Thread&& other) noexcept {
    task_ = std::exchange(other.task_, nullptr);
    return *this;
  }
  bool joinable() const { return task_ != nullptr; }
  void join();

 private:
  simulated::Task* task_ = nullptr;
};

class Mutex {
 public:
  void lock();
  bool try_lock();
  void unlock();

 private:
  bool is_locked_ = false;
  simulated::Knowledge told_;  // by those that have had it
  std::vector<simulated::Task*> waiting_;
};

class Condition {
 public:
  void notify_one() { Notify(1); }
  void notify_all() { Notify(waiting_.size()); }

  void wait(std::unique_lock<Mutex>& lock) { WaitUntil(lock, -1); }
  template <typename Predicate>
  void wait(std::unique_lock<Mutex>& lock, Predicate is_true) {
    while (!is_true()) wait(lock);
  }
  template <typename Duration, typename Predicate>
  bool wait_for(std::unique_lock<Mutex>& lock, Duration time, Predicate is_true) {
    const simulated::Time until = simulated::scheduler->now() + ToTime(time);
    while (!is_true()) {
      if (simulated::scheduler->now() >= until) return is_true();
      WaitUntil(lock, until);
    }
    return true;
  }

 private:
  void Notify(std::size_t count);
  void WaitUntil(std::unique_lock<Mutex>& lock, simulated::Time until);

  std::vector<simulated::Task*> waiting_;
};

// ---- Atomics ---------------------------------------------------------------------------------

// As large as what it holds, and zeros where memory is: ranks lay it over shared memory.
template <typename T>
class Atomic {
 public:
  constexpr Atomic() = default;
  constexpr Atomic(T value) : value_(value) {}  // NOLINT: as std::atomic, not explicit
  Atomic(const Atomic&) = delete;
  Atomic& operator=(const Atomic&) = delete;

  static constexpr bool is_always_lock_free = true;

  T load(std::memory_order order = std::memory_order_seq_cst) const {
    simulated::Point();
    simulated::NoteLoad(this);
    return FromBits(simulated::Load(this, ToBits(value_), order));
  }
  void store(T value, std::memory_order order = std::memory_order_seq_cst) {
    simulated::Point();
    simulated::Store(this, ToBits(value_), ToBits(value), order);
    value_ = value;
  }
  T exchange(T value, std::memory_order order = std::memory_order_seq_cst) {
    return Change(order, [value](T) { return value; });
  }
  bool compare_exchange_strong(T& expected, T value,
                               std::memory_order order = std::memory_order_seq_cst) {
    bool is_equal = false;
    const T before =
        Change(order, [&](T old) { return (is_equal = old == expected) ? value : old; });
    if (!is_equal) expected = before;
    return is_equal;
  }
  T fetch_add(T value, std::memory_order order = std::memory_order_seq_cst) {
    return Change(order, [value](T old) { return static_cast<T>(old + value); });
  }
  T fetch_sub(T value, std::memory_order order = std::memory_order_seq_cst) {
    return Change(order, [value](T old) { return static_cast<T>(old - value); });
  }
  operator T() const { return load(); }  // NOLINT
  T operator=(T value) {                 // NOLINT
    store(value);
    return value;
  }
  T operator++() { return fetch_add(1) + 1; }
  T operator++(int) { return fetch_add(1); }
  T operator--() { return fetch_sub(1) - 1; }
  T operator+=(T value) { return fetch_add(value) + value; }

 private:
  static_assert(sizeof(T) <= sizeof(std::uint64_t));
  static std::uint64_t ToBits(T value) {
    std::uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof value);
    return bits;
  }
  static T FromBits(std::uint64_t bits) {
    T value;
    std::memcpy(static_cast<void*>(&value), &bits, sizeof value);
    return value;
  }
  template <typename Function>
  T Change(std::memory_order order, Function&& f) {
    simulated::Point();
    const T value = f(value_);
    simulated::Change(this, ToBits(value_), ToBits(value), order);
    return std::exchange(value_, value);
  }

  T value_{};
};

}  // namespace pfftjax::process
