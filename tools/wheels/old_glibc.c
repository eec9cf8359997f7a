// What libstdc++.a and the headers of a newer glibc take from it, and 2.28 does not have
// (old_glibc.py).
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/random.h>
#include <time.h>

// Zero says that there may be other threads: libstdc++ then counts references by atomics.
char __libc_single_threaded = 0;

// For std::random_device.
uint32_t arc4random(void) {
  uint32_t value;
  while (getrandom(&value, sizeof value, 0) != sizeof value) {
  }
  return value;
}

static int64_t nanoseconds(const struct timespec* time) {
  return time->tv_sec * INT64_C(1000000000) + time->tv_nsec;
}

// For waits that end at a time of a steady clock. A condition variable of 2.28 waits by the clock
// of the day, so the wait may end early where that is set: libstdc++ then waits for the rest.
int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                           const struct timespec* until) {
  struct timespec now, day;
  if (clock_gettime(clock, &now) != 0 || clock_gettime(CLOCK_REALTIME, &day) != 0) return EINVAL;
  const int64_t left = nanoseconds(until) - nanoseconds(&now);
  const int64_t end = nanoseconds(&day) + (left > 0 ? left : 0);
  day.tv_sec = end / 1000000000;
  day.tv_nsec = end % 1000000000;
  return pthread_cond_timedwait(condition, mutex, &day);
}
