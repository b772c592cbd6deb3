/* A journal; see journal.h. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "journal.h"

#include <inttypes.h>
#include <stdarg.h>
#include <unistd.h>

FILE* open_journal(int number) {
  char path[300];
  snprintf(path, sizeof path, "%s.journal%d", output_path(), number);
  FILE* opened = fopen(path, "w");
  REQUIRE(opened != NULL);
  journal_line(opened, "thread %d", (int)gettid());
  return opened;
}

void journal_line(FILE* journal, const char* format, ...) {
  if (!journal) return;
  va_list values;
  va_start(values, format);
  vfprintf(journal, format, values);
  va_end(values);
  fputc('\n', journal);
}

static int64_t now(void) {
  TVMFFIAny ticks = none();
  REQUIRE(call_global("relax_trace.recorder.now", NULL, 0, &ticks) == 0);
  return ticks.v_int64;
}

void journal_wish(FILE* journal, const attached_vm* vm, int slot, wish_of wish) {
  journal_line(journal, "want %" PRId64 " %d %d %d %d %d %d %" PRId64 " %s", vm->number, slot,
               wish.flags, wish.wait, wish.warmup, wish.active, wish.repeat, wish.slow_ns,
               wish.functions ? wish.functions : "");
}

void journal_enter(FILE* journal, const attached_vm* vm, const char* function) {
  journal_line(journal, "enter %" PRId64 " %s %" PRId64, vm->number, function, now());
}

void journal_leave(FILE* journal, int code) {
  journal_line(journal, "leave %d %" PRId64, code, now());
}
