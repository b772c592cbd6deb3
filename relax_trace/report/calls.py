"""Calls: what a report lists, as columns, and how equal calls are added up to rows."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..ragged import Index

if TYPE_CHECKING:
    from ..trace import Trace


@dataclass(frozen=True, eq=False)
class Calls:
    """The calls that a report lists, as columns of shape ``(n,)`` in the order of recording.

    ``duration`` is in ns. ``name`` indexes ``names``, ``shapes`` ``spellings``, ``device``
    ``devices``; no table holds a text twice, and an empty text stands for what isn't known.
    ``row`` is where each call stands in ``trace``; what else is known of it is looked up there.
    """

    duration: NDArray[np.int64]
    name: NDArray[np.int32]
    shapes: NDArray[np.int32]
    device: NDArray[np.int32]
    names: tuple[str, ...]
    spellings: tuple[str, ...]
    devices: tuple[str, ...]
    trace: Trace
    row: Index

    @classmethod
    def from_trace(cls, trace: Trace, row: Index, duration: NDArray[np.int64]) -> Calls:
        """The calls at ``row``; ``duration`` has one entry for each call of the trace."""
        names, name = merged(trace.names)
        spellings, shapes = merged(trace.signatures.texts)
        devices, device = merged([*map(str, trace.devices), ""])  # the last stands for number -1
        return cls(
            duration=duration[row],
            name=name[trace.name[row]],
            shapes=shapes[trace.signature[row]],
            device=device[trace.device[row]],
            names=names,
            spellings=tuple(spelling.decode() for spelling in spellings),
            devices=devices,
            trace=trace,
            row=row,
        )

    def __len__(self) -> int:
        return len(self.duration)

    @property
    def start(self) -> NDArray[np.int64]:
        """When each began, in ns since the Unix epoch."""
        return self.trace.start[self.row]

    @property
    def kind(self) -> NDArray[np.uint8]:
        """Kind of each, an index into :data:`relax_trace.trace.KINDS`."""
        return self.trace.kinds[self.trace.name[self.row]]

    @property
    def thread(self) -> NDArray[np.int32]:
        """Thread of each, an index into ``trace.threads``."""
        return self.trace.thread[self.row]

    @property
    def invocation(self) -> NDArray[np.int32]:
        """Invocation of each, a row of ``trace.invocations``."""
        return self.trace.invocation[self.row]

    def rows(self, aggregate: bool) -> Rows:
        """A row for each call, or for all calls of one name, argument shapes and device."""
        if not aggregate:
            return Rows(np.arange(len(self)), self.duration, np.ones(len(self), np.int64))
        key = self.name.astype(np.int64)
        key = key * len(self.spellings) + self.shapes
        key = key * len(self.devices) + self.device
        return added_up(*dense(key), self.duration)


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of a table, as columns of shape ``(r,)``: first call of each, duration in ns, count."""

    call: Index
    duration: NDArray[np.int64]
    count: NDArray[np.int64]

    def longest_first(self) -> Rows:
        """Sorted by duration; rows that took the same keep their order."""
        return self.take(np.argsort(-self.duration, kind="stable"))

    def take(self, rows: Index | slice) -> Rows:
        """These rows alone, in the order given."""
        return Rows(self.call[rows], self.duration[rows], self.count[rows])


_Text = TypeVar("_Text", bound=Hashable)


def merged(texts: Iterable[_Text]) -> tuple[tuple[_Text, ...], NDArray[np.int32]]:
    """The distinct texts, and for each text given its number among them."""
    numbers: dict[_Text, int] = {}
    index = [numbers.setdefault(text, len(numbers)) for text in texts]
    return tuple(numbers), np.array(index, np.int32)


def dense(key: Index) -> tuple[Index, int]:
    """Keys below a size that an array may have: as they are, or renumbered, which takes a sort."""
    size = int(key.max()) + 1 if len(key) else 0
    if size <= 4 * len(key) + 65536:
        return key, size
    distinct, index = np.unique(key, return_inverse=True)
    return index, len(distinct)


def added_up(key: Index, size: int, duration: NDArray[np.int64]) -> Rows:
    """One row for each distinct key, all of them below ``size``, in order of its first call."""
    count = np.bincount(key, minlength=size)
    total = np.zeros(size, np.int64)
    np.add.at(total, key, duration)
    first = np.zeros(size, np.int64)
    first[key[::-1]] = np.arange(len(key))[::-1]  # of several, the value assigned last stays
    used = np.flatnonzero(count)
    used = used[np.argsort(first[used])]
    return Rows(first[used], total[used], count[used])
