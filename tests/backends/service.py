"""A program that serves on the loopback while a test lasts, and questions to it over HTTP."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

SECONDS_TO_START, SECONDS_TO_STOP, SECONDS_TO_ARRIVE = 60, 30, 60

Found = TypeVar("Found")

_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@contextmanager
def running(
    command: Sequence[str | Path],
    folder: Path,
    health: str,
    environment: Mapping[str, str] | None = None,
) -> Iterator[None]:
    """A program from the time that the URL ``health`` answers; ended as a system would end it.

    It works in ``folder``, and its log is a file there that has the folder's name.
    """
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / f"{folder.name}.log"
    with open(log, "w") as output:
        process = subprocess.Popen(
            [str(word) for word in command],
            cwd=folder,
            env={**os.environ, **(environment or {})},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        _wait_until_healthy(process, health, log)
        yield
    finally:
        process.terminate()
        try:
            process.wait(SECONDS_TO_STOP)
        finally:
            process.kill()
            process.wait()


def _wait_until_healthy(process: subprocess.Popen[bytes], health: str, log: Path) -> None:
    until = time.monotonic() + SECONDS_TO_START
    while True:
        try:
            get(health)
            return
        except OSError:
            if process.poll() is not None or time.monotonic() > until:
                said = log.read_text()[-4000:]
                raise RuntimeError(f"{log.stem} did not start:\n{said}") from None
        time.sleep(0.05)


def get(url: str, **parameters: Any) -> bytes:
    """What is there; ``OSError`` if nobody answers, or with an error."""
    query = f"?{urllib.parse.urlencode(parameters)}" if parameters else ""
    with _direct.open(url + query, timeout=10) as response:
        body = response.read()
        assert isinstance(body, bytes)
        return body


def get_json(url: str, **parameters: Any) -> Any:
    """The same, read as JSON."""
    return json.loads(get(url, **parameters))


def eventually(look: Callable[[], Found], enough: Callable[[Found], bool]) -> Found:
    """What ``look`` finds once that is ``enough``; what it found last if it never is."""
    until = time.monotonic() + SECONDS_TO_ARRIVE
    while True:
        found = look()
        if enough(found) or time.monotonic() > until:
            return found
        time.sleep(0.1)


def free_ports(count: int) -> list[int]:
    """Ports of the loopback that nobody listens on."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()
