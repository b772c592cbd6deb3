/* Workers: threads that run generated functions of VMs of their own, in every way there is. */
#ifndef WORKERS_H_
#define WORKERS_H_

#include <stdatomic.h>

#include "driver.h"

enum { WORKERS = 4, VMS = 2 * WORKERS };

/* Worker i runs vms[i], and inside its ops vms[WORKERS + i]: a VM is for one thread at a time. */
extern attached_vm vms[VMS];
extern uint64_t base_seed;  /* what all that is generated depends on */
extern _Atomic int working; /* for a thread that goes on until the workers are done */

void attach_all(uint64_t seed, bool wanted);
void release_all(void);

/* All letters of functions; see fake_vm.h. */
#define EVERY_LETTER "cdnvtpk"

/* The name of a function that has some of the letters and 1 to `ops_most` ops. */
char* make_name(uint64_t* seed, const char* letters, uint32_t ops_most, char* name);

/* `count` invocations on this thread, which is worker `number`; where `bare`, some of them past the
 * recorder's wrapper, as through a function that was taken before. */
void work(int number, int count, const char* letters, bool bare);

/* An invocation that throws nothing: at its start, what a throw left open on this thread is closed. */
void work_cleanly(int number);

#endif /* WORKERS_H_ */
