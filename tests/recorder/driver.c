/* Plays the VM, and everything around it, for the recorder: driver SCENARIO SEED OUTPUT. */
#include "driver.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "scenarios.h"

static const struct {
  const char* name;
  void (*play)(uint64_t seed);
} scenarios[] = {
    {"alone", play_alone},
    {"threads", play_threads},
    {"toggle", play_toggle},
    {"chaos", play_chaos},
    {"churn", play_churn},
    {"reused_ids", play_reused_ids},
    {"thread_ends_after_throw", play_thread_ends_after_throw},
    {"limits", play_limits},
    {"memory", play_memory},
    {"flat", play_flat},
    {"deep", play_deep},
    {"ring", play_ring},
    {"ring_drained", play_ring_drained},
    {"ring_turns", play_ring_turns},
    {"ring_held", play_ring_held},
    {"ring_churn", play_ring_churn},
    {"ring_crowd", play_ring_crowd},
    {"wishes_alone", play_wishes_alone},
    {"wishes", play_wishes},
    {"filters", play_filters},
    {"slots", play_slots},
    {"inside", play_inside},
    {"refused", play_refused},
    {"synchronized", play_synchronized},
    {"recycled_symbol", play_recycled_symbol},
    {"contexts", play_contexts},
    {"forks_parked", play_forks_parked},
    {"forks_running", play_forks_running},
};

void require(bool holds, const char* condition, const char* file, int line) {
  if (holds) return;
  fprintf(stderr, "%s:%d: %s does not hold\n", file, line, condition);
  abort();
}

/* ---- VMs ---- */

static _Atomic uint64_t wrapped;

void count_wrapped(void) { atomic_fetch_add(&wrapped, 1); }

attached_vm attach_vm(void) {
  TVMFFIAny number = none();
  REQUIRE(call_global("relax_trace.recorder.open", NULL, 0, &number) == 0);
  return (attached_vm){new_vm(), number.v_int64};
}

void release_vm(attached_vm* vm) {
  TVMFFIObjectDecRef(vm->module);
  vm->module = NULL;
}

void want(attached_vm* vm, bool wanted, bool synchronized) {
  wish_of wish = {.flags = WISH_HELD | (synchronized ? WISH_SYNCHRONIZED : 0)};
  if (wanted) {
    make_wish(vm, 0, wish);
  } else {
    drop_wish(vm, 0);
  }
}

void make_wish(attached_vm* vm, int slot, wish_of wish) {
  TVMFFIAny arguments[] = {
      integer_of(vm->number),   object_of(vm->module),
      integer_of(slot),         integer_of(wish.flags),
      integer_of(wish.wait),    integer_of(wish.warmup),
      integer_of(wish.active),  integer_of(wish.repeat),
      integer_of(wish.slow_ns), pointer_of(kTVMFFIRawStr, wish.functions ? wish.functions : "")};
  if (call_global("relax_trace.recorder.want", arguments, 10, NULL)) {
    REQUIRE(drop_raised()); /* there was no memory: what was wanted before still is */
  }
}

void drop_wish(attached_vm* vm, int slot) {
  TVMFFIAny arguments[] = {integer_of(vm->number), object_of(vm->module), integer_of(slot)};
  REQUIRE(call_global("relax_trace.recorder.unwant", arguments, 3, NULL) == 0);
}

int64_t state(const attached_vm* vm) {
  TVMFFIAny number = integer_of(vm->number), result = none();
  REQUIRE(call_global("relax_trace.recorder.state", &number, 1, &result) == 0);
  return result.v_int64;
}

TVMFFIObjectHandle function_of(const attached_vm* vm, const char* name, bool bare) {
  TVMFFIAny arguments[] = {bare ? object_of(vm->module) : integer_of(vm->number),
                           bare ? pointer_of(kTVMFFIRawStr, name) : object_of(vm->module),
                           bare ? boolean_of(true) : pointer_of(kTVMFFIRawStr, name)};
  TVMFFIAny found = none();
  int code = call_global(bare ? "ffi.ModuleGetFunction" : "relax_trace.recorder.wrap", arguments, 3,
                         &found);
  if (code) {
    REQUIRE(allocations_failed() && drop_raised());
    return NULL;
  }
  REQUIRE(found.type_index == kTVMFFIFunction);
  return found.v_obj;
}

void set_instrument(const attached_vm* vm, TVMFFIAny instrument) {
  TVMFFIObjectHandle setter = function_of(vm, "set_instrument", true);
  invoke_with(setter, &instrument, 1);
  TVMFFIObjectDecRef(setter);
}

int invoke_with(TVMFFIObjectHandle function, TVMFFIAny* arguments, int count) {
  TVMFFIAny result = none();
  int code = TVMFFIFunctionCall(function, arguments, count, &result);
  bool raised = drop_raised();
  REQUIRE(raised == (code == THREW_ERROR));
  value_release(&result);
  return code;
}

int invoke_named(const attached_vm* vm, const char* name, bool bare) {
  TVMFFIObjectHandle function = function_of(vm, name, bare);
  if (!function) return 0;
  if (!bare) count_wrapped();
  int code = invoke_with(function, NULL, 0);
  TVMFFIObjectDecRef(function);
  return code;
}

/* ---- the recorder's other functions ---- */

void set_limit(int64_t bytes, bool ring) {
  TVMFFIAny arguments[] = {integer_of(bytes), boolean_of(ring)};
  REQUIRE(call_global("relax_trace.recorder.set_limit", arguments, 2, NULL) == 0);
}

void begin(void) { REQUIRE(call_global("relax_trace.recorder.begin", NULL, 0, NULL) == 0); }

/* Who dumps has to know which names and signatures the dumps before brought. */
static struct {
  pthread_mutex_t lock;
  uint32_t names, signatures;
  FILE *file, *snapshots;
  char path[256];
} output = {.lock = PTHREAD_MUTEX_INITIALIZER};

enum { HEADER_FLAGS = 3, HEADER_NAMES = 29, HEADER_SIGNATURES = 31, HEADER_WORDS = 38 };

/* Write a dump behind its length, and hand out its header, see dump.h; false if there was no memory. */
static bool write_dump(TVMFFIAny* arguments, FILE* to, uint32_t* header) {
  TVMFFIAny result = none();
  if (call_global("relax_trace.recorder.dump", arguments, 4, &result)) {
    REQUIRE(drop_raised() && result.type_index == kTVMFFINone);
    return false;
  }
  const TVMFFIByteArray* bytes = (const TVMFFIByteArray*)cell(result.v_obj);
  uint64_t size = bytes->size;
  REQUIRE(size >= HEADER_WORDS * sizeof *header);
  memcpy(header, bytes->data, HEADER_WORDS * sizeof *header);
  REQUIRE(fwrite(&size, sizeof size, 1, to) == 1);
  REQUIRE(fwrite(bytes->data, 1, size, to) == size);
  value_release(&result);
  return true;
}

bool dump_some(int64_t room) {
  pthread_mutex_lock(&output.lock);
  TVMFFIAny arguments[] = {integer_of(output.names), integer_of(output.signatures),
                           integer_of(room), boolean_of(false)};
  uint32_t header[HEADER_WORDS] = {[HEADER_FLAGS] = 1};
  if (write_dump(arguments, output.file, header)) {
    output.names += header[HEADER_NAMES];
    output.signatures += header[HEADER_SIGNATURES];
  }
  pthread_mutex_unlock(&output.lock);
  return header[HEADER_FLAGS] & 1;
}

void take_snapshot(void) {
  char path[300];
  uint32_t header[HEADER_WORDS];
  TVMFFIAny arguments[] = {integer_of(0), integer_of(0), integer_of(INT64_MAX), boolean_of(true)};
  pthread_mutex_lock(&output.lock);
  if (!output.snapshots) {
    snprintf(path, sizeof path, "%s.snapshots", output.path);
    REQUIRE((output.snapshots = fopen(path, "wb")) != NULL);
  }
  write_dump(arguments, output.snapshots, header);
  REQUIRE(fflush(output.snapshots) == 0);
  pthread_mutex_unlock(&output.lock);
}

void dump_all(void) {
  while (dump_some(1 << 20)) continue;
}

/* ---- output ---- */

void open_output(const char* path) {
  output.names = output.signatures = 0;
  if (output.file) fclose(output.file);
  snprintf(output.path, sizeof output.path, "%s", path);
  REQUIRE((output.file = fopen(path, "wb")) != NULL);
  setvbuf(output.file, NULL, _IONBF, 0);  /* what a fork copied would be written twice */
  pthread_mutex_init(&output.lock, NULL); /* a forked child's other threads may have held it */
}

const char* output_path(void) { return output.path; }

void tell_number(const char* key, uint64_t value) { printf("%s %" PRIu64 "\n", key, value); }

/* ---- threads ---- */

typedef struct {
  pthread_t thread;
  void (*body)(int number);
  int number;
} started;

static void* run_body(void* self) {
  const started* thread = (const started*)self;
  thread->body(thread->number);
  return NULL;
}

void on_threads(int count, void (*body)(int number)) {
  started threads[64];
  REQUIRE(count <= 64);
  for (int i = 0; i < count; ++i) {
    threads[i] = (started){.body = body, .number = i};
    REQUIRE(pthread_create(&threads[i].thread, NULL, run_body, &threads[i]) == 0);
  }
  for (int i = 0; i < count; ++i) REQUIRE(pthread_join(threads[i].thread, NULL) == 0);
}

static void play(const char* name, uint64_t seed) {
  for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; ++i) {
    if (strcmp(scenarios[i].name, name) == 0) {
      scenarios[i].play(seed);
      return;
    }
  }
  REQUIRE(!"a scenario of this name");
}

int main(int count, char** arguments) {
  REQUIRE(count == 4);
  open_output(arguments[3]);
  set_limit(NO_LIMIT, false);
  begin();
  play(arguments[1], strtoull(arguments[2], NULL, 10));
  tell_number("ops", ops_told());
  tell_number("wrapped", atomic_load(&wrapped));
  return 0;
}
