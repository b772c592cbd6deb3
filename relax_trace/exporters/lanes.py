"""Where the application's spans stand in a timeline: on their thread's track, or beside it.

Events of a track must nest, but on an event loop the spans of several requests overlap. So a
thread has lanes: lane 0 is its own track, which invocations and ops are on; others hold spans
alone. A span stands inside its parent, if that is the innermost one on its lane; else on the lowest
lane that is free.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..ragged import Index
from ..spans import OF_INVOCATION
from ..trace import Trace


@dataclass(frozen=True)
class Lanes:
    """The spans that are shown, in order of time and parents first; and what led to what."""

    rows: Index  # of the spans shown
    lane: Index  # of every span of the trace; -1: not shown
    around: Index  # of every span: the row of the nearest one around it that is shown, or -1
    around_calls: Index  # the same of every invocation

    @classmethod
    def of(cls, trace: Trace) -> Lanes:
        """Lay out all spans; linear in them, and logarithmic in how many overlap."""
        spans, calls = trace.spans, trace.invocations
        shown = (spans.flags & OF_INVOCATION) == 0  # the trace has the invocations themselves
        parents = spans.parents()
        nearest = _nearest_shown(parents, shown)
        around = nearest[parents]
        around_calls = nearest[spans.rows_of(calls.trace_id, calls.span_id)]
        rows = np.lexsort((-spans.end, spans.start))
        rows = rows[shown[rows]]
        lane = np.full(len(spans), -1)
        own = _fits_among_calls(trace)
        for thread in np.unique(spans.thread[rows]).tolist():
            mine = rows[spans.thread[rows] == thread]
            columns = (spans.start[mine], spans.end[mine], around[mine], own[mine])
            lane[mine] = _lanes(mine.tolist(), *(column.tolist() for column in columns))
        return cls(rows, lane, around, around_calls)


def _nearest_shown(parents: Index, shown: NDArray[np.bool_]) -> Index:
    """For each row itself, if it is shown, or the nearest one around it that is; -1 last, for -1.

    Steps double, however long a chain is; a damaged file may lead round in circles.
    """
    nearest = np.append(np.where(shown, np.arange(len(parents)), parents), -1)
    for _ in range(len(parents).bit_length()):
        nearest = nearest[nearest]
    found: Index = np.where(np.append(shown, False)[nearest], nearest, -1)
    return found


def _fits_among_calls(trace: Trace) -> NDArray[np.bool_]:
    """Whether each span begins outside of its thread's invocations, and cuts through none."""
    spans, calls = trace.spans, trace.invocations
    fits = np.ones(len(spans), bool)
    outermost = np.flatnonzero(calls.parent < 0)
    outermost = outermost[np.argsort(calls.start[outermost], kind="stable")]
    for thread in np.unique(spans.thread).tolist():
        mine = np.flatnonzero(spans.thread == thread)
        on = outermost[calls.thread[outermost] == thread]
        # the latest end of those that began before a moment
        ends = np.append(np.iinfo(np.int64).min, np.maximum.accumulate(calls.end[on]))
        for moments in (spans.start[mine], spans.end[mine]):
            fits[mine] &= ends[np.searchsorted(calls.start[on], moments, "left")] <= moments
    return fits


def _lanes(
    rows: Sequence[int],
    starts: Sequence[int],
    ends: Sequence[int],
    parents: Sequence[int],
    own: Sequence[bool],
) -> list[int]:
    """The lane of each of a thread's spans, which come in order of their start."""
    found: dict[int, int] = {}
    stacks: list[list[tuple[int, int]]] = []  # of each lane: end and row of those that are open
    busy: list[tuple[int, int]] = []  # end of the outermost span, and its lane
    free: list[int] = []  # lanes
    for row, start, end, parent, fits in zip(rows, starts, ends, parents, own, strict=True):
        while busy and busy[0][0] <= start:
            heapq.heappush(free, heapq.heappop(busy)[1])
        lane = found.get(parent, -1)
        if lane >= 0:
            _end(stacks[lane], start)
        inside = lane >= 0 and stacks[lane] and stacks[lane][-1][1] == parent
        if not inside or stacks[lane][-1][0] < end or (lane == 0 and not fits):
            lane = _take_free(free, stacks, fits)
            stacks[lane].clear()
            heapq.heappush(busy, (end, lane))
        stacks[lane].append((end, row))
        found[row] = lane
    return list(found.values())


def _end(stack: list[tuple[int, int]], now: int) -> None:
    while stack and stack[-1][0] <= now:
        stack.pop()


def _take_free(free: list[int], stacks: list[list[tuple[int, int]]], own: bool) -> int:
    """The lowest lane that is free, or a new one; the thread's own track only if allowed."""
    if not stacks:
        stacks.append([])
        heapq.heappush(free, 0)
    kept = [heapq.heappop(free)] if free and free[0] == 0 and not own else []
    if free:
        lane = heapq.heappop(free)
    else:
        stacks.append([])
        lane = len(stacks) - 1
    for zero in kept:
        heapq.heappush(free, zero)
    return lane
