"""The ops of a slow invocation as a Trace of its own, to be written to a file."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..trace import Trace
from .capture import Captured
from .finished import Finished


def trace_of(captured: Captured, one: Finished) -> tuple[Trace, str]:
    """Its ops, whole; and why they are written."""
    trace = captured.trace.take_invocations(captured.tags == one.tag)
    context = one.invocation.span_context
    ids = np.frombuffer(context.trace_id.to_bytes(16, "big"), np.uint8)
    calls = trace.invocations
    calls = replace(
        calls,
        trace_id=np.tile(ids, (len(calls), 1)),
        span_id=np.full(len(calls), context.span_id, np.uint64),
    )
    trace = replace(trace, vms=(one.invocation.model,) * len(trace.vms), invocations=calls)
    what = f"{one.invocation.function!r} of {one.invocation.model!r}"
    if one.invocation.error_type:
        return trace, f"{what} failed"
    return trace, f"{what} took {one.invocation.seconds * 1e3:.3f} ms"
