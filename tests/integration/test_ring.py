"""Ring mode: the newest calls within the limit, and what is held at any moment."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import tvm

import relax_trace
from integration.small_vms import (
    CALL,
    MAIN,
    callback,
    calls,
    chain,
    counts,
    dynamic,
    functions,
    small,
    tensor,
    vm_of,
)
from relax_trace import Losses, Trace
from relax_trace.hub import hub
from relax_trace.recorder.native import load
from relax_trace.trace import OPEN

LIMIT = 1 << 21  # bytes: with tables and states, some 40,000 calls
LENGTH = 200
X = tensor(1, 2, 3, 4)


def _ops() -> int:
    vm = vm_of(chain(LENGTH))
    with relax_trace.record(vm) as recording:
        vm["main"](X)
    return len(recording.trace)


OPS = _ops()  # of an invocation of the chain


def run(vm: tvm.relax.VirtualMachine, times: int) -> None:
    """Invoke the chain."""
    main = vm["main"]
    for _ in range(times):
        main(X)


@contextmanager
def running(*bodies: object) -> Iterator[threading.Event]:
    """Run each body over and over on a thread of its own, until the block ends."""
    done = threading.Event()

    def loop(body: object) -> None:
        while not done.is_set():
            body()

    threads = [threading.Thread(target=loop, args=(body,)) for body in bodies]
    for thread in threads:
        thread.start()
    try:
        yield done
    finally:
        done.set()
        for thread in threads:
            thread.join()


def whole(trace: Trace) -> list[int]:
    """Number of calls of each invocation that has ended, from the second that has any.

    Invocations take little room: those of calls that were overwritten are there for longer.
    """
    sizes = np.array(counts(trace))[trace.invocations.flags & OPEN == 0]
    return sizes[int((sizes > 0).argmax()) + 1 :].tolist()


def test_the_newest_calls_are_kept_and_the_others_counted() -> None:
    """What is held and what was overwritten add up to what ran; nothing is missing in between."""
    vm = vm_of(chain(LENGTH))
    with relax_trace.record(vm, mode="ring", memory_limit=LIMIT) as recording:
        run(vm, 1)
        assert len(recording.snapshot()) == OPS
        run(vm, 499)
        last = load().now()
        vm["main"](X)
        held = load().dump(*hub._tables.counts, 1 << 30, True)
    trace = recording.trace
    assert len(trace) + trace.losses.overwritten >= 501 * OPS
    assert len(trace) + trace.losses.overwritten - 501 * OPS < OPS  # of the first, cut in two
    assert (trace.losses.ops, trace.losses.invocations, trace.losses.signatures) == (0, 0, 0)
    assert 0.4 * LIMIT < 32 * len(trace) < len(held) <= LIMIT
    assert set(whole(trace)) == {OPS}
    assert last > 0
    assert f"overwrote {trace.losses.overwritten:,} older ops" in repr(trace)
    assert f"{trace.losses.overwritten}" in trace.report().table()


def test_snapshots_while_many_threads_record() -> None:
    """Each holds whole invocations up to its moment, and takes nothing away from the next."""
    vms = [vm_of(chain(LENGTH)) for _ in range(3)]
    with relax_trace.record(mode="ring", memory_limit=4 * LIMIT) as recording:
        mains = [vm["main"] for vm in vms]
        with running(*(lambda main=main: main(X) for main in mains)):
            snapshots = []
            while len(snapshots) < 15 or not snapshots[-1].losses.overwritten:
                snapshots.append(recording.snapshot())
                assert len(snapshots) < 2000
    for trace in (*snapshots[-15:], recording.trace):
        assert trace.losses == Losses(overwritten=trace.losses.overwritten)
        for thread in range(len(trace.threads)):
            of_thread = trace.take_invocations(trace.invocations.thread == thread)
            assert set(whole(of_thread)) <= {OPS}
    ends = [int(trace.end.max()) for trace in snapshots]
    assert ends == sorted(ends)
    assert len(recording.trace.threads) == 3


def test_a_snapshot_inside_an_op_shows_what_runs() -> None:
    """The invocation around it is open, and ends at that moment."""
    vm = vm_of(small())
    taken: list[Trace] = []
    with relax_trace.record(vm, mode="ring") as recording:
        with callback(lambda _: taken.append(recording.snapshot())):
            vm["call"](X)
        vm["main"](X)
    assert functions(taken[0]) == ["call"]
    assert taken[0].invocations.flags.tolist() == [OPEN]
    assert calls(taken[0]) == CALL[: CALL.index("relax_trace_tests.callback")]
    assert [calls(recording.trace, i) for i in (0, 1)] == [CALL, MAIN]
    assert recording.snapshot() is recording.trace


def test_a_snapshot_where_the_first_calls_are_kept() -> None:
    """It takes nothing away there either."""
    vm = vm_of(small())
    with relax_trace.record(vm) as recording:
        vm["main"](X)
        first = recording.snapshot()
        vm["call"](X)
        second = recording.snapshot()
    assert [functions(trace) for trace in (first, second, recording.trace)] == [
        ["main"],
        ["main", "call"],
        ["main", "call"],
    ]
    assert [calls(second, i) for i in (0, 1)] == [MAIN, CALL]


def test_another_recording_inside_a_ring() -> None:
    """A profile taken meanwhile is whole, and the ring holds the newest from before and after."""
    vm, other = vm_of(chain(LENGTH)), vm_of(small())
    with relax_trace.record(mode="ring", memory_limit=LIMIT) as ring:
        run(vm, 100)
        with relax_trace.record(other, memory_limit=LIMIT) as inner:
            other["main"](X)
            run(vm, 5)
        held = ring.snapshot()
        run(vm, 100)
    assert functions(inner.trace) == ["main"]
    assert calls(inner.trace) == MAIN
    assert inner.trace.losses == Losses()
    for trace in (held, ring.trace):
        assert set(whole(trace)) <= {OPS, len(MAIN)}
        assert 32 * len(trace) <= 2 * LIMIT
    assert len(MAIN) in whole(held)
    assert counts(held)[-5:] == [OPS] * 5
    assert counts(ring.trace)[-20:] == [OPS] * 20


def test_ever_new_shapes_keep_within_their_share() -> None:
    """Signatures beyond it are lost and said so; the newest calls are there all the same."""
    vm = vm_of(dynamic())
    tensors = [tvm.runtime.tensor(np.zeros(length, "float32")) for length in range(1, 9000)]
    with relax_trace.record(vm, mode="ring", memory_limit=1 << 20) as recording:
        main = vm["main"]
        for value in tensors:
            main(value)
        held = load().dump(*hub._tables.counts, 1 << 30, True)
    trace = recording.trace
    assert trace.losses.signatures > 0
    assert trace.losses.overwritten > 0
    assert (trace.losses.ops, trace.losses.invocations) == (0, 0)
    assert len(held) <= 1 << 20
    assert len(set(whole(trace))) == 1
    with relax_trace.record(vm) as again:  # shapes known by now, and new ones, have room again
        main(tensors[-1])
    assert again.trace.losses == Losses()


def test_what_ends_threads_held_is_overwritten_in_its_turn() -> None:
    """Threads that come and go leave the newest records, and no memory that grows."""
    vm = vm_of(chain(LENGTH))
    with relax_trace.record(vm, mode="ring", memory_limit=LIMIT) as recording:
        for _ in range(150):
            thread = threading.Thread(target=run, args=(vm, 2))
            thread.start()
            thread.join()
    trace = recording.trace
    assert trace.losses == Losses(overwritten=trace.losses.overwritten)
    gone = 300 * OPS - len(trace) - trace.losses.overwritten
    assert 0 <= gone < OPS  # the rest of an invocation that was overwritten itself
    assert set(whole(trace)) == {OPS}
    assert LIMIT / 4 < 32 * len(trace)  # threads that rest keep what they hold
    assert 2 < len(trace.threads) < 150


@pytest.mark.parametrize("mode", ["stop", "ring"])
def test_the_end_of_a_recording_gives_its_memory_back(mode: relax_trace.options.Mode) -> None:
    """The next one begins with nothing, and nothing lost."""
    vm = vm_of(chain(LENGTH))
    for _ in range(3):
        with relax_trace.record(vm, mode=mode, memory_limit=LIMIT) as recording:
            run(vm, 200)
        assert recording.trace.losses != Losses()
        with relax_trace.record(vm, memory_limit=LIMIT) as after:
            run(vm, 1)
        assert counts(after.trace) == [OPS]
        assert after.trace.losses == Losses()
