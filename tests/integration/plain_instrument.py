"""What a plain Python instrument sees of a run, and what a trace says of the same run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch

import numpy as np
from tvm import relax

import relax_trace
from relax_trace import Trace
from unit.encoding import device_of, text_of


@dataclass(frozen=True)
class Op:
    """One op call: ``parent`` and ``invocation`` are rows, ``parent`` is -1 outside of any."""

    name: str
    parent: int
    invocation: int
    arguments: str
    device: str | None


@dataclass
class PlainInstrument:
    """Op calls in the order of their starts, and the functions invoked.

    ``closures`` are the names of those that will run, which the VM hides from its instrument.
    """

    closures: Iterator[str]
    ops: list[Op] = field(default_factory=list)
    functions: list[str] = field(default_factory=list)
    _open: list[int] = field(default_factory=list)

    def __call__(self, _function: Any, name: str, before: bool, result: Any, *given: Any) -> None:
        """Take note of a call; nothing of it is kept but text, for the VM reuses its memory."""
        if before:
            parent = self._open[-1] if self._open else -1
            if name == "vm.builtin.invoke_closure":
                name = next(self.closures)
            self._open.append(len(self.ops))
            text, device = text_of(name, given), device_of(name, given)
            self.ops.append(Op(name, parent, len(self.functions) - 1, text, device))
        else:
            row = self._open.pop()
            device = device_of(name, given, result)
            self.ops[row] = replace(self.ops[row], device=device)

    def seen(self) -> list[Op]:
        """The calls; one without a tensor is put where the first tensor of its invocation lay."""
        first: dict[int, str] = {}
        for op in self.ops:
            if op.device:
                first.setdefault(op.invocation, op.device)
        return [replace(op, device=op.device or first.get(op.invocation)) for op in self.ops]


@contextmanager
def plainly_instrumented(
    vm: relax.VirtualMachine, closures: Sequence[str] = ()
) -> Iterator[PlainInstrument]:
    """Watch the calls of ``vm``, and what is called by its name from outside."""
    instrument = PlainInstrument(iter(closures))
    look_up = relax.VirtualMachine.__getitem__

    def invoke(vm: relax.VirtualMachine, key: str) -> Callable[..., Any]:
        def invocation(*arguments: Any) -> Any:
            instrument.functions.append(key)
            return look_up(vm, key)(*arguments)

        return invocation

    vm.set_instrument(instrument)
    try:
        with patch.object(relax.VirtualMachine, "__getitem__", invoke):
            yield instrument
    finally:
        vm.set_instrument(None)


def recorded_ops(trace: Trace) -> list[Op]:
    """The calls of a trace in the same form."""
    texts = [text.decode() for text in trace.signatures.texts]
    devices = [*map(str, trace.devices), None]
    columns = (trace.name, trace.parent, trace.invocation, trace.signature, trace.device)
    return [
        Op(trace.names[name], parent, invocation, texts[signature], devices[device])
        for name, parent, invocation, signature, device in zip(
            *(column.tolist() for column in columns), strict=True
        )
    ]


def record_as_seen(
    vm: relax.VirtualMachine, run: Callable[[], Any], closures: Sequence[str] = ()
) -> Trace:
    """Run twice, seen by a plain instrument and recorded, and assert that both saw the same."""
    with plainly_instrumented(vm, closures) as plain:
        run()
    with relax_trace.record(vm) as recording:
        run()
    trace = recording.trace
    assert recorded_ops(trace) == plain.seen()
    functions = [trace.names[i] for i in trace.invocations.function.tolist()]
    assert functions == plain.functions
    assert trace.losses == relax_trace.Losses()
    assert not trace.flags.any()
    assert not trace.invocations.flags.any()
    check_times(trace)
    return trace


def check_times(trace: Trace) -> None:
    """Assert that calls lie inside what called them, in integer ns, and siblings never overlap."""
    calls = trace.invocations
    for times in (trace.start, trace.end, calls.start, calls.end):
        assert times.dtype == np.int64
    inside = trace.parent >= 0
    since = np.where(inside, trace.start[trace.parent], calls.start[trace.invocation])
    until = np.where(inside, trace.end[trace.parent], calls.end[trace.invocation])
    assert (since <= trace.start).all()
    assert (trace.start <= trace.end).all()
    assert (trace.end <= until).all()
    order = np.lexsort((trace.start, trace.parent, trace.invocation))
    siblings = (np.diff(trace.parent[order]) == 0) & (np.diff(trace.invocation[order]) == 0)
    assert (trace.end[order][:-1] <= trace.start[order][1:])[siblings].all()
    assert (calls.start < calls.end).all()
    assert (calls.end[:-1] <= calls.start[1:]).all()  # one thread, and none inside another here
