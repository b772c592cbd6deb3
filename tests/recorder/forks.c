/* Forks: inside an op, between two, from a thread that records nothing, whatever the others do. */
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "scenarios.h"
#include "workers.h"

enum { FORKS = 6 };

/* Workers other than the one that forks wait inside an op, or go on. */
static bool parks;
static pthread_barrier_t all_parked, all_done;

/* In a child: the calls that it will have recorded, counted from where it began. */
static bool in_child;
static uint64_t told_before, open_before;

static void begin_child(int number) {
  char path[300];
  in_child = true;
  told_before = ops_told();
  open_before = (uint64_t)ops_open();
  snprintf(path, sizeof path, "%s.child%d", output_path(), number);
  alarm(60);
  open_output(path);
  fail_bytes(false);
}

/* A child ends itself, once it has recorded more: nothing of its parent goes on in it. */
static void end_child(attached_vm* vm, int number) {
  char key[32];
  invoke_named(vm, "ct20_1", true);
  invoke_named(vm, "cnv40_1", false);
  invoke_named(vm, "ctk30_2", false);
  invoke_named(vm, "c1_1", false);
  dump_all();
  REQUIRE(recorder_threads() == 1);
  snprintf(key, sizeof key, "child%d", number);
  tell_number(key, ops_told() - told_before + open_before);
  fflush(stdout);
  _exit(0);
}

static void wait_for(pid_t child) {
  int status = -1;
  REQUIRE(child > 0 && waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void fork_inside(void* self) {
  int* number = (int*)self;
  if (*number == FORKS || in_child) return;
  pid_t child = fork();
  if (child) {
    wait_for(child);
    ++*number;
  } else {
    begin_child(*number);
  }
}

/* Worker 0 runs functions until it has forked often enough, inside their ops. */
static void fork_often(void) {
  int number = 0;
  char name[64];
  uint64_t seed = base_seed;
  visit_with(fork_inside, &number);
  while (number < FORKS && !in_child) {
    invoke_named(&vms[0], make_name(&seed, "cdvt", 40, name), one_in(&seed, 3));
  }
  visit_nothing();
  if (in_child) end_child(&vms[0], number);
  work_cleanly(0);
}

/* A thread that the recorder knows nothing of. */
static void fork_unrecorded(void) {
  pid_t child = fork();
  if (child) {
    wait_for(child);
    return;
  }
  begin_child(FORKS);
  attached_vm vm = attach_vm();
  want(&vm, true, false);
  end_child(&vm, FORKS);
}

static void park(void* self) {
  bool* parked = (bool*)self;
  if (*parked) return;
  *parked = true;
  pthread_barrier_wait(&all_parked);
  pthread_barrier_wait(&all_done);
}

static void wait_inside_an_op(int number) {
  bool parked = false;
  visit_with(park, &parked);
  while (!parked) invoke_named(&vms[number], "cv40_1", false);
  visit_nothing();
}

static void worker(int number) {
  if (number == 0) {
    if (parks) pthread_barrier_wait(&all_parked);
    fork_often();
    fork_unrecorded();
    atomic_store(&working, 0);
    if (parks) pthread_barrier_wait(&all_done);
  } else if (parks) {
    wait_inside_an_op(number);
  } else if (number == WORKERS) {
    while (atomic_load(&working)) dump_some(1 << 14);
  } else {
    while (atomic_load(&working)) work(number, 5, EVERY_LETTER, true);
    work_cleanly(number);
  }
}

static void play_forks(uint64_t seed) {
  attach_all(seed, true);
  pthread_barrier_init(&all_parked, NULL, WORKERS);
  pthread_barrier_init(&all_done, NULL, WORKERS);
  on_threads(parks ? WORKERS : WORKERS + 1, worker);
  dump_all();
  release_all();
}

void play_forks_parked(uint64_t seed) {
  parks = true;
  play_forks(seed);
}

void play_forks_running(uint64_t seed) {
  parks = false;
  play_forks(seed);
}
