"""Python imports this before a program of ``relax-trace run``, to have the program's VMs recorded.

Up to the program's own ``import tvm`` it loads nothing else of relax_trace, nor numpy: some of what
they load reads environment variables, which the program may set first.
"""

from __future__ import annotations

import atexit
import importlib
import importlib.util
import os
import sys
from contextlib import suppress
from types import ModuleType
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGE = os.path.dirname(HERE)
SHOWN = os.environ.pop("RELAX_TRACE_OUTPUT")
OUTPUT = os.path.abspath(SHOWN)  # now: the program may go to another folder

_process = os.getpid()
_recorded: list[Any] = []  # once TVM is imported: what ends the recording, and the recording


def _load(name: str, path: str) -> ModuleType:
    """Import a file by its place: the program's own folder may hold something of that name."""
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"can't import {path}", name=name, path=path)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _record(_: ModuleType) -> None:
    try:
        if "relax_trace" not in sys.modules:
            _load("relax_trace", os.path.join(PACKAGE, "__init__.py"))
        program = importlib.import_module("relax_trace.program")
        _recorded[:] = program.finish, importlib.import_module("relax_trace").record()
    except Exception as error:  # now, rather than at the end of a long run
        atexit.unregister(_finish)
        raise SystemExit(f"relax-trace: error: {error}") from error


def _finish() -> None:
    if os.getpid() != _process:  # a forked child: the trace is its parent's
        return
    if _recorded:
        finish, recording = _recorded
        finish(recording, OUTPUT, SHOWN, _say)
    else:
        _say("relax-trace: no Relax VM ran, so there is no trace")


def _say(text: str) -> None:
    """Print to the stderr that Python began with; to nobody where that is closed.

    Past Python's own buffer: what it can't write would stay there, and change the exit code.
    """
    stderr = sys.__stderr__
    if stderr is None:
        return
    with suppress(OSError, ValueError):
        stderr.flush()
        data = f"{text}\n".encode(stderr.encoding, "backslashreplace")
        with open(stderr.fileno(), "wb", closefd=False) as stream:
            stream.write(data)


def _hide() -> None:
    """Leave path and environment as if this file were not there, for the program's children too."""
    original = os.environ.pop("RELAX_TRACE_PYTHONPATH", None)
    if original is None:
        del os.environ["PYTHONPATH"]
    else:
        os.environ["PYTHONPATH"] = original
    sys.path.remove(HERE)
    sys.path_importer_cache.pop(HERE, None)


def _run_the_next() -> None:
    """Import the sitecustomize that Python would have found without this one, if there is any."""
    this = sys.modules.pop("sitecustomize")
    try:
        importlib.import_module("sitecustomize")
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        sys.modules.setdefault("sitecustomize", this)  # Python wants to find it after the import


_hide()
atexit.register(_finish)  # the first to be registered is the last to run
_load("_relax_trace_import_hook", os.path.join(PACKAGE, "import_hook.py")).after_import(
    "tvm", _record
)
_run_the_next()
