/* A dump: what is recorded and was not read yet, as bytes that relax_trace/recorder/decode.py reads.
 *
 * Little-endian, every section padded to 8 bytes:
 *   header   dump_header
 *   names    flags u32 × n, byte lengths u32 × n, the bytes
 *   words    word counts u32 × n, the signatures' 64-bit words
 *   threads  for each thread: dump_thread, its invocation_records, its op_records
 */
#ifndef RELAX_TRACE_DUMP_H_
#define RELAX_TRACE_DUMP_H_

#include "clock.h"
#include "threads.h"

enum { DUMP_VERSION = 3 };

typedef struct {
  char magic[8]; /* "RLXTRACE" */
  uint32_t version;
  uint32_t flags; /* 1: more records wait; 2: ticks are the time-stamp counter's */
  uint64_t size;  /* of the whole dump, bytes */
  uint64_t pid;
  clock_reading first, now; /* when the recorder began, and at this dump */
  uint64_t dropped_ops, dropped_invocations, lost_signatures, overwritten_ops; /* since begin() */
  uint32_t name_first, name_count; /* numbers of the names and signatures that follow */
  uint32_t signature_first, signature_count;
  uint64_t name_bytes, signature_words;
  uint64_t thread_count;
} dump_header;

typedef struct {
  uint64_t id;
  char name[THREAD_NAME_SIZE];
  uint64_t invocation_count, op_count;
} dump_thread;

_Static_assert(sizeof(dump_header) == 152, "the dump format says so");
_Static_assert(sizeof(dump_thread) == 40, "the dump format says so");

typedef struct {
  char* bytes;
  size_t size, capacity;
  bool failed; /* out of memory */
} dump_buffer;

/* What held when recording began; registry lock. */
static clock_reading clock_first;
static uint64_t dropped_ops_first, dropped_invocations_first, lost_signatures_first;
static uint64_t overwritten_ops_first;

static void put(dump_buffer* to, const void* bytes, size_t size) {
  size_t padded = (size + 7) & ~(size_t)7;
  if (to->failed) return;
  if (to->size + padded > to->capacity) {
    size_t capacity = 2 * (to->size + padded);
    char* grown = (char*)realloc(to->bytes, capacity);
    if (!grown) {
      to->failed = true;
      return;
    }
    to->bytes = grown;
    to->capacity = capacity;
  }
  if (size) memcpy(to->bytes + to->size, bytes, size);
  memset(to->bytes + to->size + size, 0, padded - size);
  to->size += padded;
}

/* One column of a table's entries from number `first` on: their flags, or their sizes in units. */
static void put_column(dump_buffer* to, const intern_table* table, uint32_t first, bool flags,
                       uint32_t unit) {
  uint32_t count = table->count - first;
  uint32_t* column = (uint32_t*)malloc((count + 1) * sizeof(uint32_t));
  if (!column) {
    to->failed = true;
    return;
  }
  for (uint32_t i = 0; i < count; ++i) {
    const entry* at = table->by_number[first + i];
    column[i] = flags ? at->flags : at->size / unit;
  }
  put(to, column, count * sizeof(uint32_t));
  free(column);
}

/* The bytes of a table's entries, laid end to end; returns their number. */
static uint64_t put_entries(dump_buffer* to, const intern_table* table, uint32_t first) {
  uint64_t size = 0;
  for (uint32_t i = first; i < table->count; ++i) size += table->by_number[i]->size;
  char* bytes = (char*)malloc(size + 1);
  if (!bytes) {
    to->failed = true;
    return 0;
  }
  char* at = bytes;
  for (uint32_t i = first; i < table->count; ++i) {
    memcpy(at, table->by_number[i]->bytes, table->by_number[i]->size);
    at += table->by_number[i]->size;
  }
  put(to, bytes, size);
  free(bytes);
  return size;
}

static void put_names(dump_buffer* to, dump_header* header, uint32_t known) {
  pthread_mutex_lock(&names.lock);
  uint32_t first = known < names.count ? known : names.count;
  header->name_first = first + 1;
  header->name_count = names.count - first;
  put_column(to, &names, first, true, 1);
  put_column(to, &names, first, false, 1);
  header->name_bytes = put_entries(to, &names, first);
  pthread_mutex_unlock(&names.lock);
}

static void put_signatures(dump_buffer* to, dump_header* header, uint32_t known) {
  pthread_mutex_lock(&signatures.lock);
  uint32_t first = known < signatures.count ? known : signatures.count;
  header->signature_first = first + 1;
  header->signature_count = signatures.count - first;
  put_column(to, &signatures, first, false, sizeof(uint64_t));
  header->signature_words = put_entries(to, &signatures, first) / sizeof(uint64_t);
  pthread_mutex_unlock(&signatures.lock);
}

static void put_records(dump_buffer* to, const buffer* from, size_t count) {
  for (const chunk* at = from->oldest; at && count;
       at = atomic_load_explicit(&at->next, memory_order_acquire)) {
    size_t unread = atomic_load_explicit(&at->count, memory_order_acquire) - at->read;
    size_t taken = unread < count ? unread : count;
    put(to, at->records + at->read * from->record_size, taken * from->record_size);
    count -= taken;
  }
}

/* Settle what the dump takes of a thread: ops up to `room` bytes. An op's invocation is opened before
 * it, and closed after it: whoever drains counts the ops first, so that each has its invocation. In a
 * copy, where no other dump follows, an invocation that has ended has to have all of its ops. */
static void count_records(thread_state* thread, size_t room, bool keep) {
  if (keep) thread->dumped_invocations = buffer_unread(&thread->invocations, SIZE_MAX);
  thread->dumped_ops = buffer_unread(&thread->ops, room / sizeof(op_record));
  if (!keep) thread->dumped_invocations = buffer_unread(&thread->invocations, SIZE_MAX);
}

/* Copy what was counted, if anything. */
static void put_thread(dump_buffer* to, dump_header* header, const thread_state* thread) {
  dump_thread head = {.id = thread->id,
                      .invocation_count = thread->dumped_invocations,
                      .op_count = thread->dumped_ops};
  if (!head.invocation_count && !head.op_count) return;
  memcpy(head.name, thread->name, sizeof head.name);
  put(to, &head, sizeof head);
  put_records(to, &thread->invocations, head.invocation_count);
  put_records(to, &thread->ops, head.op_count);
  ++header->thread_count;
}

/* The dump was handed over: let the buffers go on, with the counts that it holds. */
static void commit(void) {
  for (thread_state *at = registry.threads, *next; at; at = next) {
    next = at->next;
    buffer_advance(&at->invocations, at->dumped_invocations);
    buffer_advance(&at->ops, at->dumped_ops);
    if (atomic_load(&at->finished) && thread_is_read(at)) thread_retire(at);
  }
}

/* Sum of one counter over all threads, those that have ended included. */
#define SUM_OF(counter, finished)                                          \
  ({                                                                       \
    uint64_t sum_ = (finished);                                            \
    for (const thread_state* at_ = registry.threads; at_; at_ = at_->next) \
      sum_ += atomic_load_explicit(&at_->counter, memory_order_relaxed);   \
    sum_;                                                                  \
  })

static uint64_t all_dropped_ops(void) {
  return SUM_OF(dropped_ops, registry.finished_dropped_ops + atomic_load(&registry.homeless_ops));
}

static uint64_t all_dropped_invocations(void) {
  return SUM_OF(dropped_invocations, registry.finished_dropped_invocations +
                                         atomic_load(&registry.homeless_invocations));
}

static uint64_t all_lost_signatures(void) {
  return SUM_OF(lost_signatures, registry.finished_lost_signatures);
}

/* Registry lock held: a recording begins, with what was lost before it forgotten. */
static void reset_firsts(void) {
  clock_first = clock_read();
  dropped_ops_first = all_dropped_ops();
  dropped_invocations_first = all_dropped_invocations();
  lost_signatures_first = all_lost_signatures();
  overwritten_ops_first = registry.overwritten_ops;
}

static void put_losses(dump_header* header) {
  header->dropped_ops = all_dropped_ops() - dropped_ops_first;
  header->dropped_invocations = all_dropped_invocations() - dropped_invocations_first;
  header->lost_signatures = all_lost_signatures() - lost_signatures_first;
  header->overwritten_ops = registry.overwritten_ops - overwritten_ops_first;
}

/* Registry lock held. The tables are copied after the records, so that they hold all that these refer
 * to; in the dump they stand before them. */
static bool fill_dump(dump_buffer* to, dump_header* header, uint32_t known_names,
                      uint32_t known_signatures, size_t room, bool keep) {
  dump_buffer threads = {0};
  bool more = false;
  for (thread_state* at = registry.threads; at; at = at->next) {
    count_records(at, room, keep);
    put_thread(&threads, header, at);
    room -= at->dumped_ops * sizeof(op_record);
    more |= buffer_unread(&at->ops, at->dumped_ops + 1) > at->dumped_ops;
  }
  put(to, header, sizeof *header);
  put_names(to, header, known_names);
  put_signatures(to, header, known_signatures);
  put_losses(header);
  put(to, threads.bytes, threads.size);
  free(threads.bytes);
  if (to->failed || threads.failed) return false;
  header->flags |= more ? 1u : 0u;
  header->size = to->size;
  memcpy(to->bytes, header, sizeof *header);
  return true;
}

/* Up to `room` bytes of op records, and what belongs to them, as a Bytes object. They are read by that,
 * unless `keep`: then the next dump has them again. On an error nothing is lost. */
static int dump(uint32_t known_names, uint32_t known_signatures, size_t room, bool keep,
                TVMFFIAny* result) {
  dump_buffer to = {0};
  dump_header header = {.version = DUMP_VERSION, .pid = (uint64_t)getpid(), .now = clock_read()};
  memcpy(header.magic, "RLXTRACE", sizeof header.magic);
  header.flags = clock_uses_counter ? 2 : 0;
  pthread_mutex_lock(&registry.lock);
  header.first = clock_first;
  int code = -1;
  if (fill_dump(&to, &header, known_names, known_signatures, room, keep)) {
    TVMFFIByteArray bytes = {to.bytes, to.size};
    code = TVMFFIBytesFromByteArray(&bytes, result);
    if (!code && !keep) commit();
  } else {
    fail("MemoryError", "relax_trace: out of memory while dumping; the records are kept");
  }
  pthread_mutex_unlock(&registry.lock);
  free(to.bytes);
  return code;
}

#endif /* RELAX_TRACE_DUMP_H_ */
