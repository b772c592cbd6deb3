"""``relax-trace run PROGRAM``: everything is as under ``python``, and the trace is there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import relax_trace
from integration.programs import write_programs

SOURCE = str(Path(relax_trace.__file__).parents[1])
ENVIRONMENT = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
NOTHING = "relax-trace: no Relax VM ran, so there is no trace\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the programs are."""
    path = tmp_path_factory.mktemp("programs")
    write_programs(path)
    return path


def python(
    *arguments: str, folder: Path, paths: tuple[str, ...] = (SOURCE,)
) -> subprocess.CompletedProcess[str]:
    """Run Python in ``folder``; ``paths`` become PYTHONPATH."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**ENVIRONMENT, "PYTHONPATH": os.pathsep.join(paths)},
        input="print(1, __name__, __import__('sys').argv)",
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def run(*arguments: str, folder: Path, output: str = "t.npz") -> subprocess.CompletedProcess[str]:
    """The same under ``relax-trace run``."""
    return python("-m", "relax_trace", "run", "-o", output, *arguments, folder=folder)


PROGRAMS = {
    "surroundings.py": 0,
    "surroundings.py --help -o x.json --number 3 -m -- model.onnx": 0,
    "script run": 0,
    "link.py": 0,
    "folder": 0,
    "program.pyz x": 0,
    "-m package -m -o x": 0,
    "-m package.told --help": 0,
    "-m surroundings": 0,
    "- x": 0,
    "missing.py": 2,
    "-m missing": 1,
    "processes.py": 0,
    "late_work.py": 0,
    "exit_none.py": 0,
    "exit_number.py": 3,
    "exit_text.py": 1,
    "excepthook.py": 1,
    "chained.py": 1,
    "syntax_error.py": 1,
    "held.py": 0,
    "exit_at_once.py": 5,
    "interrupted.py": -signal.SIGINT,
    "terminated.py": -signal.SIGTERM,
    "closed_output.py": 120,
    "no_stderr.py": 2,
}
SILENT = ("exit_at_once.py", "terminated.py", "no_stderr.py")  # nothing can be said any more


@pytest.mark.parametrize("command", PROGRAMS)
def test_a_program_runs_as_under_python(command: str, folder: Path) -> None:
    """Output, errors, exit code and all that it can see of its process are the same."""
    expected = python(*command.split(), folder=folder)
    assert expected.returncode == PROGRAMS[command]
    ran = run(*command.split(), folder=folder)
    said = "" if command in SILENT else NOTHING
    flushed = expected.stderr.find("Exception ignored ")  # Python's own last words
    end = flushed if flushed >= 0 else len(expected.stderr)
    assert ran.stderr == expected.stderr[:end] + said + expected.stderr[end:]
    assert (ran.stdout, ran.returncode) == (expected.stdout, expected.returncode)
    assert not (folder / "t.npz").exists()


@pytest.mark.parametrize(
    ("options", "paths"),
    [
        (["-O", "-X", "utf8", "-W", "error", "-s"], (SOURCE,)),
        (["-bm"], ("", SOURCE, "site")),
    ],
)
def test_options_of_python_and_a_sitecustomize_of_the_user(
    options: list[str], paths: tuple[str, ...], folder: Path
) -> None:
    """They reach the program; so does what the user's PYTHONPATH holds, and an empty entry."""
    *first, last = options
    bare = [*first, last.removesuffix("m")]
    expected = python(*bare, "surroundings.py", folder=folder, paths=paths)
    assert ("of the user" in expected.stdout) == ("site" in paths)
    ours = [*first, last] if last.endswith("m") else [*options, "-m"]
    ran = python(*ours, "relax_trace", "run", "surroundings.py", folder=folder, paths=paths)
    assert (ran.stdout, ran.stderr) == (expected.stdout, NOTHING)


def test_a_recording_that_can_not_begin_ends_the_program(folder: Path) -> None:
    """At once, not after hours; an ``except Exception`` around the import doesn't keep it."""
    command = ("-m", "relax_trace", "run", "without_recorder.py")
    ran = python(*command, folder=folder, paths=(SOURCE, "tvm_of_our_own"))
    assert ran.stderr == "relax-trace: error: it is made to fail\n"
    assert (ran.stdout, ran.returncode) == ("its exit handlers run\n", 1)


REFUSED = {
    "run --number 3 -o t.json surroundings.py": (
        2,
        "Error: --number is for a model (.onnx, .so), not for a Python program; "
        "the program's own options stand after it",
    ),
    "run --input x=1 -m package": (
        2,
        "Error: --input is for a model (.onnx, .so), not for a Python program; "
        "the program's own options stand after it",
    ),
    "run model.so --number 2 x": (2, "Error: a model takes no arguments: x"),
    "run -m": (2, "Error: Missing argument 'FILE'."),
    "run -o t.txt exit_none.py": (
        1,
        "relax-trace: error: 't.txt' is no trace file by its name: "
        "it must end in .npz, .json, .json.gz, .otlp.json, .otlp.pb",
    ),
    "run -o missing/t.json exit_none.py": (
        1,
        "relax-trace: error: missing/t.json: No such file or directory",
    ),
}


@pytest.mark.parametrize("command", REFUSED)
def test_what_does_not_fit_is_refused_before_anything_runs(command: str, folder: Path) -> None:
    """Options of models with a program, arguments with a model, and output that can't be."""
    ran = python("-m", "relax_trace", *command.split(), folder=folder)
    assert (ran.returncode, ran.stderr.splitlines()[-1]) == REFUSED[command]
    assert ran.stdout == ""


def test_an_interpreter_that_keeps_the_recording_out_is_refused(folder: Path) -> None:
    """Python's isolated mode reads no PYTHONPATH: better no run than one without a trace."""
    code = f"import sys; sys.path.insert(0, {SOURCE!r}); import relax_trace.commands as c; c.main()"
    ran = python("-I", "-c", code, "run", "exit_none.py", folder=folder)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr.startswith("relax-trace: error: a program can't be recorded under python -I")


def names(trace: relax_trace.Trace) -> Counter[str]:
    """How often each op was called."""
    return Counter(trace.names[i] for i in trace.name.tolist())


def report(trace: relax_trace.Trace, path: str, sizes: str) -> str:
    """What is printed of a trace."""
    return (
        f"\n{trace.report().table()}\n"
        f"wrote {path}: {sizes}\n"
        "see the timeline:  open that file in https://ui.perfetto.dev\n"
        f"see every call:    relax-trace report {path} --calls all\n"
    )


BUILTINS = {
    "alloc_shape_heap": 5,
    "check_tensor_info": 10,
    "match_shape": 15,
    "make_shape": 10,
    "alloc_storage": 5,
    "alloc_tensor": 5,
    "null_value": 5,
}


def test_a_tutorial_gives_its_trace(folder: Path) -> None:
    """Build, VM, loop: each call of the loop is there with its ops; stdout is the script's own."""
    ran = python("-m", "relax_trace", "run", "tutorial.py", folder=folder)
    assert (ran.stdout, ran.returncode) == ("12.0\n48.0\n108.0\n192.0\n300.0\n", 0)
    trace = relax_trace.load(folder / "trace.json")
    assert ran.stderr == report(trace, "trace.json", f"{len(trace)} calls in 5 invocations")
    assert [trace.names[i] for i in trace.invocations.function] == ["main"] * 5
    assert names(trace) == {
        **dict.fromkeys(["shape_func", "fused_matmul_relu"], 5),
        **{f"vm.builtin.{name}": count for name, count in BUILTINS.items()},
    }
    fused = trace.filter(name="fused_matmul_relu")
    assert [trace.signatures.texts[i].decode() for i in fused.signature] == [
        f"float32[{n}, 4], float32[4, 3], float32[{n}, 3]" for n in range(1, 6)
    ]


INTERRUPTED = "relax-trace: interrupted while writing the trace"
ENDINGS = {
    "exit": (3, "", ""),
    "raise": (1, "", "ValueError: the program's own"),
    "interrupt": (-signal.SIGINT, "", "KeyboardInterrupt"),
    "unwritable": (1, "", "relax-trace: error: no trace: out/t.json: No such file or directory"),
    "interrupt the writing": (-signal.SIGINT, "1\n", INTERRUPTED),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_trace_is_there_however_the_program_ends(
    ending: str, folder: Path, tmp_path: Path
) -> None:
    """With what threads and exit handlers ran at the end, without what forked children ran."""
    (tmp_path / "out").mkdir()
    command = ("-m", "relax_trace", "run", "-o", "out/t.json", str(folder / "endings.py"), ending)
    ran = python(*command, folder=tmp_path)
    code, stdout, last = ENDINGS[ending]
    assert (ran.stdout, ran.returncode) == (stdout, code), ran.stderr
    if ending in ("unwritable", "interrupt the writing"):
        assert ran.stderr == f"{last}\n"
        assert not list(tmp_path.glob("out/*"))
        return
    assert [file.name for file in tmp_path.glob("out/*")] == ["t.json"]
    trace = relax_trace.load(tmp_path / "out" / "t.json")
    printed = report(trace, "out/t.json", f"{len(trace)} calls in 3 invocations")
    assert ran.stderr.endswith(printed)
    assert ran.stderr.removesuffix(printed).splitlines()[-1:] == ([last] if last else [])
    assert names(trace)["add"] == 3
    assert len({trace.invocations.thread[i] for i in range(3)}) == 2
