"""Make the op spans of invocations that have ended."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from opentelemetry.context import Context
from opentelemetry.trace import Span, Status, StatusCode, Tracer, set_span_in_context

from ..ragged import Index
from ..trace import ABORTED, KINDS, Device, Trace
from . import conventions as names
from .capture import Captured


class Ended(NamedTuple):  # made in a fraction of a frozen dataclass's time
    """An invocation that has ended; times in ns since the Unix epoch."""

    model: str
    function: str
    inside: Context  # with its span
    start: int
    end: int
    error_type: str | None


@dataclass(frozen=True)
class Finished:
    """One whose ops are recorded."""

    invocation: Ended
    tag: int
    granted: int  # op spans
    thread_id: int
    thread_name: str


def make_spans(
    captured: Captured, finished: list[Finished], every_call: bool, tracer: Tracer
) -> Iterator[Span]:
    """Make the op spans, and hand each over once it has ended."""
    trace = captured.trace
    listed = np.ones(len(trace), bool)
    if not every_call:
        listed = trace.signatures.has_tensor[trace.signature]
    tags = captured.tags[trace.invocation]
    order = np.argsort(tags, kind="stable")
    wanted = np.array([one.tag for one in finished], np.uint32)
    first, last = (
        np.searchsorted(tags[order], wanted, side).tolist() for side in ("left", "right")
    )
    rows = [order[a:b] for a, b in zip(first, last, strict=True)]
    kept = np.zeros(len(trace), bool)
    for one, of_one in zip(finished, rows, strict=True):
        kept[longest(trace, of_one[listed[of_one]], one.granted)] = True
    small = trace.take_ops(kept)
    shift = captured.shift_ns[small.invocation]
    templates = _Templates(small)
    place = np.cumsum(kept) - 1
    for one, of_one in zip(finished, rows, strict=True):
        mine = place[of_one[kept[of_one]]]
        yield from _spans_of(small, mine, shift[mine], one, templates, tracer)


def longest(trace: Trace, rows: Index, count: int) -> Index:
    """At most ``count`` of the calls at ``rows``: those that threw, then the longest.

    A call takes no longer than the one around it, and throws only through that: so none is kept
    without those around it.
    """
    if len(rows) <= count:
        return rows
    threw = (trace.flags[rows] & ABORTED) > 0
    order = np.lexsort((-trace.duration[rows], ~threw))  # stable: outer calls come first
    return rows[order[:count]]


def _spans_of(
    trace: Trace,
    rows: Index,
    shift: NDArray[np.int64],
    one: Finished,
    templates: _Templates,
    tracer: Tracer,
) -> Iterator[Span]:
    whole, context = one.invocation, one.invocation.inside
    starts = np.clip(trace.start[rows] + shift, whole.start, whole.end).tolist()
    ends = np.clip(trace.end[rows] + shift, whole.start, whole.end).tolist()
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
            if whole.error_type:
                span.set_attribute(names.ERROR_TYPE, whole.error_type)
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
