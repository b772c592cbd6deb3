/* Wishes: several recordings, each with its own of every VM, that come and go while VMs call others.
 *
 * What is done is written to a journal, a text file for each thread, so that a model of the recorder
 * can say afterwards what each invocation is recorded for: see test_wish_sanitizers.py.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "journal.h"
#include "scenarios.h"
#include "workers.h"

enum { PLAYERS = 3, OWN_VMS = 3, CHANGED_SLOTS = 6, NEST_MOST = 4, ROUNDS = 400 };

static attached_vm
    players_vms[PLAYERS * OWN_VMS]; /* a player's are its own: a VM is for one at a time */
static _Atomic int playing;
static int notices[2] = {-1, -1}; /* the pipe, to read from and for the recorder to write to */

/* What goes through the pipe, see wishes.h. */
typedef struct {
  uint64_t start, end;
  uint32_t slot, reason, vm, function;
} notice;

/* ---- wishes ---- */

static void wish_for(FILE* journal, attached_vm* vm, int slot, wish_of wish) {
  journal_wish(journal, vm, slot, wish);
  make_wish(vm, slot, wish);
}

static wish_of random_wish(uint64_t* seed) {
  static const char* const patterns[] = {"*", "c*v*", "*_3", "cn*", "nobody"};
  static const int64_t slow[] = {0, 1, 3600 * (int64_t)1000000000};
  wish_of wish = {.flags = (int)random_below(seed, 4) * WISH_FAILURES,
                  .slow_ns = slow[random_below(seed, 3)]};
  if (one_in(seed, 4)) wish.flags |= WISH_SYNCHRONIZED;
  if (one_in(seed, 3)) {
    wish.flags |= WISH_HELD; /* which no schedule and no pattern goes with */
    return wish;
  }
  if (one_in(seed, 2)) wish.functions = patterns[random_below(seed, 5)];
  wish.wait = (int)random_below(seed, 3);
  wish.warmup = (int)random_below(seed, 2);
  wish.active = (int)random_below(seed, 3);
  wish.repeat = (int)random_below(seed, 3);
  return wish;
}

/* One that any of the VMs `first` … `first + count - 1` has in one of the slots, or no more. */
static void change_one(FILE* journal, uint64_t* seed, int first, int count) {
  attached_vm* vm = &players_vms[first + (int)random_below(seed, (uint32_t)count)];
  int slot = (int)random_below(seed, CHANGED_SLOTS);
  if (one_in(seed, 3)) {
    journal_line(journal, "unwant %" PRId64 " %d", vm->number, slot);
    drop_wish(vm, slot);
  } else {
    wish_for(journal, vm, slot, random_wish(seed));
  }
}

/* ---- notices ---- */

static void set_notify(int file) {
  TVMFFIAny argument = integer_of(file);
  REQUIRE(call_global("relax_trace.recorder.set_notify", &argument, 1, NULL) == 0);
}

static void open_notices(void) {
  REQUIRE(pipe2(notices, O_NONBLOCK) == 0);
  REQUIRE(fcntl(notices[1], F_SETPIPE_SZ, 4096) >= 4096); /* soon full */
  set_notify(notices[1]);
}

/* All that are in the pipe; each is a whole one. */
static int read_notices(FILE* journal) {
  notice told;
  int count = 0;
  for (; read(notices[0], &told, sizeof told) == sizeof told; ++count) {
    REQUIRE(told.slot < 32 && told.reason >= 1 && told.reason < 8 && told.end >= told.start);
    journal_line(journal, "notice %u %u %u %u", told.slot, told.reason, told.vm, told.function);
  }
  return count;
}

/* ---- players ---- */

typedef struct {
  FILE* journal;
  uint64_t seed;
  int first; /* of its own VMs */
  int depth, left;
  bool changes, reads; /* what is wanted, and notices */
} player;

static void invoke_one(player* at) {
  static const char* const names[] = {"cv6_1",  "ctv9_2", "cnv12_3", "ctkv8_4", "cpv7_5",
                                      "cv20_3", "v5_9",   "ctv1_3",  "cnv30_6", "cv11_7"};
  attached_vm* vm = &players_vms[at->first + (int)random_below(&at->seed, OWN_VMS)];
  const char* name = names[random_below(&at->seed, sizeof names / sizeof *names)];
  bool stateful = one_in(&at->seed, 3);
  TVMFFIObjectHandle function = function_of(vm, stateful ? "invoke_stateful" : name, false);
  TVMFFIAny argument = pointer_of(kTVMFFIRawStr, name);
  journal_enter(at->journal, vm, name);
  int code = invoke_with(function, &argument, stateful);
  journal_leave(at->journal, code);
  count_wrapped();
  TVMFFIObjectDecRef(function);
  if (at->reads) read_notices(at->journal);
}

static void on_visit(void* self) {
  player* at = (player*)self;
  if (at->changes && one_in(&at->seed, 4)) change_one(at->journal, &at->seed, at->first, OWN_VMS);
  if (at->depth == NEST_MOST || at->left == 0 || one_in(&at->seed, 2)) return;
  ++at->depth;
  --at->left;
  invoke_one(at);
  --at->depth;
}

static void play_rounds(player* at) {
  visit_with(on_visit, at);
  for (int i = 0; i < ROUNDS; ++i) {
    if (at->changes && one_in(&at->seed, 2)) change_one(at->journal, &at->seed, at->first, OWN_VMS);
    at->left = 12;
    invoke_one(at);
  }
  visit_nothing();
}

/* Nobody reads notices any more, and then the pipe itself is gone: invocations go on as ever. */
static void close_notices(player* at) {
  signal(SIGPIPE, SIG_IGN); /* as Python does */
  at->left = 0;
  journal_line(at->journal, "closed");
  for (int slot = 0; slot < CHANGED_SLOTS; ++slot) {
    wish_for(at->journal, &players_vms[at->first + slot % OWN_VMS], slot,
             (wish_of){.flags = WISH_FAILURES, .slow_ns = 1});
  }
  for (int i = 0; i < 30; ++i) {
    if (i == 10) close(notices[0]);
    if (i == 20) close(notices[1]);
    invoke_one(at);
  }
  set_notify(-1);
}

static void attach_players(int count) {
  for (int i = 0; i < count * OWN_VMS; ++i) players_vms[i] = attach_vm();
  atomic_store(&playing, count);
  open_notices();
}

static void release_players(int count) {
  for (int i = 0; i < count * OWN_VMS; ++i) {
    for (int slot = 0; slot < 32; ++slot) drop_wish(&players_vms[i], slot);
    REQUIRE(state(&players_vms[i]) == 0);
    release_vm(&players_vms[i]);
  }
}

/* ---- one, who does it all; and several, while another thread changes what is wanted ---- */

void play_wishes_alone(uint64_t seed) {
  player only = {.journal = open_journal(0), .seed = seed, .changes = true, .reads = true};
  attach_players(1);
  play_rounds(&only);
  only.reads = false;
  close_notices(&only);
  fclose(only.journal);
  dump_all();
  release_players(1);
}

/* Of a player's VMs two have wishes that stay, whatever becomes of the other slots. */
static void wish_for_good(FILE* journal, int first) {
  wish_for(journal, &players_vms[first], 31, (wish_of){0});
  wish_for(journal, &players_vms[first], 30, (wish_of){.wait = 1, .warmup = 1, .active = 2});
  wish_for(journal, &players_vms[first + 1], 31, (wish_of){.flags = WISH_HELD});
  wish_for(journal, &players_vms[first + 1], 30,
           (wish_of){.wait = 1, .active = 1, .functions = "c*_3"});
}

static uint64_t players_seed;

static void play_as(int number) {
  if (number < PLAYERS) {
    uint64_t seed = players_seed + (uint64_t)number;
    player one = {.journal = open_journal(number), .seed = seed, .first = number * OWN_VMS};
    wish_for_good(one.journal, one.first);
    play_rounds(&one);
    fclose(one.journal);
    atomic_fetch_sub(&playing, 1);
    return;
  }
  bool changes = number == PLAYERS;
  for (uint64_t seed = players_seed; atomic_load(&playing);) {
    if (changes) change_one(NULL, &seed, 0, PLAYERS * OWN_VMS);
    if (changes && one_in(&seed, 50)) dump_some(1 << 14);
    if (!changes && read_notices(NULL) == 0) usleep(2000);
  }
}

void play_wishes(uint64_t seed) {
  players_seed = seed;
  attach_players(PLAYERS);
  on_threads(PLAYERS + 2, play_as);
  player last = {.journal = open_journal(PLAYERS), .seed = seed};
  close_notices(&last);
  fclose(last.journal);
  dump_all();
  release_players(PLAYERS);
}

/* ---- a filter of names ---- */

static void set_filter(FILE* journal, const char* one, const char* other) {
  TVMFFIAny arguments[] = {integer_of(0), pointer_of(kTVMFFIRawStr, one),
                           pointer_of(kTVMFFIRawStr, other)};
  int count = one ? other ? 3 : 2 : 1;
  journal_line(journal, "filter\t%s\t%s", one ? one : "*", other ? other : "");
  REQUIRE(call_global("relax_trace.recorder.set_filter", arguments, count, NULL) == 0);
}

void play_filters(uint64_t seed) {
  static const char* const filters[][2] = {
      {NULL, NULL},           {"vm.builtin.*", NULL},          {"add", "*_relu"}, {"nobody", NULL},
      {"*closure*", "inner"}, {"[!v]*", "vm.builtin.alloc_*"}, {NULL, NULL}};
  player only = {.journal = open_journal(0)};
  attach_players(1);
  want(&players_vms[0], true, false);
  for (size_t i = 0; i < sizeof filters / sizeof *filters; ++i) {
    set_filter(only.journal, filters[i][0], filters[i][1]);
    for (uint64_t name_seed = seed; name_seed < seed + 40; ++name_seed) {
      char name[64];
      uint64_t letters = name_seed;
      invoke_named(&players_vms[0], make_name(&letters, "cdntpk", 40, name), false);
    }
  }
  fclose(only.journal);
  dump_all();
  release_players(1);
}
