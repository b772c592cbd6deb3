"""Programs for other machines, compiled by zig and run under QEMU's user-mode emulation.

Left out where QEMU is missing, unless RELAX_TRACE_BACKENDS=require.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from recorder.play import INCLUDE, PROGRAMS, RECORDER, SOURCES, Played, played_by

ZIG = (sys.executable, "-m", "ziglang", "cc")
# Statically with musl, so that a program needs no other file there.
TARGETS = {arch: f"{arch}-linux-musl" for arch in ("x86_64", "aarch64")}
TARGETS["arm"] = "arm-linux-musleabihf"


def require(*programs: str) -> None:
    """Leave the test out where a program is missing; fail it where that is not allowed."""
    missing = [program for program in programs if not shutil.which(program)]
    if missing and os.environ.get("RELAX_TRACE_BACKENDS") == "require":
        pytest.fail(f"RELAX_TRACE_BACKENDS=require, but there is no {', '.join(missing)}")
    if missing:
        pytest.skip(f"no {', '.join(missing)} (Debian and Ubuntu: apt-get install qemu-user)")


@dataclass(frozen=True)
class Machine:
    """One that the driver is built for, in a folder of its own."""

    arch: str  # of TARGETS
    folder: Path

    def play(self, scenario: str, seed: int) -> Played:
        """Run a scenario there, as ``recorder.play.play`` does here."""
        emulator = [] if self.arch == platform.machine() else [f"qemu-{self.arch}"]
        require(*emulator)
        return played_by([*emulator, str(self._driver())], scenario, seed, self.folder / "dumps")

    def _driver(self) -> Path:
        made = self.folder / "driver"
        if not made.exists():
            command = [
                *ZIG,
                "-target",
                TARGETS[self.arch],
                "-static",
                "-std=gnu11",
                "-O1",
                "-pthread",
            ]
            command += ["-Wall", "-Wextra", "-Werror", "-isystem", INCLUDE, f"-I{RECORDER}"]
            sources = [str(SOURCES / f"{part}.c") for part in PROGRAMS["driver"]]
            ended = subprocess.run(
                [*command, "-o", str(made), *sources], capture_output=True, text=True, check=False
            )
            assert ended.returncode == 0, ended.stderr
        return made
