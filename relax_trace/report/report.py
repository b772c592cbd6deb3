"""Report: the calls of a trace, listed and added up as in TVM's classic per-op table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from ..ragged import Index
from .calls import Calls
from .self_time import self_time

if TYPE_CHECKING:
    from pandas import DataFrame

    from ..trace import Trace
    from .statistics import By, Statistics


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
        return cls(Calls.from_trace(trace, listed, duration), _totals(trace, listed), configuration)

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

    def statistics(self, by: By = "name") -> Statistics:
        """Count, total, percent, min, median, p95, max, mean and deviation of the calls by group.

        ``by``: ``"name"``; ``"shapes"``, name and argument shapes; ``"kind"``; ``"device"``;
        ``"invocation"``, a group for each, as ``main #3``, where 3 is its row in
        ``trace.invocations``; ``"thread"``; ``"vm"``. Raises ``ValueError`` for anything else.
        """
        from .statistics import statistics

        return statistics(self, by)

    def to_pandas(self) -> DataFrame:
        """A ``pandas.DataFrame`` with a row for each call, in the order of recording.

        Columns: ``name``, ``kind``, ``device``, ``shapes``, ``function`` (the one invoked),
        ``vm`` and ``thread`` are categories; ``invocation`` is a row of ``trace.invocations``;
        ``start`` is in ns since the Unix epoch, ``duration`` in ns. Raises ``ImportError``
        without pandas.
        """
        from .frames import calls_frame

        return calls_frame(self.calls)

    def __str__(self) -> str:
        return self.table()

    def _repr_html_(self) -> str:
        """The table as a notebook shows it: its first 100 rows, sums, totals, configuration."""
        from .html import report_html

        return report_html(self)

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
        "Calls overwritten by newer ones": trace.losses.overwritten,
        "Calls without argument shapes": trace.losses.signatures,
        "Spans of the application dropped": trace.losses.spans,
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
