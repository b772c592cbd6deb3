"""Find a C compiler for a target: a cross-compiler, the Android NDK's clang, or zig's."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..errors import RecorderError

_TRIPLE = re.compile(
    r"(?P<arch>\w+)-(?:(?:unknown|pc|none)-)?linux-(?P<abi>[a-z]\w*)(?:\.(?P<glibc>\d+\.\d+))?",
    re.ASCII,
)
_ALIASES = {"arm64": "aarch64", "amd64": "x86_64", "i386": "i686", "i586": "i686", "x86": "i686"}
# What the recorder needs and zig knows; other machines got their Linux later than that.
_OLDEST_GLIBC = {"x86_64": "2.17", "aarch64": "2.17", "arm": "2.17"}


@dataclass(frozen=True)
class Target:
    """A machine, as in ``aarch64-linux-gnu``, ``aarch64-linux-gnu.2.28``, ``…-android24``."""

    text: str  # as it was given
    arch: str
    abi: str
    glibc: str  # "2.28", or empty: none was asked for

    @property
    def triple(self) -> str:
        """In the spelling of Debian's cross-compilers."""
        return f"{self.arch}-linux-{self.abi}"

    @property
    def machine(self) -> str:
        """What ``uname -m`` says there; version 7 stands for all 32-bit ARMs."""
        return "armv7l" if self.arch == "arm" else self.arch


def parse(text: str) -> Target:
    """The target that a triple names; ``RecorderError`` where it is no Linux one."""
    found = _TRIPLE.fullmatch(text)
    if not found:
        raise RecorderError(
            f"{text!r} is no target that the recorder can be built for: name one of Linux or "
            "Android, such as aarch64-linux-gnu or aarch64-linux-android24"
        )
    arch, abi = found["arch"], found["abi"]
    arch = "arm" if re.match(r"arm(v|$)", arch) else _ALIASES.get(arch, arch)
    return Target(text, arch, abi, found["glibc"] or "")


def find(target: Target | None, cc: str | None) -> list[str]:
    """The beginning of a compiler's command: ``cc`` if given, else the first that is here.

    Without a target it builds for this machine. Raises ``RecorderError`` that says what to install.
    """
    if cc:
        command = shlex.split(cc)
        if not command or not shutil.which(command[0]):
            raise RecorderError(f"there is no C compiler {cc!r} on the PATH")
        return command
    if target is None:
        return _first(_native(), "install gcc")
    if target.abi.startswith("android"):
        return _first(_android(target), _android_advice(target), target.text)
    return _first(_cross(target), _advice(target), target.text)


def _first(commands: Iterator[list[str]], advice: str, target: str = "") -> list[str]:
    for command in commands:
        if shutil.which(command[0]):
            return command
    sought = f" for {target}" if target else ""
    raise RecorderError(f"no C compiler{sought} is here: {advice}, or name one (--cc, cc=…)")


def _native() -> Iterator[list[str]]:
    if os.environ.get("CC"):
        yield shlex.split(os.environ["CC"])
    yield from (["cc"], ["gcc"], ["clang"])
    yield from _zig()


def _cross(target: Target) -> Iterator[list[str]]:
    if not target.glibc:  # with a cross-compiler it is the one that it came with
        yield [f"{target.text}-gcc"]
        yield [f"{target.triple}-gcc"]
    arch = {"i686": "x86"}.get(target.arch, target.arch)
    glibc = target.glibc or (_OLDEST_GLIBC.get(arch) if target.abi.startswith("gnu") else None)
    version = f".{glibc}" if glibc else ""
    for zig in _zig():
        yield [*zig, "-target", f"{arch}-linux-{target.abi}{version}"]


def _zig() -> Iterator[list[str]]:
    if importlib.util.find_spec("ziglang"):
        yield [sys.executable, "-m", "ziglang", "cc"]
    yield ["zig", "cc"]


def _advice(target: Target) -> str:
    if target.glibc:
        return "pip install ziglang, which can build for that glibc"
    package = f"gcc-{target.triple}".replace("_", "-")
    return f"pip install ziglang, or install {target.triple}-gcc (Debian and Ubuntu: {package})"


def _ndk() -> str:
    return os.environ.get("ANDROID_NDK_HOME") or os.environ.get("ANDROID_NDK") or ""


def _android(target: Target) -> Iterator[list[str]]:
    arch = "armv7a" if target.arch == "arm" else target.arch
    name = f"{arch}-linux-{target.abi}-clang"
    for folder in sorted(Path(_ndk()).glob("toolchains/llvm/prebuilt/*/bin")) if _ndk() else []:
        yield [str(folder / name)]
    yield [name]


def _android_advice(target: Target) -> str:
    if not re.search(r"\d$", target.abi):
        return f"say Android's API level, too, as in {target.text}24"
    if not _ndk():
        return "install the Android NDK, and say where it is in ANDROID_NDK_HOME"
    return f"the Android NDK in {_ndk()} has none"
