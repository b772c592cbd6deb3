"""Choose the ops that become spans: the longest of each invocation, within what it was granted."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import compress

import numpy as np
from numpy.typing import NDArray

from ..ragged import Index
from ..trace import ABORTED, Trace
from .capture import Captured
from .finished import Finished


@dataclass(frozen=True)
class Selection:
    """The ops that become spans: ``trace`` has no others; ``rows`` are those of each ``finished``.

    ``start`` and ``end``, (ops,) in ns, are on the clock of the spans around, and within them.
    """

    trace: Trace
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    finished: list[Finished]
    rows: list[Index]

    def only(self, wanted: list[bool]) -> Selection:
        """The ops of some of ``finished``."""
        finished = list(compress(self.finished, wanted))
        rows = list(compress(self.rows, wanted))
        kept = np.zeros(len(self.trace), bool)
        kept[np.concatenate(rows)] = True
        place = np.cumsum(kept) - 1
        return Selection(
            self.trace.take_ops(kept),
            self.start[kept],
            self.end[kept],
            finished,
            [place[of_one] for of_one in rows],
        )


def select(captured: Captured, finished: list[Finished], every_call: bool) -> Selection:
    """Of ``every_call``, or of those with a tensor among their arguments."""
    trace = captured.trace
    listed = np.ones(len(trace), bool)
    if not every_call:
        listed = trace.signatures.has_tensor[trace.signature]
    rows = rows_of(captured, finished)
    kept = np.zeros(len(trace), bool)
    for one, of_one in zip(finished, rows, strict=True):
        kept[longest(trace, of_one[listed[of_one]], one.granted)] = True
    small = trace.take_ops(kept)
    place = np.cumsum(kept) - 1
    mine = [place[of_one[kept[of_one]]] for of_one in rows]
    shift = captured.shift_ns[small.invocation]
    start, end = small.start + shift, small.end + shift
    for one, of_one in zip(finished, mine, strict=True):
        whole = one.invocation
        start[of_one] = np.clip(start[of_one], whole.start, whole.end)
        end[of_one] = np.clip(end[of_one], whole.start, whole.end)
    return Selection(small, start, end, finished, mine)


def rows_of(captured: Captured, finished: list[Finished]) -> list[Index]:
    """The rows of each one's ops, in order of time."""
    tags = captured.tags[captured.trace.invocation]
    order = np.argsort(tags, kind="stable")
    ordered = tags[order]
    wanted = np.array([one.tag for one in finished], np.uint32)
    first, last = (np.searchsorted(ordered, wanted, side).tolist() for side in ("left", "right"))
    return [order[a:b] for a, b in zip(first, last, strict=True)]


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
