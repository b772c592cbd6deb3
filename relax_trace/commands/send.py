"""``relax-trace send``: a trace file to an OpenTelemetry receiver."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

import click

from ..errors import ExportError
from ..exporters.otlp.connection import PROTOCOLS
from ..exporters.otlp.sending import PATIENCE, Progress
from ..report.layout import visible
from ..trace import load

EXAMPLE = """\b
Example:
  relax-trace send trace.npz --endpoint http://localhost:4317

OpenTelemetry's OTEL_EXPORTER_OTLP_* variables say everything else: headers, certificates,
compression, timeout, and endpoint and protocol where no option says them.
"""


@click.command(epilog=EXAMPLE)
@click.argument("file")
@click.option("--endpoint", metavar="URL", help="Base URL of the receiver.")
@click.option("--protocol", type=click.Choice(PROTOCOLS), help="How to talk to it.")
@click.option(
    "--patience",
    type=click.FloatRange(min=0),
    default=PATIENCE,
    metavar="SECONDS",
    help="How long to try again where a request fails.",
    show_default=True,
)
def send(
    file: str,
    endpoint: str | None,
    protocol: Literal["grpc", "http/protobuf"] | None,
    patience: float,
) -> None:
    """Send the trace in FILE as OpenTelemetry spans.

    The exit code is 1 if the receiver didn't accept all of them.
    """
    trace = load(file)
    with _progress() as progress:
        sent = trace.send(
            endpoint=endpoint, protocol=protocol, patience=patience, progress=progress
        )
    said = f", which says: {visible(' '.join(sent.message.split()))}" if sent.message else ""
    if sent.rejected:
        raise ExportError(
            f"{sent.accepted:,} spans accepted, {sent.rejected:,} rejected by {sent.endpoint}{said}"
        )
    click.echo(f"{sent.accepted:,} spans accepted by {sent.endpoint}{said}")


@contextmanager
def _progress() -> Iterator[Progress]:
    """A bar on a terminal; elsewhere a line for what takes long, or goes wrong."""
    if not sys.stderr.isatty():
        yield _lines()
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("sending")

        def tell(accepted: int, total: int, problem: str) -> None:
            text = f"trying again ({visible(problem)[:60]})" if problem else "sending"
            bar.update(task, completed=accepted, total=total, description=escape(text))

        yield tell


def _lines(every: float = 5.0) -> Callable[[int, int, str], None]:
    next_line = time.monotonic() + every

    def tell(accepted: int, total: int, problem: str) -> None:
        nonlocal next_line
        if problem or time.monotonic() > next_line:
            text = f"trying again: {visible(problem)}" if problem else "sending"
            click.echo(f"{accepted:,} of {total:,} spans sent, {text}", err=True)
            next_line = time.monotonic() + every

    return tell
