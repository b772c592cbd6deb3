"""relax_trace: see where time goes inside a TVM Relax model."""

from .errors import (
    InstrumentError,
    ModelError,
    RecorderError,
    RelaxTraceError,
    RelaxTraceWarning,
    TraceFileError,
)
from .trace import Device, Invocations, Losses, Thread, Trace, concatenate, load

__all__ = [
    "Device",
    "InstrumentError",
    "Invocations",
    "Losses",
    "ModelError",
    "RecorderError",
    "RelaxTraceError",
    "RelaxTraceWarning",
    "Thread",
    "Trace",
    "TraceFileError",
    "concatenate",
    "load",
]
