"""The command line ``relax-trace``: subcommands over the public API, and its one way to fail."""

from __future__ import annotations

import sys
from typing import NoReturn

import click

from ..errors import RelaxTraceError
from ..report.layout import visible
from .convert import convert
from .report import report
from .run import run
from .send import send

EXAMPLES = """\b
Examples:
  relax-trace run model.onnx                    table, and timeline in trace.json
  relax-trace run model.onnx --input x=1,3,224,224 -o resnet.npz
  relax-trace report resnet.npz --calls all     the table again, with every call
  relax-trace convert resnet.npz resnet.json    for https://ui.perfetto.dev
  relax-trace send resnet.npz                   to where OTEL_EXPORTER_OTLP_ENDPOINT points
"""


@click.group(epilog=EXAMPLES, context_settings={"help_option_names": ["-h", "--help"]})
def cli() -> None:
    """See where time goes inside a TVM Relax model."""


cli.add_command(run)
cli.add_command(report)
cli.add_command(convert)
cli.add_command(send)


def main() -> None:
    """Run the command line; an expected error becomes one line on stderr and exit code 1."""
    try:
        cli(prog_name="relax-trace")
    except ModuleNotFoundError as error:
        if error.name != "tvm":
            raise
        _fail("running a model needs TVM: pip install 'relax-trace[tvm]'")
    except OSError as error:
        _fail(str(error) if error.filename is None else f"{error.filename}: {error.strerror}")
    except RelaxTraceError as error:
        _fail(str(error))


def _fail(message: str) -> NoReturn:
    """End with the message in one line, without terminal escapes: it may quote a hostile file."""
    click.echo(f"relax-trace: error: {visible(' '.join(message.split()))}", err=True)
    sys.exit(1)
