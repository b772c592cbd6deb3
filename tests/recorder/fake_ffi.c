/* A stand-in for the part of tvm-ffi that the recorder uses; see fake_ffi.h. */
#include "fake_ffi.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <unistd.h>

/* ---- values ---- */

TVMFFIAny none(void) { return pointer_of(kTVMFFINone, NULL); }

TVMFFIAny pointer_of(int32_t type_index, const void* pointer) {
  TVMFFIAny value;
  memset(&value, 0, sizeof value);
  value.type_index = type_index;
  value.v_ptr = (void*)pointer;
  return value;
}

TVMFFIAny integer_of(int64_t number) {
  TVMFFIAny value = pointer_of(kTVMFFIInt, NULL);
  value.v_int64 = number;
  return value;
}

TVMFFIAny boolean_of(bool truth) {
  TVMFFIAny value = integer_of(truth);
  value.type_index = kTVMFFIBool;
  return value;
}

TVMFFIAny object_of(TVMFFIObjectHandle object) {
  return pointer_of(((TVMFFIObject*)object)->type_index, object);
}

void value_copy(TVMFFIAny* to, const TVMFFIAny* from) {
  *to = *from;
  if (from->type_index >= kTVMFFIStaticObjectBegin) TVMFFIObjectIncRef(from->v_obj);
}

void value_release(TVMFFIAny* value) {
  if (value->type_index >= kTVMFFIStaticObjectBegin) TVMFFIObjectDecRef(value->v_obj);
  *value = none();
}

/* ---- objects ---- */

void* cell(TVMFFIObjectHandle object) { return (char*)object + sizeof(TVMFFIObject); }

static void* allocate(size_t size) {
  void* memory = calloc(1, size);
  if (!memory) abort();
  return memory;
}

static void delete_flat(void* self, int flags) {
  (void)flags;
  free(self);
}

TVMFFIObjectHandle new_object(int32_t type_index, size_t size, void (*deleter)(void*, int)) {
  TVMFFIObject* object = (TVMFFIObject*)allocate(size);
  object->combined_ref_count = (uint64_t)1 << 32 | 1;
  object->type_index = type_index;
  object->deleter = deleter;
  return object;
}

int TVMFFIObjectIncRef(TVMFFIObjectHandle object) {
  __atomic_fetch_add(&((TVMFFIObject*)object)->combined_ref_count, 1, __ATOMIC_RELAXED);
  return 0;
}

int TVMFFIObjectDecRef(TVMFFIObjectHandle object) {
  TVMFFIObject* header = (TVMFFIObject*)object;
  uint64_t before = __atomic_fetch_sub(&header->combined_ref_count, 1, __ATOMIC_ACQ_REL);
  if ((uint32_t)before == 0) abort(); /* released more often than owned */
  if ((uint32_t)before == 1) header->deleter(header, kTVMFFIObjectDeleterFlagBitMaskBoth);
  return 0;
}

/* An object whose cell is followed by `size` bytes copied from `bytes`; these are at *copy. */
static void* new_with_bytes(int32_t type, size_t cell_size, const void* bytes, size_t size,
                            char** copy) {
  size_t at = sizeof(TVMFFIObject) + cell_size;
  char* object = (char*)new_object(type, at + size, delete_flat);
  if (size) memcpy(object + at, bytes, size);
  *copy = object + at;
  return object;
}

TVMFFIObjectHandle new_tensor(DLDataType dtype, DLDevice device, int dimensions,
                              const int64_t* shape) {
  char* copy;
  size_t size = (size_t)dimensions * sizeof *shape;
  void* object = new_with_bytes(kTVMFFITensor, sizeof(DLTensor), shape, size, &copy);
  *(DLTensor*)cell(object) = (DLTensor){
      .device = device, .ndim = dimensions, .dtype = dtype, .shape = (int64_t*)(void*)copy};
  return object;
}

TVMFFIObjectHandle new_shape(const int64_t* numbers, size_t count) {
  char* copy;
  size_t size = count * sizeof *numbers;
  void* object = new_with_bytes(kTVMFFIShape, sizeof(TVMFFIShapeCell), numbers, size, &copy);
  *(TVMFFIShapeCell*)cell(object) = (TVMFFIShapeCell){(int64_t*)(void*)copy, count};
  return object;
}

static TVMFFIObjectHandle new_bytes(int32_t type_index, const char* bytes, size_t size) {
  char* copy;
  void* object = new_with_bytes(type_index, sizeof(TVMFFIByteArray), bytes, size, &copy);
  *(TVMFFIByteArray*)cell(object) = (TVMFFIByteArray){copy, size};
  return object;
}

TVMFFIObjectHandle new_text(const char* bytes, size_t size) {
  return new_bytes(kTVMFFIStr, bytes, size);
}

/* relax.vm.Closure begins with its name, a String in an Any. */
static void delete_closure(void* self, int flags) {
  value_release((TVMFFIAny*)cell(self));
  delete_flat(self, flags);
}

TVMFFIObjectHandle new_closure(const char* name) {
  void* object = new_object(CLOSURE_TYPE, sizeof(TVMFFIObject) + sizeof(TVMFFIAny), delete_closure);
  *(TVMFFIAny*)cell(object) = object_of(new_text(name, strlen(name)));
  return object;
}

TVMFFIObjectHandle new_error(const char* kind, size_t kind_size, const char* message, size_t size) {
  char* bytes = (char*)allocate(kind_size + size + 1);
  char* copy;
  memcpy(bytes, kind, kind_size);
  memcpy(bytes + kind_size, message, size);
  void* object =
      new_with_bytes(kTVMFFIError, sizeof(TVMFFIErrorCell), bytes, kind_size + size, &copy);
  free(bytes);
  TVMFFIErrorCell* error = (TVMFFIErrorCell*)cell(object);
  error->kind = (TVMFFIByteArray){copy, kind_size};
  error->message = (TVMFFIByteArray){copy + kind_size, size};
  return object;
}

static void delete_sequence(void* self, int flags) {
  TVMFFISeqCell* sequence = (TVMFFISeqCell*)cell(self);
  TVMFFIAny* elements = (TVMFFIAny*)sequence->data;
  for (int64_t i = 0; i < sequence->capacity; ++i) value_release(&elements[i]);
  delete_flat(self, flags);
}

TVMFFIObjectHandle new_sequence(int32_t type_index, const TVMFFIAny* elements, int64_t count) {
  char* copy;
  void* object = new_with_bytes(type_index, sizeof(TVMFFISeqCell), elements,
                                (size_t)count * sizeof *elements, &copy);
  ((TVMFFIObject*)object)->deleter = delete_sequence;
  *(TVMFFISeqCell*)cell(object) = (TVMFFISeqCell){copy, count, count, NULL};
  return object;
}

/* ---- functions ---- */

typedef struct {
  TVMFFIObject header;
  TVMFFIFunctionCell cell;
  void* self;
  void (*delete_self)(void* self);
} function_object;

static void delete_function(void* self, int flags) {
  function_object* function = (function_object*)self;
  if (function->delete_self) function->delete_self(function->self);
  delete_flat(self, flags);
}

int TVMFFIFunctionCreate(void* self, TVMFFISafeCallType safe_call, void (*deleter)(void* self),
                         TVMFFIObjectHandle* out) {
  function_object* made =
      (function_object*)new_object(kTVMFFIFunction, sizeof(function_object), delete_function);
  made->cell.safe_call = safe_call;
  made->self = self;
  made->delete_self = deleter;
  *out = made;
  return 0;
}

int TVMFFIFunctionCall(TVMFFIObjectHandle function, TVMFFIAny* arguments, int32_t count,
                       TVMFFIAny* result) {
  function_object* called = (function_object*)function;
  return called->cell.safe_call(called->self, arguments, count, result);
}

static const char stream_sync_name[] = "runtime.Device_StreamSync";

enum { GLOBALS_MOST = 32 };
static struct {
  pthread_mutex_t lock;
  int count;
  char names[GLOBALS_MOST][64];
  TVMFFIObjectHandle functions[GLOBALS_MOST];
} globals = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* A forked child has to find the table unlocked. */
static void lock_globals(void) { pthread_mutex_lock(&globals.lock); }
static void unlock_globals(void) { pthread_mutex_unlock(&globals.lock); }

int TVMFFIFunctionSetGlobal(const TVMFFIByteArray* name, TVMFFIObjectHandle function,
                            int allow_override) {
  (void)allow_override;
  pthread_mutex_lock(&globals.lock);
  if (globals.count == GLOBALS_MOST || name->size >= sizeof globals.names[0]) abort();
  memcpy(globals.names[globals.count], name->data, name->size);
  globals.functions[globals.count++] = function;
  TVMFFIObjectIncRef(function);
  pthread_mutex_unlock(&globals.lock);
  return 0;
}

int TVMFFIFunctionGetGlobal(const TVMFFIByteArray* name, TVMFFIObjectHandle* out) {
  *out = NULL;
  if (name->size == sizeof stream_sync_name - 1 &&
      !memcmp(name->data, stream_sync_name, name->size)) {
    usleep(1000); /* two threads that look it up at a time shall meet here */
  }
  pthread_mutex_lock(&globals.lock);
  for (int i = 0; i < globals.count; ++i) {
    if (strlen(globals.names[i]) == name->size &&
        memcmp(globals.names[i], name->data, name->size) == 0) {
      TVMFFIObjectIncRef(*out = globals.functions[i]);
    }
  }
  pthread_mutex_unlock(&globals.lock);
  return 0;
}

int call_global(const char* name, TVMFFIAny* arguments, int count, TVMFFIAny* result) {
  TVMFFIByteArray key = {name, strlen(name)};
  TVMFFIObjectHandle function;
  TVMFFIAny unused = none();
  TVMFFIFunctionGetGlobal(&key, &function);
  if (!function) abort();
  int code = TVMFFIFunctionCall(function, arguments, count, result ? result : &unused);
  TVMFFIObjectDecRef(function);
  value_release(&unused);
  return code;
}

/* ---- errors ---- */

static __thread TVMFFIObjectHandle raised;

void TVMFFIErrorMoveFromRaised(TVMFFIObjectHandle* result) {
  *result = raised;
  raised = NULL;
}

void TVMFFIErrorSetRaised(TVMFFIObjectHandle error) {
  TVMFFIObjectIncRef(error);
  drop_raised();
  raised = error;
}

void TVMFFIErrorSetRaisedFromCStr(const char* kind, const char* message) {
  TVMFFIObjectHandle error = new_error(kind, strlen(kind), message, strlen(message));
  TVMFFIErrorSetRaised(error);
  TVMFFIObjectDecRef(error);
}

bool drop_raised(void) {
  TVMFFIObjectHandle error;
  TVMFFIErrorMoveFromRaised(&error);
  if (error) TVMFFIObjectDecRef(error);
  return error != NULL;
}

/* ---- the rest ---- */

static _Atomic bool bytes_fail;

void fail_bytes(bool fails) { atomic_store(&bytes_fail, fails); }

int TVMFFIBytesFromByteArray(const TVMFFIByteArray* input, TVMFFIAny* out) {
  if (atomic_load(&bytes_fail)) {
    TVMFFIErrorSetRaisedFromCStr("MemoryError", "no room for the bytes");
    return -1;
  }
  *out = object_of(new_bytes(kTVMFFIBytes, input->data, input->size));
  return 0;
}

int TVMFFITypeKeyToIndex(const TVMFFIByteArray* key, int32_t* index) {
  static const char closure[] = "relax.vm.Closure";
  if (key->size != sizeof closure - 1 || memcmp(key->data, closure, key->size) != 0) {
    TVMFFIErrorSetRaisedFromCStr("KeyError", "no such type");
    return -1;
  }
  *index = CLOSURE_TYPE;
  return 0;
}

TVMFFIStreamHandle TVMFFIEnvGetStream(int32_t device_type, int32_t device_id) {
  (void)device_type, (void)device_id;
  return NULL;
}

static _Atomic uint64_t synchronized;
_Atomic bool stream_sync_fails;

uint64_t devices_synchronized(void) { return atomic_load(&synchronized); }

static int on_stream_sync(void* self, const TVMFFIAny* arguments, int32_t count,
                          TVMFFIAny* result) {
  (void)self, (void)result;
  if (count != 2 || arguments[0].type_index != kTVMFFIDevice) abort();
  if (atomic_load(&stream_sync_fails)) {
    TVMFFIErrorSetRaisedFromCStr("RuntimeError", "the device is lost");
    return -1;
  }
  atomic_fetch_add(&synchronized, 1);
  return 0;
}

__attribute__((constructor)) static void register_globals(void) {
  pthread_atfork(lock_globals, unlock_globals, unlock_globals);
  TVMFFIByteArray name = {stream_sync_name, sizeof stream_sync_name - 1};
  TVMFFIObjectHandle function;
  TVMFFIFunctionCreate(NULL, on_stream_sync, NULL, &function);
  TVMFFIFunctionSetGlobal(&name, function, 1);
  TVMFFIObjectDecRef(function);
}
