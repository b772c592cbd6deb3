"""Filters at capture: which functions, which calls by name, and how long they took at least."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

import relax_trace
from integration.small_vms import (
    CALL,
    IDENTITY,
    INNER,
    MAIN,
    UNCHECKED,
    callback,
    calls,
    chain,
    counts,
    functions,
    run_alone,
    small,
    tensor,
    vm_of,
)
from relax_trace import Trace
from relax_trace.hub import hub
from relax_trace.recorder.native import load
from relax_trace.trace import ABORTED

X = (1.0, 2.0, 3.0, 4.0)
CALLBACK = "relax_trace_tests.callback"
SLEEP_NS = 20_000_000


def sleep(_: Any) -> None:
    """Take at least SLEEP_NS inside an op."""
    time.sleep(SLEEP_NS / 1e9)


def fail(_: Any) -> None:
    """An op that throws at once."""
    raise ValueError("no")


def take_all() -> int:
    """Number of op records that wait in the recorder; they are taken out."""
    hub._drain()
    members = [member.dumps.threads.values() for member in hub._running]
    return sum(len(piece) for threads in members for thread in threads for piece in thread.ops)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("main", ["main", "main"]),
        ("*call", ["call", "nested_call"]),
        ("[im]*", ["main", "identity", "main"]),
        ("?ain", ["main", "main"]),
        ("*", ["main", "identity", "call", "main", "nested_call"]),
        ("other", []),
        ("mai", []),
    ],
)
def test_only_the_functions_that_were_asked_for(pattern: str, expected: list[str]) -> None:
    """By whatever way they are called; the others run bare."""
    vm = vm_of(small())
    bodies = {"main": MAIN, "identity": IDENTITY, "call": CALL}
    with relax_trace.record(vm, functions=pattern) as recording:
        vm["main"](tensor(*X))
        vm["identity"](tensor(*X))
        vm["call"](tensor(*X))
        vm.set_input("main", tensor(*X))
        vm.invoke_stateful("main")
        vm["nested_call"](tensor(*X))
    trace = recording.trace
    assert functions(trace) == expected
    for i, name in enumerate(expected):
        assert name == "nested_call" or calls(trace, i) == bodies[name]


def test_a_function_inside_another_is_recorded_only_with_it() -> None:
    """The hook can't be set under a running invocation; ops that call functions are no entries."""
    vm = vm_of(small())
    with relax_trace.record(vm, functions="main") as recording:
        with callback(lambda _: vm["main"](tensor(*X))):
            vm["call"](tensor(*X))
        vm["main"](tensor(*X))
    assert [calls(recording.trace, i) for i in range(1)] == [MAIN]
    assert functions(recording.trace) == ["main"]


def test_functions_and_a_schedule_go_together() -> None:
    """The schedule counts what the filter lets through."""
    vm = vm_of(small())
    ready: list[Trace] = []
    plan = relax_trace.schedule(wait=1, active=1)
    with relax_trace.record(vm, functions="m*", schedule=plan, on_ready=ready.append) as recording:
        for _ in range(4):
            vm["main"](tensor(*X))
            vm["call"](tensor(*X))
    assert [functions(trace) for trace in ready] == [["main"], ["main"]]
    assert functions(recording.trace) == []


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ("add", ["add"]),
        (["add", "subtract"], ["add", "subtract"]),
        ("*t*y", ["multiply"]),
        (("inner", "subtract"), ["inner", "  subtract"]),
        (["vm.builtin.check*"], ["check_tensor_info", "check_tensor_info"]),
        (["vm.builtin.match*", "inner", "add"], ["match_shape", "add", "inner", "  match_shape"]),
        ("*", MAIN),
        ([], MAIN),
        ((), MAIN),
        ("other", []),
    ],
)
def test_only_the_calls_that_match_by_name(names: Any, expected: list[str]) -> None:
    """A call whose parent is left out stands under the nearest one that is kept."""
    vm = vm_of(small())
    with relax_trace.record(vm, names=names) as recording:
        np.testing.assert_array_equal(vm["main"](tensor(*X)).numpy(), [1, 9, 25, 49])
    assert calls(recording.trace) == expected
    assert functions(recording.trace) == ["main"]
    assert recording.trace.losses == relax_trace.Losses()


def test_a_call_below_two_that_are_left_out_is_under_the_nearest_kept() -> None:
    """Three levels: an op that invokes `nested_call`, whose `call` has an op of its own."""
    vm = vm_of(small())
    with (
        relax_trace.record(vm, names=[CALLBACK, "subtract", "call"]) as recording,
        callback(lambda _: vm["main"](tensor(*X))),
    ):
        vm["nested_call"](tensor(*X))
    trace = recording.trace
    assert functions(trace) == ["nested_call", "main"]
    assert trace.invocations.parent.tolist() == [-1, 0]
    named = [trace.names[i] for i in trace.name.tolist()]
    assert named == ["call", CALLBACK, "subtract"]
    assert trace.parent.tolist() == [-1, 0, -1]
    assert trace.invocation.tolist() == [0, 0, 1]


def test_only_the_calls_that_took_long_enough() -> None:
    """The op that sleeps and the calls around it; a short one that threw stays as well."""
    vm = vm_of(small())
    with relax_trace.record(vm, shortest_ns=SLEEP_NS) as recording:
        with callback(sleep):
            vm["nested_call"](tensor(*X))
        with callback(fail), pytest.raises(ValueError, match="no"):
            vm["nested_call"](tensor(*X))
        vm["main"](tensor(*X))
    trace = recording.trace
    assert functions(trace) == ["nested_call", "nested_call", "main"]
    kept = ["call", f"  {CALLBACK}"]
    assert [calls(trace, i) for i in range(3)] == [kept, kept, []]
    assert trace.flags.tolist() == [0, 0, ABORTED, ABORTED]
    assert (trace.duration[:2] >= SLEEP_NS).all()
    assert trace.invocations.end[2] > trace.invocations.start[2]


def test_filters_go_together() -> None:
    """Each leaves out more."""
    vm = vm_of(small())
    options: dict[str, Any] = {"names": ["call", "add"], "shortest_ns": SLEEP_NS}
    with relax_trace.record(vm, functions="nested*", **options) as recording, callback(sleep):
        vm["nested_call"](tensor(*X))
        vm["call"](tensor(*X))
    assert functions(recording.trace) == ["nested_call"]
    assert calls(recording.trace) == ["call"]


def test_two_recordings_with_filters_of_their_own() -> None:
    """Each has exactly its own, in whatever order they come and go; a third has everything."""
    vm, other = vm_of(small()), vm_of(small())
    first = relax_trace.record(vm, names="add")
    vm["main"](tensor(*X))
    with relax_trace.record(vm, names=["sub*", "inner"]) as second:
        vm["main"](tensor(*X))
        with relax_trace.record(vm) as third:
            vm["main"](tensor(*X))
        with relax_trace.record(vm, shortest_ns=SLEEP_NS) as slow, callback(sleep):
            vm["call"](tensor(*X))
            other["main"](tensor(*X))
        vm["main"](tensor(*X))
    vm["main"](tensor(*X))
    first.stop()
    assert [calls(first.trace, i) for i in range(6)] == [["add"]] * 6
    nested = ["inner", "  subtract"]
    assert [calls(second.trace, i) for i in range(4)] == [nested, nested, [], nested]
    assert [calls(third.trace, i) for i in range(1)] == [MAIN]
    assert calls(slow.trace) == [CALLBACK]
    assert functions(first.trace) == ["main", "main", "main", "call", "main", "main"]
    assert functions(second.trace) == ["main", "main", "call", "main"]


def test_a_filter_is_gone_with_its_recording() -> None:
    """While others run, and where it was the last one; names seen before it and during it alike."""
    vm = vm_of(small())
    for options in ({"names": "add"}, {"shortest_ns": 1 << 40}, {"functions": "call"}):
        with relax_trace.record(vm, **options):
            vm["main"](tensor(*X))
            vm["unchecked"]()
        with relax_trace.record(vm) as after:
            vm["main"](tensor(*X))
            with relax_trace.record(vm, **options):
                vm["main"](tensor(*X))
            vm["unchecked"]()
        assert [calls(after.trace, i) for i in range(3)] == [MAIN, MAIN, UNCHECKED]
    assert len(INNER) == sum(name.startswith("  ") for name in MAIN)


NEW_NAMES = """
import relax_trace
from integration.small_vms import calls, chain, small, tensor, vm_of

vm, other = vm_of(small()), vm_of(chain(3))
with relax_trace.record(vm, names="add") as recording, relax_trace.record(other, names="add*"):
    vm["main"](tensor(1, 2, 3, 4))
    with relax_trace.record(other, names=["match_*", "vm.builtin.match_*"]) as inner:
        other["main"](tensor(1, 2, 3, 4))
assert calls(recording.trace) == ["add"], calls(recording.trace)
assert calls(inner.trace) == ["match_shape"], calls(inner.trace)
try:
    relax_trace.record(vm, names=["add", 3])
except TypeError as error:
    print(error)
with relax_trace.record(vm) as after:
    vm["main"](tensor(1, 2, 3, 4))
print(len(after.trace))
"""


def test_names_that_the_recorder_has_never_seen() -> None:
    """The first recording of a process has a filter; a wrong one spoils none after it."""
    ended = run_alone(NEW_NAMES)
    text = f"names must be given as text, not as int\n{len(MAIN)}\n"
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, text, "")


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"names": ["add", 3]}, TypeError, "names must be given as text, not as int"),
        ({"names": b"add"}, TypeError, "names must be given as text, not as int"),
        ({"names": ""}, ValueError, "names has a pattern that no name can match: ''"),
        ({"names": "a\0b"}, ValueError, r"names has a pattern that no name can match: 'a\x00b'"),
        ({"names": "\udc80"}, ValueError, r"names has a pattern that no name can match: '\udc80'"),
        ({"functions": 3}, TypeError, "functions must be given as text, not as int"),
        (
            {"names": "[^a]*"},
            ValueError,
            "names has a pattern with more than *, ?, [abc], [!abc]: '[^a]*'",
        ),
        ({"functions": ""}, ValueError, "functions has a pattern that no name can match: ''"),
    ],
)
def test_a_pattern_that_makes_no_sense_is_refused(
    options: dict[str, Any], error: type[Exception], text: str
) -> None:
    """And leaves nothing behind: the next recording has everything."""
    vm = vm_of(small())
    with pytest.raises(error) as caught:
        relax_trace.record(vm, **options)
    assert str(caught.value) == text
    with relax_trace.record(vm) as recording:
        vm["main"](tensor(*X))
    assert calls(recording.trace) == MAIN


@pytest.mark.parametrize("options", [{"names": "relax*"}, {"shortest_ns": 1_000_000_000}])
def test_a_filtered_long_run_is_small(options: dict[str, Any]) -> None:
    """100,000 calls, of which the recorder hands over none; the invocations are there."""
    vm = vm_of(chain(200))
    with relax_trace.record(vm, memory_limit=1 << 20, **options) as recording:
        function = vm["main"]
        for _ in range(100):
            function(tensor(*X))
        assert take_all() == 0
        dump = load().dump(*hub._tables.counts, 1 << 30, 0)
        assert len(dump) < 1000
    trace = recording.trace
    assert counts(trace) == [0] * 100
    assert trace.losses == relax_trace.Losses()
