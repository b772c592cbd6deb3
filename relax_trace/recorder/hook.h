/* The instrument: what the VM calls before and after every op. */
#ifndef RELAX_TRACE_HOOK_H_
#define RELAX_TRACE_HOOK_H_

#include <stdio.h>

#include "bare.h"
#include "clock.h"
#include "synchronize.h"

/* The VM calls f(callee, symbol, before, result, arguments…). */
enum { ARG_BEFORE = 2, ARG_RESULT = 3, ARG_FIRST = 4 };

/* ---- signatures ---- */

static __attribute__((noinline)) const entry* intern_signature(thread_state* thread, uint64_t hash,
                                                               const uint64_t* words, size_t size) {
  const entry** slot = &thread->signature_cache[hash & (SIGNATURE_CACHE - 1)];
  const entry* known = *slot;
  if (known && known->hash == hash && known->size == size && !memcmp(known->bytes, words, size)) {
    return known;
  }
  uint32_t flags = signature_flags(words, size / sizeof *words);
  const entry* found = intern_hashed(&signatures, (const char*)words, size, flags, hash);
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

/* An invocation that began recorded is recorded to its end, also when the recording stops meanwhile. */
static inline bool is_recorded(const strand* in, vm_state* vm) {
  if (LIKELY(atomic_load_explicit(&vm->held, memory_order_relaxed))) return true;
  const frame* around = in->current < 0 ? NULL : &in->frames[in->current];
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
  strand* in = strand_of(thread, vm);
  if (UNLIKELY(!is_recorded(in, vm))) {
    leave_unseen(vm, arguments, stack);
    return;
  }
  abandon_stale(in, arguments, stack);
  cached_name* name = name_of_call(thread, arguments);
  const TVMFFIAny* own = arguments + ARG_FIRST;
  int own_count = count - ARG_FIRST;
  if (LIKELY(name != NULL)) {
    const frame* around = in->current < 0 ? NULL : &in->frames[in->current];
    if (UNLIKELY(!around || around->vm != vm ||
                 (around->kind == FRAME_BARE && in->current == in->depth - 1))) {
      if (enter_bare(in, vm, name->name, own, own_count, stack)) {
        name = name_of_call(thread, arguments); /* Python may have run, and used the cache */
      }
    }
    if (UNLIKELY(name && name->name->flags & NAME_CLOSURE)) {
      name = name_of_closure(thread, own, own_count, name);
    }
  }
  if (UNLIKELY(!name || in->depth == DEPTH_MOST)) {
    count_one(&thread->dropped_ops);
    leave_unseen(vm, arguments, stack);
    return;
  }
  frame* op = &in->frames[in->depth];
  op->kind = FRAME_OP;
  op->flags = 0;
  op->arguments = arguments;
  op->stack = stack;
  op->vm = vm;
  op->name = name->name;
  op->invocation = current_invocation(in);
  if (UNLIKELY(is_left_out(name->name))) {
    op->flags = OP_LEFT_OUT;
    ++in->depth; /* it has a frame all the same: the VM is inside a call */
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
  ++in->depth;
  op->start = clock_ticks();
}

/* Extend the signature by what the call made; where that finds no room, the whole is lost. */
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
  op->signature = find_signature(thread, last, &to, &op->flags);
}

static inline void after_call(vm_state* vm, const TVMFFIAny* arguments, int count) {
  thread_state* thread = this_thread;
  strand* in = thread ? strand_of(thread, vm) : NULL;
  int depth = in ? in->depth - 1 : -1;
  while (depth >= 0 && in->frames[depth].arguments != arguments) --depth;
  if (UNLIKELY(depth < 0)) { /* its before was not recorded */
    if (atomic_load(&vm->unseen) == arguments) atomic_store(&vm->unseen, NULL);
    return;
  }
  frame* op = &in->frames[depth];
  if (UNLIKELY(op->flags & OP_LEFT_OUT)) {
    if (depth != in->depth - 1) abandon(in, depth + 1, clock_ticks());
    in->depth = depth;
    return;
  }
  if (UNLIKELY(op->flags & OP_SYNCHRONIZED) &&
      !(synchronize(arguments + ARG_FIRST, count - ARG_FIRST, 0) &&
        synchronize(&arguments[ARG_RESULT], 1, 0))) {
    op->flags &= (uint16_t)~OP_SYNCHRONIZED;
  }
  uint64_t end = clock_ticks();
  if (UNLIKELY(depth != in->depth - 1)) abandon(in, depth + 1, end);
  in->depth = depth;
  if (UNLIKELY(end - op->start < atomic_load_explicit(&shortest_call, memory_order_relaxed)))
    return;
  if (UNLIKELY(op->name->flags & NAME_RESULT)) add_result(thread, op, &arguments[ARG_RESULT]);
  write_op(in, op, end, 0);
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
