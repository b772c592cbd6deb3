"""Tiny Relax modules for tests of how recording behaves, and how to read what was recorded."""
# ruff: noqa: N805, N812 - TVMScript's functions take tensors, and its customary names are I and R

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import numpy as np
import tvm
import tvm_ffi
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

import relax_trace
from relax_trace import Trace

Callback = Callable[[tvm.runtime.Tensor], object]

# TVM 0.25 has both, and there a variable takes only the first.
TensorType = getattr(relax, "TensorStructInfo", relax.TensorType)

_callbacks: list[Callback] = []


@tvm_ffi.register_global_func("relax_trace_tests.callback", override=True)
def _callback(x: tvm.runtime.Tensor, out: tvm.runtime.Tensor) -> None:
    """Copy ``x`` to ``out``, after whatever the test wants done inside an op."""
    if _callbacks:
        _callbacks[-1](x)
    out.copyfrom(x)


@contextmanager
def callback(function: Callback) -> Iterator[None]:
    """Have the op inside ``call`` run ``function(x)`` while this ``with`` lasts."""
    _callbacks.append(function)
    try:
        yield
    finally:
        _callbacks.pop()


@I.ir_module
class _Small:
    @R.function
    def main(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        y = R.add(x, x)
        z = _Small.inner(y)
        return R.multiply(z, z)

    @R.function
    def inner(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        return R.subtract(x, R.const(1.0))

    @R.function
    def call(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        y = R.call_dps_packed("relax_trace_tests.callback", (x,), R.Tensor((4,), "float32"))
        return R.add(y, y)

    @R.function
    def nested_call(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        y = R.add(x, x)
        z = _Small.call(y)
        return R.multiply(z, z)

    @R.function
    def pair(
        xs: R.Tuple(R.Tensor((4,), "float32"), R.Tuple(R.Tensor((2,), "int64"))),
        y: R.Tensor((4,), "float32"),
    ) -> R.Tensor((4,), "float32"):
        x = xs[0]
        return R.add(x, y)

    @R.function
    def identity(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        return x

    @R.function
    def unchecked() -> R.Tensor((2,), "float32"):
        return R.divide(R.const([4.0, 2.0]), R.const([2.0, 2.0]))

    @R.function
    def two(
        x: R.Tensor((4,), "float32"),
    ) -> R.Tuple(R.Tensor((4,), "float32"), R.Tensor((4,), "float32")):
        return (R.add(x, x), R.multiply(x, x))

    @R.function
    def lifted(x: R.Tensor((4,), "float32"), y: R.Tensor((4,), "float32")) -> R.Tensor(
        (4,), "float32"
    ):
        return R.add(x, y)

    @R.function
    def make(x: R.Tensor((4,), "float32")) -> R.Object:
        return R.make_closure(_Small.lifted, (x,))


@I.ir_module
class _Dynamic:
    @R.function
    def main(x: R.Tensor(("n",), "float32")) -> R.Tensor(("n",), "float32"):
        y = R.add(x, x)
        return R.multiply(y, x)


# The calls of these functions, in the order of their start; a deeper one is indented.
_CHECK = ["check_tensor_info", "match_shape"]
_ALLOCATE = ["alloc_storage", "alloc_tensor", "null_value"]
INNER = [*_CHECK, *_ALLOCATE, "subtract"]
MAIN = [
    *_CHECK,
    *(*_ALLOCATE, "add"),
    *("inner", *(f"  {name}" for name in INNER), "null_value"),
    *(*_ALLOCATE, "multiply", "null_value"),
]
CALL = [*_CHECK, *_ALLOCATE, "relax_trace_tests.callback", *_ALLOCATE, "add", "null_value"]
IDENTITY = _CHECK
LIFTED = ["check_tensor_info", *_CHECK, "match_shape", *_ALLOCATE, "add"]
UNCHECKED = [*_ALLOCATE, "divide"]
TWO = [*_CHECK, *_ALLOCATE, "add", *_ALLOCATE, "multiply", "make_tuple"]
PAIR = [
    *("check_tuple_info", "tuple_getitem", "check_tensor_info", "tuple_getitem"),
    *("check_tuple_info", "tuple_getitem", "check_tensor_info", "check_tensor_info"),
    *("match_shape", "match_shape", "match_shape", "tuple_getitem"),
    *(*_ALLOCATE, "add", "null_value"),
]
CHAIN_CALLS = 5  # of each link of a chain, but the first


@cache
def small() -> relax.VMExecutable:
    """Functions of a few ops: nested, with a callback, a tuple, a closure, without parameters."""
    return tvm.compile(_Small, "llvm")


@cache
def dynamic() -> relax.VMExecutable:
    """``main`` takes a vector of any length."""
    return tvm.compile(_Dynamic, "llvm")


@cache
def compiled() -> relax.VMExecutable:
    """The small functions as machine code, whose calls a VM reports to nobody."""
    return relax.build(_Small, "llvm", exec_mode="compiled")


@cache
def chain(length: int, size: int | str = 4) -> relax.VMExecutable:
    """``main`` adds its argument, of ``size`` or any size so named, to itself ``length`` times."""
    dimension = tvm.tirx.Var(size, "int64") if isinstance(size, str) else size
    x = relax.Var("x", TensorType([dimension], "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            value = x
            for _ in range(length):
                value = builder.emit(relax.op.add(value, x))
            value = builder.emit_output(value)
        builder.emit_func_output(value)
    return tvm.compile(builder.get(), "llvm")


def vm_of(executable: relax.VMExecutable) -> relax.VirtualMachine:
    """A fresh VM on the CPU."""
    return relax.VirtualMachine(executable, tvm.cpu())


def tensor(*values: float, dtype: str = "float32") -> tvm.runtime.Tensor:
    """A vector on the CPU."""
    return tvm.runtime.tensor(np.array(values, dtype))


def functions(trace: Trace) -> list[str]:
    """What was invoked, in order."""
    return [trace.names[i] for i in trace.invocations.function.tolist()]


def calls(trace: Trace, invocation: int = 0) -> list[str]:
    """The calls of an invocation, a deeper one indented, builtins without their ``vm.builtin.``."""
    depth: dict[int, int] = {-1: -1}
    found = []
    for row, (name, parent) in enumerate(
        zip(trace.name.tolist(), trace.parent.tolist(), strict=True)
    ):
        depth[row] = depth[parent] + 1
        if trace.invocation[row] == invocation:
            found.append("  " * depth[row] + trace.names[name].removeprefix("vm.builtin."))
    return found


def counts(trace: Trace) -> list[int]:
    """Number of calls of each invocation."""
    return np.bincount(trace.invocation, minlength=len(trace.invocations)).tolist()


def run_threads(*targets: Callable[[], object], names: list[str] | None = None) -> None:
    """Run every target in a thread of its own to the end; raise what one of them raised."""
    errors: list[BaseException] = []

    def guarded(target: Callable[[], object]) -> None:
        try:
            target()
        except BaseException as error:
            errors.append(error)

    threads = [
        threading.Thread(target=guarded, args=[target], name=names[i] if names else None)
        for i, target in enumerate(targets)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def run_alone(program: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a process of its own that finds what this one finds."""
    paths = [str(Path(__file__).parents[1]), str(Path(relax_trace.__file__).parents[1])]
    return subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", program],
        cwd=Path(__file__).parent,  # which Python looks through first: no relax_trace lies there
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
