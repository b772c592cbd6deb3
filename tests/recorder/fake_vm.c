/* A stand-in for a Relax VM; see fake_vm.h. */
#include "fake_vm.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "random.h"

enum { BEFORE = 2, RESULT = 3, FIRST = 4, ARGUMENTS_MOST = 6, NEST_MOST = 300 };

static const char* const op_names[] = {
    "vm.builtin.alloc_storage",
    "vm.builtin.alloc_tensor",
    "vm.builtin.to_device",
    "vm.builtin.tuple_getitem",
    "vm.builtin.null_value",
    "vm.builtin.invoke_closure",
    "inner", /* a Relax function: its callee is a closure */
    "vm.builtin.cuda_graph.run_or_capture",
    "runtime.Device_StreamSync", /* a registered function */
    "fused_conv2d_add_relu",
    "add",
    "",
    "\x1b[31m</script>\"\\\xff\xc3",
    "a_name_that_is_much_longer_than_those_that_fit_into_a_small_string_or_a_cache_line_or_two",
};
enum {
  CLOSURE_CALL = 5,
  INNER_FUNCTION = 6,
  OP_NAMES = sizeof op_names / sizeof *op_names,
  POOL = 12,
};

/* The module object itself. */
typedef struct {
  TVMFFIObject header;
  TVMFFIObjectHandle slot; /* the instrument, or NULL; changed at rest alone */
  char* symbols[OP_NAMES]; /* as an executable holds them: a younger one's may lie there later */
  TVMFFIAny pool[POOL];    /* what its ops take as arguments */
} vm_object;

/* One run of a function. */
typedef struct {
  vm_object* vm;
  const char* name;
  uint64_t random;
  int left; /* op calls still to run */
  bool checks, dynamic, nests, visits, throws_error, throws_python, catches;
} run;

static __thread void (*visit)(void* self);
static __thread void* visit_self;
static _Atomic uint64_t told;
static __thread int told_open;

uint64_t ops_told(void) { return atomic_load(&told); }

int ops_open(void) { return told_open; }

void visit_with(void (*function)(void* self), void* self) {
  visit = function;
  visit_self = self;
}

void visit_nothing(void) { visit_with(NULL, NULL); }

/* ---- arguments ---- */

static TVMFFIAny tensor_value(DLDevice device, int dimensions, const int64_t* shape) {
  DLDataType float32 = {kDLFloat, 32, 1};
  return object_of(new_tensor(float32, device, dimensions, shape));
}

static void fill_pool(vm_object* vm) {
  static const int64_t shape[] = {1, 64, 56, 56};
  static DLTensor borrowed = {
      .device = {kDLCPU, 0}, .ndim = 2, .dtype = {kDLInt, 8, 4}, .shape = (int64_t*)shape};
  DLDevice cpu = {kDLCPU, 0}, gpu = {kDLCUDA, 1};
  TVMFFIAny* pool = vm->pool;
  pool[0] = tensor_value(cpu, 4, shape);
  pool[1] = tensor_value(gpu, 2, shape);
  pool[2] = tensor_value(cpu, 0, shape);
  pool[3] = object_of(new_shape(shape, 4));
  pool[4] = integer_of(-7);
  pool[5] = pointer_of(kTVMFFIOpaquePtr, vm);
  pool[6] = pointer_of(kTVMFFIDLTensorPtr, &borrowed);
  pool[7] = pointer_of(kTVMFFIDLTensorPtr, NULL);
  pool[8] = object_of(new_closure("closure_1"));
  TVMFFIAny elements[3];
  for (int i = 0; i < 3; ++i) value_copy(&elements[i], &pool[i + 1]);
  pool[9] = object_of(new_sequence(kTVMFFIArray, elements, 3));
  value_copy(&elements[0], &pool[9]);
  pool[10] = object_of(new_sequence(kTVMFFIList, elements, 1));
  pool[11] = boolean_of(true);
}

/* The string that names the function being checked, as TVM writes it. */
static TVMFFIAny check_context(const run* at) {
  char text[256];
  int size = snprintf(text, sizeof text, "ErrorContext(fn=%s, loc=param[0], param=x)", at->name);
  return object_of(new_text(text, (size_t)size));
}

/* Fill `to`, and return how many there are; the caller releases them. */
static int make_arguments(run* at, int op, TVMFFIAny* to) {
  int count = 0;
  if (op == CLOSURE_CALL) {
    to[count++] = pointer_of(kTVMFFIOpaquePtr, at->vm);
    value_copy(&to[count++], &at->vm->pool[8]);
  }
  if (at->dynamic) {
    int64_t shape[2] = {(int64_t)random_next(&at->random), at->left};
    to[count++] = tensor_value((DLDevice){kDLCPU, 0}, 2, shape);
  }
  for (uint32_t more = random_below(&at->random, ARGUMENTS_MOST - 3); more > 0; --more) {
    value_copy(&to[count++], &at->vm->pool[random_below(&at->random, POOL)]);
  }
  return count;
}

/* Mostly the executable's own characters, as from the VM; now and then what nobody should count on. */
static TVMFFIAny make_symbol(run* at, int op) {
  const char* name = at->vm->symbols[op];
  size_t size = strlen(name);
  TVMFFIAny small = pointer_of(kTVMFFISmallStr, NULL);
  switch (random_below(&at->random, 32)) {
    case 0:
      return object_of(new_text(name, size));
    case 1:
      small.small_str_len = size < 7 ? (uint32_t)size : 7;
      memcpy(small.v_bytes, name, small.small_str_len);
      return small;
    case 2:
      return none();
    default:
      return pointer_of(kTVMFFIRawStr, name);
  }
}

/* ---- running ---- */

static void tell(vm_object* vm, TVMFFIAny* arguments, int count, bool before) {
  TVMFFIAny result = none();
  arguments[BEFORE].v_int64 = before;
  if (TVMFFIFunctionCall(vm->slot, arguments, count, &result)) abort();
  if (result.type_index != kTVMFFINone) abort(); /* anything true would skip the op */
}

static int throws(const run* at) {
  static const char message[] =
      "it said \x1b[0m\xff and\nmore, much more than fits, again and again, "
      "again and again, again and again, again and again, and again";
  if (at->throws_python) return THREW_PYTHON;
  TVMFFIErrorSetRaisedFromCStr("ValueError", message);
  return THREW_ERROR;
}

static int run_ops(run* at, int depth);

/* What happens between an op's before and its after. */
static int run_body(run* at, int op, int depth) {
  if (at->left == 0 && (at->throws_error || at->throws_python)) return throws(at);
  if (at->visits && visit && one_in(&at->random, 4)) {
    visit(visit_self);
    return 0;
  }
  bool nests = at->nests || op == CLOSURE_CALL || op == INNER_FUNCTION || one_in(&at->random, 5);
  int code = nests && depth < NEST_MOST ? run_ops(at, depth + 1) : 0;
  if (code && at->catches && depth == 0) {
    drop_raised();
    code = 0;
  }
  return code;
}

/* Run one op, the first of its function if `first`, and whatever it nests. */
static int run_op(run* at, int depth, bool first) {
  vm_object* vm = at->vm;
  TVMFFIAny arguments[FIRST + ARGUMENTS_MOST];
  int op = (int)random_below(&at->random, OP_NAMES);
  int count = FIRST + make_arguments(at, op, arguments + FIRST);
  arguments[0] = op == INNER_FUNCTION ? vm->pool[8] : none();
  TVMFFIAny symbol = make_symbol(at, op);
  arguments[1] = symbol;
  arguments[BEFORE] = boolean_of(true);
  arguments[RESULT] = none();
  if (first && at->checks) {
    arguments[0] = none();
    arguments[1] = pointer_of(kTVMFFIRawStr, "vm.builtin.check_tensor_info");
    arguments[count++] = check_context(at);
  }
  --at->left;
  TVMFFIObjectHandle slot = vm->slot;
  if (slot) {
    tell(vm, arguments, count, true);
    atomic_fetch_add(&told, 1);
    ++told_open;
  }
  int code = run_body(at, op, depth);
  if (vm->slot != slot) abort(); /* the real VM would crash */
  told_open -= slot != NULL;
  if (slot && !code) {
    arguments[RESULT] = vm->pool[random_below(&at->random, POOL)];
    tell(vm, arguments, count, false);
  }
  value_release(&symbol);
  for (int i = FIRST; i < count; ++i) value_release(&arguments[i]);
  return code;
}

static int run_ops(run* at, int depth) {
  for (bool first = depth == 0; at->left > 0; first = false) {
    int code = run_op(at, depth, first);
    if (code) return code;
    if (depth > 0 && one_in(&at->random, 3)) return 0; /* a nested function that returns */
  }
  return 0;
}

/* Run the function of this name. */
static int run_function(vm_object* vm, const char* name, TVMFFIAny* result) {
  size_t letters = strspn(name, "cdnvtpk");
  char* end;
  run at = {.vm = vm, .name = name, .left = (int)strtoul(name + letters, &end, 10)};
  if (*end != '_') abort();
  at.random = strtoul(end + 1, &end, 10);
  if (*end) abort();
  for (size_t i = 0; i < letters; ++i) {
    at.checks |= name[i] == 'c';
    at.dynamic |= name[i] == 'd';
    at.nests |= name[i] == 'n';
    at.visits |= name[i] == 'v';
    at.throws_error |= name[i] == 't';
    at.throws_python |= name[i] == 'p';
    at.catches |= name[i] == 'k';
  }
  int code = run_ops(&at, 0);
  if (!code) value_copy(result, &vm->pool[0]);
  return code;
}

/* ---- its functions ---- */

typedef struct {
  vm_object* vm;
  char name[64];
} vm_function;

/* The characters of a string value, copied. */
static void copy_text(const TVMFFIAny* value, char* to, size_t room) {
  if (value->type_index == kTVMFFIStr) {
    const TVMFFIByteArray* bytes = (const TVMFFIByteArray*)cell(value->v_obj);
    snprintf(to, room, "%.*s", (int)bytes->size, bytes->data);
  } else if (value->type_index == kTVMFFIRawStr) {
    snprintf(to, room, "%s", value->v_c_str);
  } else {
    abort();
  }
}

static int on_function(void* self, const TVMFFIAny* arguments, int32_t count, TVMFFIAny* result) {
  vm_function* function = (vm_function*)self;
  vm_object* vm = function->vm;
  char name[64];
  snprintf(name, sizeof name, "%s", function->name);
  if (strcmp(name, "set_instrument") == 0) {
    TVMFFIObjectHandle before = vm->slot;
    TVMFFIAny filled;
    value_copy(&filled, &arguments[0]);
    vm->slot = filled.type_index == kTVMFFINone ? NULL : filled.v_obj;
    if (before) TVMFFIObjectDecRef(before);
    return 0;
  }
  if (count && strcmp(name, "invoke_stateful") == 0) copy_text(&arguments[0], name, sizeof name);
  if (count && strcmp(name, "invoke_closure") == 0) {
    copy_text((const TVMFFIAny*)cell(arguments[0].v_obj), name, sizeof name);
  }
  return run_function(vm, name, result);
}

static void delete_function_self(void* self) {
  TVMFFIObjectDecRef(((vm_function*)self)->vm);
  free(self);
}

/* ffi.ModuleGetFunction(module, name, whether to look into its imports). */
static int on_get_function(void* self, const TVMFFIAny* arguments, int32_t count,
                           TVMFFIAny* result) {
  (void)self;
  if (count != 3 || arguments[0].type_index != kTVMFFIModule) abort();
  vm_function* function = (vm_function*)calloc(1, sizeof *function);
  if (!function) abort();
  copy_text(&arguments[1], function->name, sizeof function->name);
  if (strcmp(function->name, "missing") == 0) {
    free(function);
    return 0; /* None */
  }
  function->vm = (vm_object*)arguments[0].v_obj;
  TVMFFIObjectIncRef(function->vm);
  TVMFFIObjectHandle made;
  TVMFFIFunctionCreate(function, on_function, delete_function_self, &made);
  *result = object_of(made);
  return 0;
}

static void delete_vm(void* self, int flags) {
  (void)flags;
  vm_object* vm = (vm_object*)self;
  if (vm->slot) TVMFFIObjectDecRef(vm->slot);
  for (int i = 0; i < OP_NAMES; ++i) free(vm->symbols[i]);
  for (int i = 0; i < POOL; ++i) value_release(&vm->pool[i]);
  free(vm);
}

TVMFFIObjectHandle new_vm(void) {
  vm_object* vm = (vm_object*)new_object(kTVMFFIModule, sizeof *vm, delete_vm);
  for (int i = 0; i < OP_NAMES; ++i) vm->symbols[i] = strdup(op_names[i]);
  fill_pool(vm);
  return vm;
}

TVMFFIObjectHandle instrument_of(TVMFFIObjectHandle vm) { return ((vm_object*)vm)->slot; }

__attribute__((constructor)) static void register_get_function(void) {
  TVMFFIByteArray name = {"ffi.ModuleGetFunction", 21};
  TVMFFIObjectHandle function;
  TVMFFIFunctionCreate(NULL, on_get_function, NULL, &function);
  TVMFFIFunctionSetGlobal(&name, function, 1);
  TVMFFIObjectDecRef(function);
}
