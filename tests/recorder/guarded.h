/* What tests see of the recorder beside its registered functions. */
#ifndef GUARDED_H_
#define GUARDED_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Let one in `odds` of the recorder's allocations fail from now on, or none where 0. */
void fail_allocations(uint32_t odds);
bool allocations_failed(void); /* whether any ever did */

/* Let the calling thread seem to have this id, as where the operating system uses one again. */
void pretend_thread_id(long id);

/* Bytes that the recorder counts as in use, those of names and signatures included. */
size_t recorder_bytes(void);

/* Number of threads that the recorder keeps something of, and of those among them that have ended. */
int recorder_threads(void);
int recorder_finished(void);

/* Take the lock under which the recorder dumps, or let it go. */
void hold_registry(bool hold);

/* Bytes that it has asked the allocator for and not given back. */
size_t allocated_bytes(void);

#endif /* GUARDED_H_ */
