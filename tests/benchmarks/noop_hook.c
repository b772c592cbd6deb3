/* The cheapest instrument there can be: the floor that the recorder's cost is measured from. */
#include <tvm/ffi/c_api.h>

static int do_nothing(void* self, const TVMFFIAny* arguments, int32_t count, TVMFFIAny* result) {
  (void)self, (void)arguments, (void)count, (void)result;
  return 0;
}

__attribute__((constructor)) static void on_load(void) {
  TVMFFIByteArray name = {"benchmark.noop_hook", 19};
  TVMFFIObjectHandle function;
  if (!TVMFFIFunctionCreate(0, do_nothing, 0, &function))
    TVMFFIFunctionSetGlobal(&name, function, 1);
}
