"""OpenTelemetry is optional: what is said where it is missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ...errors import ExportError

_NEEDED = ("opentelemetry", "google", "grpc", "requests")


@contextmanager
def installed() -> Iterator[None]:
    """Turn an import that fails inside into ``ExportError``: what to install."""
    try:
        yield
    except ImportError as error:
        if error.name is None or error.name.partition(".")[0] not in _NEEDED:
            raise
        missing = isinstance(error, ModuleNotFoundError)
        problem = f"no module {error.name}" if missing else str(error)
        raise ExportError(
            f"OTLP needs OpenTelemetry ({problem}): pip install 'relax-trace[otel]'"
        ) from error
