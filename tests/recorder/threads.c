/* Threads: one, several, many that come and go, and one that changes its mind meanwhile. */
#include "scenarios.h"
#include "workers.h"

/* ---- one thread, and several with one that dumps ---- */

void play_alone(uint64_t seed) {
  attach_all(seed, true);
  work(0, 500, EVERY_LETTER, true);
  work_cleanly(0);
  dump_all();
  release_all();
}

static void dump_while_working(void) {
  while (atomic_load(&working)) dump_some(1 << 14);
}

static void worker_or_dumper(int number) {
  if (number == WORKERS) {
    dump_while_working();
    return;
  }
  work(number, 120, EVERY_LETTER, true);
  work_cleanly(number);
  atomic_fetch_sub(&working, 1);
}

void play_threads(uint64_t seed) {
  attach_all(seed, true);
  on_threads(WORKERS + 1, worker_or_dumper);
  dump_all();
  release_all();
}

/* ---- a thread that changes its mind while others work ---- */

static void worker_or_switcher(int number) {
  uint64_t seed = base_seed;
  if (number < WORKERS) {
    work(number, 300, EVERY_LETTER, false);
    atomic_fetch_sub(&working, 1);
  }
  while (number == WORKERS && atomic_load(&working)) {
    want(&vms[random_below(&seed, VMS)], one_in(&seed, 2), one_in(&seed, 8));
    state(&vms[random_below(&seed, VMS)]);
    if (one_in(&seed, 20)) dump_some(1 << 14);
  }
}

void play_toggle(uint64_t seed) {
  attach_all(seed, false);
  on_threads(WORKERS + 1, worker_or_switcher);
  dump_all();
  release_all();
}

static void set_some_filter(uint64_t* seed) {
  static const char* const patterns[] = {"vm.builtin.*", "add", "*", "nobody"};
  TVMFFIAny arguments[3] = {integer_of(one_in(seed, 2) ? 0 : 2000)};
  int count = 1 + (int)random_below(seed, 3);
  for (int i = 1; i < count; ++i) {
    arguments[i] = pointer_of(kTVMFFIRawStr, patterns[random_below(seed, 4)]);
  }
  if (call_global("relax_trace.recorder.set_filter", arguments, count, NULL)) {
    REQUIRE(drop_raised()); /* there was no memory: what was set before holds */
  }
}

static void wish_something(uint64_t* seed) {
  attached_vm* vm = &vms[random_below(seed, VMS)];
  int slot = 1 + (int)random_below(seed, 3);
  wish_of wish = {.active = (int)random_below(seed, 3), .wait = (int)random_below(seed, 2)};
  if (one_in(seed, 2)) wish.functions = "*1";
  if (one_in(seed, 3)) {
    drop_wish(vm, slot);
  } else {
    make_wish(vm, slot, wish);
  }
}

static void worker_or_chaos(int number) {
  uint64_t seed = base_seed + 7;
  if (number < WORKERS) {
    work(number, 300, EVERY_LETTER, false);
    atomic_fetch_sub(&working, 1);
  }
  while (number == WORKERS && atomic_load(&working)) {
    uint32_t chosen = random_below(&seed, 20);
    if (chosen == 0) begin();
    if (chosen == 1) set_limit(1 + (int64_t)random_below(&seed, 1 << 20), one_in(&seed, 2));
    if (chosen == 2) set_limit(NO_LIMIT, one_in(&seed, 2));
    if (chosen == 3) fail_allocations(one_in(&seed, 2) ? 8 : 0);
    if (chosen == 4) fail_bytes(one_in(&seed, 2));
    if (chosen >= 5 && chosen < 7) dump_some(1 << 14);
    if (chosen == 7) take_snapshot();
    if (chosen == 8) set_some_filter(&seed);
    if (chosen >= 9 && chosen < 13) wish_something(&seed);
    if (chosen >= 13) want(&vms[random_below(&seed, VMS)], one_in(&seed, 2), one_in(&seed, 2));
  }
}

void play_chaos(uint64_t seed) {
  attach_all(seed, false);
  on_threads(WORKERS + 1, worker_or_chaos);
  fail_allocations(0);
  fail_bytes(false);
  dump_all();
  release_all();
}

/* ---- threads that come and go ---- */

static void short_worker(int number) {
  work(number, 3, EVERY_LETTER, true);
  work_cleanly(number);
}

void play_churn(uint64_t seed) {
  attach_all(seed, true);
  for (int round = 0; round < 60; ++round) {
    base_seed = seed + 100 * (uint64_t)round;
    on_threads(WORKERS, short_worker);
    if (one_in(&seed, 3)) dump_some(1 << 14);
  }
  dump_all();
  REQUIRE(recorder_threads() == 0);
  release_all();
}

/* The operating system gives out a thread's id again once the thread has ended. */
static void work_under_old_id(int number) {
  pretend_thread_id(4242);
  short_worker(number);
}

void play_reused_ids(uint64_t seed) {
  attach_all(seed, true);
  for (int round = 0; round < 4; ++round) on_threads(1, work_under_old_id);
  dump_all();
  release_all();
}

/* A function that was taken before throws, and its thread ends with that. */
static void end_with_throw(int number) { invoke_named(&vms[number], "ct9_1", true); }

void play_thread_ends_after_throw(uint64_t seed) {
  attach_all(seed, true);
  on_threads(WORKERS, end_with_throw);
  dump_all();
  REQUIRE(recorder_threads() == 0);
  release_all();
}
