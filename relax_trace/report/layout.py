"""The layout of the classic table: columns of text, aligned, and safe to print."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..ragged import Index, Ragged, concatenate
from .number_format import NumberFormat

LONGEST_CELL = 4096  # characters; the table pads every row to its longest cell


@dataclass(frozen=True)
class Column:
    """One column of a table: row ``i`` below the header shows ``texts[index[i]]``."""

    header: str
    texts: Sequence[str]
    index: NDArray[np.integer[Any]]
    numeric: bool = False

    def followed_by(self, texts: Sequence[str]) -> Column:
        """The column with further rows below, each with a text of its own."""
        size = len(self.texts)
        index = np.concatenate([self.index, np.arange(size, size + len(texts))])
        return replace(self, texts=[*self.texts, *texts], index=index)


def number_column(header: str, values: NDArray[Any], text: Callable[[Any], str]) -> Column:
    """A column of numbers; each distinct value is rendered once."""
    distinct, index = np.unique(values, return_inverse=True)
    return Column(header, [text(value) for value in distinct.tolist()], index, numeric=True)


def layout(columns: Sequence[Column]) -> str:
    """Lines of cells as TVM laid them out: the first column to the left, the others to the right,
    two spaces after each.
    """
    rendered = [_rendered(column, left=i == 0) for i, column in enumerate(columns)]
    lines = concatenate(len(columns[0].index) + 1, [*rendered, b"\n"])
    return lines.data.tobytes().decode()


def layout_configuration(configuration: Mapping[str, str], numbers: NumberFormat) -> str:
    """What stands below a table: a blank line, the title, a line for each entry."""
    lines = configuration_lines(configuration, numbers)
    return "\n".join(["", "Configuration", "-------------", *lines, ""])


def configuration_lines(configuration: Mapping[str, str], numbers: NumberFormat) -> list[str]:
    """A line for each entry, its value written as a number where it is one."""
    return [
        f"{visible(key)}: {numbers.localized(value) if is_count(value) else visible(value)}"
        for key, value in configuration.items()
    ]


def is_count(value: str) -> bool:
    """Whether an entry of the configuration is a number of things: an int64, as TVM's counts."""
    return value.isascii() and value.isdigit() and len(value) < 19


def _rendered(column: Column, left: bool) -> tuple[Ragged, Index]:
    """The cells of a column at its full width, the header's first, as a table and an index."""
    used = np.zeros(len(column.texts), bool)
    used[column.index] = True
    shown = [column.texts[i] for i in np.flatnonzero(used).tolist()]
    cells = [column.header, *map(visible, shown)]
    width = max(map(len, cells))
    padded = [(cell.ljust(width) if left else cell.rjust(width)) + "  " for cell in cells]
    index = np.cumsum(used)[column.index]
    return Ragged.from_bytes([cell.encode() for cell in padded]), np.append(0, index)


def visible(text: str) -> str:
    r"""``text`` with an escape, as ``\x1b``, for everything a terminal would act on or not show.

    Beyond 4,096 characters it is cut, and says so.
    """
    if len(text) > LONGEST_CELL:
        text = f"{text[:LONGEST_CELL]}... ({len(text):,} characters)"
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
