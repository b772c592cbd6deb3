/* Tags: a number that a thread gives the invocations it begins, to know them again in the records.
 *
 * What ran under it is counted as well, so that whoever set it need not wait for a dump.
 */
#ifndef RELAX_TRACE_TAGS_H_
#define RELAX_TRACE_TAGS_H_

#include "threads.h"

/* As relax_trace.recorder.tag hands it over. */
typedef struct {
  uint64_t number;  /* 0: none */
  uint64_t calls;   /* that ended in invocations of this number, and were recorded */
  uint64_t tensors; /* of these: with a tensor among their arguments */
  uint64_t ticks;   /* that those took which stand right inside their invocation */
} tagged;

static __thread tagged this_tag __attribute__((tls_model(RELAX_TRACE_TLS_MODEL)));

static __attribute__((noinline)) void count_tagged(const frame* around, const frame* op,
                                                   uint64_t end) {
  if (around->tag != this_tag.number || around->invocation != op->invocation) return;
  ++this_tag.calls;
  if (op->signature && op->signature->flags & SIGNATURE_TENSOR) ++this_tag.tensors;
  if (op == around + 1) this_tag.ticks += end - op->start;
}

#endif /* RELAX_TRACE_TAGS_H_ */
