"""Frames: a report's calls and statistics as pandas DataFrames; pandas is loaded only here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .calls import Calls
from .labels import Labels, labels

if TYPE_CHECKING:
    from pandas import DataFrame

    from .statistics import Statistics


def calls_frame(calls: Calls) -> DataFrame:
    """A row for each call; see :meth:`Report.to_pandas`."""
    pandas = _pandas()

    def category(what: str) -> Any:
        return _categorical(pandas, labels(calls, what))

    return pandas.DataFrame(
        {
            "name": category("name"),
            "kind": category("kind"),
            "device": category("device"),
            "shapes": category("shapes"),
            "function": category("function"),
            "invocation": calls.invocation,
            "vm": category("vm"),
            "thread": category("thread"),
            "start": calls.start,
            "duration": calls.duration,
        }
    )


def statistics_frame(table: Statistics) -> DataFrame:
    """A row for each group; see :meth:`Statistics.to_pandas`."""
    pandas = _pandas()
    figures = ("count", "total", "percent", "min", "median", "p95", "max", "mean", "std")
    named = {what: _texts(pandas, texts) for what, texts in table.labels.items()}
    return pandas.DataFrame({**named, **{figure: getattr(table, figure) for figure in figures}})


def _categorical(pandas: Any, found: Labels) -> Any:
    """A categorical of the texts that occur, in the order of their table."""
    index, texts = found
    used = np.zeros(len(texts), bool)
    used[index] = True
    codes = (np.cumsum(used) - 1)[index]
    categories = _texts(pandas, [texts[i] for i in np.flatnonzero(used).tolist()])
    return pandas.Categorical.from_codes(codes, categories)


def _texts(pandas: Any, texts: Any) -> Any:
    """Texts as objects: a string of Arrow's could not hold a name that was not UTF-8."""
    return pandas.Index(texts, dtype=object)


def _pandas() -> Any:
    try:
        import pandas
    except ModuleNotFoundError as error:
        if error.name != "pandas":
            raise
        raise ImportError("to_pandas() needs pandas: pip install pandas") from None
    return pandas
