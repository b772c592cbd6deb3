"""The events of a Trace as spans: ids, times and templates as columns."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ... import trace as model
from ...ragged import Bytes, Index
from ...trace import Trace

Ids = NDArray[np.uint64]


@dataclass(frozen=True)
class Identity:
    """The ids of a Trace's spans.

    By row of the invocations: ``trace_ids`` (n, 16), ``invocations`` (n,), and ``parents`` (n,),
    the id of the span around each or 0. The ids of ops, by row, are ``first_op`` and on.
    """

    trace_ids: Bytes
    invocations: Ids
    parents: Ids
    first_op: int

    def ops(self, rows: slice) -> Ids:
        """The ids of these calls."""
        ids: Ids = np.arange(rows.start, rows.stop, dtype=np.uint64) + np.uint64(self.first_op)
        return ids

    def op_parents(self, trace: Trace, rows: slice) -> Ids:
        """The span around each of these calls: another call, or the invocation."""
        parent = trace.parent[rows].astype(np.int64)
        calls: Ids = parent.astype(np.uint64) + np.uint64(self.first_op)
        return np.where(parent >= 0, calls, self.invocations[trace.invocation[rows]])


def new_identity(
    trace: Trace,
    *,
    random: Callable[[int], bytes] = os.urandom,
    trace_ids: Bytes | None = None,
    parents: Ids | None = None,
) -> Identity:
    """Fresh ids: unique among these spans, at random otherwise.

    ``random(n)`` makes ``n`` bytes. ``trace_ids`` (invocations, 16) and ``parents`` (invocations,)
    put outermost invocations under spans that are there already; zeros where there is none. By
    default each is a trace of its own.
    """
    count = len(trace.invocations)
    own = np.frombuffer(bytearray(random(16 * count)), np.uint8).reshape(count, 16)
    own[~own.any(1), -1] = 1  # all zeros is no id
    if trace_ids is not None:
        own = np.where(trace_ids.any(1, keepdims=True), trace_ids, own)
    first = first_id(random)
    ids = np.arange(first, first + count, dtype=np.uint64)
    around = trace.invocations.parent.astype(np.int64)
    outside = np.zeros(count, np.uint64) if parents is None else parents
    parents = np.where(around >= 0, ids[around], outside) if count else outside
    return Identity(own[_outermost(around)], ids, parents, first + count)


def first_id(random: Callable[[int], bytes] = os.urandom) -> int:
    """A random number for ids to count up from: unique for certain among themselves.

    It is in the first quarter of the range: no overflow.
    """
    return (int.from_bytes(random(8), "big") >> 2) + 1


def joined_identity(trace: Trace) -> Identity:
    """Fresh ids, in the application's own traces where invocations ran in one that is sampled.

    An unsampled trace has no span to be under: there an invocation is a trace of its own.
    """
    calls = trace.invocations
    sampled = (calls.flags & model.SAMPLED) > 0
    return new_identity(
        trace,
        trace_ids=np.where(sampled[:, None], calls.trace_id, np.uint8(0)),
        parents=np.where(sampled, calls.span_id, np.uint64(0)),
    )


def _outermost(parent: Index) -> Index:
    """The row of the outermost invocation around each; steps double, however deep they nest."""
    root = np.where(parent >= 0, parent, np.arange(len(parent)))
    while (root[root] != root).any():
        root = root[root]
    return root


@dataclass(frozen=True)
class Totals:
    """What an invocation's span says of the calls directly in it; by row."""

    count: Index
    seconds: NDArray[np.float64]
    synchronized: NDArray[np.bool_]

    @classmethod
    def of(cls, trace: Trace) -> Totals:
        """Add up the calls of each invocation."""
        calls = len(trace.invocations)
        row = trace.invocation
        outer = trace.parent < 0
        time = trace.duration[outer].view(np.uint64).astype(np.float64)
        synchronized = np.zeros(calls, bool)
        synchronized[row[(trace.flags & model.SYNCHRONIZED) > 0]] = True
        return cls(
            np.bincount(row, minlength=calls),
            np.bincount(row[outer], time, minlength=calls) / 1e9,
            synchronized,
        )


@dataclass(frozen=True)
class Spans:
    """Some spans of one scope: ``trace_ids`` (n, 16); the others (n,), times in ns."""

    trace_ids: Bytes
    ids: Ids
    parents: Ids  # 0: none
    start: Ids
    end: Ids

    @classmethod
    def of_ops(cls, trace: Trace, identity: Identity, rows: slice) -> Spans:
        """The spans of these rows of ops."""
        return cls(
            identity.trace_ids[trace.invocation[rows]],
            identity.ops(rows),
            identity.op_parents(trace, rows),
            _times(trace.start[rows]),
            _times(trace.end[rows]),
        )

    @classmethod
    def of_invocations(cls, trace: Trace, identity: Identity, rows: Index) -> Spans:
        """The spans of these rows of invocations."""
        return cls(
            identity.trace_ids[rows],
            identity.invocations[rows],
            identity.parents[rows],
            _times(trace.invocations.start[rows]),
            _times(trace.invocations.end[rows]),
        )


def _times(values: NDArray[np.int64]) -> Ids:
    return np.maximum(values, 0).view(np.uint64)  # OTLP has no time before 1970


def big_endian(ids: Ids) -> Bytes:
    """``(n, 8)``: the bytes of ids in the order in which they are written."""
    return ids.astype(">u8").view(np.uint8).reshape(-1, 8)
