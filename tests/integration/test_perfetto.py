"""What Perfetto's own engine reads from our traces."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from relax_trace import Thread
from relax_trace.trace import ABORTED, FAILED
from unit.traces import Call, Op, trace_of
from viewers.trace_processor import PerfettoError, TraceProcessor

Load = Callable[[Path], TraceProcessor]

_SLICES = """
    select t.tid, t.name as thread, s.name, s.ts, s.dur, s.depth, s.category, s.arg_set_id
    from slice s join thread_track k on s.track_id = k.id join thread t using (utid)
    order by t.tid, s.ts, s.depth
"""


def _chrome(*events: dict[str, Any]) -> str:
    named = {"ph": "M", "name": "thread_name", "pid": 7, "tid": 8, "args": {"name": "worker"}}
    return json.dumps({"traceEvents": [named, *(event | {"pid": 7} for event in events)]})


def _span(name: str, tid: int, ts: float, dur: float, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": "op", "name": name, "tid": tid, "ts": ts, "dur": dur, "args": args}


def test_engine_reads_slices_tracks_nesting_and_arguments(tmp_path: Path, perfetto: Load) -> None:
    """A small sound trace is read exactly, to the nanosecond, and without a complaint."""
    file = tmp_path / "sound.json"
    outer = _span("outer", 7, 1, 10, shapes="float32[1, 64]", rows=3)
    file.write_text(_chrome(outer, _span("inner", 7, 1, 9.999), _span("other", 8, 2.001, 3)))
    trace = perfetto(file)
    rows = [tuple(row.values())[:-1] for row in trace.query(_SLICES)]
    assert rows == [
        (7, None, "outer", 1000, 10000, 0, "op"),
        (7, None, "inner", 1000, 9999, 1, "op"),
        (8, "worker", "other", 2001, 3000, 0, "op"),
    ]
    assert trace.query("select key, display_value from args where key like 'args.%'") == [
        {"key": "args.shapes", "display_value": "float32[1, 64]"},
        {"key": "args.rows", "display_value": "3"},
    ]
    assert trace.problems() == {}


def test_engine_counts_a_slice_that_does_not_nest(tmp_path: Path, perfetto: Load) -> None:
    """A slice that straddles the end of another is an error in the engine's statistics."""
    file = tmp_path / "straddling.json"
    file.write_text(_chrome(_span("first", 7, 1, 10), _span("second", 7, 5, 10)))
    assert perfetto(file).problems() == {"slice_drop_overlapping_complete_event": 1}


def test_engine_refuses_what_is_cut_short_or_misspelt(tmp_path: Path, perfetto: Load) -> None:
    """The engine's own message reaches the test, for a file as for a query."""
    file = tmp_path / "cut.json"
    file.write_text(_chrome(_span("first", 7, 1, 10))[:-20])
    with pytest.raises(PerfettoError, match="JSON trace file is incomplete"):
        perfetto(file)
    file.write_text(_chrome(_span("first", 7, 1, 10)))
    with pytest.raises(PerfettoError, match="no such column: nme"):
        perfetto(file).query("select nme from slice")


_START = 1_764_576_000_000_000_000  # ns since the epoch: too many digits for a double
_HOUR = 3_600_000_000_000


@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
def test_saved_trace_is_read_with_its_tracks_nesting_and_arguments(
    tmp_path: Path, perfetto: Load, suffix: str
) -> None:
    """Two threads, three levels, ties at both ends, an hour long: every slice is where it was."""
    late = _HOUR + 7
    ops = [
        Op("alloc_storage", 0, 1, kind="builtin"),
        Op("fused_matmul", 1, 1, "float32[1, 64], (int64[], int64[2])", invocation=1, thread=1),
        Op("cond", 1, 9, kind="function"),
        Op("inner", 1, 9, parent=2, kind="function"),
        Op("add", 1, 5, "float32[2]", "cuda1", parent=3),
        Op("mul", 5, 9, "float32[2]", "cuda1", parent=3, flags=ABORTED),
        Op("late", late + 1, late + 2, invocation=2),
    ]
    calls = [Call(0, 9, error=0, flags=FAILED), Call(1, 4, "other", thread=1), Call(late, late + 3)]
    threads = (Thread(7, 7, "MainThread"), Thread(7, 8, 'worker <1> \\ "2"'))
    trace = trace_of(
        [replace(op, start=_START + op.start, end=_START + op.end) for op in ops],
        [replace(call, start=_START + call.start, end=_START + call.end) for call in calls],
        threads=threads,
        errors=('it\'s "wrong"',),
        process="serving",
    )
    file = tmp_path / f"trace{suffix}"
    trace.save(file)
    seen = perfetto(file)
    rows = [tuple(row.values())[1:-1] for row in seen.query(_SLICES)]
    main, worker = (thread.name for thread in threads)
    first = rows[0][2]
    assert [(thread, name, ts - first, *rest) for thread, name, ts, *rest in rows] == [
        (main, "main", 0, 9, 0, "invocation"),
        (main, "alloc_storage", 0, 1, 1, "builtin"),
        (main, "cond", 1, 8, 1, "function"),
        (main, "inner", 1, 8, 2, "function"),
        (main, "add", 1, 4, 3, "kernel"),
        (main, "mul", 5, 4, 3, "kernel"),
        (main, "main", late, 3, 0, "invocation"),
        (main, "late", late + 1, 1, 1, "kernel"),
        (worker, "other", 1, 3, 0, "invocation"),
        (worker, "fused_matmul", 1, 0, 1, "kernel"),
    ]
    assert _arguments(seen, "fused_matmul") == {
        "device": "cpu0",
        "shapes": "float32[1, 64], (int64[], int64[2])",
        "invocation": "1",
    }
    assert _arguments(seen, "add")["device"] == "cuda1"
    assert _arguments(seen, "mul")["outcome"].startswith("aborted")
    assert _arguments(seen, "main")["error"] == 'it\'s "wrong"'
    assert seen.query("select pid, name from process where pid > 0") == [
        {"pid": 7, "name": "serving"}
    ]
    assert seen.problems() == {}


def _arguments(trace: TraceProcessor, name: str) -> dict[str, str]:
    """What the UI shows as arguments of the first slice called ``name``."""
    rows = trace.query(f"""
        select key, display_value from args where key not glob 'args.signature'
        and arg_set_id = (select arg_set_id from slice where name = '{name}' order by ts limit 1)
    """)
    return {row["key"].removeprefix("args."): row["display_value"] for row in rows}
