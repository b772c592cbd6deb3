"""A VM has one place for an instrument: whose it is, and what happens when two want it."""
# ruff: noqa: PT012, PT031, SIM117 - the body of a recording is what is tested

from __future__ import annotations

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
    compiled,
    functions,
    run_alone,
    small,
    tensor,
    vm_of,
)
from relax_trace import InstrumentError, RelaxTraceWarning

X = (1.0, 2.0, 3.0, 4.0)
OWN = (
    "this VirtualMachine has an instrument of your own, and a VM holds only one: "
    "call vm.set_instrument(None) before recording it"
)
RECORDED = (
    "this VirtualMachine is being recorded, and a VM holds only one instrument: "
    "call set_instrument() before or after the recording"
)
TAKEN = (
    "something replaced the instrument of this VirtualMachine during the recording "
    "(a set_instrument() on its module?): ops after that are missing from the trace"
)


class Instrument:
    """A user's instrument: it notes the names of the calls."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def __call__(self, _: Any, name: str, before: bool, *__: Any) -> None:
        """What the VM calls before and after every op."""
        if before:
            self.seen.append(name.removeprefix("vm.builtin."))

    def take(self) -> list[str]:
        """What was seen since the last time."""
        seen, self.seen = self.seen, []
        return seen


def flat(body: list[str]) -> list[str]:
    """The same calls as an instrument sees them, without their nesting."""
    return [name.strip() for name in body]


def test_a_vm_with_an_instrument_of_the_users_is_refused() -> None:
    """It says so, the instrument goes on working, and without it the VM can be recorded."""
    vm = vm_of(small())
    instrument = Instrument()
    vm.set_instrument(instrument)
    for _ in range(2):
        with pytest.raises(InstrumentError) as caught:
            relax_trace.record(vm)
        assert str(caught.value) == OWN
    assert type(vm) is relax.VirtualMachine
    vm["main"](tensor(*X))
    assert instrument.take() == flat(MAIN)
    vm.set_instrument(None)
    with relax_trace.record(vm) as recording:
        vm["main"](tensor(*X))
    assert calls(recording.trace) == MAIN
    assert instrument.take() == []


def test_an_instrument_set_during_a_recording_is_refused() -> None:
    """The recording goes on as if nothing had been asked; afterwards it can be set."""
    vm = vm_of(small())
    instrument = Instrument()
    with relax_trace.record(vm) as recording:
        for wanted in (instrument, None):
            with pytest.raises(InstrumentError) as caught:
                vm.set_instrument(wanted)
            assert str(caught.value) == RECORDED
        vm["main"](tensor(*X))
        recording.pause()
        with pytest.raises(InstrumentError):
            vm.set_instrument(instrument)
        recording.resume()
        vm["main"](tensor(*X))
    assert [calls(recording.trace, i) for i in range(2)] == [MAIN, MAIN]
    assert instrument.take() == []
    vm.set_instrument(instrument)
    vm["main"](tensor(*X))
    assert instrument.take() == flat(MAIN)


def test_an_instrument_put_in_behind_our_back_is_told_at_the_end() -> None:
    """It stays, and the trace has what was recorded before."""
    vm = vm_of(small())
    instrument = Instrument()
    with pytest.raises(InstrumentError) as caught, relax_trace.record(vm) as recording:
        vm["main"](tensor(*X))
        vm.module["set_instrument"](instrument)
        vm["main"](tensor(*X))
        vm["main"](tensor(*X))
    assert str(caught.value) == TAKEN
    assert instrument.take() == flat(MAIN) * 2
    assert functions(recording.trace)[0] == "main"
    assert calls(recording.trace, 0) == MAIN
    assert len(recording.trace) == len(MAIN)
    assert type(vm) is relax.VirtualMachine
    np.testing.assert_array_equal(vm["main"](tensor(*X)).numpy(), [1, 9, 25, 49])
    assert instrument.take() == flat(MAIN)
    recording.stop()


def test_an_instrument_that_stayed_is_not_thrown_out_by_the_next_recording() -> None:
    """It is refused until the user has cleared the slot, then all is as at first."""
    vm = vm_of(small())
    instrument = Instrument()
    with pytest.raises(InstrumentError, match="something replaced"), relax_trace.record(vm):
        vm.module["set_instrument"](instrument)
    with pytest.raises(InstrumentError) as caught, relax_trace.record(vm):
        pass
    assert str(caught.value) == OWN
    vm["main"](tensor(*X))
    assert instrument.take() == flat(MAIN)
    vm.set_instrument(None)
    with relax_trace.record(vm) as recording:
        vm["main"](tensor(*X))
    assert calls(recording.trace) == MAIN


def test_the_users_exception_comes_before_our_complaint() -> None:
    """What the body raised gets out; that the slot was taken becomes a warning."""
    vm = vm_of(small())
    instrument = Instrument()
    with pytest.warns(RelaxTraceWarning) as warned, pytest.raises(KeyError, match="the user's"):
        with relax_trace.record(vm) as recording:
            vm["main"](tensor(*X))
            vm.module["set_instrument"](instrument)
            raise KeyError("the user's")
    assert [str(warning.message) for warning in warned] == [TAKEN]
    assert warned[0].filename == __file__
    assert calls(recording.trace) == MAIN
    vm["main"](tensor(*X))
    assert instrument.take() == flat(MAIN)
    vm.set_instrument(None)
    with relax_trace.record(vm) as again:
        vm["main"](tensor(*X))
    assert calls(again.trace) == MAIN


@pytest.mark.parametrize("paused", [False, True])
def test_a_slot_that_was_cleared_behind_our_back_is_told_too(paused: bool) -> None:
    """While recording that loses calls; while paused, with the slot empty, it changes nothing."""
    vm = vm_of(small())
    recording = relax_trace.record(vm)
    vm["main"](tensor(*X))
    if paused:
        recording.pause()
    vm.module["set_instrument"](None)
    if paused:
        recording.resume()
        vm["main"](tensor(*X))
        recording.stop()
    else:
        vm["main"](tensor(*X))
        with pytest.raises(InstrumentError, match="something replaced"):
            recording.stop()
    assert calls(recording.trace, 0) == MAIN
    assert len(recording.trace) == len(MAIN) * (2 if paused else 1)


def test_an_instrument_put_in_between_two_recordings_by_its_module_is_seen_to_work() -> None:
    """Both recordings around it are whole."""
    vm = vm_of(small())
    instrument = Instrument()
    traces = []
    for _ in range(2):
        with relax_trace.record(vm) as recording:
            vm["call"](tensor(*X))
        traces.append(recording.trace)
        vm.module["set_instrument"](instrument)
        vm["call"](tensor(*X))
        vm.module["set_instrument"](None)
    assert [calls(trace) for trace in traces] == [CALL, CALL]
    assert instrument.take() == flat(CALL) * 2


def test_an_instrument_put_in_inside_an_op_is_told_at_the_end() -> None:
    """The VM goes on with it in the middle of an invocation, and so do we without."""
    vm = vm_of(small())
    instrument = Instrument()
    with callback(lambda _: vm.module["set_instrument"](instrument)):
        with pytest.raises(InstrumentError, match="something replaced"):
            with relax_trace.record(vm) as recording:
                np.testing.assert_array_equal(vm["call"](tensor(*X)).numpy(), [2, 4, 6, 8])
    assert instrument.take() == CALL[CALL.index("relax_trace_tests.callback") + 1 :]
    assert calls(recording.trace) == CALL[: CALL.index("relax_trace_tests.callback") + 1]
    vm.set_instrument(None)
    with relax_trace.record(vm) as again:
        vm["main"](tensor(*X))
    assert calls(again.trace) == MAIN


@pytest.mark.parametrize("first", ["pause", "stop"])
def test_the_hook_is_never_cleared_under_a_running_op(first: str) -> None:
    """Switched off inside one op, and on and off inside the next, of a function taken before."""
    program = f"""
import relax_trace
from integration.small_vms import CALL, callback, calls, functions, small, tensor, vm_of

vm = vm_of(small())
function = vm["call"]
recording = relax_trace.record(vm)
with callback(lambda _: recording.{first}()):
    function(tensor(1, 2, 3, 4))

def blink(_):
    with relax_trace.record(vm):
        pass

for _ in range(10):
    with callback(blink):
        assert function(tensor(1, 2, 3, 4)).numpy().tolist() == [2, 4, 6, 8]
recording.stop()
with relax_trace.record(vm) as last:
    function(tensor(1, 2, 3, 4))
assert calls(last.trace) == CALL, calls(last.trace)
print("done")
"""
    ended = run_alone(program)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "done\n", "")


def test_an_instrument_set_after_a_recording_stopped_inside_an_op() -> None:
    """Whatever the recorder left behind, the slot is the user's again, and then ours."""
    vm = vm_of(small())
    function = vm["call"]
    recording = relax_trace.record(vm)
    with callback(lambda _: recording.stop()):
        function(tensor(*X))
    seen: list[str] = []
    vm.set_instrument(lambda _, name, before, *__: seen.append(name) if before else None)
    function(tensor(*X))
    assert len(seen) == len(CALL)
    vm.set_instrument(None)
    with relax_trace.record(vm) as again:
        function(tensor(*X))
    assert calls(again.trace) == CALL


def test_a_vm_of_compiled_functions_gives_a_warning() -> None:
    """It reports no op call: the warning says why and what to do, once."""
    vm = vm_of(compiled())
    with relax_trace.record(vm) as recording:
        np.testing.assert_array_equal(vm["main"](tensor(*X)).numpy(), [1, 9, 25, 49])
    with pytest.warns(RelaxTraceWarning) as warned:
        trace = recording.trace
    assert [str(warning.message) for warning in warned] == [
        "the VM ran and reported no op call, as one built with exec_mode='compiled' does: "
        "build the model with relax.build(..., exec_mode='bytecode'), which is the default, "
        "to see its ops"
    ]
    assert warned[0].filename == __file__
    assert functions(trace) == ["main"]
    assert len(trace) == 0
    assert recording.trace is trace  # no second warning, which would be an error here


@pytest.mark.parametrize(
    ("thing", "text"),
    [
        ("vm", "record() takes a tvm.relax.VirtualMachine, not a str"),
        (small(), "record() takes a tvm.relax.VirtualMachine, not a VMExecutable"),
        (small().mod, "record() takes a tvm.relax.VirtualMachine, not a Module"),
        (relax.VirtualMachine, "record() takes a tvm.relax.VirtualMachine, not a type"),
    ],
)
def test_what_is_not_a_vm_is_refused(thing: Any, text: str) -> None:
    """One line says what was expected and what came."""
    with pytest.raises(TypeError) as caught:
        relax_trace.record(thing)
    assert str(caught.value) == text


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"timing": "wall"}, ValueError, "timing must be 'host' or 'synchronized', not 'wall'"),
        (
            {"memory_limit": (1 << 20) - 1},
            ValueError,
            "memory_limit must be at least 1048576 bytes (1 MiB), not 1048575",
        ),
        (
            {"memory_limit": -1},
            ValueError,
            "memory_limit must be at least 1048576 bytes (1 MiB), not -1",
        ),
        ({"memory_limit": 1e9}, TypeError, "memory_limit must be an integer, not a float"),
        ({"memory_limit": "1 GB"}, TypeError, "memory_limit must be an integer, not a str"),
        ({"mode": "loop"}, ValueError, "mode must be 'stop' or 'ring', not 'loop'"),
        (
            {"schedule": lambda step: step > 3},
            TypeError,
            "schedule must come from relax_trace.schedule()",
        ),
        (
            {"on_ready": print},
            ValueError,
            "on_ready is called after each cycle of a schedule: give one as well",
        ),
        ({"shortest_ns": -1}, ValueError, "shortest_ns must be at least 0, not -1"),
        ({"slow_ns": 0.5, "snapshots": "."}, TypeError, "slow_ns must be an integer, not a float"),
        (
            {"slow_ns": 5},
            ValueError,
            "slow_ns has files written: name their folder with snapshots=...",
        ),
    ],
)
def test_an_option_that_makes_no_sense_changes_nothing(
    options: dict[str, Any], error: type, text: str
) -> None:
    """It is refused before the VM is touched."""
    vm = vm_of(small())
    with pytest.raises(error) as caught:
        relax_trace.record(vm, **options)
    assert str(caught.value) == text
    assert type(vm) is relax.VirtualMachine
    with relax_trace.record(vm, memory_limit=1 << 62) as recording:
        vm["main"](tensor(*X))
    assert calls(recording.trace) == MAIN


def test_a_limit_beyond_64_bits_holds_everything() -> None:
    """Nobody is asked to know where an integer of C ends."""
    vm = vm_of(small())
    with relax_trace.record(vm, memory_limit=1 << 80) as recording:
        vm["main"](tensor(*X))
    assert calls(recording.trace) == MAIN
