"""Schedules at work: which invocations are recorded, and how each cycle is handed over."""

from __future__ import annotations

import fcntl
import logging
import threading
import time
from typing import Any

import pytest
from tvm import relax

import relax_trace
from integration.lengths import lengths, vector
from integration.small_vms import (
    CALL,
    MAIN,
    callback,
    calls,
    counts,
    dynamic,
    functions,
    run_alone,
    small,
    tensor,
    vm_of,
)
from relax_trace import Action, Schedule, Trace, schedule
from relax_trace.attach import attachment_of
from relax_trace.hub import hub
from relax_trace.recorder.native import load
from relax_trace.trace import ABORTED, FAILED, IMPLICIT

X = (1.0, 2.0, 3.0, 4.0)
RECORDED = (Action.RECORD, Action.RECORD_AND_DELIVER)


def expected(plan: Schedule, steps: int) -> tuple[list[list[int]], list[int]]:
    """The steps of each complete cycle, and the rest that is recorded, counted from 1."""
    cycles: list[list[int]] = [[]]
    for step in range(steps):
        action = plan(step)
        if action in RECORDED:
            cycles[-1].append(step + 1)
        if action is Action.RECORD_AND_DELIVER:
            cycles.append([])
    return cycles[:-1], cycles[-1]


PLANS = [
    schedule(active=1),
    schedule(active=3, repeat=2),
    schedule(wait=2, active=1),
    schedule(warmup=2, active=2),
    schedule(wait=1, warmup=1, active=3, repeat=2),
    schedule(wait=4, warmup=3, active=5),
    schedule(wait=100, active=1),
]


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_what_is_recorded_is_what_the_schedule_says(plan: Schedule) -> None:
    """Step by step; each cycle comes as one trace, and what is left over is in the recording's."""
    vm = vm_of(dynamic())
    ready: list[Trace] = []
    with relax_trace.record(vm, schedule=plan, on_ready=ready.append) as recording:
        for step in range(23):
            vm["main"](vector(step + 1))
    cycles, rest = expected(plan, 23)
    assert [lengths(trace) for trace in ready] == cycles
    assert lengths(recording.trace) == rest
    whole = {len(calls(trace, i)) for trace in ready for i in range(len(trace.invocations))}
    assert len(whole) <= 1  # every invocation has all its calls


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_the_hook_is_in_the_vm_for_no_more_than_that(plan: Schedule) -> None:
    """A skipped invocation runs the bare VM; one that warms up does not."""
    vm = vm_of(small())
    armed: list[bool] = []
    with relax_trace.record(vm, schedule=plan) as recording:
        number = attachment_of(vm).number
        with callback(lambda _: armed.append(bool(load().state(number) & 1))):
            for _ in range(15):
                vm["call"](tensor(*X))
                assert not load().state(number) & 1
    assert armed == [plan(step) is not Action.SKIP for step in range(15)]
    recorded = [step for step in range(15) if plan(step) in RECORDED]
    assert functions(recording.trace) == ["call"] * len(recorded)
    assert counts(recording.trace) == [len(CALL)] * len(recorded)


def test_each_vm_and_function_is_counted_by_itself() -> None:
    """By whatever way it is called; the cycles come in the order in which they end."""
    one, other = vm_of(small()), vm_of(small())
    plan = schedule(wait=1, active=2)
    ready: list[Trace] = []
    with relax_trace.record(schedule=plan, on_ready=ready.append) as recording:
        one["main"](tensor(*X))
        one["call"](tensor(*X))
        other["main"](tensor(*X))
        one.set_input("main", tensor(*X))
        one.invoke_stateful("main")
        one["call"](tensor(*X))
        one["call"](tensor(*X))  # call of one: 3
        one.set_input("main", tensor(*X))
        one.invoke_stateful("main")  # main of one: 3
        other.set_input("main", tensor(*X))
        other.invoke_stateful("main")
        other["identity"](tensor(*X))
        other["main"](tensor(*X))  # main of other: 3
    assert [functions(trace) for trace in ready] == [["call"] * 2, ["main"] * 2, ["main"] * 2]
    assert [len(trace.vms) for trace in ready] == [1, 1, 1]
    assert ready[0].vms == ready[1].vms != ready[2].vms
    assert [calls(ready[2], i) for i in range(2)] == [MAIN, MAIN]
    assert functions(recording.trace) == []


def test_a_closure_is_counted_by_its_own_name() -> None:
    """invoke_closure runs another function each time."""
    vm = vm_of(small())
    ready: list[Trace] = []
    closure = vm["make"](tensor(*X))
    with relax_trace.record(vm, schedule=schedule(active=2), on_ready=ready.append):
        vm.invoke_closure(closure, tensor(*X))
        vm["main"](tensor(*X))
        vm.invoke_closure(closure, tensor(*X))
    assert [functions(trace) for trace in ready] == [["lifted", "lifted"]]


def test_cycles_are_handed_over_on_another_thread_before_the_recording_ends() -> None:
    """One after the other, however long each takes; the calls don't wait for them."""
    vm = vm_of(dynamic())
    begun, go = threading.Event(), threading.Event()
    handed: list[tuple[str, list[int]]] = []

    def on_ready(trace: Trace) -> None:
        begun.set()
        go.wait()
        handed.append((threading.current_thread().name, lengths(trace)))

    with relax_trace.record(vm, schedule=schedule(active=2), on_ready=on_ready):
        for length in range(1, 12):
            vm["main"](vector(length))
        begun.wait()
        assert handed == []
        threading.Timer(0.2, go.set).start()
    assert handed == [("relax_trace", [i, i + 1]) for i in range(1, 11, 2)]


def test_what_on_ready_raises_is_logged_and_harms_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """The next cycles come all the same, whatever it was."""
    vm = vm_of(dynamic())
    handed: list[list[int]] = []

    def on_ready(trace: Trace) -> None:
        handed.append(lengths(trace))
        raise (KeyError("the user's own"), SystemExit(3))[len(handed) % 2]

    with relax_trace.record(vm, schedule=schedule(active=2), on_ready=on_ready) as recording:
        for length in range(1, 8):
            vm["main"](vector(length))
    assert handed == [[1, 2], [3, 4], [5, 6]]
    assert lengths(recording.trace) == [7]
    assert [record.levelno for record in caplog.records] == [logging.ERROR] * 3
    for record in caplog.records:
        assert record.getMessage() == "on_ready failed; the cycle that it was given is lost"
        assert record.exc_info is not None
        assert record.exc_info[0] in (KeyError, SystemExit)


def test_on_ready_may_stop_the_recording() -> None:
    """What had been recorded by then and was not handed over is in the recording's trace."""
    vm = vm_of(dynamic())
    stopped, ran = threading.Event(), threading.Event()
    handed: list[list[int]] = []
    rest: list[list[int]] = []

    def on_ready(trace: Trace) -> None:
        ran.wait()
        handed.append(lengths(trace))
        recording.stop()
        rest.append(lengths(recording.trace))
        stopped.set()

    with relax_trace.record(vm, schedule=schedule(active=2), on_ready=on_ready) as recording:
        for length in range(1, 8):
            vm["main"](vector(length))
        ran.set()
        stopped.wait()
        assert type(vm) is relax.VirtualMachine
        vm["main"](vector(8))
    assert handed == [[1, 2]]
    assert rest == [[3, 4, 5, 6, 7]] == [lengths(recording.trace)]


def test_a_recording_stopped_by_several_threads_and_by_on_ready_at_once() -> None:
    """Whoever returns from stop() has the whole trace before it; nobody waits forever."""
    for _ in range(20):
        vm = vm_of(dynamic())
        rests: list[list[int]] = []
        handed: list[list[int]] = []
        all_ran = threading.Event()

        def stop(recording: relax_trace.Recording, rests: list[list[int]] = rests) -> None:
            recording.stop()
            rests.append(lengths(recording.trace))

        def on_ready(
            trace: Trace, handed: list[list[int]] = handed, all_ran: threading.Event = all_ran
        ) -> None:
            assert all_ran.wait(60)
            handed.append(lengths(trace))
            stop(recording)  # noqa: B023 - it is over before the next one begins

        recording = relax_trace.record(vm, schedule=schedule(active=3), on_ready=on_ready)
        for length in range(1, 6):
            vm["main"](vector(length))
        all_ran.set()
        threads = [threading.Thread(target=stop, args=[recording]) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert handed == [[1, 2, 3]]
        assert rests[:3] == [[4, 5]] * 3
        with relax_trace.record(vm) as after:  # a drain that fails would show here
            vm["main"](vector(9))
        assert lengths(after.trace) == [9]


def test_other_recordings_end_while_on_ready_waits_for_them() -> None:
    """on_ready hands the trace to a thread that records something of its own, and waits for it."""
    vm, other = vm_of(dynamic()), vm_of(small())
    found: list[list[str]] = []

    def record_other() -> None:
        with relax_trace.record(other) as own:
            other["main"](tensor(*X))
        found.append(calls(own.trace))

    def on_ready(_: Trace) -> None:
        thread = threading.Thread(target=record_other)
        thread.start()
        thread.join(60)
        assert not thread.is_alive()

    with relax_trace.record(vm, schedule=schedule(active=1), on_ready=on_ready):
        vm["main"](vector(1))
    assert found == [MAIN]


def test_cycles_that_come_faster_than_they_are_handed_over_are_not_lost() -> None:
    """As many as the pipe holds wait one by one; where more do, several come as one, in order."""
    vm = vm_of(dynamic())
    go = threading.Event()
    handed: list[list[int]] = []

    def on_ready(trace: Trace) -> None:
        go.wait()
        handed.append(lengths(trace))

    with relax_trace.record(vm, schedule=schedule(active=1), on_ready=on_ready) as recording:
        pipe = hub._notices._writer
        size = fcntl.fcntl(pipe, fcntl.F_GETPIPE_SZ)
        held = fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, 4096) // 32
        for length in range(1, 2 * held):
            vm["main"](vector(length))
        go.set()
    fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, size)
    assert handed[:held] == [[length] for length in range(1, held + 1)]
    everything = [*(length for cycle in handed for length in cycle), *lengths(recording.trace)]
    assert everything == [*range(1, 2 * held)]


def test_two_schedules_on_one_vm_at_a_time() -> None:
    """Each counts for itself, and gets its own cycles alone; a plain recording has everything."""
    vm = vm_of(dynamic())
    plans = [schedule(wait=1, active=2), schedule(warmup=1, active=1, repeat=3)]
    ready: list[list[Trace]] = [[], []]
    with (
        relax_trace.record(vm, schedule=plans[0], on_ready=ready[0].append) as first,
        relax_trace.record(vm) as whole,
    ):
        vm["main"](vector(1))
        vm["main"](vector(2))
        with relax_trace.record(vm, schedule=plans[1], on_ready=ready[1].append) as second:
            for length in range(3, 12):
                vm["main"](vector(length))
        vm["main"](vector(12))
        vm["main"](vector(13))
    cycles, rest = expected(plans[0], 13)
    assert [lengths(trace) for trace in ready[0]] == cycles
    assert lengths(first.trace) == rest
    cycles, rest = expected(plans[1], 9)
    assert [lengths(trace) for trace in ready[1]] == [[i + 2 for i in cycle] for cycle in cycles]
    assert lengths(second.trace) == rest == []
    assert lengths(whole.trace) == list(range(1, 14))


def test_a_schedule_begins_anew_after_a_pause() -> None:
    """What the pause left of a cycle is in the recording's trace, and no part of the next one."""
    vm = vm_of(dynamic())
    ready: list[Trace] = []
    plan = schedule(wait=1, active=3)
    with relax_trace.record(vm, schedule=plan, on_ready=ready.append) as recording:
        for length in range(1, 8):
            vm["main"](vector(length))  # 2, 3, 4 are a cycle; 6, 7 the begin of one
        recording.pause()
        vm["main"](vector(8))
        recording.resume()
        for length in range(9, 14):
            vm["main"](vector(length))  # 10, 11, 12
        for _ in range(3):
            recording.pause()
            recording.resume()
        for length in range(14, 18):
            vm["main"](vector(length))  # 15, 16, 17
    assert [lengths(trace) for trace in ready] == [[2, 3, 4], [10, 11, 12], [15, 16, 17]]
    assert lengths(recording.trace) == [6, 7]


def test_an_invocation_that_a_pause_and_resume_fall_into_ends_the_old_cycle() -> None:
    """The new count begins after it."""
    vm = vm_of(small())
    ready: list[Trace] = []

    def blink(_: Any) -> None:
        recording.pause()
        recording.resume()

    with relax_trace.record(vm, schedule=schedule(active=2), on_ready=ready.append) as recording:
        vm["call"](tensor(*X))
        with callback(blink):
            vm["call"](tensor(*X))
        for _ in range(3):
            vm["call"](tensor(*X))
    assert [functions(trace) for trace in ready] == [["call", "call"]] * 2
    assert functions(recording.trace) == ["call"]
    for trace in ready:
        assert [calls(trace, i) for i in range(2)] == [CALL, CALL]


def fail(_: Any) -> None:
    """An op that throws."""
    raise ValueError("no")


def test_invocations_that_throw_are_counted_like_others() -> None:
    """Skipped, recorded, or the last of a cycle: the user sees the error, the trace has it."""
    vm = vm_of(small())
    ready: list[Trace] = []
    plan = schedule(wait=1, warmup=1, active=2)
    with relax_trace.record(vm, schedule=plan, on_ready=ready.append) as recording:
        for step in range(9):
            with callback(fail if step % 2 else lambda _: None):
                if step % 2:
                    with pytest.raises(ValueError, match="no"):
                        vm["call"](tensor(*X))
                else:
                    vm["call"](tensor(*X))
    until_throw = CALL[: CALL.index("relax_trace_tests.callback") + 1]
    for trace in ready:
        assert trace.invocations.flags.tolist() == [0, FAILED]
        assert [calls(trace, i) for i in range(2)] == [CALL, until_throw]
        assert trace.flags.tolist() == [0] * (len(trace) - 1) + [ABORTED]
        assert trace.errors == ("ValueError: no",)
    assert len(ready) == 2
    assert functions(recording.trace) == []


def test_one_inside_a_skipped_one_runs_bare_and_is_not_counted() -> None:
    """The hook can't be set under a running invocation; the cycle is made up by later ones."""
    vm = vm_of(small())
    plan = schedule(wait=1, active=2)
    ready: list[Trace] = []
    with relax_trace.record(vm, schedule=plan, on_ready=ready.append) as recording:
        vm["main"](tensor(*X))  # main is skipped once, its next one is wanted
        with callback(lambda _: vm["main"](tensor(*X))):
            vm["call"](tensor(*X))  # skipped, with the main inside
            vm["call"](tensor(*X))  # recorded, with the main inside: the first of two
        vm["main"](tensor(*X))
    assert [functions(trace) for trace in ready] == [["main", "main"]]
    assert [calls(ready[0], i) for i in range(2)] == [MAIN, MAIN]
    assert functions(recording.trace) == ["call"]


def test_a_function_taken_before_is_not_seen_by_a_schedule() -> None:
    """It runs bare, whatever the schedule says; a plain recording at the same time has it."""
    vm = vm_of(small())
    function = vm["main"]
    ready: list[Trace] = []
    with relax_trace.record(vm, schedule=schedule(active=1), on_ready=ready.append) as planned:
        function(tensor(*X))
        with relax_trace.record(vm) as plain:
            function(tensor(*X))
        vm["main"](tensor(*X))
    assert [trace.invocations.flags.tolist() for trace in ready] == [[0]]
    assert functions(planned.trace) == []
    assert plain.trace.invocations.flags.tolist() == [IMPLICIT]


FORK = """
import os, signal, threading, time
import relax_trace
from integration.small_vms import functions, small, tensor, vm_of

vm = vm_of(small())
x = tensor(1, 2, 3, 4)
ready = []
plan = relax_trace.schedule(active=2)
recording = relax_trace.record(vm, schedule=plan, on_ready=ready.append)
vm["main"](x)
pid = os.fork()
if not pid:
    signal.alarm(60)
    assert [thread.name for thread in threading.enumerate()] == ["MainThread", "relax_trace"]
    vm["main"](x)  # the second one: what the parent recorded of the cycle is the parent's
    vm["call"](x)
    vm["call"](x)
    recording.stop()
    assert [functions(trace) for trace in ready][1:] == [["call", "call"]]
    assert ready[0].threads[-1].pid == os.getpid()
    os._exit(0)
_, status = os.waitpid(pid, 0)
assert status == 0, status
time.sleep(0.1)
assert ready == []
vm["main"](x)
recording.stop()
assert [functions(trace) for trace in ready] == [["main", "main"]]
print("done")
"""


def test_a_forked_child_is_handed_its_own_cycles() -> None:
    """And the parent nothing of them."""
    ended = run_alone(FORK)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "done\n", "")


LEFT_RUNNING = """
import os, resource
import relax_trace
from integration.small_vms import functions, small, tensor, vm_of

_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (1200, most))
files = [os.open("/dev/null", os.O_RDONLY) for _ in range(1100)]
vm = vm_of(small())
recording = relax_trace.record(
    vm,
    schedule=relax_trace.schedule(active=1),
    on_ready=lambda trace: print(functions(trace), flush=True),
)
for _ in range(3):
    vm["main"](tensor(1, 2, 3, 4))
"""


def test_a_program_that_ends_hands_over_what_is_complete() -> None:
    """Nobody stopped it; and it has more files open than select() takes, as servers have."""
    ended = run_alone(LEFT_RUNNING)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "['main']\n" * 3, "")


def test_a_long_run_leaves_nothing_behind_but_its_cycles() -> None:
    """5,000 skipped invocations: no record of them, and no call slower than the VM's own."""
    vm = vm_of(small())
    function_of = relax.VirtualMachine.__getitem__
    ready: list[Trace] = []
    plan = schedule(wait=999, active=1)
    with relax_trace.record(vm, schedule=plan, on_ready=ready.append) as recording:
        function = vm["main"]
        assert function is not function_of(vm, "main")
        for _ in range(5000):
            function(tensor(*X))
        time.sleep(0)
        records = sum(len(piece) for t in recording.dumps.threads.values() for piece in t.ops)
        assert records <= 5 * len(MAIN)
    assert [functions(trace) for trace in ready] == [["main"]] * 5
    assert functions(recording.trace) == []
