"""relax_trace: see where time goes inside a TVM Relax model."""

from .concatenation import concatenate
from .errors import (
    InstrumentError,
    ModelError,
    RecorderError,
    RelaxTraceError,
    RelaxTraceWarning,
    TraceFileError,
)
from .recording import Recording, profile, record
from .report import Report
from .trace import Device, Invocations, Losses, Thread, Trace, load

__all__ = [
    "Device",
    "InstrumentError",
    "Invocations",
    "Losses",
    "ModelError",
    "RecorderError",
    "Recording",
    "RelaxTraceError",
    "RelaxTraceWarning",
    "Report",
    "Thread",
    "Trace",
    "TraceFileError",
    "concatenate",
    "load",
    "profile",
    "record",
]
