"""Build the recorder from its C source, for this machine or another: library or object file."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import tempfile
from pathlib import Path

from ..errors import RecorderError
from ..files import replacing
from . import elf, toolchains

SOURCES = Path(__file__).parent
# As in CMakeLists.txt. The TVMFFI* functions stay undefined: the process that loads it has them.
_COMPILE = ("-std=gnu11", "-O2", "-fPIC", "-fvisibility=hidden")
_LINK = ("-shared", "-s", "-Wl,-z,nodelete", "-pthread")


def build_library(
    path: str | os.PathLike[str], target: str | None = None, cc: str | None = None
) -> elf.Elf:
    """Write the recorder as a shared library, whole or not at all, and say what it needs.

    ``target`` and ``cc`` as for ``recorder_object``. Raises ``RecorderError``, ``OSError``.
    """
    wanted = toolchains.parse(target) if target else None
    content, built = _compiled([*_command(wanted, cc), *_LINK], wanted)
    with replacing(path) as stream:
        stream.write(content)
    return built


def recorder_object(target: str | None = None, cc: str | None = None) -> str:
    """The recorder as an object file, to be linked into a model's library.

    ``executable.export_library("model.so", addons=[relax_trace.recorder_object()])`` makes a
    library that brings the recorder along: an RPC server that loads it needs nothing else.

    ``target`` names the machine that will run it: ``aarch64-linux-gnu``, or ``…-gnu.2.28`` where
    its glibc matters, ``armv7-linux-gnueabihf``, ``aarch64-linux-musl``,
    ``aarch64-linux-android24``; without it, this machine. The compiler is ``cc``, a command that
    builds for that machine, arguments included; or else ``<target>-gcc``, the clang of the Android
    NDK at ``ANDROID_NDK_HOME``, or zig's, which ``pip install ziglang`` brings. Zig's builds for
    glibc 2.17 or newer unless told otherwise; a cross-compiler for the glibc that it has.

    The file is kept in the user's cache folder until source or command change; do not alter it.
    Raises ``RecorderError`` where there is no compiler for the target, or it fails.
    """
    wanted = toolchains.parse(target) if target else None
    command = [*_command(wanted, cc), "-c"]
    name = wanted.text if wanted else platform.machine()
    path = _cache() / f"recorder-{name}-{_digest(command)}.o"
    if not path.exists():
        content, _ = _compiled(command, wanted)
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as stream:
            stream.write(content)
    return str(path)


def _include() -> Path:
    import tvm_ffi.libinfo

    return Path(tvm_ffi.libinfo.find_include_path())


def _command(target: toolchains.Target | None, cc: str | None) -> list[str]:
    return [*toolchains.find(target, cc), *_COMPILE, f"-I{_include()}"]


def _compiled(command: list[str], target: toolchains.Target | None) -> tuple[bytes, elf.Elf]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "recorder")
        _run([*command, "-o", str(out), str(SOURCES / "recorder.c")], folder)
        if not out.exists():
            raise RecorderError(f"the compiler {command[0]!r} made no file")
        built = elf.read(out)
        if target and target.machine in elf.MACHINES and built.machine != target.machine:
            raise RecorderError(
                f"the compiler {command[0]!r} builds for {built.machine}, not for {target.text}"
            )
        return out.read_bytes(), built


def _run(command: list[str], folder: str) -> None:
    try:
        ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    except OSError as error:
        raise RecorderError(f"the compiler {command[0]!r} can't be run: {error.strerror}") from None
    if ended.returncode:
        lines = [line.strip() for line in ended.stderr.splitlines() if line.strip()]
        errors = [line for line in lines if "error" in line]
        said = (errors or lines or [f"exit code {ended.returncode}"])[0]
        raise RecorderError(f"the compiler {command[0]!r} failed: {said}")


def _digest(command: list[str]) -> str:
    """Of all that decides what is built, but for the compiler's version."""
    sum_of_all = hashlib.sha256(repr(command).encode())
    headers = [*(_include() / "tvm/ffi").glob("*.h"), *_include().glob("dlpack/*.h")]
    for source in sorted([*SOURCES.glob("*.[ch]"), *headers]):
        sum_of_all.update(source.name.encode() + b"\0" + source.read_bytes())
    return sum_of_all.hexdigest()[:16]


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "relax_trace")
