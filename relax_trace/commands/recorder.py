"""``relax-trace recorder``: build the recorder for a board, a phone, or another server."""

from __future__ import annotations

from pathlib import Path

import click

from ..files import check_writable
from ..recorder.build import build_library
from ..report.layout import visible

EXAMPLES = """\b
Examples:
  relax-trace recorder --target aarch64-linux-gnu -o recorder.so
  relax-trace recorder --target aarch64-linux-gnu.2.28 -o recorder.so       for that glibc (zig)
  relax-trace recorder --target armv7-linux-gnueabihf -o recorder.so
  relax-trace recorder --target aarch64-linux-android24 -o recorder.so      ANDROID_NDK_HOME is set
"""


@click.command(epilog=EXAMPLES)
@click.option(
    "--target", metavar="TRIPLE", help="The machine it is for; this one unless said otherwise."
)
@click.option("-o", "--output", metavar="FILE", required=True, help="The library to write.")
@click.option(
    "--cc", metavar="COMMAND", help="C compiler for that machine, with arguments if it needs any."
)
def recorder(target: str | None, output: str, cc: str | None) -> None:
    """Build the recorder for the machine of an RPC server.

    The compiler is TRIPLE-gcc, the clang of the Android NDK that ANDROID_NDK_HOME points to, or the
    one that "pip install ziglang" brings.
    """
    check_writable(output)
    built = build_library(output, target, cc)
    needs = f" with glibc {built.glibc[0]}.{built.glibc[1]} or newer" if built.glibc else ""
    shown = visible(output)
    click.echo(
        f"wrote {shown}, the recorder for {built.machine}{needs}; start the server there with "
        f"python -m tvm.exec.rpc_server --load-library /full/path/to/{visible(Path(output).name)}"
    )
