"""Spans as OTLP's JSON: hexadecimal ids, enums as integers, 64-bit integers as strings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ...ragged import Bytes, Index, Part, Ragged, concatenate, offsets_of
from ..templates import Number, distinct, json_bytes, numbers
from .spans import Ids, Spans, big_endian
from .templates import Template, Value

_HEX = np.frombuffer(b"".join(b"%02x" % byte for byte in range(256)), np.uint16)


def tail(template: Template) -> bytes:
    """All fields of a span that don't vary; its attributes are still open."""
    fields: dict[str, object] = {"name": template.name, "kind": 1, "flags": 0x100}
    if template.trace_state:
        fields["traceState"] = template.trace_state
    if template.dropped:
        fields["droppedAttributesCount"] = template.dropped
    status: dict[str, object] = {"code": 2} if template.failed else {}
    if template.message:
        status["message"] = template.message
    fields |= {"status": status, "attributes": _attributes(template.attributes)}
    return json_bytes(fields)[:-2]


def spans(columns: Spans, tails: Part, extras: Sequence[Part]) -> Ragged:
    """A span a row, each after a comma; ``extras`` are the attributes that vary."""
    some = columns.parents > 0
    parents = concatenate(
        int(some.sum()),
        [b'","parentSpanId":"', _hexadecimal(big_endian(columns.parents[some]))],
    )
    lengths = np.zeros(len(some), np.int64)
    lengths[some] = parents.lengths
    parts: list[Part] = [
        b",",
        tails,
        *extras,
        b'],"traceId":"',
        _hexadecimal(columns.trace_ids),
        b'","spanId":"',
        _hexadecimal(big_endian(columns.ids)),
        Ragged(parents.data, offsets_of(lengths)),
        b'","startTimeUnixNano":"',
        _decimal(columns.start),
        b'","endTimeUnixNano":"',
        _decimal(columns.end),
        b'"}',
    ]
    return concatenate(len(some), parts)


def _hexadecimal(values: Bytes) -> Bytes:
    return _HEX[values].view(np.uint8).reshape(len(values), 2 * values.shape[1])


def _decimal(values: Ids) -> Ragged:
    spelt = numbers(len(values), [Number(values)])
    digits = spelt != ord(" ")
    return Ragged(spelt[digits], offsets_of(digits.sum(axis=1)))


def strings(key: str, pieces: Ragged, first: Index) -> Ragged:
    """An attribute that holds strings, pieces ``first[i]`` to ``first[i + 1]``; none without.

    They are argument texts: plain ASCII, with nothing that JSON would escape.
    """
    follows = np.ones(len(pieces), np.int64)
    follows[first[:-1][np.diff(first) > 0]] = 0
    comma = (Ragged.from_bytes([b"", b","]), follows)
    values = concatenate(len(pieces), [comma, b'{"stringValue":"', pieces, b'"}'])
    some = (np.diff(first) > 0).astype(np.int64)
    opening = b',{"key":%s,"value":{"arrayValue":{"values":[' % json_bytes(key)
    parts: list[Part] = [
        (Ragged.from_bytes([b"", opening]), some),
        Ragged(values.data, values.offsets[first]),
        (Ragged.from_bytes([b"", b"]}}}"]), some),
    ]
    return concatenate(len(some), parts)


def integers(key: str, values: Index) -> Ragged:
    """An attribute that holds an integer, not a negative one."""
    opening = b',{"key":%s,"value":{"intValue":"' % json_bytes(key)
    return concatenate(len(values), [opening, _decimal(values.view(np.uint64)), b'"}}'])


def doubles(key: str, values: NDArray[np.float64]) -> Ragged:
    """An attribute that holds a double."""
    rows, index = distinct(values.view(np.int64))
    spelt = Ragged.from_bytes([json_bytes(value) for value in values[rows].tolist()])
    opening = b',{"key":%s,"value":{"doubleValue":' % json_bytes(key)
    return concatenate(len(values), [opening, (spelt, index), b"}}"])


def resource(attributes: Mapping[str, Value]) -> bytes:
    """A resource."""
    return json_bytes({"attributes": _attributes(attributes)})


def scope(name: str, version: str) -> bytes:
    """An instrumentation scope."""
    return json_bytes({"name": name} | ({"version": version} if version else {}))


def request(resource: bytes, scopes: Mapping[bytes, memoryview]) -> bytes:
    """A line: ``TracesData`` of the spans of some scopes, as the collector writes them."""
    parts: list[bytes | memoryview] = []
    for scope, spans in scopes.items():
        parts += [b"," if parts else b"", b'{"scope":%s,"spans":[' % scope, spans[1:], b"]}"]
    opening = b'{"resourceSpans":[{"resource":%s,"scopeSpans":[' % resource
    return b"".join([opening, *parts, b"]}]}\n"])


def _attributes(attributes: Mapping[str, Value]) -> list[object]:
    return [{"key": key, "value": _value(value)} for key, value in attributes.items()]


def _value(value: Value) -> dict[str, object]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, str):
        return {"stringValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    return {"arrayValue": {"values": [*map(_value, value)]}}
