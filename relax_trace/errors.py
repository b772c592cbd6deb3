"""The errors of relax_trace: each message says what is wrong, where, and what to do next."""


class RelaxTraceError(Exception):
    """Base of every error raised on purpose; the command line prints it as one line."""


class TraceFileError(RelaxTraceError, ValueError):
    """A trace file or a recorder's dump is cut short, damaged, or not one of ours."""


class InstrumentError(RelaxTraceError, RuntimeError):
    """The VM's one instrument slot is, or was, in somebody else's hands."""


class RecorderError(RelaxTraceError, RuntimeError):
    """The native recorder is missing, was built for another machine, or refused a request."""


class ModelError(RelaxTraceError, ValueError):
    """A model or its inputs can't be used as given."""


class ExportError(RelaxTraceError, RuntimeError):
    """Spans can't be made or sent: OpenTelemetry is missing, or a receiver did not take them."""


class RelaxTraceWarning(UserWarning):
    """A recording works but does not show what its user probably expects."""
