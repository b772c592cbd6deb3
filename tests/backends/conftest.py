"""Real backends, which need Go to be built: left out where there is none, unless they are required.

RELAX_TRACE_BACKENDS=require makes it an error that Go is missing.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

GO = shutil.which("go")
collect_ignore_glob = [] if GO else ["test_*.py"]


def pytest_configure() -> None:
    """Fail early, rather than pass without these tests."""
    if not GO and os.environ.get("RELAX_TRACE_BACKENDS") == "require":
        raise pytest.UsageError("RELAX_TRACE_BACKENDS=require, but there is no `go` on the PATH")


def pytest_report_header() -> str:
    """Say whether real backends are tested."""
    return f"backends: built with {GO}" if GO else "backends: left out, for there is no `go`"


@pytest.fixture(scope="session")
def otelcol() -> Path:
    """The program of an OpenTelemetry Collector; building it the first time takes minutes."""
    from backends.collector import built

    return built()
