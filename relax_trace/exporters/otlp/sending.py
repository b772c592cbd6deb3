"""Send a whole Trace to an OTLP receiver: request by request, with retries of our own."""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from ...errors import ExportError
from ...trace import Trace
from .packages import installed

if TYPE_CHECKING:
    from .outcome import Outcome, Transport

PROTOCOLS = ("grpc", "http/protobuf")
PATIENCE = 30.0  # s
_LONGEST_WAIT, _SHORTEST_WAIT = 16.0, 0.05  # s, between two attempts
_FILES = ("CERTIFICATE", "CLIENT_CERTIFICATE", "CLIENT_KEY")

# Called with spans accepted so far, all spans, and what went wrong if a request is tried again.
Progress: TypeAlias = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Sent:
    """What became of a Trace's spans. A receiver may reject some of a request, and says why."""

    endpoint: str
    accepted: int
    rejected: int
    requests: int
    message: str  # the receiver's, where it had one


def send(
    trace: Trace,
    *,
    endpoint: str | None = None,
    protocol: str | None = None,
    patience: float = PATIENCE,
    progress: Progress | None = None,
) -> Sent:
    """Send all spans of ``trace``; see :meth:`relax_trace.Trace.send`."""
    with installed():
        from . import batches, protobuf

        transport = _connect(endpoint, _chosen(protocol))
    total = len(trace) + len(trace.invocations)
    sent = Sent(_harmless(transport.endpoint), 0, 0, 0, "")
    tell = progress or (lambda accepted, total, problem: None)
    with closing(transport), _uninstrumented():
        tell(0, total, "")
        for request in batches.requests(trace, protobuf):
            told = sent.accepted
            outcome = _deliver(
                transport,
                request.body,
                patience,
                lambda problem, told=told: tell(told, total, problem),  # type: ignore[misc]
            )
            if outcome.problem:
                raise ExportError(_failure(sent, total, outcome))
            rejected = min(outcome.rejected, request.spans)
            sent = Sent(
                sent.endpoint,
                sent.accepted + request.spans - rejected,
                sent.rejected + rejected,
                sent.requests + 1,
                sent.message or outcome.message,
            )
            tell(sent.accepted, total, "")
    return sent


def _deliver(
    transport: Transport, body: bytes, patience: float, tell: Callable[[str], None]
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


def _failure(sent: Sent, total: int, outcome: Outcome) -> str:
    hint = ""
    if outcome.problem.startswith("gRPC") and sent.accepted == 0:
        hint = "; a receiver that speaks HTTP needs --protocol http/protobuf"
        hint += ", one without TLS an endpoint that starts with http://"
    return (
        f"{sent.endpoint} took {sent.accepted:,} of {total:,} spans, then failed: "
        f"{outcome.problem}{hint}"
    )


def _chosen(protocol: str | None) -> str:
    """The protocol, from the environment unless given. Raises ``ExportError`` for another one."""
    variables = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
    found = [os.environ[variable].strip() for variable in variables if os.environ.get(variable)]
    chosen = protocol or (found or PROTOCOLS)[0]
    if chosen not in PROTOCOLS:
        raise ExportError(f"no OTLP protocol {chosen!r} here; there are {', '.join(PROTOCOLS)}")
    return chosen


def _connect(endpoint: str | None, protocol: str) -> Transport:
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


def _harmless(endpoint: str) -> str:
    """The same without a password, or a token."""
    return re.sub(r"//[^/@]*@", "//", endpoint).partition("?")[0]


@contextmanager
def _uninstrumented() -> Iterator[None]:
    """Keep instrumentations of HTTP and gRPC from making spans of this, as the SDK does."""
    from opentelemetry import context

    token = context.attach(context.set_value(context._SUPPRESS_INSTRUMENTATION_KEY, True))
    try:
        yield
    finally:
        context.detach(token)
