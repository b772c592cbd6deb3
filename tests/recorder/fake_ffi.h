/* A stand-in for the part of tvm-ffi that the recorder uses: it runs here without TVM. */
#ifndef FAKE_FFI_H_
#define FAKE_FFI_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <tvm/ffi/c_api.h>

enum { CLOSURE_TYPE = kTVMFFIDynObjectBegin + 5 }; /* what relax.vm.Closure is registered as */

/* ---- values; those of objects take over the reference they are given ---- */

TVMFFIAny none(void);
TVMFFIAny integer_of(int64_t value);
TVMFFIAny boolean_of(bool value);
TVMFFIAny pointer_of(int32_t type_index, const void* pointer);
TVMFFIAny object_of(TVMFFIObjectHandle object);
void value_copy(TVMFFIAny* to, const TVMFFIAny* from); /* takes one more reference */
void value_release(TVMFFIAny* value);

/* ---- objects; what they are made of is copied ---- */

TVMFFIObjectHandle new_object(int32_t type_index, size_t size,
                              void (*deleter)(void* self, int flags));
TVMFFIObjectHandle new_tensor(DLDataType dtype, DLDevice device, int dimensions,
                              const int64_t* shape);
TVMFFIObjectHandle new_shape(const int64_t* numbers, size_t count);
TVMFFIObjectHandle new_text(const char* bytes, size_t size);
TVMFFIObjectHandle new_closure(const char* name);
TVMFFIObjectHandle new_error(const char* kind, size_t kind_size, const char* message, size_t size);
TVMFFIObjectHandle new_sequence(int32_t type_index, const TVMFFIAny* elements, int64_t count);
void* cell(TVMFFIObjectHandle object); /* what follows the object's header */

/* ---- what tests do with it ---- */

/* Call a registered function; the result is released unless `result` is given. */
int call_global(const char* name, TVMFFIAny* arguments, int count, TVMFFIAny* result);
bool drop_raised(void);              /* forget this thread's raised error; whether there was one */
void fail_bytes(bool fails);         /* let TVMFFIBytesFromByteArray raise a MemoryError, or not */
uint64_t devices_synchronized(void); /* calls of runtime.Device_StreamSync so far, and ... */
extern _Atomic bool stream_sync_fails; /* ... whether they fail */

#endif /* FAKE_FFI_H_ */
