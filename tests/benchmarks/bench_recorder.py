"""What recording costs: an op call, an invocation left out, a dynamic shape, a byte.

    python tests/benchmarks/bench_recorder.py

All variants run in turn, round after round, so that all see the same noise; the best round counts.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tvm
import tvm_ffi
from tvm import relax

sys.path.insert(0, str(Path(__file__).parents[1]))

import relax_trace
from integration.small_vms import chain, vm_of
from relax_trace.recorder.native import load

ROUNDS = 60


def nothing() -> None:
    """Prepare, or tear down, a variant that needs neither."""


@dataclass
class Variant:
    """One way to run the VM: what to do before and after a round, and the best time of a call."""

    call: Callable[[], object]
    prepare: Callable[[], object] = nothing
    tear_down: Callable[[], object] = nothing
    best_ns: float = float("inf")


def measure(variants: list[Variant], inner: int) -> list[float]:
    """Best time of a call of each variant, in ns, over rounds in which all of them take turns."""
    for _ in range(ROUNDS):
        for variant in variants:
            variant.prepare()
            variant.call()
            started = time.perf_counter_ns()
            for _ in range(inner):
                variant.call()
            variant.best_ns = min(variant.best_ns, (time.perf_counter_ns() - started) / inner)
            variant.tear_down()
    return [variant.best_ns for variant in variants]


def ones(size: int) -> tvm.runtime.Tensor:
    """A vector of ones."""
    return tvm.runtime.tensor(np.ones(size, "float32"))


class Recordings:
    """Opens and closes recordings of one VM, as ``prepare`` and ``tear_down`` of a variant."""

    def __init__(self, vm: relax.VirtualMachine) -> None:
        self.vm = vm
        self.open: list[relax_trace.Recording] = []

    def start(self) -> None:
        """Begin to record."""
        self.open.append(relax_trace.record(self.vm))

    def stop(self) -> None:
        """End it; what was recorded is dropped unread."""
        self.open.pop().stop()


def clock_ns() -> float:
    """One reading of the op clock: a call that returns it, less a call that does nothing."""
    now, nop = load().now, tvm_ffi.get_global_func("testing.nop")
    empty, full = measure([Variant(nop), Variant(now)], 1000)
    return full - empty


def op_call() -> None:
    """An op call recorded, against no hook, an empty one, and a Python callback that records."""
    vm, x = vm_of(chain(150)), ones(4)
    function = vm.module["main"]
    set_instrument, nop = vm.module["set_instrument"], tvm_ffi.get_global_func("testing.nop")
    recordings = Recordings(vm)
    seen: list[object] = []

    def note(func: object, name: str, before: bool, result: object, *arguments: object) -> None:
        tensors = [value for value in arguments if isinstance(value, tvm.runtime.Tensor)]
        shapes = [(value.shape, value.dtype, value.device) for value in tensors]
        seen.append((name, before, time.perf_counter_ns(), shapes))

    def clear() -> None:
        set_instrument(None)
        seen.clear()

    with relax_trace.record(vm) as recording:
        function(x)
    ops = len(recording.trace)
    times = measure(
        [
            Variant(lambda: function(x)),
            Variant(lambda: function(x), lambda: set_instrument(nop), clear),
            Variant(lambda: function(x), recordings.start, recordings.stop),
            Variant(lambda: function(x), lambda: set_instrument(note), clear),
        ],
        10,
    )
    bare, empty, recorded, python = (value / ops for value in times)
    print(f"an op call ({ops} in an invocation, {bare:.0f} ns each in the bare VM)")
    print(f"  empty hook in C       +{empty - bare:8.1f} ns")
    print(f"  relax_trace           +{recorded - bare:8.1f} ns")
    print(f"  over the empty hook   +{recorded - empty:8.1f} ns           bound 30")
    print(f"  of it two clock reads  {2 * clock_ns():8.1f} ns")
    print(f"  Python callback       +{python - bare:8.1f} ns")
    print(
        f"  times cheaper          {(python - bare) / (recorded - bare):8.1f}              bound 15"
    )


def left_out(length: int) -> None:
    """An invocation of a VM that is attached but not recorded: the recording is paused."""
    vm, x = vm_of(chain(length)), ones(4)
    bare = vm.module["main"]
    with relax_trace.record(vm) as recording:
        recording.pause()
        wrapped = vm["main"]
        times = measure([Variant(lambda: bare(x)), Variant(lambda: wrapped(x))], 200)
    print(f"an invocation left out, {length} kernels")
    print(f"  bare VM                {times[0]:8.0f} ns")
    print(f"  attached              +{times[1] - times[0]:8.0f} ns           bound 200")


def memory() -> None:
    """Bytes handed over for an op call."""
    vm, x = vm_of(chain(150)), ones(4)
    with relax_trace.record(vm) as recording:
        for _ in range(1000):
            vm["main"](x)
    size = sum(
        piece.nbytes
        for thread in recording.dumps.threads.values()
        for piece in (*thread.ops, *thread.invocations)
    )
    print("memory")
    print(f"  an op call             {size / len(recording.trace):8.1f} bytes        bound 40")


def dynamic_shapes() -> None:
    """2,000 calls of lengths never seen before, against 2,000 of one length."""
    vm = vm_of(chain(5, "n"))
    function = vm.module["main"]
    costs: dict[str, list[float]] = {"one length": [], "all different": []}
    for round_number in range(7):
        lengths = range(1 + 2000 * round_number, 2001 + 2000 * round_number)
        different = [ones(length) for length in lengths]
        for name, inputs in (
            ("one length", [different[1000]] * 2000),
            ("all different", different),
        ):
            bare = elapsed(function, inputs)
            with relax_trace.record(vm) as recording:
                function(different[0])  # so that the thread and its buffers are there
                recorded = elapsed(function, inputs)
            trace = recording.trace
            costs[name].append((recorded - bare) / len(trace))
    same, new = (float(np.median(values)) for values in costs.values())
    print(f"dynamic shapes ({len(trace)} op calls, {len(trace.signatures)} signatures a round)")
    print(f"  one length            +{same:8.1f} ns an op call")
    print(f"  all different         +{new:8.1f} ns an op call")
    print(f"  times dearer           {new / same:8.1f}              bound 2")


def elapsed(function: Callable[[object], object], inputs: list[tvm.runtime.Tensor]) -> int:
    """Time of calling ``function`` on each of ``inputs``, in ns."""
    started = time.perf_counter_ns()
    for x in inputs:
        function(x)
    return time.perf_counter_ns() - started


def main() -> None:
    """Print every figure beside its bound."""
    op_call()
    left_out(1)
    left_out(300)
    memory()
    dynamic_shapes()


if __name__ == "__main__":
    main()
