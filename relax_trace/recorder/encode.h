/* Arguments of a call as a signature: 64-bit words that hold shapes, dtypes and devices.
 *
 * The words are described in relax_trace/signature.py, which reads them; tests/ has a twin of this
 * encoder in Python. What does not fit is cut off behind an ELLIPSIS, never dropped as a whole.
 */
#ifndef RELAX_TRACE_ENCODE_H_
#define RELAX_TRACE_ENCODE_H_

#include "ffi.h"

enum {
  WORD_TENSOR = 1,
  WORD_SHAPE,
  WORD_TUPLE,
  WORD_INT,
  WORD_DTYPE,
  WORD_RESULT,
  WORD_ELLIPSIS,
  WORD_OBJECT
};
enum { WORDS_MOST = 2048, TUPLE_DEPTH_MOST = 8, COUNT_MOST = 0xffffff };

/* How much of its arguments a call shows; chosen by its name. */
enum {
  SHOW_TENSORS = 0, /* tensors, shapes and tuples of them */
  SHOW_SCALARS = 1, /* integers and dtypes as well: what an allocation is made of */
  HIDE_TUPLES = 2   /* of a tuple the number of its elements alone */
};

enum { SIGNATURE_TENSOR = 1 }; /* a signature's flag: a tensor is among the arguments */

typedef struct {
  uint64_t* words; /* room for WORDS_MOST + 1 */
  int count;
  bool full;
} encoder;

static inline uint64_t tag_word(uint64_t kind, uint64_t count, uint32_t info) {
  return kind << 56 | (count & COUNT_MOST) << 32 | info;
}

static inline uint32_t dtype_info(DLDataType dtype) {
  return (uint32_t)dtype.code | (uint32_t)dtype.bits << 8 | (uint32_t)dtype.lanes << 16;
}

static inline uint64_t device_word(DLDevice device) {
  return (uint64_t)(uint32_t)device.device_type << 32 | (uint32_t)device.device_id;
}

static void encode_cut(encoder* to) {
  if (!to->full) to->words[to->count++] = tag_word(WORD_ELLIPSIS, 0, 0);
  to->full = true;
}

static inline bool encode_room(encoder* to, int64_t words) {
  if (LIKELY(words >= 0 && to->count + words <= WORDS_MOST && !to->full)) return true;
  encode_cut(to);
  return false;
}

static inline void encode_numbers(encoder* to, const int64_t* numbers, int count) {
  for (int i = 0; i < count; ++i) to->words[to->count++] = (uint64_t)numbers[i];
}

static inline void encode_tensor(encoder* to, const DLTensor* tensor) {
  int dimensions = tensor->ndim;
  if (!encode_room(to, dimensions < 0 ? -1 : (int64_t)dimensions + 2)) return;
  if (UNLIKELY(!tensor->shape)) dimensions = 0;
  to->words[to->count++] = tag_word(WORD_TENSOR, (uint64_t)dimensions, dtype_info(tensor->dtype));
  to->words[to->count++] = device_word(tensor->device);
  encode_numbers(to, tensor->shape, dimensions);
}

static inline void encode_shape(encoder* to, const TVMFFIShapeCell* shape) {
  if (!encode_room(to, shape->size > WORDS_MOST ? -1 : (int64_t)shape->size + 1)) return;
  to->words[to->count++] = tag_word(WORD_SHAPE, shape->size, 0);
  encode_numbers(to, shape->data, (int)shape->size);
}

static void encode_value(encoder* to, const TVMFFIAny* value, uint32_t show, int depth);

static void encode_tuple(encoder* to, const TVMFFISeqCell* tuple, uint32_t show, int depth) {
  if (!encode_room(to, 2)) return; /* its tag, and the ellipsis of one that is not shown */
  int64_t size = tuple->size < 0 ? 0 : tuple->size;
  to->words[to->count++] = tag_word(WORD_TUPLE, size > COUNT_MOST ? COUNT_MOST : (uint64_t)size, 0);
  if (show & HIDE_TUPLES || depth >= TUPLE_DEPTH_MOST) {
    to->words[to->count++] = tag_word(WORD_ELLIPSIS, 0, 0);
    return;
  }
  const TVMFFIAny* elements = (const TVMFFIAny*)tuple->data;
  for (int64_t i = 0; i < tuple->size && !to->full; ++i) {
    int filled = to->count;
    encode_value(to, &elements[i], show, depth + 1);
    /* every element keeps its place, also one that has nothing to show */
    if (to->count == filled && encode_room(to, 1)) {
      to->words[to->count++] = tag_word(WORD_OBJECT, 0, 0);
    }
  }
}

static inline void encode_scalar(encoder* to, const TVMFFIAny* value) {
  if (value->type_index == kTVMFFIInt || value->type_index == kTVMFFIBool) {
    if (!encode_room(to, 2)) return;
    to->words[to->count++] = tag_word(WORD_INT, 0, 0);
    to->words[to->count++] = (uint64_t)value->v_int64;
  } else if (value->type_index == kTVMFFIDataType) {
    if (!encode_room(to, 1)) return;
    to->words[to->count++] = tag_word(WORD_DTYPE, 0, dtype_info(value->v_dtype));
  }
}

static void encode_value(encoder* to, const TVMFFIAny* value, uint32_t show, int depth) {
  const DLTensor* tensor = tensor_of(value);
  if (tensor) {
    encode_tensor(to, tensor);
  } else if (value->type_index == kTVMFFIShape) {
    encode_shape(to, (const TVMFFIShapeCell*)cell_of(value->v_obj));
  } else if (value->type_index == kTVMFFIArray || value->type_index == kTVMFFIList) {
    encode_tuple(to, (const TVMFFISeqCell*)cell_of(value->v_obj), show, depth);
  } else if (show & SHOW_SCALARS) {
    encode_scalar(to, value);
  }
}

static inline void encode_arguments(encoder* to, const TVMFFIAny* arguments, int count,
                                    uint32_t show) {
  for (int i = 0; i < count; ++i) {
    const TVMFFIAny* argument = &arguments[i];
    switch (argument->type_index) {
      case kTVMFFITensor:
        encode_tensor(to, (const DLTensor*)cell_of(argument->v_obj));
        break;
      case kTVMFFIShape:
        encode_shape(to, (const TVMFFIShapeCell*)cell_of(argument->v_obj));
        break;
      case kTVMFFIDLTensorPtr:
      case kTVMFFIArray:
      case kTVMFFIList:
        encode_value(to, argument, show, 0);
        break;
      default:
        if (show & SHOW_SCALARS) encode_scalar(to, argument);
    }
  }
}

/* Append the result of a call, for the few builtins whose arguments don't say what they make. */
static void encode_result(encoder* to, const TVMFFIAny* result) {
  if (result->type_index == kTVMFFINone || !encode_room(to, 1)) return;
  to->words[to->count++] = tag_word(WORD_RESULT, 0, 0);
  encode_value(to, result, SHOW_TENSORS, 0);
}

/* SIGNATURE_TENSOR, if words say so: to be asked when they are new. */
static inline uint32_t signature_flags(const uint64_t* words, size_t count) {
  for (size_t at = 0; at < count; ++at) {
    uint64_t kind = words[at] >> 56;
    if (kind == WORD_TENSOR) return SIGNATURE_TENSOR;
    if (kind == WORD_RESULT) return 0;
    if (kind == WORD_SHAPE) at += words[at] >> 32 & COUNT_MOST;
    if (kind == WORD_INT) ++at;
  }
  return 0;
}

#endif /* RELAX_TRACE_ENCODE_H_ */
