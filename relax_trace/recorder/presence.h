/* Being in a process once, and for good: recorders come as a library and inside model libraries. */
#ifndef RELAX_TRACE_PRESENCE_H_
#define RELAX_TRACE_PRESENCE_H_

#include <dlfcn.h>

#include "dump.h"

/* glibc before 2.34 has these in a library of its own, which TVM brings along; ours isn't linked to it,
 * since whoever links a model library with the recorder inside would have to know. */
extern int dladdr(const void* address, Dl_info* info) __attribute__((weak));
extern void* dlopen(const char* path, int flags) __attribute__((weak));

static const char version_name[] = "relax_trace.recorder.version";

/* Whether a recorder of this version is here already: it stays, with what it knows of VMs. One of
 * another version gives way to this one, which somebody has loaded in its place. */
static bool is_here_already(void) {
  TVMFFIObjectHandle version = global_function(version_name);
  TVMFFIAny result = none_value();
  if (!version) return false;
  if (TVMFFIFunctionCall(version, NULL, 0, &result)) drop_error();
  bool same = result.type_index == kTVMFFIInt && result.v_int64 == DUMP_VERSION;
  release(&result);
  TVMFFIObjectDecRef(version);
  return same;
}

/* Keep the library that this is part of from being unloaded: threads, VMs and TVM's registry hold its
 * functions until the process ends. The recorder's own is linked so, a model's library is not. */
static void stay_loaded(void) {
  Dl_info own;
  if (!dladdr || !dlopen || !dladdr(version_name, &own) || !own.dli_fname) return;
  dlopen(own.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE);
}

#endif /* RELAX_TRACE_PRESENCE_H_ */
