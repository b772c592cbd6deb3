"""The OpenTelemetry Collector, built once from builder.yaml, and run for a test."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BUILDER = Path(__file__).with_name("builder.yaml")
RELEASE = "v0.161.0"  # as in that file
SECONDS_TO_START, SECONDS_TO_STOP = 30, 30


def built() -> Path:
    """The program, from the cache or built into it: with an empty one that takes minutes.

    The cache is RELAX_TRACE_CACHE, or relax_trace in the user's cache folder.
    """
    recipe = hashlib.sha256(BUILDER.read_bytes() + RELEASE.encode()).hexdigest()[:12]
    program = _cache() / f"otelcol-{recipe}"
    if not program.exists():
        program.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=program.parent) as folder:
            source = Path(folder, "source")
            builder = f"go.opentelemetry.io/collector/cmd/builder@{RELEASE}"
            _go(folder, "run", builder, "--config", str(BUILDER), "--skip-compilation")
            _go(source, "build", "-trimpath", "-ldflags=-s -w", "-o", "otelcol", ".")
            os.replace(source / "otelcol", program)
    return program


def _cache() -> Path:
    chosen = os.environ.get("RELAX_TRACE_CACHE")
    user = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(chosen) if chosen else Path(user, "relax_trace")


def _go(folder: str | Path, *arguments: str) -> None:
    ended = subprocess.run(
        [shutil.which("go") or "go", *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if ended.returncode:
        raise RuntimeError(f"go {' '.join(arguments)} failed:\n{ended.stdout[-4000:]}")


@dataclass(frozen=True)
class Collector:
    """Where a running one listens, and the file that it writes."""

    grpc: int
    http: int
    file: Path

    def resources(self) -> Iterator[dict[str, Any]]:
        """All that it wrote, once it has ended: ``ResourceSpans`` as it spells them in JSON."""
        for line in self.file.read_text().splitlines():
            yield from json.loads(line)["resourceSpans"]


@contextmanager
def running(program: Path, folder: Path) -> Iterator[Collector]:
    """A collector with its defaults that writes what it receives to a file, whole at the end."""
    collector = Collector(*_free_ports(2), folder / "received.json")
    configuration = {
        "receivers": {
            "otlp": {
                "protocols": {
                    "grpc": {"endpoint": f"127.0.0.1:{collector.grpc}"},
                    "http": {"endpoint": f"127.0.0.1:{collector.http}"},
                }
            }
        },
        "exporters": {"file": {"path": str(collector.file)}},
        "service": {
            "telemetry": {"metrics": {"level": "none"}},
            "pipelines": {"traces": {"receivers": ["otlp"], "exporters": ["file"]}},
        },
    }
    (folder / "collector.json").write_text(json.dumps(configuration))  # JSON is YAML, too
    with open(folder / "collector.log", "w") as log:
        process = subprocess.Popen(
            [program, "--config", folder / "collector.json"],
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        _wait_until_it_listens(process, (collector.grpc, collector.http), folder)
        yield collector
    finally:
        process.terminate()
        try:
            process.wait(SECONDS_TO_STOP)
        finally:
            process.kill()
            process.wait()


def _wait_until_it_listens(
    process: subprocess.Popen[bytes], ports: tuple[int, ...], folder: Path
) -> None:
    until = time.monotonic() + SECONDS_TO_START
    for port in ports:
        while True:
            with closing(socket.socket()) as client:
                if client.connect_ex(("127.0.0.1", port)) == 0:
                    break
            if process.poll() is not None or time.monotonic() > until:
                log = (folder / "collector.log").read_text()
                raise RuntimeError(f"the collector did not start:\n{log[-4000:]}")
            time.sleep(0.05)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()
