"""``relax-trace run``: run a model file or a program, print its table, write its trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from ..announce import next_steps
from ..errors import ModelError
from . import inputs, models
from .arguments import RunCommand, is_model, refuse_options
from .output import check_output, write_output
from .program import become_program, check_program
from .progress import step

if TYPE_CHECKING:
    import tvm
    from tvm import relax

    from ..trace import Trace

    _Opened: TypeAlias = tuple[relax.VirtualMachine, tvm.runtime.Device, list[inputs.Array]]


@dataclass(frozen=True)
class _Request:
    """What the user asked for; ``given`` are the arrays of ``--inputs``."""

    model: str
    function: str
    target: str
    number: int
    options: Sequence[inputs.Parameter]
    given: dict[str, inputs.Array]


EXAMPLES = """\b
Examples:
  relax-trace run model.onnx
  relax-trace run model.onnx --input x=1,3,224,224 --number 10 -o trace.npz
  relax-trace run model.so --inputs inputs.npz --function decode
  relax-trace run -o trace.npz script.py --an-option-of-the-script
  relax-trace run -m module
"""


@click.command(cls=RunCommand, epilog=EXAMPLES)
@click.argument("file")
@click.argument("arguments", metavar="[ARGUMENTS]...", nargs=-1, type=click.UNPROCESSED)
@click.option("-o", "--output", default="trace.json", help="Trace to write.", show_default=True)
@click.option("-m", "module", is_flag=True, help="FILE is the name of a Python module to run.")
@click.option(
    "--input",
    "options",
    multiple=True,
    metavar="NAME=SHAPE[:DTYPE]",
    help="Shape of an input, as x=1,3,224,224 or ids=1,16:int64; t= is a scalar. "
    "Its values are random (integers 0 to 9).",
)
@click.option("--inputs", "inputs_file", metavar="FILE.npz", help="Inputs by name.")
@click.option("--target", default="llvm", help="TVM target, name or JSON.", show_default=True)
@click.option(
    "--number",
    type=click.IntRange(min=1),
    default=1,
    help="Runs to record, after one to warm up.",
    show_default=True,
)
@click.option("--function", default="main", help="Function to run.", show_default=True)
@click.pass_context
def run(
    context: click.Context,
    /,
    file: str,
    arguments: tuple[str, ...],
    output: str,
    module: bool,
    **model_options: Any,
) -> None:
    """Run FILE, print the per-op table of its Relax VMs, and write their trace.

    FILE is an ONNX model, which is compiled first, a library (.so) that TVM exported, or a Python
    program. A model's inputs get random values where --inputs gives none. A program runs as under
    python, with the ARGUMENTS after it; its table goes to stderr.
    """
    if is_model(file) and not module:
        if arguments:
            raise click.UsageError(f"a model takes no arguments: {' '.join(arguments)}", context)
        check_output(output)
        _run_model(file, output, **model_options)
        return
    refuse_options(context, model_options)
    if not module:
        check_program(file)
    check_output(output)
    become_program([*(["-m"] if module else []), file, *arguments], output)


def _run_model(
    model: str,
    output: str,
    options: tuple[str, ...],
    inputs_file: str | None,
    target: str,
    number: int,
    function: str,
) -> None:
    parsed = [inputs.parse_option(text) for text in options]
    given = inputs.read_file(inputs_file) if inputs_file else {}
    trace = _record(_Request(model, function, target, number, parsed, given))
    click.echo(trace.report().table())
    write_output(trace, output)
    click.echo(next_steps(output))


def _record(request: _Request) -> Trace:
    opened = _open_onnx(request) if request.model.endswith(".onnx") else _open_library(request)
    vm, device, arrays = opened
    import tvm

    from ..profiling import profile_trace

    tensors = [tvm.runtime.tensor(array, device) for array in arrays]
    function, runs = request.function, request.number + 1
    with step(f"running {function}, {runs} times"), models.explained(f"{function} failed"):
        return profile_trace(vm, function, *tensors, number=request.number, repeat=1)


def _open_onnx(request: _Request) -> _Opened:
    model = models.read_onnx(request.model)
    if request.function != "main":
        raise ModelError(f"an ONNX model has no function {request.function!r}; it has main")
    parameters = models.onnx_parameters(model)
    arrays = inputs.make_inputs(parameters, request.options, request.given)
    shapes = {known.name: array.shape for known, array in zip(parameters, arrays, strict=True)}
    with step(f"compiling {request.model} for {request.target}"):
        from tvm import relax

        target, device = models.find_target(request.target)
        executable = models.compile_onnx(model, shapes, target)
        return relax.VirtualMachine(executable, device), device, arrays


def _open_library(request: _Request) -> _Opened:
    with step(f"loading {request.model}"):
        from tvm import relax

        _, device = models.find_target(request.target)
        module = models.load_library(request.model)
        vm = relax.VirtualMachine(module, device)
    parameters = models.library_parameters(module, vm, request.function)
    return vm, device, inputs.make_inputs(parameters, request.options, request.given)
