/* Names of calls: what they are called, what kind of call they are, how much of them is shown. */
#ifndef RELAX_TRACE_NAMES_H_
#define RELAX_TRACE_NAMES_H_

#include <fnmatch.h>

#include "threads.h"

/* Flags of a name. The first two go into the dump; the rest steer the recorder. */
enum {
  NAME_BUILTIN = 1 << 0,  /* vm.builtin.… */
  NAME_FUNCTION = 1 << 1, /* a Relax function or closure of the VM */
  NAME_GLOBAL = 1 << 2,   /* a packed function of the global registry */
  NAME_SCALARS = 1 << 3,  /* integers and strings among its arguments matter */
  NAME_RESULT = 1 << 4,   /* its result tells what it made */
  NAME_ELEMENT = 1 << 5,  /* takes one element of a tuple: don't list the others */
  NAME_CHECK = 1 << 6,    /* checks a parameter at the start of a Relax function */
  NAME_CLOSURE = 1 << 7,  /* runs the closure that is its second argument */
  NAME_CAPTURE = 1 << 8   /* its body may run under graph capture */
};

static const struct {
  const char* name;
  uint32_t flags;
} builtin_flags[] = {
    {"alloc_storage", NAME_SCALARS},
    {"alloc_tensor", NAME_SCALARS | NAME_RESULT},
    {"to_device", NAME_RESULT},
    {"tuple_getitem", NAME_ELEMENT},
    {"check_tensor_info", NAME_CHECK},
    {"check_tuple_info", NAME_CHECK},
    {"check_shape_info", NAME_CHECK},
    {"check_prim_value_info", NAME_CHECK},
    {"check_func_info", NAME_CHECK},
    {"invoke_closure", NAME_CLOSURE},
    {"cuda_graph.run_or_capture", NAME_CAPTURE},
};

static bool is_registered(TVMFFIByteArray name) {
  TVMFFIObjectHandle function = NULL;
  if (TVMFFIFunctionGetGlobal(&name, &function)) {
    drop_error();
    return false;
  }
  if (function) TVMFFIObjectDecRef(function);
  return function != NULL;
}

static bool is_closure(const TVMFFIAny* value) {
  static _Atomic int32_t closure_type; /* 0: not looked up yet, -1: this TVM has none */
  int32_t type = atomic_load_explicit(&closure_type, memory_order_relaxed);
  if (UNLIKELY(type == 0)) {
    type = type_index_of("relax.vm.Closure");
    atomic_store_explicit(&closure_type, type, memory_order_relaxed);
  }
  return type > 0 && value->type_index == type;
}

/* relax.vm.Closure = {header, String func_name, Function impl}. */
static bool closure_name(const TVMFFIAny* value, TVMFFIByteArray* out) {
  return is_closure(value) && string_of((const TVMFFIAny*)cell_of(value->v_obj), out);
}

static uint32_t classify(TVMFFIByteArray name, const TVMFFIAny* callee) {
  static const char prefix[] = "vm.builtin.";
  size_t length = sizeof prefix - 1;
  if (callee && is_closure(callee)) return NAME_FUNCTION;
  if (name.size < length || memcmp(name.data, prefix, length) != 0) {
    return is_registered(name) ? NAME_GLOBAL : 0;
  }
  for (size_t i = 0; i < sizeof builtin_flags / sizeof *builtin_flags; ++i) {
    const char* builtin = builtin_flags[i].name;
    if (strlen(builtin) == name.size - length &&
        memcmp(name.data + length, builtin, name.size - length) == 0) {
      return NAME_BUILTIN | builtin_flags[i].flags;
    }
  }
  return NAME_BUILTIN;
}

/* ---- which calls are recorded at all ---- */

/* Shell patterns, one of which a name has to match; none: every name. The names' lock. */
static struct {
  char** patterns;
  int count;
} name_filter;

/* Only names of calls are asked about, and once: not each time that a thread's cache misses. */
enum { FILTER_UNASKED, FILTER_KEPT, FILTER_LEFT_OUT };

static _Atomic uint64_t shortest_call; /* ticks: calls that took less are not recorded */

/* Names' lock held. */
static void refilter(entry* name) {
  int count = name_filter.count;
  char* text = count ? copy_of_text(name->bytes, name->size) : NULL; /* entries end without a NUL */
  bool kept = !text;
  for (int i = 0; !kept && i < count; ++i) {
    kept = fnmatch(name_filter.patterns[i], text, FNM_NOESCAPE) == 0;
  }
  free(text);
  uint32_t found = kept ? FILTER_KEPT : FILTER_LEFT_OUT;
  atomic_store_explicit(&name->filtered, found, memory_order_relaxed);
}

static inline bool is_left_out(const entry* name) {
  return atomic_load_explicit(&name->filtered, memory_order_relaxed) == FILTER_LEFT_OUT;
}

static void free_patterns(char** patterns, int count) {
  for (int i = 0; i < count; ++i) free(patterns[i]);
  free(patterns);
}

static void set_name_filter(char** patterns, int count) {
  pthread_mutex_lock(&names.lock);
  free_patterns(name_filter.patterns, name_filter.count);
  name_filter.patterns = patterns;
  name_filter.count = count;
  for (uint32_t i = 0; i < names.count; ++i) refilter(names.by_number[i]);
  pthread_mutex_unlock(&names.lock);
}

/* ---- */

static inline cached_name* name_slot(thread_state* thread, const char* key) {
  uintptr_t at = (uintptr_t)key;
  return &thread->name_cache[((at >> 4) ^ (at >> 13)) & (NAME_CACHE - 1)];
}

static inline bool name_hit(const cached_name* cached, TVMFFIByteArray name) {
  return cached->key == name.data && cached->name->size == name.size &&
         memcmp(cached->name->bytes, name.data, name.size) == 0;
}

static __attribute__((noinline)) cached_name* name_miss(cached_name* cached, TVMFFIByteArray name,
                                                        uint32_t flags) {
  const entry* found = intern(&names, name.data, name.size, flags);
  if (!found) return NULL; /* what is in the slot stays: a caller may hold it */
  if (atomic_load_explicit(&found->filtered, memory_order_relaxed) == FILTER_UNASKED) {
    pthread_mutex_lock(&names.lock);
    refilter(names.by_number[found->number - 1]);
    pthread_mutex_unlock(&names.lock);
  }
  /* a key is compared as a C string, so that a name with a NUL inside has none */
  cached->key = memchr(name.data, 0, name.size) ? NULL : name.data;
  cached->name = found;
  cached->signature = cached->complete = NULL;
  return cached;
}

/* The name of a call: arguments[0] is what is called, arguments[1] its symbol. NULL at the limit. */
static inline cached_name* name_of_call(thread_state* thread, const TVMFFIAny* arguments) {
  const char* symbol = arguments[1].v_c_str;
  if (LIKELY(arguments[1].type_index == kTVMFFIRawStr)) {
    cached_name* cached = name_slot(thread, symbol);
    /* the bytes are compared too, for the pointer may belong to a younger executable by now;
     * an entry's bytes have no terminating NUL, so the symbol's is looked for after they agree */
    if (LIKELY(cached->key == symbol && symbol &&
               !strncmp(symbol, cached->name->bytes, cached->name->size) &&
               !symbol[cached->name->size])) {
      return cached;
    }
  }
  TVMFFIByteArray name;
  if (!string_of(&arguments[1], &name)) name = (TVMFFIByteArray){"?", 1};
  return name_miss(name_slot(thread, name.data), name, classify(name, &arguments[0]));
}

/* The real name of what vm.builtin.invoke_closure(context, closure, …) runs, or `fallback`. */
static cached_name* name_of_closure(thread_state* thread, const TVMFFIAny* arguments, int count,
                                    cached_name* fallback) {
  TVMFFIByteArray name;
  if (count < 2 || !closure_name(&arguments[1], &name)) return fallback;
  cached_name* cached = name_slot(thread, name.data);
  if (name_hit(cached, name) && cached->name->flags == NAME_FUNCTION) return cached;
  cached_name* found = name_miss(cached, name, NAME_FUNCTION);
  return found ? found : fallback;
}

#endif /* RELAX_TRACE_NAMES_H_ */
