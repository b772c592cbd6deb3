"""Statistics: how the durations of a report's calls are spread, group by group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from ..ragged import Index
from .calls import Rows, added_up, dense
from .labels import labels
from .layout import Column, layout, layout_configuration, number_column
from .number_format import NumberFormat, user_number_format

if TYPE_CHECKING:
    from pandas import DataFrame

    from .report import Report

By: TypeAlias = Literal["name", "shapes", "kind", "device", "invocation", "thread", "vm"]

HEADERS = {
    "name": "Name",
    "shapes": "Argument Shapes",
    "kind": "Kind",
    "device": "Device",
    "invocation": "Invocation",
    "thread": "Thread",
    "vm": "VM",
}


@dataclass(frozen=True, eq=False, repr=False)
class Statistics:
    """Durations by group, as columns of shape ``(g,)``, longest total first; times are in ns.

    ``labels`` holds what names a group: one column of texts, as ``{"name": (…)}``, or for
    ``by="shapes"`` two. ``percent`` is of the longest Total of the report.

    ``median`` and ``p95`` are quantiles as numpy's default (``"linear"``) defines them: of ``n``
    calls in order of duration that at position ``q * (n - 1)``, counted from 0, interpolated
    between its neighbours. ``std`` is the standard deviation of a population (divided by ``n``):
    0 for a single call. ``configuration`` are the lines below the table.
    """

    by: By
    labels: dict[str, tuple[str, ...]]
    count: NDArray[np.int64]
    total: NDArray[np.int64]
    percent: NDArray[np.float64]
    min: NDArray[np.int64]
    median: NDArray[np.float64]
    p95: NDArray[np.float64]
    max: NDArray[np.int64]
    mean: NDArray[np.float64]
    std: NDArray[np.float64]
    configuration: dict[str, str]

    def __len__(self) -> int:
        """Number of groups."""
        return len(self.count)

    def __str__(self) -> str:
        numbers = user_number_format()
        table = layout(statistics_columns(self, numbers))
        return table + layout_configuration(self.configuration, numbers)

    def __repr__(self) -> str:
        return f"<Statistics: {len(self):,} groups by {self.by}; print it to see the table>"

    def to_pandas(self) -> DataFrame:
        """A ``pandas.DataFrame`` with a row for each group and the columns of this, in ns.

        Raises ``ImportError`` without pandas.
        """
        from .frames import statistics_frame

        return statistics_frame(self)

    def _repr_html_(self) -> str:
        """The table as a notebook shows it: its first 100 rows and the configuration."""
        from .html import statistics_html

        return statistics_html(self)


def statistics(report: Report, by: By) -> Statistics:
    """The calls of ``report`` by group; see :meth:`Report.statistics`."""
    if by not in get_args(By):
        raise ValueError(f"by must be one of {', '.join(get_args(By))}, not {by!r}")
    found = {
        what: labels(report.calls, what) for what in (("name", by) if by == "shapes" else (by,))
    }
    key = np.zeros(len(report.calls), np.int64)
    for index, texts in found.values():
        key = key * len(texts) + index
    key, size = dense(key)
    duration = report.calls.duration
    rows = added_up(key, size, duration).longest_first()
    return Statistics(
        by=by,
        labels={
            what: tuple(texts[i] for i in index[rows.call].tolist())
            for what, (index, texts) in found.items()
        },
        count=rows.count,
        total=rows.duration,
        percent=rows.duration.astype(np.float64) * 100 / (report.longest_total or np.inf),
        **_spread(rows, key[rows.call], _sorted_within(key, size, duration)),
        configuration=report.configuration,
    )


def statistics_columns(
    table: Statistics, numbers: NumberFormat, first: int | None = None
) -> list[Column]:
    """The table's columns, or their ``first`` rows, the shapes last as in the classic table."""
    shown = slice(first)
    named = [
        Column(HEADERS[what], texts[shown], np.arange(len(texts[shown])))
        for what, texts in table.labels.items()
    ]
    times = {
        "Mean (us)": table.mean,
        "Std (us)": table.std,
        "Min (us)": table.min,
        "Median (us)": table.median,
        "P95 (us)": table.p95,
        "Max (us)": table.max,
    }
    return [
        named[0],
        number_column("Total (us)", table.total[shown], numbers.microseconds),
        number_column("Percent", table.percent[shown], "{:.2f}".format),
        number_column("Count", table.count[shown], numbers.count),
        *(number_column(header, ns[shown], numbers.microseconds) for header, ns in times.items()),
        *named[1:],
    ]


def _sorted_within(key: Index, size: int, duration: NDArray[np.int64]) -> NDArray[np.int64]:
    """The durations in order of their key, which is below ``size``, then of their length."""
    if not len(key):
        return duration
    shortest = int(duration.min())
    width = int(duration.max()) - shortest + 1
    if size * width >= 1 << 63:
        return duration[np.lexsort((duration, key))]
    both = key * width  # key and duration in one number: ten times as fast to sort as the pair
    both += duration
    both -= shortest
    both.sort()
    both %= width
    both += shortest
    return both


def _spread(rows: Rows, key: Index, ordered: NDArray[np.int64]) -> dict[str, Any]:
    """The spread within each row, whose keys are ``key``, of all durations ``ordered`` by key."""
    by_key = np.argsort(key)
    counts = rows.count[by_key]
    start = np.empty_like(counts)
    start[by_key] = np.cumsum(counts) - counts
    mean = rows.duration / rows.count
    squares = ordered - np.repeat(mean[by_key], counts)
    squares *= squares
    variance = np.empty_like(mean)
    variance[by_key] = np.add.reduceat(squares, start[by_key]) / counts
    return {
        "min": ordered[start],
        "median": _quantile(ordered, start, rows.count, 50),
        "p95": _quantile(ordered, start, rows.count, 95),
        "max": ordered[start + rows.count - 1],
        "mean": mean,
        "std": np.sqrt(variance),
    }


def _quantile(
    ordered: NDArray[np.int64], start: Index, count: Index, percent: int
) -> NDArray[np.float64]:
    """The quantile of each group, whose ``count`` durations lie in order from ``start`` on."""
    position, hundredths = np.divmod(percent * (count - 1), 100)
    low = ordered[start + position]
    high = ordered[start + np.minimum(position + 1, count - 1)]
    quantile: NDArray[np.float64] = low + (high - low) * (hundredths / 100)
    return quantile
