"""Output as templates times columns: what spans share is rendered once, their numbers in numpy."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..ragged import Bytes, Index, Ragged

LONGEST = 4096  # characters of a text that are shown; a hostile one would come again in every event


def shown(text: str) -> str:
    """``text``, or its beginning where it is longer than :data:`LONGEST` characters."""
    if len(text) <= LONGEST:
        return text
    return f"{text[:LONGEST]}... ({len(text):,} characters)"


def json_bytes(value: object) -> bytes:
    """``value`` as compact ASCII JSON that is safe inside a ``<script>`` element as well."""
    return json.dumps(value, separators=(",", ":")).replace("</", "<\\/").encode("ascii")


def shown_all(texts: Ragged) -> tuple[Ragged, Index]:
    """:func:`shown` of plain ASCII texts, as ``(table, index)``; costs nothing for short ones."""
    index = np.arange(len(texts))
    long = np.flatnonzero(texts.lengths > LONGEST)
    if not len(long):
        return texts, index
    others = Ragged.from_bytes([shown(texts[row].decode()).encode() for row in long.tolist()])
    index[long] = len(texts) + np.arange(len(long))
    offsets = np.concatenate([texts.offsets, texts.offsets[-1] + others.offsets[1:]])
    return Ragged(np.concatenate([texts.data, others.data]), offsets), index


def distinct(*columns: NDArray[np.integer[Any]]) -> tuple[Index, Index]:
    """Which combinations of values occur: ``(rows, index)``.

    ``rows`` is a row of each combination, ordered by value of the columns; ``index`` says for every
    row which combination it has. Linear where the values are dense, as indices of tables are.
    """
    index = np.zeros(len(columns[0]), np.int64)
    count = min(1, len(index))
    for column in columns if count else ():
        low = int(column.min())
        span = int(column.max()) - low + 1
        if span > 1:
            index, count = _dense(index * span + (column - low), count * span)
    rows = np.empty(count, np.int64)
    rows[index] = np.arange(len(index))
    return rows, index


def _dense(keys: Index, span: int) -> tuple[Index, int]:
    """Renumber ``keys``, from ``range(span)``, without gaps; and how many differ."""
    if span > 16 * len(keys) + 65536:
        values, index = np.unique(keys, return_inverse=True)
        return index.astype(np.int64), len(values)
    seen = np.zeros(span, bool)
    seen[keys] = True
    present = np.flatnonzero(seen)
    numbers = np.empty(span, np.int64)
    numbers[present] = np.arange(len(present))
    return numbers[keys], len(present)


@dataclass(frozen=True)
class Number:
    """A column of unsigned integers, shown in decimal, or in thousandths: ``1234`` as ``1.234``."""

    values: NDArray[np.uint64]
    thousandths: bool = False

    @property
    def groups(self) -> int:
        """How many groups of four digits stand before the point."""
        largest = int(self.values.max(initial=0)) // (1000 if self.thousandths else 1)
        return (len(str(largest)) + 3) // 4

    @property
    def width(self) -> int:
        """Width in characters, the same in every row."""
        return 4 * (self.groups + self.thousandths)


def numbers(count: int, parts: Sequence[bytes | Number]) -> Bytes:
    """``(count, width)`` characters: literals, and numbers right-aligned in spaces."""
    blank = [b" " * part.width if isinstance(part, Number) else part for part in parts]
    row = b"".join(blank)
    matrix = np.full(count, np.void(row)).view(np.uint8).reshape(count, len(row))
    at = 0
    for part, text in zip(parts, blank, strict=True):
        if count and isinstance(part, Number):
            _write_number(matrix, at, part)
        at += len(text)
    return matrix


def _write_number(matrix: Bytes, at: int, number: Number) -> None:
    """Write four characters at a time, from the last, each group out of a table."""
    rest = number.values
    at += number.width
    if number.thousandths:
        higher = rest // np.uint64(1000)
        at -= 4
        _write_four(matrix, at, _POINT[(rest - higher * np.uint64(1000)).view(np.int64)])
        rest = higher
    table = _LAST
    for _ in range(number.groups):
        higher = rest // np.uint64(10000)
        group = (rest - higher * np.uint64(10000)).view(np.int64)
        at -= 4
        _write_four(matrix, at, table[group + 10000 * (higher == 0)])
        rest, table = higher, _HIGHER


def _write_four(matrix: Bytes, at: int, characters: NDArray[np.uint32]) -> None:
    column = np.ndarray((len(matrix),), np.uint32, matrix, at, (matrix.shape[1],))
    column[:] = characters


def _table(texts: list[bytes]) -> NDArray[np.uint32]:
    return np.frombuffer(b"".join(texts), np.uint32)


# Four characters as one integer. Entry 10000 + n pads with spaces: nothing stands before it.
_POINT = _table([b".%03d" % n for n in range(1000)])
_LAST = _table([b"%04d" % n for n in range(10000)] + [b"%4d" % n for n in range(10000)])
_HIGHER = np.where(np.arange(20000) == 10000, _table([b"    "]), _LAST)
