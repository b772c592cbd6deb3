"""Spans by chance, as Perfetto's engine sees them: each inside what is around it, or led to."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from relax_trace import Thread, Trace, load
from relax_trace.spans import COLUMNS, OF_INVOCATION, Spans, spans_of
from unit.random_traces import contents
from unit.traces import Call, Op, trace_of
from viewers.trace_processor import TraceProcessor

START = 1_764_576_000_000_000_000
THREADS = 3
FEW = 60  # ticks


def made_spans(rows: list[tuple[int, int, int, int, int]]) -> Spans:
    """Of start, end, thread, parent's number or -1, flags; in order of start. Ids count from 1."""
    rows_in_order = sorted(enumerate(rows), key=lambda row: row[1][0])
    columns: dict[str, list[int]] = {name: [] for name in COLUMNS}
    for number, (start, end, thread, parent, flags) in rows_in_order:
        columns["start"].append(START + start)
        columns["end"].append(START + end)
        columns["name"].append(number)
        columns["thread"].append(thread)
        columns["trace_id"] += [7] * 16
        columns["span_id"].append(1 + number)
        columns["parent_id"].append(1 + parent)
        columns["flags"].append(flags)
    arrays = {name: np.array(columns[name], dtype) for name, dtype in COLUMNS.items()}
    return spans_of(arrays, tuple(f"span {number}" for number in range(len(rows))))


def some_spans(
    chance: random.Random, count: int, until: int
) -> list[tuple[int, int, int, int, int]]:
    """Inside each other or outliving each other; of few ticks, many begin or end at one."""
    rows: list[tuple[int, int, int, int, int]] = []
    begun = set()
    for _ in range(count):
        parent = chance.randrange(-1, len(rows))
        low, high = (0, until) if parent < 0 else rows[parent][:2]
        start = chance.randint(low, high)
        end = chance.randint(start, high if chance.random() < 0.7 else until)
        if until > FEW and (start in begun or start == end):
            continue
        begun.add(start)
        thread = rows[parent][2] if parent >= 0 and chance.random() < 0.6 else chance.randrange(3)
        rows.append((start, end, thread, parent, OF_INVOCATION * (chance.random() < 0.1)))
    return rows


def some_calls(chance: random.Random, spans: int, until: int) -> tuple[list[Call], list[Op]]:
    """One after the other on each thread, each inside some span or none, with two ops."""
    calls, ops = [], []
    for thread in range(THREADS):
        at = chance.randint(0, 9)
        while at < until:
            end = at + chance.randint(3, 3 + until // 100)
            ids = {"trace_id": int("07" * 16, 16), "span_id": 1 + chance.randrange(spans)}
            ids = ids if chance.random() < 0.7 else {}
            calls.append(Call(START + at, START + end, f"call {len(calls)}", thread=thread, **ids))
            for start, stop in ((at + (until > FEW), at + 2), (at + 2, end)):
                op = Op("op", START + start, START + stop, invocation=len(calls) - 1, thread=thread)
                ops.append(op)
            at = end + chance.randint(0, until // 50)
    return calls, sorted(ops, key=lambda op: op.start)


def random_timeline(seed: int, count: int, until: int) -> Trace:
    """Three threads, their spans and invocations."""
    chance = random.Random(seed)
    rows = some_spans(chance, count, until)
    calls, ops = some_calls(chance, len(rows), until)
    threads = tuple(Thread(7, 7 + i, f"thread {i}") for i in range(THREADS))
    spans = made_spans(rows)
    return replace(trace_of(ops, calls, threads=threads), spans=spans)


def around(trace: Trace) -> dict[str, str | None]:
    """The span that is shown around each span that is, and around each invocation."""
    spans, calls = trace.spans, trace.invocations
    rows = {int(span_id): row for row, span_id in enumerate(spans.span_id.tolist())}

    def shown(span_id: int) -> str | None:
        while span_id and spans.flags[rows[span_id]] & OF_INVOCATION:
            span_id = int(spans.parent_id[rows[span_id]])
        return f"span {span_id - 1}" if span_id else None

    found = {
        f"span {spans.span_id[row] - 1}": shown(int(spans.parent_id[row]))
        for row in range(len(spans))
        if not spans.flags[row] & OF_INVOCATION
    }
    return found | {f"call {row}": shown(int(calls.span_id[row])) for row in range(len(calls))}


@pytest.mark.parametrize("seed", range(8))
def test_each_is_inside_what_is_around_it_or_an_arrow_leads_there(
    tmp_path: Path, perfetto: Callable[[Path], TraceProcessor], seed: int
) -> None:
    """All slices are there, with their times, and no arrow too many; the file is read back."""
    ticks = FEW if seed % 2 else 100_000
    trace = random_timeline(seed, 150, ticks)
    file = tmp_path / "trace.json"
    trace.save(file)
    assert contents(load(file)) == contents(trace)
    seen = perfetto(file)
    assert seen.problems() == {}
    rows = seen.query("""
        select s.name, s.ts, s.dur, s.track_id as track, p.name as parent, p.category as inside
        from slice s left join slice p on s.parent_id = p.id where s.category != 'kernel'
    """)
    slices = {row["name"]: row for row in rows}
    expected = around(trace)
    assert len(rows) == len(slices) == len(expected)
    calls, spans = trace.invocations, trace.spans
    times = {f"call {i}": (calls.start[i], calls.end[i]) for i in range(len(calls))}
    times |= {
        f"span {spans.span_id[i] - 1}": (spans.start[i], spans.end[i]) for i in range(len(spans))
    }
    first = min(row["ts"] for row in rows)
    base = min(int(times[name][0]) for name in slices)
    for name, row in slices.items():
        start, end = map(int, times[name])
        assert (row["ts"] - first, row["dur"]) == (start - base, end - start), name
    flows = seen.query("""
        select a.name as source, b.name as target from flow
        join slice a on slice_out = a.id join slice b on slice_in = b.id
    """)
    found = sorted((row["source"], row["target"]) for row in flows)
    led = []
    for name, source in expected.items():
        apart = source is not None and (
            slices[source]["track"] != slices[name]["track"] or times[name][0] >= times[source][1]
        )
        if source and apart and times[source][0] <= times[name][0]:
            led.append((source, name))
        if name.startswith("span") and ticks > FEW:
            assert slices[name]["parent"] == (None if apart else source), name
    assert len(found) == len(led) > 30
    assert found == sorted(led) or ticks == FEW  # of what begins at once the innermost is taken
    assert seen.query("select value from stats where name glob 'flow_*' and value > 0") == []
