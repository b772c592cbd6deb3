/* What tvm-ffi's C ABI hands us: cells behind object headers, strings, errors.
 *
 * tvm/ffi/c_api.h declares the layouts; its accessors are C++ only, so they are spelt out here.
 */
#ifndef RELAX_TRACE_FFI_H_
#define RELAX_TRACE_FFI_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <tvm/ffi/c_api.h>

#define LIKELY(condition) __builtin_expect(!!(condition), 1)
#define UNLIKELY(condition) __builtin_expect(!!(condition), 0)

/* Every object is a TVMFFIObject header followed by the cell of its type. */
static inline const void* cell_of(const void* object) {
  return (const char*)object + sizeof(TVMFFIObject);
}

static inline const DLTensor* tensor_of(const TVMFFIAny* value) {
  if (LIKELY(value->type_index == kTVMFFITensor)) return (const DLTensor*)cell_of(value->v_obj);
  if (value->type_index == kTVMFFIDLTensorPtr) return (const DLTensor*)value->v_ptr;
  return NULL;
}

/* Number of owners of an object. */
static inline uint32_t strong_count(TVMFFIObjectHandle object) {
  return (uint32_t)__atomic_load_n(&((TVMFFIObject*)object)->combined_ref_count, __ATOMIC_ACQUIRE);
}

/* The characters of a string value, borrowed from it; false where it is none. */
static inline bool string_of(const TVMFFIAny* value, TVMFFIByteArray* out) {
  switch (value->type_index) {
    case kTVMFFIRawStr:
      out->data = value->v_c_str;
      out->size = value->v_c_str ? strlen(value->v_c_str) : 0;
      return value->v_c_str != NULL;
    case kTVMFFISmallStr:
      out->data = value->v_bytes;
      out->size = value->small_str_len;
      return true;
    case kTVMFFIStr:
      *out = *(const TVMFFIByteArray*)cell_of(value->v_obj);
      return true;
    default:
      return false;
  }
}

/* A copy that ends with a NUL, to be freed; NULL where there is no memory. */
static inline char* copy_of_text(const char* bytes, size_t size) {
  char* copy = (char*)malloc(size + 1);
  if (!copy) return NULL;
  if (size) memcpy(copy, bytes, size);
  copy[size] = 0;
  return copy;
}

static inline TVMFFIAny none_value(void) {
  TVMFFIAny value;
  memset(&value, 0, sizeof value);
  return value;
}

static inline TVMFFIAny int_value(int64_t number) {
  TVMFFIAny value = none_value();
  value.type_index = kTVMFFIInt;
  value.v_int64 = number;
  return value;
}

static inline TVMFFIAny text_value(const char* text) {
  TVMFFIAny value = none_value();
  value.type_index = kTVMFFIRawStr;
  value.v_c_str = text;
  return value;
}

static inline TVMFFIAny function_value(TVMFFIObjectHandle function) {
  TVMFFIAny value = none_value();
  value.type_index = kTVMFFIFunction;
  value.v_obj = (TVMFFIObject*)function;
  return value;
}

static inline void release(TVMFFIAny* value) {
  if (value->type_index >= kTVMFFIStaticObjectBegin) TVMFFIObjectDecRef(value->v_obj);
  *value = none_value();
}

/* Forget the error that the last call raised. */
static inline void drop_error(void) {
  TVMFFIObjectHandle error = NULL;
  TVMFFIErrorMoveFromRaised(&error);
  if (error) TVMFFIObjectDecRef(error);
}

static inline int fail(const char* kind, const char* message) {
  TVMFFIErrorSetRaisedFromCStr(kind, message);
  return -1;
}

/* A registered global function, owned by the caller, or NULL. */
static inline TVMFFIObjectHandle global_function(const char* name) {
  TVMFFIByteArray key = {name, strlen(name)};
  TVMFFIObjectHandle function = NULL;
  if (TVMFFIFunctionGetGlobal(&key, &function)) drop_error();
  return function;
}

/* The type index of a registered object type, or -1. */
static inline int32_t type_index_of(const char* key) {
  TVMFFIByteArray name = {key, strlen(key)};
  int32_t index = -1;
  if (TVMFFITypeKeyToIndex(&name, &index)) {
    drop_error();
    return -1;
  }
  return index;
}

#endif /* RELAX_TRACE_FFI_H_ */
