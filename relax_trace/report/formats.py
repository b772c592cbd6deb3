"""What a report looks like: the classic table, CSV and JSON, each column rendered as a whole."""

from __future__ import annotations

from collections.abc import Iterable
from json import dumps
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..ragged import Index, Part, Ragged, concatenate
from .layout import Column, is_count, layout, layout_configuration, number_column
from .number_format import NumberFormat, user_number_format

if TYPE_CHECKING:
    from .calls import Rows
    from .report import Report, Total

# The columns of the classic table, in its order.
NAME, DURATION, PERCENT = "Name", "Duration (us)", "Percent"
DEVICE, COUNT, SHAPES = "Device", "Count", "Argument Shapes"


def table(report: Report, sort: bool, aggregate: bool, col_sums: bool) -> str:
    """The table, a blank line, and the configuration."""
    numbers = user_number_format()
    rows = report.calls.rows(aggregate)
    if sort:
        rows = rows.longest_first()
    below = total_rows(report, numbers)
    if col_sums:
        below = [["----------", "", "", "", "", ""], sum_row(report, rows, numbers), *below]
    columns = [
        column.followed_by([row[i] for row in below])
        for i, column in enumerate(classic_columns(report, rows, numbers))
    ]
    return layout(columns) + layout_configuration(report.configuration, numbers)


def classic_columns(report: Report, rows: Rows, numbers: NumberFormat) -> list[Column]:
    """The columns of the classic table, a row for each of ``rows``."""
    calls = report.calls

    def percent(ns: int) -> str:
        return f"{_percent(report, ns):.2f}"

    return [
        Column(NAME, calls.names, calls.name[rows.call]),
        number_column(DURATION, rows.duration, numbers.microseconds),
        number_column(PERCENT, rows.duration, percent),
        Column(DEVICE, calls.devices, calls.device[rows.call]),
        number_column(COUNT, rows.count, numbers.count),
        Column(SHAPES, calls.spellings, calls.shapes[rows.call]),
    ]


def sum_row(report: Report, rows: Rows, numbers: NumberFormat) -> list[str]:
    """The cells of a row that adds ``rows`` up."""
    took, count = int(rows.duration.sum()), int(rows.count.sum())
    percent = f"{_percent(report, took):.2f}"
    return ["Sum", numbers.microseconds(took), percent, "", numbers.count(count), ""]


def total_rows(report: Report, numbers: NumberFormat) -> list[list[str]]:
    """The cells of a row for each device."""
    return [
        ["Total", numbers.microseconds(t.duration), "", t.device, numbers.count(t.count), ""]
        for t in report.totals
    ]


def csv(report: Report) -> str:
    """Headers in byte order and bare, strings quoted, what is missing empty."""
    calls = report.calls
    microseconds, percents, number = _numbers(report)
    columns: dict[str, Part] = {
        SHAPES: _cells(map(_quoted, calls.spellings), calls.shapes),
        COUNT: b"1",
        DEVICE: _cells(map(_quoted, calls.devices), calls.device),
        DURATION: (microseconds, number),
        NAME: _cells(map(_quoted, calls.names), calls.name),
        PERCENT: (percents, number),
    }
    headers = sorted(columns)
    parts: list[Part] = []
    for header in headers:
        parts += [columns[header], b"\n" if header == headers[-1] else b","]
    return ",".join(headers) + "\n" + _text(concatenate(len(calls), parts))


def json(report: Report) -> str:
    """TVM's structure, a metric object in each cell; what is missing is left out."""
    calls = report.calls
    microseconds, percents, number = _numbers(report)
    parts: list[Part] = [
        b',{"Count":{"count":1},"Duration (us)":{"microseconds":',
        (microseconds, number),
        b'},"Percent":{"percent":',
        (percents, number),
        b"}",
        _cells((_member(NAME, text) for text in calls.names), calls.name),
        _cells((_member(DEVICE, text) for text in calls.devices), calls.device),
        _cells((_member(SHAPES, text) for text in calls.spellings), calls.shapes),
        b"}",
    ]
    listed = _text(concatenate(len(calls), parts))[1:]
    totals = {total.device: _total(total) for total in report.totals}
    configuration = {key: _metric(value) for key, value in report.configuration.items()}
    rest = dumps({"device_metrics": totals, "configuration": configuration}, separators=(",", ":"))
    return f'{{"calls":[{listed}],{rest[1:]}'


def _percent(report: Report, ns: int) -> float:
    """``ns`` of the largest total; 0 where the totals are 0."""
    longest = report.longest_total
    return 100 * ns / longest if longest else 0.0


def _numbers(report: Report) -> tuple[Ragged, Ragged, Index]:
    """Microseconds and percent of each call as ``(tables, tables, index)``, in full precision."""
    distinct, index = np.unique(report.calls.duration, return_inverse=True)
    ns = distinct.tolist()
    microseconds = _ragged(repr(value / 1000) for value in ns)
    return microseconds, _ragged(repr(_percent(report, value)) for value in ns), index


def _cells(texts: Iterable[str], index: NDArray[np.int32]) -> tuple[Ragged, Index]:
    return _ragged(texts), index.astype(np.int64)


def _ragged(texts: Iterable[str]) -> Ragged:
    # A name that was not UTF-8 may hold lone surrogates.
    return Ragged.from_bytes([text.encode("utf-8", "surrogatepass") for text in texts])


def _text(lines: Ragged) -> str:
    return lines.data.tobytes().decode("utf-8", "surrogatepass")


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"' if text else ""


def _member(header: str, text: str) -> str:
    return f',"{header}":{{"string":{dumps(text)}}}' if text else ""


def _total(total: Total) -> dict[str, Any]:
    return {
        NAME: {"string": "Total"},
        DURATION: {"microseconds": total.duration / 1000},
        DEVICE: {"string": total.device},
        COUNT: {"count": total.count},
    }


def _metric(value: str) -> dict[str, Any]:
    return {"count": int(value)} if is_count(value) else {"string": value}
