"""Build the programs of this folder, play their scenarios, and read what was recorded."""

from __future__ import annotations

import os
import re
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tvm_ffi.libinfo

import relax_trace
from relax_trace.recorder.decode import Labels, to_trace
from relax_trace.recorder.dumps import Dumps
from relax_trace.recorder.records import Share
from relax_trace.trace import IMPLICIT, Trace

SOURCES = Path(__file__).parent
RECORDER = Path(relax_trace.__file__).parent / "recorder"
RECORDER_SOURCE = str(RECORDER / "recorder.c")
INCLUDE = tvm_ffi.libinfo.find_include_path()
COMPILER = ("gcc", "-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror")

# What each build looks for. Code that runs alone in the child of a fork can't be looked at by a
# sanitizer whose allocator another thread had locked at that moment.
SANITIZERS = {"memory": "address,undefined", "threads": "thread", "undefined": "undefined"}
OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=1:strict_string_checks=1:detect_stack_use_after_return=1",
    "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
    "TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1",
}


PROGRAMS = {
    "driver": (
        *("driver", "workers", "threads", "limits", "ring", "slots", "forks", "wishes"),
        *("contexts", "journal", "fake_vm", "fake_ffi", "guarded"),
    ),
    "fuzz_encoding": ("fuzz_encoding", "fake_ffi"),
}


@dataclass(frozen=True)
class Builds:
    """A folder for the programs, each built when it is first asked for."""

    folder: Path

    def program(self, name: str, sanitizer: str) -> Path:
        """The program, compiled without a warning."""
        made = self.folder / f"{name}-{sanitizer}"
        if not made.exists():
            compile_c(
                *("-g", "-fno-omit-frame-pointer", f"-fsanitize={SANITIZERS[sanitizer]}"),
                *("-fno-sanitize-recover=all", "-o", str(made)),
                *(str(SOURCES / f"{part}.c") for part in PROGRAMS[name]),
                "-lpthread",
            )
        return made


def compile_c(*arguments: str) -> None:
    """Compile as the recorder is compiled; a warning is an error."""
    ended = subprocess.run(
        [*COMPILER, "-isystem", INCLUDE, f"-I{RECORDER}", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stderr


def compilers_file(name: str) -> str:
    """Where the compiler has one of its own libraries."""
    found = subprocess.run(
        [COMPILER[0], f"-print-file-name={name}"], capture_output=True, text=True, check=True
    )
    return found.stdout.strip()


def run(program: Path, *arguments: str) -> str:
    """What the program printed. It has to end well, and no sanitizer to say a word."""
    ended = subprocess.run(
        [str(program), *arguments],
        env={**os.environ, **OPTIONS},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stderr
    return ended.stdout


@dataclass(frozen=True)
class Played:
    """What a scenario did, and what was recorded of it."""

    done: dict[str, int]
    dumps: Dumps
    trace: Trace

    @property
    def explicit(self) -> int:
        """Number of invocations recorded by the wrapper."""
        return int(np.count_nonzero((self.trace.invocations.flags & IMPLICIT) == 0))

    def invocations(self) -> Iterator[tuple[str, int, int, int]]:
        """Function, flags, error and number of calls of each invocation."""
        calls = self.trace.invocations
        counts = np.bincount(self.trace.invocation, minlength=len(calls)).tolist()
        functions = [self.trace.names[i] for i in calls.function.tolist()]
        yield from zip(functions, calls.flags.tolist(), calls.error.tolist(), counts, strict=True)


def ops_of(function: str) -> int:
    """How many calls a function of the stand-in VM makes: its name says it."""
    found = re.fullmatch(r"[cdnvtpk]*(\d+)_\d+", function)
    assert found, function
    return int(found[1])


def read_dumps(path: Path) -> Dumps:
    """All the dumps of a file, each behind its length."""
    raw, at, dumps = path.read_bytes(), 0, Dumps()
    while at < len(raw):
        (size,) = struct.unpack_from("<Q", raw, at)
        dumps.add(raw[at + 8 : at + 8 + size])
        at += 8 + size
    return dumps


def decoded(dumps: Dumps) -> Trace:
    """Everything in the dumps, of all VMs and at all times."""
    return to_trace(dumps, Share(), Labels({}, {}, (), "test", {}))


def play(builds: Builds, sanitizer: str, scenario: str, seed: int, folder: Path) -> Played:
    """Run a scenario and decode what was dumped."""
    out = folder / "dumps"
    told = run(builds.program("driver", sanitizer), scenario, str(seed), str(out))
    done = {key: int(value) for key, value in map(str.split, told.splitlines())}
    dumps = read_dumps(out)
    return Played(done, dumps, decoded(dumps))
