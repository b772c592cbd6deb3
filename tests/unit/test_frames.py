"""Reports and statistics as pandas DataFrames."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from relax_trace import Trace
from relax_trace.report import Report
from relax_trace.trace import KINDS
from unit.random_traces import random_trace
from unit.traces import Call, Op, trace_of


def small() -> Trace:
    """Two calls that a report lists, among four."""
    return trace_of(
        [
            Op("alloc_storage", 1000, 1100, "shape[8]", kind="builtin"),
            Op("mul", 2000, 5000, "int64[4]", "cuda0", invocation=1, thread=1),
            Op("null_value", 5000, 5100, kind="builtin", device=None),
            Op("add", 6000, 7000, "int64[4], int64[5]"),
        ],
        [Call(0, 7000), Call(2000, 5000, "decode", thread=1)],
    )


def test_a_row_for_each_call() -> None:
    """Every column by name, type and content; categories are those that occur."""
    frame = small().report().to_pandas()
    assert {column: str(dtype) for column, dtype in frame.dtypes.items()} == {
        "name": "category",
        "kind": "category",
        "device": "category",
        "shapes": "category",
        "function": "category",
        "invocation": "int32",
        "vm": "category",
        "thread": "category",
        "start": "int64",
        "duration": "int64",
    }
    threads = ["thread 1 (pid 1, tid 2)", "thread 0 (pid 1, tid 1)"]
    assert frame.to_dict("list") == {
        "name": ["mul", "add"],
        "kind": ["kernel", "kernel"],
        "device": ["cuda0", "cpu0"],
        "shapes": ["int64[4]", "int64[4], int64[5]"],
        "function": ["decode", "main"],
        "invocation": [1, 0],
        "vm": ["vm", "vm"],
        "thread": threads,
        "start": [2000, 6000],
        "duration": [3000, 1000],
    }
    assert frame["kind"].cat.categories.tolist() == ["kernel"]
    assert frame["name"].cat.categories.tolist() == ["mul", "add"]
    assert frame.groupby("name", observed=True)["duration"].sum().to_dict() == {
        "mul": 3000,
        "add": 1000,
    }


def test_random_traces() -> None:
    """Names that no string of Arrow's can hold come through, as does a device that isn't known."""
    for seed in range(5):
        trace = random_trace(seed)
        frame = Report.from_trace(trace, calls="all", inclusive=True).to_pandas()
        assert frame["name"].tolist() == [trace.names[i] for i in trace.name]
        assert frame["name"].cat.categories.dtype == object
        assert frame["kind"].tolist() == [KINDS[i] for i in trace.kind]
        devices = [*map(str, trace.devices), ""]
        assert frame["device"].tolist() == [devices[i] for i in trace.device]
        vms = trace.invocations.vm[trace.invocation]
        assert frame["vm"].tolist() == [trace.vms[i] for i in vms]
        functions = trace.invocations.function[trace.invocation]
        assert frame["function"].tolist() == [trace.names[i] for i in functions]
        for column in ("start", "duration", "invocation"):
            assert np.array_equal(frame[column], getattr(trace, column))


def test_statistics() -> None:
    """The columns of the statistics, named as its fields."""
    table = small().report().statistics("shapes")
    frame = table.to_pandas()
    figures = ["count", "total", "percent", "min", "median", "p95", "max", "mean", "std"]
    assert frame.columns.tolist() == ["name", "shapes", *figures]
    assert frame["name"].tolist() == ["mul", "add"]
    assert frame["shapes"].tolist() == ["int64[4]", "int64[4], int64[5]"]
    for name in figures:
        column = getattr(table, name)
        assert (frame[name].dtype, frame[name].tolist()) == (column.dtype, column.tolist())
    hostile = random_trace(0).report().statistics("name")
    named = hostile.to_pandas()["name"]
    assert (named.dtype, named.tolist()) == (object, list(hostile.labels["name"]))


def test_an_empty_report() -> None:
    """No rows, but all columns."""
    report = trace_of([]).report()
    assert report.to_pandas().shape == (0, 10)
    assert report.statistics().to_pandas().shape == (0, 10)


FRAMES: list[Callable[[Report], Any]] = [
    lambda report: report.to_pandas(),
    lambda report: report.statistics().to_pandas(),
]


@pytest.mark.parametrize("frame", FRAMES)
def test_without_pandas(
    frame: Callable[[Report], Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One line says what to install; a pandas that is there and broken speaks for itself."""
    assert pd.__name__ in sys.modules
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"^to_pandas\(\) needs pandas: pip install pandas$"):
        frame(small().report())
    monkeypatch.delitem(sys.modules, "pandas")
    (tmp_path / "pandas.py").write_text("import no_such_module\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        frame(small().report())
