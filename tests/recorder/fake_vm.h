/* A stand-in for a Relax VM: generated op calls, nested and throwing, and the instrument's slot.
 *
 * Like the real one it reads its slot more than once during an op, and it aborts if the slot changed
 * meanwhile, where the real one would crash. Like the real one it is for one thread at a time.
 *
 * Its functions are made from their names: letters, a number of op calls, _ and a seed. The letters:
 *
 *   c  checks its parameters first, as Relax functions do
 *   d  has a shape of its own in every op call
 *   n  nests each op in the one before it, for as long as there are ops
 *   v  calls `visit` inside some ops
 *   t  throws an error in its last op
 *   p  throws in its last op, without an error that the FFI knows: a Python exception
 *   k  catches in its first op what is thrown inside that
 *
 * So "cnt40_7" runs exactly 40 ops, each time the same.
 */
#ifndef FAKE_VM_H_
#define FAKE_VM_H_

#include "fake_ffi.h"

enum { THREW_ERROR = -1, THREW_PYTHON = -2 };

/* A VM module; its functions are got through the global function ffi.ModuleGetFunction. */
TVMFFIObjectHandle new_vm(void);

/* What is in its slot, borrowed from it, or NULL. */
TVMFFIObjectHandle instrument_of(TVMFFIObjectHandle vm);

/* Op calls so far, of all VMs, that an instrument was told of before they ran. */
uint64_t ops_told(void);

/* Those of this thread that have not returned. */
int ops_open(void);

/* What this thread does inside some ops of functions with a v: nothing to begin with. */
void visit_with(void (*visit)(void* self), void* self);
void visit_nothing(void);

#endif /* FAKE_VM_H_ */
