/* What can happen to a recorder, played on the stand-in VM. What must be recorded of it is said in
 * tests/integration/test_sanitizers.py. */
#ifndef SCENARIOS_H_
#define SCENARIOS_H_

#include <stdint.h>

/* threads.c */
void play_alone(uint64_t seed);   /* one thread, every way to call a function */
void play_threads(uint64_t seed); /* several, while one dumps */
void play_toggle(uint64_t seed);  /* several, while one starts and stops the recording of each VM */
void play_chaos(uint64_t seed);   /* and begins anew, sets limits, runs out of memory */
void play_churn(uint64_t seed);   /* threads that come and go */
void play_reused_ids(uint64_t seed); /* and have the id of one that is gone */
void play_thread_ends_after_throw(uint64_t seed);

/* limits.c */
void play_limits(uint64_t seed); /* hardly any bytes, then more */
void play_memory(uint64_t seed); /* allocations that fail */
void play_flat(uint64_t seed);   /* the same over and over takes no more memory */
void play_deep(uint64_t seed);   /* calls and invocations nested deeper than is recorded */

/* ring.c: the newest records within the limit */
void play_ring(uint64_t seed);         /* several threads, and one that takes snapshots */
void play_ring_drained(uint64_t seed); /* and one that drains as well */
void play_ring_turns(uint64_t seed);   /* several that write by turns, and then one alone */
void play_ring_held(uint64_t seed);    /* while somebody holds the recorder's lock */
void play_ring_churn(uint64_t seed);   /* threads that come and go by the hundred */
void play_ring_crowd(uint64_t seed);   /* more threads than there is room for */

/* wishes.c; each keeps a journal */
void play_wishes_alone(uint64_t seed); /* one thread changes what several recordings want */
void play_wishes(uint64_t seed);       /* several, while another changes it */
void play_filters(uint64_t seed);      /* calls of some names alone */

/* slots.c */
void play_slots(uint64_t seed);           /* another instrument, and no VM any more */
void play_inside(uint64_t seed);          /* recording is started and stopped inside an op */
void play_refused(uint64_t seed);         /* calls of the recorder's functions that make no sense */
void play_synchronized(uint64_t seed);    /* devices synchronised, by several VMs at once */
void play_recycled_symbol(uint64_t seed); /* a name's memory now holds a shorter one */

/* contexts.c */
void play_contexts(uint64_t seed); /* several threads, and one that sets hook after hook */

/* forks.c */
void play_forks_parked(uint64_t seed);  /* while other threads wait inside an op */
void play_forks_running(uint64_t seed); /* while other threads record, and one dumps */

#endif /* SCENARIOS_H_ */
