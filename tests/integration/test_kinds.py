"""Each kind of call a VM makes: kernels, builtins, functions, closures, external ones; devices."""
# ruff: noqa: N805, N812 - TVMScript's functions take tensors, and its customary names are I and R
# ruff: noqa: RET504, SIM108 - and it has a grammar of its own

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax
from tvm.relax.dpl import is_op, wildcard
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

import relax_trace
from integration.plain_instrument import record_as_seen, recorded_ops
from relax_trace import Device, Trace
from relax_trace.trace import KINDS

ADDER = """
#include <tvm/ffi/c_api.h>
#ifdef __cplusplus
extern "C"
#endif
int __tvm_ffi_{symbol}(void* self, const TVMFFIAny* arguments, int32_t count, TVMFFIAny* result) {{
  float* data[3];
  for (int i = 0; i < 3; ++i) {{
    const char* object = (const char*)arguments[i].v_obj;
    data[i] = (float*)((const DLTensor*)(object + sizeof(TVMFFIObject)))->data;
  }}
  for (int i = 0; i < 4; ++i) data[2][i] = data[0][i] + data[1][i];
  return 0;
}}
"""


@tvm_ffi.register_global_func("relax.ext.adder", override=True)
def _generate(functions: Any, _options: Any, _constants: Any) -> list[Any]:
    """A code generator: C source for each function, all of which add two vectors of four."""
    create = tvm.get_global_func("runtime.CSourceModuleCreate")
    symbols = [str(function.attrs["global_symbol"]) for function in functions]
    return [create(ADDER.format(symbol=symbol), "c", [symbol], []) for symbol in symbols]


@tvm_ffi.register_global_func("relax_trace_tests.halve", override=True)
def _halve(x: Any, out: Any) -> None:
    out.copyfrom(x.numpy() / 2)


@I.ir_module
class _External:
    @R.function
    def main(x: R.Tensor((4,), "float32"), y: R.Tensor((4,), "float32")) -> R.Tensor(
        (4,), "float32"
    ):
        with R.dataflow():
            a = R.add(x, y)
            b = R.multiply(a, R.const([1.0, 2.0, 3.0, 4.0], "float32"))
            c = R.call_dps_packed("relax_trace_tests.halve", (b,), R.Tensor((4,), "float32"))
            d = R.add(c, x)
            R.output(d)
        return d


@I.ir_module
class _Functions:
    @R.function
    def sum(x: R.Tensor((4,), "float32"), y: R.Tensor((4,), "float32")) -> R.Tensor(
        (4,), "float32"
    ):
        return R.add(x, y)

    @R.function
    def product(x: R.Tensor((4,), "float32"), y: R.Tensor((4,), "float32")) -> R.Tensor(
        (4,), "float32"
    ):
        return R.multiply(x, y)

    @R.function(private=True)
    def inner(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        return R.negative(x)

    @R.function
    def outer(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        y = _Functions.inner(x)
        return _Functions.inner(y)

    @R.function
    def choose(x: R.Tensor((4,), "float32"), flag: R.Tensor((), "bool")) -> R.Object:
        if flag:
            closure = R.make_closure(_Functions.sum, (x,))
        else:
            closure = R.make_closure(_Functions.product, (x,))
        return closure

    @R.function
    def main(x: R.Tensor((4,), "float32"), flag: R.Tensor((), "bool")) -> R.Tensor((4,), "float32"):
        y = _Functions.outer(x)
        closure = _Functions.choose(x, flag)
        z = R.invoke_pure_closure(closure, (y,), R.Tensor((4,), "float32"))
        return z


@I.ir_module
class _Symbolic:
    @R.function
    def main(x: R.Tensor(("n", "m"), "float32"), flag: R.Tensor((), "bool")) -> R.Tensor(
        ndim=1, dtype="float32"
    ):
        k = T.int64()
        y = R.flatten(R.concat((x, x), axis=0))
        if flag:
            z = R.add(y, R.const(1.0, "float32"))
        else:
            z = R.exp(y)
        found = R.unique(
            z, sorted=True, return_index=False, return_inverse=False, return_counts=False, axis=0
        )
        sized = R.match_cast(found, R.Tensor((k,), "float32"))
        return R.negative(sized)


@I.ir_module
class _Devices:
    I.module_global_infos({"vdevice": [I.vdevice("llvm", 0), I.vdevice("llvm", 1)]})

    @R.function
    def main(
        x: R.Tensor((2, 3), "float32", "llvm:0"),
        y: R.Tensor((3, 4), "float32", "llvm:0"),
        z: R.Tensor((4, 5), "float32", "llvm:1"),
    ) -> R.Tensor((2, 5), "float32", "llvm:1"):
        with R.dataflow():
            a = R.matmul(x, y)
            b = R.to_vdevice(a, "llvm:1")
            c = R.matmul(b, z)
            R.output(c)
        return c

    @R.function
    def first(x: R.Tensor((2, 3), "float32", "llvm:0")) -> R.Tensor((2, 3), "float32", "llvm:0"):
        with R.dataflow():
            a = R.add(x, x)
            R.output(a)
        return a


def vector(*values: float) -> tvm.runtime.Tensor:
    """A vector on the CPU."""
    return tvm.runtime.tensor(np.array(values, "float32"))


def flag(value: bool) -> tvm.runtime.Tensor:
    """A condition."""
    return tvm.runtime.tensor(np.array(value))


def outline(trace: Trace, builtins: Collection[str] = ()) -> list[str]:
    """Kind, name and arguments of each call, inner ones indented; of builtins only those named."""
    kinds = [KINDS[kind] for kind in trace.kind.tolist()]
    lines, depths = [], [0]
    for op, kind in zip(recorded_ops(trace), kinds, strict=True):
        depths.append(depths[op.parent + 1] + 1)
        name = op.name.removeprefix("vm.builtin.")
        if kind != "builtin" or name in builtins:
            lines.append("  " * (depths[-1] - 1) + f"{kind} {name}({op.arguments})")
    return lines


def ends(trace: Trace) -> list[tuple[str, str | None, str | None]]:
    """Name, device and destination of the kernels and of the copies between devices."""
    names = {code: str(Device(code >> 32, code & 0xFFFFFFFF)) for code in (1 << 32, 1 << 32 | 1)}
    signatures = trace.signatures.destinations[trace.signature].tolist()
    return [
        (op.name, op.device, names.get(destination))
        for op, destination in zip(recorded_ops(trace), signatures, strict=True)
        if destination >= 0 or not op.name.startswith("vm.builtin.")
    ]


def test_external_functions_beside_kernels() -> None:
    """A code generator's function, a packed one, a kernel with a constant, each of its kind."""
    patterns = [("adder.add", is_op("relax.add")(wildcard(), wildcard()))]
    module = relax.transform.FuseOpsByPattern(patterns, annotate_codegen=True)(_External)
    executable = tvm.compile(relax.transform.RunCodegen()(module), target="llvm")
    include = [f"-I{path}" for path in tvm_ffi.libinfo.include_paths()]
    vm = relax.VirtualMachine(executable.jit(options=include), tvm.cpu())
    x = vector(1, 2, 3, 4)
    trace = record_as_seen(vm, lambda: vm["main"](x, x))
    assert vm["main"](x, x).numpy().tolist() == [2, 6, 12, 20]
    v = "float32[4]"
    assert outline(trace) == [
        f"extern fused_relax_add_adder({v}, {v}, {v})",
        f"kernel multiply({v}, {v}, {v})",
        f"extern relax_trace_tests.halve({v}, {v})",
        f"extern fused_relax_add_adder({v}, {v}, {v})",
    ]


def test_functions_and_closures_nest_under_their_names() -> None:
    """Functions in functions, and two closures that one call site runs by turns.

    Their names are short enough to lie inside the closures themselves, and so at an address where
    another name lies soon after.
    """
    vm = relax.VirtualMachine(tvm.compile(_Functions, target="llvm"), tvm.cpu())
    x = vector(1, 2, 3, 4)

    def run() -> None:
        for closure in closures:
            results = {"sum": [2, 4, 6, 8], "product": [1, 4, 9, 16]}
            assert vm["main"](x, flag(closure == "sum")).numpy().tolist() == results[closure]

    closures = ["sum", "sum", "product", "product", "sum", "product"] * 5
    trace = record_as_seen(vm, run, closures)
    v = "float32[4]"
    expected = []
    for closure in closures:
        kernel = {"sum": "add", "product": "multiply"}[closure]
        expected += [
            f"function outer({v})",
            f"  function inner({v})",
            f"    kernel tir_negative({v}, {v})",
            f"  function inner({v})",
            f"    kernel tir_negative({v}, {v})",
            f"function choose({v}, bool[])",
            "  builtin read_if_cond(bool[])",
            f"  builtin make_closure({v})",
            f"function {closure}({v})",
            f"  kernel {kernel}({v}, {v}, {v})",
        ]
    assert outline(trace, ["make_closure", "read_if_cond"]) == expected


def test_a_closure_called_from_outside_is_an_invocation_of_its_name() -> None:
    """``invoke_closure`` of the VM itself: no op stands for the closure."""
    vm = relax.VirtualMachine(tvm.compile(_Functions, target="llvm"), tvm.cpu())
    x = vector(1, 2, 3, 4)
    closure = vm["choose"](x, flag(False))
    with relax_trace.record(vm) as recording:
        assert vm.invoke_closure(closure, x).numpy().tolist() == [1, 4, 9, 16]
    trace = recording.trace
    assert [trace.names[i] for i in trace.invocations.function] == ["product"]
    assert outline(trace) == ["kernel multiply(float32[4], float32[4], float32[4])"]


def test_branches_and_shapes_known_only_at_run_time() -> None:
    """The branch taken, and a shape that follows from values, are those of each invocation."""
    vm = relax.VirtualMachine(tvm.compile(_Symbolic, target="llvm"), tvm.cpu())

    def run() -> None:
        same, other = np.zeros((2, 3), "float32"), np.arange(4, dtype="float32").reshape(1, 4)
        vm["main"](tvm.runtime.tensor(same), flag(True))
        vm["main"](tvm.runtime.tensor(other), flag(False))

    # To a kernel that is given the sizes TVM 0.25 goes through a builtin, which hides its name.
    hidden = "builtin call_tir_dyn" if tvm.__version__.startswith("0.25.") else None
    trace = record_as_seen(vm, run)
    expected = []
    runs = (("2, 3", "4, 3", 12, "add", 1), ("1, 4", "2, 4", 8, "tir_exp", 4))
    for x, joined, size, branch, found in runs:
        expected += [
            f"builtin match_shape(float32[{x}], int64[7])",
            "kernel shape_func(int64[7])",
            f"kernel concatenate(float32[{x}], float32[{x}], float32[{joined}])",
            f"{hidden or 'kernel reshape'}(float32[{joined}], float32[{size}])",
            "builtin read_if_cond(bool[])",
            f"{hidden or f'kernel {branch}'}(float32[{size}], float32[{size}])",
            f"extern relax.run.unique(float32[{size}])",
            f"builtin match_shape(float32[{found}], int64[7])",
            "kernel shape_func1(int64[7])",
            f"kernel tir_negative(float32[{found}], float32[{found}])",
        ]
    assert outline(trace, ["read_if_cond", "match_shape", "call_tir_dyn"]) == expected


def test_two_devices_and_a_copy_between_them() -> None:
    """Each call has its device, the copy both ends, and the report a total for each device."""
    module = relax.transform.RealizeVDevice()(_Devices)
    first, second = tvm.cpu(0), tvm.cpu(1)
    vm = relax.VirtualMachine(tvm.compile(module, target="llvm"), [first, second])
    x, y = (tvm.runtime.tensor(np.ones(shape, "float32"), first) for shape in ((2, 3), (3, 4)))
    z = tvm.runtime.tensor(np.ones((4, 5), "float32"), second)

    def run() -> None:
        vm["main"](x, y, z)
        vm["first"](x)

    trace = record_as_seen(vm, run)
    assert outline(trace, ["to_device"]) == [
        "kernel matmul_llvm(float32[2, 3], float32[3, 4], float32[2, 4])",
        "builtin to_device(float32[2, 4])",
        "kernel matmul1_llvm(float32[2, 4], float32[4, 5], float32[2, 5])",
        "kernel add_llvm(float32[2, 3], float32[2, 3], float32[2, 3])",
    ]
    assert ends(trace) == [
        ("matmul_llvm", "cpu0", None),
        ("vm.builtin.to_device", "cpu0", "cpu1"),
        ("matmul1_llvm", "cpu1", None),
        ("add_llvm", "cpu0", None),
    ]
    both, one = (trace.invocations.end - trace.invocations.start).tolist()
    totals = [(total.device, total.duration, total.count) for total in trace.report().totals]
    assert totals == [("cpu0", both + one, 2), ("cpu1", both, 1)]
    lines = [line.split() for line in str(trace.report()).splitlines()]
    assert [line[2:] for line in lines if line[:1] == ["Total"]] == [["cpu0", "2"], ["cpu1", "1"]]
