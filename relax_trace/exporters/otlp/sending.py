"""Send a whole Trace to an OTLP receiver: request by request, with retries of our own."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from ...errors import ExportError
from ...trace import Trace
from .connection import connect, deliver, uninstrumented

if TYPE_CHECKING:
    from .outcome import Outcome

PATIENCE = 30.0  # s

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
    transport = connect(endpoint, protocol)
    from . import batches, protobuf  # OpenTelemetry is there

    total = len(trace) + len(trace.invocations)
    sent = Sent(_harmless(transport.endpoint), 0, 0, 0, "")
    tell = progress or (lambda accepted, total, problem: None)
    with closing(transport), uninstrumented():
        tell(0, total, "")
        for request in batches.requests(trace, protobuf):
            told = sent.accepted
            outcome = deliver(
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


def _failure(sent: Sent, total: int, outcome: Outcome) -> str:
    hint = ""
    if outcome.problem.startswith("gRPC") and sent.accepted == 0:
        hint = "; a receiver that speaks HTTP needs --protocol http/protobuf"
        hint += ", one without TLS an endpoint that starts with http://"
    return (
        f"{sent.endpoint} took {sent.accepted:,} of {total:,} spans, then failed: "
        f"{outcome.problem}{hint}"
    )


def _harmless(endpoint: str) -> str:
    """The same without a password, or a token."""
    return re.sub(r"//[^/@]*@", "//", endpoint).partition("?")[0]
