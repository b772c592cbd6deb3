"""Servers of TVM's RPC in processes of their own, for tests."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tvm import relax, rpc

SECONDS_TO_START = 60


class Server:
    """A running ``rpc_server``."""

    def __init__(self, process: subprocess.Popen[bytes], port: int) -> None:
        self.process = process
        self.port = port

    @property
    def name(self) -> str:
        """As relax_trace calls it."""
        return f"127.0.0.1:{self.port}"

    def connect(self, **options: Any) -> Any:
        """A session of its own."""
        return rpc.connect("127.0.0.1", self.port, **options)


@contextmanager
def server(*arguments: str) -> Iterator[Server]:
    """``python -m tvm.exec.rpc_server`` on a free port, stopped at the end."""
    ports = ("--port", "9200", "--port-end", "9999")
    with running("tvm.exec.rpc_server", *ports, *arguments) as (process, port):
        yield Server(process, port)


@contextmanager
def running(module: str, *arguments: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A server of TVM's, and the port that it says it listens on."""
    command = [sys.executable, "-m", module, "--host", "127.0.0.1", *arguments]
    with tempfile.NamedTemporaryFile() as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            yield process, _port(process, Path(log.name))
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _port(process: subprocess.Popen[bytes], log: Path) -> int:
    until = time.monotonic() + SECONDS_TO_START
    while time.monotonic() < until and process.poll() is None:
        found = re.search(r"bind to \S+:(\d+)", log.read_text())
        if found:
            return int(found[1])
        time.sleep(0.05)
    raise RuntimeError(f"{process.args!r} did not start:\n{log.read_text()}")


def remote_vm(session: Any, executable: relax.VMExecutable, folder: Path) -> Any:
    """The executable on a server's CPU."""
    library = folder / f"model{id(executable)}.so"
    if not library.exists():
        executable.export_library(str(library))
    session.upload(bytearray(library.read_bytes()), library.name)
    return relax.VirtualMachine(session.load_module(library.name), session.cpu())
