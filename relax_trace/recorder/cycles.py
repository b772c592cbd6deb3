"""The cycles of a schedule: taken out of a recording's dumps once they are complete."""

from __future__ import annotations

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
    threads = list(dumps.threads.values())
    calls = [_end_to_end(records.invocations, INVOCATION) for records in threads]
    thread = np.repeat(np.arange(len(calls)), [len(of_thread) for of_thread in calls])
    every = np.concatenate([np.empty(0, INVOCATION), *calls])
    ended = every["end"] > 0
    own = np.flatnonzero(ended & ((every["recorded"] & bit) > 0))
    cycle = np.full(len(every), -1)
    cycle[own] = _numbered(every[own], bit)
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
    whose = np.full(int(calls["number"].max(initial=0)) + 1, -1)  # by invocation number
    others = ended & ((calls["recorded"] & bit) == 0)
    whose[calls["number"][others]] = -2
    whose[calls["number"][cycle >= 0]] = cycle[cycle >= 0]
    known = ops["invocation"] < len(whose)
    of_call = whose[calls["number"]]
    of_op = np.where(known, whose[np.where(known, ops["invocation"], 0)], -1)
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
