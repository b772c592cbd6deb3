/* Invocations through a function that was taken before the recording: nothing announces them. */
#ifndef RELAX_TRACE_BARE_H_
#define RELAX_TRACE_BARE_H_

#include "frames.h"

/* "ErrorContext(fn=main, loc=param[0], …" names the function whose parameters are being checked. */
static bool checked_function(TVMFFIByteArray text, TVMFFIByteArray* function) {
  static const char head[] = "ErrorContext(fn=", middle[] = ", loc=param[";
  size_t head_size = sizeof head - 1, middle_size = sizeof middle - 1;
  if (text.size < head_size || memcmp(text.data, head, head_size) != 0) return false;
  for (size_t at = head_size; at + middle_size <= text.size; ++at) {
    if (memcmp(text.data + at, middle, middle_size) == 0) {
      *function = (TVMFFIByteArray){text.data + head_size, at - head_size};
      return true;
    }
  }
  return false;
}

static frame* open_bare(strand* in, vm_state* vm, TVMFFIByteArray function, uintptr_t stack) {
  context around = ask_for_context();
  const entry* name = intern(&names, function.data, function.size, NAME_FUNCTION);
  atomic_store_explicit(&vm->bare_thread, in->thread->id, memory_order_relaxed);
  slots held = {.taken = atomic_load_explicit(&vm->held, memory_order_relaxed)};
  return open_invocation(in, vm, name, FRAME_BARE, stack, held, &around);
}

static bool is_named(const frame* bare, TVMFFIByteArray function) {
  const entry* name = bare->name;
  return name && name->size == function.size && !memcmp(name->bytes, function.data, function.size);
}

/* Make sure that the op about to start stands in an invocation of its own VM. Without our wrapper
 * nothing says where one begins, except that a function checks its parameters before all else.
 * Whether one began now. */
static __attribute__((noinline)) bool enter_bare(strand* in, vm_state* vm, const entry* name,
                                                 const TVMFFIAny* arguments, int count,
                                                 uintptr_t stack) {
  frame* top = in->depth ? &in->frames[in->depth - 1] : NULL;
  bool inside = top && top->kind == FRAME_BARE && top->vm == vm;
  TVMFFIByteArray function = {"(unknown)", 9}, text = {NULL, 0};
  bool check = name->flags & NAME_CHECK && count > 0 && string_of(&arguments[count - 1], &text) &&
               checked_function(text, &function);
  if (inside && check) {
    /* the first check again is the next call's; but an element of a tuple says what the tuple did */
    inside =
        top->checking && is_named(top, function) && (top->element || top->first_check != text.data);
  }
  if (!inside) {
    if (top && top->kind == FRAME_BARE) abandon(in, in->depth - 1, 0);
    top = open_bare(in, vm, function, stack);
    if (top && check) top->first_check = text.data;
  }
  if (!top) return !inside;
  /* elements are taken out of a tuple between its checks */
  top->element = name->flags & NAME_ELEMENT;
  if (!top->element) top->checking = check;
  return !inside;
}

#endif /* RELAX_TRACE_BARE_H_ */
