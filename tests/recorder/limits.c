/* Limits: of bytes, of memory, of nesting. */
#include "scenarios.h"
#include "workers.h"

/* ---- too little room ---- */

static void wrapped_worker(int number) { work(number, 40, EVERY_LETTER, false); }

void play_limits(uint64_t seed) {
  static const int64_t rooms[] = {0, 1 << 12, 60000, 66000, 1 << 17, 1 << 18, 1 << 20, NO_LIMIT};
  attach_all(seed, true);
  for (int round = 0; round < 16; ++round) {
    base_seed = seed + 100 * (uint64_t)round;
    set_limit((int64_t)recorder_bytes() + 1 + rooms[round % 8], false);
    on_threads(WORKERS, wrapped_worker);
    dump_all();
  }
  release_all();
}

void play_memory(uint64_t seed) {
  attach_all(seed, true);
  for (int round = 0; round < 9; ++round) {
    base_seed = seed + 100 * (uint64_t)round;
    fail_allocations(2u + 4u * (uint32_t)round);
    fail_bytes(round % 3 == 0);
    on_threads(WORKERS, wrapped_worker);
    for (int i = 0; i < 5; ++i) dump_some(1 << 14);
    fail_allocations(0);
    fail_bytes(false);
    dump_all();
  }
  REQUIRE(recorder_threads() == 0);
  release_all();
}

/* Whatever is dumped is given back: only tables grow, and these not when all is known. */
void play_flat(uint64_t seed) {
  attach_all(seed, true);
  size_t used = 0, allocated = 0;
  for (int round = 0; round < 12; ++round) {
    base_seed = seed;
    on_threads(WORKERS, wrapped_worker);
    dump_all();
    REQUIRE(recorder_threads() == 0);
    if (round == 0) used = recorder_bytes(), allocated = allocated_bytes();
    REQUIRE(recorder_bytes() == used);
    REQUIRE(allocated_bytes() == allocated);
  }
  release_all();
}

/* ---- nesting beyond what is recorded ---- */

static void nest_invocations(void* self) {
  int* left = (int*)self;
  if (*left == 0) return;
  --*left;
  invoke_named(&vms[0], "cnv5_1", false);
}

void play_deep(uint64_t seed) {
  attach_all(seed, true);
  for (int round = 0; round < 20; ++round) {
    char name[64];
    sprintf(name, "%sn%u_%u", one_in(&seed, 2) ? "t" : "", 100 + random_below(&seed, 80),
            random_below(&seed, 50));
    invoke_named(&vms[1], name, one_in(&seed, 2));
    int left = 30 + (int)random_below(&seed, 60);
    visit_with(nest_invocations, &left);
    invoke_named(&vms[0], "cnv30_1", false);
    visit_nothing();
  }
  work_cleanly(0);
  dump_all();
  release_all();
}
