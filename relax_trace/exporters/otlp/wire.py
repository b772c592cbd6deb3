"""Protobuf's wire format, a column at a time: tags, lengths, fixed-width numbers.

Fields of a message may stand in any order, and messages laid end to end are merged: so what was
serialized once can be followed by fields that vary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...ragged import Bytes, Index, Part, Ragged, concatenate, lengths_of
from ..templates import distinct


def varint(value: int) -> bytes:
    """``value``, not negative, in groups of seven bits."""
    groups = []
    while value > 127:
        groups.append(value & 127 | 128)
        value >>= 7
    return bytes([*groups, value])


def varints(before: bytes, values: Index) -> tuple[Ragged, Index]:
    """``before`` and :func:`varint` of a column: each distinct value is rendered once."""
    rows, index = distinct(values)
    return Ragged.from_bytes([before + varint(value) for value in values[rows].tolist()]), index


def header(tag: int, length: int) -> bytes:
    """What stands before a message or a string of ``length`` bytes."""
    return varint(tag << 3 | 2) + varint(length)


def message(tag: int, body: bytes) -> bytes:
    """A field that holds a message or a string."""
    return header(tag, len(body)) + body


def messages(count: int, tag: int, body: Sequence[Part]) -> Ragged:
    """:func:`message` of a column, whose body is in parts."""
    lengths = np.zeros(count, np.int64)
    for part in body:
        lengths += lengths_of(part)
    return concatenate(count, [varints(varint(tag << 3 | 2), lengths), *body])


def fixed(*fields: tuple[bytes, Bytes]) -> Bytes:
    """Fields of fixed width, side by side: what stands before each, and its bytes ``(n, w)``."""
    width = sum(len(before) + values.shape[1] for before, values in fields)
    matrix = np.empty((len(fields[0][1]), width), np.uint8)
    at = 0
    for before, values in fields:
        for byte in before:
            matrix[:, at] = byte
            at += 1
        matrix[:, at : at + values.shape[1]] = values
        at += values.shape[1]
    return matrix


def little_endian(values: NDArray[Any]) -> Bytes:
    """``(n, 8)``: numbers of 64 bits as protobuf writes them."""
    return values.astype(values.dtype.newbyteorder("<")).view(np.uint8).reshape(-1, 8)
