"""Many byte strings of different lengths as one array with offsets, and joining them fast."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Bytes: TypeAlias = NDArray[np.uint8]
Index: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True)
class Ragged:
    """``len(self)`` byte strings; string ``i`` is ``data[offsets[i]:offsets[i + 1]]``."""

    data: Bytes
    offsets: Index

    @classmethod
    def from_bytes(cls, pieces: Sequence[bytes]) -> Ragged:
        """Pack ``pieces`` in their order."""
        lengths = np.fromiter(map(len, pieces), np.int64, len(pieces))
        return cls(np.frombuffer(b"".join(pieces), np.uint8), offsets_of(lengths))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, i: int) -> bytes:
        return self.data[self.offsets[i] : self.offsets[i + 1]].tobytes()

    def __iter__(self) -> Iterator[bytes]:
        view = self.data.tobytes()
        bounds = self.offsets.tolist()
        return (view[a:b] for a, b in zip(bounds[:-1], bounds[1:], strict=True))

    @property
    def lengths(self) -> Index:
        """Length of each string in bytes."""
        return np.diff(self.offsets)


def offsets_of(lengths: Index) -> Index:
    """``[0, l0, l0 + l1, …]``: where each piece starts when they are laid end to end."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])


def stacked(tables: Sequence[Ragged]) -> Ragged:
    """The strings of one table after those of the other."""
    lengths = np.concatenate([table.lengths for table in tables])
    return Ragged(np.concatenate([table.data for table in tables]), offsets_of(lengths))


def scatter(out: Bytes, at: Index, pieces: Ragged, index: Index | None = None) -> None:
    """Write string ``index[i]`` of ``pieces`` to ``out`` from byte ``at[i]`` on, for every ``i``.

    Strings of one length are moved together, with one memory copy each: the cost depends on the
    number of strings, hardly on how many differ.
    """
    starts, lengths = pieces.offsets[:-1], pieces.lengths
    if index is not None:
        starts, lengths = starts[index], lengths[index]
    order, bounds = group_by(lengths)
    for first, last in pairwise(bounds):
        rows = order[first:last]
        width = int(lengths[rows[0]])
        if width:
            _windows(out, width)[at[rows]] = _windows(pieces.data, width)[starts[rows]]


def _windows(data: Bytes, width: int) -> NDArray[np.void]:
    """Item ``i`` is the bytes from ``i`` to ``i + width``: numpy moves such an item as a whole."""
    windows: NDArray[np.void] = np.ndarray((len(data) - width + 1,), f"V{width}", data, 0, (1,))
    return windows


def group_by(keys: Index) -> tuple[Index, list[int]]:
    """Sort positions by key: ``(order, bounds)``.

    Group ``g`` is ``order[bounds[g]:bounds[g + 1]]``, in the order of the positions.
    """
    if not len(keys):
        return np.zeros(0, np.int64), [0]
    if 0 <= keys.min() and keys.max() < 1 << 16:
        keys = keys.astype(np.uint16)  # numpy sorts 16-bit integers by radix: linear, and stable
    order = np.argsort(keys, kind="stable")
    ranked = keys[order]
    starts = np.flatnonzero(ranked[1:] != ranked[:-1]) + 1
    return order, [0, *starts.tolist(), len(keys)]


Part: TypeAlias = bytes | Bytes | Ragged | tuple[Ragged, Index]


def concatenate(count: int, parts: Sequence[Part]) -> Ragged:
    """Join ``parts`` column-wise into ``count`` strings.

    A part is the same ``bytes`` for every row, a ``(count, width)`` byte matrix, a :class:`Ragged`
    of ``count`` strings, or ``(table, index)``: string ``index[i]`` of ``table`` for row ``i``.
    """
    parts = _merged(parts)
    lengths = [lengths_of(part) for part in parts]
    total = np.zeros(count, np.int64)
    for length in lengths:
        total += length
    offsets = offsets_of(total)
    out = np.empty(int(offsets[-1]), np.uint8)
    at = offsets[:-1].copy()
    for part, length in zip(parts, lengths, strict=True):
        _place(out, at, part)
        at += length
    return Ragged(out, offsets)


def _merged(parts: Sequence[Part]) -> list[Part]:
    """The same parts, with neighbours that are equal in all rows joined: fewer passes."""
    merged: list[Part] = []
    for part in parts:
        same = part[0][0] if isinstance(part, tuple) and len(part[0]) == 1 else part
        if isinstance(same, bytes) and merged and isinstance(merged[-1], bytes):
            merged[-1] += same
        else:
            merged.append(same)
    return merged


def lengths_of(part: Part) -> int | Index:
    """Bytes of a part in each row, or in all of them."""
    if isinstance(part, bytes):
        return len(part)
    if isinstance(part, tuple):
        return part[0].lengths[part[1]]
    return part.lengths if isinstance(part, Ragged) else part.shape[1]


def _place(out: Bytes, at: Index, part: Part) -> None:
    if isinstance(part, tuple):
        scatter(out, at, *part)
    elif isinstance(part, Ragged):
        scatter(out, at, part)
    elif isinstance(part, bytes):
        if part and len(at):
            _windows(out, len(part))[at] = np.frombuffer(part, f"V{len(part)}")
    elif part.size:
        _windows(out, part.shape[1])[at] = part.view(f"V{part.shape[1]}")[:, 0]


def decimal(values: NDArray[np.int64]) -> tuple[Ragged, Index]:
    """Decimal text of integers, as ``(table, index)``: each distinct value is rendered once."""
    if len(values) and (values == values[0]).all():  # as most dimensions of a model are
        return Ragged.from_bytes([b"%d" % values[0]]), np.zeros(len(values), np.int64)
    distinct, index = np.unique(values, return_inverse=True)
    return Ragged.from_bytes([b"%d" % value for value in distinct.tolist()]), index.astype(np.int64)
