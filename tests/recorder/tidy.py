"""Run clang-tidy over the recorder and the programs that test it, as .clang-tidy says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import tvm_ffi.libinfo

ROOT = Path(__file__).parents[2]
# Headers are looked at through the files that include them.
SOURCES = [ROOT / "relax_trace/recorder/recorder.c", *sorted(Path(__file__).parent.glob("*.c"))]
FLAGS = ["-std=gnu11", "-Wall", "-Wextra", f"-I{ROOT}/relax_trace/recorder"]


def main() -> int:
    """Clang-tidy's exit code."""
    command = ["clang-tidy", "--quiet", *map(str, SOURCES), "--", *FLAGS]
    command += ["-isystem", tvm_ffi.libinfo.find_include_path()]
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
