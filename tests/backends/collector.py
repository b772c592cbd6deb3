"""The OpenTelemetry Collector for a test: with a file behind it, or as collector-config/ says."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import service

CONFIGURATIONS = Path(__file__).parents[2] / "collector-config"


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
    grpc, http, health = service.free_ports(3)
    collector = Collector(grpc, http, folder / "received.json")
    configuration = {
        "extensions": {"health_check": {"endpoint": f"127.0.0.1:{health}"}},
        "receivers": {
            "otlp": {
                "protocols": {
                    "grpc": {"endpoint": f"127.0.0.1:{grpc}"},
                    "http": {"endpoint": f"127.0.0.1:{http}"},
                }
            }
        },
        "exporters": {"file": {"path": str(collector.file)}},
        "service": {
            "extensions": ["health_check"],
            "telemetry": {"metrics": {"level": "none"}},
            "pipelines": {"traces": {"receivers": ["otlp"], "exporters": ["file"]}},
        },
    }
    (folder / "collector.json").write_text(json.dumps(configuration))  # JSON is YAML, too
    command = [program, "--config", folder / "collector.json"]
    with service.running(command, folder / "collector", f"http://127.0.0.1:{health}"):
        yield collector


@dataclass(frozen=True)
class Configured:
    """Where a collector of collector-config/ listens."""

    grpc: int
    http: int
    metrics: int
    own_metrics: int


@contextmanager
def configured(
    program: Path, name: str, folder: Path, more: Sequence[str] = (), **environment: str
) -> Iterator[Configured]:
    """A collector that runs ``collector-config/NAME.yaml``, as it is but for variables.

    And for what stands in ``more``, further configurations that the collector merges into it.
    """
    health, *ports = service.free_ports(5)
    collector = Configured(*ports)
    environment = {
        "LISTEN_HEALTH": f"127.0.0.1:{health}",
        "LISTEN_GRPC": f"127.0.0.1:{collector.grpc}",
        "LISTEN_HTTP": f"127.0.0.1:{collector.http}",
        "LISTEN_METRICS": f"127.0.0.1:{collector.metrics}",
        "OWN_METRICS_PORT": str(collector.own_metrics),
        **environment,
    }
    command = [program, "--config", CONFIGURATIONS / f"{name}.yaml"]
    for one in more:
        command += ["--config", one]
    with service.running(command, folder / name, f"http://127.0.0.1:{health}", environment):
        yield collector
