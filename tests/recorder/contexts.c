/* Contexts: hooks that answer in every way, are replaced meanwhile, and fail. */
#include <inttypes.h>
#include <stdatomic.h>
#include <string.h>

#include "scenarios.h"
#include "workers.h"

/* See contexts.h. */
enum { ANSWER_SIZE = 25, SPAN_AT = 16, FLAGS_AT = 24 };

static _Atomic uint64_t last_span; /* every answer that is one has a span of its own */

static int answer(unsigned char* bytes, size_t size, TVMFFIAny* result) {
  TVMFFIByteArray view = {(const char*)bytes, size};
  return TVMFFIBytesFromByteArray(&view, result);
}

static int on_ask(void* self, const TVMFFIAny* arguments, int32_t count, TVMFFIAny* result) {
  static __thread uint64_t asked;
  unsigned char bytes[ANSWER_SIZE + 1] = {0};
  (void)self, (void)arguments;
  REQUIRE(count == 0);
  switch (++asked % 6) {
    case 1:
      return answer(bytes, 0, result);
    case 2:
      return answer(bytes, ANSWER_SIZE - 1, result);
    case 3:
      *result = integer_of(25);
      return 0;
    case 4:
      TVMFFIErrorSetRaisedFromCStr("ValueError", "a hook that fails");
      return -1;
    default:
      break;
  }
  uint64_t span = atomic_fetch_add(&last_span, 1) + 1;
  for (int i = 0; i < 8; ++i) {
    bytes[SPAN_AT + i] = (unsigned char)(span >> (8 * (7 - i)));
    bytes[i] = bytes[8 + i] = (unsigned char)~bytes[SPAN_AT + i];
  }
  bytes[FLAGS_AT] = (unsigned char)(span & 1) | 2;
  return answer(bytes, ANSWER_SIZE, result);
}

static void set_hook(TVMFFIAny hook) {
  REQUIRE(call_global("relax_trace.recorder.set_context_hook", &hook, 1, NULL) == 0);
}

static void work_or_set_hooks(int number) {
  uint64_t seed = base_seed;
  if (number < WORKERS) {
    work(number, 120, EVERY_LETTER, true);
    work_cleanly(number);
    atomic_fetch_sub(&working, 1);
  }
  while (number == WORKERS && atomic_load(&working)) {
    TVMFFIObjectHandle hook;
    REQUIRE(TVMFFIFunctionCreate(NULL, on_ask, NULL, &hook) == 0);
    set_hook(one_in(&seed, 4) ? none() : object_of(hook));
    TVMFFIObjectDecRef(hook);
    dump_some(1 << 14);
  }
}

void play_contexts(uint64_t seed) {
  attach_all(seed, true);
  on_threads(WORKERS + 1, work_or_set_hooks);
  set_hook(none());
  work_cleanly(0);
  dump_all();
  release_all();
  tell_number("spans", atomic_load(&last_span));
}
