/* Feeds the encoder of arguments what no VM should: fuzz_encoding SEED ROUNDS OUTPUT.
 *
 * Whatever comes in, the words must follow the grammar of relax_trace/signature.py, and no memory
 * beyond an argument's own may be read, which the sanitizers watch. The first signatures are written
 * to the output, each behind the number of its words. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "encode.h"
#include "fake_ffi.h"
#include "random.h"

enum { ARGUMENTS_MOST = 8, WRITTEN = 1500, SHOWN_LONG = 20 };

#define REQUIRE(condition) ((condition) ? (void)0 : fail_at(#condition, __LINE__))

static void fail_at(const char* condition, int line) {
  fprintf(stderr, "line %d: %s does not hold\n", line, condition);
  abort();
}

/* ---- arguments ---- */

/* Mostly small, at times around the most words that there are, at times far beyond. */
static int32_t make_count(uint64_t* seed) {
  if (!one_in(seed, 12)) return (int32_t)random_below(seed, 6);
  return 2040 + (int32_t)random_below(seed, 20);
}

static int64_t* make_numbers(uint64_t* seed, int count) {
  int64_t* numbers = (int64_t*)malloc(((size_t)count + 1) * sizeof *numbers);
  REQUIRE(numbers);
  for (int i = 0; i < count; ++i) {
    numbers[i] = one_in(seed, 4) ? (int64_t)random_next(seed) : (int64_t)random_below(seed, 1000);
  }
  return numbers;
}

/* A dimension count that the shape's memory doesn't hold, or no shape at all. */
static void damage_tensor(uint64_t* seed, DLTensor* tensor) {
  static const int32_t counts[] = {-1, INT32_MIN, INT32_MAX, INT32_MAX - 1, 2047, 4096, 1 << 24};
  uint32_t chosen = random_below(seed, 12);
  if (chosen < 7) tensor->ndim = counts[chosen];
  if (chosen >= 4) tensor->shape = NULL;
}

static TVMFFIAny make_tensor(uint64_t* seed) {
  int count = make_count(seed);
  int64_t* shape = make_numbers(seed, count);
  uint64_t chance = random_next(seed);
  DLDataType dtype = {(uint8_t)chance, (uint8_t)(chance >> 8), (uint16_t)(chance >> 16)};
  DLDevice device = {(DLDeviceType)(one_in(seed, 2) ? 1 + chance % 18 : chance >> 33),
                     one_in(seed, 2) ? (int32_t)(chance % 8) : (int32_t)(chance >> 32)};
  TVMFFIAny value = object_of(new_tensor(dtype, device, count, shape));
  if (one_in(seed, 6)) damage_tensor(seed, (DLTensor*)cell(value.v_obj));
  free(shape);
  return value;
}

static TVMFFIAny make_shape(uint64_t* seed) {
  int count = make_count(seed);
  int64_t* numbers = make_numbers(seed, count);
  TVMFFIAny value = object_of(new_shape(numbers, (size_t)count));
  TVMFFIShapeCell* shape = (TVMFFIShapeCell*)cell(value.v_obj);
  if (one_in(seed, 10)) *shape = (TVMFFIShapeCell){NULL, 0};
  if (one_in(seed, 10)) shape->size = one_in(seed, 2) ? SIZE_MAX : 2049;
  free(numbers);
  return value;
}

static TVMFFIAny make_scalar(uint64_t* seed) {
  static const int32_t types[] = {
      kTVMFFINone,   kTVMFFIInt,      kTVMFFIBool,   kTVMFFIFloat,     kTVMFFIDataType,
      kTVMFFIDevice, kTVMFFISmallStr, kTVMFFIRawStr, kTVMFFIOpaquePtr, kTVMFFIDLTensorPtr};
  TVMFFIAny value = integer_of((int64_t)random_next(seed));
  value.type_index = types[random_below(seed, sizeof types / sizeof *types)];
  if (value.type_index == kTVMFFIDLTensorPtr) value.v_ptr = NULL;
  return value;
}

/* An object that shows nothing: a string, a map, one of a type that nobody knows. */
static TVMFFIAny make_object(uint64_t* seed) {
  TVMFFIAny value = object_of(new_text("text", 4));
  int32_t type = (int32_t)random_below(seed, 400);
  bool shown = type == kTVMFFIShape || type == kTVMFFITensor || type == kTVMFFIArray ||
               type == kTVMFFIList || type < kTVMFFIStaticObjectBegin;
  if (!shown) value.type_index = type;
  return value;
}

static TVMFFIAny make_value(uint64_t* seed, int depth);

static TVMFFIAny make_sequence(uint64_t* seed, int depth) {
  int count = one_in(seed, 20) ? 1000 + (int)random_below(seed, 2000) : (int)random_below(seed, 5);
  TVMFFIAny* elements = (TVMFFIAny*)malloc(((size_t)count + 1) * sizeof *elements);
  REQUIRE(elements);
  for (int i = 0; i < count; ++i) {
    elements[i] = count < 10 ? make_value(seed, depth + 1) : make_scalar(seed);
  }
  int32_t type = one_in(seed, 2) ? kTVMFFIArray : kTVMFFIList;
  TVMFFIAny value = object_of(new_sequence(type, elements, count));
  TVMFFISeqCell* sequence = (TVMFFISeqCell*)cell(value.v_obj);
  if (one_in(seed, 20)) sequence->size = -1;
  if (count > 2100 && one_in(seed, 2)) sequence->size = (INT64_C(1) << 24) + random_below(seed, 9);
  free(elements);
  return value;
}

static TVMFFIAny make_value(uint64_t* seed, int depth) {
  switch (random_below(seed, 8)) {
    case 0:
    case 1:
      return make_tensor(seed);
    case 2:
      return make_shape(seed);
    case 3:
    case 4:
    case 5:
      if (depth < 12) return make_sequence(seed, depth);
      return make_scalar(seed);
    case 6:
      return make_object(seed);
    default:
      return make_scalar(seed);
  }
}

/* ---- the grammar ---- */

typedef struct {
  const uint64_t *at, *end;
  bool cut; /* the last word says that something is left out */
} parser;

static void skip(parser* from, uint64_t words) {
  REQUIRE(words <= (uint64_t)(from->end - from->at));
  from->at += words;
}

static void parse_value(parser* from, int depth);

static void parse_tuple(parser* from, uint64_t count, int depth) {
  REQUIRE(depth <= TUPLE_DEPTH_MOST);
  if (from->at < from->end && *from->at == tag_word(WORD_ELLIPSIS, 0, 0)) {
    ++from->at; /* of a tuple that is not shown, or the cut, which comes last */
    from->cut = from->at == from->end;
    return;
  }
  for (uint64_t i = 0; i < count && !from->cut; ++i) parse_value(from, depth + 1);
}

static void parse_value(parser* from, int depth) {
  REQUIRE(from->at < from->end);
  uint64_t tag = *from->at++;
  uint64_t count = tag >> 32 & 0xffffff;
  switch (tag >> 56) {
    case WORD_TENSOR:
      skip(from, count + 1);
      break;
    case WORD_SHAPE:
      skip(from, count);
      break;
    case WORD_TUPLE:
      parse_tuple(from, count, depth);
      break;
    case WORD_INT:
      skip(from, 1);
      break;
    case WORD_DTYPE:
      break;
    case WORD_OBJECT:
      REQUIRE(depth > 0);
      break;
    case WORD_ELLIPSIS:
      from->cut = true;
      break;
    default:
      REQUIRE(!"a kind of argument");
  }
}

/* What follows the arguments, from word `split` on, is what encode_result() appended. */
static void parse(const encoder* encoded, int split) {
  REQUIRE(encoded->count <= WORDS_MOST + 1);
  parser arguments = {encoded->words, encoded->words + split, false};
  while (arguments.at < arguments.end) {
    REQUIRE(!arguments.cut || arguments.at[-1] == tag_word(WORD_ELLIPSIS, 0, 0));
    arguments.cut = false;
    parse_value(&arguments, 0);
  }
  REQUIRE(arguments.at == arguments.end);
  parser result = {arguments.end, encoded->words + encoded->count, false};
  if (result.at == result.end) return;
  uint64_t tag = *result.at++;
  REQUIRE(tag == tag_word(WORD_RESULT, 0, 0) || tag == tag_word(WORD_ELLIPSIS, 0, 0));
  if (result.at < result.end) parse_value(&result, 0);
  REQUIRE(result.at == result.end);
}

/* ---- rounds ---- */

static void write_words(FILE* output, const encoder* encoded) {
  uint64_t count = (uint64_t)encoded->count;
  REQUIRE(fwrite(&count, sizeof count, 1, output) == 1);
  REQUIRE(fwrite(encoded->words, sizeof count, count, output) == count);
}

/* One call's arguments, and its result, as the hook encodes them; whether they were written. */
static bool play(uint64_t* seed, FILE* output) {
  /* as much room as a thread has, and not a word more */
  uint64_t* words = (uint64_t*)malloc((WORDS_MOST + 1) * sizeof *words);
  REQUIRE(words);
  encoder to = {words, 0, false};
  TVMFFIAny values[ARGUMENTS_MOST], borrowed[ARGUMENTS_MOST];
  int count = (int)random_below(seed, ARGUMENTS_MOST + 1);
  for (int i = 0; i < count; ++i) {
    borrowed[i] = values[i] = make_value(seed, 0);
    if (values[i].type_index == kTVMFFITensor && one_in(seed, 2)) {
      borrowed[i] = pointer_of(kTVMFFIDLTensorPtr, cell(values[i].v_obj));
    }
  }
  encode_arguments(&to, borrowed, count, random_below(seed, 4));
  int split = to.count;
  if (count && one_in(seed, 3) && to.count < WORDS_MOST) {
    to.full = false; /* a call's arguments are known before, its result after */
    encode_result(&to, &borrowed[0]);
  }
  parse(&to, split);
  bool written = output && (to.count < SHOWN_LONG || one_in(seed, 50));
  if (written) write_words(output, &to);
  for (int i = 0; i < count; ++i) value_release(&values[i]);
  free(words);
  return written;
}

int main(int count, char** arguments) {
  REQUIRE(count == 4);
  uint64_t seed = strtoull(arguments[1], NULL, 10);
  long rounds = strtol(arguments[2], NULL, 10);
  FILE* output = fopen(arguments[3], "wb");
  REQUIRE(output);
  int written = 0;
  for (long round = 0; round < rounds; ++round) {
    written += play(&seed, written < WRITTEN ? output : NULL);
  }
  REQUIRE(fclose(output) == 0);
  return 0;
}
