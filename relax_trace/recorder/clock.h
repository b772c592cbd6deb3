/* The clock of the op path: the processor's time-stamp counter where it ticks evenly.
 *
 * Reading CLOCK_MONOTONIC costs some 20 ns more than the counter, twice an op. Counter values are
 * turned into nanoseconds by the reader of a dump, from readings of all three clocks taken together.
 */
#ifndef RELAX_TRACE_CLOCK_H_
#define RELAX_TRACE_CLOCK_H_

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <x86intrin.h>
#endif

/* All three clocks at one moment. */
typedef struct {
  uint64_t ticks;        /* what clock_ticks() returns */
  uint64_t monotonic_ns; /* CLOCK_MONOTONIC */
  uint64_t wall_ns;      /* CLOCK_REALTIME, since the Unix epoch */
} clock_reading;

static bool clock_uses_counter;    /* written once, when the library is loaded */
static clock_reading clock_loaded; /* likewise */

static inline uint64_t clock_ns(clockid_t clock) {
  struct timespec now;
  clock_gettime(clock, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static inline uint64_t clock_ticks(void) {
#if defined(__x86_64__)
  if (__builtin_expect(clock_uses_counter, 1)) return __rdtsc();
#elif defined(__aarch64__)
  if (__builtin_expect(clock_uses_counter, 1)) {
    uint64_t ticks;
    __asm__ volatile("mrs %0, cntvct_el0" : "=r"(ticks));
    return ticks;
  }
#endif
  return clock_ns(CLOCK_MONOTONIC);
}

/* Whether the counter keeps one rate in every power state ("invariant TSC"; always so on aarch64). */
static bool clock_counter_is_invariant(void) {
#if defined(__x86_64__)
  unsigned int eax, ebx, ecx, edx;
  return __get_cpuid(0x80000007u, &eax, &ebx, &ecx, &edx) && (edx & (1u << 8));
#elif defined(__aarch64__)
  return true;
#else
  return false;
#endif
}

/* The tightest of several attempts: an interrupt between two clocks would pull them apart. */
static clock_reading clock_read(void) {
  clock_reading best = {0, 0, 0};
  uint64_t best_gap = UINT64_MAX;
  for (int attempt = 0; attempt < 8; ++attempt) {
    uint64_t before = clock_ticks();
    uint64_t monotonic = clock_ns(CLOCK_MONOTONIC);
    uint64_t wall = clock_ns(CLOCK_REALTIME);
    uint64_t gap = clock_ticks() - before;
    if (gap < best_gap) {
      best_gap = gap;
      best = (clock_reading){before + gap / 2, monotonic, wall};
    }
  }
  return best;
}

enum { CLOCK_COMPARISON_NS = 20000000 }; /* over which rates are compared, to some 1e-5 */

/* A duration in ticks, rounded down. */
static uint64_t clock_ticks_of(uint64_t ns) {
  if (!clock_uses_counter) return ns;
  clock_reading now = clock_read();
  uint64_t passed = now.monotonic_ns - clock_loaded.monotonic_ns;
  if (passed < CLOCK_COMPARISON_NS) {
    struct timespec rest = {0, (long)(CLOCK_COMPARISON_NS - passed)};
    nanosleep(&rest, NULL);
    now = clock_read();
    passed = now.monotonic_ns - clock_loaded.monotonic_ns;
  }
  double ticks = (double)ns * (double)(now.ticks - clock_loaded.ticks) / (double)passed;
  return ticks < (double)INT64_MAX ? (uint64_t)ticks : INT64_MAX;
}

/* The other way round, and quick: at the rate since the library was loaded. */
static uint64_t clock_ns_of(uint64_t ticks) {
  uint64_t now = clock_ticks(), passed = clock_ns(CLOCK_MONOTONIC) - clock_loaded.monotonic_ns;
  if (!clock_uses_counter || now <= clock_loaded.ticks) return ticks;
  return (uint64_t)((double)ticks * (double)passed / (double)(now - clock_loaded.ticks));
}

#endif /* RELAX_TRACE_CLOCK_H_ */
