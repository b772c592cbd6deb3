/* Ring mode: once the byte limit is reached, the newest records take the place of the oldest.
 *
 * A thread that needs a chunk frees the one whose last record is the oldest, in whichever thread's
 * buffer, once in hundreds of ops. It waits for nobody: while others hold the registry's lock, as a
 * dump does for its time, it goes beyond the limit, by a quarter at most. Later chunks make up for it.
 */
#ifndef RELAX_TRACE_RING_H_
#define RELAX_TRACE_RING_H_

#include "threads.h"

/* ---- what may go; registry lock held ---- */

/* When the last record of the buffer's oldest chunk was written: both kinds of record begin with their
 * start and end. UINT64_MAX where its writer has not left it yet, or nothing is in it. */
static uint64_t buffer_age(const buffer* of, bool ended) {
  const chunk* at = of->oldest;
  if (!at || (!ended && !atomic_load_explicit(&at->next, memory_order_acquire))) return UINT64_MAX;
  uint32_t count = atomic_load_explicit(&at->count, memory_order_acquire);
  if (!count) return UINT64_MAX;
  uint64_t times[2];
  memcpy(times, at->records + (count - 1) * of->record_size, sizeof times);
  return times[0] > times[1] ? times[0] : times[1];
}

static uint64_t thread_age(const thread_state* thread) {
  bool ended = atomic_load(&thread->finished);
  uint64_t ops = buffer_age(&thread->ops, ended);
  uint64_t invocations = buffer_age(&thread->invocations, ended);
  return ops < invocations ? ops : invocations;
}

/* The ended thread with the oldest chunk, or NULL. It is the last one, unless the records that put it
 * there are gone: then it moves, past those only that will be overwritten before it. */
static thread_state* oldest_ended(void) {
  thread_state* last = registry.last;
  for (; last && atomic_load(&last->finished); last = registry.last) {
    uint64_t age = thread_age(last);
    thread_state* behind = last->previous;
    if (age <= last->age) return last;
    last->age = age;
    while (behind && atomic_load(&behind->finished) && behind->age < age) behind = behind->previous;
    thread_unlink(last);
    thread_link(last, behind);
  }
  return NULL;
}

/* The thread with the oldest chunk that may go, or NULL. */
static thread_state* oldest_thread(void) {
  thread_state* oldest = oldest_ended();
  uint64_t age = oldest ? oldest->age : UINT64_MAX;
  for (thread_state* at = registry.threads; at && !atomic_load(&at->finished); at = at->next) {
    uint64_t other = thread_age(at);
    if (other < age) oldest = at, age = other;
  }
  return age < UINT64_MAX ? oldest : NULL;
}

static void count_overwritten(const buffer* from, const chunk* gone) {
  uint32_t unread = atomic_load_explicit(&gone->count, memory_order_acquire) - gone->read;
  if (from->record_size == sizeof(op_record)) registry.overwritten_ops += unread;
}

/* Take the oldest chunk out of its buffer, and say how large it is; NULL if none may go. */
static chunk* take_oldest(size_t* size) {
  thread_state* owner = oldest_thread();
  if (!owner) return NULL;
  bool ended = atomic_load(&owner->finished);
  bool ops_first = buffer_age(&owner->ops, ended) <= buffer_age(&owner->invocations, ended);
  buffer* from = ops_first ? &owner->ops : &owner->invocations;
  chunk* taken = from->oldest;
  *size = chunk_bytes(from, taken->capacity);
  count_overwritten(from, taken);
  from->oldest = atomic_load_explicit(&taken->next, memory_order_acquire);
  if (ended && thread_is_read(owner)) thread_retire(owner);
  return taken;
}

/* ---- making room; registry lock held ---- */

/* Take `size` bytes within the limit, for which the oldest chunks go. One of just this size is handed
 * over with its memory, in `same_size`. */
static bool make_room(size_t size, chunk** same_size) {
  size_t limit = atomic_load(&bytes_limit), freed;
  while (!take_bytes(size, limit)) {
    chunk* oldest = take_oldest(&freed);
    if (!oldest) return false;
    if (same_size && freed == size && atomic_load(&record_bytes) <= limit) {
      *same_size = oldest;
      return true;
    }
    chunk_free(oldest, freed);
  }
  return true;
}

/* Nothing else may go: a full buffer of a single chunk begins anew in that. */
static chunk* start_over(buffer* of) {
  chunk* only = of->newest;
  if (!only) return NULL; /* it is being opened */
  count_overwritten(of, only);
  only->read = 0;
  atomic_store_explicit(&only->count, 0, memory_order_relaxed);
  return only;
}

/* ---- a thread needs memory; no lock held ---- */

enum { ROOM_TAKEN, ROOM_TO_MAKE /* registry lock held */ };

static int take_or_lock(size_t size) {
  size_t limit = atomic_load(&bytes_limit);
  if (take_bytes(size, limit)) return ROOM_TAKEN;
  if (pthread_mutex_trylock(&registry.lock) == 0) return ROOM_TO_MAKE;
  if (take_bytes(size, limit + limit / 4)) return ROOM_TAKEN;
  pthread_mutex_lock(&registry.lock);
  return ROOM_TO_MAKE;
}

static bool ring_take_bytes(size_t size) {
  if (take_or_lock(size) == ROOM_TAKEN) return true;
  bool taken = make_room(size, NULL);
  pthread_mutex_unlock(&registry.lock);
  return taken;
}

static chunk* ring_chunk(buffer* to, uint32_t capacity) {
  size_t size = chunk_bytes(to, capacity);
  if (take_or_lock(size) == ROOM_TAKEN) return chunk_new(size, capacity);
  chunk *same_size = NULL, *only = NULL;
  bool made = make_room(size, &same_size);
  if (!made) only = start_over(to);
  pthread_mutex_unlock(&registry.lock);
  if (!made) return only;
  if (!same_size) return chunk_new(size, capacity);
  *same_size = (chunk){.capacity = capacity};
  return same_size;
}

/* ---- the limit ---- */

/* Registry lock held. The tables' entries never go: what earlier recordings left there is no part of
 * this one's. In a ring names and signatures have a share each, so that neither the many shapes of a
 * dynamic model keep out a new name, nor both together the newest records. */
static void set_limit(size_t limit, bool ring) {
  size_t tables = table_bytes_first;
  table_set_share(&names, limit / 16);
  table_set_share(&signatures, limit / 4 - limit / 16);
  atomic_store(&ring_mode, ring);
  if (ring) {
    limit -= limit / 4;
  } else {
    limit = limit > SIZE_MAX - tables ? SIZE_MAX : limit + tables;
  }
  atomic_store(&bytes_limit, limit);
  for (thread_state* at = registry.threads; at && ring; at = at->next) {
    buffer_free_spare(&at->ops);
    buffer_free_spare(&at->invocations);
  }
}

#endif /* RELAX_TRACE_RING_H_ */
