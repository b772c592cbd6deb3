"""The SDK's road: op spans through the application's own TracerProvider."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from opentelemetry.context import Context
from opentelemetry.trace import (
    Span,
    Status,
    StatusCode,
    Tracer,
    TracerProvider,
    get_tracer_provider,
    set_span_in_context,
)

from ..ragged import Index
from ..trace import ABORTED, KINDS, Device, Trace
from . import conventions as names
from .finished import Finished
from .selection import Selection

_log = logging.getLogger("relax_trace")

# The SDK's queue holds 2048 spans and drops the oldest beyond: these would be the application's.
_FLUSH_AFTER = 512  # op spans
_FLUSH_MILLISECONDS = 30_000


class SdkRoad:
    """Makes op spans of ``tracer``, no faster than ``provider`` exports them."""

    def __init__(self, tracer: Tracer, provider: TracerProvider | None) -> None:
        self._tracer = tracer
        self._provider = provider  # None: the global one, which may be set later
        self._unflushed = 0
        self._complained = False

    def take(self, selection: Selection) -> int:
        """Make the spans; the number of those that could not be made."""
        templates = _Templates(selection.trace)
        lost = 0
        for one, rows in zip(selection.finished, selection.rows, strict=True):
            made = 0
            try:
                for span in _spans_of(selection, rows, one, templates, self._tracer):
                    made += 1
                    self._pace(span)
            except Exception:  # the application's sampler, or a processor of its
                self._complain()
                lost += len(rows) - made
        return lost

    def _pace(self, span: Span) -> None:
        self._unflushed += span.get_span_context().trace_flags.sampled
        if self._unflushed >= _FLUSH_AFTER:
            self._unflushed = 0
            flush = getattr(self._provider or get_tracer_provider(), "force_flush", None)
            if flush:
                flush(_FLUSH_MILLISECONDS)

    def _complain(self) -> None:
        if not self._complained:
            self._complained = True
            _log.exception("op spans could not be made; this is said only once")

    def after_fork(self) -> None:
        """In a child process: what the SDK has there is the SDK's business."""


def _spans_of(
    selection: Selection, rows: Index, one: Finished, templates: _Templates, tracer: Tracer
) -> Iterator[Span]:
    """Make the spans of an invocation, and hand each over once it has ended."""
    trace, context = selection.trace, one.invocation.inside
    starts, ends = selection.start[rows].tolist(), selection.end[rows].tolist()
    thread: dict[str, Any] = {names.THREAD_ID: one.thread_id, names.THREAD_NAME: one.thread_name}
    around: dict[int, Context] = {-1: context}
    parents = set(trace.parent[rows].tolist())
    for row, start, end in zip(rows.tolist(), starts, ends, strict=True):
        span = tracer.start_span(
            trace.names[trace.name[row]],
            context=around[int(trace.parent[row])],
            start_time=start,
            attributes={**templates.of(row), **thread},
        )
        if trace.flags[row] & ABORTED:
            span.set_status(Status(StatusCode.ERROR))
            if one.invocation.error_type:
                span.set_attribute(names.ERROR_TYPE, one.invocation.error_type)
        span.end(end)
        if row in parents:
            around[row] = set_span_in_context(span, context)
        yield span


class _Templates:
    """The attributes of calls, made once for all that share them."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._made: dict[tuple[int, int, int], dict[str, Any]] = {}

    def of(self, row: int) -> dict[str, Any]:
        trace = self._trace
        key = (int(trace.name[row]), int(trace.signature[row]), int(trace.device[row]))
        if key not in self._made:
            self._made[key] = _attributes(trace, *key)
        return self._made[key]


def _attributes(trace: Trace, name: int, signature: int, device: int) -> dict[str, Any]:
    signatures = trace.signatures
    found: dict[str, Any] = {
        names.OP_NAME: trace.names[name],
        names.OP_KIND: KINDS[trace.kinds[name]],
    }
    if signatures.has_tensor[signature]:
        found[names.OP_SHAPES] = arguments_of(signatures.texts[signature].decode())
    if device >= 0:
        found |= _device(trace.devices[device], names.DEVICE_TYPE, names.DEVICE_ID)
    copied_to = int(signatures.destinations[signature])
    if copied_to >= 0 and device >= 0:
        source = _device(trace.devices[device], names.SOURCE_TYPE, names.SOURCE_ID)
        target = Device(copied_to >> 32, copied_to & 0xFFFFFFFF)
        found |= source | _device(target, names.DEVICE_TYPE, names.DEVICE_ID)
    return found


def _device(device: Device, type_name: str, id_name: str) -> dict[str, Any]:
    return {type_name: device.type_name, id_name: device.index}


def arguments_of(text: str) -> list[str]:
    """The arguments of a spelling: ``float32[1, 64], (int64[], int64[])`` has two."""
    found, depth, begin = [], 0, 0
    for at, character in enumerate(text):
        depth += (character in "([") - (character in ")]")
        if character == "," and depth == 0:
            found.append(text[begin:at])
            begin = at + 2
    return [*found, text[begin:]]
