"""HTML: reports and statistics as a notebook shows them, with no script and nothing to load."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING

from .formats import classic_columns, sum_row, total_rows
from .layout import Column, configuration_lines, visible
from .number_format import NumberFormat, user_number_format
from .statistics import statistics_columns

if TYPE_CHECKING:
    from .report import Report
    from .statistics import Statistics

MOST_ROWS = 100


def report_html(report: Report) -> str:
    """The classic table's first rows, longest first, its sum, the totals, the configuration."""
    numbers = user_number_format()
    rows = report.calls.rows(aggregate=True).longest_first()
    columns = classic_columns(report, rows.take(slice(MOST_ROWS)), numbers)
    below = [sum_row(report, rows, numbers), *total_rows(report, numbers)]
    return _html(columns, below, len(rows.call), report.configuration, numbers)


def statistics_html(table: Statistics) -> str:
    """The first rows and the configuration."""
    numbers = user_number_format()
    columns = statistics_columns(table, numbers, MOST_ROWS)
    return _html(columns, [], len(table), table.configuration, numbers)


def _html(
    columns: Sequence[Column],
    below: Sequence[Sequence[str]],
    size: int,
    configuration: Mapping[str, str],
    numbers: NumberFormat,
) -> str:
    """A table of ``size`` rows, of which ``columns`` hold the first, and what stands below it."""
    rows = zip(
        *([column.texts[i] for i in column.index.tolist()] for column in columns), strict=True
    )
    parts = [
        "<div>",
        "<table>",
        "<thead>",
        _row(columns, [column.header for column in columns], "th"),
        "</thead>",
        "<tbody>",
        *(_row(columns, cells) for cells in rows),
        "</tbody>",
        *(["<tfoot>", *(_row(columns, cells) for cells in below), "</tfoot>"] if below else []),
        "</table>",
    ]
    if size > MOST_ROWS:
        parts.append(f"<p>{numbers.count(size - MOST_ROWS)} more rows; print it to see all</p>")
    if configuration:
        lines = configuration_lines(configuration, numbers)
        parts.append(f"<p>{'<br>'.join(map(escape, lines))}</p>")
    return "\n".join([*parts, "</div>", ""])


def _row(columns: Iterable[Column], cells: Iterable[str], tag: str = "td") -> str:
    """A row of cells, numbers to the right; what a terminal could not show is escaped here too."""
    return "".join(
        [
            "<tr>",
            *(
                f'<{tag} style="text-align: {"right" if column.numeric else "left"}">'
                f"{escape(visible(cell))}</{tag}>"
                for column, cell in zip(columns, cells, strict=True)
            ),
            "</tr>",
        ]
    )
