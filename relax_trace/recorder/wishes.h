/* What recordings want of a VM, and which of them an invocation is for.
 *
 * Each recording that runs has a slot, a bit of a mask. It leaves a wish with every VM that it records;
 * an invocation asks all wishes of its VM as it begins, and its records carry the slots that took it.
 */
#ifndef RELAX_TRACE_WISHES_H_
#define RELAX_TRACE_WISHES_H_

#include <fnmatch.h>
#include <unistd.h>

#include "tags.h"

enum { SLOTS = 32 };
enum {
  WISH_HELD = 1,         /* the hook stays in the VM's slot between invocations */
  WISH_SYNCHRONIZED = 2, /* devices are synchronised around each op */
  WISH_FAILURES = 4,     /* an invocation that fails is announced */
  WISH_CYCLES = 8,       /* the end of each cycle of the schedule is announced */
  WISH_TAGGED = 16       /* only invocations that begin while their thread has a tag: see tags.h */
};
enum { NOTICE_FAILED = 1, NOTICE_SLOW = 2, NOTICE_CYCLE = 4 };

/* Of each cycle's invocations the first are left out, the next only warm up, the last are recorded.
 * No active ones means that there is no schedule. */
typedef struct {
  uint64_t wait, warmup, active;
  uint64_t repeat; /* cycles, 0: without end */
} schedule;

/* How far a wish has come with one entry function. */
typedef struct progress {
  struct progress* next;
  const entry* function; /* NULL: the byte limit left no room for its name */
  uint64_t step;         /* its invocations so far */
  bool wanted;           /* its name matches */
} progress;

typedef struct wish {
  struct wish* next;
  uint32_t slot, flags;
  schedule plan;
  uint64_t slow;      /* ticks: an invocation that took longer is announced; 0: none is */
  char* functions;    /* shell pattern of the entry functions wanted, or NULL: all */
  progress* progress; /* of functions that were invoked; where plan or functions ask for it */
} wish;

/* What the wishes make of one invocation. */
typedef struct {
  slots slots;         /* the recordings that it is for */
  uint32_t armed;      /* slots that need the hook: it is recorded for them, or warms up */
  uint32_t left_out;   /* slots that leave it out, with all that is inside it */
  uint32_t around;     /* the same of the invocation of this VM that it is inside of */
  bool described;      /* a recording takes it that wants the trace context around it */
  uint64_t start, end; /* ticks, filled in as it runs */
} decision;

/* What goes through the pipe: whoever reads it, in Python, acts on it without holding up a call. */
typedef struct {
  uint64_t start, end; /* ticks, of the invocation */
  uint32_t slot;
  uint32_t reason;   /* NOTICE_… */
  uint32_t vm;       /* number */
  uint32_t function; /* number in the table of names */
} notice;

static _Atomic int notice_pipe = -1; /* not blocking; set_notify() stores */

/* ---- the VM's edge lock is held from here on ---- */

static progress* progress_of(wish* with, const entry* function) {
  progress* at = with->progress;
  while (at && at->function != function) at = at->next;
  if (at) return at;
  at = (progress*)calloc(1, sizeof *at);
  if (!at) return NULL;
  at->function = function;
  at->wanted = !with->functions;
  if (with->functions && function) {
    char* name = copy_of_text(function->bytes, function->size); /* entries end without a NUL */
    at->wanted = name && fnmatch(with->functions, name, FNM_NOESCAPE) == 0;
    free(name);
  }
  at->next = with->progress;
  with->progress = at;
  return at;
}

static void ask(wish* with, const entry* function, decision* made) {
  uint32_t bit = 1u << with->slot;
  if (!with->plan.active && !with->functions) {
    made->slots.taken |= bit;
    return;
  }
  progress* so_far = progress_of(with, function);
  if (!so_far || !so_far->wanted) return;
  const schedule* plan = &with->plan;
  uint64_t length = plan->wait + plan->warmup + plan->active;
  uint64_t step = so_far->step++;
  if (!plan->active) {
    made->slots.taken |= bit;
  } else if (plan->repeat && step / length >= plan->repeat) {
    return;
  } else if (step % length >= plan->wait + plan->warmup) {
    made->slots.taken |= bit;
    if (step % length == plan->wait + plan->warmup) made->slots.first |= bit;
    if (step % length == length - 1) made->slots.last |= bit;
  } else if (step % length >= plan->wait) {
    made->armed |= bit;
  }
}

/* What one recording left out, it leaves out with all that is inside, whatever others make of it. */
static decision decide(const vm_state* vm, const entry* function, uint32_t left_out) {
  decision made = {.left_out = left_out};
  uint32_t asked = 0, by_tag = 0;
  for (wish* at = vm->wishes; at; at = at->next) {
    if (left_out & 1u << at->slot) continue;
    if (at->flags & WISH_TAGGED && !this_tag.number) continue;
    asked |= 1u << at->slot;
    if (at->flags & WISH_TAGGED) by_tag |= 1u << at->slot; /* whose invocations have spans */
    ask(at, function, &made);
  }
  made.described = made.slots.taken & ~by_tag;
  made.armed |= made.slots.taken;
  made.left_out |= asked & ~made.armed;
  return made;
}

/* Tell the recordings that want to know how an invocation ended. */
static void announce(const vm_state* vm, const decision* made, const entry* function, bool failed) {
  int pipe = atomic_load_explicit(&notice_pipe, memory_order_relaxed);
  if (pipe < 0) return;
  for (const wish* at = vm->wishes; at; at = at->next) {
    uint32_t bit = 1u << at->slot, reason = 0;
    if (!(made->slots.taken & bit)) continue;
    if (failed && at->flags & WISH_FAILURES) reason |= NOTICE_FAILED;
    if (at->slow && made->end - made->start > at->slow) reason |= NOTICE_SLOW;
    if (made->slots.last & bit && at->flags & WISH_CYCLES) reason |= NOTICE_CYCLE;
    if (!reason) continue;
    notice told = {made->start, made->end,  at->slot,
                   reason,      vm->number, function ? function->number : 0};
    /* a full pipe has enough to say: what this one would have asked for is done with the others */
    ssize_t written = write(pipe, &told, sizeof told);
    (void)written;
  }
}

static void forget_wish(vm_state* vm, uint32_t slot) {
  wish** at = &vm->wishes;
  while (*at && (*at)->slot != slot) at = &(*at)->next;
  wish* gone = *at;
  if (!gone) return;
  *at = gone->next;
  for (progress *step = gone->progress, *next; step; step = next) {
    next = step->next;
    free(step);
  }
  free(gone->functions);
  free(gone);
}

/* What the hook reads of the wishes, which it can't walk. */
static void sum_up_wishes(vm_state* vm) {
  uint32_t held = 0, flags = 0;
  for (const wish* at = vm->wishes; at; at = at->next) {
    if (at->flags & WISH_HELD) held |= 1u << at->slot;
    flags |= at->flags;
  }
  atomic_store(&vm->synchronized, (flags & WISH_SYNCHRONIZED) != 0);
  atomic_store(&vm->held, held);
  atomic_store(&vm->wanted, vm->wishes != NULL);
}

#endif /* RELAX_TRACE_WISHES_H_ */
