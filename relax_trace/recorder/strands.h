/* Strands: the open calls of one flow of control, each inside the one before.
 *
 * A thread has one, as a rule. Where greenlets take turns on it, an invocation can be left in the middle
 * of an op for another one, and neither is inside the other. So an invocation that begins while calls of
 * another VM are open gets a strand of its own: the VM leads to it, as no two flows run one VM at a time.
 */
#ifndef RELAX_TRACE_STRANDS_H_
#define RELAX_TRACE_STRANDS_H_

#include "threads.h"

/* The strand after another of its thread's, the base coming first; NULL behind the last. */
static inline strand* strand_after(const thread_state* thread, const strand* at) {
  return at == &thread->base ? thread->strands : at->next;
}

static inline strand* strand_led_to(const vm_state* vm) {
  return atomic_load_explicit(&vm->strand, memory_order_relaxed);
}

static inline void strand_lead_to(vm_state* vm, strand* to) {
  atomic_store_explicit(&vm->strand, to, memory_order_relaxed);
}

/* Where the calls of a VM stand that runs on this thread. */
static inline strand* strand_of(thread_state* thread, const vm_state* vm) {
  strand* own = strand_led_to(vm);
  return LIKELY(own && own->thread == thread) ? own : thread->strand;
}

/* An empty strand; the one that is left for it where there is no memory for another. */
static strand* strand_open(thread_state* thread, strand* left) {
  strand* opened = thread->strands;
  if (left->depth == 0) return left;
  while (opened && opened->open) opened = opened->next;
  if (!opened) {
    opened = (strand*)reserve(sizeof *opened);
    if (!opened) return left;
    opened->thread = thread;
    opened->current = -1;
    opened->next = thread->strands;
    thread->strands = opened;
  }
  opened->open = true;
  return opened;
}

/* Go back to the strand that was left for another, unless its invocation has ended meanwhile. */
static void strand_return(thread_state* thread, strand* to) {
  thread->strand = to->open ? to : &thread->base;
}

/* The invocation that one with this address on the stack is inside of, or 0. Of the calls that lie
 * above it there the nearest is the one that it runs in, unless that is of a greenlet that waits. */
static uint32_t invocation_around(const thread_state* thread, uintptr_t stack) {
  const frame* nearest = NULL;
  for (const strand* at = &thread->base; at; at = strand_after(thread, at)) {
    for (int i = 0; i < at->depth; ++i) {
      const frame* open = &at->frames[i];
      if (open->stack > stack && (!nearest || open->stack <= nearest->stack)) nearest = open;
    }
  }
  return nearest ? nearest->invocation : 0;
}

/* How many frames of a kind a VM has open on a thread. */
static int open_frames(const thread_state* thread, const vm_state* vm, int kind) {
  int open = 0;
  for (const strand* at = &thread->base; at; at = strand_after(thread, at)) {
    for (int i = 0; i < at->depth; ++i) {
      open += at->frames[i].kind == kind && at->frames[i].vm == vm;
    }
  }
  return open;
}

#endif /* RELAX_TRACE_STRANDS_H_ */
