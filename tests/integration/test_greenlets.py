"""Greenlets that take turns on a thread, also in the middle of an op."""

from __future__ import annotations

from collections import Counter

import greenlet
import numpy as np
import pytest
import tvm
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased

import relax_trace
from integration.live_spans import Live, attributes, live
from integration.small_vms import (
    CALL,
    MAIN,
    callback,
    calls,
    chain,
    functions,
    small,
    tensor,
    vm_of,
)
from relax_trace import attach
from relax_trace.recorder.native import load
from relax_trace.trace import FAILED


def test_greenlets_that_leave_each_other_inside_an_op() -> None:
    """Each of many keeps its own calls, whichever ends first; none is inside another."""
    vms = [vm_of(small()) for _ in range(5)]
    hub = greenlet.getcurrent()
    seed = np.random.default_rng(0)

    def work(vm: tvm.relax.VirtualMachine) -> None:
        for _ in range(3):
            np.testing.assert_array_equal(vm["call"](tensor(1, 2, 3, 4)).numpy(), [2, 4, 6, 8])
            hub.switch()
            vm["main"](tensor(1, 2, 3, 4))

    with callback(lambda _: hub.switch()), relax_trace.record() as recording:
        workers = [greenlet.greenlet(work) for _ in vms]
        while running := [i for i, worker in enumerate(workers) if not worker.dead]:
            chosen = int(seed.choice(running))
            workers[chosen].switch(*([] if workers[chosen] else [vms[chosen]]))
    trace = recording.trace
    for vm in range(len(vms)):
        mine = np.flatnonzero(trace.invocations.vm == vm).tolist()
        assert [functions(trace)[i] for i in mine] == ["call", "main"] * 3
        assert [calls(trace, i) for i in mine] == [CALL, MAIN] * 3
    assert (trace.invocations.parent == -1).all()
    assert not trace.flags.any()
    assert not trace.invocations.flags.any()
    assert trace.losses == relax_trace.Losses()


def test_an_invocation_inside_an_op_of_another_vm_is_inside_it() -> None:
    """One that is really nested has the invocation around it as its parent."""
    outer, inner = vm_of(small()), vm_of(small())

    def nest(x: tvm.runtime.Tensor) -> None:
        inner["main"](x)  # taken during the recording, or it would not be seen

    with callback(nest), relax_trace.record() as recording:
        outer["call"](tensor(1, 2, 3, 4))
    trace = recording.trace
    assert functions(trace) == ["call", "main"]
    assert trace.invocations.parent.tolist() == [-1, 0]
    assert [calls(trace, i) for i in (0, 1)] == [CALL, MAIN]


def test_a_greenlet_that_throws_while_another_waits_inside_an_op() -> None:
    """The error is of its own invocation; the one that waited goes on."""
    waits, throws = vm_of(small()), vm_of(small())
    hub = greenlet.getcurrent()

    def fail(_: tvm.runtime.Tensor) -> None:
        raise ValueError("on purpose")

    def wait() -> None:
        waits["call"](tensor(1, 2, 3, 4))

    with relax_trace.record() as recording:
        waiting = greenlet.greenlet(wait)
        with callback(lambda _: hub.switch()):
            waiting.switch()
        with callback(fail), pytest.raises(ValueError, match="on purpose"):
            greenlet.greenlet(throws["call"]).switch(tensor(1, 2, 3, 4))
        waiting.switch()
    trace = recording.trace
    assert functions(trace) == ["call", "call"]
    assert trace.invocations.flags.tolist() == [0, FAILED]
    assert calls(trace, 0) == CALL
    assert calls(trace, 1) == CALL[: CALL.index("relax_trace_tests.callback") + 1]


def test_a_greenlet_that_is_never_resumed() -> None:
    """It is dropped inside an op; what comes after it on the thread is recorded as ever."""
    left, other = vm_of(small()), vm_of(chain(10))
    hub = greenlet.getcurrent()
    with relax_trace.record() as recording:
        dropped = greenlet.greenlet(left["call"])
        with callback(lambda _: hub.switch()):
            dropped.switch(tensor(1, 2, 3, 4))
        for _ in range(3):
            other["main"](tensor(1, 2, 3, 4))
        with pytest.raises(RuntimeError):  # TVM's word for an exception that it doesn't know
            dropped.throw(greenlet.GreenletExit)
    trace = recording.trace
    assert functions(trace) == ["call", "main", "main", "main"]
    assert (trace.invocations.parent == -1).all()
    assert len({tuple(calls(trace, i)) for i in (1, 2, 3)}) == 1


def test_greenlets_that_end_in_any_order_while_others_begin() -> None:
    """Calls of those that wait never lead from one to the other in a ring."""
    vms = [vm_of(small()) for _ in range(6)]
    hub = greenlet.getcurrent()
    workers: list[greenlet.greenlet] = []

    def begin(vm: tvm.relax.VirtualMachine) -> None:
        workers.append(greenlet.greenlet(vm["call"]))
        workers[-1].switch(tensor(1, 2, 3, 4))

    with callback(lambda _: hub.switch()), relax_trace.record() as recording:
        for vm in vms[:4]:
            begin(vm)
        workers[1].switch()
        workers[3].switch()
        for vm in vms[4:]:
            begin(vm)
        for worker in workers:
            if not worker.dead:
                worker.switch()
    trace = recording.trace
    assert functions(trace) == ["call"] * 6
    assert [calls(trace, i) for i in range(6)] == [CALL] * 6
    assert (trace.invocations.parent == -1).all()
    assert trace.losses == relax_trace.Losses()


def test_a_vm_that_another_one_calls_back_into() -> None:
    """Its inner invocation stands inside that of the other VM, and has its own calls."""
    outer, middle = vm_of(small()), vm_of(small())
    inside = [outer, middle]
    names = ["main", "call"]

    def call_next(x: tvm.runtime.Tensor) -> None:
        inside.pop()[names.pop()](x)

    with callback(call_next), relax_trace.record() as recording:
        outer["call"](tensor(1, 2, 3, 4))
    trace = recording.trace
    assert functions(trace) == ["call", "call", "main"]
    assert trace.invocations.vm.tolist() == [0, 1, 0]
    assert trace.invocations.parent.tolist() == [-1, 0, 1]
    assert [calls(trace, i) for i in range(3)] == [CALL, CALL, MAIN]


def ops_by_invocation(application: Live) -> list[int]:
    """How many op spans are under each invocation's span, in the order of their ends."""
    under = Counter(op.parent.span_id for op in application.ops if op.parent)
    return [under[span.context.span_id] for span in application.spans]


# 2 of the 4 calls are over as the next one begins; the others are counted where that has ended, and
# gives the thread back to one that has not.
@pytest.mark.parametrize(
    ("ends", "counts"),
    [
        ((0, 1, 2), [2, 2, 4]),
        ((0, 2, 1), [2, 4, 4]),
        ((1, 0, 2), [2, 2, 4]),
        ((1, 2, 0), [2, 4, 2]),
        ((2, 0, 1), [4, 2, 4]),
        ((2, 1, 0), [4, 4, 4]),
    ],
)
def test_live_spans_of_greenlets_that_end_in_any_order(
    ends: tuple[int, ...], counts: list[int]
) -> None:
    """No invocation has what is another's; what comes after them is recorded only if sampled."""
    hub = greenlet.getcurrent()
    with live() as application:
        vms = [vm_of(small()) for _ in ends]
        with callback(lambda _: hub.switch()):
            workers = [greenlet.greenlet(vm["call"]) for vm in vms]
            for worker in workers:
                worker.switch(tensor(1, 2, 3, 4))
            for number in ends:
                workers[number].switch()
        said = [attributes(span)["tvm.vm.op.count"][1] for span in application.spans]
        assert said == counts
        assert ops_by_invocation(application) == counts
        vms[0]["call"](tensor(1, 2, 3, 4))
        assert ops_by_invocation(application)[3:] == [4]
    with live(sampler=ParentBased(ALWAYS_OFF)):
        vm = vm_of(small())
        recorder = attach.attachment_of(vm).number
        armed: list[int] = []
        with callback(lambda _: armed.append(load().state(recorder) & 1)):
            vm["call"](tensor(1, 2, 3, 4))
    assert armed == [0]
