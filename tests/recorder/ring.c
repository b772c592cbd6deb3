/* Ring mode: the newest records within the limit, while threads write, end, and others look on. */
#include <unistd.h>

#include "scenarios.h"
#include "workers.h"

enum { LIMIT = 1 << 19, FUNCTIONS = 40, STATE_MOST = 1 << 16 /* bytes of a thread's state */ };

/* A quarter of the records' three quarters may come on top; and what is asked for counts already while
 * it is being refused. */
static void check_bytes(void) {
  REQUIRE(recorder_bytes() <= LIMIT + 3 * LIMIT / 16 + (WORKERS + 1) * STATE_MOST);
}

/* Few functions, over and over: a ring has hardly any room for names. */
static void work_in_circles(int number, int count) {
  char name[64];
  for (int i = 0; i < count; ++i) {
    uint64_t seed = base_seed + (uint64_t)(FUNCTIONS * number + i % FUNCTIONS);
    make_name(&seed, "cdntk", 60, name);
    invoke_named(&vms[number], name, false);
    check_bytes();
  }
  work_cleanly(number);
}

/* ---- several threads, and one that looks on ---- */

static bool drains;
static pthread_barrier_t all_there;

static void worker_or_reader(int number) {
  if (number < WORKERS) {
    work_in_circles(number, 250);
    pthread_barrier_wait(
        &all_there); /* what the last to end writes could push out all of the first */
    atomic_fetch_sub(&working, 1);
    return;
  }
  for (int snapshots = 0; atomic_load(&working);) {
    if (snapshots < 20) take_snapshot(), ++snapshots;
    if (drains) dump_some(1 << 14);
    check_bytes();
  }
}

static void play_in_ring(uint64_t seed) {
  attach_all(seed, true);
  pthread_barrier_init(&all_there, NULL, WORKERS);
  set_limit(LIMIT, true);
  on_threads(WORKERS + 1, worker_or_reader);
  take_snapshot();
  dump_all();
  release_all();
}

void play_ring(uint64_t seed) { play_in_ring(seed); }

/* More than one of the largest chunks; what the recorder keeps of them for later is room in a ring. */
static void leave_spare_chunks(int number) {
  for (int i = 0; i < 200; ++i) invoke_named(&vms[number], "c50_1", false);
  dump_all();
  size_t before = recorder_bytes();
  set_limit(LIMIT, true);
  REQUIRE(recorder_bytes() < before);
}

void play_ring_drained(uint64_t seed) {
  drains = true;
  attach_all(seed, true);
  on_threads(1, leave_spare_chunks);
  release_all();
  play_in_ring(seed);
}

/* ---- threads that take turns, so that all their records are of one age ---- */

enum { TURNS = 20 };

static pthread_barrier_t turn, others_ended;

/* The first two are still there while their records are overwritten, the others have ended. */
static void take_turns(int number) {
  for (int i = 0; i < TURNS * WORKERS; ++i) {
    pthread_barrier_wait(&turn);
    if (i % WORKERS == number) invoke_named(&vms[number], "c60_1", false);
  }
  pthread_barrier_wait(&turn);
  if (number < 2) pthread_barrier_wait(&others_ended), pthread_barrier_wait(&others_ended);
}

static void overwrite_half(int number) {
  if (number < WORKERS) {
    take_turns(number);
    return;
  }
  for (int i = 0; i < TURNS * WORKERS + 1; ++i) pthread_barrier_wait(&turn);
  pthread_barrier_wait(&others_ended);
  while (recorder_finished() < WORKERS - 2) continue;
  for (int i = 0; i < 80; ++i) invoke_named(&vms[number], "60_2", false);
  take_snapshot();
  pthread_barrier_wait(&others_ended);
}

void play_ring_turns(uint64_t seed) {
  attach_all(seed, true);
  pthread_barrier_init(&turn, NULL, WORKERS + 1);
  pthread_barrier_init(&others_ended, NULL, 3);
  set_limit(LIMIT, true);
  on_threads(WORKERS + 1, overwrite_half);
  dump_all();
  release_all();
}

/* ---- somebody holds the recorder's lock, as a long dump does ---- */

static void write_or_hold(int number) {
  TVMFFIObjectHandle function = number ? NULL : function_of(&vms[0], "c60_1", false);
  if (number == 0) invoke_with(function, NULL, 0), count_wrapped();
  pthread_barrier_wait(&turn);
  if (number == 1) hold_registry(true);
  pthread_barrier_wait(&turn);
  if (number == 1) {
    /* the writer doesn't wait: it goes beyond the three quarters that are the records' */
    while (recorder_bytes() <= 14 * LIMIT / 16) continue;
    usleep(200000);
    REQUIRE(recorder_bytes() <= LIMIT); /* by a quarter at most; tables take up a little more */
    hold_registry(false);
    return;
  }
  for (int i = 0; i < 1000; ++i) invoke_with(function, NULL, 0), count_wrapped();
  REQUIRE(recorder_bytes() <= 13 * LIMIT / 16); /* and makes up for it */
  TVMFFIObjectDecRef(function);
}

void play_ring_held(uint64_t seed) {
  attach_all(seed, true);
  pthread_barrier_init(&turn, NULL, 2);
  set_limit(LIMIT, true);
  on_threads(2, write_or_hold);
  take_snapshot();
  dump_all();
  release_all();
}

/* ---- threads that come and go ---- */

static void short_worker(int number) { work_in_circles(number, 3); }

void play_ring_churn(uint64_t seed) {
  attach_all(seed, true);
  set_limit(LIMIT, true);
  for (int round = 0; round < 120; ++round) {
    on_threads(WORKERS, short_worker);
    if (round % 8 == 7) take_snapshot();
    if (round == 60) dump_some(1 << 14);
    REQUIRE(recorder_threads() < 200);
    check_bytes();
  }
  dump_all();
  REQUIRE(recorder_threads() == 0);
  release_all();
}

/* ---- hardly any room ---- */

static void crowded_worker(int number) {
  work_in_circles(number, 20);
  pthread_barrier_wait(&all_there); /* or those that end would leave room for the others */
}

/* From no thread's state to those of all of them, and next to nothing for their records. */
void play_ring_crowd(uint64_t seed) {
  attach_all(seed, true);
  pthread_barrier_init(&all_there, NULL, WORKERS);
  on_threads(WORKERS, crowded_worker); /* all names are known after that */
  dump_all();
  begin();
  for (int64_t limit = 40000; limit < 300000; limit += 9000) {
    set_limit(limit, true);
    on_threads(WORKERS, crowded_worker);
    take_snapshot();
    dump_all();
    REQUIRE(recorder_threads() == 0);
  }
  release_all();
}
