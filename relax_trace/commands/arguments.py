"""How ``relax-trace run`` tells its own options from those of the program that it runs."""

from __future__ import annotations

from collections.abc import Iterable

import click
from click.core import ParameterSource


def is_model(file: str) -> bool:
    """Whether ``run`` takes it for a model, and everything else for a Python program."""
    return file.endswith((".onnx", ".so"))


class RunCommand(click.Command):
    """Options may stand around a model; after a Python program, they are the program's."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Find the file first, with the options that stand before it."""
        ctx.allow_interspersed_args = False
        values, _, _ = self.make_parser(ctx).parse_args(list(args))
        file = values.get("file")
        ctx.allow_interspersed_args = (
            isinstance(file, str) and is_model(file) and not values.get("module")
        )
        return super().parse_args(ctx, args)


def refuse_options(context: click.Context, names: Iterable[str]) -> None:
    """Raise a usage error where one of these, which are for models, was given for a program."""
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if parameter.name in names and source is ParameterSource.COMMANDLINE:
            raise click.UsageError(
                f"{parameter.opts[0]} is for a model (.onnx, .so), not for a Python program; "
                "the program's own options stand after it",
                context,
            )
