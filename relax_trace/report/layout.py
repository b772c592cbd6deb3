"""The layout of the classic table: columns of text, aligned, and safe to print."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..ragged import Index, Ragged, concatenate

LONGEST_CELL = 4096  # characters; the table pads every row to its longest cell


@dataclass(frozen=True)
class Column:
    """One column of a table: row ``i`` below the header shows ``texts[index[i]]``."""

    header: str
    texts: Sequence[str]
    index: Index


def layout(columns: Sequence[Column]) -> str:
    """Lines of cells as TVM laid them out: the first column to the left, the others to the right,
    two spaces after each.
    """
    rendered = [_rendered(column, left=i == 0) for i, column in enumerate(columns)]
    lines = concatenate(len(columns[0].index) + 1, [*rendered, b"\n"])
    return lines.data.tobytes().decode()


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
