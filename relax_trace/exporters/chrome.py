"""Chrome JSON (Trace Event Format), for Perfetto and ``chrome://tracing``.

A track a thread; on it a complete event (``"ph": "X"``) an invocation, and the ops nested in it.
Beside them are the application's own spans: see ``chrome_spans``.
``ts`` and ``dur`` are microseconds with three decimals, after ``baseTimeNanoseconds``: integers of
nanoseconds all the way, so that children never stick out of their parent. Events are in order of
time, parents first. ``refs``, which viewers ignore, and ``metadata`` let ``chrome_load`` read the
file back without loss. Format: "Trace Event Format" by the Chromium authors.
"""

from __future__ import annotations

import functools
from base64 import b64encode
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from .. import trace as model
from ..ragged import Bytes, Index, Part, Ragged, concatenate, offsets_of, stacked
from ..signature import NO_DEVICE
from ..trace import KINDS, Device, Thread, Trace
from . import tables
from .chrome_spans import Timeline, hexadecimal
from .events import Rows, slices
from .otlp.spans import big_endian
from .tables import SPAN_COLUMNS
from .templates import Number, distinct, json_bytes, numbers, shown, shown_all

_SLICE = 1 << 14  # events made at a time: enough to hide numpy's overhead, few enough for caches
_WORDS = 3 << 15  # 8-byte words encoded at a time: whole threes, so that base64 needs no padding

_OP_MARKS = {
    model.ABORTED: ("outcome", "aborted: it threw, or a throw passed through it"),
    model.SIGNATURE_LOST: ("arguments", "not recorded: the byte limit left no room"),
}
_INVOCATION_MARKS = {
    model.FAILED: ("outcome", "failed"),
    model.IMPLICIT: ("start", "not seen: the function was taken before the recording"),
    model.OPEN: ("end", "not seen: it was still running when the trace was taken"),
}


def write(trace: Trace, stream: BinaryIO) -> None:
    """Write ``trace`` to ``stream``, a bounded piece at a time."""
    columns = (trace.start, trace.invocations.start, trace.spans.start)
    starts = [column.min() for column in columns if len(column)]
    base = min(map(int, starts), default=0)
    tracks = _tracks(trace.threads)
    timeline = Timeline.of(trace, tracks, base) if len(trace.spans) else None
    stream.write(b'{"displayTimeUnit":"ns","baseTimeNanoseconds":%d,"metadata":' % base)
    stream.write(json_bytes(tables.to_json(trace))[:-1])
    for column in _columns(trace):
        stream.write(column)
    stream.write(b'},"traceEvents":[\n')
    stream.write(b",\n".join(map(json_bytes, _track_names(trace, tracks))))
    if timeline:
        for name in timeline.track_names():
            stream.write(b",\n" + json_bytes(name))
        stream.write(timeline.events().data)
    for events in _events(trace, tracks, base, timeline):
        stream.write(events.data)
    stream.write(b"\n]}\n")


def _columns(trace: Trace) -> Iterator[bytes]:
    """What the events don't say: further members, the base64 of little-endian 64-bit integers."""
    columns: dict[str, NDArray[Any]] = {
        "signatures.words": trace.signatures.words,
        "signatures.offsets": trace.signatures.offsets,
        "parent": _pairs(trace.parent),
        "invocations.parent": _pairs(trace.invocations.parent),
    }
    if trace.invocations.span_id.any() or trace.invocations.trace_id.any():
        for name in ("trace_id", "span_id"):
            columns[f"invocations.{name}"] = _words(getattr(trace.invocations, name))
    if len(trace.spans):
        columns |= {f"spans.{name}": _words(getattr(trace.spans, name)) for name in SPAN_COLUMNS}
    for name, values in columns.items():
        yield b',"%s":"' % name.encode()
        for first in range(0, len(values), _WORDS):
            part = values[first : first + _WORDS]
            yield b64encode(part.astype(part.dtype.newbyteorder("<")).tobytes())
        yield b'"'


def _words(values: NDArray[Any]) -> NDArray[Any]:
    """Numbers as 64-bit integers; of ids, the bytes that they are."""
    if values.dtype == np.uint8:
        return np.ascontiguousarray(values).reshape(-1).view("<i8")
    return values.astype(np.uint64) if values.dtype == np.uint64 else values.astype(np.int64)


def _pairs(parents: NDArray[np.int32]) -> Index:
    """Row and parent, in turn, of the rows that have one: few in a flat model."""
    rows = np.flatnonzero(parents >= 0)
    return np.stack([rows, parents[rows]], axis=1).reshape(-1)


def _tracks(threads: tuple[Thread, ...]) -> list[tuple[int, int]]:
    """``(pid, tid)`` of each thread; where the system used an id again, a free one instead."""
    taken: dict[tuple[int, int], None] = {}
    free = max((thread.tid for thread in threads), default=0) + 1
    for thread in threads:
        track = (thread.pid, thread.tid)
        if track in taken:
            track, free = (thread.pid, free), free + 1
        taken[track] = None
    return list(taken)


def _track_names(trace: Trace, tracks: list[tuple[int, int]]) -> Iterator[dict[str, Any]]:
    for pid in dict.fromkeys(pid for pid, _ in tracks):
        args = {"name": shown(trace.process)}
        yield {"ph": "M", "name": "process_name", "pid": pid, "args": args}
    for thread, (pid, tid) in zip(trace.threads, tracks, strict=True):
        args = {"name": shown(thread.name)}
        yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": args}


def _events(
    trace: Trace, tracks: list[tuple[int, int]], base: int, timeline: Timeline | None
) -> Iterator[Bytes]:
    """The bytes of all complete events, some at a time."""
    texts = shown_all(trace.signatures.texts)
    op_head = functools.cache(functools.partial(_op_head, trace, tracks))
    invocation_head = functools.cache(functools.partial(_invocation_head, trace, tracks))
    with_ids = trace.invocations.trace_id.any(1) | (trace.invocations.span_id > 0)
    for rows in slices(trace, _SLICE):
        ops, calls = rows.ops, trace.invocations
        op_heads, op_index = _heads(
            op_head, trace.flags[ops], trace.device[ops], trace.thread[ops], trace.name[ops]
        )
        columns = (calls.flags, calls.error, calls.thread, calls.vm, calls.function)
        heads, index = _heads(invocation_head, *(column[rows.invocations] for column in columns))
        none = np.zeros(len(index), np.int64)
        signature = rows.merge(trace.signature[ops].astype(np.int64), none)
        arguments = _arguments(trace, texts, signature)
        if with_ids[rows.invocations].any():
            arguments = _with_ids(trace, rows, arguments, with_ids)
        pieces: list[Part] = [
            (Ragged.from_bytes(op_heads + heads), rows.merge(op_index, index + len(op_heads))),
            arguments,
            _numbers(trace, rows, base),
        ]
        if timeline and timeline.led_to_calls[rows.invocations].any():
            ends, which = timeline.arrows_to(rows.invocations)
            pieces.append((ends, rows.merge(np.zeros(len(op_index), np.int64), which)))
        yield concatenate(len(rows.is_op), pieces).data


def _heads(
    render: Callable[..., bytes], *columns: NDArray[np.integer[Any]]
) -> tuple[list[bytes], Index]:
    """``render(...)`` of each distinct combination of the columns, and which one each row has."""
    rows, index = distinct(*columns)
    return [*map(render, *(column[rows].tolist() for column in columns))], index


def _op_head(
    trace: Trace, tracks: list[tuple[int, int]], flags: int, device: int, thread: int, name: int
) -> bytes:
    args = {"device": str(trace.devices[device])} if device >= 0 else {}
    if flags & model.SYNCHRONIZED:
        args["times"] = "synchronized: the device's"
    elif device >= 0 and trace.devices[device].type != model.CPU:
        args["times"] = "launch: the host's, the device may have worked on"
    args |= dict(mark for flag, mark in _OP_MARKS.items() if flags & flag)
    kind = KINDS[trace.kinds[name]]
    return _head(trace.names[name], kind, tracks[thread], [name, device, thread, flags], args)


def _invocation_head(
    trace: Trace,
    tracks: list[tuple[int, int]],
    flags: int,
    error: int,
    thread: int,
    vm: int,
    function: int,
) -> bytes:
    args = {"vm": shown(trace.vms[vm])}
    args |= dict(mark for flag, mark in _INVOCATION_MARKS.items() if flags & flag)
    if error >= 0:
        args["error"] = shown(trace.errors[error])
    refs = [function, vm, thread, error, flags]
    return _head(trace.names[function], "invocation", tracks[thread], refs, args)


def _head(
    name: str, category: str, track: tuple[int, int], refs: list[int], args: dict[str, str]
) -> bytes:
    """An event up to where its arguments go on with numbers."""
    event = {"ph": "X", "name": shown(name), "cat": category, "pid": track[0], "tid": track[1]}
    opened = json_bytes(event | {"refs": refs, "args": args})[:-2]
    return b",\n" + opened + (b"," if args else b"")


def _arguments(trace: Trace, texts: tuple[Ragged, Index], signature: Index) -> tuple[Ragged, Index]:
    """The arguments' part of each event: once for each signature that occurs, none for number 0."""
    rows, index = distinct(signature)
    used = signature[rows]
    some = used[used > 0]
    table, text_index = texts
    literal = numbers(len(some), [b'"signature":', Number(some.view(np.uint64)), b',"shapes":"'])
    parts: list[Part] = [literal, (table, text_index[some]), b'",', _destinations(trace, some)]
    pieces = concatenate(len(some), parts)
    nothing = offsets_of(np.zeros(len(used) - len(some), np.int64))
    return Ragged(pieces.data, np.concatenate([nothing[:-1], pieces.offsets])), index


def _with_ids(
    trace: Trace, rows: Rows, arguments: tuple[Ragged, Index], with_ids: NDArray[np.bool_]
) -> tuple[Ragged, Index]:
    """The same, with the ids of the span around an invocation in the place of its signature."""
    table, index = arguments
    calls, some = trace.invocations, rows.invocations[with_ids[rows.invocations]]
    ids = concatenate(
        len(some),
        [
            b'"trace_id":"',
            hexadecimal(calls.trace_id[some]),
            b'","span_id":"',
            hexadecimal(big_endian(calls.span_id[some])),
            b'",',
        ],
    )
    own = index[~rows.is_op]
    own[with_ids[rows.invocations]] = len(table) + np.arange(len(some))
    index = index.copy()
    index[~rows.is_op] = own
    return stacked([table, ids]), index


def _destinations(trace: Trace, signatures: Index) -> Part:
    devices = trace.signatures.destinations[signatures]
    rows, index = distinct(devices)
    spelt = [Device(code >> 32, code & 0xFFFFFFFF) for code in devices[rows].tolist()]
    return Ragged.from_bytes(
        [
            b'"destination":%s,' % json_bytes(str(device)) if code != NO_DEVICE else b""
            for device, code in zip(spelt, devices[rows].tolist(), strict=True)
        ]
    ), index


def _numbers(trace: Trace, rows: Rows, base: int) -> Bytes:
    ops, calls = rows.ops, trace.invocations
    start = rows.merge(trace.start[ops], calls.start[rows.invocations])
    end = rows.merge(trace.end[ops], calls.end[rows.invocations])
    invocation = rows.merge(trace.invocation[ops], rows.invocations)
    # Unsigned, so that no hostile time overflows: it wraps here, and wraps back when it is read.
    begin, length = start.view(np.uint64) - np.uint64(base % 2**64), (end - start).view(np.uint64)
    return numbers(
        len(rows.is_op),
        [
            b'"invocation":',
            Number(invocation.astype(np.uint64)),
            b'},"ts":',
            Number(begin, thousandths=True),
            b',"dur":',
            Number(length, thousandths=True),
            b"}",
        ],
    )
