"""Several threads, several VMs, several recordings at a time: each gets exactly its own."""

from __future__ import annotations

import os
import threading
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import relax_trace
from integration.small_vms import (
    CALL,
    MAIN,
    callback,
    calls,
    chain,
    counts,
    functions,
    run_threads,
    small,
    tensor,
    vm_of,
)
from relax_trace.trace import IMPLICIT, OPEN

X = (1.0, 2.0, 3.0, 4.0)
CALLBACK = "relax_trace_tests.callback"


def test_two_threads_on_two_vms_are_recorded_apart() -> None:
    """Each recording has its own VM's calls, under its thread's id and name."""
    vms = [vm_of(small()), vm_of(small())]
    recordings = [relax_trace.record(vm) for vm in vms]
    started, traced = threading.Barrier(2), threading.Barrier(3)
    tids = [0, 0]

    def work(i: int) -> None:
        tids[i] = threading.get_native_id()
        started.wait()
        for _ in range(500):
            vms[i]["main" if i else "call"](tensor(*X))
        traced.wait()  # its name is known for as long as it lives
        traced.wait()

    def take() -> list[relax_trace.Trace]:
        traced.wait()
        for recording in recordings:
            recording.stop()
        traces = [recording.trace for recording in recordings]
        traced.wait()
        return traces

    traces: list[relax_trace.Trace] = []
    run_threads(
        lambda: work(0), lambda: work(1), lambda: traces.extend(take()), names=["a", "b<\x00>", "c"]
    )
    expected = (("call", CALL, "a"), ("main", MAIN, "b<\x00>"))
    for trace, tid, (function, body, name) in zip(traces, tids, expected, strict=True):
        assert functions(trace) == [function] * 500
        assert counts(trace) == [len(body)] * 500
        assert calls(trace, 0) == calls(trace, 499) == body
        assert trace.threads == (relax_trace.Thread(os.getpid(), tid, name),)
        assert set(trace.thread.tolist()) == set(trace.invocations.thread.tolist()) == {0}


def test_threads_that_ended_before_the_trace_is_taken() -> None:
    """Each of 300 has its invocation, and the system's name; 8 MiB are enough for them."""
    vm = vm_of(small())
    tids: list[int] = []

    def work() -> None:
        tids.append(threading.get_native_id())
        vm["main"](tensor(*X))

    with relax_trace.record(vm, memory_limit=8 << 20) as recording:
        for _ in range(300):
            run_threads(work)
            while Path(f"/proc/self/task/{tids[-1]}").exists():
                pass  # Python is done with it, the system not yet
    records = [np.concatenate(thread.invocations) for thread in recording.dumps.threads.values()]
    numbers = np.concatenate(records)["number"]  # what tells two threads of one id apart
    assert np.unique(numbers, return_counts=True)[1].tolist() == [2] * 300
    trace = recording.trace
    assert functions(trace) == ["main"] * 300
    assert counts(trace) == [len(MAIN)] * 300
    assert [calls(trace, i) for i in (0, 150, 299)] == [MAIN] * 3
    assert [trace.threads[i].tid for i in trace.invocations.thread.tolist()] == tids
    assert {thread.name for thread in trace.threads} == {
        Path("/proc/self/comm").read_text().strip()
    }
    assert trace.losses == relax_trace.Losses()


def test_a_trace_has_no_thread_that_ran_nothing_of_its_vm() -> None:
    """Another thread's VM is recorded at the same time, and leaves no track here."""
    vm, other = vm_of(small()), vm_of(small())
    with relax_trace.record(other), relax_trace.record(vm) as recording:
        run_threads(lambda: other["main"](tensor(*X)))
        vm["main"](tensor(*X))
    assert [thread.tid for thread in recording.trace.threads] == [threading.get_native_id()]
    assert calls(recording.trace) == MAIN


def test_recording_switched_in_a_loop_while_another_thread_invokes() -> None:
    """Nothing crashes, and whatever invocation was recorded to its end has every op call."""
    vm = vm_of(chain(40))
    with relax_trace.record(vm) as first:
        function = vm["main"]
        function(tensor(*X))
    body = calls(first.trace)
    done = threading.Event()
    ran = 0

    def invoke() -> None:
        nonlocal ran
        while not done.is_set():
            np.testing.assert_array_equal(function(tensor(*X)).numpy(), 41 * np.array(X))
            ran += 1

    recordings: list[relax_trace.Recording] = []

    def switch() -> None:
        try:
            for i in range(210):
                recording = relax_trace.record(vm)
                recordings.append(recording)
                before = ran
                while i % 3 == 0 and ran < before + 2:
                    pass
                if i % 2:
                    recording.pause()
                    recording.resume()
                recording.stop()
        finally:
            done.set()

    run_threads(invoke, switch)
    whole = 0
    for recording in recordings:
        trace = recording.trace
        opened = trace.invocations.flags & OPEN > 0
        assert trace.invocations.flags[~opened].tolist() == [0] * int((~opened).sum())
        assert opened.sum() <= 1  # the one that ran when the recording ended
        assert [count for count, cut in zip(counts(trace), opened, strict=True) if not cut] == [
            len(body)
        ] * int((~opened).sum())
        whole += int((~opened).sum())
    assert whole >= 100
    assert type(vm).__mro__[1] is object
    with relax_trace.record(vm) as last:
        function(tensor(*X))
    assert calls(last.trace) == body


def test_nested_recordings_of_one_vm_each_have_their_own() -> None:
    """The outer one has all invocations, the inner one those in its own time."""
    vm = vm_of(small())
    with relax_trace.record(vm) as outer:
        vm["main"](tensor(*X))
        with relax_trace.record(vm) as inner:
            vm["call"](tensor(*X))
        vm["identity"](tensor(*X))
        assert type(vm).__mro__[1] is not object
    assert functions(outer.trace) == ["main", "call", "identity"]
    assert functions(inner.trace) == ["call"]
    assert calls(outer.trace, 1) == calls(inner.trace, 0) == CALL
    assert type(vm).__mro__[1] is object


def test_overlapping_recordings_of_one_vm_each_have_their_own() -> None:
    """The first may end before the second, and one's pause is not the other's."""
    vm = vm_of(small())
    function = vm["unchecked"]  # taken before: between the ops of an implicit invocation all holds
    first = relax_trace.record(vm)
    vm["main"](tensor(*X))
    second = relax_trace.record(vm)
    vm["call"](tensor(*X))
    first.pause()
    vm["identity"](tensor(*X))
    first.resume()
    vm["two"](tensor(*X))
    first.stop()
    vm["main"](tensor(*X))
    second.pause()
    vm["two"](tensor(*X))
    function()
    second.stop()
    vm["two"](tensor(*X))
    assert functions(first.trace) == ["main", "call", "two"]
    assert functions(second.trace) == ["call", "identity", "two", "main"]
    assert calls(second.trace, 3) == MAIN


def test_pause_and_resume_leave_out_what_is_between() -> None:
    """Both may be said twice, and an invocation of a function taken before is left out as well."""
    vm = vm_of(small())
    function = vm["main"]
    with relax_trace.record(vm) as recording:
        vm["main"](tensor(*X))
        recording.pause()
        recording.pause()
        np.testing.assert_array_equal(vm["main"](tensor(*X)).numpy(), [1, 9, 25, 49])
        function(tensor(*X))
        recording.resume()
        recording.resume()
        function(tensor(*X))
        with pytest.raises(RuntimeError, match="leave the `with`"):
            _ = recording.trace
        recording.pause()
    recording.stop()
    recording.resume()
    vm["main"](tensor(*X))
    trace = recording.trace
    assert recording.trace is trace
    assert functions(trace) == ["main", "main"]
    assert trace.invocations.flags.tolist() == [0, IMPLICIT]
    assert [calls(trace, i) for i in range(2)] == [MAIN, MAIN]


@pytest.mark.parametrize(
    ("taken_before", "expected"),
    [(False, [CALL, CALL]), (True, [CALL[: CALL.index(CALLBACK) + 1], CALL])],
)
def test_an_invocation_that_runs_at_a_pause_is_recorded_to_its_end(
    taken_before: bool, expected: list[list[str]]
) -> None:
    """As pause() says it leaves out those that begin after it; an implicit one is cut there."""
    vm = vm_of(small())
    function = vm["call"]
    with relax_trace.record(vm) as recording:
        function = function if taken_before else vm["call"]
        with callback(lambda _: recording.pause()):
            function(tensor(*X))
        function(tensor(*X))
        recording.resume()
        function(tensor(*X))
    trace = recording.trace
    assert functions(trace) == ["call", "call"]
    assert [calls(trace, i) for i in range(2)] == expected


def test_pausing_in_a_loop_while_another_thread_invokes_leaves_no_hole() -> None:
    """An invocation is there with every call, or not at all."""
    vm = vm_of(chain(200))
    done = threading.Event()
    with relax_trace.record(vm) as first:
        vm["main"](tensor(*X))
    body = counts(first.trace)
    with relax_trace.record(vm) as recording:
        function = vm["main"]

        def invoke() -> None:
            for _ in range(3000):
                function(tensor(*X))
            done.set()

        def blink() -> None:
            while not done.is_set():
                recording.pause()
                recording.resume()

        run_threads(invoke, blink)
        function(tensor(*X))
    trace = recording.trace
    assert set(trace.invocations.flags.tolist()) == {0}
    assert counts(trace) == body * len(trace.invocations)


def test_a_pause_and_resume_inside_an_op_leaves_no_hole() -> None:
    """The invocation around them began while recording was on, and is whole."""
    vm = vm_of(small())
    with relax_trace.record(vm) as recording:

        def blink(_: Any) -> None:
            recording.pause()
            vm["main"](tensor(*X))
            recording.resume()

        with callback(blink):
            vm["call"](tensor(*X))
    assert functions(recording.trace) == ["call"]
    assert [name for name in calls(recording.trace) if name[0] != " "] == CALL


def test_a_recording_stopped_inside_an_op_has_what_was_until_then() -> None:
    """Its invocation is open, as is the op that stopped it; the VM goes on."""
    vm = vm_of(small())
    recording = relax_trace.record(vm)
    with callback(lambda _: recording.stop()):
        np.testing.assert_array_equal(vm["call"](tensor(*X)).numpy(), [2, 4, 6, 8])
    trace = recording.trace
    assert functions(trace) == ["call"]
    assert trace.invocations.flags.tolist() == [OPEN]
    assert calls(trace) == CALL[:5]
    with relax_trace.record(vm) as again:
        vm["call"](tensor(*X))
    assert calls(again.trace) == CALL


@pytest.mark.parametrize("outer", ["recorded", "attached", "bare"])
def test_a_recording_begun_and_ended_inside_an_op_of_its_own_vm(outer: str) -> None:
    """The invocation around it began before it; one that begins inside is recorded whole."""
    vm = vm_of(small())
    around = relax_trace.record(vm) if outer != "bare" else None
    function = vm["call"]
    if around and outer == "attached":
        around.pause()
    traces: list[relax_trace.Trace] = []

    def record(_: Any) -> None:
        with relax_trace.record(vm) as recording:
            vm["main"](tensor(*X))
        traces.append(recording.trace)

    with callback(record):
        for _ in range(3):
            np.testing.assert_array_equal(function(tensor(*X)).numpy(), [2, 4, 6, 8])
    if around:
        around.stop()
    expected = [] if outer == "attached" else ["main"]  # the bare VM's hook stays off while it runs
    assert [functions(trace) for trace in traces] == [expected] * 3
    for trace in traces[: len(expected) * 3]:
        assert [name.strip() for name in calls(trace)] == [name.strip() for name in MAIN]
        assert trace.invocations.parent.tolist() == [-1]
    if around and outer == "recorded":
        assert functions(around.trace) == ["call", "main"] * 3
        assert [calls(around.trace, i) for i in (0, 2, 4)] == [CALL] * 3
    with relax_trace.record(vm) as after:
        vm["main"](tensor(*X))
    assert calls(after.trace) == MAIN


def test_a_function_taken_before_that_ran_on_another_thread_is_still_seen() -> None:
    """The recorder can't know that the other thread is done with it, and must not lose calls."""
    vm = vm_of(small())
    function = vm["main"]
    with relax_trace.record(vm):
        wrapper = vm["main"]
        run_threads(lambda: function(tensor(*X)))
    wrapper(tensor(*X))
    with relax_trace.record(vm) as recording:
        function(tensor(*X))
    assert functions(recording.trace) == ["main"]
    assert calls(recording.trace) == MAIN


def test_recordings_made_by_several_threads_at_once() -> None:
    """Eight threads record a VM of their own over and over, and see its calls alone."""
    vms = [vm_of(small()) for _ in range(8)]
    bodies = {"main": MAIN, "call": CALL}

    def work(i: int) -> None:
        name = ("main", "call")[i % 2]
        for repeats in range(20):
            with relax_trace.record(vms[i]) as recording:
                for _ in range(repeats):
                    vms[i][name](tensor(*X))
            assert functions(recording.trace) == [name] * repeats
            assert counts(recording.trace) == [len(bodies[name])] * repeats

    run_threads(*(partial(work, i) for i in range(8)))
