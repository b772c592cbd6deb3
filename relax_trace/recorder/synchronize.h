/* Waiting for the devices that hold a call's arguments, so that its times are theirs. */
#ifndef RELAX_TRACE_SYNCHRONIZE_H_
#define RELAX_TRACE_SYNCHRONIZE_H_

#include "names.h"
#include "strands.h"

/* The stream that TVM launches on; absent where tvm-ffi is built without it. */
extern void* TVMFFIEnvGetStream(int32_t device_type, int32_t device_id) __attribute__((weak));

/* runtime.Device_StreamSync, looked up at the first want(), kept for good */
static _Atomic(TVMFFIObjectHandle) stream_sync;

static void find_stream_sync(void) {
  TVMFFIObjectHandle none = NULL;
  if (atomic_load_explicit(&stream_sync, memory_order_acquire)) return;
  TVMFFIObjectHandle found = global_function("runtime.Device_StreamSync");
  if (found && !atomic_compare_exchange_strong(&stream_sync, &none, found)) {
    TVMFFIObjectDecRef(found); /* another VM's want() was faster */
  }
}

static bool synchronize_device(DLDevice device) {
  TVMFFIObjectHandle sync = atomic_load_explicit(&stream_sync, memory_order_acquire);
  if (device.device_type == kDLCPU) return true;
  if (!sync) return false;
  void* stream =
      TVMFFIEnvGetStream ? TVMFFIEnvGetStream(device.device_type, device.device_id) : NULL;
  TVMFFIAny arguments[2] = {none_value(), int_value((int64_t)(intptr_t)stream)};
  TVMFFIAny result = none_value();
  arguments[0].type_index = kTVMFFIDevice;
  arguments[0].v_device = device;
  if (TVMFFIFunctionCall(sync, arguments, 2, &result)) {
    drop_error(); /* the op's own error, if the device is lost, is the user's to see */
    return false;
  }
  return true;
}

/* Synchronise every device that holds one of these arguments, tuples included. */
static bool synchronize(const TVMFFIAny* arguments, int64_t count, int depth) {
  DLDevice last = {kDLCPU, 0};
  bool done = true;
  for (int64_t i = 0; i < count; ++i) {
    const DLTensor* tensor = tensor_of(&arguments[i]);
    int32_t type = arguments[i].type_index;
    if ((type == kTVMFFIArray || type == kTVMFFIList) && depth < TUPLE_DEPTH_MOST) {
      const TVMFFISeqCell* tuple = (const TVMFFISeqCell*)cell_of(arguments[i].v_obj);
      done &= synchronize((const TVMFFIAny*)tuple->data, tuple->size, depth + 1);
    } else if (tensor && (tensor->device.device_type != last.device_type ||
                          tensor->device.device_id != last.device_id)) {
      last = tensor->device;
      done &= synchronize_device(last);
    }
  }
  return done;
}

/* Under graph capture synchronising is an error. */
static bool under_capture(const thread_state* thread) {
  for (const strand* at = &thread->base; at; at = strand_after(thread, at)) {
    for (int i = 0; i < at->depth; ++i) {
      const frame* open = &at->frames[i];
      if (open->kind == FRAME_OP && open->name->flags & NAME_CAPTURE) return true;
    }
  }
  return false;
}

#endif /* RELAX_TRACE_SYNCHRONIZE_H_ */
