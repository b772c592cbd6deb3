"""Report: the calls of a trace, listed and added up as in TVM's classic per-op table."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..ragged import Index
from .self_time import self_time

if TYPE_CHECKING:
    from ..trace import Trace


@dataclass(frozen=True, eq=False)
class Calls:
    """The calls that a report lists, as columns of shape ``(n,)`` in the order of recording.

    ``duration`` is in ns. ``name`` indexes ``names``, ``shapes`` ``spellings``, ``device``
    ``devices``; no table holds a text twice, and an empty text stands for what isn't known.
    """

    duration: NDArray[np.int64]
    name: NDArray[np.int32]
    shapes: NDArray[np.int32]
    device: NDArray[np.int32]
    names: tuple[str, ...]
    spellings: tuple[str, ...]
    devices: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.duration)

    def rows(self, aggregate: bool) -> Rows:
        """A row for each call, or for all calls of one name, argument shapes and device."""
        if not aggregate:
            return Rows(np.arange(len(self)), self.duration, np.ones(len(self), np.int64))
        key = self.name.astype(np.int64)
        key = key * len(self.spellings) + self.shapes
        key = key * len(self.devices) + self.device
        return _added_up(key, self.duration)


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of a table, as columns of shape ``(r,)``: first call of each, duration in ns, count."""

    call: Index
    duration: NDArray[np.int64]
    count: NDArray[np.int64]

    def longest_first(self) -> Rows:
        """Sorted by duration; rows that took the same keep their order."""
        order = np.argsort(-self.duration, kind="stable")
        return Rows(self.call[order], self.duration[order], self.count[order])


@dataclass(frozen=True)
class Total:
    """What the invocations that used a device took together, in ns, and how many they were."""

    device: str
    duration: int
    count: int


@dataclass(frozen=True, eq=False, repr=False)
class Report:
    """TVM's classic per-op report; printing it shows the table.

    ``configuration`` are the lines below the table.
    """

    calls: Calls
    totals: tuple[Total, ...]
    configuration: dict[str, str]

    @classmethod
    def from_trace(
        cls,
        trace: Trace,
        *,
        calls: Literal["tensors", "all"] = "tensors",
        inclusive: bool = False,
    ) -> Report:
        """Report on ``trace``.

        ``calls``: ``"tensors"`` lists the calls with a tensor among their arguments, ``"all"``
        every call. A call's duration is the time it spent itself, or with ``inclusive=True`` also
        that of the calls it made. Raises ``ValueError`` for another value of ``calls``.
        """
        if calls not in ("tensors", "all"):
            raise ValueError(f'calls must be "tensors" or "all", not {calls!r}')
        listed = _with_tensor(trace) if calls == "tensors" else np.arange(len(trace))
        duration = trace.duration if inclusive else self_time(trace)
        configuration = {**trace.configuration, **_caveats(trace, listed)}
        return cls(_calls(trace, listed, duration), _totals(trace, listed), configuration)

    @property
    def longest_total(self) -> int:
        """The largest total, in ns: 100 percent."""
        return max((total.duration for total in self.totals), default=0)

    def table(self, sort: bool = True, aggregate: bool = True, col_sums: bool = True) -> str:
        """The classic table, its numbers in the user's locale.

        ``sort``: longest duration first, otherwise in the order of recording. ``aggregate``: one
        row for all calls of one name, argument shapes and device. ``col_sums``: a row of sums.
        """
        from .formats import table

        return table(self, sort, aggregate, col_sums)

    def csv(self) -> str:
        """A line for each call below a line of headers, durations in microseconds."""
        from .formats import csv

        return csv(self)

    def json(self) -> str:
        """TVM's JSON: ``{"calls": […], "device_metrics": {…}, "configuration": {…}}``."""
        from .formats import json

        return json(self)

    def __str__(self) -> str:
        return self.table()

    def __repr__(self) -> str:
        totals = ", ".join(
            f"{total.duration / 1e3:,.2f} us on {total.device}" for total in self.totals
        )
        return (
            f"<Report: {len(self.calls):,} calls, total {totals or 0}; print it to see the table>"
        )


def _with_tensor(trace: Trace) -> Index:
    """The calls with a tensor among their arguments, as a kernel has even where these are lost."""
    from ..trace import KERNEL, SIGNATURE_LOST

    listed = trace.signatures.has_tensor[trace.signature]
    if trace.losses.signatures:
        listed |= (trace.flags & SIGNATURE_LOST != 0) & (trace.kind == KERNEL)
    return np.flatnonzero(listed)


def _calls(trace: Trace, listed: Index, duration: NDArray[np.int64]) -> Calls:
    names, name = _merged(trace.names)
    spellings, shapes = _merged(trace.signatures.texts)
    devices, device = _merged([*map(str, trace.devices), ""])  # the last stands for number -1
    return Calls(
        duration=duration[listed],
        name=name[trace.name[listed]],
        shapes=shapes[trace.signature[listed]],
        device=device[trace.device[listed]],
        names=names,
        spellings=tuple(spelling.decode() for spelling in spellings),
        devices=devices,
    )


_Text = TypeVar("_Text", bound=Hashable)


def _merged(texts: Iterable[_Text]) -> tuple[tuple[_Text, ...], NDArray[np.int32]]:
    """The distinct texts, and for each text given its number among them."""
    numbers: dict[_Text, int] = {}
    index = [numbers.setdefault(text, len(numbers)) for text in texts]
    return tuple(numbers), np.array(index, np.int32)


def _added_up(key: Index, duration: NDArray[np.int64]) -> Rows:
    """One row for each distinct key, in order of its first call."""
    key, size = _dense(key)
    count = np.bincount(key, minlength=size)
    total = np.zeros(size, np.int64)
    np.add.at(total, key, duration)
    first = np.zeros(size, np.int64)
    first[key[::-1]] = np.arange(len(key))[::-1]  # of several, the value assigned last stays
    used = np.flatnonzero(count)
    used = used[np.argsort(first[used])]
    return Rows(first[used], total[used], count[used])


def _dense(key: Index) -> tuple[Index, int]:
    """Keys below a size that an array may have: as they are, or renumbered, which takes a sort."""
    size = int(key.max()) + 1 if len(key) else 0
    if size <= 4 * len(key) + 65536:
        return key, size
    distinct, index = np.unique(key, return_inverse=True)
    return index, len(distinct)


def _totals(trace: Trace, listed: Index) -> tuple[Total, ...]:
    """A total for each device that a listed call ran on, over the outermost invocations."""
    width = len(trace.devices) + 1
    outermost = _outermost(trace.invocations.parent)
    used = _distinct(outermost[trace.invocation[listed]] * width + trace.device[listed] + 1)
    invocation, device = used // width, used % width - 1
    length = trace.invocations.end - trace.invocations.start
    return tuple(
        Total(str(trace.devices[number]), int(length[invocation[device == number]].sum()), n)
        for number, n in enumerate(np.bincount(device[device >= 0]).tolist())
        if n
    )


def _outermost(parent: NDArray[np.int32]) -> Index:
    """The outermost invocation around each; an invocation inside another is a part of it."""
    outer = np.where(parent < 0, np.arange(len(parent)), parent)
    while (outer[outer] != outer).any():
        outer = outer[outer]
    return outer


def _distinct(key: Index) -> Index:
    size = int(key.max()) + 1 if len(key) else 0
    if size > 4 * len(key) + 65536:
        return np.unique(key)
    seen = np.zeros(size, bool)
    seen[key] = True
    return np.flatnonzero(seen)


def _caveats(trace: Trace, listed: Index) -> dict[str, str]:
    """What a reader of the table has to know: what was lost, and times that are not a device's."""
    from ..trace import CPU, SYNCHRONIZED

    losses = {
        "Calls dropped": trace.losses.ops,
        "Invocations dropped": trace.losses.invocations,
        "Calls without argument shapes": trace.losses.signatures,
    }
    lines = {key: str(number) for key, number in losses.items() if number}
    asynchronous = np.array([*(device.type != CPU for device in trace.devices), False])
    if asynchronous.any():
        unsynchronized = trace.flags[listed] & SYNCHRONIZED == 0
        devices = np.unique(trace.device[listed][unsynchronized])
        named = ", ".join(str(trace.devices[i]) for i in devices[asynchronous[devices]])
        if named:
            lines["Timing"] = f"host (launch times, not run times, on {named})"
    return lines
