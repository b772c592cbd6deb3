"""A connection to an OTLP receiver, and requests delivered over it, with retries of our own."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ...errors import ExportError
from .packages import installed

if TYPE_CHECKING:
    from .outcome import Outcome, Transport

PROTOCOLS = ("grpc", "http/protobuf")
_LONGEST_WAIT, _SHORTEST_WAIT = 16.0, 0.05  # s, between two attempts
_FILES = ("CERTIFICATE", "CLIENT_CERTIFICATE", "CLIENT_KEY")


def connect(endpoint: str | None = None, protocol: str | None = None) -> Transport:
    """Connect to ``endpoint`` by ``protocol``; as ``OTEL_EXPORTER_OTLP_*`` says without them.

    Raises ``ExportError`` for settings that are of no use, or without OpenTelemetry.
    """
    with installed():
        return _transport(endpoint, _chosen(protocol))


def deliver(
    transport: Transport,
    body: bytes,
    patience: float,
    tell: Callable[[str], object] = lambda problem: None,
) -> Outcome:
    """Try until it is accepted, can't be, or ``patience`` seconds have passed since it failed."""
    outcome = transport.attempt(body)
    until = time.monotonic() + patience
    backoff = 1.0
    while outcome.problem and outcome.retry:
        # Not all at the same moment: the receiver may be overloaded.
        wait = backoff * random.uniform(0.8, 1.2) if outcome.wait is None else outcome.wait
        wait = max(wait, _SHORTEST_WAIT)
        if time.monotonic() + wait > until:
            break
        tell(outcome.problem)
        time.sleep(wait)
        backoff = min(2 * backoff, _LONGEST_WAIT)
        outcome = transport.attempt(body)
    return outcome


@contextmanager
def uninstrumented() -> Iterator[None]:
    """Keep instrumentations of HTTP and gRPC from making spans of this, as the SDK does."""
    from opentelemetry import context

    token = context.attach(context.set_value(context._SUPPRESS_INSTRUMENTATION_KEY, True))
    try:
        yield
    finally:
        context.detach(token)


def _chosen(protocol: str | None) -> str:
    """The protocol, from the environment unless given. Raises ``ExportError`` for another one."""
    variables = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
    found = [os.environ[variable].strip() for variable in variables if os.environ.get(variable)]
    chosen = protocol or (found or PROTOCOLS)[0]
    if chosen not in PROTOCOLS:
        raise ExportError(f"no OTLP protocol {chosen!r} here; there are {', '.join(PROTOCOLS)}")
    return chosen


def _transport(endpoint: str | None, protocol: str) -> Transport:
    """The exporters' own settings, their mistakes as ``ExportError``."""
    for kind in ("", "TRACES_"):
        for file in _FILES:
            variable = f"OTEL_EXPORTER_OTLP_{kind}{file}"
            path = os.environ.get(variable)
            if path and not os.path.isfile(path):  # the exporters go on without it
                raise ExportError(f"{variable} is {path!r}, where there is no file")
    try:
        if protocol == "grpc":
            from .over_grpc import GrpcTransport

            return GrpcTransport(endpoint)
        from .over_http import HttpTransport

        return HttpTransport(endpoint)
    except ImportError:
        raise
    except Exception as error:  # of several kinds, for values that they can't read
        raise ExportError(f"the OTEL_EXPORTER_OTLP_* settings are of no use: {error}") from error
