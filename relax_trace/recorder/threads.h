/* What the recorder knows of each thread: its open calls, its records, its caches; and of each VM.
 *
 * A thread_state is written by its own thread alone. Others read, under the registry's lock, the
 * published records and the counters. A vm_state is never freed: a hook can then never dangle.
 */
#ifndef RELAX_TRACE_THREADS_H_
#define RELAX_TRACE_THREADS_H_

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "buffers.h"
#include "clock.h"
#include "encode.h"
#include "intern.h"

/* Android's and musl's loaders refuse initial-exec storage in a library opened at run time: build
 * with -DRELAX_TRACE_TLS_MODEL='"global-dynamic"' there, at the price of a call an op. */
#ifndef RELAX_TRACE_TLS_MODEL
#define RELAX_TRACE_TLS_MODEL "initial-exec"
#endif

enum { DEPTH_MOST = 128, NAME_CACHE = 512, SIGNATURE_CACHE = 1024, THREAD_NAME_SIZE = 16 };

/* A VM that is, or was, recorded. */
typedef struct vm_state {
  uint32_t number;         /* fixed */
  TVMFFIObjectHandle hook; /* fixed: the instrument, an ffi.Function whose self is this struct */
  pthread_mutex_t edge;    /* held while an outermost invocation starts or ends, and by want() */
  int active;              /* wrapped invocations inside; edge */
  uintptr_t runner;        /* address of the `this_thread` of who is inside them; edge */
  /* Of the invocation that runs, or NULL; who runs it. Of one that never ended, its thread. */
  _Atomic(struct strand*) strand;
  uint32_t left_out;   /* slots that leave out what begins inside the innermost; edge */
  bool arming;         /* the outermost invocation inside needs the hook; edge */
  bool armed;          /* our hook is in the VM's slot; edge */
  bool taken;          /* somebody replaced our hook while it was armed; edge */
  struct wish* wishes; /* of the recordings that want it; edge */
  /* What the hook knows of the wishes; want() and unwant() store, the hook loads. */
  _Atomic bool wanted;          /* there are any */
  _Atomic bool synchronized;    /* synchronise devices around each op */
  _Atomic uint32_t held;        /* slots of the recordings that keep the hook in the slot */
  _Atomic uint64_t bare_thread; /* the last thread seen to run it without our wrapper, or 0 */
  /* The outermost running op that the hook was told of, and made no frame for; hook writes. */
  const TVMFFIAny* _Atomic unseen; /* its argument buffer, or NULL */
  _Atomic uintptr_t unseen_stack;  /* address of the C frame that began it */
  _Atomic uintptr_t unseen_thread; /* address of its thread's `this_thread` */
} vm_state;

typedef struct {
  const char* key; /* the VM's pointer to the name: stable while its executable lives */
  const entry* name;
  const entry* signature; /* of the last call under this name */
  const entry* complete;  /* the same, with its result */
} cached_name;

enum { FRAME_OP, FRAME_INVOCATION, FRAME_BARE };

/* An open call, or an open invocation. */
typedef struct {
  uint64_t start;             /* ticks */
  const TVMFFIAny* arguments; /* what tells this call from others: its argument buffer */
  uintptr_t stack;            /* address of the C frame that opened it */
  vm_state* vm;
  const entry* name;
  cached_name* cached;     /* where its signatures are remembered; may be reused by now */
  const entry* signature;  /* NULL: no argument encoded */
  uint32_t invocation;     /* 0: the byte limit left no room for its invocation */
  slots slots;             /* invocations: the recordings that it is for */
  uint32_t parent;         /* invocations: the one around it, or 0 */
  uint32_t tag;            /* invocations: see tags.h */
  uint16_t kind;           /* FRAME_… */
  uint16_t flags;          /* OP_… so far */
  const char* first_check; /* FRAME_BARE: what the first check of its parameters said, or NULL */
  bool checking;           /* FRAME_BARE: nothing but checks of its parameters so far */
  bool element;            /* FRAME_BARE: the last of them took an element out of a tuple */
} frame;

/* Open calls, one inside the other: see strands.h. */
typedef struct strand {
  struct strand* next;         /* of its thread */
  struct thread_state* thread; /* fixed */
  bool open;                   /* an invocation has it; always true of a thread's base */
  int depth;                   /* open frames */
  int current;                 /* index of the innermost FRAME_INVOCATION or FRAME_BARE, or -1 */
  frame frames[DEPTH_MOST];
} strand;

typedef struct thread_state {
  struct thread_state *next, *previous; /* registry lock */
  uint64_t id;                          /* the operating system's */
  char name[THREAD_NAME_SIZE];
  _Atomic bool finished; /* the thread has ended: its state goes with its last record */
  uint64_t age;          /* once it has: that of its oldest chunk, or less; registry lock */
  size_t dumped_ops, dumped_invocations; /* how many the dump being made holds; registry lock */
  _Atomic uint64_t dropped_ops, dropped_invocations, lost_signatures;
  buffer ops, invocations;
  uint32_t last_invocation;
  strand* strands; /* all but the base */
  size_t size;     /* bytes: once the thread has ended, what follows is cut off */
  strand* strand;  /* where calls stand that no invocation is known of */
  strand base;
  cached_name name_cache[NAME_CACHE];
  const entry* signature_cache[SIGNATURE_CACHE];
  uint64_t words[WORDS_MOST + 1]; /* the signature being encoded */
} thread_state;

static struct {
  pthread_mutex_t lock;
  thread_state *threads, *last; /* those that run, then those that have ended, the oldest last */
  vm_state** vms;               /* number i + 1 is vms[i] */
  uint32_t vm_count, vm_capacity;
  _Atomic uint64_t homeless_ops; /* dropped since there was no room for their thread's state */
  _Atomic uint64_t homeless_invocations;
  uint32_t finished_last_invocation; /* the largest number that an ended thread gave out */
  uint64_t finished_dropped_ops, finished_dropped_invocations, finished_lost_signatures;
  uint64_t overwritten_ops; /* ring mode: those that newer ones took the place of, unread */
} registry = {.lock = PTHREAD_MUTEX_INITIALIZER};

static pthread_key_t thread_key; /* its destructor tells that a thread ends */
static __thread thread_state* this_thread __attribute__((tls_model(RELAX_TRACE_TLS_MODEL)));

static inline void count_one(_Atomic uint64_t* counter) { /* single writer */
  uint64_t count = atomic_load_explicit(counter, memory_order_relaxed);
  atomic_store_explicit(counter, count + 1, memory_order_relaxed);
}

/* No VM may lead to it any more: an invocation may have been left for good with its thread. */
static void strand_forget(strand* gone) {
  for (uint32_t i = 0; i < registry.vm_count; ++i) {
    vm_state* vm = registry.vms[i];
    strand* own = gone;
    atomic_compare_exchange_strong(&vm->strand, &own, NULL);
  }
}

static void free_strands(thread_state* thread) {
  for (strand *at = thread->strands, *next; at; at = next) {
    next = at->next;
    give_back(at, sizeof *at);
  }
  thread->strands = NULL;
}

static void thread_free(thread_state* thread) {
  buffer_close(&thread->ops);
  buffer_close(&thread->invocations);
  free_strands(thread);
  give_back(thread, thread->size);
}

/* ---- the list of threads; registry lock held ---- */

/* Behind another, or first where that is NULL. */
static void thread_link(thread_state* thread, thread_state* behind) {
  thread->previous = behind;
  thread->next = behind ? behind->next : registry.threads;
  *(behind ? &behind->next : &registry.threads) = thread;
  *(thread->next ? &thread->next->previous : &registry.last) = thread;
}

static void thread_unlink(thread_state* thread) {
  *(thread->previous ? &thread->previous->next : &registry.threads) = thread->next;
  *(thread->next ? &thread->next->previous : &registry.last) = thread->previous;
}

/* Among the ended ones. Threads mostly end in the order of their last records: few are passed by. */
static void thread_link_ended(thread_state* thread) {
  thread_state *behind = NULL, *at = registry.threads;
  for (; at && (!at->finished || at->age > thread->age); at = at->next) behind = at;
  thread_link(thread, behind);
}

/* ---- what becomes of a thread; registry lock held ---- */

/* Forget a thread that has ended, but for its counts. */
static void thread_retire(thread_state* thread) {
  thread_unlink(thread);
  registry.finished_dropped_ops += thread->dropped_ops;
  registry.finished_dropped_invocations += thread->dropped_invocations;
  registry.finished_lost_signatures += thread->lost_signatures;
  thread_free(thread);
}

/* Not inlined: compilers take it for a mistake where only the first part of a struct is allocated. */
static __attribute__((noinline)) void* cut_off(void* memory, size_t size) {
  return realloc(memory, size);
}

/* Of an ended thread, off the list, keep only what is still to be read. */
static thread_state* thread_shrink(thread_state* thread) {
  size_t size = offsetof(thread_state, strand), before = thread->size;
  thread_state* kept = (thread_state*)cut_off(thread, size);
  if (!kept) return thread;
  kept->size = size;
  return_bytes(before - size);
  return kept;
}

/* When the last record of a thread's oldest chunk was written, of the chunks that may be overwritten;
 * UINT64_MAX where there is none. In ring.h. */
static uint64_t thread_age(const thread_state* thread);

/* Forget what was published and not read. */
static void thread_discard(thread_state* thread) {
  buffer_advance(&thread->invocations, buffer_unread(&thread->invocations, SIZE_MAX));
  buffer_advance(&thread->ops, buffer_unread(&thread->ops, SIZE_MAX));
}

static bool thread_is_read(const thread_state* thread) {
  return !buffer_unread(&thread->ops, 1) && !buffer_unread(&thread->invocations, 1);
}

static __attribute__((noinline)) void abandon(strand* in, int depth, uint64_t now);

static void thread_end(void* state) {
  thread_state* thread = (thread_state*)state;
  abandon(&thread->base, 0,
          clock_ticks()); /* what a throw left open, or a greenlet that never ended */
  for (strand* at = thread->strands; at; at = at->next) abandon(at, 0, clock_ticks());
  this_thread = NULL;
  pthread_mutex_lock(&registry.lock);
  strand_forget(&thread->base);
  for (strand* at = thread->strands; at; at = at->next) strand_forget(at);
  free_strands(thread);
  for (uint32_t i = 0; i < registry.vm_count; ++i) {
    vm_state* vm = registry.vms[i];
    uint64_t own = thread->id; /* it can't be inside a VM any more */
    atomic_compare_exchange_strong(&vm->bare_thread, &own, 0);
  }
  if (thread->last_invocation > registry.finished_last_invocation) {
    registry.finished_last_invocation = thread->last_invocation;
  }
  atomic_store(&thread->finished, true);
  thread_unlink(thread);
  thread = thread_shrink(thread);
  thread->age = thread_age(thread);
  thread_link_ended(thread);
  if (thread_is_read(thread)) thread_retire(thread);
  pthread_mutex_unlock(&registry.lock);
}

static uint64_t thread_system_id(void) { return (uint64_t)syscall(SYS_gettid); }

static __attribute__((noinline)) thread_state* thread_begin(void) {
  thread_state* thread = (thread_state*)reserve(sizeof *thread);
  if (!thread) return NULL;
  thread->size = sizeof *thread;
  thread->id = thread_system_id();
  thread->strand = &thread->base;
  thread->base.thread = thread;
  thread->base.open = true;
  thread->base.current = -1;
  pthread_getname_np(pthread_self(), thread->name, sizeof thread->name);
  if (!buffer_open(&thread->ops, sizeof(op_record)) ||
      !buffer_open(&thread->invocations, sizeof(invocation_record)) ||
      pthread_setspecific(thread_key, thread)) {
    thread_free(thread);
    return NULL;
  }
  pthread_mutex_lock(&registry.lock);
  /* its id may have been an ended thread's: under one id no number is given out twice */
  thread->last_invocation = registry.finished_last_invocation;
  thread_link(thread, NULL);
  pthread_mutex_unlock(&registry.lock);
  return this_thread = thread;
}

static inline thread_state* current_thread(void) {
  thread_state* thread = this_thread;
  if (UNLIKELY(!thread)) thread = thread_begin();
  return thread;
}

#endif /* RELAX_TRACE_THREADS_H_ */
