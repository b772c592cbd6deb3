"""Building the recorder: which compiler is taken, what is kept, and recorders inside models."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import relax_trace
from integration.small_vms import chain
from relax_trace.recorder import toolchains
from relax_trace.recorder.build import build_library

# For processes of their own: the package under test, and what this process finds beside it.
_BESIDE = filter(None, [os.environ.get("PYTHONPATH")])
PYTHONPATH = os.pathsep.join([str(Path(relax_trace.__file__).parents[1]), *_BESIDE])


@pytest.fixture(autouse=True)
def only_this_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No compiler, NDK nor cache of the user's."""
    for name in ("CC", "ANDROID_NDK_HOME", "ANDROID_NDK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def script(path: Path, command: str) -> Path:
    """A program that runs the command with its own arguments, and leaves a line in `path`.log."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'#!/bin/sh\necho "$@" >>"{path}.log"\nexec {command} "$@"\n')
    path.chmod(0o755)
    return path


def found(target: str | None, cc: str | None = None) -> list[str]:
    """The compiler's command for a target."""
    return toolchains.find(toolchains.parse(target) if target else None, cc)


def test_which_compiler_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is named comes first, then a cross-compiler, then zig; which alone knows glibcs."""
    folder = tmp_path / "bin"
    monkeypatch.setenv("PATH", str(folder))
    zig = [sys.executable, "-m", "ziglang", "cc", "-target"]
    assert found("aarch64-linux-gnu") == [*zig, "aarch64-linux-gnu.2.17"]
    assert found("riscv64-linux-gnu") == [*zig, "riscv64-linux-gnu"]
    assert found("armv7l-unknown-linux-musleabihf") == [*zig, "arm-linux-musleabihf"]
    for name in ("aarch64-linux-gnu-gcc", "arm-linux-gnueabihf-gcc", "cc", "mine"):
        script(folder / name, "true")
    assert found("arm64-linux-gnu") == ["aarch64-linux-gnu-gcc"]
    assert found("armv7-linux-gnueabihf") == ["arm-linux-gnueabihf-gcc"]
    assert found("aarch64-linux-gnu.2.28") == [*zig, "aarch64-linux-gnu.2.28"]
    assert found("aarch64-linux-gnu", "mine --for 'a b'") == ["mine", "--for", "a b"]
    assert found(None) == ["cc"]
    monkeypatch.setenv("CC", "mine -m64")
    assert found(None) == ["mine", "-m64"]


@pytest.mark.parametrize(
    ("target", "cc", "message"),
    [
        ("aarch64", None, "'aarch64' is no target that the recorder can be built for: name one"),
        ("x86_64-pc-windows-msvc", None, "is no target"),
        ("../x-linux-gnu", None, "is no target"),
        ("aarch64-linux-gnu", "nowhere -c", "there is no C compiler 'nowhere -c' on the PATH"),
        (
            *("aarch64-linux-gnu", None),
            "no C compiler for aarch64-linux-gnu is here: pip install ziglang, or install "
            "aarch64-linux-gnu-gcc (Debian and Ubuntu: gcc-aarch64-linux-gnu), or name one",
        ),
        ("x86_64-linux-gnu.2.28", None, "pip install ziglang, which can build for that glibc"),
        ("aarch64-linux-android", None, "say Android's API level, too, as in aarch64-linux-and"),
        ("aarch64-linux-android24", None, "install the Android NDK, and say where it is in AND"),
        (None, None, "no C compiler is here: install gcc, or name one"),
    ],
)
def test_no_compiler(
    monkeypatch: pytest.MonkeyPatch, target: str | None, cc: str | None, message: str
) -> None:
    """The error says what to install, or how to say it."""
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(toolchains.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(relax_trace.RecorderError, match=re.escape(message)):
        found(target, cc)


def test_the_android_ndk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its clang for the API level builds the recorder; here zig for musl stands in for it."""
    folder = tmp_path / "toolchains/llvm/prebuilt/linux-x86_64/bin"
    zig = f"'{sys.executable}' -m ziglang cc -D__ANDROID__ -target aarch64-linux-musl"
    clang = script(folder / "aarch64-linux-android24-clang", zig)
    arm = script(folder / "armv7a-linux-androideabi24-clang", "true")
    monkeypatch.setenv("ANDROID_NDK", str(tmp_path))
    assert found("aarch64-linux-android24") == [str(clang)]
    assert found("armv7-linux-androideabi24") == [str(arm)]
    built = build_library(tmp_path / "recorder.so", "aarch64-linux-android24")
    assert (built.machine, built.glibc) == ("aarch64", None)
    with pytest.raises(relax_trace.RecorderError, match=r"the Android NDK in .* has none"):
        found("aarch64-linux-android99")


def test_an_object_is_built_once(tmp_path: Path) -> None:
    """For each command; one that can't be built leaves nothing, nor what the compiler began."""
    compiler = script(tmp_path / "counted", "gcc")
    log = Path(f"{compiler}.log")
    first = relax_trace.recorder_object(cc=str(compiler))
    assert relax_trace.recorder_object(cc=str(compiler)) == first
    assert len(log.read_text().splitlines()) == 1
    assert relax_trace.recorder_object(cc=f"{compiler} -O1") != first
    assert len(list((tmp_path / "cache").rglob("*.o"))) == len(log.read_text().splitlines()) == 2
    kept = sorted((tmp_path / "cache").rglob("*"))
    for bad, message in [
        (f"{compiler} -include nowhere.h", r"counted' failed: .*error: nowhere.h"),
        ("false", "the compiler 'false' failed: exit code 1"),
        (str(compiler), "builds for x86_64, not for aarch64-linux-gnu"),
        ("true", "the compiler 'true' made no file"),
    ]:
        target = "aarch64-linux-gnu" if bad == str(compiler) else None
        with pytest.raises(relax_trace.RecorderError, match=message):
            relax_trace.recorder_object(target, cc=bad)
    assert sorted((tmp_path / "cache").rglob("*")) == kept


def python(code: str, *arguments: str | Path) -> str:
    """What a Python of its own prints."""
    ended = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": PYTHONPATH},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stderr
    return ended.stdout


INSIDE = """
import gc, sys
import numpy as np, tvm, tvm_ffi
from tvm import relax

def use(library):
    vm = relax.VirtualMachine(tvm_ffi.load_module(library, keep_module_alive=False), tvm.cpu())
    vm["main"](tvm.runtime.tensor(np.ones(4, "float32")))
    return vm

use(sys.argv[1])
gc.collect()
loaded = [path in open("/proc/self/maps").read() for path in sys.argv[1:]]
opened = tvm_ffi.get_global_func("relax_trace.recorder.open")
print(loaded, opened(), opened())
import relax_trace
use(sys.argv[2])
print(tvm_ffi.get_global_func("relax_trace.recorder.open")())
with relax_trace.record() as recording:
    vm = use(sys.argv[2])
trace = recording.trace
print([trace.names[i] for i in trace.name].count("add"), trace.losses == relax_trace.Losses())
"""


def test_recorders_inside_models(tmp_path: Path) -> None:
    """A model with the recorder inside stays loaded when TVM lets go of it; others stay quiet.

    The second model's, and relax_trace's own, find a recorder that has given out two numbers.
    """
    models = [tmp_path / f"{name}.so" for name in ("first", "second")]
    for model in models:
        addons = [relax_trace.recorder_object()]
        chain(3).export_library(str(model), addons=addons)
    printed = python(INSIDE, *models).splitlines()
    assert printed == ["[True, False] 1 2", "3", "3 True"]
    plain = tmp_path / "plain.so"
    chain(3).export_library(str(plain))
    unloaded = INSIDE.partition("opened =")[0] + "print(loaded)"
    assert python(unloaded, plain) == "[False]\n"


def test_the_command(tmp_path: Path) -> None:
    """One line says what was made and how to use it, or what is wrong."""
    command = [sys.executable, "-m", "relax_trace", "recorder", "--target", "aarch64-linux-musl"]
    for output, code, printed, error in [
        (
            *("recorder.so", 0),
            "wrote recorder.so, the recorder for aarch64; start the server there with python -m "
            "tvm.exec.rpc_server --load-library /full/path/to/recorder.so\n",
            "",
        ),
        ("no/where.so", 1, "", "relax-trace: error: no/where.so: No such file or directory\n"),
    ]:
        ended = subprocess.run(
            [*command, "-o", output],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": PYTHONPATH},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (ended.returncode, ended.stdout, ended.stderr) == (code, printed, error)
