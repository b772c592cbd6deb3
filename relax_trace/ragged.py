"""Many byte strings of different lengths as one array with offsets, and how to lay them out fast."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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


def scatter(out: Bytes, at: Index, pieces: Ragged, index: Index | None = None) -> None:
    """Write string ``index[i]`` of ``pieces`` to ``out`` from byte ``at[i]`` on, for every ``i``.

    Strings of one length are moved together as rows of a matrix, which numpy does with one
    memory copy a row: the cost depends on the number of strings, hardly on how many differ.
    """
    if index is None:
        index = np.arange(len(at))
    if not len(at):
        return
    lengths = pieces.lengths
    order, bounds = group_by(lengths[index])
    for first, last in zip(bounds[:-1], bounds[1:], strict=True):
        rows = order[first:last]
        width = int(lengths[index[rows[0]]])
        if width:
            _scatter_rows(out, at[rows], pieces, index[rows], width)


def _scatter_rows(out: Bytes, at: Index, pieces: Ragged, index: Index, width: int) -> None:
    source = np.lib.stride_tricks.sliding_window_view(pieces.data, width)
    target = np.lib.stride_tricks.sliding_window_view(out, width, writeable=True)
    target[at] = source[pieces.offsets[index]]


def group_by(keys: Index) -> tuple[Index, list[int]]:
    """Sort positions by key: ``(order, bounds)``, group ``g`` being ``order[bounds[g]:bounds[g + 1]]``."""
    if len(keys) and 0 <= keys.min() and keys.max() < 1 << 16:
        keys = keys.astype(np.uint16)  # numpy sorts 16-bit integers by radix: linear, and stable
    order = np.argsort(keys, kind="stable")
    ranked = keys[order]
    starts = np.flatnonzero(np.concatenate([[True], ranked[1:] != ranked[:-1]])) if len(keys) else []
    return order, [*map(int, starts), len(keys)]


Part: TypeAlias = bytes | Bytes | Ragged | tuple[Ragged, Index]


def concatenate(count: int, parts: Sequence[Part]) -> Ragged:
    """Join ``parts`` column-wise into ``count`` strings.

    A part is the same ``bytes`` for every row, a ``(count, width)`` byte matrix, a :class:`Ragged`
    of ``count`` strings, or ``(table, index)``: string ``index[i]`` of ``table`` for row ``i``.
    """
    columns = [_column(count, part) for part in parts]
    lengths = sum((table.lengths[index] for table, index in columns), np.zeros(count, np.int64))
    offsets = offsets_of(lengths)
    out = np.empty(int(offsets[-1]), np.uint8)
    at = offsets[:-1].copy()
    for table, index in columns:
        scatter(out, at, table, index)
        at += table.lengths[index]
    return Ragged(out, offsets)


def _column(count: int, part: Part) -> tuple[Ragged, Index]:
    if isinstance(part, tuple):
        return part
    if isinstance(part, bytes):
        return Ragged.from_bytes([part]), np.zeros(count, np.int64)
    if isinstance(part, Ragged):
        return part, np.arange(count)
    width = part.shape[1]
    return Ragged(part.reshape(-1), np.arange(count + 1, dtype=np.int64) * width), np.arange(count)


def decimal(values: NDArray[np.int64]) -> tuple[Ragged, Index]:
    """Decimal text of integers, as ``(table, index)``: each distinct value is rendered once."""
    distinct, index = np.unique(values, return_inverse=True)
    return Ragged.from_bytes([b"%d" % value for value in distinct.tolist()]), index.astype(np.int64)
