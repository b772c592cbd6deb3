"""Chrome JSON: every event exactly as a JSON reader sees it."""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relax_trace import Losses, Thread, Trace, TraceFileError, load
from relax_trace.exporters import chrome
from relax_trace.signature import RESULT, Signatures
from relax_trace.trace import (
    ABORTED,
    FAILED,
    IMPLICIT,
    OPEN,
    SIGNATURE_LOST,
    SYNCHRONIZED,
)
from unit.random_traces import HOSTILE, contents, random_trace
from unit.traces import Call, Op, trace_of, words

_BASE = 1_764_576_000_123_456_789  # ns since the epoch: more digits than a double holds


def _saved(trace: Trace, folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The document as a reader sees it, exact decimals; and its complete events without refs."""
    trace.save(folder / "trace.json")
    document = json.loads((folder / "trace.json").read_text(), parse_float=Decimal)
    events = [event for event in document["traceEvents"] if event["ph"] == "X"]
    return document, [{k: v for k, v in event.items() if k != "refs"} for event in events]


def _shifted(rows: list[Any]) -> list[Any]:
    return [replace(row, start=row.start + _BASE, end=row.end + _BASE) for row in rows]


def _complete(name: str, category: str, tid: int, ts: str, dur: str, **args: Any) -> dict[str, Any]:
    times = {"ts": Decimal(ts), "dur": Decimal(dur)}
    return {"ph": "X", "name": name, "cat": category, "pid": 7, "tid": tid, "args": args} | times


def test_events_are_exactly_these(tmp_path: Path) -> None:
    """Two threads, nested ops, an invocation inside an op, ties, marks, and the file's head."""
    ops = [
        Op("alloc", 0, 0, "shape[64], 0", kind="builtin", device=None),
        Op("cond", 0, 9_000_000, kind="function"),
        Op("add", 1, 1_501, "float32[1, 64], (int64[], bool[2])", parent=1),
        Op("other", 500, 600, "float32[2]", "cuda0", invocation=1, thread=1, flags=ABORTED),
        Op("callback", 2_000, 3_000, kind="extern", flags=SIGNATURE_LOST),
        Op("mul", 2_000, 2_500, "float32[3]", "cuda1", invocation=2, flags=SYNCHRONIZED),
    ]
    calls = [
        Call(0, 9_000_000),
        Call(499, 1_000, "decode", thread=1, error=0, flags=FAILED | IMPLICIT),
        Call(2_000, 2_999, "inner", parent=0, flags=OPEN),
    ]
    trace = trace_of(
        _shifted(ops),
        _shifted(calls),
        threads=(Thread(7, 7, "MainThread"), Thread(7, 8, 'a "worker"')),
        vms=("model",),
        errors=("ValueError: bad\nshape",),
        process="serving",
        losses=Losses(ops=3),
        configuration={"Executor": "VM"},
    )
    document, events = _saved(trace, tmp_path)
    assert document["displayTimeUnit"] == "ns"
    assert document["baseTimeNanoseconds"] == _BASE
    losses = {"ops": 3, "invocations": 0, "signatures": 0, "overwritten": 0, "spans": 0}
    assert document["metadata"]["losses"] == losses
    assert document["metadata"]["configuration"] == {"Executor": "VM"}
    assert [event for event in document["traceEvents"] if event["ph"] == "M"] == [
        {"ph": "M", "name": "process_name", "pid": 7, "args": {"name": "serving"}},
        {"ph": "M", "name": "thread_name", "pid": 7, "tid": 7, "args": {"name": "MainThread"}},
        {"ph": "M", "name": "thread_name", "pid": 7, "tid": 8, "args": {"name": 'a "worker"'}},
    ]
    cpu = {"device": "cpu0"}
    add = {"signature": 2, "shapes": "float32[1, 64], (int64[], bool[2])", "invocation": 0}
    lost = {"arguments": "not recorded: the byte limit left no room", "invocation": 0}
    other = {
        "device": "cuda0",
        "times": "launch: the host's, the device may have worked on",
        "outcome": "aborted: it threw, or a throw passed through it",
        "signature": 3,
        "shapes": "float32[2]",
        "invocation": 1,
    }
    mul = {
        "device": "cuda1",
        "times": "synchronized: the device's",
        "signature": 4,
        "shapes": "float32[3]",
        "invocation": 2,
    }
    decode = {
        "vm": "model",
        "outcome": "failed",
        "start": "not seen: the function was taken before the recording",
        "error": "ValueError: bad\nshape",
        "invocation": 1,
    }
    running = {"end": "not seen: it was still running when the trace was taken"}
    alloc = {"signature": 1, "shapes": "shape[64], 0", "invocation": 0}
    assert events == [
        _complete("main", "invocation", 7, "0", "9000", vm="model", invocation=0),
        _complete("alloc", "builtin", 7, "0", "0", **alloc),
        _complete("cond", "function", 7, "0", "9000", **cpu, invocation=0),
        _complete("add", "kernel", 7, "0.001", "1.5", **cpu, **add),
        _complete("decode", "invocation", 8, "0.499", "0.501", **decode),
        _complete("other", "kernel", 8, "0.5", "0.1", **other),
        _complete("callback", "extern", 7, "2", "1", **cpu, **lost),
        _complete("inner", "invocation", 7, "2", "0.999", vm="model", **running, invocation=2),
        _complete("mul", "kernel", 7, "2", "0.5", **mul),
    ]


def test_a_copy_shows_where_it_goes(tmp_path: Path) -> None:
    """A result on another device than the arguments is the copy's destination."""
    result = words("float32[2]", "cuda1")
    signature = [*words("float32[2]"), RESULT << 56, *result]
    trace = trace_of([Op("to_device", 0, 1, "float32[2]")])
    trace = replace(trace, signatures=Signatures.from_lists([signature]))
    _, (_, event) = _saved(trace, tmp_path)
    assert event["args"] == {
        "device": "cpu0",
        "signature": 1,
        "shapes": "float32[2]",
        "destination": "cuda1",
        "invocation": 0,
    }


def test_hostile_texts_stay_texts(tmp_path: Path) -> None:
    """Quotes, markup, NUL and lone surrogates read back as they are; no element can be closed."""
    assert "</script><!--" in HOSTILE
    ops = [Op(text, i, i + 1) for i, text in enumerate(HOSTILE)]
    threads = (Thread(7, 7, HOSTILE[1]),)
    trace = trace_of(ops, threads=threads, vms=(HOSTILE[0],), process=HOSTILE[2])
    document, events = _saved(trace, tmp_path)
    # What JSON itself can't tell apart: two surrogates side by side are one character.
    seen = [json.loads(json.dumps(text)) for text in HOSTILE]
    assert [event["name"] for event in events] == ["main", *seen]
    assert events[0]["args"]["vm"] == HOSTILE[0]
    assert [e["args"]["name"] for e in document["traceEvents"][:2]] == [HOSTILE[2], HOSTILE[1]]
    raw = (tmp_path / "trace.json").read_bytes()
    assert b"</" not in raw
    assert raw.isascii()
    assert contents(load(tmp_path / "trace.json")) == contents(trace)


def test_a_long_text_is_cut_in_the_events_and_kept_in_the_file(tmp_path: Path) -> None:
    """A name of 10 MB is written once, and comes back whole; events show where it starts."""
    name = "é" * 5_000_000
    trace = trace_of([Op(name, i, i + 1) for i in range(100)])
    _, events = _saved(trace, tmp_path)
    assert {event["name"] for event in events[1:]} == {"é" * 4096 + "... (5,000,000 characters)"}
    assert (tmp_path / "trace.json").stat().st_size < 70_000_000
    assert load(tmp_path / "trace.json").names == trace.names


@pytest.mark.parametrize("size", [1, 7, 64])
def test_events_do_not_depend_on_the_slices(
    tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Events made a few at a time are those made all at once."""
    trace = random_trace(11)
    expected = _saved(trace, tmp_path)[0]
    monkeypatch.setattr(chrome, "_SLICE", size)
    monkeypatch.setattr(chrome, "_WORDS", 3 * size)
    assert _saved(trace, tmp_path)[0] == expected


def test_times_nest_to_the_nanosecond_and_follow_each_other(tmp_path: Path) -> None:
    """Ten thousand touching ops over a year: exact integers, in order, parents before children."""
    numbers = np.random.default_rng(12)
    steps = numbers.choice([0, 1, 999, 10**9, 3 * 10**12], 10_000)
    edges = [_BASE, *(np.cumsum(steps) + _BASE).tolist()]
    ops = [Op("add", a, b) for a, b in zip(edges[:-1], edges[1:], strict=True)]
    calls = [Call(edges[i], edges[i + 100]) for i in range(0, 10_000, 100)]
    ops = [replace(op, invocation=i // 100) for i, op in enumerate(ops)]
    _, events = _saved(trace_of(ops, calls), tmp_path)
    times = [(int(e["ts"] * 1000) + _BASE, int(e["dur"] * 1000)) for e in events]
    assert all(isinstance(e["ts"], Decimal) and e["ts"].as_tuple().exponent == -3 for e in events)
    expected = []
    for i, call in enumerate(calls):
        inside = [call, *ops[100 * i : 100 * i + 100]]
        expected += [(row.start, row.end - row.start) for row in inside]
    assert times == expected


def test_threads_that_share_an_id_get_a_track_each(tmp_path: Path) -> None:
    """The system gives the id of an ended thread to a new one; their tracks stay apart."""
    threads = (Thread(7, 8, "first"), Thread(7, 8, "second"), Thread(9, 8, "elsewhere"))
    ops = [Op("add", i, i + 1, thread=i) for i in range(3)]
    document, events = _saved(trace_of(ops, threads=threads), tmp_path)
    assert [(e["pid"], e["tid"]) for e in events[1:]] == [(7, 8), (7, 9), (9, 8)]
    names = [e for e in document["traceEvents"] if e["name"] == "process_name"]
    assert [e["pid"] for e in names] == [7, 9]
    assert load(tmp_path / "trace.json").threads == threads


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("refs", [0, 0, 0]),
        ("refs", [2**40, 0, 0, 0]),
        ("refs", [9, 0, 0, 0]),
        ("refs", ["a", 0, 0, 0]),
        ("ts", "1"),
        ("ts", None),
        ("dur", 1.5),
        ("args", {}),
        ("args", {"invocation": 2**70}),
        ("args", {"invocation": 0, "signature": 5}),
        ("cat", "invocation"),
        ("ph", None),
    ],
)
def test_a_hostile_event_is_refused(tmp_path: Path, key: str, value: Any) -> None:
    """An event with a field missing, of another type, or out of range raises our error."""
    file = tmp_path / "trace.json"
    trace_of([Op("add", 1, 2, "float32[2]"), Op("mul", 2, 3)]).save(file)
    document = json.loads(file.read_text())
    event = next(e for e in document["traceEvents"] if e["name"] == "add")
    event[key] = value
    file.write_text(json.dumps(document))
    with pytest.raises(TraceFileError, match="can't read"):
        load(file)


@pytest.mark.parametrize("damage", ["parent", "signatures.words", "signatures.offsets"])
@pytest.mark.parametrize("value", ["A", "é", "AAAA", 3, "AQAAAAAAAAA="])
def test_a_hostile_column_is_refused(tmp_path: Path, damage: str, value: Any) -> None:
    """Columns that are no base64, not whole numbers, or unfit for the trace raise our error."""
    file = tmp_path / "trace.json"
    trace_of([Op("add", 1, 2, "float32[2]")]).save(file)
    document = json.loads(file.read_text(), parse_float=lambda text: text)
    text = file.read_text().replace(json.dumps(document["metadata"][damage]), json.dumps(value), 1)
    file.write_text(text)
    with pytest.raises(TraceFileError, match="it is damaged"):
        load(file)


@pytest.mark.parametrize(
    "damage", ["invocations.trace_id", "invocations.span_id", "spans.start", "spans.trace_id"]
)
@pytest.mark.parametrize("value", ["A", "é", "AAAA", 3, "AQAAAAAAAAA=", ""])
def test_a_hostile_column_of_ids_is_refused(tmp_path: Path, damage: str, value: Any) -> None:
    """The same of columns that not every file has."""
    file = tmp_path / "trace.json"
    random_trace(13, ops=20, calls=5).save(file)
    text = file.read_text()
    stored = f'"{damage}":"'
    head, _, rest = text.partition(stored)
    file.write_text(f'{head}"{damage}":{json.dumps(value)}{rest.partition(chr(34))[2]}')
    with pytest.raises(TraceFileError, match="can't read"):
        load(file)
