"""An op that throws: the user sees the exception as it was, and the trace where it happened."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tvm import relax

import relax_trace
from integration.small_vms import (
    CALL,
    MAIN,
    callback,
    calls,
    counts,
    functions,
    small,
    tensor,
    vm_of,
)
from relax_trace import Trace
from relax_trace.trace import ABORTED, FAILED, IMPLICIT

VM = relax.VirtualMachine
CALLBACK = "relax_trace_tests.callback"
ALLOCATE = ["alloc_storage", "alloc_tensor", "null_value"]
# What `nested_call` comes to until its callback throws, and what of that was left by the throw.
UNTIL_THROW = [
    *("check_tensor_info", "match_shape", *ALLOCATE, "add", "call"),
    *("  check_tensor_info", "  match_shape", *(f"  {name}" for name in ALLOCATE)),
    f"  {CALLBACK}",
]
NESTED_CALL = [
    *("check_tensor_info", "match_shape", *ALLOCATE, "add", "call"),
    *(*(f"  {name}" for name in CALL), "null_value"),
    *(*ALLOCATE, "multiply", "null_value"),
]
THROWN = ["call", CALLBACK]


class OwnError(Exception):
    """An exception of the user's own, with more to it than a message."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def boom(x: Any) -> None:
    """Throw if asked to by the tensor's first value."""
    if x.numpy()[0] > 5:
        raise ValueError("boom: 'quoted', \x1b[31m, <b>, ü")


def raised_by(function: Callable[[Any], Any], x: Any) -> BaseException:
    """What ``function(x)`` raises."""
    with pytest.raises(BaseException) as caught:  # noqa: PT011 - compared by the caller
        function(x)
    return caught.value


def aborted(trace: Trace, invocation: int) -> list[str]:
    """Names of the calls of an invocation that a throw ended."""
    left = (trace.flags & ABORTED > 0) & (trace.invocation == invocation)
    return [trace.names[i] for i in trace.name[left].tolist()]


@pytest.mark.parametrize("taken_before", [False, True])
def test_a_throw_at_depth_is_recorded_where_it_happened(taken_before: bool) -> None:
    """Its op has its shapes, it and those around it are aborted; the next call is whole again."""
    with callback(boom):
        expected = raised_by(vm_of(small())["nested_call"], tensor(3, 0, 0, 0))
        vm = vm_of(small())
        function = vm["nested_call"]
        with relax_trace.record(vm) as recording:
            function = function if taken_before else vm["nested_call"]
            for _ in range(2):
                error = raised_by(function, tensor(3, 0, 0, 0))
                assert (type(error), str(error)) == (type(expected), str(expected))
                result = function(tensor(1, 2, 3, 4))
                np.testing.assert_array_equal(result.numpy(), [16, 64, 144, 256])
    trace = recording.trace
    assert functions(trace) == ["nested_call"] * 4
    assert [calls(trace, i) for i in range(4)] == [UNTIL_THROW, NESTED_CALL] * 2
    assert [aborted(trace, i) for i in range(4)] == [THROWN, [], THROWN, []]
    thrown = [i for i in range(len(trace)) if trace.names[trace.name[i]] == CALLBACK]
    assert {trace.signatures.texts[trace.signature[i]] for i in thrown} == {
        b"float32[4], float32[4]"
    }
    text = "ValueError: boom: 'quoted', \x1b[31m, <b>, ü"
    if taken_before:
        assert trace.invocations.flags.tolist() == [IMPLICIT] * 4
        assert trace.errors == ()
    else:
        assert trace.invocations.flags.tolist() == [FAILED, 0, FAILED, 0]
        assert [trace.errors[i] for i in trace.invocations.error[[0, 2]].tolist()] == [text] * 2
        assert trace.invocations.error[[1, 3]].tolist() == [-1, -1]
    assert (trace.end <= trace.invocations.end[trace.invocation]).all()


def test_a_throw_of_a_function_taken_before_ends_when_that_is_noticed() -> None:
    """A call from a deeper stack, or from a higher one, or the end, closes what was left open."""
    vm = vm_of(small())
    function = vm["nested_call"]

    def deeper(levels: int, x: Any) -> Any:
        return sorted([1], key=lambda _: deeper(levels - 1, x) and 0) if levels else function(x)

    with callback(boom), relax_trace.record(vm) as recording:
        for before, after in [(0, 20), (20, 0), (10, 10)]:
            with pytest.raises(ValueError, match="boom"):
                deeper(before, tensor(3, 0, 0, 0))
            deeper(after, tensor(1, 0, 0, 0))
        with pytest.raises(ValueError, match="boom"):
            function(tensor(3, 0, 0, 0))
        vm["main"](tensor(1, 0, 0, 0))
    trace = recording.trace
    assert functions(trace) == ["nested_call"] * 7 + ["main"]
    expected = [UNTIL_THROW, NESTED_CALL] * 3 + [UNTIL_THROW, MAIN]
    assert [calls(trace, i) for i in range(8)] == expected
    assert [aborted(trace, i) for i in range(8)] == [THROWN, []] * 3 + [THROWN, []]


@pytest.mark.parametrize(
    ("wrong", "begun"),
    [
        (tensor(1, 2, 3, 4, dtype="int64"), ["check_tensor_info"]),
        (tensor(1, 2), ["check_tensor_info", "match_shape"]),
    ],
)
@pytest.mark.parametrize("taken_before", [False, True])
def test_a_failed_check_of_a_parameter_is_an_invocation_of_its_own(
    wrong: Any, begun: list[str], taken_before: bool
) -> None:
    """Arguments of the wrong dtype or shape, then good ones: two invocations each time."""
    expected = raised_by(vm_of(small())["main"], wrong)
    vm = vm_of(small())
    function = vm["main"]
    with relax_trace.record(vm) as recording:
        function = function if taken_before else vm["main"]
        for _ in range(2):
            error = raised_by(function, wrong)
            assert (type(error), str(error)) == (type(expected), str(expected))
            function(tensor(1, 2, 3, 4))
    trace = recording.trace
    assert functions(trace) == ["main"] * 4
    assert [calls(trace, i) for i in range(4)] == [begun, MAIN] * 2
    assert [len(aborted(trace, i)) for i in range(4)] == [1, 0, 1, 0]


def test_an_exception_of_the_users_own_is_the_same_object() -> None:
    """Class, attributes and cause get through the recorded VM as through the bare one."""
    thrown = OwnError("mine", code=7)

    def throw(_: Any) -> None:
        raise thrown from KeyError("cause")

    with callback(throw):
        bare = raised_by(vm_of(small())["call"], tensor(1, 2, 3, 4))
        vm = vm_of(small())
        with relax_trace.record(vm) as recording:
            error = raised_by(vm["call"], tensor(1, 2, 3, 4))
    assert (error is thrown) == (bare is thrown)
    assert type(error) is type(bare)
    assert str(error) == str(bare)
    assert getattr(error, "code", None) == getattr(bare, "code", None)
    assert repr(error.__cause__) == repr(bare.__cause__)
    assert recording.trace.invocations.flags.tolist() == [FAILED]
    (text,) = recording.trace.errors
    assert text.endswith(": mine")


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit, StopIteration])
def test_exceptions_that_are_no_errors_get_through(kind: type[BaseException]) -> None:
    """An op interrupted from the keyboard, or by ``sys.exit``, behaves as with the bare VM."""

    def throw(_: Any) -> None:
        raise kind("reason")

    with callback(throw):
        bare = raised_by(vm_of(small())["nested_call"], tensor(1, 2, 3, 4))
        vm = vm_of(small())
        with relax_trace.record(vm) as recording:
            error = raised_by(vm["nested_call"], tensor(1, 2, 3, 4))
    assert (type(error), str(error)) == (type(bare), str(bare))
    trace = recording.trace
    assert calls(trace) == UNTIL_THROW
    assert aborted(trace, 0) == THROWN
    assert trace.invocations.flags.tolist() == [FAILED]


def test_a_signal_handler_that_throws_inside_an_op() -> None:
    """As a keyboard interrupt does: the invocation fails, the next one is whole."""

    def on_signal(*_: Any) -> None:
        raise KeyboardInterrupt

    def interrupted(vm: VM) -> tuple[type, str]:
        with callback(lambda _: signal.raise_signal(signal.SIGUSR1)):
            error = raised_by(vm["call"], tensor(1, 2, 3, 4))
        return type(error), str(error)

    before = signal.signal(signal.SIGUSR1, on_signal)
    try:
        bare = interrupted(vm_of(small()))
        vm = vm_of(small())
        with relax_trace.record(vm) as recording:
            assert interrupted(vm) == bare
            vm["call"](tensor(1, 2, 3, 4))
    finally:
        signal.signal(signal.SIGUSR1, before)
    trace = recording.trace
    assert trace.invocations.flags.tolist() == [FAILED, 0]
    assert calls(trace, 1) == CALL


@pytest.mark.parametrize(
    ("message", "kept"),
    [
        ("é" * 100_000, "ValueError: " + "é" * 121),  # 254 bytes: no half of a character
        ("a\x00b", "ValueError: a"),
        ("", "ValueError: "),
        ("%s%n", "ValueError: %s%n"),
    ],
)
def test_a_long_or_hostile_error_text_is_cut_and_kept(message: str, kept: str) -> None:
    """The trace has the first 255 bytes of it at most, up to a NUL; the user has all of it."""

    def throw(_: Any) -> None:
        raise ValueError(message)

    vm = vm_of(small())
    with callback(throw), relax_trace.record(vm) as recording:
        error = raised_by(vm["call"], tensor(1, 2, 3, 4))
    assert str(error) == message
    assert recording.trace.errors == (kept,)


@pytest.mark.parametrize("taken_before", [False, True])
@pytest.mark.parametrize("recorded_too", [False, True])
def test_an_op_that_catches_the_throw_of_another_vm_goes_on(
    taken_before: bool, recorded_too: bool
) -> None:
    """The inner VM's calls are aborted, the outer invocation is whole."""
    inner, outer = vm_of(small()), vm_of(small())
    inner_call, outer_call = inner["nested_call"], outer["call"]
    caught: list[str] = []

    def catch(x: Any) -> None:
        if x.numpy()[0] > 5:
            raise ValueError("inner")
        try:
            (inner_call if taken_before else inner["nested_call"])(tensor(3, 0, 0, 0))
        except ValueError as error:
            caught.append(str(error))

    with callback(catch), relax_trace.record(outer) as recording:
        other = relax_trace.record(inner) if recorded_too else None
        for _ in range(2):
            (outer_call if taken_before else outer["call"])(tensor(1, 2, 3, 4))
        if other:
            other.stop()
    trace = recording.trace
    assert caught == ["inner"] * 2
    assert functions(trace) == ["call"] * 2
    assert [calls(trace, i) for i in range(2)] == [CALL] * 2
    assert [aborted(trace, i) for i in range(2)] == [[], []]
    assert trace.invocations.flags.tolist() == [IMPLICIT if taken_before else 0] * 2
    if other:
        trace = other.trace
        assert functions(trace) == ["nested_call"] * 2
        assert [calls(trace, i) for i in range(2)] == [UNTIL_THROW] * 2
        assert [aborted(trace, i) for i in range(2)] == [THROWN] * 2
        assert trace.invocations.parent.tolist() == [-1, -1]


def test_an_op_that_catches_the_throw_of_its_own_vm_goes_on() -> None:
    """A wrapped function called inside an op throws there: only its own invocation fails."""
    vm = vm_of(small())

    def catch(x: Any) -> None:
        if x.numpy()[0] > 5:
            raise ValueError("inner")
        with pytest.raises(ValueError, match="inner"):
            vm["nested_call"](tensor(3, 0, 0, 0))

    with callback(catch), relax_trace.record(vm) as recording:
        vm["call"](tensor(1, 2, 3, 4))
    trace = recording.trace
    assert functions(trace) == ["call", "nested_call"]
    assert trace.invocations.parent.tolist() == [-1, 0]
    assert trace.invocations.flags.tolist() == [0, FAILED]
    assert calls(trace, 0) == CALL
    assert [name.strip() for name in calls(trace, 1)] == [name.strip() for name in UNTIL_THROW]
    assert [aborted(trace, i) for i in range(2)] == [[], THROWN]


def test_many_throws_leave_nothing_open() -> None:
    """After thousands of throws at depth the nesting is as at the start."""
    vm = vm_of(small())
    with callback(boom), relax_trace.record(vm) as recording:
        function = vm["nested_call"]
        for _ in range(2000):
            with pytest.raises(ValueError, match="boom"):
                function(tensor(3, 0, 0, 0))
        vm["main"](tensor(1, 2, 3, 4))
    trace = recording.trace
    assert counts(trace) == [len(UNTIL_THROW)] * 2000 + [len(MAIN)]
    assert (trace.flags & ABORTED > 0).sum() == 4000
    assert calls(trace, 2000) == MAIN
    assert trace.losses == relax_trace.Losses()
