"""The example of a service: what the real Jaeger shows of its requests."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import relax_trace
from backends import service
from backends.laptop import Laptop

EXAMPLE = Path(__file__).parents[2] / "examples" / "speech_service.py"
REQUESTS = 3


def test_a_requests_trace_goes_from_the_handler_to_single_ops(
    laptop: Laptop, tmp_path: Path
) -> None:
    """Three traces alike: the request, in it the invocation, in that every op with its shapes."""
    ran = subprocess.run(
        [sys.executable, str(EXAMPLE)],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": str(Path(relax_trace.__file__).parents[1]),
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{laptop.collector.grpc}",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    lines = len(ran.stdout.split("\n\n")[1].splitlines())  # of the last trace, a line a span
    spans = service.eventually(
        lambda: laptop.jaeger.spans("speech-service"), lambda now: len(now) >= REQUESTS * lines
    )
    assert len(spans) == REQUESTS * lines
    parents = {
        key: next((r["spanID"] for r in span["references"]), None) for key, span in spans.items()
    }

    def path(key: str | None) -> tuple[str, ...]:
        return (*path(parents[key]), spans[key]["operationName"]) if key else ()

    paths = Counter(map(path, spans))
    assert set(paths.values()) <= {REQUESTS * n for n in range(1, lines)}
    assert paths["POST /speech",] == paths["POST /speech", "read sound"] == REQUESTS
    assert paths["POST /speech", "main"] == REQUESTS
    ops = {found[2]: count for found, count in paths.items() if len(found) == 3}
    assert sum(ops.values()) == REQUESTS * (lines - 3)
    assert sum(count for name, count in ops.items() if "conv1d" in name) == REQUESTS * 12
