/* What every scenario is made of: VMs with the recorder attached, threads, dumps, and what was done. */
#ifndef DRIVER_H_
#define DRIVER_H_

#include <pthread.h>
#include <stdio.h>

#include "fake_vm.h"
#include "guarded.h"
#include "random.h"

enum { NO_LIMIT = 1 << 30 };

/* Abort with a line that says where, unless the condition holds. */
#define REQUIRE(condition) require(condition, #condition, __FILE__, __LINE__)
void require(bool holds, const char* condition, const char* file, int line);

/* ---- a VM with the recorder attached ---- */

typedef struct {
  TVMFFIObjectHandle module;
  int64_t number;
} attached_vm;

attached_vm attach_vm(void);
void release_vm(attached_vm* vm);

enum { WISH_HELD = 1, WISH_SYNCHRONIZED = 2, WISH_FAILURES = 4, WISH_CYCLES = 8 }; /* wishes.h */

/* The arguments of want(), see wishes.h; zero asks for nothing special. */
typedef struct {
  int flags, wait, warmup, active, repeat;
  int64_t slow_ns;
  const char* functions;
} wish_of;

void make_wish(attached_vm* vm, int slot, wish_of wish);
void drop_wish(attached_vm* vm, int slot);
void want(attached_vm* vm, bool wanted, bool synchronized); /* all of it, held, in slot 0 */
int64_t state(const attached_vm* vm); /* 1: hook in the slot, 2: slot taken over, 4: running */
void set_instrument(const attached_vm* vm, TVMFFIAny instrument);

/* A function of the VM, by its own module (`bare`) or through the recorder's wrapper, to be released;
 * NULL where there was no memory. */
TVMFFIObjectHandle function_of(const attached_vm* vm, const char* name, bool bare);

/* Call a function and release its result. What it throws is dropped. */
int invoke_with(TVMFFIObjectHandle function, TVMFFIAny* arguments, int count);

/* The same for a name, taken and released at once. A wrapped call is counted. */
int invoke_named(const attached_vm* vm, const char* name, bool bare);
void count_wrapped(void); /* one made otherwise */

/* ---- the recorder's other functions ---- */

void set_limit(int64_t bytes, bool ring);
void begin(void);

/* Write what the recorder has to the output; whether more is left. Threads may do it at a time. */
bool dump_some(int64_t room);
void dump_all(void);

/* Write a copy of what the recorder has, with all its names and signatures, beside the output. */
void take_snapshot(void);

/* ---- the test's output ---- */

void open_output(const char* path); /* where dumps go from now on, each behind its length, u64 */
const char* output_path(void);
void tell_number(const char* key, uint64_t value); /* "key value" on the standard output */

/* ---- threads ---- */

/* Run `body(i)` on `count` threads, each with its own number, and wait for all of them. */
void on_threads(int count, void (*body)(int number));

#endif /* DRIVER_H_ */
