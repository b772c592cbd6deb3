/* Tables of distinct names and signatures: every record refers to them by number.
 *
 * Entries are added under the table's lock, never change and never go away, so that a thread may keep
 * pointers to them. Threads look here only when their own caches miss.
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
  _Atomic uint32_t left_out; /* names: calls of this name are not recorded; see set_filter() */
  _Alignas(8) char bytes[];
} entry;

typedef struct {
  pthread_mutex_t lock;
  entry** buckets;
  entry** by_number; /* entry i + 1 is by_number[i] */
  uint32_t bucket_count;
  uint32_t count, capacity;
  size_t bytes; /* of all entries together, without their headers */
} intern_table;

/* What both tables take of the byte limit, and how much of it they took when recording began. */
static _Atomic size_t table_bytes, table_bytes_first;

static void* reserve_entry(size_t size) {
  void* memory = reserve(size);
  if (memory) atomic_fetch_add(&table_bytes, size);
  return memory;
}

static void give_back_entry(void* memory, size_t size) {
  give_back(memory, size);
  if (memory) atomic_fetch_sub(&table_bytes, size);
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
  entry** grown = (entry**)reserve_entry(capacity * sizeof(entry*));
  if (!grown) return false;
  if (table->count) memcpy(grown, table->by_number, table->count * sizeof(entry*));
  give_back_entry(table->by_number, table->capacity * sizeof(entry*));
  table->by_number = grown;
  table->capacity = capacity;
  return true;
}

static bool intern_grow_buckets(intern_table* table) {
  uint32_t count = table->bucket_count ? 2 * table->bucket_count : 512;
  entry** grown = (entry**)reserve_entry(count * sizeof(entry*));
  if (!grown) return table->bucket_count != 0; /* longer chains will do */
  for (uint32_t i = 0; i < table->count; ++i) {
    entry* moved = table->by_number[i];
    moved->next = grown[moved->hash & (count - 1)];
    grown[moved->hash & (count - 1)] = moved;
  }
  give_back_entry(table->buckets, table->bucket_count * sizeof(entry*));
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
  entry* added = (entry*)reserve_entry(sizeof(entry) + size);
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

/* The entry for these bytes, made if need be; NULL at the byte limit. */
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
