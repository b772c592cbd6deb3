/* Strands: the open calls of one flow of control, each inside the one before.
 *
 * A thread has one, as a rule. Where greenlets take turns on it, an invocation can be left in the middle
 * of an op for another one, and neither is inside the other. So an invocation that begins while calls of
 * another VM are open gets a strand of its own: the VM leads to it, as no two flows run one VM at a time.
 */
#ifndef RELAX_TRACE_STRANDS_H_
#define RELAX_TRACE_STRANDS_H_

#include "threads.h"

/* Where the calls of a VM stand that runs on this thread. */
static inline strand* strand_of(thread_state* thread, const vm_state* vm) {
  strand* own = vm->strand;
  return LIKELY(own && own->thread == thread) ? own : thread->strand;
}

/* An empty strand; the one around it where there is no memory for another. */
static strand* strand_open(thread_state* thread, strand* around) {
  strand* opened = thread->strands;
  if (around->depth == 0) return around;
  while (opened && opened->open) opened = opened->next;
  if (!opened) {
    opened = (strand*)reserve(sizeof *opened);
    if (!opened) return around;
    opened->thread = thread;
    opened->current = -1;
    opened->next = thread->strands;
    thread->strands = opened;
  }
  opened->open = true;
  opened->around = around;
  return opened;
}

/* Go back to the strand that was left for another, unless its invocation has ended meanwhile. */
static void strand_return(thread_state* thread, strand* to) {
  thread->strand = to->open ? to : &thread->base;
}

/* The invocation that one with this address on the stack is inside of, or 0. A call that is open lies
 * above it there, but for those of a greenlet that waits. */
static uint32_t invocation_around(const strand* from, uintptr_t stack) {
  for (; from; from = from->around) {
    for (int i = from->depth - 1; i >= 0; --i) {
      if (from->frames[i].stack > stack) return from->frames[i].invocation;
    }
  }
  return 0;
}

/* How many frames of a kind a VM has open on a thread. */
static int open_frames(const thread_state* thread, const vm_state* vm, int kind) {
  int open = 0;
  for (const strand* at = &thread->base; at;
       at = at == &thread->base ? thread->strands : at->next) {
    for (int i = 0; i < at->depth; ++i) {
      open += at->frames[i].kind == kind && at->frames[i].vm == vm;
    }
  }
  return open;
}

#endif /* RELAX_TRACE_STRANDS_H_ */
