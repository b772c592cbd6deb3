"""The application's own spans in Chrome JSON, and the arrows that lead from them.

A complete event (``"ph": "X"``, category ``span``) a span, with its ids as OpenTelemetry's tools
show them. A flow (``s`` to ``f``) leads to each outermost invocation, and each span, from the span
around it if that is on another track. Flow events belong to the innermost event of their track at
their time, the beginning of their own; of those at one time, Perfetto takes events that last first,
and the others as they come in the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import trace as model
from ..ragged import Bytes, Index, Part, Ragged, concatenate, stacked
from ..spans import Spans
from ..trace import Trace
from .lanes import Lanes
from .otlp.spans import big_endian
from .templates import Number, distinct, json_bytes, numbers, shown

Track = tuple[int, int]  # pid, tid

_MARKS = {
    model.FAILED: ("outcome", "failed"),
    model.OPEN: ("end", "not seen: it was still running when the trace was taken"),
}
_HEX = np.frombuffer(b"".join(b"%02x" % byte for byte in range(256)), "S2")


@dataclass(frozen=True)
class Timeline:
    """A trace's spans, laid out."""

    trace: Trace
    base: int  # ns since the epoch, of the file's times
    lanes: Lanes
    tracks: dict[tuple[int, int], Track]  # of each thread and lane
    led_to_calls: NDArray[np.bool_]  # of every invocation: whether an arrow leads there
    led_to_spans: Index  # the spans that one leads to

    @classmethod
    def of(cls, trace: Trace, tracks: list[Track], base: int) -> Timeline:
        """Lay out the spans of ``trace`` beside the ``tracks`` of its threads."""
        spans, calls, lanes = trace.spans, trace.invocations, Lanes.of(trace)
        pairs = zip(spans.thread[lanes.rows].tolist(), lanes.lane[lanes.rows].tolist(), strict=True)
        free = max((tid for _, tid in tracks), default=0) + 1
        numbered = {(thread, 0): track for thread, track in enumerate(tracks)}
        for thread, lane in sorted(set(pairs)):
            if lane:
                numbered[thread, lane] = (tracks[thread][0], free)
                free += 1
        outermost = np.flatnonzero((lanes.around_calls >= 0) & (calls.parent < 0))
        source = lanes.around_calls[outermost]
        own = np.zeros(len(outermost), np.int64)
        led = np.zeros(len(calls), bool)
        at = (calls.start[outermost], calls.thread[outermost], own)
        led[outermost] = _led(spans, lanes, source, *at)
        inner = lanes.rows[lanes.around[lanes.rows] >= 0]
        place = (spans.start[inner], spans.thread[inner], lanes.lane[inner])
        inner = inner[_led(spans, lanes, lanes.around[inner], *place)]
        return cls(trace, base, lanes, numbered, led, inner)

    def track_names(self) -> Iterator[dict[str, Any]]:
        """The metadata events of the tracks that are not a thread's own."""
        for (thread, lane), (pid, tid) in self.tracks.items():
            if lane:
                name = f"{shown(self.trace.threads[thread].name)}, spans {lane + 1}"
                args = {"name": name}
                yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": args}

    def events(self) -> Bytes:
        """All events of the spans, and the beginnings of all arrows, each behind a comma."""
        rows, spans = self.lanes.rows, self.trace.spans
        calls, inner = np.flatnonzero(self.led_to_calls), self.led_to_spans
        source = np.append(self.lanes.around_calls[calls], self.lanes.around[inner])
        target = np.append(calls, inner + len(self.trace.invocations))
        pieces = [
            self._complete(rows),
            self._flow(b"s", source, target, spans.start[source]),
            self._flow(b"f", inner, target[len(calls) :], spans.start[inner]),
        ]
        return np.concatenate([piece.data for piece in pieces])

    def arrows_to(self, rows: Index) -> tuple[Ragged, Index]:
        """The end of the arrow to each of these invocations; nothing for one without."""
        led = self.led_to_calls[rows]
        to = rows[led]
        heads = self._flow(b"f", to, to, self.trace.invocations.start[to], calls=True)
        index = np.zeros(len(rows), np.int64)
        index[led] = 1 + np.arange(len(to))
        return stacked([Ragged.from_bytes([b""]), heads]), index

    def _complete(self, rows: Index) -> Ragged:
        spans = self.trace.spans
        columns = (spans.name[rows], spans.thread[rows], self.lanes.lane[rows], spans.flags[rows])
        which, index = distinct(*columns)
        heads = [
            self._head(*key) for key in zip(*(c[which].tolist() for c in columns), strict=True)
        ]
        begin = spans.start[rows].view(np.uint64) - np.uint64(self.base % 2**64)
        length = (spans.end[rows] - spans.start[rows]).view(np.uint64)
        times: list[bytes | Number] = [b'"},"ts":', Number(begin, thousandths=True)]
        times += [b',"dur":', Number(length, thousandths=True), b"}"]
        parts: list[Part] = [
            (Ragged.from_bytes(heads), index),
            b'"trace_id":"',
            hexadecimal(spans.trace_id[rows]),
            b'","span_id":"',
            hexadecimal(big_endian(spans.span_id[rows])),
            numbers(len(rows), times),
        ]
        return concatenate(len(rows), parts)

    def _head(self, name: int, thread: int, lane: int, flags: int) -> bytes:
        pid, tid = self.tracks[thread, lane]
        args = dict(mark for flag, mark in _MARKS.items() if flags & flag)
        text = shown(self.trace.spans.names[name])
        event = {"ph": "X", "name": text, "cat": "span", "pid": pid, "tid": tid, "args": args}
        return b",\n" + json_bytes(event)[:-2] + (b"," if args else b"")

    def _flow(
        self, phase: bytes, at: Index, ids: Index, times: NDArray[np.int64], *, calls: bool = False
    ) -> Ragged:
        """Flow events in the events of these rows."""
        owner = self.trace.invocations if calls else self.trace.spans
        lane = np.zeros(len(at), np.int64) if calls else self.lanes.lane[at]
        thread = owner.thread[at]
        which, index = distinct(thread, lane)
        pairs = zip(thread[which].tolist(), lane[which].tolist(), strict=True)
        tracks = [self.tracks[pair] for pair in pairs]
        heads = [
            b',\n{"ph":"%s","name":"context","cat":"context","bp":"e","pid":%d,"tid":%d,'
            % (phase, pid, tid)
            for pid, tid in tracks
        ]
        begin = times.view(np.uint64) - np.uint64(self.base % 2**64)
        ends: list[bytes | Number] = [b'"id":', Number(ids.astype(np.uint64)), b',"ts":']
        ends += [Number(begin, thousandths=True), b"}"]
        return concatenate(len(at), [(Ragged.from_bytes(heads), index), numbers(len(at), ends)])


def _led(
    spans: Spans, lanes: Lanes, source: Index, start: Index, thread: NDArray[np.int32], lane: Index
) -> NDArray[np.bool_]:
    """Whether an arrow leads from spans to what starts there: not where it stands inside."""
    apart = (thread != spans.thread[source]) | (lane != lanes.lane[source])
    apart |= start >= spans.end[source]
    led: NDArray[np.bool_] = apart & (start >= spans.start[source])  # by clocks that may differ
    return led


def hexadecimal(raw: Bytes) -> Bytes:
    """``(n, 2 width)`` characters of ``(n, width)`` bytes."""
    return np.ascontiguousarray(_HEX[raw]).view(np.uint8).reshape(len(raw), 2 * raw.shape[1])
