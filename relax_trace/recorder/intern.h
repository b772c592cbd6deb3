/* Tables of distinct names and signatures: every record refers to them by number.
 *
 * Entries are added under the table's lock, never change and never go away, so that a thread may keep
 * pointers to them. Threads look here only when their own caches miss. In ring mode each table has a
 * share of the byte limit: what never goes must not take the room of the newest records.
 */
#ifndef RELAX_TRACE_INTERN_H_
#define RELAX_TRACE_INTERN_H_

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "buffers.h"

typedef struct entry {
  struct entry* next; /* in its bucket; the table's lock */
  uint64_t hash;
  uint32_t number;           /* counts from 1 */
  uint32_t flags;            /* names: NAME_… ; part of what makes two names one */
  uint32_t size;             /* bytes */
  _Atomic uint32_t filtered; /* names: what the filter makes of it, FILTER_… in names.h */
  _Alignas(8) char bytes[];
} entry;

typedef struct {
  pthread_mutex_t lock;
  entry** buckets;
  entry** by_number; /* entry i + 1 is by_number[i] */
  uint32_t bucket_count;
  uint32_t count, capacity;
  size_t bytes; /* of all entries together, without their headers */
  size_t used;  /* bytes that the table takes, and ... */
  size_t first; /* ... took when recording began */
  size_t share; /* ring mode: how many more it may take */
} intern_table;

/* The table's lock held: zeroed memory within the limit, or NULL. */
static void* table_reserve(intern_table* table, size_t size) {
  size_t used = atomic_fetch_add(&table_bytes, size) + size;
  bool fits = atomic_load(&ring_mode)
                  ? table->used + size - table->first <= table->share
                  : used + atomic_load(&record_bytes) <= atomic_load(&bytes_limit);
  void* memory = fits ? calloc(1, size) : NULL;
  if (memory) {
    table->used += size;
  } else {
    atomic_fetch_sub(&table_bytes, size);
  }
  return memory;
}

static void table_give_back(intern_table* table, void* memory, size_t size) {
  if (!memory) return;
  free(memory);
  table->used -= size;
  atomic_fetch_sub(&table_bytes, size);
}

/* What both took when recording began; registry lock. */
static size_t table_bytes_first;

/* A recording begins; returns how many bytes the table takes by now. */
static size_t table_begin(intern_table* table) {
  pthread_mutex_lock(&table->lock);
  size_t first = table->first = table->used;
  pthread_mutex_unlock(&table->lock);
  return first;
}

static void table_set_share(intern_table* table, size_t share) {
  pthread_mutex_lock(&table->lock);
  table->share = share;
  pthread_mutex_unlock(&table->lock);
}

static intern_table names = {.lock = PTHREAD_MUTEX_INITIALIZER};
static intern_table signatures = {.lock = PTHREAD_MUTEX_INITIALIZER};

static inline uint64_t hash_step(uint64_t hash, uint64_t word) {
  hash = (hash ^ word) * 0xff51afd7ed558ccdull;
  return hash ^ (hash >> 32);
}

static uint64_t hash_bytes(const char* bytes, size_t size) {
  uint64_t hash = 0x9e3779b97f4a7c15ull ^ size;
  for (; size >= 8; bytes += 8, size -= 8) {
    uint64_t word;
    memcpy(&word, bytes, 8);
    hash = hash_step(hash, word);
  }
  uint64_t tail = 0;
  memcpy(&tail, bytes, size);
  return hash_step(hash, tail);
}

static bool intern_grow_numbers(intern_table* table) {
  uint32_t capacity = table->capacity ? 2 * table->capacity : 256;
  entry** grown = (entry**)table_reserve(table, capacity * sizeof(entry*));
  if (!grown) return false;
  if (table->count) memcpy(grown, table->by_number, table->count * sizeof(entry*));
  table_give_back(table, table->by_number, table->capacity * sizeof(entry*));
  table->by_number = grown;
  table->capacity = capacity;
  return true;
}

static bool intern_grow_buckets(intern_table* table) {
  uint32_t count = table->bucket_count ? 2 * table->bucket_count : 512;
  entry** grown = (entry**)table_reserve(table, count * sizeof(entry*));
  if (!grown) return table->bucket_count != 0; /* longer chains will do */
  for (uint32_t i = 0; i < table->count; ++i) {
    entry* moved = table->by_number[i];
    moved->next = grown[moved->hash & (count - 1)];
    grown[moved->hash & (count - 1)] = moved;
  }
  table_give_back(table, table->buckets, table->bucket_count * sizeof(entry*));
  table->buckets = grown;
  table->bucket_count = count;
  return true;
}

static entry* intern_find(const intern_table* table, const char* bytes, size_t size, uint32_t flags,
                          uint64_t hash) {
  if (!table->bucket_count) return NULL;
  entry* at = table->buckets[hash & (table->bucket_count - 1)];
  while (at && !(at->hash == hash && at->size == size && at->flags == flags &&
                 memcmp(at->bytes, bytes, size) == 0)) {
    at = at->next;
  }
  return at;
}

static entry* intern_add(intern_table* table, const char* bytes, size_t size, uint32_t flags,
                         uint64_t hash) {
  if (table->count == table->capacity && !intern_grow_numbers(table)) return NULL;
  if (table->count >= table->bucket_count && !intern_grow_buckets(table)) return NULL;
  entry* added = (entry*)table_reserve(table, sizeof(entry) + size);
  if (!added) return NULL;
  memcpy(added->bytes, bytes, size);
  added->hash = hash;
  added->size = (uint32_t)size;
  added->flags = flags;
  added->next = table->buckets[hash & (table->bucket_count - 1)];
  table->buckets[hash & (table->bucket_count - 1)] = added;
  table->by_number[table->count] = added;
  added->number = ++table->count;
  table->bytes += size;
  return added;
}

/* The entry for these bytes, made if need be; NULL at the byte limit, or the table's share of it. */
static const entry* intern_hashed(intern_table* table, const char* bytes, size_t size,
                                  uint32_t flags, uint64_t hash) {
  if (size > UINT32_MAX) return NULL;
  pthread_mutex_lock(&table->lock);
  entry* found = intern_find(table, bytes, size, flags, hash);
  if (!found) found = intern_add(table, bytes, size, flags, hash);
  pthread_mutex_unlock(&table->lock);
  return found;
}

static const entry* intern(intern_table* table, const char* bytes, size_t size, uint32_t flags) {
  return intern_hashed(table, bytes, size, flags, hash_bytes(bytes, size));
}

#endif /* RELAX_TRACE_INTERN_H_ */
