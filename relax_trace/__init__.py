"""relax_trace: see where time goes inside a TVM Relax model."""

from .concatenation import concatenate
from .errors import (
    ExportError,
    InstrumentError,
    ModelError,
    RecorderError,
    RelaxTraceError,
    RelaxTraceWarning,
    TraceFileError,
)
from .profiling import profile
from .recording import Recording, record
from .report import Report
from .schedules import Action, Schedule, schedule
from .spans import Spans
from .trace import Device, Invocations, Losses, Thread, Trace, load

__all__ = [
    "Action",
    "Device",
    "ExportError",
    "InstrumentError",
    "Invocations",
    "Losses",
    "ModelError",
    "RecorderError",
    "Recording",
    "RelaxTraceError",
    "RelaxTraceWarning",
    "Report",
    "Schedule",
    "Spans",
    "Thread",
    "Trace",
    "TraceFileError",
    "concatenate",
    "load",
    "profile",
    "record",
    "schedule",
]
