"""Ops and invocations as one sequence of events in order of time, a slice of it at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..ragged import Index
from ..trace import Trace


@dataclass(frozen=True)
class Rows:
    """Some events that follow each other: rows of ops, rows of invocations, and which is which."""

    ops: slice
    invocations: Index
    is_op: NDArray[np.bool_]

    def merge(self, ops: NDArray[Any], invocations: NDArray[Any]) -> NDArray[Any]:
        """One column of what is said of the ops and of the invocations."""
        if not len(invocations):
            return ops
        merged = np.empty(len(self.is_op), ops.dtype)
        merged[self.is_op], merged[~self.is_op] = ops, invocations
        return merged


def slices(trace: Trace, size: int) -> Iterator[Rows]:
    """All events of ``trace``, in order of time and parents first, ``size`` at a time."""
    order, events = _event_order(trace)
    total = len(trace) + len(order)
    for first in range(0, total, size):
        last = min(first + size, total)
        a, b = np.searchsorted(events, [first, last]).tolist()
        is_op = np.ones(last - first, bool)
        is_op[events[a:b] - first] = False
        yield Rows(slice(first - a, last - b), order[a:b], is_op)


def _event_order(trace: Trace) -> tuple[Index, Index]:
    """The invocations in order of time, and which of all events each is (the rest are the ops)."""
    calls = trace.invocations
    order = np.argsort(calls.start, kind="stable")
    # An invocation may start in the same nanosecond as ops before and inside it: it goes right
    # before its own first op, and after what started earlier in any case.
    changes = np.flatnonzero(np.diff(trace.invocation, prepend=-1))[::-1]
    row = np.full(len(calls), len(trace))
    row[trace.invocation[changes]] = changes
    low = np.searchsorted(trace.start, calls.start, "left")
    high = np.searchsorted(trace.start, calls.start, "right")
    row = np.clip(row, low, high)[order]
    row = np.minimum.accumulate(row[::-1])[::-1]
    return order, row + np.arange(len(calls))
