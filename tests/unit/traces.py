"""Traces by hand: from a readable list of calls."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from relax_trace import Device, Invocations, Thread, Trace
from relax_trace.signature import INT, SHAPE, TENSOR, TUPLE, Signatures
from relax_trace.trace import KINDS

_DTYPES = {
    "float32": 0x12002,
    "float16": 0x11002,
    "int64": 0x14000,
    "int32": 0x12000,
    "bool": 0x10806,
}
_DEVICE_TYPES = {"cpu": 1, "cuda": 2, "vulkan": 7, "hexagon": 16}


@dataclass(frozen=True)
class Op:
    """One call: name, start and end in ns, arguments as ``float32[1, 64], (int64[]), shape[3]``."""

    name: str
    start: int
    end: int
    arguments: str = ""
    device: str | None = "cpu0"
    kind: str = "kernel"
    parent: int = -1
    invocation: int = 0
    thread: int = 0
    flags: int = 0


@dataclass(frozen=True)
class Call:
    """One invocation: start and end in ns, and the function invoked."""

    start: int
    end: int
    function: str = "main"
    parent: int = -1
    thread: int = 0
    error: int = -1
    flags: int = 0
    trace_id: int = 0
    span_id: int = 0


def trace_of(ops: Sequence[Op], calls: Sequence[Call] | None = None, **tables: Any) -> Trace:
    """The trace of ``ops`` (parents first, by start) inside ``calls``, by default one around all.

    ``tables`` are further fields of ``Trace``, as ``configuration`` or ``losses``.
    """
    if calls is None:
        calls = [
            Call(min((op.start for op in ops), default=0), max((op.end for op in ops), default=0))
        ]
    keys = [(op.name, op.kind) for op in ops] + [(call.function, "function") for call in calls]
    names = list(dict.fromkeys(keys))
    devices = list(dict.fromkeys(op.device for op in ops if op.device is not None))
    spellings = list(dict.fromkeys((op.arguments, op.device) for op in ops if op.arguments))
    return Trace(
        **_columns(ops, "start end", np.int64),
        **_columns(ops, "thread invocation parent", np.int32),
        **_columns(ops, "flags", np.uint16),
        name=np.array([names.index((op.name, op.kind)) for op in ops], np.int32),
        signature=np.array(
            [1 + spellings.index((op.arguments, op.device)) if op.arguments else 0 for op in ops],
            np.int32,
        ),
        device=np.array([devices.index(op.device) if op.device else -1 for op in ops], np.int32),
        names=tuple(name for name, _ in names),
        kinds=np.array([KINDS.index(kind) for _, kind in names], np.uint8),
        signatures=Signatures.from_lists([words(*spelling) for spelling in spellings]),
        devices=tuple(map(device_of, devices)),
        invocations=Invocations(
            **_columns(calls, "start end", np.int64),
            **_columns(calls, "thread parent error", np.int32),
            **_columns(calls, "flags", np.uint16),
            function=np.array(
                [names.index((call.function, "function")) for call in calls], np.int32
            ),
            vm=np.zeros(len(calls), np.int32),
            trace_id=trace_ids([call.trace_id for call in calls]),
            **_columns(calls, "span_id", np.uint64),
        ),
        **{
            "threads": tuple(
                Thread(1, 1 + i, f"thread {i}")
                for i in range(1 + max([op.thread for op in ops] + [call.thread for call in calls]))
            ),
            "vms": ("vm",),
            "errors": (),
            **tables,
        },
    )


def trace_ids(numbers: Sequence[int]) -> Any:
    """A column of trace ids."""
    raw = b"".join(number.to_bytes(16, "big") for number in numbers)
    return np.frombuffer(raw, np.uint8).reshape(-1, 16)


def _columns(rows: Sequence[Any], fields: str, dtype: type) -> dict[str, Any]:
    return {name: np.array([getattr(row, name) for row in rows], dtype) for name in fields.split()}


def device_of(text: str) -> Device:
    """``"cuda1"`` as a device."""
    kind = text.rstrip("0123456789")
    return Device(_DEVICE_TYPES[kind], int(text[len(kind) :]))


def words(arguments: str, device: str | None = "cpu0") -> list[int]:
    """The words of a signature whose tensors all lie on ``device``."""
    where = device_of(device or "cpu0")
    out: list[int] = []
    tuples: list[int] = []  # where the tags of the tuples around lie

    def add(kind: int, count: int, info: int, *following: int) -> None:
        if tuples:
            out[tuples[-1]] += 1 << 32
        out.extend([kind << 56 | count << 32 | info, *following])

    for dtype, numbers, bracket, value in re.findall(r"(\w+)\[([\d, ]*)\]|([()])|(\d+)", arguments):
        dimensions = [int(number) for number in numbers.split(",") if number]
        if bracket == "(":
            add(TUPLE, 0, 0)
            tuples.append(len(out) - 1)
        elif bracket:
            tuples.pop()
        elif value:
            add(INT, 0, 0, int(value))
        elif dtype == "shape":
            add(SHAPE, len(dimensions), 0, *dimensions)
        else:
            add(
                TENSOR, len(dimensions), _DTYPES[dtype], where.type << 32 | where.index, *dimensions
            )
    return out
