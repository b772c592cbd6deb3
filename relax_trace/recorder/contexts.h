/* The trace context around an invocation, asked of whoever set a hook for it; and without a hook, none.
 *
 * The hook is Python's, and may do anything: it is called with no lock held, and before the clock runs.
 */
#ifndef RELAX_TRACE_CONTEXTS_H_
#define RELAX_TRACE_CONTEXTS_H_

#include <signal.h>

#include "buffers.h"
#include "ffi.h"

typedef struct {
  span_ids span;
  uint32_t flags; /* INVOCATION_SAMPLED, or 0 */
} context;

/* What a hook returns, as bytes: the ids, and the trace flags of W3C's Trace Context. */
typedef struct {
  span_ids span;
  unsigned char trace_flags;
} told_context;

enum { TRACE_SAMPLED = 1 };
_Static_assert(sizeof(told_context) == 25, "the hook returns 25 bytes");

/* Hooks are kept for good, as a thread may be calling one that was just replaced. */
typedef struct context_hook {
  struct context_hook* before;
  TVMFFIObjectHandle call; /* NULL: no hook any more */
} context_hook;

static _Atomic(context_hook*) newest_context_hook;

static bool set_context_hook(TVMFFIObjectHandle call) {
  context_hook* set = (context_hook*)malloc(sizeof *set);
  if (!set) return false;
  if (call) TVMFFIObjectIncRef(call);
  set->call = call;
  set->before = atomic_load(&newest_context_hook);
  while (!atomic_compare_exchange_weak(&newest_context_hook, &set->before, set)) continue;
  return true;
}

/* Whatever failed in a hook is forgotten. But Ctrl-C may have come just then, which is the program's: it
 * gets it once more, when the invocation is over. tvm-ffi tells a KeyboardInterrupt, as all that it
 * doesn't know, as a RuntimeError; and it has no text. */
static void forget_failure(void) {
  static const char unknown[] = "RuntimeError";
  TVMFFIObjectHandle error = NULL;
  TVMFFIErrorMoveFromRaised(&error);
  if (!error) return;
  const TVMFFIErrorCell* cell = (const TVMFFIErrorCell*)cell_of(error);
  if (cell->message.size == 0 && cell->kind.size == sizeof unknown - 1 &&
      !memcmp(cell->kind.data, unknown, cell->kind.size)) {
    raise(SIGINT);
  }
  TVMFFIObjectDecRef(error);
}

/* What the hook says, if there is one. */
static __attribute__((noinline)) context ask_for_context(void) {
  context found = {0};
  const context_hook* hook = atomic_load(&newest_context_hook);
  if (!hook || !hook->call) return found;
  TVMFFIAny result = none_value();
  if (TVMFFIFunctionCall(hook->call, NULL, 0, &result)) {
    forget_failure();
    return found;
  }
  if (result.type_index == kTVMFFIBytes) {
    const TVMFFIByteArray* bytes = (const TVMFFIByteArray*)cell_of(result.v_obj);
    if (bytes->size == sizeof(told_context)) {
      const told_context* told = (const told_context*)(const void*)bytes->data;
      found.span = told->span;
      found.flags = told->trace_flags & TRACE_SAMPLED ? INVOCATION_SAMPLED : 0;
    }
  }
  release(&result);
  return found;
}

#endif /* RELAX_TRACE_CONTEXTS_H_ */
