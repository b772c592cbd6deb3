"""Argument signatures: the words the recorder writes for a call's arguments, and what they say.

A signature is a sequence of 64-bit words. Each argument starts with a tag word,
``kind << 56 | count << 32 | info``:

========  =======================  ==========================  ==================================
kind      count                    info                        words that follow
========  =======================  ==========================  ================================
TENSOR    dimensions               dtype (DLPack)              device type << 32 | id, dimensions
SHAPE     dimensions               0                           dimensions
TUPLE     elements                 0                           the elements, each with its tag
INT       0                        0                           the value
DTYPE     0                        dtype (DLPack)              none
RESULT    0                        0                           none: what follows is the result
ELLIPSIS  0                        0                           none: something is left out here
OBJECT    0                        0                           none: an element without a shape
========  =======================  ==========================  ==================================

dtype is ``code | bits << 8 | lanes << 16``, as in DLPack's ``DLDataType``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from .errors import TraceFileError
from .ragged import Index, Part, Ragged, concatenate, decimal, group_by, offsets_of, scatter

TENSOR, SHAPE, TUPLE, INT, DTYPE, RESULT, ELLIPSIS, OBJECT = range(1, 9)
MAX_DEPTH = 16  # the recorder stops at 8 levels of tuples; more can only be damage

NO_DEVICE = -1

# DLDataTypeCode of DLPack 1.1; the names are those of tvm.DataType.
_DTYPES = {
    0: "int",
    1: "uint",
    2: "float",
    3: "handle",
    4: "bfloat",
    5: "complex",
    6: "bool",
    7: "float8_e3m4",
    8: "float8_e4m3",
    9: "float8_e4m3b11fnuz",
    10: "float8_e4m3fn",
    11: "float8_e4m3fnuz",
    12: "float8_e5m2",
    13: "float8_e5m2fnuz",
    14: "float8_e8m0fnu",
    15: "float6_e2m3fn",
    16: "float6_e3m2fn",
    17: "float4_e2m1fn",
}
_NAMED_WITH_BITS = {0, 1, 2, 4, 5}


def dtype_name(info: int) -> str:
    """``float32``, ``bool``, ``int8x4``: the name TVM gives to a DLPack dtype."""
    code, bits, lanes = info & 0xFF, info >> 8 & 0xFF, info >> 16
    name = _DTYPES.get(code, f"dtype{code}_")
    if code in _NAMED_WITH_BITS or code not in _DTYPES:
        name += str(bits)
    if (code, bits) == (1, 1):  # how TVM up to 0.20 spelt a boolean
        name = "bool"
    return name if lanes in (0, 1) else f"{name}x{lanes}"


@dataclass(frozen=True)
class _Item:
    """One argument of a structure; ``at`` is where its varying words start."""

    kind: int
    count: int
    text: str
    at: int
    device: int


_Structure = tuple[_Item, ...]


@dataclass(frozen=True)
class Signatures:
    """All signatures of a trace: number ``i`` is ``words[offsets[i]:offsets[i + 1]]``.

    Number 0 is the empty one, of a call without an argument worth encoding.
    """

    words: NDArray[np.uint64]
    offsets: Index

    @classmethod
    def from_lists(cls, signatures: list[list[int]]) -> Signatures:
        """Build from lists of words (number 0, the empty one, is added)."""
        words = [np.array(signature, np.uint64) for signature in ([], *signatures)]
        lengths = np.fromiter(map(len, words), np.int64, len(words))
        return cls(np.concatenate(words), offsets_of(lengths))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def texts(self) -> Ragged:
        """Classic spelling of each: ``float32[1, 64], (int64[], int64[])``, tensors and tuples.

        A call without a tensor shows what it has instead: ``shape[64], 0``.
        """
        return self._described.texts

    @property
    def has_tensor(self) -> NDArray[np.bool_]:
        """Whether a tensor is among the arguments, directly or inside a tuple."""
        return self._described.has_tensor

    @property
    def devices(self) -> Index:
        """``type << 32 | id`` of the last tensor argument (of the result if none), or -1."""
        return self._described.devices

    @property
    def destinations(self) -> Index:
        """``type << 32 | id`` of a result elsewhere than the arguments (a copy), or -1."""
        return self._described.destinations

    @cached_property
    def _described(self) -> _Described:
        return _describe(self)

    def take(self, numbers: Index) -> Signatures:
        """The signatures with these numbers, in this order."""
        lengths = np.diff(self.offsets)[numbers]
        offsets = offsets_of(lengths)
        at = np.arange(int(offsets[-1])) - np.repeat(offsets[:-1] - self.offsets[numbers], lengths)
        return Signatures(self.words[at], offsets)


@dataclass(frozen=True)
class _Described:
    texts: Ragged
    has_tensor: NDArray[np.bool_]
    devices: Index
    destinations: Index


def _describe(signatures: Signatures) -> _Described:
    """Render signatures a structure at a time: within one, only the numbers differ."""
    count = len(signatures)
    has_tensor = np.zeros(count, bool)
    devices = np.full(count, NO_DEVICE, np.int64)
    destinations = np.full(count, NO_DEVICE, np.int64)
    rendered: list[tuple[Index, Ragged]] = []
    for rows, structure in _structures(signatures):
        arguments, results = _split_results(structure)
        tensors = [item.device for item in arguments if item.kind == TENSOR]
        made = [item.device for item in results if item.kind == TENSOR]
        has_tensor[rows] = bool(tensors)
        if tensors or made:
            devices[rows] = (tensors or made)[-1]
        if tensors and made and made[-1] != tensors[-1]:
            destinations[rows] = made[-1]
        rendered.append((rows, concatenate(len(rows), _text_parts(signatures, rows, arguments))))
    return _Described(_reassemble(count, rendered), has_tensor, devices, destinations)


def _reassemble(count: int, rendered: list[tuple[Index, Ragged]]) -> Ragged:
    lengths = np.zeros(count, np.int64)
    for rows, texts in rendered:
        lengths[rows] = texts.lengths
    offsets = offsets_of(lengths)
    data = np.empty(int(offsets[-1]), np.uint8)
    for rows, texts in rendered:
        scatter(data, offsets[rows], texts)
    return Ragged(data, offsets)


def _structures(signatures: Signatures) -> Iterator[tuple[Index, _Structure]]:
    """Group signatures by everything but their numbers: kinds, counts, dtypes, devices."""
    lengths = np.diff(signatures.offsets)
    pending: list[tuple[Index, int, _Structure]] = [(np.arange(len(signatures)), 0, ())]
    while pending:
        rows, at, items = pending.pop()
        done = lengths[rows] == at
        if done.any():
            yield rows[done], items
        rows = rows[~done]
        if not len(rows):
            continue
        for group, tag, device in _split(signatures, lengths, rows, at):
            item, following = _item(tag, device, at)
            if (lengths[group] < following).any():
                raise TraceFileError(f"signature {group[0]} is damaged: it ends inside an argument")
            pending.append((group, following, (*items, item)))


def _split(
    signatures: Signatures, lengths: Index, rows: Index, at: int
) -> Iterator[tuple[Index, int, int]]:
    """Split ``rows`` by the tag at word ``at``, tensors by their device too: rows, tag, device."""
    for group in _split_at(signatures, rows, at):
        tag = int(signatures.words[signatures.offsets[group[0]] + at])
        if tag >> 56 != TENSOR:
            yield group, tag, NO_DEVICE
            continue
        if (lengths[group] < at + 2).any():
            raise TraceFileError(f"signature {group[0]} is damaged: it ends inside an argument")
        for part in _split_at(signatures, group, at + 1):
            device = int(signatures.words[signatures.offsets[part[0]] + at + 1])
            if device >> 63:
                raise TraceFileError(f"signature {part[0]} is damaged: no device has code {device}")
            yield part, tag, device


def _split_at(signatures: Signatures, rows: Index, at: int) -> list[Index]:
    values = signatures.words[signatures.offsets[rows] + at]
    if (values == values[0]).all():
        return [rows]
    order, bounds = group_by(values.view(np.int64))
    return [rows[order[a:b]] for a, b in pairwise(bounds)]


def _item(tag: int, device: int, at: int) -> tuple[_Item, int]:
    """The argument whose tag is word ``at``, and where the next one starts."""
    kind, count, info = tag >> 56, tag >> 32 & 0xFFFFFF, tag & 0xFFFFFFFF
    if kind == TENSOR:
        return _Item(kind, count, dtype_name(info), at + 2, device), at + 2 + count
    if kind == SHAPE:
        return _Item(kind, count, "shape", at + 1, NO_DEVICE), at + 1 + count
    if kind == INT:
        return _Item(kind, 1, "", at + 1, NO_DEVICE), at + 2
    if kind == DTYPE:
        return _Item(kind, 0, dtype_name(info), at + 1, NO_DEVICE), at + 1
    if kind in (TUPLE, RESULT, ELLIPSIS, OBJECT):
        text = "object" if kind == OBJECT else "..."
        return _Item(kind, count, text, at + 1, NO_DEVICE), at + 1
    raise TraceFileError(f"a signature is damaged: it holds an argument of unknown kind {kind}")


def _split_results(structure: _Structure) -> tuple[_Structure, _Structure]:
    for i, item in enumerate(structure):
        if item.kind == RESULT:
            return structure[:i], structure[i + 1 :]
    return structure, ()


def _text_parts(signatures: Signatures, rows: Index, arguments: _Structure) -> list[Part]:
    """The text of these signatures as columns: literals, and one column for each number."""
    rest = list(arguments)
    groups: list[tuple[bool, list[Part]]] = []
    while rest:
        tensor, parts = _next_argument(signatures, rows, rest, 0)
        groups.append((tensor, parts))
    if any(tensor for tensor, _ in groups):
        groups = [group for group in groups if group[0] or group[1] == [b"..."]]
    return _joined([parts for _, parts in groups])


def _joined(groups: list[list[Part]]) -> list[Part]:
    joined: list[Part] = []
    for i, parts in enumerate(groups):
        joined += ([b", "] if i else []) + parts
    return joined


def _next_argument(
    signatures: Signatures, rows: Index, rest: list[_Item], depth: int
) -> tuple[bool, list[Part]]:
    """Take an argument, a tuple with all its elements, off ``rest``: has it a tensor; its text."""
    item = rest.pop(0)
    if item.kind == TUPLE:
        if depth > MAX_DEPTH:
            raise TraceFileError(f"signature {rows[0]} is damaged: its tuples nest too deep")
        if rest and rest[0].kind == ELLIPSIS:
            rest.pop(0)
            return False, [f"({item.count} elements)".encode()]
        elements: list[tuple[bool, list[Part]]] = []
        while rest and len(elements) < item.count:
            elements.append(_next_argument(signatures, rows, rest, depth + 1))
        return any(tensor for tensor, _ in elements), [
            b"(",
            *_joined([parts for _, parts in elements]),
            b")",
        ]
    if item.kind not in (TENSOR, SHAPE, INT):
        return False, [item.text.encode()]
    columns: list[list[Part]] = [
        [decimal(signatures.words[signatures.offsets[rows] + item.at + i].view(np.int64))]
        for i in range(item.count)
    ]
    numbers = _joined(columns)
    if item.kind == INT:
        return False, numbers
    return item.kind == TENSOR, [f"{item.text}[".encode(), *numbers, b"]"]
