"""The command line as its users meet it: in a process of its own, on real models and bad input."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import models
import relax_trace
from relax_trace.report import Report
from unit.traces import Op, trace_of

SILERO_SHAPE = ("--input", "input=1,576", "--input", "state=2,1,128")


def relax_trace_command(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the command line in ``folder`` against the package under test."""
    source = str(Path(relax_trace.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": source, "LC_ALL": "C.UTF-8"}
    return subprocess.run(
        [sys.executable, "-m", "relax_trace", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )


def calls_of_a_run(model: models.Model) -> int:
    """What a plain Python instrument counts in one run."""
    seen = []

    def instrument(function, name, before, result, *arguments):
        if before:
            seen.append(name)

    model.vm.set_instrument(instrument)
    model.run()
    model.vm.set_instrument(None)
    return len(seen)


def test_a_model_becomes_a_table_and_a_trace_that_the_other_commands_read(tmp_path: Path) -> None:
    """``run`` prints the table of the trace it writes, which ``report`` and ``convert`` take up."""
    calls = 2 * calls_of_a_run(models.silero())
    ran = relax_trace_command("run", models.SILERO, *SILERO_SHAPE, "--number", "2", folder=tmp_path)
    trace = relax_trace.load(tmp_path / "trace.json")
    assert len(trace) == calls
    assert [trace.names[i] for i in trace.invocations.function] == ["main", "main"]
    assert ran.stdout == (
        f"{trace.report().table()}\n"
        f"wrote trace.json: {calls} calls in 2 invocations\n"
        "see the timeline:  open that file in https://ui.perfetto.dev\n"
        "see every call:    relax-trace report trace.json --calls all\n"
    )
    compiling, running = ran.stderr.splitlines()
    assert compiling.startswith(f"compiling {models.SILERO} for llvm ... ")
    assert running.startswith("running main, 3 times ... ")

    converted = relax_trace_command("convert", "trace.json", "trace.npz", folder=tmp_path)
    assert converted.stdout == f"wrote trace.npz: {calls} calls in 2 invocations\n"
    report = Report.from_trace(trace, calls="all", inclusive=True)
    for form, expected in {
        "table": report.table(sort=False, aggregate=False),
        "csv": report.csv(),
        "json": report.json() + "\n",
    }.items():
        options = ("--calls", "all", "--inclusive", "--no-sort", "--no-aggregate", "--format", form)
        reported = relax_trace_command("report", "trace.npz", *options, folder=tmp_path)
        assert (reported.stdout, reported.stderr, reported.returncode) == (expected, "", 0)


def test_statistics_of_a_trace_by_group(tmp_path: Path) -> None:
    """``report --by`` prints them, and refuses the options that say how to list calls."""
    ops = [
        Op("alloc", 0, 500, "shape[4]", kind="builtin"),
        Op("add", 1000, 2000, "int64[4]"),
        Op("call", 2000, 9000, "int64[4]", kind="function"),
        Op("mul", 3000, 6000, "int64[4]", parent=2),
    ]
    trace = trace_of(ops)
    trace.save(tmp_path / "trace.npz")
    for options, calls, inclusive in [
        ((), "tensors", False),
        (("--calls", "all", "--inclusive"), "all", True),
    ]:
        report = Report.from_trace(trace, calls=calls, inclusive=inclusive)
        ran = relax_trace_command("report", "trace.npz", "--by", "kind", *options, folder=tmp_path)
        expected = str(report.statistics("kind"))
        assert (ran.stdout, ran.stderr, ran.returncode) == (expected, "", 0)
    for option in ("--format=csv", "--no-sort", "--no-aggregate"):
        ran = relax_trace_command("report", "trace.npz", "--by", "kind", option, folder=tmp_path)
        assert (ran.stdout, ran.returncode) == ("", 2)
        assert ran.stderr.splitlines()[-1] == (
            "Error: --by goes with neither --format, --no-sort nor --no-aggregate."
        )


def test_a_library_runs_with_inputs_from_file_and_option(tmp_path: Path) -> None:
    """An exported library takes arrays by name, and sizes that inputs share from one of them."""
    models.silero_dynamic().executable.export_library(str(tmp_path / "silero.so"))
    np.savez(tmp_path / "inputs.npz", sr=np.array(16000), input=np.zeros((3, 576), np.float32))
    ran = relax_trace_command(
        "run", "silero.so", "--inputs", "inputs.npz", "-o", "trace.npz", folder=tmp_path
    )
    assert ran.returncode == 0, ran.stderr
    trace = relax_trace.load(tmp_path / "trace.npz")
    assert len(trace) == calls_of_a_run(models.silero_dynamic())
    assert any(b"float32[2, 3, 128]" in text for text in trace.signatures.texts)
    assert ran.stdout.splitlines()[-2] == (
        "see the timeline:  relax-trace convert trace.npz trace.json"
    )


@pytest.fixture(scope="module")
def bad(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of files that can't be used, and of two models that can."""
    folder = tmp_path_factory.mktemp("bad")
    save_one_op(folder / "relu.onnx", "Relu", [1, 4])
    save_one_op(folder / "open.onnx", "Relu", ["batch", 4])
    save_one_op(folder / "lacking.onnx", "NoSuchOperator", [1, 4])
    save_one_op(folder / "hostile.onnx", "No\x1b[31mSuch\nOperator", [1, 4])
    (folder / "cut.onnx").write_bytes(Path(models.SILERO).read_bytes()[:9999])
    (folder / "text.onnx").write_text("not a model\n")
    (folder / "empty.onnx").touch()
    models.silero().executable.export_library(str(folder / "silero.so"))
    (folder / "cut.so").write_bytes((folder / "silero.so").read_bytes()[:50_000])
    np.savez(folder / "unknown.npz", y=np.zeros((1, 4), np.float32))
    np.savez(folder / "shape.npz", x=np.zeros((1, 5), np.float32))
    np.savez(folder / "dtype.npz", x=np.zeros((1, 4)))
    np.savez(folder / "missing.npz")
    (folder / "text.npz").write_text("not an archive\n")
    (folder / "cut.json").write_text('{"traceEvents": [{"ph": "X", "na')
    return folder


def save_one_op(path: Path, operator: str, shape: list[int | str]) -> None:
    """Write a model of one operator on ``x``."""
    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "xy"]
    graph = helper.make_graph(
        [helper.make_node(operator, ["x"], ["y"])], "g", *([t] for t in tensors)
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), path)


BROKEN_PROTOBUF = "Error parsing message with type 'onnx.ModelProto'"
BAD_INPUT = {
    "run missing.onnx": "missing.onnx: No such file or directory",
    "run missing.so": "missing.so: No such file or directory",
    "run text.npz": (
        "text.npz is neither an ONNX model (.onnx), nor a library (.so), nor a Python program (.py)"
    ),
    "run cut.onnx": f"cut.onnx is no ONNX model, or not a whole one: {BROKEN_PROTOBUF}",
    "run text.onnx": f"text.onnx is no ONNX model, or not a whole one: {BROKEN_PROTOBUF}",
    "run empty.onnx": "empty.onnx is no ONNX model, or not a whole one: it has no operators",
    "run lacking.onnx": (
        "TVM can't import this model: The following operators are not supported for frontend "
        "ONNX: NoSuchOperator"
    ),
    "run hostile.onnx": (
        "TVM can't import this model: The following operators are not supported for frontend "
        "ONNX: No\\x1b[31mSuch"
    ),
    "run open.onnx": (
        "input 'x' is float32[batch, 4], where batch may be of any size: "
        "add --input x=1,4 with the size you want"
    ),
    "run open.onnx --input x=1,5": (
        "input 'x' has to be float32[batch, 4]; it was given float32[1, 5]"
    ),
    "run open.onnx --input x=1": "input 'x' has to be float32[batch, 4]; it was given float32[1]",
    "run open.onnx --input x=1,4:int8": (
        "input 'x' has to be float32[batch, 4]; it was given int8[1, 4]"
    ),
    "run open.onnx --input x=1x4": (
        "--input 'x=1x4' is not name=shape[:dtype], as in x=1,3,224,224 or ids=1,16:int64"
    ),
    "run open.onnx --input x=1,4:decimal": (
        "--input 'x=1,4:decimal' is not name=shape[:dtype], as in x=1,3,224,224 or ids=1,16:int64"
    ),
    "run relu.onnx --input y=1,4": "the model has no input 'y'; it has x",
    "run relu.onnx --input x=1,4 --input x=1,4": "input 'x' is given twice",
    "run relu.onnx --inputs unknown.npz": "the model has no input 'y'; it has x",
    "run open.onnx --inputs missing.npz": (
        "input 'x' is float32[batch, 4], where batch may be of any size: "
        "add --input x=1,4 with the size you want"
    ),
    "run relu.onnx --inputs shape.npz": (
        "input 'x' has to be float32[1, 4]; it was given float32[1, 5]"
    ),
    "run relu.onnx --inputs dtype.npz": (
        "input 'x' has to be float32[1, 4]; it was given float64[1, 4]"
    ),
    "run relu.onnx --inputs text.npz": (
        "text.npz is not an .npz file of arrays; numpy.savez writes one"
    ),
    "run relu.onnx --inputs missing": "missing: No such file or directory",
    "run relu.onnx --function decode": "an ONNX model has no function 'decode'; it has main",
    "run relu.onnx --target lvm": (
        "--target 'lvm' can't be used: Target kind \"lvm\" is not defined. "
        "Target creation from string failed: lvm"
    ),
    "run relu.onnx --target vulkan": (
        "--target 'vulkan' can't be used: TVM finds no such device here"
    ),
    "run relu.onnx -o missing/trace.json": "missing/trace.json: No such file or directory",
    "run relu.onnx -o .": (
        "'.' is no trace file by its name: "
        "it must end in .npz, .json, .json.gz, .otlp.json, .otlp.pb"
    ),
    "run silero.so --function decode": "the model has no function 'decode'; it has main",
    "run silero.so --input input=1,5": (
        "input 'input' has to be float32[1, 576]; it was given float32[1, 5]"
    ),
    "run cut.so": "cut.so is cut short: copy or export it again",
    "report missing.json": "missing.json: No such file or directory",
    "report cut.json": "can't read 'cut.json': ",
    "report text.npz": "can't read 'text.npz': ",
    "report text.onnx": (
        "'text.onnx' is no trace file by its name: it must end in .npz, .json, .json.gz"
    ),
    "convert cut.json out.npz": "can't read 'cut.json': ",
    "convert cut.json out.txt": (
        "'out.txt' is no trace file by its name: "
        "it must end in .npz, .json, .json.gz, .otlp.json, .otlp.pb"
    ),
}


@pytest.mark.parametrize("command", BAD_INPUT)
def test_bad_input_is_one_clear_line(command: str, bad: Path) -> None:
    """It says what is wrong, exits with 1, and leaves no file behind."""
    before = sorted(bad.iterdir())
    ran = relax_trace_command(*command.split(), folder=bad)
    *progress, line = ran.stderr.splitlines()
    expected = f"relax-trace: error: {BAD_INPUT[command]}"
    open_ended = expected.endswith((": ", BROKEN_PROTOBUF))  # another library's words follow
    assert line.startswith(expected) if open_ended else line == expected
    assert all(" ... " in step for step in progress)
    assert (ran.stdout, ran.returncode) == ("", 1)
    assert sorted(bad.iterdir()) == before


def test_wrong_usage_exits_with_2(tmp_path: Path) -> None:
    """A missing argument is answered with the usage."""
    ran = relax_trace_command("run", folder=tmp_path)
    assert ran.returncode == 2
    assert ran.stderr.splitlines()[-1] == "Error: Missing argument 'FILE'."


def test_what_only_reads_a_trace_does_not_load_tvm(tmp_path: Path) -> None:
    """Help, report and convert start fast: TVM takes a second, and may not be installed."""
    code = "import sys; sys.modules['tvm'] = None\nfrom relax_trace.commands import main; main()"
    for arguments in (["--help"], ["report", "missing.npz"], ["run", "missing.onnx"]):
        ran = subprocess.run(
            [sys.executable, "-c", code, *arguments],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(Path(relax_trace.__file__).parents[1])},
            capture_output=True,
            text=True,
            check=False,
        )
        assert "tvm" not in ran.stderr
        assert ran.returncode == (0 if arguments == ["--help"] else 1)
