/* relax_trace's recorder: op calls of TVM's Relax VM, recorded in the process that runs them.
 *
 * Mechanism only; what to record and what to make of it is decided by the Python package. It stands on
 * tvm-ffi's C ABI, libc and pthreads, and builds for any target with one command:
 *
 *   cc -std=gnu11 -O2 -fPIC -shared -fvisibility=hidden -I<tvm_ffi>/include recorder.c -lpthread
 *
 * Loading the library registers these global functions (all numbers are integers):
 *
 *   relax_trace.recorder.version()                        the dump format's version
 *   relax_trace.recorder.now()                            the op clock, in ticks
 *   relax_trace.recorder.set_limit(bytes, ring)           bound what is held until it is dumped: the first
 *                                                         records, or the newest if `ring`
 *   relax_trace.recorder.begin()                          drop old records, read the clocks
 *   relax_trace.recorder.open()                           a number for one more VM
 *   relax_trace.recorder.wrap(vm, module, name)           module[name], recorded as invocations
 *   relax_trace.recorder.want(vm, module, slot, flags, wait, warmup, active, repeat, slow_ns, functions)
 *                                                         what a recording wants of a VM: see wishes.h
 *   relax_trace.recorder.unwant(vm, module, slot)         nothing more
 *   relax_trace.recorder.set_filter(shortest_ns, patterns…)
 *                                                         which calls are recorded at all
 *   relax_trace.recorder.set_notify(file)                 the pipe that takes notices, or -1
 *   relax_trace.recorder.set_context_hook(hook)           what is asked for the trace context around each
 *                                                         invocation that is recorded, or None: contexts.h
 *   relax_trace.recorder.tag(number, calls, tensors, ticks)
 *                                                         set this thread's tag and its counts, return the last:
 *                                                         as bytes, with the ticks in ns too; see tags.h
 *   relax_trace.recorder.state(vm)                        1 hook in the slot | 2 slot taken over | 4 inside
 *   relax_trace.recorder.dump(names, signatures, bytes, keep)
 *                                                         drain, or copy if `keep`: see dump.h
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "dump.h"
#include "invocation.h"
#include "ring.h"

#define UNUSED(value) (void)(value)

static int64_t integer(const TVMFFIAny* arguments, int32_t count, int32_t at) {
  bool present = at < count && (arguments[at].type_index == kTVMFFIInt ||
                                arguments[at].type_index == kTVMFFIBool);
  return present ? arguments[at].v_int64 : 0;
}

/* The VM whose number is argument `at`, or NULL with an error raised. */
static vm_state* vm_argument(const TVMFFIAny* arguments, int32_t count, int32_t at) {
  int64_t number = integer(arguments, count, at);
  pthread_mutex_lock(&registry.lock);
  vm_state* vm = number > 0 && number <= registry.vm_count ? registry.vms[number - 1] : NULL;
  pthread_mutex_unlock(&registry.lock);
  if (!vm) fail("ValueError", "relax_trace: no VM has this number");
  return vm;
}

static int on_version(void* self, const TVMFFIAny* arguments, int32_t count, TVMFFIAny* result) {
  UNUSED(self), UNUSED(arguments), UNUSED(count);
  *result = int_value(DUMP_VERSION);
  return 0;
}

static int on_now(void* self, const TVMFFIAny* arguments, int32_t count, TVMFFIAny* result) {
  UNUSED(self), UNUSED(arguments), UNUSED(count);
  *result = int_value((int64_t)clock_ticks());
  return 0;
}

static int on_set_limit(void* self, const TVMFFIAny* arguments, int32_t count, TVMFFIAny* result) {
  UNUSED(self), UNUSED(result);
  int64_t limit = integer(arguments, count, 0);
  if (limit <= 0) return fail("ValueError", "relax_trace: set_limit(bytes, ring)");
  pthread_mutex_lock(&registry.lock);
  set_limit((size_t)limit, integer(arguments, count, 1) != 0);
  pthread_mutex_unlock(&registry.lock);
  return 0;
}

static int on_begin(void* self, const TVMFFIAny* arguments, int32_t count, TVMFFIAny* result) {
  UNUSED(self), UNUSED(arguments), UNUSED(count), UNUSED(result);
  pthread_mutex_lock(&registry.lock);
  reset_firsts();
  table_bytes_first = table_begin(&names) + table_begin(&signatures);
  for (thread_state *at = registry.threads, *next; at; at = next) {
    next = at->next;
    thread_discard(at);
    if (atomic_load(&at->finished) && thread_is_read(at)) thread_retire(at);
  }
  pthread_mutex_unlock(&registry.lock);
  return 0;
}

/* Registry lock held. Give the VM its number; false if there is no memory. */
static bool list_vm(vm_state* vm) {
  if (registry.vm_count == registry.vm_capacity) {
    uint32_t capacity = registry.vm_capacity ? 2 * registry.vm_capacity : 16;
    vm_state** grown = (vm_state**)realloc(registry.vms, capacity * sizeof *grown);
    if (!grown) return false;
    registry.vms = grown;
    registry.vm_capacity = capacity;
  }
  registry.vms[registry.vm_count] = vm;
  vm->number = ++registry.vm_count;
  return true;
}

static int on_open(void* self, const TVMFFIAny* arguments, int32_t count, TVMFFIAny* result) {
  UNUSED(self), UNUSED(arguments), UNUSED(count);
  vm_state* vm = (vm_state*)calloc(1, sizeof *vm);
  if (!vm) return fail("MemoryError", "relax_trace: out of memory");
  pthread_mutex_init(&vm->edge, NULL);
  if (TVMFFIFunctionCreate(vm, on_call, NULL, &vm->hook)) {
    free(vm);
    return -1;
  }
  pthread_mutex_lock(&registry.lock);
  bool listed = list_vm(vm);
  pthread_mutex_unlock(&registry.lock);
  if (!listed) {
    TVMFFIObjectDecRef(vm->hook);
    free(vm);
    return fail("MemoryError", "relax_trace: out of memory");
  }
  *result = int_value(vm->number);
  return 0;
}

static int on_wrap(void* self, const TVMFFIAny* arguments, int32_t count, TVMFFIAny* result) {
  UNUSED(self);
  if (count != 3) return fail("TypeError", "relax_trace: wrap(vm, module, name)");
  vm_state* vm = vm_argument(arguments, count, 0);
  return vm ? make_entry_point(vm, arguments[1], arguments[2], result) : -1;
}

/* Whether nothing of the VM can be running now, as far as can be known: a function that was taken
 * before the recording, and last ran on another thread, may be between two of its ops. */
static bool at_rest(vm_state* vm) {
  uint64_t bare = atomic_load(&vm->bare_thread);
  return vm->active == 0 && (bare == 0 || bare == thread_system_id());
}

/* The lengths of a schedule are counts below 2^32, so that no sum of them overflows. */
static bool is_schedule(const TVMFFIAny* arguments, int32_t count) {
  for (int32_t i = 4; i < 8; ++i) {
    if ((uint64_t)integer(arguments, count, i) > UINT32_MAX) return false;
  }
  return true;
}

static wish* make_wish(const TVMFFIAny* arguments, int32_t count) {
  wish* made = (wish*)calloc(1, sizeof *made);
  TVMFFIByteArray functions = {NULL, 0};
  if (!made) return NULL;
  made->slot = (uint32_t)integer(arguments, count, 2);
  made->flags = (uint32_t)integer(arguments, count, 3);
  made->plan = (schedule){
      .wait = (uint64_t)integer(arguments, count, 4),
      .warmup = (uint64_t)integer(arguments, count, 5),
      .active = (uint64_t)integer(arguments, count, 6),
      .repeat = (uint64_t)integer(arguments, count, 7),
  };
  int64_t slow = integer(arguments, count, 8);
  made->slow = slow > 0 ? clock_ticks_of((uint64_t)slow) : 0;
  if (string_of(&arguments[9], &functions) && functions.size) {
    made->functions = copy_of_text(functions.data, functions.size);
    if (!made->functions) {
      free(made);
      return NULL;
    }
  }
  return made;
}

/* Put `fresh`, or nothing, in the place of the wish that the VM has in this slot. */
static void change_wish(vm_state* vm, uint32_t slot, wish* fresh,
                        TVMFFIObjectHandle set_instrument) {
  pthread_mutex_lock(&vm->edge);
  if (fresh && !vm->wishes) { /* what became of the slot meanwhile is the user's */
    vm->armed = vm->armed && hook_is_in_slot(vm);
    vm->taken = false;
  }
  forget_wish(vm, slot);
  vm->left_out &= ~(1u << slot); /* that was the other's */
  if (fresh) {
    fresh->next = vm->wishes;
    vm->wishes = fresh;
  }
  sum_up_wishes(vm);
  if (set_instrument && at_rest(vm)) update_slot(vm, set_instrument);
  pthread_mutex_unlock(&vm->edge);
}

static int on_want(void* self, const TVMFFIAny* arguments, int32_t count, TVMFFIAny* result) {
  UNUSED(self), UNUSED(result);
  int64_t slot = integer(arguments, count, 2);
  if (count != 10 || slot < 0 || slot >= SLOTS) {
    return fail("TypeError",
                "relax_trace: want(vm, module, slot, flags, wait, warmup, active, repeat, slow_ns, "
                "functions)");
  }
  if (!is_schedule(arguments, count)) {
    return fail("ValueError", "relax_trace: a schedule's numbers must be from 0 to 4294967295");
  }
  vm_state* vm = vm_argument(arguments, count, 0);
  if (!vm) return -1;
  TVMFFIObjectHandle set_instrument = module_function(arguments[1], text_value("set_instrument"));
  if (!set_instrument) return -1;
  find_stream_sync();
  wish* fresh = make_wish(arguments, count);
  if (fresh) change_wish(vm, (uint32_t)slot, fresh, set_instrument);
  TVMFFIObjectDecRef(set_instrument);
  return fresh ? 0 : fail("MemoryError", "relax_trace: out of memory");
}

/* The module is None where the VM's object is gone: a function of it may be left. */
static int on_unwant(void* self, const TVMFFIAny* arguments, int32_t count, TVMFFIAny* result) {
  UNUSED(self), UNUSED(result);
  int64_t slot = integer(arguments, count, 2);
  if (count != 3 || slot < 0 || slot >= SLOTS) {
    return fail("TypeError", "relax_trace: unwant(vm, module, slot)");
  }
  vm_state* vm = vm_argument(arguments, count, 0);
  if (!vm) return -1;
  TVMFFIObjectHandle set_instrument = NULL;
  if (arguments[1].type_index != kTVMFFINone) {
    set_instrument = module_function(arguments[1], text_value("set_instrument"));
    if (!set_instrument) return -1;
  }
  change_wish(vm, (uint32_t)slot, NULL, set_instrument);
  if (set_instrument) TVMFFIObjectDecRef(set_instrument);
  return 0;
}

static int on_set_filter(void* self, const TVMFFIAny* arguments, int32_t count, TVMFFIAny* result) {
  UNUSED(self), UNUSED(result);
  int64_t shortest = integer(arguments, count, 0);
  if (count < 1) return fail("TypeError", "relax_trace: set_filter(shortest_ns, patterns…)");
  char** patterns = (char**)calloc((size_t)count, sizeof *patterns);
  if (!patterns) return fail("MemoryError", "relax_trace: out of memory");
  for (int32_t i = 1; i < count; ++i) {
    TVMFFIByteArray text;
    bool is_text = string_of(&arguments[i], &text);
    patterns[i - 1] = is_text ? copy_of_text(text.data, text.size) : NULL;
    if (patterns[i - 1]) continue;
    free_patterns(patterns, i - 1); /* what was set before holds */
    return is_text ? fail("MemoryError", "relax_trace: out of memory")
                   : fail("TypeError", "relax_trace: a pattern must be a string");
  }
  set_name_filter(patterns, count - 1);
  atomic_store(&shortest_call, shortest > 0 ? clock_ticks_of((uint64_t)shortest) : 0);
  return 0;
}

static int on_set_notify(void* self, const TVMFFIAny* arguments, int32_t count, TVMFFIAny* result) {
  UNUSED(self), UNUSED(result);
  if (count != 1) return fail("TypeError", "relax_trace: set_notify(file)");
  atomic_store(&notice_pipe, (int)integer(arguments, count, 0));
  return 0;
}

static int on_set_context_hook(void* self, const TVMFFIAny* arguments, int32_t count,
                               TVMFFIAny* result) {
  UNUSED(self), UNUSED(result);
  bool function = count == 1 && arguments[0].type_index == kTVMFFIFunction;
  if (!function && (count != 1 || arguments[0].type_index != kTVMFFINone)) {
    return fail("TypeError", "relax_trace: set_context_hook(function or None)");
  }
  return set_context_hook(function ? arguments[0].v_obj : NULL)
             ? 0
             : fail("MemoryError", "relax_trace: out of memory");
}

static int on_tag(void* self, const TVMFFIAny* arguments, int32_t count, TVMFFIAny* result) {
  UNUSED(self);
  if (count != 4) return fail("TypeError", "relax_trace: tag(number, calls, tensors, ticks)");
  struct {
    tagged tag;
    uint64_t ns;
  } last = {this_tag, clock_ns_of(this_tag.ticks)};
  this_tag = (tagged){
      .number = (uint32_t)integer(arguments, count, 0),
      .calls = (uint64_t)integer(arguments, count, 1),
      .tensors = (uint64_t)integer(arguments, count, 2),
      .ticks = (uint64_t)integer(arguments, count, 3),
  };
  TVMFFIByteArray bytes = {(const char*)&last, sizeof last};
  return TVMFFIBytesFromByteArray(&bytes, result);
}

static int on_state(void* self, const TVMFFIAny* arguments, int32_t count, TVMFFIAny* result) {
  UNUSED(self);
  vm_state* vm = vm_argument(arguments, count, 0);
  if (!vm) return -1;
  pthread_mutex_lock(&vm->edge);
  bool taken = vm->taken || (vm->armed && !hook_is_in_slot(vm));
  *result = int_value((vm->armed ? 1 : 0) | (taken ? 2 : 0) | (vm->active ? 4 : 0));
  pthread_mutex_unlock(&vm->edge);
  return 0;
}

static int on_dump(void* self, const TVMFFIAny* arguments, int32_t count, TVMFFIAny* result) {
  UNUSED(self);
  int64_t room = integer(arguments, count, 2);
  bool keep = integer(arguments, count, 3) != 0;
  if (count < 3 || room < (int64_t)sizeof(op_record)) {
    return fail("ValueError", "relax_trace: dump(known_names, known_signatures, bytes, keep)");
  }
  return dump((uint32_t)integer(arguments, count, 0), (uint32_t)integer(arguments, count, 1),
              (size_t)room, keep, result);
}

/* ---- fork: a child starts with empty buffers, and only its own thread ---- */

static void before_fork(void) {
  pthread_mutex_lock(&registry.lock);
  pthread_mutex_lock(&names.lock);
  pthread_mutex_lock(&signatures.lock);
}

static void after_fork_in_parent(void) {
  pthread_mutex_unlock(&signatures.lock);
  pthread_mutex_unlock(&names.lock);
  pthread_mutex_unlock(&registry.lock);
}

static void after_fork_in_child(void) {
  after_fork_in_parent();
  atomic_store(&notice_pipe, -1); /* the parent's: it would act on what the child does */
  for (thread_state *at = registry.threads, *next; at; at = next) {
    next = at->next;
    if (at != this_thread) {
      thread_retire(at);
      continue;
    }
    at->id = thread_system_id();
    thread_discard(at);
  }
  for (uint32_t i = 0; i < registry.vm_count; ++i) {
    vm_state* vm = registry.vms[i];
    pthread_mutex_init(&vm->edge, NULL);         /* another thread may have held it */
    if (vm->runner != (uintptr_t)&this_thread) { /* who was inside is no more */
      vm->active = 0;
      vm->arming = false;
      atomic_store(&vm->strand, NULL);
    }
    sum_up_wishes(vm);                 /* they may have been changed just then */
    atomic_store(&vm->bare_thread, 0); /* no other thread is left to run it */
  }
}

static void add_global(const char* name, TVMFFISafeCallType call) {
  TVMFFIByteArray key = {name, strlen(name)};
  TVMFFIObjectHandle function = NULL;
  if (TVMFFIFunctionCreate(NULL, call, NULL, &function)) return;
  TVMFFIFunctionSetGlobal(&key, function, 1);
  TVMFFIObjectDecRef(function);
}

__attribute__((constructor)) static void on_load(void) {
  clock_uses_counter = clock_counter_is_invariant();
  clock_first = clock_loaded = clock_read();
  pthread_key_create(&thread_key, thread_end);
  pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
  add_global("relax_trace.recorder.version", on_version);
  add_global("relax_trace.recorder.now", on_now);
  add_global("relax_trace.recorder.set_limit", on_set_limit);
  add_global("relax_trace.recorder.begin", on_begin);
  add_global("relax_trace.recorder.open", on_open);
  add_global("relax_trace.recorder.wrap", on_wrap);
  add_global("relax_trace.recorder.want", on_want);
  add_global("relax_trace.recorder.unwant", on_unwant);
  add_global("relax_trace.recorder.set_filter", on_set_filter);
  add_global("relax_trace.recorder.set_notify", on_set_notify);
  add_global("relax_trace.recorder.set_context_hook", on_set_context_hook);
  add_global("relax_trace.recorder.tag", on_tag);
  add_global("relax_trace.recorder.state", on_state);
  add_global("relax_trace.recorder.dump", on_dump);
}
