"""Our own Chrome JSON read back into the Trace that it was written from."""

from __future__ import annotations

import gzip
import json
import zlib
from base64 import b64decode
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import TraceFileError
from ..trace import Trace
from . import tables

_MALFORMED = (KeyError, TypeError, ValueError, AttributeError, OverflowError)

# What `refs` of an event refer to; before them stand whether it is an invocation, its ts, its dur,
# the invocation's number and the signature's.
_OP_REFS = ("name", "device", "thread", "flags")
_INVOCATION_REFS = ("function", "vm", "thread", "error", "flags")


def read(data: bytes) -> Trace:
    """The trace in ``data``. Raises ``TraceFileError`` where it is damaged or not one of ours."""
    document = _parse(data)
    metadata = document.get("metadata") if isinstance(document, dict) else None
    if not isinstance(metadata, dict) or metadata.get("format") != tables.FORMAT:
        raise TraceFileError(_not_ours(document))
    tables.check_version(metadata)
    try:
        ops, invocations = _events(document, metadata)
        words = {
            "words": _stored(metadata, "signatures.words").view(np.uint64),
            "offsets": _stored(metadata, "signatures.offsets"),
        }
        invocations |= _optional(metadata, "invocations.", ("trace_id", "span_id"))
        spans = _optional(metadata, "spans.", tuple(tables.SPAN_COLUMNS))
    except _MALFORMED as error:
        raise TraceFileError("it is damaged: an event or a column is malformed") from error
    return tables.to_trace(metadata, ops, invocations, words, spans)


def read_compressed(data: bytes) -> Trace:
    """As :func:`read`, of what gzip compressed."""
    try:
        return read(gzip.decompress(data))
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise TraceFileError(
            "it is cut short or damaged: copy it again, or save the trace again"
        ) from error


def _parse(data: bytes) -> Any:
    try:
        return json.loads(
            data.decode("utf-8"),
            parse_float=_nanoseconds,
            parse_constant=_nanoseconds,
            object_hook=_compact,
        )
    except (*_MALFORMED, RecursionError) as error:
        raise TraceFileError(
            "its JSON is cut short or damaged: copy it again, or save the trace again"
        ) from error


def _nanoseconds(microseconds: str) -> int | None:
    """Signed ns; None for what we never write, so that another tool's file is still told apart."""
    whole, _, decimals = microseconds.partition(".")
    if len(decimals) != 3 or not decimals.isdigit():
        return None
    value = int(whole + decimals)
    return value if value < 2**63 else value - 2**64


def _compact(members: dict[str, Any]) -> Any:
    """An event of ours as a tuple, which takes a fraction of the memory; all else as it is."""
    if members.get("ph") != "X" or "refs" not in members:
        return members
    args = members["args"]
    numbers = (members["ts"], members["dur"], args["invocation"], args.get("signature", 0))
    return (members["cat"] == "invocation", *numbers, *members["refs"])


def _not_ours(document: Any) -> str:
    if isinstance(document, list) or (isinstance(document, dict) and "traceEvents" in document):
        return "it is another tool's Chrome trace: open it in Perfetto, https://ui.perfetto.dev"
    return "it is JSON, but not a trace"


def _events(document: Any, metadata: Any) -> tuple[dict[str, NDArray[Any]], ...]:
    """The columns of the ops, and those of the invocations."""
    listed = document["traceEvents"]
    events = [event for event in listed if type(event) is tuple]
    if not all(_is_known(event) for event in listed if type(event) is not tuple):
        raise ValueError("an event is not one of ours")
    base = document["baseTimeNanoseconds"]
    calls = sorted((event for event in events if event[0]), key=lambda event: int(event[3]))
    rows = _matrix(calls, 5 + len(_INVOCATION_REFS))
    if (rows[:, 3] != np.arange(len(rows))).any():
        raise ValueError("an invocation is missing, or is there twice")
    invocations = _columns(rows, base, _INVOCATION_REFS, tables.INVOCATION_COLUMNS)
    invocations["parent"] = _parents(metadata, "invocations.parent", len(rows))
    rows = _matrix([event for event in events if not event[0]], 5 + len(_OP_REFS))
    ops = _columns(rows, base, _OP_REFS, tables.OP_COLUMNS)
    ops["invocation"], ops["signature"] = _narrow(rows[:, 3], "<i4"), _narrow(rows[:, 4], "<i4")
    ops["parent"] = _parents(metadata, "parent", len(rows))
    return ops, invocations


def _is_known(event: Any) -> bool:
    """Whether an event is one that we write for viewers alone: a track's name, an arrow, a span."""
    return event["ph"] in ("M", "s", "f") or (event["ph"], event.get("cat")) == ("X", "span")


def _optional(metadata: Any, prefix: str, names: tuple[str, ...]) -> dict[str, NDArray[Any]]:
    """Columns that are not in every file, with their types."""
    types = tables.SPAN_COLUMNS
    found = {name: _stored(metadata, prefix + name) for name in names if prefix + name in metadata}
    ids = ("trace_id", "span_id", "parent_id")
    return {
        name: words.view(types[name]) if name in ids else _narrow(words, types[name])
        for name, words in found.items()
    }


def _matrix(events: list[tuple[Any, ...]], width: int) -> NDArray[np.int64]:
    return np.array(events, np.int64).reshape(len(events), width)


def _columns(
    rows: NDArray[np.int64], base: int, refs: tuple[str, ...], types: dict[str, str]
) -> dict[str, NDArray[Any]]:
    """Start and end, and what the events refer to."""
    start = rows[:, 1] + np.int64(base)
    columns = {"start": start, "end": start + rows[:, 2]}
    return columns | {ref: _narrow(rows[:, 5 + i], types[ref]) for i, ref in enumerate(refs)}


def _narrow(values: NDArray[np.int64], dtype: str) -> NDArray[Any]:
    narrowed = values.astype(dtype)
    if (narrowed != values).any():
        raise ValueError("a number is out of range")
    return narrowed


def _stored(metadata: Any, name: str) -> NDArray[np.int64]:
    return np.frombuffer(b64decode(metadata[name], validate=True), "<i8")


def _parents(metadata: Any, name: str, count: int) -> NDArray[np.int32]:
    pairs = _stored(metadata, name).reshape(-1, 2)
    rows, parents = pairs[:, 0], pairs[:, 1]
    if len(rows) and not 0 <= rows.min() <= rows.max() < count:
        raise ValueError("a parent is given for a call that is not there")
    column = np.full(count, -1, np.int32)
    column[rows] = _narrow(parents, "<i4")
    return column
