"""record() without a VM: every VM of the process; names for VMs; a VM's module in its place."""

from __future__ import annotations

import copy
import gc
import json
import logging
import random
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

import relax_trace
from integration.lengths import lengths, vector
from integration.small_vms import (
    CALL,
    MAIN,
    callback,
    calls,
    compiled,
    counts,
    dynamic,
    functions,
    run_alone,
    small,
    tensor,
    vm_of,
)
from relax_trace import InstrumentError, RelaxTraceError, RelaxTraceWarning, Trace, attach, reach
from relax_trace.hub import hub
from relax_trace.trace import IMPLICIT, OPEN

X = (1.0, 2.0, 3.0, 4.0)
VM = relax.VirtualMachine


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    """After each test no recording is left running, and no VM of an earlier one is found."""
    gc.collect()
    yield
    assert hub._running == []
    assert reach._listeners == []


def run_threads(*targets: Callable[[], object]) -> None:
    """Run every target in a thread of its own to the end; raise what one of them raised."""
    errors: list[BaseException] = []

    def guarded(target: Callable[[], object]) -> None:
        try:
            target()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=[target]) for target in targets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def ran(trace: Trace) -> list[tuple[str, str]]:
    """What was invoked on which VM, in order."""
    vms = [trace.vms[i] for i in trace.invocations.vm.tolist()]
    return list(zip(vms, functions(trace), strict=True))


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count VMs from the first one of this test on: others may have left some."""
    monkeypatch.setattr(reach, "_known", {})


# ---- which VMs, which functions ----


def test_vms_made_before_and_after() -> None:
    """Each is recorded from the invocation on that begins next, and is itself again at the end."""
    before = vm_of(small())
    before["main"](tensor(*X))
    with relax_trace.record() as recording:
        before["main"](tensor(*X))
        after = vm_of(small())
        np.testing.assert_array_equal(after["call"](tensor(*X)).numpy(), [2, 4, 6, 8])
        before.set_input("main", tensor(*X))
        before.invoke_stateful("main")
        np.testing.assert_array_equal(before.get_outputs("main").numpy(), [1, 9, 25, 49])
        assert isinstance(after, VM)
        assert type(after) is not VM
    before["main"](tensor(*X))
    later = vm_of(small())
    later["main"](tensor(*X))
    assert {type(vm) for vm in (before, after, later)} == {VM}
    trace = recording.trace
    assert ran(trace) == [("vm1", "main"), ("vm2", "call"), ("vm1", "main")]
    assert [calls(trace, i) for i in range(3)] == [MAIN, CALL, MAIN]
    assert trace.invocations.flags.tolist() == [0, 0, 0]


def test_vms_of_several_threads() -> None:
    """Made and run there, 50 in each of six threads; every invocation has its thread and VM."""
    tids: dict[int, list[int]] = {}

    def work() -> None:
        tid = threading.get_native_id()
        for i in range(50):
            vm = vm_of(small())
            vm["call" if i % 2 else "main"](tensor(*X))
            tids.setdefault(tid, []).append(i)
        alive.wait()  # no id is used again

    alive = threading.Barrier(6)
    with relax_trace.record() as recording:
        run_threads(*[work] * 6)
    trace = recording.trace
    assert len(trace.vms) == len(set(trace.invocations.vm.tolist())) == 300
    found: dict[int, list[str]] = {tid: [] for tid in tids}
    for thread, name in zip(trace.invocations.thread.tolist(), functions(trace), strict=True):
        found[trace.threads[thread].tid].append(name)
    assert list(found.values()) == [["main", "call"] * 25] * 6
    assert counts(trace) == [len(CALL if name == "call" else MAIN) for name in functions(trace)]


@pytest.mark.filterwarnings("ignore:no invocation was seen")
def test_vms_made_by_threads_while_recordings_come_and_go() -> None:
    """Whoever makes a VM sees nothing of it, and neither does who records."""
    done = threading.Event()
    made = [0]
    alive = [vm_of(small()) for _ in range(400)]  # to be looked through meanwhile

    def make() -> None:
        while not done.is_set():
            vm = vm_of(small())
            np.testing.assert_array_equal(vm["main"](tensor(*X)).numpy(), [1, 9, 25, 49])
            assert isinstance(vm, VM)
            made[0] += 1

    def switch() -> None:
        try:
            for i in range(30):
                with relax_trace.record() as recording:
                    while i % 5 == 0 and made[0] < i:
                        pass
                    recording.pause()
                    recording.snapshot()
                    recording.resume()
                trace = recording.trace
                closed = trace.invocations.flags & OPEN == 0
                assert set(np.array(counts(trace))[closed].tolist()) <= {len(MAIN)}
        finally:
            done.set()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        run_threads(make, make, make, switch)
    finally:
        sys.setswitchinterval(interval)
    assert {type(vm) for vm in alive} == {VM}


NOT_SEEN = (
    "no invocation was seen: record() without a VM sees functions that are taken from "
    "a VM while it runs; record(vm) also sees those that were taken before"
)


def test_a_function_taken_before_is_not_seen() -> None:
    """A warning says so, once, where nothing else was seen; record(vm) has it."""
    vm = vm_of(small())
    function = vm["main"]
    with relax_trace.record() as recording:
        function(tensor(*X))
    with pytest.warns(RelaxTraceWarning) as warned:
        trace = recording.trace
    assert [str(warning.message) for warning in warned] == [NOT_SEEN]
    assert warned[0].filename == __file__
    assert len(trace.invocations) == 0
    with relax_trace.record() as outer:
        with relax_trace.record(vm) as inner:
            function(tensor(*X))
        vm["main"](tensor(*X))
        function(tensor(*X))
    assert inner.trace.invocations.flags.tolist() == [IMPLICIT]
    assert calls(inner.trace) == MAIN
    assert ran(outer.trace) == [("vm", "main")]


def test_a_function_taken_during_one_recording_is_seen_by_the_next() -> None:
    """And runs bare in between."""
    vm = vm_of(small())
    with relax_trace.record() as first:
        function = vm["main"]
        function(tensor(*X))
    function(tensor(*X))
    with relax_trace.record() as second:
        function(tensor(*X))
    for recording in (first, second):
        assert functions(recording.trace) == ["main"]
        assert calls(recording.trace) == MAIN
        assert recording.trace.invocations.flags.tolist() == [0]


class Prefixed(VM):
    """A program's own class: it maps names, and wants an argument of its own."""

    def __init__(self, executable: Any, prefix: str) -> None:
        super().__init__(executable, tvm.cpu())
        self.prefix = prefix
        self.taken: list[str] = []
        self["identity"] if prefix == "" else self["call"]

    def __getitem__(self, key: str) -> Any:
        self.taken.append(key)
        return super().__getitem__(self.prefix + key)


@pytest.mark.parametrize("prefix", ["", "nested_"])
def test_a_class_derived_from_virtual_machine(prefix: str) -> None:
    """What it overrides goes on to work, also inside its own __init__."""
    before = Prefixed(small(), prefix)
    with relax_trace.record() as recording:
        after = Prefixed(small(), prefix)
        for vm in (before, after):
            vm["call"](tensor(*X))
            assert isinstance(vm, Prefixed)
    first = "identity" if prefix == "" else "call"
    assert (before.taken, after.taken) == ([first, "call"], [first, "call"])
    assert functions(recording.trace) == [f"{prefix}call"] * 2
    assert {type(before), type(after)} == {Prefixed}
    assert Prefixed.__mro__[1] is VM


class Stubborn(VM):
    """A class that can't be derived from as we do."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        raise RuntimeError("no")


def test_a_vm_that_cannot_be_recorded_spoils_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """It works, the log says that it is left out, and the others are recorded."""
    before, other = Stubborn(small(), tvm.cpu()), vm_of(small())
    with relax_trace.record() as recording:
        after = Stubborn(small(), tvm.cpu())
        for vm in (before, after):
            np.testing.assert_array_equal(vm["main"](tensor(*X)).numpy(), [1, 9, 25, 49])
        other["main"](tensor(*X))
    assert [name for _, name in ran(recording.trace)] == ["main"]
    assert [record.getMessage() for record in caplog.records] == [
        "a VirtualMachine could not be recorded"
    ] * 2
    with pytest.raises(RuntimeError, match="no"):
        relax_trace.record(before)
    assert type(before) is Stubborn


def test_a_copy_of_a_recorded_vm() -> None:
    """It is a VM as before, on the same module."""
    vm = vm_of(small())
    with relax_trace.record(vm) as recording:
        copied = copy.copy(vm)
        assert type(copied) is VM
        vm["main"](tensor(*X))
    np.testing.assert_array_equal(copied["main"](tensor(*X)).numpy(), [1, 9, 25, 49])
    assert calls(recording.trace) == MAIN


@pytest.mark.parametrize("freeze", ["", "gc.collect(); gc.freeze()"])
def test_vms_made_before_relax_trace_was_imported(freeze: str, tmp_path: Path) -> None:
    """Found among the garbage collector's objects or, where these are frozen, once used."""
    library = tmp_path / "small.so"
    small().export_library(library)
    program = f"""
import gc, sys
import tvm
import tvm_ffi
from tvm import relax

tvm_ffi.register_global_func("relax_trace_tests.callback", lambda x, out: out.copyfrom(x))

class Prefixed(relax.VirtualMachine):
    def __getitem__(self, key):
        self.__dict__.setdefault("taken", []).append(key)
        return super().__getitem__("nested_" + key)

loaded = tvm.runtime.load_module({str(library)!r})
plain, prefixed, used = (
    made(loaded, tvm.cpu()) for made in (relax.VirtualMachine, Prefixed, relax.VirtualMachine)
)
{freeze}
assert "relax_trace" not in sys.modules
import relax_trace
from integration.small_vms import functions, tensor

x = tensor(1, 2, 3, 4)
with relax_trace.record() as recording:
    plain["main"](x)
    prefixed["call"](x)
    prefixed["call"](x)
    used.set_input("main", x)
    used.invoke_stateful("main")
    used.time_evaluator("main", tvm.cpu(), number=1)(x)
assert prefixed.taken == ["call", "call"], prefixed.taken
found = functions(recording.trace)
assert found[:4] == ["main", "nested_call", "nested_call", "main"], found
assert set(found[4:]) == {{"main"}} and len(found) > 4, found
assert len(recording.trace.vms) == 3
assert type(plain) is type(used) is relax.VirtualMachine and type(prefixed) is Prefixed
print("done")
"""
    ended = run_alone(program)
    assert (ended.returncode, ended.stdout) == (0, "done\n"), ended.stderr  # where TVM warns


NO_TVM = """
import sys
import relax_trace

with relax_trace.record() as recording:
    pass
assert len(recording.trace) == 0
found = [name for name in sys.modules if name.split(".")[0] == "tvm"]
assert found == [], found
recording = relax_trace.record()
from integration.small_vms import MAIN, calls, small, tensor, vm_of
vm = vm_of(small())
vm["main"](tensor(1, 2, 3, 4))
recording.stop()
assert calls(recording.trace) == MAIN
print("done")
"""


def test_record_imports_nothing_of_tvm() -> None:
    """A program without VMs doesn't pay for them; one that imports TVM later is recorded."""
    ended = run_alone(NO_TVM)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "done\n", "")


def test_a_vm_that_goes_while_it_is_recorded() -> None:
    """The recording keeps it not alive, and has what it ran; its function may outlive it."""
    kept = vm_of(small())
    with relax_trace.record() as recording:
        vm = vm_of(small())
        vm["main"](tensor(*X))
        function = vm["call"]
        gone = weakref.ref(vm)
        del vm
        gc.collect()
        assert gone() is None
        function(tensor(*X))
        recording.pause()
        function(tensor(*X))
        recording.resume()
        kept["main"](tensor(*X))
    function(tensor(*X))
    assert ran(recording.trace) == [("vm2", "main"), ("vm2", "call"), ("vm1", "main")]


def test_a_compiled_vm_gives_the_warning() -> None:
    """Every VM of the process reported nothing: it says why."""
    vm = vm_of(compiled())
    with relax_trace.record() as recording:
        vm["main"](tensor(*X))
    with pytest.warns(RelaxTraceWarning, match="exec_mode='compiled'") as warned:
        trace = recording.trace
    assert warned[0].filename == __file__
    assert functions(trace) == ["main"]


# ---- several recordings ----


@pytest.mark.parametrize("first", ["all", "one"])
def test_a_recording_of_one_vm_inside_one_of_all_and_the_other_way_round(first: str) -> None:
    """Each has exactly its own, and the VM is recorded until both have ended."""
    vm, other = vm_of(small()), vm_of(small())
    targets = [(), (vm,)] if first == "all" else [(vm,), ()]
    outer = relax_trace.record(*targets[0])
    vm["main"](tensor(*X))
    other["main"](tensor(*X))
    inner = relax_trace.record(*targets[1])
    vm["call"](tensor(*X))
    other["call"](tensor(*X))
    outer.stop()
    assert type(vm) is not VM
    vm["identity"](tensor(*X))
    other["identity"](tensor(*X))
    inner.stop()
    assert {type(vm), type(other)} == {VM}
    everything, one = (outer, inner) if first == "all" else (inner, outer)
    assert functions(outer.trace) == ["main", "main", "call", "call"][:: 1 if first == "all" else 2]
    assert (
        functions(inner.trace) == ["call", "identity"]
        if first == "all"
        else [
            *["call"] * 2,
            *["identity"] * 2,
        ]
    )
    assert len(everything.trace.vms) == 2
    assert len(one.trace.vms) == 1


def test_both_kinds_on_several_threads_at_once() -> None:
    """Six threads record their own VM, or all VMs, over and over; one recording spans all."""
    ran_by: list[list[str]] = [[] for _ in range(6)]

    def work(i: int) -> None:
        vm = vm_of(small())
        name = ("main", "call")[i % 2]
        body = (MAIN, CALL)[i % 2]
        for repeats in range(1, 15):
            with relax_trace.record(*(() if i < 2 else (vm,))) as recording:
                for _ in range(repeats):
                    vm[name](tensor(*X))
                    ran_by[i].append(name)
                calls_before = vm.module
            trace = recording.trace
            own = trace
            if i < 2:
                mine = [thread.tid == threading.get_native_id() for thread in trace.threads]
                own = trace.take_invocations(np.array([*mine, False])[trace.invocations.thread])
            assert functions(own) == [name] * repeats
            assert counts(own) == [len(body)] * repeats
            assert calls_before.same_as(vm.module)

    with relax_trace.record() as everything:
        run_threads(*(partial(work, i) for i in range(6)))
    trace = everything.trace
    assert sorted(functions(trace)) == sorted(name for names in ran_by for name in names)
    assert trace.invocations.flags.tolist() == [0] * len(trace.invocations)
    assert trace.losses == relax_trace.Losses()


def test_as_many_recordings_as_there_are_slots() -> None:
    """32 at a time; the next one says so and harms none of them; then there is room again."""
    vm = vm_of(small())
    recordings = [relax_trace.record(*((vm,) if i % 2 else ())) for i in range(32)]
    for target in ((), (vm,)):
        with pytest.raises(RelaxTraceError) as caught:
            relax_trace.record(*target)
        assert str(caught.value) == "32 recordings run already, and no more can at a time"
    vm["main"](tensor(*X))
    for recording in recordings[::2]:
        recording.stop()
    again = [relax_trace.record(vm) for _ in range(16)]
    vm["call"](tensor(*X))
    for recording in (*recordings, *again):
        recording.stop()
    assert [functions(recording.trace) for recording in recordings] == [
        ["main"],
        ["main", "call"],
    ] * 16
    assert [functions(recording.trace) for recording in again] == [["call"]] * 16
    assert type(vm) is VM


@pytest.mark.parametrize("everywhere", [False, True])
def test_a_recording_that_fails_to_begin_leaves_nothing(
    everywhere: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The VM is itself again, no recording runs, no VM is waited for."""
    vm = vm_of(small())

    def fail(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(attach, "want", fail)
        with pytest.raises(KeyboardInterrupt):
            relax_trace.record(*(() if everywhere else (vm,)))
    assert type(vm) is VM
    assert hub._running == []
    assert reach._listeners == []
    with relax_trace.record() as recording:
        vm["main"](tensor(*X))
    assert calls(recording.trace) == MAIN


INVOCATIONS = 300_000
LENGTHS = 5000  # more than can run while the other thread waits for its turn


class Watched:
    """One recording of the test below, and how far the other thread was at each of its steps."""

    def __init__(self, ran: list[int], target: tuple[Any, ...]) -> None:
        self._ran = ran
        self._earliest = max(ran[0] - 1, 0)
        self._recording = relax_trace.record(*target)
        self._parts = [[ran[0], 0]]  # of each: first one begun in it, first one not ended in it

    def let_run(self, invocations: int) -> None:
        """Until so many more have ended."""
        until = min(self._ran[1] + invocations, INVOCATIONS)
        while self._ran[1] < until:
            time.sleep(0)

    def blink(self) -> None:
        """Pause and resume."""
        self._parts[-1][1] = self._ran[1]
        self._recording.pause()
        self._recording.resume()
        self._parts.append([self._ran[0], 0])

    def check(self) -> int:
        """End it; what began in a part and ended in it is there. Number of these."""
        self._parts[-1][1] = self._ran[1]
        self._recording.stop()
        latest = self._ran[0]
        trace = self._recording.trace
        assert trace.losses == relax_trace.Losses()
        closed = trace.invocations.flags & OPEN == 0
        assert closed[:-1].all()  # but for the one that ran when it was stopped
        assert set(np.array(counts(trace))[closed].tolist()) <= {BODY}
        found = np.array(lengths(trace))[closed] - 1
        gaps = np.flatnonzero(np.diff(found) % LENGTHS != 1) + 1
        assert len(gaps) < len(self._parts)
        numbers = self._numbers(found, latest)
        for first, end in self._parts:
            assert set(range(first, end)) <= numbers
        return sum(max(end - first, 0) for first, end in self._parts)

    def _numbers(self, found: Any, latest: int) -> set[int]:
        """Numbers of the invocations, of which the lengths tell the last digits."""
        numbers: set[int] = set()
        at = self._earliest
        for length in found.tolist():
            at += (length - at) % LENGTHS
            numbers.add(at)
        assert at <= latest
        return numbers


BODY = 18  # calls of dynamic()'s main


def test_recording_on_and_off_while_another_thread_invokes_300_000_times() -> None:
    """Nothing crashes, and nothing that ran wholly within a recording is missing from it."""
    vm = vm_of(dynamic())
    vectors = [vector(length) for length in range(1, LENGTHS + 1)]
    with relax_trace.record(vm) as first:
        function = vm["main"]
        function(vectors[0])
    assert counts(first.trace) == [BODY]
    ran = [0, 0]  # invocations begun, ended
    watched = [0, 0]  # recordings, invocations that had to be in them

    def invoke() -> None:
        for i in range(INVOCATIONS):
            ran[0] = i + 1
            function(vectors[i % LENGTHS])
            ran[1] = i + 1

    def switch() -> None:
        chance = random.Random(5)
        while ran[1] < INVOCATIONS:
            recording = Watched(ran, () if watched[0] % 2 else (vm,))
            for _ in range(chance.randrange(4)):
                recording.let_run(chance.randrange(300))
                recording.blink()
            recording.let_run(chance.randrange(2000))
            watched[0] += 1
            watched[1] += recording.check()

    run_threads(invoke, switch)
    assert ran == [INVOCATIONS, INVOCATIONS]
    assert watched[0] > 30
    assert watched[1] > INVOCATIONS / 10
    assert type(vm) is VM


# ---- names ----


def test_vms_with_names(tmp_path: Path) -> None:
    """They stand in the trace, on the timeline and under the table; others are counted."""
    encoder, decoder, other = (vm_of(small()) for _ in range(3))
    with (
        relax_trace.record() as everything,
        relax_trace.record(encoder, name="encoder") as recording,
        relax_trace.record(decoder, name="<b>décodeur"),
    ):
        for vm in (encoder, decoder, other):
            vm["main"](tensor(*X))
    assert recording.trace.vms == ("encoder",)
    assert everything.trace.vms == ("encoder", "<b>décodeur", "vm")
    assert "Names of VMs: encoder\n" in recording.trace.report().table()
    assert "Names of VMs: encoder, <b>décodeur\n" in everything.trace.report().table()
    everything.trace.save(tmp_path / "trace.json")
    text = (tmp_path / "trace.json").read_text()
    events = json.loads(text)["traceEvents"]
    roots = [event for event in events if event.get("name") == "main" and event["ph"] == "X"]
    assert [event["args"]["vm"] for event in roots] == ["encoder", "<b>décodeur", "vm"]
    assert relax_trace.load(tmp_path / "trace.json").vms == everything.trace.vms


def test_a_name_is_for_one_vm() -> None:
    """Without a VM there is nothing to be named."""
    with pytest.raises(ValueError, match=r"say which, with record\(vm, name=\.\.\.\)"):
        relax_trace.record(name="encoder")


# ---- modules ----


def test_the_module_of_a_known_vm() -> None:
    """It stands for the VM: functions that are taken from that are invocations."""
    vm = vm_of(small())
    with relax_trace.record(vm.module, name="encoder") as recording:
        assert type(vm) is not VM
        vm["main"](tensor(*X))
        vm.module["call"](tensor(*X))
    assert type(vm) is VM
    assert ran(recording.trace) == [("encoder", "main"), ("encoder", "call")]
    assert recording.trace.invocations.flags.tolist() == [0, IMPLICIT]
    assert [calls(recording.trace, i) for i in range(2)] == [MAIN, CALL]


def bare_module() -> Any:
    """A VM's module without a VirtualMachine, as C++ programs have them."""
    module = small().jit()["vm_load_executable"]()
    kinds = [int(tvm.cpu().dlpack_device_type()), 0, 2]  # naive allocator
    module["vm_initialization"](*kinds)
    return module


def test_a_module_without_a_vm() -> None:
    """The functions that are called through it are seen by their ops, before and after."""
    module = bare_module()
    taken_before = module["main"]
    x = tensor(*X)
    for _ in range(2):
        with relax_trace.record(module, name="engine") as recording:
            np.testing.assert_array_equal(module["main"](x).numpy(), [1, 9, 25, 49])
            taken_before(x)
            with relax_trace.record(module) as inner:
                module["call"](x)
            recording.pause()
            module["main"](x)
            recording.resume()
            module["call"](x)
        module["main"](x)
        trace = recording.trace
        assert ran(trace) == [("engine", name) for name in ("main", "main", "call", "call")]
        assert trace.invocations.flags.tolist() == [IMPLICIT] * 4
        assert [calls(trace, i) for i in range(4)] == [MAIN, MAIN, CALL, CALL]
        assert functions(inner.trace) == ["call"]


def test_a_bare_module_cannot_be_counted() -> None:
    """Nothing tells where its invocations begin and end: what needs that is refused."""
    module = bare_module()
    for options in ({"functions": "main"}, {"schedule": relax_trace.schedule(active=1)}):
        with pytest.raises(ValueError, match="need a VirtualMachine, not its module"):
            relax_trace.record(module, **options)
    with relax_trace.record(module) as recording:
        module["main"](tensor(*X))
    assert calls(recording.trace) == MAIN


# ---- instruments of the program's own ----


class Instrument:
    """A user's instrument: it counts the calls."""

    def __init__(self) -> None:
        self.seen = 0

    def __call__(self, _: Any, __: str, before: bool, *___: Any) -> None:
        """What the VM calls before and after every op."""
        self.seen += before


def test_an_instrument_set_before(caplog: pytest.LogCaptureFixture) -> None:
    """The VM is left alone, and a line says so; one that is cleared in time is recorded."""
    vm, other = vm_of(small()), vm_of(small())
    instrument = Instrument()
    vm.set_instrument(instrument)
    other.set_instrument(Instrument())
    other.set_instrument(None)
    with relax_trace.record() as recording:
        vm["main"](tensor(*X))
        other["main"](tensor(*X))
        assert type(vm) is VM
    assert instrument.seen == len(MAIN)
    assert functions(recording.trace) == ["main"]
    assert len(recording.trace.vms) == 1
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage() == (
        "a VirtualMachine is not recorded: this VirtualMachine has an instrument of your own, "
        "and a VM holds only one: call vm.set_instrument(None) before recording it"
    )


def test_an_instrument_set_during_it(caplog: pytest.LogCaptureFixture) -> None:
    """The program comes first: its call does what it says, and the VM is recorded no more."""
    vm, other = vm_of(small()), vm_of(small())
    instrument = Instrument()
    with relax_trace.record() as recording, relax_trace.record() as second:
        function = vm["main"]
        function(tensor(*X))
        vm.set_instrument(None)  # nothing to clear, as far as the program knows
        function(tensor(*X))
        assert instrument.seen == 0
        vm.set_instrument(instrument)
        assert type(vm) is VM
        function(tensor(*X))
        vm["main"](tensor(*X))
        assert instrument.seen == 2 * len(MAIN)
        recording.pause()
        recording.resume()
        vm.set_instrument(None)
        vm["main"](tensor(*X))
        other["call"](tensor(*X))
    assert instrument.seen == 2 * len(MAIN)
    for each in (recording, second):
        assert functions(each.trace) == ["main", "main", "call"]
        assert [calls(each.trace, i) for i in range(3)] == [MAIN, MAIN, CALL]
    assert [record.getMessage() for record in caplog.records] == [
        "a VirtualMachine was given an instrument: its ops are recorded no more"
    ] * 2
    with relax_trace.record(vm) as after:
        vm["main"](tensor(*X))
    assert calls(after.trace) == MAIN


def test_an_instrument_set_inside_an_op() -> None:
    """The rest of the invocation is the instrument's; nothing crashes."""
    vm = vm_of(small())
    instrument = Instrument()
    with relax_trace.record() as recording, callback(lambda _: vm.set_instrument(instrument)):
        np.testing.assert_array_equal(vm["call"](tensor(*X)).numpy(), [2, 4, 6, 8])
    until = CALL.index("relax_trace_tests.callback") + 1
    assert instrument.seen == len(CALL) - until
    assert calls(recording.trace) == CALL[:until]
    vm.set_instrument(None)
    with relax_trace.record() as after:
        vm["main"](tensor(*X))
    assert calls(after.trace) == MAIN


def test_a_vm_that_is_recorded_by_name_as_well_keeps_its_recorder() -> None:
    """The user asked for that one: another instrument is an error, as without record()."""
    vm = vm_of(small())
    with relax_trace.record() as everything, relax_trace.record(vm) as recording:
        with pytest.raises(InstrumentError, match="this VirtualMachine is being recorded"):
            vm.set_instrument(Instrument())
        vm["main"](tensor(*X))
    assert calls(everything.trace) == calls(recording.trace) == MAIN


def test_an_instrument_put_in_behind_our_back_is_a_warning() -> None:
    """Through the module: record() raises nothing at its end, for nobody asked for this VM."""
    vm = vm_of(small())
    instrument = Instrument()
    recording = relax_trace.record()
    with callback(lambda _: vm.module["set_instrument"](instrument)):
        vm["call"](tensor(*X))
    with pytest.warns(RelaxTraceWarning, match="something replaced the instrument") as warned:
        recording.stop()
    assert len(warned) == 1
    assert warned[0].filename == __file__
    assert type(vm) is VM
    assert calls(recording.trace) == CALL[: CALL.index("relax_trace_tests.callback") + 1]
    assert instrument.seen > 0
