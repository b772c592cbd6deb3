"""Reach a machine behind TVM's RPC, and load a model there."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ModelError
from .models import explained
from .quiet import captured_output

if TYPE_CHECKING:
    import tvm
    from tvm import relax


def connect(server: str | None, tracker: str | None, key: str) -> Any:
    """A session with the server at ``HOST:PORT``, or with one that the tracker there hands out.

    Raises ``ModelError`` where there is none.
    """
    from tvm import rpc

    if server and tracker:
        raise ModelError("--rpc and --tracker are two ways to one server: give one of them")
    host, port = _address(server or tracker or "")
    where = f"--tracker {tracker}" if tracker else f"--rpc {server}"
    with captured_output(), explained(f"{where} can't be reached, or has no server with this key"):
        if tracker:
            return rpc.connect_tracker(host, port).request(key)
        return rpc.connect(host, port, key)


def load(session: Any, library: str) -> tvm.runtime.Module:
    """A library that TVM exported, over there. Raises ``ModelError`` where it can't be loaded."""
    with captured_output(), explained(f"the server can't load {library}: is it for that machine?"):
        name = Path(library).name
        session.upload(bytearray(Path(library).read_bytes()), name)
        return session.load_module(name)


def load_compiled(session: Any, executable: relax.VMExecutable) -> tvm.runtime.Module:
    """The same of what was just compiled."""
    with tempfile.TemporaryDirectory() as folder:
        library = str(Path(folder, "model.so"))
        executable.export_library(library)
        return load(session, library)


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal():
        raise ModelError(f"an RPC address is HOST:PORT, not {text!r}")
    return host, int(port)
