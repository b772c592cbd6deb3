"""Spans: what the application itself traced while a recording ran, as columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import TraceFileError
from .ragged import Index

# A flag of a span; the others are those of an invocation: FAILED, OPEN, SAMPLED.
OF_INVOCATION = 16  # made of an invocation of a VM: it has a row among the invocations, too

# The columns, and their types in files.
COLUMNS: Mapping[str, str] = {
    "start": "<i8",
    "end": "<i8",
    "name": "<i4",
    "thread": "<i4",
    "trace_id": "|u1",
    "span_id": "<u8",
    "parent_id": "<u8",
    "flags": "<u2",
}


@dataclass(frozen=True)
class Spans:
    """The application's own spans, ordered by start; arrays are of shape ``(n,)`` but for one.

    ``start`` and ``end`` are int64 nanoseconds since the Unix epoch, by the wall clock (a Trace's
    other times follow the monotonic clock, and stay within 1 ms of it). ``name`` indexes ``names``;
    ``thread``, on which it began, ``Trace.threads``. ``trace_id``, ``(n, 16)``, ``span_id`` and
    ``parent_id`` (0: none) are OpenTelemetry's. ``flags``: ``FAILED``, ``SAMPLED``,
    ``OF_INVOCATION``, and ``OPEN`` where it had not ended when the trace was taken: its end is then
    that moment.
    """

    start: NDArray[np.int64]
    end: NDArray[np.int64]
    name: NDArray[np.int32]
    thread: NDArray[np.int32]
    trace_id: NDArray[np.uint8]
    span_id: NDArray[np.uint64]
    parent_id: NDArray[np.uint64]
    flags: NDArray[np.uint16]
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.start)

    def rows_of(self, trace_id: NDArray[np.uint8], span_id: NDArray[np.uint64]) -> Index:
        """The row of the span that has each of these ids, or -1."""
        rows = np.full(len(span_id), -1)
        if len(self):
            order = np.argsort(self.span_id, kind="stable")
            place = np.searchsorted(self.span_id[order], span_id)
            found = order[np.minimum(place, len(order) - 1)]
            same = (self.span_id[found] == span_id) & (self.trace_id[found] == trace_id).all(1)
            rows[same & (span_id > 0)] = found[same & (span_id > 0)]
        return rows

    def parents(self) -> Index:
        """The row of the span right around each, or -1."""
        return self.rows_of(self.trace_id, self.parent_id)


def spans_of(columns: Mapping[str, NDArray[Any]], names: tuple[str, ...]) -> Spans:
    """The spans in these columns, whose trace ids may be laid end to end."""
    ids = columns["trace_id"].reshape(-1, 16)
    return Spans(**{**columns, "trace_id": ids}, names=names)


def no_spans() -> Spans:
    """A table without a row."""
    return spans_of({name: np.empty(0, dtype) for name, dtype in COLUMNS.items()}, ())


def check_spans(spans: Spans, threads: int) -> None:
    """Raise ``TraceFileError`` where a column points outside its table, or lengths differ."""
    for name in COLUMNS:
        shape = (len(spans), 16) if name == "trace_id" else (len(spans),)
        if getattr(spans, name).shape != shape:
            raise TraceFileError(f"column {name!r} of the spans is not {len(spans)} rows long")
    for name, size in (("name", len(spans.names)), ("thread", threads)):
        values = getattr(spans, name)
        if len(values) and (values.min() < 0 or values.max() >= size):
            raise TraceFileError(f"column {name!r} of the spans points outside its table")
    if (spans.end < spans.start).any() or (np.diff(spans.start) < 0).any():
        raise TraceFileError("the spans are damaged: one ends before it starts, or out of order")
