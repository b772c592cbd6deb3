"""The cycles of a schedule: taken out of a recording's dumps once they are complete.

Or single invocations, by their tags, where a recording is read as it goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ..ragged import Index
from .dumps import INVOCATION, OP, Dumps, ThreadRecords


def take_cycles(dumps: Dumps, slot: int) -> list[Dumps]:
    """Take out the complete cycles of the recording in ``slot``, in the order of their ends.

    What other recordings had recorded, or warmed up, goes as well once it has ended. A cycle that a
    pause broke off stays.
    """
    bit = np.uint32(1 << slot)
    return _take_out(dumps, bit, lambda calls: _numbered(calls, bit))


def take_tagged(dumps: Dumps, slot: int, tags: NDArray[np.uint32]) -> Dumps:
    """Take out the invocations with these tags, of the recording in ``slot``, that have ended.

    What is not of this recording goes as well once it has ended.
    """
    bit = np.uint32(1 << slot)
    taken = _take_out(dumps, bit, lambda calls: np.where(np.isin(calls["tag"], tags), 0, -1))
    left = dumps.threads.items()
    dumps.threads = {
        tid: records for tid, records in left if any(map(len, (*records.invocations, *records.ops)))
    }
    return taken[0] if taken else replace(dumps, threads={})


def _take_out(
    dumps: Dumps, bit: np.uint32, numbers_of: Callable[[NDArray[np.void]], Index]
) -> list[Dumps]:
    """Take out the ended invocations, by the numbers that they are given; those of -1 stay."""
    threads = list(dumps.threads.values())
    calls = [_end_to_end(records.invocations, INVOCATION) for records in threads]
    thread = np.repeat(np.arange(len(calls)), [len(of_thread) for of_thread in calls])
    every = np.concatenate([np.empty(0, INVOCATION), *calls])
    ended = every["end"] > 0
    own = np.flatnonzero(ended & ((every["recorded"] & bit) > 0))
    cycle = np.full(len(every), -1)
    cycle[own] = numbers_of(every[own])
    taken: list[dict[int, ThreadRecords]] = [{} for _ in range(int(cycle.max(initial=-1)) + 1)]
    for number, records in enumerate(threads):
        mine = thread == number
        for at, part in _split(records, calls[number], cycle[mine], ended[mine], bit).items():
            taken[at][records.tid] = part
    return [replace(dumps, threads=parts) for parts in taken]


def _end_to_end(pieces: list[NDArray[np.void]], kind: np.dtype[np.void]) -> NDArray[np.void]:
    return np.concatenate([np.empty(0, kind), *pieces])


def _numbered(calls: NDArray[np.void], bit: np.uint32) -> Index:
    """The cycle of each invocation that ended, or -1 if that is not complete."""
    numbers = np.full(len(calls), -1)
    if not len(calls):
        return numbers
    order = np.lexsort((calls["start"], calls["function"], calls["vm"]))
    calls = calls[order]
    last = (calls["last"] & bit) > 0
    begins = (calls["first"] & bit) > 0
    begins[1:] |= last[:-1]
    for column in ("vm", "function"):
        begins[1:] |= calls[column][1:] != calls[column][:-1]
    group = np.cumsum(begins) - begins[0]
    ends = np.flatnonzero(last)
    place = np.full(int(group[-1]) + 1, -1)
    place[group[ends[np.argsort(calls["end"][ends], kind="stable")]]] = np.arange(len(ends))
    numbers[order] = place[group]
    return numbers


def _split(
    records: ThreadRecords,
    calls: NDArray[np.void],
    cycle: Index,
    ended: NDArray[np.bool_],
    bit: np.uint32,
) -> dict[int, ThreadRecords]:
    """Take each cycle's records out of a thread's; keep those of cycles that are not complete."""
    ops = _end_to_end(records.ops, OP)
    place = calls["number"].astype(np.int64)
    least = place.min(initial=np.iinfo(np.int64).max)  # they may have come far
    place -= least
    whose = np.full(int(place.max(initial=-1)) + 1, -1)  # by invocation number
    others = ended & ((calls["recorded"] & bit) == 0)
    whose[place[others]] = -2
    whose[place[cycle >= 0]] = cycle[cycle >= 0]
    of_call = whose[place]
    op_place = ops["invocation"].astype(np.int64) - least
    known = (op_place >= 0) & (op_place < len(whose))
    of_op = np.full(len(ops), -1)
    of_op[known] = whose[op_place[known]]
    records.invocations, records.ops = [calls[of_call == -1]], [ops[of_op == -1]]
    found_calls, found_ops = _by_cycle(calls, of_call), _by_cycle(ops, of_op)
    return {
        at: replace(records, invocations=[found_calls[at]], ops=[found_ops.get(at, ops[:0])])
        for at in found_calls
    }


def _by_cycle(rows: NDArray[np.void], cycle: Index) -> dict[int, NDArray[np.void]]:
    """The rows of each cycle, in their order."""
    order = np.argsort(cycle, kind="stable")
    order = order[np.searchsorted(cycle[order], 0) :]
    rows, cycle = rows[order], cycle[order]
    bounds = np.append(np.flatnonzero(np.diff(cycle, prepend=-1)), len(rows)).tolist()
    return {int(cycle[a]): rows[a:b] for a, b in zip(bounds[:-1], bounds[1:], strict=True)}
