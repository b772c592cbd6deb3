"""Statistics by group, against figures worked out by hand and a slow twin in plain Python."""

from __future__ import annotations

import statistics
from typing import Any, get_args

import numpy as np
import pytest

from relax_trace import Trace
from relax_trace.report import Report, Statistics
from relax_trace.report.statistics import By
from relax_trace.trace import KINDS
from unit.random_traces import random_trace
from unit.test_report import exact, first_column
from unit.traces import Call, Op, trace_of

COLUMNS = {
    "count": "int64",
    "total": "int64",
    "percent": "float64",
    "min": "int64",
    "median": "float64",
    "p95": "float64",
    "max": "int64",
    "mean": "float64",
    "std": "float64",
}


@pytest.fixture(autouse=True)
def _c_locale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "C")


def figures(table: Statistics) -> dict[str, list[Any]]:
    """The columns of numbers, whose types are checked."""
    assert {name: getattr(table, name).dtype.name for name in COLUMNS} == COLUMNS
    return {name: getattr(table, name).tolist() for name in COLUMNS}


def lasting(name: str, *durations: int, **properties: Any) -> list[Op]:
    """A call of ``name`` for each duration."""
    return [Op(name, 0, ns, "int64[4]", **properties) for ns in durations]


def test_figures() -> None:
    """Quantiles lie between neighbours, the deviation is the population's."""
    ops = [
        *lasting("add", 7000),
        *lasting("mul", 40_000, 10_000, 20_000, 30_000),
        *lasting("sub", *range(2100, -1, -100)),
    ]
    trace = trace_of(ops, [Call(0, 200_000)], configuration={"Number of threads": "6"})
    table = Report.from_trace(trace).statistics()
    assert table.labels == {"name": ("mul", "sub", "add")}
    assert figures(table) == {
        "count": [4, 22, 1],
        "total": [100_000, 23_100, 7000],
        "percent": [50.0, 11.55, 3.5],
        "min": [10_000, 0, 7000],
        "median": [25_000.0, 1050.0, 7000.0],
        "p95": [38_500.0, 1995.0, 7000.0],
        "max": [40_000, 2100, 7000],
        "mean": [25_000.0, 1050.0, 7000.0],
        "std": [pytest.approx(12.5e7**0.5), pytest.approx(402_500**0.5), 0.0],
    }
    assert str(table) == exact("""
        Name  Total (us)  Percent  Count  Mean (us)  Std (us)  Min (us)  Median (us)  P95 (us)  Max (us)  $
        mul       100.00    50.00      4      25.00     11.18     10.00        25.00     38.50     40.00  $
        sub        23.10    11.55     22       1.05      0.63      0.00         1.05      2.00      2.10  $
        add         7.00     3.50      1       7.00      0.00      7.00         7.00      7.00      7.00  $
        $
        Configuration
        -------------
        Number of threads: 6
    """)  # noqa: E501
    assert repr(table) == "<Statistics: 3 groups by name; print it to see the table>"


def test_groups() -> None:
    """What each grouping tells apart, what it calls it, and in which order."""
    ops = [
        Op("mul", 0, 100, "int64[4]", "cpu0"),
        Op("mul", 100, 300, "int64[5]", "cuda0", invocation=1, thread=1),
        Op("mul", 300, 700, "int64[4]", "cuda0", kind="extern", invocation=2, thread=1),
        Op("add", 700, 1000, "int64[4]", "cpu0", invocation=2, thread=1),
        Op("nothing", 1000, 1600, kind="builtin", device=None, invocation=3),
    ]
    calls = [Call(0, 100), Call(100, 300, "decode"), Call(300, 1000, "decode"), Call(1000, 1600)]
    trace = trace_of(ops, calls, vms=("encoder", "decoder"))
    trace.invocations.vm[1:3] = 1
    report = Report.from_trace(trace, calls="all")
    expected: dict[By, dict[str, list[Any]]] = {
        "name": {"name": ["mul", "nothing", "add"], "total": [700, 600, 300]},
        "shapes": {
            "name": ["nothing", "mul", "add", "mul"],
            "shapes": ["", "int64[4]", "int64[4]", "int64[5]"],
            "total": [600, 500, 300, 200],
        },
        "kind": {"kind": ["kernel", "builtin", "extern"], "total": [600, 600, 400]},
        "device": {"device": ["cuda0", "", "cpu0"], "total": [600, 600, 400]},
        "invocation": {
            "invocation": ["decode #2", "main #3", "decode #1", "main #0"],
            "total": [700, 600, 200, 100],
        },
        "thread": {
            "thread": ["thread 1 (pid 1, tid 2)", "thread 0 (pid 1, tid 1)"],
            "total": [900, 700],
        },
        "vm": {"vm": ["decoder", "encoder"], "total": [900, 700]},
    }
    for by, columns in expected.items():
        table = report.statistics(by)
        found = {what: list(texts) for what, texts in table.labels.items()}
        assert {**found, "total": table.total.tolist()} == columns
    assert str(report.statistics("shapes")).splitlines()[:2] == [
        "Name     Total (us)  Percent  Count  Mean (us)  Std (us)  Min (us)  Median (us)  P95 (us)"
        "  Max (us)  Argument Shapes  ",
        "nothing        0.60    66.67      1       0.60      0.00      0.60         0.60      0.60"
        "      0.60                   ",
    ]
    with pytest.raises(ValueError, match=r"by must be one of name, shapes, kind, .*, not 'size'"):
        report.statistics("size")  # type: ignore[arg-type]


def label_of(trace: Trace, call: int, by: By) -> tuple[str, ...]:
    """What a call is grouped by, looked up one by one."""
    invocation = int(trace.invocation[call])
    name = trace.names[trace.name[call]]
    device = trace.device[call]
    thread = trace.threads[trace.thread[call]]
    return {
        "name": (name,),
        "shapes": (name, trace.signatures.texts[trace.signature[call]].decode()),
        "kind": (KINDS[trace.kinds[trace.name[call]]],),
        "device": (str(trace.devices[device]) if device >= 0 else "",),
        "invocation": (f"{trace.names[trace.invocations.function[invocation]]} #{invocation}",),
        "thread": (f"{thread.name} (pid {thread.pid}, tid {thread.tid})",),
        "vm": (trace.vms[trace.invocations.vm[invocation]],),
    }[by]


@pytest.mark.parametrize("by", get_args(By))
@pytest.mark.parametrize("calls", ["tensors", "all"])
def test_random_traces_against_plain_python(by: By, calls: Any) -> None:
    """Every figure of every group, with self times below zero too, as a damaged file has."""
    for seed in range(10):
        trace = random_trace(seed)
        report = Report.from_trace(trace, calls=calls, inclusive=seed % 2 == 0)
        groups: dict[tuple[str, ...], list[int]] = {}
        for call, duration in zip(report.calls.row, report.calls.duration.tolist(), strict=True):
            groups.setdefault(label_of(trace, call, by), []).append(duration)
        slow = sorted(groups.items(), key=lambda group: -sum(group[1]))  # stable, as ours
        table = report.statistics(by)
        assert list(zip(*table.labels.values(), strict=True)) == [label for label, _ in slow]
        found, durations = figures(table), [durations for _, durations in slow]
        assert found["count"] == list(map(len, durations))
        assert found["total"] == list(map(sum, durations))
        assert found["min"] == list(map(min, durations))
        assert found["max"] == list(map(max, durations))
        expected = {
            "percent": [100 * sum(group) / report.longest_total for group in durations],
            "mean": [statistics.fmean(group) for group in durations],
            "median": [statistics.median(group) for group in durations],
            "p95": [np.percentile(group, 95) for group in durations],
            "std": [statistics.pstdev(group) for group in durations],
        }
        assert {name: found[name] for name in expected} == {
            name: pytest.approx(column, rel=1e-12) for name, column in expected.items()
        }


def test_durations_too_long_to_be_packed() -> None:
    """Where key and duration don't fit into one number they are sorted as a pair."""
    ops = [*lasting("a", 2**62, 5), *lasting("b", 9, 3), *lasting("c", 8), *lasting("d", 7, 0)]
    table = Report.from_trace(trace_of(ops)).statistics()
    assert table.labels == {"name": ("a", "b", "c", "d")}
    assert table.min.tolist() == [5, 3, 8, 0]
    assert table.max.tolist() == [2**62, 9, 8, 7]
    assert table.total.tolist() == [2**62 + 5, 12, 8, 7]
    assert table.median.tolist() == [2.0**61, 6.0, 8.0, 3.5]


def test_nothing_took_time() -> None:
    """Zero durations give zeros, no call no row; in every grouping."""
    zero, empty = trace_of(lasting("a", 0, 0)), trace_of([])
    for by in get_args(By):
        assert figures(Report.from_trace(zero).statistics(by)) == {
            name: [2 if name == "count" else 0] for name in COLUMNS
        }
        nothing = Report.from_trace(empty).statistics(by)
        assert figures(nothing) == {name: [] for name in COLUMNS}
        assert str(nothing).splitlines()[1:] == ["", "Configuration", "-------------"]


def test_names_can_not_drive_a_terminal() -> None:
    """They are escaped and cut as in the classic table, and so are the lines below."""
    shown = {
        "\x1b[31mred": "\\x1b[31mred",
        "two\nlines\r": "two\\nlines\\r",
        "bidi\u202eevil": "bidi\\u202eevil",
        "\udcff": "\\udcff",
        "x" * 5000: "x" * 4096 + "...",
    }
    ops = [op for name in shown for op in lasting(name, 1)]
    table = Report.from_trace(trace_of(ops, configuration={"k\n": "\x1b[0m"})).statistics()
    assert table.labels == {"name": tuple(shown)}
    assert first_column(str(table).replace("\n\n", "\n----------\n")) == list(shown.values())
    assert str(table).splitlines()[-1] == "k\\n: \\x1b[0m"
