"""Find the recorder behind an RPC session, or bring it there."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ..errors import LostError, RecorderError
from ..recorder.native import LIBRARY, Native, load, native_of

_VARIABLE = "RELAX_TRACE_RECORDERS"


def native_behind(session: Any, name: str) -> Native:
    """The recorder in the process that a session leads to: it is there, or it is uploaded.

    Raises ``RecorderError`` where neither succeeds, or versions differ.
    """
    load()  # for rpc.LocalSession, which leads here

    def find(function: str) -> Callable[..., Any]:
        try:
            return _guarded(session.get_function(function), name)
        except AttributeError:
            raise
        except Exception as error:
            raise _lost(name, error) from error

    try:
        return native_of(find, f"of {name}")
    except AttributeError:  # TVM's word for a function that isn't there
        _upload(session, name)
        return native_of(find, f"of {name}")


def _guarded(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """The function; where it can't be called, ``LostError`` says so in one line."""

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        try:
            return function(*args)
        except Exception as error:
            raise _lost(name, error) from error

    return call


def _lost(name: str, error: Exception) -> LostError:
    said = str(error).strip().splitlines()
    return LostError(f"the recorder of {name} can't be reached: {said[-1] if said else error!r}")


def _upload(session: Any, name: str) -> None:
    refused = []
    for number, library in enumerate(_libraries()):
        problem = _try(session, library, f"{number}-{library.name}")
        if not problem:
            return
        refused.append(f"{library.name}: {problem}")
    raise RecorderError(
        f"the server {name} has no recorder, and took none of those here ({'; '.join(refused)}). "
        f"Make one for {_machine(session)} with `relax-trace recorder --target TRIPLE -o FILE`, "
        f"and start the server with `--load-library FILE`, or name FILE in {_VARIABLE}"
    )


def _try(session: Any, library: Path, name: str) -> str:
    """Upload and load it; what is wrong if it can't be loaded: another machine's, as a rule."""
    try:
        session.upload(bytearray(library.read_bytes()), name)  # of a path it leaves the file open
        session.load_module(name)
    except Exception as error:
        return str(error).strip().splitlines()[-1]
    return ""


def _libraries() -> Iterator[Path]:
    """Recorders at hand: those that the environment names, then this machine's own."""
    for path in os.environ.get(_VARIABLE, "").split(os.pathsep):
        if path:
            yield Path(path)
    yield LIBRARY


def _machine(session: Any) -> str:
    """What the server says of its machine, if it has LLVM; else what can be said."""
    try:
        return str(session.get_function("target.llvm_get_system_triple")())
    except Exception:
        return "its machine"
