"""Several traces as one: their tables merged, their calls in order of time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from .ragged import offsets_of
from .signature import Signatures
from .spans import COLUMNS, Spans, spans_of
from .trace import OPEN, Invocations, Losses, Trace

_Key = TypeVar("_Key")


def _merged(tables: list[tuple[_Key, ...]]) -> tuple[tuple[_Key, ...], list[NDArray[np.int32]]]:
    """One table of what several hold, and for each the new numbers of its entries (-1 stays -1)."""
    numbers: dict[_Key, int] = {}
    maps = []
    for table in tables:
        renumbered = [numbers.setdefault(entry, len(numbers)) for entry in table]
        maps.append(np.array([*renumbered, -1], np.int32))
    return tuple(numbers), maps


def concatenate(traces: Sequence[Trace]) -> Trace:
    """One trace of all the calls of several, in order of their start.

    Invocations follow each other in the order of ``traces``. Raises ``ValueError`` for none at all.
    """
    if not traces:
        raise ValueError("concatenate() needs at least one trace")
    kinds = [tuple(zip(trace.names, trace.kinds.tolist(), strict=True)) for trace in traces]
    names, name_maps = _merged(kinds)
    devices, device_maps = _merged([trace.devices for trace in traces])
    threads, thread_maps = _merged([trace.threads for trace in traces])
    vms, vm_maps = _merged([trace.vms for trace in traces])
    errors, error_maps = _merged([trace.errors for trace in traces])
    signatures, signature_maps = _merged_signatures([trace.signatures for trace in traces])
    columns: dict[str, list[NDArray[Any]]] = {f.name: [] for f in fields(Trace)[:9]}
    rows: dict[str, list[NDArray[Any]]] = {f.name: [] for f in fields(Invocations)}
    ops = calls = 0
    for i, trace in enumerate(traces):
        table = trace.invocations
        columns["start"].append(trace.start)
        columns["end"].append(trace.end)
        columns["name"].append(name_maps[i][trace.name])
        columns["signature"].append(signature_maps[i][trace.signature])
        columns["device"].append(device_maps[i][trace.device])
        columns["thread"].append(thread_maps[i][trace.thread])
        columns["invocation"].append(trace.invocation + np.int32(calls))
        columns["parent"].append(
            np.where(trace.parent < 0, -1, trace.parent + ops).astype(np.int32)
        )
        columns["flags"].append(trace.flags)
        rows["start"].append(table.start)
        rows["end"].append(table.end)
        rows["function"].append(name_maps[i][table.function])
        rows["vm"].append(vm_maps[i][table.vm])
        rows["thread"].append(thread_maps[i][table.thread])
        rows["parent"].append(np.where(table.parent < 0, -1, table.parent + calls).astype(np.int32))
        rows["error"].append(error_maps[i][table.error])
        for name in ("flags", "trace_id", "span_id"):
            rows[name].append(getattr(table, name))
        ops, calls = ops + len(trace), calls + len(table)
    whole = {column: np.concatenate(parts) for column, parts in columns.items()}
    order = np.argsort(whole["start"], kind="stable")
    rank = np.empty(ops + 1, np.int32)
    rank[order], rank[-1] = np.arange(ops), -1
    return Trace(
        **{column: values[order] for column, values in whole.items() if column != "parent"},
        parent=rank[whole["parent"][order]],
        names=tuple(name for name, _ in names),
        kinds=np.array([kind for _, kind in names], np.uint8),
        signatures=signatures,
        devices=devices,
        threads=threads,
        vms=vms,
        errors=errors,
        invocations=Invocations(**{name: np.concatenate(parts) for name, parts in rows.items()}),
        process=traces[0].process,
        configuration=traces[0].configuration,
        losses=sum((trace.losses for trace in traces), Losses()),
        spans=_merged_spans([trace.spans for trace in traces], thread_maps),
    )


def _merged_spans(tables: list[Spans], thread_maps: list[NDArray[np.int32]]) -> Spans:
    """All of them, and one that several traces have once: with its end if it is known."""
    names, name_maps = _merged([table.names for table in tables])
    columns = {name: np.concatenate([getattr(t, name) for t in tables]) for name in COLUMNS}
    for name, maps in (("name", name_maps), ("thread", thread_maps)):
        pairs = zip(maps, tables, strict=True)
        columns[name] = np.concatenate([numbers[getattr(t, name)] for numbers, t in pairs])
    columns["trace_id"] = columns["trace_id"].reshape(-1, 16)
    high, low = columns["trace_id"].view(np.uint64).reshape(-1, 2).T
    order = np.lexsort((columns["flags"] & OPEN, columns["span_id"], low, high))
    keys = np.stack([high, low, columns["span_id"]])[:, order]
    keep = np.append(True, (keys[:, 1:] != keys[:, :-1]).any(0))[: len(order)]
    keep |= keys[2] == 0
    order = np.sort(order[keep])
    order = order[np.argsort(columns["start"][order], kind="stable")]
    return spans_of({name: values[order] for name, values in columns.items()}, names)


def _merged_signatures(tables: list[Signatures]) -> tuple[Signatures, list[NDArray[np.int32]]]:
    spellings = []
    for table in tables:
        raw, bounds = table.words.tobytes(), (table.offsets * 8).tolist()
        spellings.append(tuple(raw[a:b] for a, b in zip(bounds[:-1], bounds[1:], strict=True)))
    distinct, maps = _merged(spellings)
    words = np.frombuffer(b"".join(distinct), np.uint64)
    lengths = np.fromiter((len(spelling) // 8 for spelling in distinct), np.int64, len(distinct))
    return Signatures(words, offsets_of(lengths)), maps
