"""The end of a program under ``relax-trace run``: write its trace, print its table to stderr.

Runs inside the program, after its threads and its exit handlers.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress

from .announce import next_steps, written
from .errors import InstrumentError, RelaxTraceError
from .recording import Recording
from .report.layout import visible
from .trace import Trace

Say = Callable[[str], None]


def finish(recording: Recording, path: str, shown: str, say: Say) -> None:
    """Write the trace to ``path``, which the user knows as ``shown``.

    The process then ends with its own exit code, but with 1 where the trace can't be written.
    """
    _flush()  # what the program printed comes before what is printed here
    interrupted = getattr(sys, "last_type", None) is KeyboardInterrupt  # and nobody caught it
    try:
        trace = _trace_of(recording, say)
        if len(trace.invocations):
            trace.save(path)
            say(f"\n{trace.report().table()}\n{written(trace, shown)}\n{next_steps(shown)}")
        else:
            say("relax-trace: no Relax VM ran, so there is no trace")
    except KeyboardInterrupt:
        say("relax-trace: interrupted while writing the trace")
        _die_of_interrupt()
    except (OSError, RelaxTraceError, MemoryError) as error:
        reason = f"{shown}: {error.strerror}" if isinstance(error, OSError) else str(error)
        say(f"relax-trace: error: no trace: {_one_line(reason)}")
        if not interrupted:
            _fail()
    if interrupted:
        _keep_interrupted()


def _trace_of(recording: Recording, say: Say) -> Trace:
    """What was recorded; warnings go to the user, whatever the program does with its own."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            recording.stop()
        except InstrumentError as error:  # something is missing, the rest is there
            say(f"relax-trace: warning: {_one_line(str(error))}")
        trace = recording.trace
    for warning in caught:
        say(f"relax-trace: warning: {_one_line(str(warning.message))}")
    return trace


def _one_line(text: str) -> str:
    return visible(" ".join(text.split()))


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # Python meets the same error when it ends, and reports it
            stream.flush()


def _fail() -> None:
    """Exit with 1.

    An exit handler can't learn the code that Python is about to exit with, nor change it: it can
    only end the process itself.
    """
    _flush_everything()
    os._exit(1)


def _keep_interrupted() -> None:
    """Have Python die of the signal after a KeyboardInterrupt, as it was about to.

    It forgets that with every string that is executed, as dataclasses and namedtuples do, and notes
    it again when such a string raises the exception.
    """
    with suppress(KeyboardInterrupt):
        exec("raise KeyboardInterrupt")


def _die_of_interrupt() -> None:
    """As Python does where nobody catches a KeyboardInterrupt."""
    _flush_everything()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGINT)


def _flush_everything() -> None:
    _flush()
    ctypes.CDLL(None).fflush(None)  # what C and C++ code printed
