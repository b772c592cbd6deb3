"""Cost of recording an op call: bare VM, no-op hook, Python callback and recorder side by side.

    python tests/benchmarks/bench_recorder.py

Each variant runs in turn, round after round, so that all see the same noise; the best round counts.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import tvm
import tvm_ffi
from tvm import relax

import relax_trace
from relax_trace.recorder.native import load

ROUNDS = 40


def noop_hook() -> object:
    """Compile noop_hook.c beside this file, and load it."""
    source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "noop_hook.c")
    include = os.path.join(os.path.dirname(tvm_ffi.__file__), "include")
    with tempfile.TemporaryDirectory() as folder:
        library = os.path.join(folder, "noop_hook.so")
        subprocess.run(
            ["cc", "-O2", "-fPIC", "-shared", f"-I{include}", "-o", library, source], check=True
        )
        ctypes.CDLL(library)
    return tvm_ffi.get_global_func("benchmark.noop_hook")


def chain(length: int, shape: tuple[int | str, ...] = (4,)) -> relax.VirtualMachine:
    """A VM whose ``main`` adds its argument to itself ``length`` times: hardly more than calls."""
    sizes = [tvm.tirx.Var(size, "int64") if isinstance(size, str) else size for size in shape]
    x = relax.Var("x", relax.TensorType(sizes, "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            value = x
            for _ in range(length):
                value = builder.emit(relax.op.add(value, x))
            value = builder.emit_output(value)
        builder.emit_func_output(value)
    return relax.VirtualMachine(tvm.compile(builder.get(), "llvm"), tvm.cpu())


@dataclass
class Variant:
    """One way to run the VM: what to do before and after a round, and the best time of one call."""

    name: str
    prepare: Callable[[], object]
    tear_down: Callable[[], object]
    best_ns: float = float("inf")


def measure(variants: list[Variant], call: Callable[[], object], inner: int) -> None:
    """Run all variants in turn and keep each one's best time of a call."""
    for _ in range(ROUNDS):
        for variant in variants:
            variant.prepare()
            call()
            started = time.perf_counter_ns()
            for _ in range(inner):
                call()
            variant.best_ns = min(variant.best_ns, (time.perf_counter_ns() - started) / inner)
            variant.tear_down()


def op_cost() -> None:
    """Nanoseconds an op call above the bare VM."""
    vm = chain(150)
    x = tvm.runtime.tensor(np.ones(4, "float32"))
    function = vm.module["main"]
    noop, native = noop_hook(), load()
    set_instrument = vm.module["set_instrument"]
    seen: list[object] = []
    open_recordings: list[relax_trace.Recording] = []

    def start() -> None:
        open_recordings.append(relax_trace.record(vm))

    def stop() -> None:
        open_recordings.pop().stop()

    def note(func: object, name: str, before: bool, result: object, *arguments: object) -> None:
        shapes = [
            argument.shape for argument in arguments if isinstance(argument, tvm.runtime.Tensor)
        ]
        seen.append((name, before, time.perf_counter_ns(), shapes))

    def clear() -> None:
        set_instrument(None)
        seen.clear()

    variants = [
        Variant("bare VM", lambda: None, lambda: None),
        Variant("no-op hook in C", lambda: set_instrument(noop), clear),
        Variant("relax_trace", start, stop),
        Variant("recording Python callback", lambda: set_instrument(note), clear),
    ]
    with relax_trace.record(vm) as recording:
        function(x)
    ops = len(recording.trace)
    measure(variants, lambda: function(x), 10)
    bare, floor, ours, python = (variant.best_ns / ops for variant in variants)
    print(f"{ops} ops an invocation, bare VM {bare:.0f} ns an op")
    print(f"  no-op hook in C            +{floor - bare:7.1f} ns an op")
    print(
        f"  relax_trace, with shapes   +{ours - bare:7.1f} ns an op, +{ours - floor:.1f} over the no-op hook (bound 30)"
    )
    print(
        f"  recording Python callback  +{python - bare:7.1f} ns an op, {(python - bare) / (ours - bare):.1f} x ours (bound 15)"
    )
    del native


def main() -> None:
    """Print every figure."""
    op_cost()


if __name__ == "__main__":
    main()
