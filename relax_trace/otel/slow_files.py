"""The ops of a slow invocation as a Trace of its own, to be written to a file."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..trace import Trace
from .capture import Captured
from .finished import Finished


def trace_of(captured: Captured, one: Finished) -> tuple[Trace, str]:
    """Its ops, whole; and why they are written."""
    whole = captured.trace
    trace = whole.take_invocations(captured.tags == one.tag, np.ones(len(whole), bool))
    trace = replace(trace, vms=(one.invocation.model,) * len(trace.vms))
    what = f"{one.invocation.function!r} of {one.invocation.model!r}"
    if one.invocation.error_type:
        return trace, f"{what} failed"
    return trace, f"{what} took {one.invocation.seconds * 1e3:.3f} ms"
