/* Frames: opening them, closing them, and writing their records. */
#ifndef RELAX_TRACE_FRAMES_H_
#define RELAX_TRACE_FRAMES_H_

#include "clock.h"
#include "contexts.h"
#include "names.h"
#include "strands.h"
#include "tags.h"

/* A frame's flag that no record has: calls of this name are not recorded. */
enum { OP_LEFT_OUT = 1 << 15 };

/* ---- ops ---- */

static inline void write_op(const strand* in, const frame* op, uint64_t end, uint16_t flags) {
  thread_state* thread = in->thread;
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
  record->depth = (uint16_t)(op - in->frames);
  record->flags = op->flags | flags;
  if (UNLIKELY(op->flags & OP_SIGNATURE_LOST)) count_one(&thread->lost_signatures);
  buffer_publish(&thread->ops);
  if (UNLIKELY(this_tag.number && in->current >= 0)) {
    count_tagged(&in->frames[in->current], op, end);
  }
}

/* The invocation that a new frame belongs to. */
static inline uint32_t current_invocation(const strand* in) {
  return in->current < 0 ? 0 : in->frames[in->current].invocation;
}

static void find_current(strand* in) {
  in->current = in->depth - 1;
  while (in->current >= 0 && in->frames[in->current].kind == FRAME_OP) --in->current;
}

/* Close every frame from `depth` up: their end was never announced, since something threw. */
static void abandon(strand* in, int depth, uint64_t now) {
  while (in->depth > depth) {
    frame* open = &in->frames[--in->depth];
    if (open->kind == FRAME_OP) write_op(in, open, now, OP_ABORTED);
  }
  find_current(in);
}

/* ---- invocations ---- */

/* Open a frame for an invocation and write its opening record. NULL below the deepest nesting. */
static frame* open_invocation(strand* in, vm_state* vm, const entry* function, uint16_t kind,
                              uintptr_t stack, slots whose, const context* around) {
  thread_state* thread = in->thread;
  if (in->depth == DEPTH_MOST) {
    count_one(&thread->dropped_invocations);
    return NULL;
  }
  frame* opened = &in->frames[in->depth];
  invocation_record* record =
      function ? (invocation_record*)buffer_next(&thread->invocations, true) : NULL;
  memset(opened, 0, sizeof *opened);
  opened->kind = kind;
  opened->vm = vm;
  opened->name = function;
  opened->stack = stack;
  opened->slots = whose;
  opened->parent = invocation_around(thread, stack);
  opened->tag = (uint32_t)this_tag.number;
  opened->start = clock_ticks();
  if (record) {
    opened->invocation = ++thread->last_invocation;
    *record = (invocation_record){
        .start = opened->start,
        .wall_ns = clock_ns(CLOCK_REALTIME),
        .number = opened->invocation,
        .parent = opened->parent,
        .function = function->number,
        .vm = vm->number,
        .flags = INVOCATION_OPEN | (kind == FRAME_BARE ? INVOCATION_IMPLICIT : 0) | around->flags,
        .slots = whose,
        .tag = opened->tag,
        .around = around->span,
    };
    buffer_publish(&thread->invocations);
  } else {
    count_one(&thread->dropped_invocations);
  }
  in->current = in->depth++;
  return opened;
}

/* Write the closing record; it never fails for want of room, as its opening one was accepted. */
static void write_closed(thread_state* thread, const frame* closed, const context* around,
                         uint64_t end, bool failed, const entry* error) {
  if (!closed->invocation) return;
  invocation_record* record = (invocation_record*)buffer_next(&thread->invocations, false);
  if (!record) return; /* no memory at all: the invocation stays open in the trace */
  *record = (invocation_record){
      .start = closed->start,
      .end = end,
      .number = closed->invocation,
      .parent = closed->parent,
      .function = closed->name->number,
      .error = error ? error->number : 0,
      .vm = closed->vm->number,
      .flags = (failed ? INVOCATION_FAILED : 0) | around->flags,
      .slots = closed->slots,
      .tag = closed->tag,
      .around = around->span,
  };
  buffer_publish(&thread->invocations);
}

/* ---- frames that a throw left ---- */

/* A frame that the C stack has left, or whose argument buffer is in use again, ended by a throw. */
static inline void abandon_stale(strand* in, const TVMFFIAny* arguments, uintptr_t stack) {
  for (int i = 0; i < in->depth; ++i) {
    const frame* open = &in->frames[i];
    if (UNLIKELY(open->kind == FRAME_OP &&
                 (open->arguments == arguments || stack >= open->stack))) {
      abandon(in, i, clock_ticks());
      return;
    }
  }
}

#endif /* RELAX_TRACE_FRAMES_H_ */
