"""A whole Trace as requests of bounded size, in either form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np

from ...otel import conventions as names
from ...ragged import Index, Ragged
from ...trace import Trace
from ..events import slices
from .encoder import Encoder
from .form import Form
from .resources import resource_of
from .spans import Identity, joined_identity
from .templates import Value

REQUEST_BYTES = 3_500_000  # a gRPC receiver takes 4 MiB unless told otherwise
_SLICE = 1 << 14  # events encoded at a time: as a rule they fit into one request
_NOTHING, _ONE = memoryview(b""), memoryview(b" ")


@dataclass(frozen=True)
class Request:
    """A request's bytes, and how many spans they hold."""

    body: bytes
    spans: int


@dataclass(frozen=True)
class _Envelope:
    """What every request says around its spans."""

    form: Form
    resource: bytes
    scopes: tuple[bytes, ...]

    @classmethod
    def of(cls, form: Form, resource: Mapping[str, Value]) -> _Envelope:
        scopes = [
            form.scope(name, names.scope_version()) for name in (names.SCOPE, names.OPS_SCOPE)
        ]
        return cls(form, form.resource(resource), tuple(scopes))

    def around(self, *spans: memoryview) -> bytes:
        """A request of the spans of invocations, and of ops."""
        scopes = {
            scope: body for scope, body in zip(self.scopes, spans, strict=True) if len(body) > 0
        }
        return self.form.request(self.resource, scopes)


def requests(
    trace: Trace, form: Form, *, limit: int = REQUEST_BYTES, identity: Identity | None = None
) -> Iterator[Request]:
    """All spans of ``trace`` in requests below ``limit`` bytes, in order of time.

    Texts are cut (``shown``), so that no span has more than some 100 kB; one that exceeds the limit
    by itself is sent alone.
    """
    envelope = _Envelope.of(form, resource_of(trace))
    encoder = Encoder.of(trace, form, identity or joined_identity(trace))
    for rows in slices(trace, _SLICE):
        calls, ops = encoder.invocations(rows.invocations), encoder.ops(rows.ops)
        yield from _packed(envelope, calls, ops, limit)


def op_requests(
    trace: Trace,
    form: Form,
    identity: Identity,
    resource: Mapping[str, Value],
    trace_state: str = "",
) -> Iterator[Request]:
    """The spans of its ops alone, for invocations that have theirs."""
    envelope = _Envelope.of(form, resource)
    encoder = Encoder.of(trace, form, identity, trace_state)
    none = Ragged.from_bytes([])
    for first in range(0, len(trace), _SLICE):
        ops = encoder.ops(slice(first, min(first + _SLICE, len(trace))))
        yield from _packed(envelope, none, ops, REQUEST_BYTES)


def _packed(envelope: _Envelope, calls: Ragged, ops: Ragged, limit: int) -> Iterator[Request]:
    room = limit - len(envelope.around(_ONE, _ONE)) - 32  # lengths in it may take more bytes
    for first, last in _cuts(calls, ops, room):
        bodies = (
            _bytes(calls, first, last),
            _bytes(ops, first - len(calls), last - len(calls)),
        )
        yield Request(envelope.around(*bodies), last - first)


def _cuts(calls: Ragged, ops: Ragged, room: int) -> Iterator[tuple[int, int]]:
    """Where to cut the spans of both, taken as one sequence."""
    ends: Index = np.concatenate([calls.offsets, calls.offsets[-1] + ops.offsets[1:]])
    first = 0
    while first < len(ends) - 1:
        last = int(np.searchsorted(ends, ends[first] + room, "right")) - 1
        last = max(last, first + 1)
        yield first, last
        first = last


def _bytes(spans: Ragged, first: int, last: int) -> memoryview:
    begin, end = (min(max(row, 0), len(spans)) for row in (first, last))
    return spans.data[spans.offsets[begin] : spans.offsets[end]].data


def write(trace: Trace, form: Form, stream: BinaryIO, *, limit: int = REQUEST_BYTES) -> None:
    """Write all requests to ``stream``, end to end; one without a span if there is none."""
    if not len(trace.invocations):
        stream.write(_Envelope.of(form, resource_of(trace)).around(_NOTHING, _NOTHING))
    for request in requests(trace, form, limit=limit):
        stream.write(request.body)
