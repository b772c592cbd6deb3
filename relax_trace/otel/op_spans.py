"""The SDK's road: op spans through the application's own TracerProvider."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from typing import Any

from opentelemetry.context import Context
from opentelemetry.trace import (
    Status,
    StatusCode,
    Tracer,
    TracerProvider,
    get_tracer_provider,
    set_span_in_context,
)

from ..exporters.otlp.templates import device_attributes
from ..ragged import Index
from ..trace import ABORTED, KINDS, Device, Trace
from . import conventions as names
from .finished import Finished
from .selection import Selection

_log = logging.getLogger("relax_trace")

# The SDK's queue holds 2048 spans and drops the oldest beyond: these would be the application's. So
# it is emptied before each of our lots, which take no more of it than an eighth.
_QUEUE_VARIABLE, _QUEUE = "OTEL_BSP_MAX_QUEUE_SIZE", 2048
_FLUSH_MILLISECONDS = 30_000


class SdkRoad:
    """Makes op spans of ``tracer``, no faster than ``provider`` exports them."""

    def __init__(self, tracer: Tracer, provider: TracerProvider | None) -> None:
        self._tracer = tracer
        self._provider = provider  # None: the global one, which may be set later
        self._lot = max(1, _queue_size() // 8)
        self._left = 0  # spans that can be made before the next flush
        self._complained = False

    def take(self, selection: Selection) -> int:
        """Make the spans; the number of those that could not be made."""
        templates = _Templates(selection.trace)
        self._left = 0  # the application's own may have come since
        lost = 0
        for one, rows in zip(selection.finished, selection.rows, strict=True):
            made = 0
            try:
                spans = _spans_of(selection, rows, one, templates, self._tracer)
                while made < len(rows) and self._has_room():
                    next(spans)
                    made += 1
            except Exception:  # the application's sampler, or a processor of its
                self._complain()
            lost += len(rows) - made
        return lost

    def _has_room(self) -> bool:
        """Whether one more span can be made; where the exporter doesn't keep up, none can."""
        if self._left == 0:
            flush = getattr(self._provider or get_tracer_provider(), "force_flush", None)
            if flush and not flush(_FLUSH_MILLISECONDS):
                return False
            self._left = self._lot
        self._left -= 1
        return True

    def _complain(self) -> None:
        if not self._complained:
            self._complained = True
            _log.exception("op spans could not be made; this is said only once")

    def after_fork(self) -> None:
        """In a child process: what the SDK has there is the SDK's business."""


def _queue_size() -> int:
    text = os.environ.get(_QUEUE_VARIABLE, "")
    return int(text) if text.strip().isdecimal() else _QUEUE


def _spans_of(
    selection: Selection, rows: Index, one: Finished, templates: _Templates, tracer: Tracer
) -> Iterator[None]:
    """Make the spans of an invocation, one at a time."""
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
        yield


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
        copied_to = int(signatures.destinations[signature])
        target = Device(copied_to >> 32, copied_to & 0xFFFFFFFF) if copied_to >= 0 else None
        found |= device_attributes(trace.devices[device], target)
    return found


def arguments_of(text: str) -> list[str]:
    """The arguments of a spelling: ``float32[1, 64], (int64[], int64[])`` has two."""
    found, depth, begin = [], 0, 0
    for at, character in enumerate(text):
        depth += (character in "([") - (character in ")]")
        if character == "," and depth == 0:
            found.append(text[begin:at])
            begin = at + 2
    return [*found, text[begin:]]
