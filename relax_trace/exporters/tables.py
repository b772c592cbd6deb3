"""What the file formats share: the tables of a Trace as JSON, a Trace from tables and columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import spans as spans_model
from ..errors import TraceFileError
from ..signature import Signatures
from ..spans import spans_of
from ..trace import Device, Invocations, Losses, Thread, Trace, check

FORMAT = "relax_trace"
VERSION = 2  # its history is in native.py

OP_COLUMNS = {
    "start": "<i8",
    "end": "<i8",
    "name": "<i4",
    "signature": "<i4",
    "device": "<i4",
    "thread": "<i4",
    "invocation": "<i4",
    "parent": "<i4",
    "flags": "<u2",
}
INVOCATION_COLUMNS = {
    "start": "<i8",
    "end": "<i8",
    "function": "<i4",
    "vm": "<i4",
    "thread": "<i4",
    "parent": "<i4",
    "error": "<i4",
    "flags": "<u2",
    "trace_id": "|u1",  # of all rows, end to end
    "span_id": "<u8",
}
SPAN_COLUMNS = spans_model.COLUMNS
SINCE_2 = frozenset(
    {"invocations.trace_id", "invocations.span_id"} | {f"spans.{name}" for name in SPAN_COLUMNS}
)

Columns = Mapping[str, NDArray[Any]]


def to_json(trace: Trace) -> dict[str, Any]:
    """Everything of ``trace`` but its columns and the words of its signatures."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "process": _to_json_text(trace.process),
        "configuration": {
            _to_json_text(key): _to_json_text(value) for key, value in trace.configuration.items()
        },
        "losses": asdict(trace.losses),
        "names": [_to_json_text(name) for name in trace.names],
        "kinds": trace.kinds.tolist(),
        "devices": [[device.type, device.index] for device in trace.devices],
        "threads": [[t.pid, t.tid, _to_json_text(t.name)] for t in trace.threads],
        "vms": [_to_json_text(vm) for vm in trace.vms],
        "errors": [_to_json_text(error) for error in trace.errors],
        "span_names": [_to_json_text(name) for name in trace.spans.names],
    }


def check_version(tables: Any) -> None:
    """Raise ``TraceFileError`` where ``tables`` are not ours, or newer than this code."""
    if not isinstance(tables, dict) or tables.get("format") != FORMAT:
        raise TraceFileError("it was not written by relax_trace")
    version = tables.get("version")
    if type(version) is not int or version < 1:
        raise TraceFileError(f"it is damaged: its format version is {str(version)[:20]!r}")
    if version > VERSION:
        raise TraceFileError(
            f"it has format version {version}, this relax_trace reads up to {VERSION}: update it"
        )


def to_trace(
    tables: Any, ops: Columns, invocations: Columns, words: Columns, spans: Columns
) -> Trace:
    """The Trace of these ``tables`` (as from :func:`to_json`) and columns (of the types above).

    ``words`` are those of the signatures, with their ``offsets``. Columns that older files lack may
    be missing. Raises ``TraceFileError`` where anything else is, is of the wrong type, or points
    outside its table.
    """
    count = len(invocations["start"])
    ids: dict[str, NDArray[Any]] = {
        "trace_id": np.zeros(16 * count, np.uint8),
        "span_id": np.zeros(count, np.uint64),
    }
    ids |= {name: invocations[name] for name in ids if name in invocations}
    none = {name: np.empty(0, dtype) for name, dtype in SPAN_COLUMNS.items()}
    try:
        trace = Trace(
            **ops,
            names=tuple(map(_from_json_text, tables["names"])),
            kinds=np.frombuffer(bytes(_integers(tables["kinds"])), np.uint8),
            signatures=_signatures(words["words"], words["offsets"]),
            devices=tuple(Device(*_integers(device)) for device in tables["devices"]),
            threads=tuple(_thread(*thread) for thread in tables["threads"]),
            vms=tuple(map(_from_json_text, tables["vms"])),
            errors=tuple(map(_from_json_text, tables["errors"])),
            invocations=Invocations(
                **{**invocations, **ids, "trace_id": ids["trace_id"].reshape(-1, 16)}
            ),
            process=_from_json_text(tables["process"]),
            configuration={
                _from_json_text(key): _from_json_text(value)
                for key, value in tables["configuration"].items()
            },
            losses=_losses(tables["losses"]),
            spans=spans_of(
                {**none, **spans}, tuple(map(_from_json_text, tables.get("span_names", ())))
            ),
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        if isinstance(error, TraceFileError):
            raise
        raise TraceFileError("it is damaged: a table is missing or malformed") from error
    check(trace)
    return trace


def _losses(numbers: dict[str, Any]) -> Losses:
    numbers = {"overwritten": 0, "spans": 0, **numbers}  # older files are without them
    return Losses(*_integers([numbers[f.name] for f in fields(Losses)]))


def _signatures(words: NDArray[np.uint64], offsets: NDArray[np.int64]) -> Signatures:
    if not len(offsets) or offsets[0] != 0 or offsets[-1] != len(words):
        raise TraceFileError("it is damaged: its signatures are not as long as they should be")
    if (offsets[1:] < offsets[:-1]).any():
        raise TraceFileError("it is damaged: its signatures are out of order")
    return Signatures(words, offsets)


def _thread(pid: Any, tid: Any, name: Any) -> Thread:
    pid, tid = _integers([pid, tid])
    return Thread(pid, tid, _from_json_text(name))


def _integers(values: Any) -> list[int]:
    if any(type(value) is not int for value in values):
        raise TypeError("not an integer")
    return list(values)


# A Python string may hold two surrogates side by side, which JSON would read back as one character.
# So a string goes as its UTF-8 bytes, each a character of Latin-1: plain ASCII stays what it is.
def _to_json_text(text: str) -> str:
    return text.encode("utf-8", "surrogatepass").decode("latin-1")


def _from_json_text(text: str) -> str:
    return text.encode("latin-1").decode("utf-8", "surrogatepass")
