/* Workers: see workers.h. */
#include "workers.h"

#include <string.h>

attached_vm vms[VMS];
uint64_t base_seed;
_Atomic int working;

void attach_all(uint64_t seed, bool wanted) {
  base_seed = seed;
  atomic_store(&working, WORKERS);
  for (int i = 0; i < VMS; ++i) {
    vms[i] = attach_vm();
    if (wanted) want(&vms[i], true, false);
  }
}

void release_all(void) {
  for (int i = 0; i < VMS; ++i) {
    want(&vms[i], false, false);
    release_vm(&vms[i]);
  }
}

char* make_name(uint64_t* seed, const char* letters, uint32_t ops_most, char* name) {
  char* at = name;
  for (; *letters; ++letters) {
    if (one_in(seed, 3)) *at++ = *letters;
  }
  sprintf(at, "%u_%u", 1 + random_below(seed, ops_most), random_below(seed, 50));
  return name;
}

/* By name, or through one of the VM's two functions that take a function as their argument. */
static void invoke_somehow(attached_vm* vm, uint64_t* seed, const char* name, bool bare) {
  bool closure = one_in(seed, 2);
  if (bare || one_in(seed, 2)) {
    invoke_named(vm, name, bare);
    return;
  }
  TVMFFIObjectHandle function =
      function_of(vm, closure ? "invoke_closure" : "invoke_stateful", false);
  if (!function) return;
  TVMFFIAny argument = object_of(closure ? new_closure(name) : new_text(name, strlen(name)));
  count_wrapped();
  invoke_with(function, &argument, 1);
  value_release(&argument);
  TVMFFIObjectDecRef(function);
}

/* What is run inside an op: an invocation of the worker's other VM, now and then a dump. */
typedef struct {
  int number;
  uint64_t seed;
  int depth;
  bool bare; /* whether functions are called past the recorder's wrapper, too */
} inside;

static void on_visit(void* self) {
  inside* at = (inside*)self;
  char name[64];
  if (one_in(&at->seed, 8)) dump_some(1 << 12);
  if (at->depth > 0) return;
  ++at->depth;
  make_name(&at->seed, "cdvtpk", 8, name);
  bool bare = at->bare && one_in(&at->seed, 4);
  invoke_somehow(&vms[WORKERS + at->number], &at->seed, name, bare);
  --at->depth;
}

void work(int number, int count, const char* letters, bool bare) {
  inside at = {.number = number, .seed = base_seed + (uint64_t)number, .bare = bare};
  uint64_t seed = at.seed + 1000;
  char name[64];
  visit_with(on_visit, &at);
  for (int i = 0; i < count; ++i) {
    make_name(&seed, letters, 60, name);
    invoke_somehow(&vms[number], &seed, name, bare && one_in(&seed, 3));
  }
  visit_nothing();
}

void work_cleanly(int number) { invoke_named(&vms[number], "c1_1", false); }
