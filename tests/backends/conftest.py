"""Real backends: their tests are skipped where Go or Prometheus is missing, unless required.

RELAX_TRACE_BACKENDS=require makes it an error that one is missing.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from backends import laptop as laptops
from backends import programs


def pytest_configure() -> None:
    """Fail early, rather than pass without these tests."""
    missing = programs.missing()
    if missing and os.environ.get("RELAX_TRACE_BACKENDS") == "require":
        raise pytest.UsageError(f"RELAX_TRACE_BACKENDS=require, but missing: {', '.join(missing)}")


def pytest_report_header() -> str:
    """Say whether real backends are tested."""
    missing = programs.missing()
    return (
        f"backends: tests skipped for want of {', '.join(missing)}" if missing else "backends: all"
    )


@pytest.fixture(scope="session")
def otelcol() -> Path:
    """The program of an OpenTelemetry Collector; building it the first time takes minutes."""
    return _built(programs.collector)


@pytest.fixture(scope="session")
def jaeger() -> Path:
    """The program of a Jaeger; building it the first time takes minutes."""
    return _built(programs.jaeger)


@pytest.fixture(scope="session")
def prometheus() -> Path:
    """The program of a Prometheus."""
    return _installed("prometheus")


@pytest.fixture(scope="session")
def promtool() -> Path:
    """The program that checks Prometheus' files."""
    return _installed("promtool")


@pytest.fixture(scope="session")
def laptop(
    otelcol: Path, jaeger: Path, prometheus: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[laptops.Laptop]:
    """Everything of a laptop, after an application has run there."""
    folder = tmp_path_factory.mktemp("laptop")
    with laptops.running(otelcol, jaeger, prometheus, folder) as running:
        yield running


def _built(build: Callable[[], Path]) -> Path:
    _installed("go")
    return build()


def _installed(program: str) -> Path:
    found = shutil.which(program)
    if not found:
        pytest.skip(f"there is no {programs.NEEDED[program]}")
    return Path(found)
