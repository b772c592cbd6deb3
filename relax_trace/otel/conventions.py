"""The names that OpenTelemetry sees: scopes, attributes, metrics. The README has them as a table.

``error.type``, ``thread.*`` and ``process.*`` are OpenTelemetry's semantic conventions; what is
ours stands under ``tvm``. Importing this needs no other package.
"""

import importlib.metadata
from contextlib import suppress

# Instrumentation scopes. Ops have one of their own, so that they can be switched off by scope.
SCOPE = "relax_trace"
OPS_SCOPE = "relax_trace.ops"


def scope_version() -> str:
    """That of relax_trace; none where it runs from a source tree."""
    with suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version("relax-trace")
    return ""


# Attributes of an invocation's span.
MODEL_NAME = "tvm.model.name"  # string: the VM's name
FUNCTION = "tvm.vm.function"  # string: the entry function
OP_COUNT = "tvm.vm.op.count"  # int: recorded calls directly in this invocation
OP_TIME = "tvm.vm.op.time"  # double, s: their time, nested ones counted once
OP_DROPPED = "tvm.vm.op.dropped"  # int: calls that the recording as a whole lost, where it did
CAPTURE_REASON = "tvm.capture.reason"  # string: why it was recorded
CAPTURE_UNSEEN = "tvm.capture.unseen"  # string[]: "start", "end" where the recording missed it
TIMING = "tvm.timing"  # string: "host", or "synchronized" with the device

# Attributes of an op's span.
OP_NAME = "tvm.op.name"  # string
OP_KIND = "tvm.op.kind"  # string: "kernel", "builtin", "function", "extern"
OP_SHAPES = "tvm.op.argument_shapes"  # string[]: "float32[1, 64, 56, 56]", one an argument
DEVICE_TYPE = "tvm.device.type"  # string: "cuda"; of a copy: where to
DEVICE_ID = "tvm.device.id"  # int
SOURCE_TYPE = "tvm.device.source.type"  # string: where a copy comes from
SOURCE_ID = "tvm.device.source.id"  # int

# Attributes of both; the conventions of OpenTelemetry.
ERROR_TYPE = "error.type"  # string: the exception's type, or OTHER_ERROR
OTHER_ERROR = "_OTHER"
THREAD_ID = "thread.id"  # int
THREAD_NAME = "thread.name"  # string
PROCESS_ID = "process.pid"  # int, of the resource
HOST_NAME = "host.name"  # string, of the resource

# Metrics, and the attributes that only they have.
INVOCATION_DURATION = "tvm.vm.invocation.duration"  # histogram, s
ACTIVE_INVOCATIONS = "tvm.vm.active_invocations"  # observable up-down counter
OP_TIME_TOTAL = "tvm.op.time"  # observable counter, s
OP_CALLS = "tvm.op.calls"  # observable counter, {call}
DROPPED = "tvm.trace.dropped"  # observable counter, {record}
DROPPED_REASON = "reason"  # string: "ring", "queue", "rate", "export", "shutdown"
