"""Become a Python program whose Relax VMs are recorded: the same process, a new interpreter.

It is ``python`` itself that runs the program, so that everything is as without us. The recording is
brought in by ``relax_trace/startup/sitecustomize.py``, which Python finds through ``PYTHONPATH``.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from ..errors import ModelError, RelaxTraceError

STARTUP = str(Path(__file__).parents[1] / "startup")
SUFFIXES = ("", ".py", ".pyc", ".pyz", ".zip")


def check_program(file: str) -> None:
    """Raise ``ModelError`` for a file that is no Python program by its name."""
    if Path(file).suffix.lower() not in SUFFIXES and not Path(file).is_dir():
        raise ModelError(
            f"{file} is neither an ONNX model (.onnx), nor a library (.so), "
            "nor a Python program (.py)"
        )


def become_program(program: Sequence[str], output: str) -> NoReturn:
    """Run ``python PROGRAM…`` in the place of this process; its trace goes to ``output``.

    Raises ``RelaxTraceError`` where Python is told to look at no ``PYTHONPATH``.
    """
    if sys.flags.ignore_environment or sys.flags.no_site:
        raise RelaxTraceError(
            "a program can't be recorded under python -I, -E or -S, which keep out what records it"
        )
    environment = {**os.environ, "RELAX_TRACE_OUTPUT": output, "PYTHONPATH": STARTUP}
    original = os.environ.get("PYTHONPATH")
    if original is not None:
        environment["RELAX_TRACE_PYTHONPATH"] = original
        environment["PYTHONPATH"] += os.pathsep + original if original else ""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, [sys.executable, *_interpreter_options(), *program], environment)


def _interpreter_options() -> list[str]:
    """What ``python`` was given for itself, as in ``python -X dev -m relax_trace``."""
    ours = len(sys.orig_argv) - len(sys.argv)  # where the script's path stands, or the module
    options = sys.orig_argv[1:ours]
    if options and re.fullmatch("-[A-Za-z]*m", options[-1]):
        options[-1] = options[-1][:-1]
    return [option for option in options if option != "-"]
