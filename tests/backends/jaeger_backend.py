"""Jaeger with its storage on disk, run for a test, and what it says of the spans that it has."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import service
from .collector import CONFIGURATIONS


@dataclass(frozen=True)
class Jaeger:
    """Where a running one listens."""

    grpc: int
    api: int

    def spans(self, service_name: str, **tags: str) -> dict[str, dict[str, Any]]:
        """By their ids, the spans of all traces in which one of the service has these tags."""
        parameters = {"service": service_name, "limit": 1500}
        if tags:
            parameters["tags"] = json.dumps(tags)
        traces = service.get_json(f"http://127.0.0.1:{self.api}/api/traces", **parameters)["data"]
        spans = [span for trace in traces for span in trace["spans"]]
        found = {span["spanID"]: span for span in spans}
        assert len(found) == len(spans)
        return found

    def trace(self, trace_id: str) -> list[dict[str, Any]]:
        """``ResourceSpans`` of a trace as OTLP has them in JSON, from the newer API."""
        found = service.get_json(f"http://127.0.0.1:{self.api}/api/v3/traces/{trace_id}")
        resources = found["result"]["resourceSpans"]
        assert isinstance(resources, list)
        return resources


@contextmanager
def running(program: Path, folder: Path) -> Iterator[Jaeger]:
    """A Jaeger that runs ``collector-config/jaeger.yaml``, as it is but for variables."""
    health, query_grpc, *ports = service.free_ports(4)
    jaeger = Jaeger(*ports)
    environment = {
        "JAEGER_LISTEN_HEALTH": f"127.0.0.1:{health}",
        "JAEGER_LISTEN_QUERY_GRPC": f"127.0.0.1:{query_grpc}",
        "JAEGER_LISTEN_UI": f"127.0.0.1:{jaeger.api}",
        "JAEGER_LISTEN_GRPC": f"127.0.0.1:{jaeger.grpc}",
        "JAEGER_DATA": str(folder / "jaeger-data"),
    }
    command = [program, "--config", CONFIGURATIONS / "jaeger.yaml"]
    url = f"http://127.0.0.1:{health}/status"
    with service.running(command, folder / "jaeger", url, environment):
        yield jaeger
