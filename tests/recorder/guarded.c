/* The recorder with its memory under guard: each piece comes from malloc, where the sanitizers watch
 * its bounds and its end, and asking for one can be made to fail. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "guarded.h"

#include <malloc.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "random.h"

static _Atomic uint32_t failing_odds;
static _Atomic bool failed;
static _Atomic size_t allocated;
static __thread uint64_t failing_seed;
static __thread long pretended_id;

static bool fails(void) {
  uint32_t odds = atomic_load(&failing_odds);
  if (!odds || !one_in(&failing_seed, odds)) return false;
  atomic_store(&failed, true);
  return true;
}

static void* counted(void* memory) {
  atomic_fetch_add(&allocated, memory ? malloc_usable_size(memory) : 0);
  return memory;
}

static void guarded_free(void* memory) {
  atomic_fetch_sub(&allocated, memory ? malloc_usable_size(memory) : 0);
  free(memory);
}

static void* guarded_malloc(size_t size) { return fails() ? NULL : counted(malloc(size)); }

static void* guarded_calloc(size_t count, size_t size) {
  return fails() ? NULL : counted(calloc(count, size));
}

static void* guarded_realloc(void* memory, size_t size) {
  size_t before = memory ? malloc_usable_size(memory) : 0;
  void* grown = fails() ? NULL : realloc(memory, size);
  if (!grown) return NULL;
  atomic_fetch_sub(&allocated, before);
  return counted(grown);
}

static void* guarded_mmap(void* at, size_t size, int protection, int flags, int file,
                          off_t offset) {
  (void)at, (void)protection, (void)flags, (void)file, (void)offset;
  void* memory = guarded_calloc(1, size);
  return memory ? memory : MAP_FAILED;
}

static int guarded_munmap(void* memory, size_t size) {
  (void)size;
  guarded_free(memory);
  return 0;
}

static long guarded_syscall(long number) { return pretended_id ? pretended_id : syscall(number); }

#define malloc guarded_malloc
#define calloc guarded_calloc
#define realloc guarded_realloc
#define free guarded_free
#define mmap guarded_mmap
#define munmap guarded_munmap
#define syscall guarded_syscall
#include "recorder.c" /* NOLINT(bugprone-suspicious-include): that is the point */

void fail_allocations(uint32_t odds) { atomic_store(&failing_odds, odds); }

bool allocations_failed(void) { return atomic_load(&failed); }

void pretend_thread_id(long id) { pretended_id = id; }

size_t recorder_bytes(void) { return atomic_load(&record_bytes) + atomic_load(&table_bytes); }

size_t allocated_bytes(void) { return atomic_load(&allocated); }

static int count_threads(bool finished_only) {
  int count = 0;
  pthread_mutex_lock(&registry.lock);
  for (const thread_state* at = registry.threads; at; at = at->next) {
    count += at->finished || !finished_only;
  }
  pthread_mutex_unlock(&registry.lock);
  return count;
}

int recorder_threads(void) { return count_threads(false); }

int recorder_finished(void) { return count_threads(true); }

void hold_registry(bool hold) {
  (hold ? pthread_mutex_lock : pthread_mutex_unlock)(&registry.lock);
}
