/* A journal: what a thread did, a line each, for a model to follow. NULL: none is kept. */
#ifndef JOURNAL_H_
#define JOURNAL_H_

#include "driver.h"

FILE* open_journal(int number); /* "<output>.journal<number>", which the thread's id begins */
void journal_line(FILE* journal, const char* format, ...) __attribute__((format(printf, 2, 3)));

/* These say what is about to be done, or was, and at what tick of the recorder's clock. */
void journal_wish(FILE* journal, const attached_vm* vm, int slot, wish_of wish);
void journal_enter(FILE* journal, const attached_vm* vm, const char* function);
void journal_leave(FILE* journal, int code);

#endif /* JOURNAL_H_ */
