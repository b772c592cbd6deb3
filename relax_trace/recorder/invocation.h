/* Invocations: a wrapper round an entry function of a VM, which arms the hook at its edges.
 *
 * The VM reads its instrument slot more than once during an op, so changing the slot under a running
 * invocation crashes the process. It is changed here alone, and only where nothing of the VM runs:
 * at the edge of an outermost invocation, or by want() between two of them.
 */
#ifndef RELAX_TRACE_INVOCATION_H_
#define RELAX_TRACE_INVOCATION_H_

#include "hook.h"
#include "wishes.h"

enum { ENTRY_PLAIN, ENTRY_STATEFUL, ENTRY_CLOSURE };
enum { ERROR_TEXT_MOST = 256 };

typedef struct {
  vm_state* vm;
  TVMFFIObjectHandle function;       /* the VM's own entry function; keeps the VM alive */
  TVMFFIObjectHandle set_instrument; /* the VM's own */
  const entry* name;                 /* NULL: the byte limit left no room */
  int kind;                          /* ENTRY_…: where the name of the function that runs stands */
} entry_point;

/* ---- the instrument slot; the VM's edge lock is held ---- */

/* The slot owns one reference on our hook, and the vm_state the other. */
static bool hook_is_in_slot(const vm_state* vm) { return strong_count(vm->hook) > 1; }

static bool fill_slot(TVMFFIObjectHandle set_instrument, TVMFFIAny content) {
  TVMFFIAny result = none_value();
  if (TVMFFIFunctionCall(set_instrument, &content, 1, &result)) {
    drop_error();
    return false;
  }
  return true;
}

/* Clearing the slot would pull the hook from under an op of this VM that is open on this thread. */
static bool has_open_op(vm_state* vm) {
  if (inside_unseen(vm, (uintptr_t)__builtin_frame_address(0))) return true;
  return this_thread && open_frames(this_thread, vm, FRAME_OP) > 0;
}

static void update_slot(vm_state* vm, TVMFFIObjectHandle set_instrument) {
  bool wanted = vm->arming || atomic_load_explicit(&vm->held, memory_order_relaxed);
  if (vm->armed && !hook_is_in_slot(vm)) {
    vm->armed = false;
    vm->taken = true;
  }
  if (wanted == vm->armed || vm->taken) return;
  if (wanted) {
    vm->armed = fill_slot(set_instrument, function_value(vm->hook));
  } else if (!has_open_op(vm)) {
    vm->armed = !fill_slot(set_instrument, none_value());
  }
}

/* ---- the wrapper ---- */

static const entry* name_of_entry(const entry_point* point, const TVMFFIAny* arguments, int count) {
  TVMFFIByteArray name;
  if (point->kind == ENTRY_PLAIN || count < 1) return point->name;
  bool named = point->kind == ENTRY_STATEFUL ? string_of(&arguments[0], &name)
                                             : closure_name(&arguments[0], &name);
  return named ? intern(&names, name.data, name.size, NAME_FUNCTION) : point->name;
}

/* How many of these bytes don't cut a character of UTF-8 in two. */
static size_t whole_characters(const char* text, size_t size) {
  size_t last = size;
  while (last > 0 && ((unsigned char)text[last - 1] & 0xc0) == 0x80) --last;
  if (last == 0) return size;
  unsigned char lead = (unsigned char)text[last - 1];
  size_t needed = lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  return last - 1 + needed > size ? last - 1 : size;
}

/* "ValueError: what it said", of the error being raised, which stays raised. */
static const entry* name_of_error(void) {
  TVMFFIObjectHandle error = NULL;
  TVMFFIErrorMoveFromRaised(&error);
  if (!error) return NULL; /* a Python exception on its way */
  const TVMFFIErrorCell* cell = (const TVMFFIErrorCell*)cell_of(error);
  char text[ERROR_TEXT_MOST];
  int length =
      snprintf(text, sizeof text, "%.*s: %.*s", (int)(cell->kind.size & 0xff), cell->kind.data,
               (int)(cell->message.size < sizeof text ? cell->message.size : sizeof text),
               cell->message.data);
  const entry* named = NULL;
  if (length > 0) {
    size_t size = (size_t)length < sizeof text ? (size_t)length : sizeof text - 1;
    if ((size_t)length >= sizeof text) size = whole_characters(text, size);
    named = intern(&names, text, size, 0);
  }
  TVMFFIErrorSetRaised(error);
  TVMFFIObjectDecRef(error);
  return named;
}

/* Where an invocation of the VM stands: inside the one that runs on it, or on a strand of its own. */
static strand* strand_for(thread_state* thread, const vm_state* vm, const TVMFFIAny* arguments,
                          uintptr_t stack) {
  strand* in = strand_of(thread, vm);
  bool own = in == strand_led_to(vm);
  /* others' calls only where no greenlet may have left them */
  if (own || (in->depth && !strand_led_to(in->frames[in->depth - 1].vm))) {
    abandon_stale(in, arguments, stack);
  }
  if (in->depth && in->frames[in->depth - 1].kind == FRAME_BARE) {
    abandon(in, in->depth - 1, 0); /* between its ops, so it has returned */
  }
  return own ? in : strand_open(thread, in);
}

/* The frame of an invocation that begins, its clock running; NULL below the deepest nesting. */
static frame* begin_invocation(strand* in, vm_state* vm, const entry* name, decision* decided,
                               const context* around, const TVMFFIAny* arguments, int count,
                               uintptr_t stack) {
  frame* opened = open_invocation(in, vm, name, FRAME_INVOCATION, stack, decided->slots, around);
  if (!opened) return NULL;
  /* what was launched before is not this invocation's */
  if (atomic_load_explicit(&vm->synchronized, memory_order_relaxed) && !under_capture(in->thread)) {
    synchronize(arguments, count, 0);
  }
  decided->start = opened->start = clock_ticks();
  return opened;
}

/* Call the VM's own function as an invocation: its frame, its two records, and what it threw. */
static int call_recorded(entry_point* point, const entry* name, decision* decided,
                         const TVMFFIAny* arguments, int count, TVMFFIAny* result) {
  thread_state* thread = current_thread();
  if (!thread) {
    atomic_fetch_add_explicit(&registry.homeless_invocations, 1, memory_order_relaxed);
    return TVMFFIFunctionCall(point->function, (TVMFFIAny*)arguments, count, result);
  }
  context around = {0};
  if (decided->described) around = ask_for_context();
  vm_state* vm = point->vm;
  uintptr_t stack = (uintptr_t)__builtin_frame_address(0);
  strand *before = thread->strand, *vms = strand_led_to(vm);
  strand* in = strand_for(thread, vm, arguments, stack);
  int depth = in->depth;
  frame* opened = begin_invocation(in, vm, name, decided, &around, arguments, count, stack);
  if (!opened) return TVMFFIFunctionCall(point->function, (TVMFFIAny*)arguments, count, result);
  const frame own = *opened; /* greenlets that share a strand, for want of memory, may reuse it */
  strand_lead_to(vm, thread->strand = in);
  int code = TVMFFIFunctionCall(point->function, (TVMFFIAny*)arguments, count, result);
  uint64_t end = decided->end = clock_ticks();
  abandon(in, depth + 1, end);
  if (in->depth > depth) in->depth = depth;
  find_current(in);
  write_closed(thread, &own, &around, end, code != 0, code ? name_of_error() : NULL);
  if (depth == 0 && in != &thread->base) in->open = false;
  strand_lead_to(vm, vms);
  strand_return(thread, before);
  return code;
}

/* Call it as if it were no invocation. Inside one that is recorded its calls are that one's; what a
 * throw left open of them is closed here, for it may be long until the VM's next call tells. */
static int call_left_out(const entry_point* point, const TVMFFIAny* arguments, int count,
                         TVMFFIAny* result) {
  strand* in = strand_led_to(point->vm);
  bool inside = in && in->thread == this_thread;
  int depth = inside ? in->depth : 0;
  int code = TVMFFIFunctionCall(point->function, (TVMFFIAny*)arguments, count, result);
  if (inside && in->depth > depth) abandon(in, depth, clock_ticks());
  return code;
}

/* Which recordings the invocation is for; it may be the VM's outermost one, which arms the hook. */
static decision enter(entry_point* point, const entry** name, const TVMFFIAny* arguments,
                      int count) {
  vm_state* vm = point->vm;
  decision decided = {0};
  pthread_mutex_lock(&vm->edge);
  bool outermost = vm->active++ == 0;
  /* no two threads run one VM at a time: the one that ran it bare is out of it */
  if (outermost && !has_open_op(vm)) atomic_store(&vm->bare_thread, 0);
  if (vm->wishes && (outermost || vm->armed)) { /* inside one that runs bare, it does too */
    *name = name_of_entry(point, arguments, count);
    decided = decide(vm, *name, outermost ? 0 : vm->left_out);
  }
  if (outermost) {
    vm->runner = (uintptr_t)&this_thread;
    vm->arming = decided.armed != 0;
    update_slot(vm, point->set_instrument);
  }
  if (!vm->armed) decided.armed = 0;
  decided.around = vm->left_out;
  vm->left_out = decided.left_out;
  pthread_mutex_unlock(&vm->edge);
  return decided;
}

static void leave(const entry_point* point, const decision* decided, const entry* name,
                  bool failed) {
  vm_state* vm = point->vm;
  pthread_mutex_lock(&vm->edge);
  vm->left_out = decided->around;
  if (--vm->active == 0) {
    vm->arming = false;
    update_slot(vm, point->set_instrument);
  }
  if (decided->end) announce(vm, decided, name, failed);
  pthread_mutex_unlock(&vm->edge);
}

static int on_invoke(void* self, const TVMFFIAny* arguments, int32_t count, TVMFFIAny* result) {
  entry_point* point = (entry_point*)self;
  const entry* name = NULL;
  release(result); /* TVM's time_evaluator hands in the result of the call before */
  decision decided = enter(point, &name, arguments, count);
  int code = decided.armed ? call_recorded(point, name, &decided, arguments, count, result)
                           : call_left_out(point, arguments, count, result);
  leave(point, &decided, name, code != 0);
  return code;
}

static void entry_point_free(void* self) {
  entry_point* point = (entry_point*)self;
  TVMFFIObjectDecRef(point->function);
  TVMFFIObjectDecRef(point->set_instrument);
  free(point);
}

/* A function of a VM module, owned by the caller; NULL with the error raised. */
static TVMFFIObjectHandle module_function(TVMFFIAny module, TVMFFIAny name) {
  TVMFFIObjectHandle lookup = global_function("ffi.ModuleGetFunction");
  TVMFFIAny arguments[3] = {module, name, none_value()};
  TVMFFIAny found = none_value();
  arguments[2].type_index = kTVMFFIBool;
  arguments[2].v_int64 = 1;
  if (!lookup) {
    fail("RuntimeError", "relax_trace: this TVM has no ffi.ModuleGetFunction");
    return NULL;
  }
  int code = TVMFFIFunctionCall(lookup, arguments, 3, &found);
  TVMFFIObjectDecRef(lookup);
  if (code) return NULL;
  if (found.type_index == kTVMFFIFunction) return found.v_obj;
  release(&found);
  fail("AttributeError", "relax_trace: the VM has no function of this name");
  return NULL;
}

static int entry_kind(TVMFFIByteArray name) {
  if (name.size == 15 && !memcmp(name.data, "invoke_stateful", 15)) return ENTRY_STATEFUL;
  if (name.size == 14 && !memcmp(name.data, "invoke_closure", 14)) return ENTRY_CLOSURE;
  return ENTRY_PLAIN;
}

/* A Function that calls `name` of the VM as an invocation; -1 with the error raised. */
static int make_entry_point(vm_state* vm, TVMFFIAny module, TVMFFIAny name, TVMFFIAny* result) {
  TVMFFIByteArray text;
  if (!string_of(&name, &text))
    return fail("TypeError", "relax_trace: a function's name must be a string");
  entry_point* point = (entry_point*)calloc(1, sizeof *point);
  if (!point) return fail("MemoryError", "relax_trace: out of memory");
  point->vm = vm;
  point->kind = entry_kind(text);
  point->name = intern(&names, text.data, text.size, NAME_FUNCTION);
  point->function = module_function(module, name);
  point->set_instrument =
      point->function ? module_function(module, text_value("set_instrument")) : NULL;
  TVMFFIObjectHandle made = NULL;
  if (!point->set_instrument || TVMFFIFunctionCreate(point, on_invoke, entry_point_free, &made)) {
    if (point->function) TVMFFIObjectDecRef(point->function);
    if (point->set_instrument) TVMFFIObjectDecRef(point->set_instrument);
    free(point);
    return -1;
  }
  *result = function_value(made);
  return 0;
}

#endif /* RELAX_TRACE_INVOCATION_H_ */
