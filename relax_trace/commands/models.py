"""Make a VirtualMachine of a model file: an ONNX model, or a library that TVM exported."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import ModelError, RelaxTraceError
from .inputs import ANY, Parameter
from .quiet import captured_output

if TYPE_CHECKING:
    import onnx
    import tvm
    from tvm import relax


def read_onnx(path: str) -> onnx.ModelProto:
    """Parse an ONNX file. Raises ``ModelError`` where it is none, or cut short."""
    try:
        import onnx
    except ImportError as error:
        raise ModelError("an .onnx model needs: pip install 'relax-trace[onnx]'") from error
    wrong = f"{path} is no ONNX model, or not a whole one"
    with explained(wrong):
        model = onnx.load(path)
    if not model.graph.node:
        raise ModelError(f"{wrong}: it has no operators")
    return model


def onnx_parameters(model: onnx.ModelProto) -> list[Parameter]:
    """The inputs that a user gives, in order: those that aren't weights."""
    weights = {weight.name for weight in model.graph.initializer}
    return [_onnx_parameter(value) for value in model.graph.input if value.name not in weights]


def _onnx_parameter(value: onnx.ValueInfoProto) -> Parameter:
    from onnx import helper

    tensor = value.type.tensor_type
    if not tensor.elem_type:
        kind = value.type.WhichOneof("value") or "unknown type"
        raise ModelError(f"input {value.name!r} is of {kind}; only tensors can be given")
    dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type).name
    if not tensor.HasField("shape"):
        return Parameter(value.name, None, dtype)
    dimensions = [d.dim_value or d.dim_param or ANY for d in tensor.shape.dim]
    return Parameter(value.name, tuple(dimensions), dtype)


def compile_onnx(
    model: onnx.ModelProto, shapes: Mapping[str, tuple[int, ...]], target: tvm.target.Target
) -> relax.VMExecutable:
    """Import with these input shapes, fuse and compile.

    Raises ``ModelError`` with TVM's reason where it can't.
    """
    import tvm
    from tvm import relax
    from tvm.relax.frontend.onnx import from_onnx

    with captured_output() as printed:
        try:
            sized = {name: list(shape) for name, shape in shapes.items()}
            module = from_onnx(model, shape_dict=sized, keep_params_in_input=False)
        except Exception as error:
            operator = re.search(r"Error converting operator (\w+)", printed())
            where = f" (operator {operator[1]})" if operator else ""
            raise ModelError(f"TVM can't import this model: {_reason(error)}{where}") from error
        with explained("TVM can't compile this model"), target:
            module = relax.transform.DecomposeOpsForInference()(module)
            module = relax.get_pipeline("zero")(module)  # without it nothing is fused
    with explained("TVM can't compile this model"):
        return tvm.compile(module, target=target)


def load_library(path: str) -> tvm.runtime.Module:
    """Load a library that ``export_library`` wrote. Raises ``ModelError`` where it is none."""
    import tvm

    _check_whole(path)
    with captured_output(), explained(f"{path} can't be loaded"):
        module = tvm.runtime.load_module(path)
    if not module.implements_function("vm_load_executable"):
        raise ModelError(f"{path} holds no Relax VM executable: export one with export_library")
    return module


def _check_whole(path: str) -> None:
    """Raise where an ELF file ends before its section table: loading it would kill the process."""
    with open(path, "rb") as file:
        header = file.read(64)
    if len(header) < 64 or header[:5] != b"\x7fELF\x02":
        return
    at, entry_size, entries = struct.unpack_from("<40xQ10xHH", header)
    if Path(path).stat().st_size < at + entry_size * entries:
        raise ModelError(f"{path} is cut short: copy or export it again")


def find_target(text: str) -> tuple[tvm.target.Target, tvm.runtime.Device]:
    """TVM's target of that name or JSON, and the first device of its kind.

    Raises ``ModelError`` where TVM doesn't know the target, or this machine lacks the device.
    """
    import tvm

    with captured_output(), explained(f"--target {text!r} can't be used"):
        target = tvm.target.Target(text)
        device = tvm.device(target.get_target_device_type(), 0)
        if not device.exist:
            raise ModelError(f"--target {text!r} can't be used: TVM finds no such device here")
    return target, device


def library_parameters(
    module: tvm.runtime.Module, vm: relax.VirtualMachine, function: str
) -> list[Parameter]:
    """The parameters of a library's function, in order.

    Shapes and dtypes are those that the compiled code checks; not every parameter has a check.
    Raises ``ModelError`` where there is no such function, saying which there are.
    """
    functions = re.findall(r"^@(\S+):$", module["as_text"](), re.MULTILINE)
    if function not in functions:
        raise ModelError(f"the model has no function {function!r}; it has {', '.join(functions)}")
    checks = {
        int(number): (shape, dtype)
        for name, number, shape, dtype in _CHECK.findall(module["stats"]())
        if name == function
    }
    arity, name = vm.module["get_function_arity"], vm.module["get_function_param_name"]
    parameters = []
    for i in range(arity(function)):
        shape, dtype = checks.get(i, (None, None))
        parameters.append(Parameter(name(function, i), _dimensions(shape), dtype))
    return parameters


# As in: ErrorContext(fn=main, loc=param[0], param=x, annotation=R.Tensor((1, n), dtype="float32"))
_CHECK = re.compile(
    r"ErrorContext\(fn=(\S+), loc=param\[(\d+)\], param=\S+, "
    r'annotation=R\.Tensor\(\(([^()]*)\), dtype="(\w+)"\)\)'
)


def _dimensions(text: str | None) -> tuple[int | str, ...] | None:
    if text is None:
        return None
    sizes = [size.strip() for size in text.split(",") if size.strip()]
    return tuple(int(size) if size.isdecimal() else size for size in sizes)


@contextmanager
def explained(what: str) -> Iterator[None]:
    """Turn an exception of TVM's into a ``ModelError`` with its reason in one line."""
    try:
        yield
    except (RelaxTraceError, OSError):
        raise
    except Exception as error:
        raise ModelError(f"{what}: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__
