/* Ring mode: the newest records within the limit, while threads write, end, and others look on. */
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
  REQUIRE(recorder_threads() == 0);
  release_all();
}

void play_ring(uint64_t seed) { play_in_ring(seed); }

void play_ring_drained(uint64_t seed) {
  drains = true;
  play_in_ring(seed);
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
