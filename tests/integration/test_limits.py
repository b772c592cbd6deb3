"""The byte limit, VMs that are deleted, recordings that are forgotten."""

from __future__ import annotations

import ctypes
import gc
import json
import weakref
from functools import cache
from typing import Any

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
    run_alone,
    small,
    tensor,
    vm_of,
)
from relax_trace.hub import hub
from relax_trace.recorder.native import load
from relax_trace.trace import OPEN, SIGNATURE_LOST

X = (1.0, 2.0, 3.0, 4.0)
SMALLEST = 1 << 20

# In a process of its own: what other tests left in the recorder's tables counts as well.
FULL = """
import json
import relax_trace
from integration.small_vms import calls, chain, counts, tensor, vm_of

vm = vm_of(chain(200))
x = tensor(1, 2, 3, 4)
with relax_trace.record(vm) as whole:
    vm["main"](x)
ops = len(whole.trace)
found = []
for _ in range(3):
    with relax_trace.record(vm, memory_limit=1 << 20) as recording:
        for _ in range(200_000 // ops + 1):
            assert vm["main"](x).numpy().tolist() == [201, 402, 603, 804]
    trace = recording.trace
    kept = counts(trace)
    first_dropped = next(i for i, count in enumerate(kept) if count < ops)
    assert calls(trace, 0) == calls(trace, first_dropped - 1) == calls(whole.trace)
    assert calls(trace, first_dropped) == calls(whole.trace)[:kept[first_dropped]]
    found.append([len(trace), trace.losses.ops, trace.losses.invocations, trace.losses.signatures,
                  len(trace.invocations), kept[first_dropped:], sum(trace.invocations.flags)])
    table = str(trace.report())
    found[-1].append([line for line in table.splitlines() if "ropped" in line])
with relax_trace.record(vm) as again:
    vm["main"](x)
print(json.dumps([ops, found, len(again.trace), again.trace.losses.ops, repr(trace)], default=int))
"""


def test_at_the_limit_the_first_calls_are_kept_and_the_rest_counted() -> None:
    """200,000 ops and 1 MiB: kept and lost add up to what ran, each time anew."""
    ended = run_alone(FULL)
    assert (ended.returncode, ended.stderr) == (0, "")
    ops, found, again, lost, text = json.loads(ended.stdout)
    ran = ops * (200_000 // ops + 1)
    for kept, dropped, invocations, signatures, opened, rest, flags, lines in found:
        assert kept + dropped == ran
        assert 10_000 < kept < SMALLEST / 32
        assert opened + invocations == ran // ops
        assert rest[1:] == [0] * (len(rest) - 1)  # once full, it stays full
        assert (signatures, flags) == (0, 0)
        expected = [f"Calls dropped: {dropped}", f"Invocations dropped: {invocations}"]
        assert lines == expected[: 2 if invocations else 1]
    assert (again, lost) == (ops, 0)
    assert f"dropped {found[-1][1]:,} ops" in text


DYNAMIC = """
import json
import numpy as np
import tvm
import relax_trace
from integration.small_vms import dynamic, small, tensor, vm_of
from relax_trace.trace import SIGNATURE_LOST

vm, other = vm_of(dynamic()), vm_of(small())
with relax_trace.record(vm) as whole:
    vm["main"](tensor(1, 2))
found = []
# Of few calls in each invocation: their signatures take more room than their records. Which of the
# tables is full first is chance, and differs.
for turn, name in enumerate(["*.check_tensor_info", "*.match_shape", "add", "multiply", "*"]):
    ops = len(whole.trace.filter(name=name))
    with relax_trace.record(vm, memory_limit=1 << 20, names=name) as recording:
        for length in range(1 + 5000 * turn, 5001 + 5000 * turn):
            vm["main"](tvm.runtime.tensor(np.ones(length, "float32")))
    trace = recording.trace
    lost = (trace.flags & SIGNATURE_LOST) > 0
    found.append([ops, len(trace), trace.losses.ops, trace.losses.signatures, int(lost.sum()),
                  int((trace.signature[lost] != 0).sum()), len(trace.signatures)])
with relax_trace.record(other, memory_limit=1 << 20) as after:
    other["main"](tensor(1, 2, 3, 4))
with relax_trace.record(other) as roomy:
    other["main"](tensor(1, 2, 3, 4))
print(json.dumps([found, len(after.trace), after.trace.losses.ops, len(roomy.trace)]))
"""


@cache
def dynamic_run() -> list[Any]:
    """What the program above printed."""
    ended = run_alone(DYNAMIC)
    assert (ended.returncode, ended.stderr) == (0, "")
    printed: list[Any] = json.loads(ended.stdout)
    return printed


def test_shapes_that_never_repeat_fill_the_tables_and_are_counted() -> None:
    """Calls whose new signature found no room are kept without it, each of them counted."""
    found, _, _, roomy = dynamic_run()
    for ops, kept, dropped, signatures, flagged, with_one, distinct in found:
        assert kept + dropped == 5000 * ops
        assert signatures == flagged
        assert with_one == 0
        assert distinct < SMALLEST / 40
    assert sum(signatures for _, _, _, signatures, _, _, _ in found) > 0
    assert roomy == len(MAIN)


def test_tables_that_are_full_do_not_spoil_the_next_recording() -> None:
    """The limit is of what is held until it is dumped; what an earlier recording saw is over."""
    found, after, lost, _ = dynamic_run()
    assert all(kept > 0 for _, kept, *_ in found)
    assert (after, lost) == (len(MAIN), 0)


LATE_THREADS = """
import json, threading
import relax_trace
from integration.small_vms import counts, functions, small, tensor, vm_of

vm = vm_of(small())
stop = threading.Event()

def work(ran):
    vm["main"](tensor(1, 2, 3, 4))
    ran.set()
    stop.wait()

with relax_trace.record(vm, memory_limit=1 << 20) as recording:
    for _ in range(100):
        ran = threading.Event()
        threading.Thread(target=work, args=[ran]).start()
        ran.wait()
stop.set()
trace = recording.trace
print(json.dumps([counts(trace), trace.losses.ops, trace.losses.invocations]))
"""


def test_a_thread_without_room_for_its_own_tables_is_counted() -> None:
    """100 threads in 1 MiB: each invocation and each op is either there or counted as lost."""
    ended = run_alone(LATE_THREADS)
    assert (ended.returncode, ended.stderr) == (0, "")
    kept, ops, invocations = json.loads(ended.stdout)
    assert set(kept) == {len(MAIN)}
    assert 5 < len(kept) < 100
    assert ops == (100 - len(kept)) * len(MAIN)
    assert invocations == 100 - len(kept)


@pytest.mark.parametrize("taken_before", [False, True])
def test_calls_below_the_deepest_nesting_are_counted(taken_before: bool) -> None:
    """A VM that calls itself 150 times, an op and an invocation each: 128 levels are kept."""
    vm = vm_of(small())
    function = vm["call"]
    levels = 0

    def again(x: Any) -> None:
        nonlocal levels
        if levels < 149:
            levels += 1
            (function if taken_before else vm["call"])(x)

    with callback(again), relax_trace.record(vm) as recording:
        vm["call"](tensor(*X))
        vm["main"](tensor(*X))
    trace = recording.trace
    kept = len(trace) - len(MAIN)
    assert kept + trace.losses.ops == 150 * len(CALL)
    assert len(trace.invocations) - 1 + trace.losses.invocations == (1 if taken_before else 150)
    assert kept == (127 if taken_before else 64) * len(CALL)
    assert calls(trace, len(trace.invocations) - 1) == MAIN
    assert [name for name in calls(trace) if not name.startswith(" ")] == CALL


def test_an_op_takes_at_most_40_bytes() -> None:
    """In the dump, its share of the tables and of its invocation's records included."""
    vm = vm_of(chain(200))
    with relax_trace.record(vm) as recording:
        for _ in range(100):
            vm["main"](tensor(*X))
        known = hub._tables.counts
        dump = load().dump(*known, 1 << 30, False)
    assert len(recording.trace) == 0  # the dump was taken from under it
    with relax_trace.record(vm) as again:
        vm["main"](tensor(*X))
    ops = 100 * len(again.trace)
    assert len(dump) <= 40 * ops
    assert len(dump) >= 32 * ops


def strong_count(thing: Any) -> int:
    """Number of owners of a tvm-ffi object; its header begins with that."""
    return ctypes.c_uint32.from_address(thing.__chandle__()).value


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_vm_deleted_during_its_recording_is_freed(wrapped: bool) -> None:
    """The recording keeps neither the object nor the VM behind it, and has what was recorded."""
    vm = vm_of(small())
    held = tensor(5, 6, 7, 8)
    owners = strong_count(held)
    vm.set_input("main", held)  # the VM owns its input
    assert strong_count(held) == owners + 1
    recording = relax_trace.record(vm)
    for _ in range(2):
        vm["main"](tensor(*X)) if wrapped else vm.module["main"](tensor(*X))
    gone = weakref.ref(vm)
    del vm
    gc.collect()
    assert gone() is None
    assert strong_count(held) == owners
    recording.pause()
    recording.resume()
    recording.stop()
    assert functions(recording.trace) == ["main", "main"]
    assert [calls(recording.trace, i) for i in range(2)] == [MAIN, MAIN]


def waiting() -> int:
    """Bytes that the recorder would hand over now, beyond those of an empty dump."""
    taken = load().dump(*hub._tables.counts, 1 << 30, False)
    return len(taken) - len(load().dump(*hub._tables.counts, 1 << 30, False))


def test_a_function_outlives_its_vm() -> None:
    """A wrapper taken during it works after the VM's object is gone, and then records nothing."""
    vm = vm_of(small())
    with relax_trace.record(vm) as recording:
        function = vm["main"]
        del vm
        gc.collect()
        np.testing.assert_array_equal(function(tensor(*X)).numpy(), [1, 9, 25, 49])
    waiting()
    np.testing.assert_array_equal(function(tensor(*X)).numpy(), [1, 9, 25, 49])
    assert waiting() == 0
    assert calls(recording.trace) == MAIN


def test_a_vm_deleted_by_its_own_op() -> None:
    """The last name of it goes while it runs: the invocation ends, and is recorded whole."""
    vms = [vm_of(chain(3))]
    with relax_trace.record(vms[0]) as recording:
        result = vms.pop()["main"](tensor(*X))
    np.testing.assert_array_equal(result.numpy(), [4, 8, 12, 16])
    assert functions(recording.trace) == ["main"]
    assert recording.trace.invocations.flags.tolist() == [0]


def test_many_vms_recorded_and_forgotten_leave_little() -> None:
    """A server that makes a VM a request: each is its own, and their number does no harm."""
    for _ in range(200):
        vm = vm_of(small())
        with relax_trace.record(vm) as recording:
            vm["main"](tensor(*X))
        assert functions(recording.trace) == ["main"]
        assert len(recording.trace) == len(MAIN)


DROPPED = """
import gc
import relax_trace
from integration.small_vms import MAIN, calls, functions, small, tensor, vm_of

vm, other = vm_of(small()), vm_of(small())
relax_trace.record(vm, memory_limit=1 << 20)  # nobody can stop it any more
gc.collect()
for _ in range(10_000):
    vm["main"](tensor(1, 2, 3, 4))
for recorded in (other, vm):
    with relax_trace.record(recorded) as recording:
        recorded["main"](tensor(1, 2, 3, 4))
    assert functions(recording.trace) == ["main"], functions(recording.trace)
    assert calls(recording.trace) == MAIN
print("done")
"""


def test_a_recording_that_is_dropped_without_a_stop() -> None:
    """It holds no more than its limit, and others are recorded as if it were not there."""
    ended = run_alone(DROPPED)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "done\n", "")


def test_what_is_open_when_the_trace_is_taken_says_so() -> None:
    """A failed call for want of memory aside, only an invocation that still runs is open."""
    vm = vm_of(dynamic())
    with relax_trace.record(vm) as recording:
        for length in range(1, 400):
            vm["main"](tvm.runtime.tensor(np.ones(length, "float32")))
    trace = recording.trace
    assert len(set(counts(trace))) == 1
    assert not (trace.invocations.flags & OPEN).any()
    assert not (trace.flags & SIGNATURE_LOST).any()
    texts = [trace.signatures.texts[i] for i in trace.signature.tolist()]
    for length in (1, 2, 399):
        assert b"float32[%d], float32[%d], float32[%d]" % (length, length, length) in texts
