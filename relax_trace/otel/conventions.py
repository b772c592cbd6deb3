"""Names that spans and metrics carry: scopes, attributes and instruments, each in one place."""

from typing import Final

SCOPE: Final = "relax_trace"  # invocations, metrics
OPS_SCOPE: Final = "relax_trace.ops"  # op spans, so that they can be switched off by scope

# Of an invocation.
MODEL_NAME: Final = "tvm.model.name"
VM_FUNCTION: Final = "tvm.vm.function"
OP_COUNT: Final = "tvm.vm.op.count"  # int
OP_TIME: Final = "tvm.vm.op.time"  # s
OP_DROPPED: Final = "tvm.vm.op.dropped"  # int
CAPTURE_REASON: Final = "tvm.capture.reason"
TIMING: Final = "tvm.timing"
ERROR_TYPE: Final = "error.type"  # of an op as well

# Of an op.
OP_NAME: Final = "tvm.op.name"
OP_KIND: Final = "tvm.op.kind"  # kernel, builtin, function, extern
ARGUMENT_SHAPES: Final = "tvm.op.argument_shapes"  # string[]
DEVICE_TYPE: Final = "tvm.device.type"
DEVICE_ID: Final = "tvm.device.id"  # int
SOURCE_DEVICE_TYPE: Final = "tvm.device.source.type"  # of copies
SOURCE_DEVICE_ID: Final = "tvm.device.source.id"  # int

# Of both.
THREAD_ID: Final = "thread.id"  # Python's ident, not the kernel's
THREAD_NAME: Final = "thread.name"

# Instruments.
INVOCATION_DURATION: Final = "tvm.vm.invocation.duration"  # histogram, s
ACTIVE_INVOCATIONS: Final = "tvm.vm.active_invocations"  # observable up-down counter
OP_TIME_TOTAL: Final = "tvm.op.time"  # observable counter, s
OP_CALLS: Final = "tvm.op.calls"  # observable counter, {call}
TRACE_DROPPED: Final = "tvm.trace.dropped"  # observable counter, {record}
DROP_REASON: Final = "reason"  # ring, queue, rate, shutdown
