"""The Trace of a remote's ops inside the calls that were made through its session."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..concatenation import concatenate
from ..ragged import Index
from ..recorder.decode import Labels, to_trace, to_trace_and_calls
from ..recorder.dumps import Dumps
from ..recorder.records import Clock, Share
from ..trace import FAILED, FUNCTION, SAMPLED, Invocations, Thread, Trace
from .calls import RemoteCall


@dataclass(frozen=True)
class _Client:
    """The calls that are kept: those that ran something there, and those that failed."""

    calls: list[RemoteCall]
    of_remote: Index  # the call around each of the remote's invocations, or -1


def remote_trace(
    dumps: Dumps,
    share: Share,
    labels: Labels,
    clock: Clock,
    calls: Sequence[RemoteCall],
    here: Labels,
) -> Trace:
    """The remote's share of a recording, inside the calls made ``here``."""
    ran, records = to_trace_and_calls(dumps, share, labels, clock)
    client = _matched(ran, records["vm"], calls)
    ran = _within(ran, client)
    ran = replace(ran, threads=tuple(replace(t, process=labels.process) for t in ran.threads))
    outside = _trace_of(client, ran, labels, here)
    whole = concatenate([outside, ran])
    count = len(outside.invocations)
    parent = whole.invocations.parent.copy()
    inner = np.flatnonzero(client.of_remote >= 0)
    parent[count + inner] = client.of_remote[inner]
    return replace(whole, invocations=replace(whole.invocations, parent=parent))


def _matched(ran: Trace, vm: NDArray[np.uint32], calls: Sequence[RemoteCall]) -> _Client:
    """Which call each outermost invocation ran in: the one that its middle lies in, on its VM."""
    ordered = sorted(calls, key=lambda call: (call.vm, call.start))
    starts = np.array([call.start for call in ordered], np.int64)
    ends = np.array([call.end for call in ordered], np.int64)
    vms = np.array([call.vm for call in ordered], np.int64)
    table = ran.invocations
    middle = table.start + (table.end - table.start) // 2
    found = np.full(len(table), -1)
    for number in np.unique(vms):
        first, last = np.searchsorted(vms, number, "left"), np.searchsorted(vms, number, "right")
        rows = np.flatnonzero((vm == number) & (table.parent < 0))
        place = np.searchsorted(starts[first:last], middle[rows], "right") - 1 + first
        inside = (place >= first) & (middle[rows] <= ends[np.maximum(place, 0)])
        found[rows[inside]] = place[inside]
    kept = np.array([call.error is not None for call in ordered], bool)
    kept[found[found >= 0]] = True
    rows = np.flatnonzero(kept)
    rows = rows[np.argsort(starts[rows], kind="stable")]
    rank = np.full(len(ordered) + 1, -1)
    rank[rows] = np.arange(len(rows))
    left = [ordered[row] for row in rows.tolist()]
    return _Client(left, rank[found])


def _within(ran: Trace, client: _Client) -> Trace:
    """The same, moved by as little as puts each invocation inside its call."""
    if not len(client.calls) or not len(ran.invocations):
        return ran
    table = ran.invocations
    root = np.arange(len(table))
    while (table.parent[root] >= 0).any():
        root = np.where(table.parent[root] >= 0, table.parent[root], root)
    call = client.of_remote[root]
    low = np.array([one.start for one in client.calls], np.int64)[call]
    high = np.array([one.end for one in client.calls], np.int64)[call]
    low[call < 0], high[call < 0] = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    late = np.minimum(high - table.end[root], 0)
    shift = np.maximum(low - table.start[root], late)
    shift = np.where(table.start[root] < low, shift, late)

    def moved(times: NDArray[np.int64], row: Index) -> NDArray[np.int64]:
        inside: NDArray[np.int64] = np.clip(times + shift[row], low[row], high[row])
        return inside

    every = np.arange(len(table))
    row = ran.invocation.astype(np.int64)
    return replace(
        ran,
        start=moved(ran.start, row),
        end=moved(ran.end, row),
        invocations=replace(table, start=moved(table.start, every), end=moved(table.end, every)),
    )


def _trace_of(client: _Client, ran: Trace, labels: Labels, here: Labels) -> Trace:
    """The calls as invocations of this process, without an op of their own."""
    calls = client.calls
    function = np.full(len(calls), -1, np.int32)
    inner = np.flatnonzero(client.of_remote >= 0)
    function[client.of_remote[inner]] = ran.invocations.function[inner]
    names, kinds = list(ran.names), ran.kinds.tolist()
    for row in np.flatnonzero(function < 0).tolist():  # it failed on the way
        function[row] = len(names)
        names.append(calls[row].function)
        kinds.append(FUNCTION)
    threads = list(dict.fromkeys(Thread(os.getpid(), c.tid, c.thread_name) for c in calls))
    vms = list(dict.fromkeys(labels.vms.get(call.vm, f"vm{call.vm}") for call in calls))
    errors = list(dict.fromkeys(call.error for call in calls if call.error is not None))
    contexts = b"".join(call.context or bytes(25) for call in calls)
    context = np.frombuffer(contexts, np.uint8).reshape(-1, 25)
    span_ids = np.ascontiguousarray(context[:, 16:24]).view(">u8").reshape(-1)
    failed = [call.error is not None for call in calls]
    flags = np.where(failed, FAILED, 0) | np.where(context[:, 24] & 1, SAMPLED, 0)
    return replace(
        to_trace(Dumps(), Share(), here),
        names=tuple(names),
        kinds=np.array(kinds, np.uint8),
        threads=tuple(threads),
        vms=tuple(vms),
        errors=tuple(errors),
        invocations=Invocations(
            start=np.array([call.start for call in calls], np.int64),
            end=np.array([call.end for call in calls], np.int64),
            function=function,
            vm=np.array([vms.index(labels.vms.get(c.vm, f"vm{c.vm}")) for c in calls], np.int32),
            thread=np.array(
                [threads.index(Thread(os.getpid(), c.tid, c.thread_name)) for c in calls], np.int32
            ),
            parent=np.full(len(calls), -1, np.int32),
            error=np.array(
                [-1 if c.error is None else errors.index(c.error) for c in calls], np.int32
            ),
            flags=flags.astype(np.uint16),
            trace_id=np.ascontiguousarray(context[:, :16]),
            span_id=span_ids.astype(np.uint64),
        ),
    )
