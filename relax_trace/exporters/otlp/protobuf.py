"""Spans as protobuf: what they share through opentelemetry-proto, their columns in numpy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from opentelemetry.proto.common.v1.common_pb2 import (
    AnyValue,
    ArrayValue,
    InstrumentationScope,
    KeyValue,
)
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span, SpanFlags, Status

from ...ragged import Index, Part, Ragged, concatenate, offsets_of
from .spans import Spans, big_endian
from .templates import Template, Value
from .wire import fixed, header, little_endian, message, messages, varint, varints


def tail(template: Template) -> bytes:
    """All fields of a span that don't vary."""
    span: bytes = Span(
        name=template.name,
        trace_state=template.trace_state,
        kind=Span.SPAN_KIND_INTERNAL,
        # What the SDK sends of a span whose parent, if it has one, is in the same process.
        flags=SpanFlags.SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK,
        attributes=_attributes(template.attributes),
        dropped_attributes_count=template.dropped,
        status=Status(
            code=Status.STATUS_CODE_ERROR if template.failed else Status.STATUS_CODE_UNSET,
            message=template.message,
        ),
    ).SerializeToString()
    return span


def spans(columns: Spans, tails: Part, extras: Sequence[Part]) -> Ragged:
    """A span a row; ``extras`` are the attributes that vary."""
    fields = [
        (header(1, 16), columns.trace_ids),
        (header(2, 8), big_endian(columns.ids)),
        (varint(7 << 3 | 1), little_endian(columns.start)),
        (varint(8 << 3 | 1), little_endian(columns.end)),
    ]
    some = columns.parents > 0
    parents = (header(4, 8), big_endian(columns.parents[some]))
    if some.all():
        return messages(len(some), 2, [tails, *extras, fixed(*fields, parents)])
    optional = Ragged(fixed(parents).reshape(-1), offsets_of(10 * some.astype(np.int64)))
    return messages(len(some), 2, [tails, *extras, fixed(*fields), optional])


def strings(key: str, pieces: Ragged, first: Index) -> Ragged:
    """An attribute that holds strings, pieces ``first[i]`` to ``first[i + 1]``; none without."""
    count = len(pieces)
    values = messages(count, 1, [messages(count, 1, [pieces])])  # of the array; of each AnyValue
    rows = np.flatnonzero(np.diff(first))
    bounds = values.offsets[np.append(first[rows], first[-1])]
    found = _attribute(key, messages(len(rows), 5, [Ragged(values.data, bounds)]))
    lengths = np.zeros(len(first) - 1, np.int64)
    lengths[rows] = found.lengths
    return Ragged(found.data, offsets_of(lengths))


def integers(key: str, values: Index) -> Ragged:
    """An attribute that holds an integer, not a negative one."""
    return _attribute(key, concatenate(len(values), [varints(varint(3 << 3), values)]))


def doubles(key: str, values: NDArray[np.float64]) -> Ragged:
    """An attribute that holds a double."""
    return _attribute(
        key,
        Ragged(
            fixed((varint(4 << 3 | 1), little_endian(values))).reshape(-1),
            9 * np.arange(len(values) + 1),
        ),
    )


def _attribute(key: str, values: Ragged) -> Ragged:
    count = len(values)
    return messages(count, 9, [message(1, key.encode()), messages(count, 2, [values])])


def resource(attributes: Mapping[str, Value]) -> bytes:
    """A resource."""
    found: bytes = Resource(attributes=_attributes(attributes)).SerializeToString()
    return found


def scope(name: str, version: str) -> bytes:
    """An instrumentation scope."""
    found: bytes = InstrumentationScope(name=name, version=version).SerializeToString()
    return found


def request(resource: bytes, scopes: Mapping[bytes, memoryview]) -> bytes:
    """An ``ExportTraceServiceRequest`` of the spans of some scopes."""
    parts: list[bytes | memoryview] = [message(1, resource)]
    for scope, spans in scopes.items():
        first = message(1, scope)
        parts += [header(2, len(first) + len(spans)), first, spans]
    return b"".join([header(1, sum(map(len, parts))), *parts])  # copied once: they are large


def _attributes(attributes: Mapping[str, Value]) -> list[KeyValue]:
    return [KeyValue(key=key, value=_value(value)) for key, value in attributes.items()]


def _value(value: Value) -> AnyValue:
    if isinstance(value, bool):
        return AnyValue(bool_value=value)
    if isinstance(value, str):
        return AnyValue(string_value=value)
    if isinstance(value, int):
        return AnyValue(int_value=value)
    if isinstance(value, float):
        return AnyValue(double_value=value)
    return AnyValue(array_value=ArrayValue(values=map(_value, value)))
