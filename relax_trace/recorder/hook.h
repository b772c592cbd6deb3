/* The instrument: what the VM calls before and after every op. */
#ifndef RELAX_TRACE_HOOK_H_
#define RELAX_TRACE_HOOK_H_

#include <stdio.h>

#include "clock.h"
#include "names.h"
#include "synchronize.h"

/* A frame's flag that no record has: calls of this name are not recorded. */
enum { OP_LEFT_OUT = 1 << 15 };

/* The VM calls f(callee, symbol, before, result, arguments…). */
enum { ARG_BEFORE = 2, ARG_RESULT = 3, ARG_FIRST = 4 };

/* ---- records ---- */

static inline void write_op(thread_state* thread, const frame* op, uint64_t end, uint16_t flags) {
  if (UNLIKELY(op->flags & OP_LEFT_OUT)) return;
  op_record* record = op->invocation ? (op_record*)buffer_next(&thread->ops, true) : NULL;
  if (UNLIKELY(!record)) {
    count_one(&thread->dropped_ops);
    return;
  }
  record->start = op->start;
  record->end = end;
  record->name = op->name->number;
  record->signature = op->signature ? op->signature->number : 0;
  record->invocation = op->invocation;
  record->depth = (uint16_t)(op - thread->frames);
  record->flags = op->flags | flags;
  if (UNLIKELY(op->flags & OP_SIGNATURE_LOST)) count_one(&thread->lost_signatures);
  buffer_publish(&thread->ops);
}

/* The invocation that a new frame belongs to. */
static inline uint32_t current_invocation(const thread_state* thread) {
  return thread->current < 0 ? 0 : thread->frames[thread->current].invocation;
}

static void find_current(thread_state* thread) {
  thread->current = thread->depth - 1;
  while (thread->current >= 0 && thread->frames[thread->current].kind == FRAME_OP)
    --thread->current;
}

/* Close every frame from `depth` up: their end was never announced, since something threw. */
static void abandon(thread_state* thread, int depth, uint64_t now) {
  while (thread->depth > depth) {
    frame* open = &thread->frames[--thread->depth];
    if (open->kind == FRAME_OP) write_op(thread, open, now, OP_ABORTED);
  }
  find_current(thread);
}

/* ---- invocations ---- */

/* Open a frame for an invocation and write its opening record. NULL below the deepest nesting. */
static frame* open_invocation(thread_state* thread, vm_state* vm, const entry* function,
                              uint16_t kind, uintptr_t stack, uint32_t recorded) {
  if (thread->depth == DEPTH_MOST) {
    count_one(&thread->dropped_invocations);
    return NULL;
  }
  frame* opened = &thread->frames[thread->depth];
  invocation_record* record =
      function ? (invocation_record*)buffer_next(&thread->invocations, true) : NULL;
  memset(opened, 0, sizeof *opened);
  opened->kind = kind;
  opened->vm = vm;
  opened->name = function;
  opened->stack = stack;
  opened->recorded = recorded;
  opened->start = clock_ticks();
  if (record) {
    opened->invocation = ++thread->last_invocation;
    *record = (invocation_record){
        .start = opened->start,
        .wall_ns = clock_ns(CLOCK_REALTIME),
        .number = opened->invocation,
        .parent = current_invocation(thread),
        .function = function->number,
        .vm = vm->number,
        .flags = INVOCATION_OPEN | (kind == FRAME_BARE ? INVOCATION_IMPLICIT : 0),
        .recorded = recorded,
    };
    buffer_publish(&thread->invocations);
  } else {
    count_one(&thread->dropped_invocations);
  }
  thread->current = thread->depth++;
  return opened;
}

/* Write the closing record; it never fails for want of room, as its opening one was accepted. */
static void write_closed(thread_state* thread, const frame* closed, uint64_t end, bool failed,
                         const entry* error) {
  if (!closed->invocation) return;
  invocation_record* record = (invocation_record*)buffer_next(&thread->invocations, false);
  if (!record) return; /* no memory at all: the invocation stays open in the trace */
  *record = (invocation_record){
      .start = closed->start,
      .end = end,
      .number = closed->invocation,
      .parent = current_invocation(thread),
      .function = closed->name->number,
      .error = error ? error->number : 0,
      .vm = closed->vm->number,
      .flags = failed ? INVOCATION_FAILED : 0,
      .recorded = closed->recorded,
  };
  buffer_publish(&thread->invocations);
}

/* ---- invocations through a function that was taken before the recording ---- */

/* "ErrorContext(fn=main, loc=param[0], …" names the function whose parameters are being checked. */
static bool checked_function(TVMFFIByteArray text, TVMFFIByteArray* function) {
  static const char head[] = "ErrorContext(fn=", middle[] = ", loc=param[";
  size_t head_size = sizeof head - 1, middle_size = sizeof middle - 1;
  if (text.size < head_size || memcmp(text.data, head, head_size) != 0) return false;
  for (size_t at = head_size; at + middle_size <= text.size; ++at) {
    if (memcmp(text.data + at, middle, middle_size) == 0) {
      *function = (TVMFFIByteArray){text.data + head_size, at - head_size};
      return true;
    }
  }
  return false;
}

static frame* open_bare(thread_state* thread, vm_state* vm, TVMFFIByteArray function,
                        uintptr_t stack) {
  const entry* name = intern(&names, function.data, function.size, NAME_FUNCTION);
  atomic_store_explicit(&vm->bare_thread, thread->id, memory_order_relaxed);
  uint32_t recorded = atomic_load_explicit(&vm->held, memory_order_relaxed);
  return open_invocation(thread, vm, name, FRAME_BARE, stack, recorded);
}

static bool is_named(const frame* bare, TVMFFIByteArray function) {
  const entry* name = bare->name;
  return name && name->size == function.size && !memcmp(name->bytes, function.data, function.size);
}

/* Make sure that the op about to start stands in an invocation of its own VM. Without our wrapper
 * nothing says where one begins, except that a function checks its parameters before all else. */
static __attribute__((noinline)) void enter_bare(thread_state* thread, vm_state* vm,
                                                 const entry* name, const TVMFFIAny* arguments,
                                                 int count, uintptr_t stack) {
  frame* top = thread->depth ? &thread->frames[thread->depth - 1] : NULL;
  bool inside = top && top->kind == FRAME_BARE && top->vm == vm;
  TVMFFIByteArray function = {"(unknown)", 9}, text = {NULL, 0};
  bool check = name->flags & NAME_CHECK && count > 0 && string_of(&arguments[count - 1], &text) &&
               checked_function(text, &function);
  if (inside && check) {
    /* the first check again is the next call's; but an element of a tuple says what the tuple did */
    inside =
        top->checking && is_named(top, function) && (top->element || top->first_check != text.data);
  }
  if (!inside) {
    if (top && top->kind == FRAME_BARE) abandon(thread, thread->depth - 1, 0);
    top = open_bare(thread, vm, function, stack);
    if (top && check) top->first_check = text.data;
  }
  if (!top) return;
  /* elements are taken out of a tuple between its checks */
  top->element = name->flags & NAME_ELEMENT;
  if (!top->element) top->checking = check;
}

/* ---- signatures ---- */

static __attribute__((noinline)) const entry* intern_signature(thread_state* thread, uint64_t hash,
                                                               const uint64_t* words, size_t size) {
  const entry** slot = &thread->signature_cache[hash & (SIGNATURE_CACHE - 1)];
  const entry* known = *slot;
  if (known && known->hash == hash && known->size == size && !memcmp(known->bytes, words, size)) {
    return known;
  }
  const entry* found = intern_hashed(&signatures, (const char*)words, size, 0, hash);
  if (found) *slot = found;
  return found;
}

static inline bool same_words(const char* known, const uint64_t* words, int count) {
  const uint64_t* other = (const uint64_t*)(const void*)known; /* entries are 8-byte aligned */
  for (int i = 0; i < count; ++i) {
    if (other[i] != words[i]) return false;
  }
  return true;
}

/* The entry of the encoded words; `last` remembers the last one under this name. */
static inline const entry* find_signature(thread_state* thread, const entry** last,
                                          const encoder* from, uint16_t* flags) {
  if (!from->count) return NULL;
  size_t size = (size_t)from->count * sizeof(uint64_t);
  if (LIKELY(*last && (*last)->size == size &&
             same_words((*last)->bytes, from->words, from->count))) {
    return *last;
  }
  uint64_t hash = hash_bytes((const char*)from->words, size);
  const entry* found = intern_signature(thread, hash, from->words, size);
  if (UNLIKELY(!found)) {
    *flags |= OP_SIGNATURE_LOST;
    return NULL;
  }
  return *last = found;
}

static inline uint32_t shown_of(const entry* name) {
  return (name->flags & NAME_SCALARS ? SHOW_SCALARS : 0) |
         (name->flags & NAME_ELEMENT ? HIDE_TUPLES : 0);
}

/* ---- before and after ---- */

/* A frame that the C stack has left, or whose argument buffer is in use again, ended by a throw. */
static inline void abandon_stale(thread_state* thread, const TVMFFIAny* arguments,
                                 uintptr_t stack) {
  for (int i = 0; i < thread->depth; ++i) {
    const frame* open = &thread->frames[i];
    if (UNLIKELY(open->kind == FRAME_OP &&
                 (open->arguments == arguments || stack >= open->stack))) {
      abandon(thread, i, clock_ticks());
      return;
    }
  }
}

/* An invocation that began recorded is recorded to its end, also when the recording stops meanwhile. */
static inline bool is_recorded(const thread_state* thread, vm_state* vm) {
  if (LIKELY(atomic_load_explicit(&vm->held, memory_order_relaxed))) return true;
  const frame* around = thread->current < 0 ? NULL : &thread->frames[thread->current];
  return around && around->vm == vm && around->kind == FRAME_INVOCATION;
}

static bool inside_unseen(vm_state* vm, uintptr_t stack) {
  return atomic_load(&vm->unseen) && atomic_load(&vm->unseen_thread) == (uintptr_t)&this_thread &&
         stack < atomic_load(&vm->unseen_stack);
}

/* No frame tells that this op runs, as long as it does: it must be known all the same. */
static __attribute__((noinline)) void leave_unseen(vm_state* vm, const TVMFFIAny* arguments,
                                                   uintptr_t stack) {
  if (inside_unseen(vm, stack)) return;
  atomic_store(&vm->unseen, arguments);
  atomic_store(&vm->unseen_stack, stack);
  atomic_store(&vm->unseen_thread, (uintptr_t)&this_thread);
  atomic_store(&vm->bare_thread, this_thread ? this_thread->id : thread_system_id());
}

static inline void before_call(vm_state* vm, const TVMFFIAny* arguments, int count,
                               uintptr_t stack) {
  thread_state* thread = current_thread();
  if (UNLIKELY(!thread)) {
    if (vm->wanted) {
      atomic_fetch_add_explicit(&registry.homeless_ops, 1, memory_order_relaxed);
    }
    leave_unseen(vm, arguments, stack);
    return;
  }
  if (UNLIKELY(!is_recorded(thread, vm))) {
    leave_unseen(vm, arguments, stack);
    return;
  }
  abandon_stale(thread, arguments, stack);
  cached_name* name = name_of_call(thread, arguments);
  const TVMFFIAny* own = arguments + ARG_FIRST;
  int own_count = count - ARG_FIRST;
  if (LIKELY(name != NULL)) {
    const frame* around = thread->current < 0 ? NULL : &thread->frames[thread->current];
    if (UNLIKELY(!around || around->vm != vm ||
                 (around->kind == FRAME_BARE && thread->current == thread->depth - 1))) {
      enter_bare(thread, vm, name->name, own, own_count, stack);
    }
    if (UNLIKELY(name->name->flags & NAME_CLOSURE)) {
      name = name_of_closure(thread, own, own_count, name);
    }
  }
  if (UNLIKELY(!name || thread->depth == DEPTH_MOST)) {
    count_one(&thread->dropped_ops);
    leave_unseen(vm, arguments, stack);
    return;
  }
  frame* op = &thread->frames[thread->depth];
  op->kind = FRAME_OP;
  op->flags = 0;
  op->arguments = arguments;
  op->stack = stack;
  op->vm = vm;
  op->name = name->name;
  op->invocation = current_invocation(thread);
  if (UNLIKELY(atomic_load_explicit(&name->name->left_out, memory_order_relaxed))) {
    op->flags = OP_LEFT_OUT;
    ++thread->depth; /* it has a frame all the same: the VM is inside a call */
    return;
  }
  encoder to = {thread->words, 0, false};
  encode_arguments(&to, own, own_count, shown_of(name->name));
  op->cached = name;
  op->signature = find_signature(thread, &name->signature, &to, &op->flags);
  if (UNLIKELY(atomic_load_explicit(&vm->synchronized, memory_order_relaxed)) &&
      !under_capture(thread) && synchronize(own, own_count, 0)) {
    op->flags |= OP_SYNCHRONIZED;
  }
  ++thread->depth;
  op->start = clock_ticks();
}

/* Extend the signature by what the call made. */
static void add_result(thread_state* thread, frame* op, const TVMFFIAny* result) {
  encoder to = {thread->words, 0, false};
  if (op->flags & OP_SIGNATURE_LOST) return;
  if (op->signature) {
    memcpy(to.words, op->signature->bytes, op->signature->size);
    to.count = (int)(op->signature->size / sizeof(uint64_t));
    if (to.count >= WORDS_MOST) return; /* cut off already */
  }
  encode_result(&to, result);
  const entry* unremembered = NULL;
  const entry** last = op->cached->name == op->name ? &op->cached->complete : &unremembered;
  const entry* found = find_signature(thread, last, &to, &op->flags);
  if (found) op->signature = found;
}

static inline void after_call(vm_state* vm, const TVMFFIAny* arguments, int count) {
  thread_state* thread = this_thread;
  int depth = thread ? thread->depth - 1 : -1;
  while (depth >= 0 && thread->frames[depth].arguments != arguments) --depth;
  if (UNLIKELY(depth < 0)) { /* its before was not recorded */
    if (atomic_load(&vm->unseen) == arguments) atomic_store(&vm->unseen, NULL);
    return;
  }
  frame* op = &thread->frames[depth];
  if (UNLIKELY(op->flags & OP_LEFT_OUT)) {
    if (depth != thread->depth - 1) abandon(thread, depth + 1, clock_ticks());
    thread->depth = depth;
    return;
  }
  if (UNLIKELY(op->flags & OP_SYNCHRONIZED) &&
      !(synchronize(arguments + ARG_FIRST, count - ARG_FIRST, 0) &&
        synchronize(&arguments[ARG_RESULT], 1, 0))) {
    op->flags &= (uint16_t)~OP_SYNCHRONIZED;
  }
  uint64_t end = clock_ticks();
  if (UNLIKELY(depth != thread->depth - 1)) abandon(thread, depth + 1, end);
  thread->depth = depth;
  if (UNLIKELY(end - op->start < atomic_load_explicit(&shortest_call, memory_order_relaxed)))
    return;
  if (UNLIKELY(op->name->flags & NAME_RESULT)) add_result(thread, op, &arguments[ARG_RESULT]);
  write_op(thread, op, end, 0);
}

static int on_call(void* self, const TVMFFIAny* arguments, int32_t count, TVMFFIAny* result) {
  (void)result; /* stays None: anything true would skip the call */
  vm_state* vm = (vm_state*)self;
  if (UNLIKELY(count < ARG_FIRST)) return 0;
  if (!arguments[ARG_BEFORE].v_int64) {
    after_call(vm, arguments, count);
  } else {
    before_call(vm, arguments, count, (uintptr_t)__builtin_frame_address(0));
  }
  return 0;
}

#endif /* RELAX_TRACE_HOOK_H_ */
