"""The direct road: op spans as OTLP from templates, sent beside the SDK's pipeline.

They are the spans that the SDK's road makes, in the same traces, of the same resource and scope,
at a fraction of its time; the application's span processors and exporters don't see them.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from opentelemetry.sdk.resources import Resource
from opentelemetry.trace import TracerProvider, get_tracer_provider

from ..errors import ExportError
from ..exporters.otlp import protobuf
from ..exporters.otlp.batches import Request, op_requests
from ..exporters.otlp.connection import connect, deliver, uninstrumented
from ..exporters.otlp.outcome import Transport
from ..exporters.otlp.resources import cleaned
from ..exporters.otlp.spans import Identity, first_id
from ..report.calls import merged
from ..trace import Thread, Trace
from .selection import Selection

_log = logging.getLogger("relax_trace")

_PATIENCE = 10.0  # s, for what fails: as the SDK's exporters have


class DirectRoad:
    """Sends op spans where ``OTEL_EXPORTER_OTLP_*`` says, as what ``provider`` makes spans of."""

    def __init__(self, provider: TracerProvider | None) -> None:
        self._provider = provider  # None: the global one, which may be set later
        self._transport: Transport | None = None
        self._complained = False

    def take(self, selection: Selection) -> int:
        """Send the spans; the number of those that did not arrive."""
        if not len(selection.trace):
            return 0
        resource = cleaned(self._resource())
        lost = 0
        with uninstrumented():
            for trace_state, part in by_trace_state(selection).items():
                trace, identity = spans_of(part)
                requests = op_requests(trace, protobuf, identity, resource, trace_state)
                lost += sum(map(self._send, requests))
        return lost

    def _send(self, request: Request) -> int:
        """How many of its spans did not arrive."""
        try:
            if self._transport is None:
                self._transport = connect()
            outcome = deliver(self._transport, request.body, _PATIENCE)
        except ExportError as error:
            self._complain(str(error))
            return request.spans
        if outcome.problem or outcome.rejected:
            self._complain(f"{self._transport.endpoint}: {outcome.problem or outcome.message}")
        return request.spans if outcome.problem else min(outcome.rejected, request.spans)

    def _resource(self) -> Mapping[str, Any]:
        resource = getattr(self._provider or get_tracer_provider(), "resource", None)
        attributes: Mapping[str, Any] = (resource or Resource.create()).attributes
        return attributes

    def _complain(self, problem: str) -> None:
        if not self._complained:
            self._complained = True
            _log.warning("op spans could not be sent: %s; this is said only once", problem)

    def after_fork(self) -> None:
        """In a child process: the parent's connection is the parent's."""
        self._transport = None


def by_trace_state(selection: Selection) -> dict[str, Selection]:
    """The selection apart by what vendors have in the trace context: one part, as a rule."""
    states = [one.invocation.span_context.trace_state.to_header() for one in selection.finished]
    if len(set(states)) == 1:
        return {states[0]: selection}
    return {
        state: selection.only([other == state for other in states])
        for state in dict.fromkeys(states)
    }


def spans_of(selection: Selection) -> tuple[Trace, Identity]:
    """The selected ops with what their spans say, and their ids, in the traces of the SDK's spans.

    Several invocations of the Trace may be one span: an evaluation runs a function many times.
    """
    trace, finished = selection.trace, selection.finished
    count = len(trace.invocations)
    whose = np.zeros(count, np.int32)  # which of `finished` each invocation belongs to
    for number, rows in enumerate(selection.rows):
        whose[trace.invocation[rows]] = number
    contexts = [one.invocation.span_context for one in finished]
    trace_ids = b"".join(context.trace_id.to_bytes(16, "big") for context in contexts)
    identity = Identity(
        np.frombuffer(trace_ids, np.uint8).reshape(-1, 16)[whose],
        np.array([context.span_id for context in contexts], np.uint64)[whose],
        np.zeros(count, np.uint64),
        first_id(),
    )
    pid = os.getpid()
    threads, thread = merged(Thread(pid, one.thread_id, one.thread_name) for one in finished)
    errors, error = merged(f"{one.invocation.error_type or ''}:" for one in finished)
    said = replace(
        trace,
        start=selection.start,
        end=selection.end,
        thread=thread[whose][trace.invocation],
        threads=threads,
        errors=errors,
        invocations=replace(trace.invocations, error=error[whose]),
    )
    return said, identity
