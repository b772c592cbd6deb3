"""``relax-trace convert``: write a trace file in another format."""

from __future__ import annotations

import click

from ..trace import load
from .output import check_output, write_output

EXAMPLE = """\b
Example:
  relax-trace convert trace.npz trace.json.gz
"""


@click.command(epilog=EXAMPLE)
@click.argument("file")
@click.argument("out")
def convert(file: str, out: str) -> None:
    """Write the trace in FILE to OUT; suffixes say the formats.

    .npz is the native format, .json and .json.gz open in Perfetto and chrome://tracing,
    .otlp.json and .otlp.pb are for OpenTelemetry.
    """
    check_output(out)
    write_output(load(file), out)
