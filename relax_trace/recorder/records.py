"""The recorder's records as arrays: one row an invocation, parents found, clocks lined up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..errors import TraceFileError
from ..ragged import Index, offsets_of
from ..trace import IMPLICIT, OPEN, kept_parents
from .dumps import INVOCATION, OP, Dumps, ThreadRecords

# Wall and monotonic time differ by a constant, unless somebody sets the clock. Readings of the two
# jitter by microseconds; what moved further than this was set.
_CLOCK_WAS_SET_NS = 1_000_000

_DEPTH_MOST = 128  # threads.h
_LATEST_NS = 1 << 62  # since 1970: in the year 2116


@dataclass(frozen=True)
class Share:
    """Which invocations are a recording's: those of its slot that began since it did, in ticks."""

    slot: int | None = None  # None: whatever there is
    since: int = 0

    def of(self, calls: NDArray[np.void]) -> NDArray[np.bool_]:
        """Whether each invocation is the recording's."""
        wanted: NDArray[np.bool_] = calls["start"] >= np.uint64(self.since)
        if self.slot is not None:
            wanted &= (calls["recorded"] & np.uint32(1 << self.slot)) > 0
        return wanted


def rank_of(order: NDArray[np.int64]) -> NDArray[np.int32]:
    """New position of each old one; -1 stays -1."""
    rank = np.empty(len(order) + 1, np.int32)
    rank[order], rank[-1] = np.arange(len(order), dtype=np.int32), -1
    return rank


@dataclass(frozen=True)
class ThreadTable:
    """A thread's records, with rows in place of numbers."""

    tid: int
    name: str
    ops: NDArray[np.void]  # in the order of their ends
    calls: NDArray[np.void]  # one record an invocation, by number
    row: NDArray[np.int64]  # of each op: its invocation's row in `calls`
    parent: NDArray[np.int64]  # of each op: the op around it, or -1
    call_parent: NDArray[np.int64]  # of each invocation: the one around it, or -1

    @classmethod
    def of(cls, records: ThreadRecords, dumps: Dumps) -> ThreadTable:
        """Close the invocations and find every row's parent."""
        ops = np.concatenate([np.empty(0, OP), *records.ops])
        calls = _closed(np.concatenate([np.empty(0, INVOCATION), *records.invocations]))
        ops, row = _rows_of(ops, calls)
        _finish(calls, ops, row, dumps)
        call_parent, known = _find(calls["number"], calls["parent"])
        if (known & (call_parent >= np.arange(len(calls)))).any():
            raise TraceFileError(
                "the recorder's dump is damaged: an invocation stands inside a later one"
            )
        return cls(
            records.tid,
            records.name,
            ops,
            calls,
            row,
            _parents(ops, row),
            np.where(known, call_parent, -1),
        )

    def keep(self, share: Share) -> ThreadTable:
        """A recording's invocations, and their ops."""
        wanted = share.of(self.calls)
        if wanted.all():
            return self
        ops = wanted[self.row]
        return ThreadTable(
            self.tid,
            self.name,
            self.ops[ops],
            self.calls[wanted],
            (np.cumsum(wanted) - 1)[self.row[ops]],
            kept_parents(self.parent, ops),
            kept_parents(self.call_parent, wanted),
        )


def _closed(records: NDArray[np.void]) -> NDArray[np.void]:
    """One record an invocation: its closing one if any, with the opening one's wall time."""
    if not len(records):
        return records
    records = np.take(records, np.argsort(records["number"], kind="stable"))
    changes = np.flatnonzero(np.diff(records["number"])) + 1
    first, last = np.append(0, changes), np.append(changes, len(records)) - 1
    calls: NDArray[np.void] = records[last]
    calls["wall_ns"] = records["wall_ns"][first]
    calls["flags"] |= records["flags"][first] & IMPLICIT
    return calls


def _rows_of(
    ops: NDArray[np.void], calls: NDArray[np.void]
) -> tuple[NDArray[np.void], NDArray[np.int64]]:
    """The row of each op's invocation; ops of one that began before the recording are left out."""
    row, known = _find(calls["number"], ops["invocation"])
    return (ops, row) if known.all() else (ops[known], row[known])


def _find(
    numbers: NDArray[np.uint32], wanted: NDArray[np.uint32]
) -> tuple[Index, NDArray[np.bool_]]:
    """Where each wanted number stands among ``numbers``, ascending from 1, and if it is there."""
    if len(numbers) and numbers[-1] - numbers[0] == len(numbers) - 1:  # without a gap, as a rule
        place = wanted.astype(np.int64) - int(numbers[0])
        return place, (place >= 0) & (place < len(numbers))
    place = np.searchsorted(numbers, wanted)
    return place, (np.append(numbers, np.uint32(0))[place] == wanted) & (wanted > 0)


def _finish(
    calls: NDArray[np.void], ops: NDArray[np.void], row: NDArray[np.int64], dumps: Dumps
) -> None:
    """Give an end to the invocations without one: their last op's if implicit, else this moment."""
    last_op = np.full(len(calls), -1)
    last_op[row] = np.arange(len(ops))  # ops are in the order of their ends: the last one stays
    implicit = (calls["flags"] & IMPLICIT) > 0
    seen = implicit & (last_op >= 0)
    calls["end"][seen] = ops["end"][last_op[seen]]
    calls["end"][implicit & ~seen] = calls["start"][implicit & ~seen]
    calls["flags"][implicit] &= np.uint32(~OPEN & 0xFFFFFFFF)
    now = 0 if dumps.now is None else dumps.now["ticks"]
    still = (calls["flags"] & OPEN) > 0
    calls["end"][still] = np.maximum(now, calls["start"][still])


def _parents(ops: NDArray[np.void], row: NDArray[np.int64]) -> NDArray[np.int64]:
    """The call around each: the next to end one level up, if it really encloses it.

    It may not, where it was dropped at the byte limit or left out by a filter, and a later call
    stands in its place: then it is the same one level further up.
    """
    parent = np.full(len(ops), -1)
    if (np.diff(row) < 0).any():  # invocations inside each other, or taking turns
        order = np.argsort(row, kind="stable")
        within = _parents(ops[order], row[order])
        parent[order] = np.where(within < 0, -1, order[within])
        return parent
    depth = ops["depth"]
    if depth.max(initial=0) >= _DEPTH_MOST:
        raise TraceFileError(f"the recorder's dump is damaged: a call at depth {depth.max()}")
    levels = [np.flatnonzero(depth == level) for level in range(int(depth.max(initial=0)) + 1)]
    for level, rest in enumerate(levels):
        inner = rest
        for outer in reversed(levels[:level]):
            if not len(inner) or not len(outer):
                continue
            around = outer[np.minimum(np.searchsorted(outer, inner), len(outer) - 1)]
            encloses = (around > inner) & (row[around] == row[inner])
            encloses &= ops["start"][around] <= ops["start"][inner]
            parent[inner[encloses]] = around[encloses]
            inner = inner[~encloses]
    return parent


@dataclass(frozen=True)
class Records:
    """All threads' records end to end."""

    ops: NDArray[np.void]
    calls: NDArray[np.void]
    thread: NDArray[np.int32]
    call_thread: NDArray[np.int32]
    row: NDArray[np.int64]
    parent: NDArray[np.int64]
    call_parent: NDArray[np.int64]

    @classmethod
    def of(cls, threads: Sequence[ThreadTable]) -> Records:
        """Lay the threads' tables end to end."""
        op_counts = np.array([len(table.ops) for table in threads], np.int64)
        call_counts = np.array([len(table.calls) for table in threads], np.int64)
        numbers = np.arange(len(threads), dtype=np.int32)
        return cls(
            ops=np.concatenate([np.empty(0, OP), *(table.ops for table in threads)]),
            calls=np.concatenate([np.empty(0, INVOCATION), *(table.calls for table in threads)]),
            thread=np.repeat(numbers, op_counts),
            call_thread=np.repeat(numbers, call_counts),
            row=_end_to_end([table.row for table in threads], call_counts),
            parent=_end_to_end([table.parent for table in threads], op_counts),
            call_parent=_end_to_end([table.call_parent for table in threads], call_counts),
        )


def _end_to_end(tables: list[NDArray[np.int64]], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Rows of tables that now follow each other; -1 stays -1."""
    moved = [
        np.where(rows < 0, -1, rows + at)
        for rows, at in zip(tables, offsets_of(counts)[:-1], strict=True)
    ]
    return np.concatenate([np.empty(0, np.int64), *moved])


@dataclass(frozen=True)
class Clock:
    """Ticks to wall time, at the rate of the monotonic clock between two readings of all clocks."""

    ticks: int
    wall_ns: int
    rate: float  # ns a tick

    @classmethod
    def of(cls, dumps: Dumps) -> Clock:
        """The clock between the first and the last reading that the dumps brought."""
        first, now = dumps.first, dumps.now
        if first is None or now is None:
            return cls(0, 0, 1.0)
        ticks = int(now["ticks"]) - int(first["ticks"])
        passed = int(now["monotonic_ns"]) - int(first["monotonic_ns"])
        rate = passed / ticks if ticks > 0 and passed > 0 else 1.0
        return cls(int(first["ticks"]), int(first["wall_ns"]), rate)

    def _nanoseconds(self, ticks: NDArray[np.uint64]) -> NDArray[np.int64]:
        since = (ticks - np.uint64(self.ticks)).view(np.int64)
        # doubles hold whole ns exactly for 104 days
        exact = since * self.rate
        if self.wall_ns > _LATEST_NS or (len(exact) and np.abs(exact).max() > _LATEST_NS):
            raise TraceFileError("the recorder's dump is damaged: its clocks are out of all bounds")
        whole: Index = np.rint(exact).astype(np.int64)
        return whole + self.wall_ns

    def times(self, records: Records) -> tuple[NDArray[np.int64], ...]:
        """Start and end of the ops, then of the invocations, in ns since the Unix epoch."""
        shift = self._shift(records)
        moved = shift[records.row]
        start = self._nanoseconds(records.ops["start"]) + moved
        end = self._nanoseconds(records.ops["end"]) + moved
        call_start = self._nanoseconds(records.calls["start"]) + shift
        call_end = self._nanoseconds(records.calls["end"]) + shift
        return start, np.maximum(start, end), call_start, np.maximum(call_start, call_end)

    def _shift(self, records: Records) -> NDArray[np.int64]:
        """How far the wall clock had been set when each outermost invocation began, in ns."""
        calls = records.calls
        shift = calls["wall_ns"].astype(np.int64) - self._nanoseconds(calls["start"])
        shift[(np.abs(shift) < _CLOCK_WAS_SET_NS) | (calls["wall_ns"] == 0)] = 0
        root = np.arange(len(calls))
        while (records.call_parent[root] >= 0).any():
            root = np.where(records.call_parent[root] >= 0, records.call_parent[root], root)
        outermost: Index = shift[root]
        return outermost
