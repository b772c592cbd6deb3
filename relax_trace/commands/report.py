"""``relax-trace report``: print the table of a trace file."""

from __future__ import annotations

from typing import Literal, get_args

import click

from ..report import Report
from ..report.statistics import By
from ..trace import load

EXAMPLES = """\b
Examples:
  relax-trace report trace.json
  relax-trace report trace.json --calls all --no-aggregate --no-sort
  relax-trace report trace.json --by kind
  relax-trace report trace.json --format csv > ops.csv
"""


@click.command(epilog=EXAMPLES)
@click.argument("file")
@click.option(
    "--sort/--no-sort", default=True, help="Table: longest first, or in the order they ran."
)
@click.option(
    "--aggregate/--no-aggregate",
    default=True,
    help="Table: add up equal calls, or a row for each.",
)
@click.option(
    "--calls",
    type=click.Choice(["tensors", "all"]),
    default="tensors",
    help="Calls with a tensor among their arguments, or all of them.",
    show_default=True,
)
@click.option(
    "--by",
    type=click.Choice(get_args(By)),
    help="Instead of the per-op table, print how the calls' durations are spread in each group.",
)
@click.option("--inclusive", is_flag=True, help="Count the time of nested calls in their caller.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "csv", "json"]),
    default="table",
    help="How to print it.",
    show_default=True,
)
def report(
    file: str,
    sort: bool,
    aggregate: bool,
    calls: Literal["tensors", "all"],
    inclusive: bool,
    by: By | None,
    form: Literal["table", "csv", "json"],
) -> None:
    """Print the per-op table of a trace FILE (.npz, .json or .json.gz)."""
    if by and not (form == "table" and sort and aggregate):
        raise click.UsageError("--by goes with neither --format, --no-sort nor --no-aggregate.")
    summary = Report.from_trace(load(file), calls=calls, inclusive=inclusive)
    if by:
        click.echo(str(summary.statistics(by)), nl=False)
    elif form == "table":
        click.echo(summary.table(sort=sort, aggregate=aggregate), nl=False)
    elif form == "csv":
        click.echo(summary.csv(), nl=False)
    else:
        click.echo(summary.json())
