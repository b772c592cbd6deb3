/* The recorder's memory: one byte limit, and append-only buffers with a single writer each.
 *
 * A buffer is a list of chunks. The thread that owns it appends; whoever dumps, under the registry's
 * lock, reads what is published and frees the chunks that are full and read. A record is published
 * by storing its chunk's count with release order, so neither side ever waits for the other.
 * In ring mode a thread that needs a chunk acts as such a reader of all buffers: see ring.h.
 */
#ifndef RELAX_TRACE_BUFFERS_H_
#define RELAX_TRACE_BUFFERS_H_

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* ---- the byte limit: written by every thread that allocates ---- */

static _Atomic size_t record_bytes;           /* of records, and of threads' states */
static _Atomic size_t table_bytes;            /* of names and signatures */
static _Atomic size_t bytes_limit = SIZE_MAX; /* of both; in ring mode of the former alone */
static _Atomic bool ring_mode;                /* the newest records are kept, not the first */

/* Beyond a limit of SIZE_MAX goes what completes something already accepted: at most one closing
 * record for each opened invocation. */
static bool take_bytes(size_t size, size_t limit) {
  size_t used = atomic_fetch_add(&record_bytes, size) + size;
  if (!atomic_load(&ring_mode)) used += atomic_load(&table_bytes);
  if (used <= limit) return true;
  atomic_fetch_sub(&record_bytes, size);
  return false;
}

static void return_bytes(size_t size) { atomic_fetch_sub(&record_bytes, size); }

/* In ring mode: the same within the limit, for which the oldest records may go. */
static bool ring_take_bytes(size_t size);

/* Zeroed memory within the limit, or NULL. */
static void* reserve(size_t size) {
  bool taken =
      atomic_load(&ring_mode) ? ring_take_bytes(size) : take_bytes(size, atomic_load(&bytes_limit));
  if (!taken) return NULL;
  void* memory = calloc(1, size);
  if (!memory) return_bytes(size);
  return memory;
}

static void give_back(void* memory, size_t size) {
  if (!memory) return;
  free(memory);
  return_bytes(size);
}

/* ---- records, as they stand in a dump ---- */

enum { OP_ABORTED = 1, OP_SYNCHRONIZED = 2, OP_SIGNATURE_LOST = 4 };
enum {
  INVOCATION_FAILED = 1,
  INVOCATION_IMPLICIT = 2,
  INVOCATION_OPEN = 4,
  INVOCATION_SAMPLED = 8 /* the trace around it is */
};

/* One finished op call. Calls are written as they end, so inner ones come before outer ones. */
typedef struct {
  uint64_t start, end; /* ticks */
  uint32_t name;       /* number in the table of names */
  uint32_t signature;  /* number in the table of signatures, 0: no argument encoded */
  uint32_t invocation; /* number within the thread */
  uint16_t depth;      /* open calls and invocations below it on its thread */
  uint16_t flags;      /* OP_… */
} op_record;

/* The recordings that an invocation is for, a bit for the slot of each: see wishes.h. */
typedef struct {
  uint32_t taken;
  uint32_t first, last; /* of these: it begins, or ends, a cycle of their schedule */
} slots;

/* The span around an invocation, in the order of bytes in which ids are written; zeros: none. */
typedef struct {
  unsigned char trace_id[16], span_id[8];
} span_ids;

/* An invocation is written twice, when it opens and when it closes: the later record wins. */
typedef struct {
  uint64_t start, end; /* ticks; end 0 while it is open */
  uint64_t wall_ns;    /* CLOCK_REALTIME at its start */
  uint32_t number;     /* counts from 1 within the thread */
  uint32_t parent;     /* the invocation around it on this thread, or 0 */
  uint32_t function;   /* number in the table of names */
  uint32_t error;      /* number in the table of names, or 0 */
  uint32_t vm;         /* number that relax_trace.recorder.open gave out */
  uint32_t flags;      /* INVOCATION_… */
  slots slots;
  uint32_t tag; /* of its thread as it began, or 0: see tags.h */
  span_ids around;
} invocation_record;

_Static_assert(sizeof(op_record) == 32, "the dump format says 32 bytes an op");
_Static_assert(offsetof(op_record, end) == 8 && offsetof(invocation_record, end) == 8,
               "the age of a chunk is read without asking which of the two it holds");
_Static_assert(sizeof(invocation_record) == 88, "the dump format says 88 bytes an invocation");

/* ---- buffers ---- */

enum { CHUNK_FIRST = 32, CHUNK_LARGEST = 4096 };
enum { CHUNK_MAPPED = 1 << 14 /* bytes from which on it has pages of its own */ };
enum { RING_CHUNKS_LEAST = 64 /* as many would fill a ring */ };

typedef struct chunk {
  _Atomic(struct chunk*) next; /* writer stores, reader loads */
  _Atomic uint32_t count;      /* published records; writer stores, reader loads */
  uint32_t capacity;           /* fixed */
  uint32_t read;               /* reader only */
  uint32_t unused_;
  _Alignas(8) char records[];
} chunk;

typedef struct {
  size_t record_size; /* fixed */
  chunk* newest;      /* writer only */
  chunk* oldest;      /* reader only, once the first chunk is there; NULL: all were overwritten */
  _Atomic(chunk*)
      spare; /* a large chunk that was read: the reader leaves it, the writer takes it */
} buffer;

static size_t chunk_bytes(const buffer* from, uint32_t capacity) {
  return sizeof(chunk) + from->record_size * capacity;
}

/* Memory for a chunk, its bytes taken before; NULL, and they are returned, if there is none. Pages are
 * asked for at once: to touch them one by one costs 2 us a page, or 16 ns an op. What is far smaller
 * than some pages would take up a whole one, and of short-lived threads there may be thousands. */
static chunk* chunk_new(size_t size, uint32_t capacity) {
  int flags = MAP_PRIVATE | MAP_ANONYMOUS | (capacity == CHUNK_LARGEST ? MAP_POPULATE : 0);
  void* memory = size < CHUNK_MAPPED ? calloc(1, size)
                                     : mmap(NULL, size, PROT_READ | PROT_WRITE, flags, -1, 0);
  if (!memory || memory == MAP_FAILED) {
    return_bytes(size);
    return NULL;
  }
  chunk* made = (chunk*)memory;
  made->capacity = capacity;
  return made;
}

static void chunk_free(chunk* unused, size_t size) {
  if (size < CHUNK_MAPPED) {
    free(unused);
  } else {
    munmap(unused, size);
  }
  return_bytes(size);
}

/* In ring mode: a chunk within the limit; `to` may begin anew in the one that it has. */
static chunk* ring_chunk(buffer* to, uint32_t capacity);

static chunk* buffer_add_chunk(buffer* to, uint32_t capacity, bool within_limit) {
  if (atomic_load(&ring_mode)) return ring_chunk(to, capacity);
  if (capacity == CHUNK_LARGEST) {
    chunk* spare = atomic_exchange_explicit(&to->spare, NULL, memory_order_acquire);
    if (spare) return spare;
  }
  size_t size = chunk_bytes(to, capacity);
  if (!take_bytes(size, within_limit ? atomic_load(&bytes_limit) : SIZE_MAX)) return NULL;
  return chunk_new(size, capacity);
}

static void buffer_free_chunk(const buffer* from, chunk* unused) {
  if (unused) chunk_free(unused, chunk_bytes(from, unused->capacity));
}

/* Registry lock held. */
static void buffer_free_spare(buffer* from) {
  buffer_free_chunk(from, atomic_exchange_explicit(&from->spare, NULL, memory_order_acquire));
}

/* A spare chunk would be room that the newest records can't have, so that a ring keeps none. */
static void buffer_recycle_chunk(buffer* from, chunk* read) {
  if (read->capacity == CHUNK_LARGEST && !atomic_load(&ring_mode)) {
    *read = (chunk){.capacity = CHUNK_LARGEST};
    read = atomic_exchange_explicit(&from->spare, read, memory_order_acq_rel);
  }
  buffer_free_chunk(from, read);
}

static bool buffer_open(buffer* fresh, size_t record_size) {
  fresh->record_size = record_size;
  fresh->newest = fresh->oldest = buffer_add_chunk(fresh, CHUNK_FIRST, true);
  return fresh->newest != NULL;
}

/* The next chunk, twice as large as the last one; of a small ring none may be a large part. */
static uint32_t buffer_next_capacity(const buffer* of) {
  uint32_t last = of->newest->capacity;
  bool ring = atomic_load(&ring_mode);
  size_t most = ring ? atomic_load(&bytes_limit) / RING_CHUNKS_LEAST : SIZE_MAX;
  return last < CHUNK_LARGEST && chunk_bytes(of, 2 * last) <= most ? 2 * last : last;
}

/* A chunk with room for the next record, or NULL. */
static __attribute__((noinline)) chunk* buffer_grow(buffer* to, bool within_limit) {
  chunk* last = to->newest;
  chunk* added = buffer_add_chunk(to, buffer_next_capacity(to), within_limit);
  if (added && added != last) {
    atomic_store_explicit(&last->next, added, memory_order_release);
    to->newest = added;
  }
  return added;
}

/* Room for the next record, to be filled and then published; NULL at the byte limit. */
static inline void* buffer_next(buffer* to, bool within_limit) {
  chunk* last = to->newest;
  uint32_t count = atomic_load_explicit(&last->count, memory_order_relaxed);
  if (__builtin_expect(count == last->capacity, 0)) {
    last = buffer_grow(to, within_limit);
    if (!last) return NULL;
    count = 0;
  }
  return last->records + count * to->record_size;
}

static inline void buffer_publish(buffer* to) {
  chunk* last = to->newest;
  uint32_t count = atomic_load_explicit(&last->count, memory_order_relaxed);
  atomic_store_explicit(&last->count, count + 1, memory_order_release);
}

/* Reader: number of records not read yet, at most `most`. */
static size_t buffer_unread(const buffer* from, size_t most) {
  size_t unread = 0;
  for (const chunk* at = from->oldest; at && unread < most;
       at = atomic_load_explicit(&at->next, memory_order_acquire)) {
    unread += atomic_load_explicit(&at->count, memory_order_acquire) - at->read;
  }
  return unread < most ? unread : most;
}

/* Reader: mark `count` records as read, and free the chunks that the writer has left behind. */
static void buffer_advance(buffer* from, size_t count) {
  for (chunk* at; (at = from->oldest);) {
    chunk* next = atomic_load_explicit(&at->next, memory_order_acquire);
    size_t unread = atomic_load_explicit(&at->count, memory_order_acquire) - at->read;
    size_t taken = count < unread ? count : unread;
    at->read += (uint32_t)taken;
    count -= taken;
    if (!next || taken < unread) return;
    from->oldest = next;
    buffer_recycle_chunk(from, at);
  }
}

static void buffer_close(buffer* from) {
  for (chunk* at = from->oldest; at;) {
    chunk* next = atomic_load_explicit(&at->next, memory_order_acquire);
    buffer_free_chunk(from, at);
    at = next;
  }
  buffer_free_spare(from);
  from->newest = from->oldest = NULL;
}

#endif /* RELAX_TRACE_BUFFERS_H_ */
