"""The trace file that a command writes: checked before its work, written and announced after."""

from __future__ import annotations

import click

from ..announce import written
from ..exporters import writer_of
from ..files import check_writable
from ..trace import Trace


def check_output(path: str) -> None:
    """Raise what writing to ``path`` would: ``TraceFileError``, ``ExportError``, ``OSError``."""
    writer_of(path)
    check_writable(path)


def write_output(trace: Trace, path: str) -> None:
    """Write the trace, and say so on stdout."""
    trace.save(path)
    click.echo(written(trace, path))
