/* The instrument's slot: taken over, gone with its VM, wanted and not inside an op; and devices. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "scenarios.h"
#include "workers.h"

enum { IN_SLOT = 1, TAKEN = 2, RUNNING = 4 };

static attached_vm wanted_vm(void) {
  attached_vm vm = attach_vm();
  want(&vm, true, false);
  return vm;
}

/* ---- another instrument ---- */

static int user_calls;

static int on_user_call(void* self, const TVMFFIAny* arguments, int32_t count, TVMFFIAny* result) {
  (void)self, (void)arguments, (void)count, (void)result;
  ++user_calls;
  return 0;
}

/* The user sets an instrument, or clears the slot, while the recorder's is in it. */
static void take_slot(TVMFFIAny instrument, int calls) {
  attached_vm vm = wanted_vm();
  invoke_named(&vm, "c5_1", false);
  REQUIRE(state(&vm) == IN_SLOT);
  set_instrument(&vm, instrument);
  REQUIRE(state(&vm) & TAKEN);
  user_calls = 0;
  invoke_named(&vm, "c7_1", false);
  want(&vm, false, false);
  invoke_named(&vm, "c7_1", false);
  REQUIRE(user_calls == 4 * calls && state(&vm) == TAKEN);
  want(&vm, true, false); /* a new recording */
  invoke_named(&vm, "c6_1", false);
  REQUIRE(user_calls == 4 * calls && state(&vm) == IN_SLOT);
  want(&vm, false, false);
  REQUIRE(state(&vm) == 0);
  release_vm(&vm);
}

/* A VM that goes while it is recorded, with a function of it that stays a little longer. */
static void destroy_armed(void) {
  attached_vm vm = wanted_vm();
  TVMFFIObjectHandle function = function_of(&vm, "c8_1", false);
  release_vm(&vm);
  invoke_with(function, NULL, 0);
  REQUIRE(state(&vm) == IN_SLOT);
  TVMFFIObjectDecRef(function);
  REQUIRE(state(&vm) & TAKEN);
}

void play_slots(uint64_t seed) {
  (void)seed;
  TVMFFIObjectHandle user;
  TVMFFIFunctionCreate(NULL, on_user_call, NULL, &user);
  take_slot(object_of(user), 7);
  take_slot(none(), 0);
  for (int i = 0; i < 20; ++i) destroy_armed();
  TVMFFIObjectDecRef(user);
  dump_all();
}

/* ---- wanted and not, inside an op ---- */

typedef struct {
  attached_vm* vm;
  bool wanted, nests, done;
} change;

static void change_inside(void* self) {
  change* at = (change*)self;
  if (at->done) return;
  at->done = true;
  int64_t before = state(at->vm);
  want(at->vm, at->wanted, false);
  REQUIRE(state(at->vm) == before); /* the slot stays as it is under a running op */
  if (at->nests) invoke_named(at->vm, "c4_1", false);
  REQUIRE(state(at->vm) == before);
}

/* The same inside an op that a filter leaves out, of a function that the recorder didn't wrap. */
static void stop_inside_left_out(void) {
  TVMFFIAny arguments[] = {integer_of(0), pointer_of(kTVMFFIRawStr, "nobody")};
  attached_vm vm = wanted_vm();
  change at = {.vm = &vm};
  REQUIRE(call_global("relax_trace.recorder.set_filter", arguments, 2, NULL) == 0);
  visit_with(change_inside, &at);
  invoke_named(&vm, "cv40_1", true);
  visit_nothing();
  REQUIRE(at.done);
  invoke_named(&vm, "c3_1", false);
  REQUIRE(state(&vm) == 0);
  REQUIRE(call_global("relax_trace.recorder.set_filter", arguments, 1, NULL) == 0);
  release_vm(&vm);
}

void play_inside(uint64_t seed) {
  (void)seed;
  stop_inside_left_out();
  for (int i = 0; i < 8; ++i) {
    attached_vm vm = attach_vm();
    change at = {.vm = &vm, .wanted = i & 1, .nests = i & 2};
    want(&vm, !at.wanted, false);
    visit_with(change_inside, &at);
    invoke_named(&vm, i & 4 ? "cvt40_1" : "cv40_1", false);
    visit_nothing();
    REQUIRE(at.done && state(&vm) == (at.wanted ? IN_SLOT : 0));
    invoke_named(&vm, "c3_1", false);
    want(&vm, false, false);
    release_vm(&vm);
  }
  dump_all();
}

/* ---- what is refused ---- */

static void refuse(const char* name, const TVMFFIAny* given, int count) {
  char key[64];
  TVMFFIAny result = none(), arguments[10];
  for (int i = 0; i < count; ++i) arguments[i] = given[i];
  snprintf(key, sizeof key, "relax_trace.recorder.%s", name);
  REQUIRE(call_global(key, arguments, count, &result) == -1 && drop_raised());
  REQUIRE(result.type_index == kTVMFFINone);
}

void play_refused(uint64_t seed) {
  attached_vm vm = wanted_vm();
  TVMFFIAny number = integer_of(vm.number), module = object_of(vm.module), nobody = integer_of(99);
  TVMFFIAny missing = pointer_of(kTVMFFIRawStr, "missing"), zero = integer_of(0);
  refuse("set_limit", &zero, 1);
  refuse("set_limit", NULL, 0);
  refuse("wrap", (TVMFFIAny[]){number, module}, 2);
  refuse("wrap", (TVMFFIAny[]){number, module, zero}, 3);
  refuse("wrap", (TVMFFIAny[]){number, module, missing}, 3);
  refuse("wrap", (TVMFFIAny[]){nobody, module, missing}, 3);
  TVMFFIAny text = pointer_of(kTVMFFIRawStr, "");
  TVMFFIAny unknown[] = {nobody, module, zero, zero, zero, zero, zero, zero, zero, text};
  TVMFFIAny no_slot[] = {number, module, integer_of(32), zero, zero, zero, zero, zero, zero, text};
  refuse("want", unknown, 10);
  refuse("want", no_slot, 10);
  for (int at = 4; at < 8; ++at) {
    TVMFFIAny too_much[] = {number, module, zero, zero, zero, zero, zero, zero, zero, text};
    too_much[at] = integer_of(one_in(&seed, 2) ? -1 : (int64_t)1 << 32);
    refuse("want", too_much, 10);
  }
  refuse("unwant", (TVMFFIAny[]){nobody, module, zero}, 3);
  refuse("unwant", (TVMFFIAny[]){number, module, nobody}, 3);
  refuse("unwant", &number, 1);
  refuse("set_filter", NULL, 0);
  refuse("set_filter", (TVMFFIAny[]){zero, text, zero}, 3);
  refuse("set_notify", NULL, 0);
  refuse("set_context_hook", &zero, 1);
  refuse("set_context_hook", NULL, 0);
  refuse("want", &number, 1);
  refuse("state", &nobody, 1);
  refuse("state", &missing, 1);
  refuse("dump", (TVMFFIAny[]){zero, zero, zero}, 3);
  refuse("dump", NULL, 0);
  refuse("dump", (TVMFFIAny[]){zero, zero, integer_of(-1)}, 3);
  TVMFFIObjectHandle function = function_of(&vm, "c2_1", false);
  TVMFFIAny reused = object_of(new_text("the result of the call before", 29));
  REQUIRE(TVMFFIFunctionCall(function, NULL, 0, &reused) == 0);
  value_release(&reused);
  count_wrapped();
  TVMFFIObjectDecRef(function);
  want(&vm, false, false);
  release_vm(&vm);
  dump_all();
}

/* ---- devices ---- */

static pthread_barrier_t all_ready;

static void synchronized_worker(int number) {
  pthread_barrier_wait(&all_ready);
  want(&vms[number], true, true);
  want(&vms[WORKERS + number], true, true);
  work(number, 60, EVERY_LETTER, false);
  work_cleanly(number);
}

void play_synchronized(uint64_t seed) {
  attach_all(seed, false);
  pthread_barrier_init(&all_ready, NULL, WORKERS);
  on_threads(WORKERS, synchronized_worker);
  uint64_t before = devices_synchronized();
  REQUIRE(before > 0);
  atomic_store(&stream_sync_fails, true);
  work(0, 60, EVERY_LETTER, false);
  REQUIRE(devices_synchronized() == before);
  dump_all();
  release_all();
}

/* ---- a symbol's memory ---- */

static void tell_op(TVMFFIObjectHandle hook, TVMFFIAny symbol, const TVMFFIAny* closure) {
  TVMFFIAny arguments[6] = {none(), symbol, boolean_of(true), none(), none(), none()};
  TVMFFIAny result = none();
  if (closure) arguments[5] = *closure;
  REQUIRE(TVMFFIFunctionCall(hook, arguments, 6, &result) == 0);
  arguments[2] = boolean_of(false);
  REQUIRE(TVMFFIFunctionCall(hook, arguments, 6, &result) == 0);
}

/* A closure's name that holds a NUL goes, and a symbol that ends where the NUL was lies in its place,
 * at the very end of the memory. */
void play_recycled_symbol(uint64_t seed) {
  (void)seed;
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  char* pages =
      (char*)mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(pages != MAP_FAILED);
  char* name = pages + page - 3;
  static const char longer[] = {'a', 'b', 0, 'c', 'd'};
  memcpy(name, longer, sizeof longer);
  attached_vm vm = wanted_vm();
  TVMFFIObjectHandle hook = instrument_of(vm.module), text = new_text("", 0);
  TVMFFIObjectHandle closure = new_closure("");
  TVMFFIAny value = object_of(closure);
  *(TVMFFIByteArray*)cell(text) = (TVMFFIByteArray){name, sizeof longer};
  value_release((TVMFFIAny*)cell(closure));
  *(TVMFFIAny*)cell(closure) = object_of(text);
  tell_op(hook, pointer_of(kTVMFFIRawStr, "vm.builtin.invoke_closure"), &value);
  value_release(&value);
  REQUIRE(mprotect(pages + page, page, PROT_NONE) == 0);
  tell_op(hook, pointer_of(kTVMFFIRawStr, name), NULL);
  want(&vm, false, false);
  release_vm(&vm);
  munmap(pages, 2 * page);
  dump_all();
}
