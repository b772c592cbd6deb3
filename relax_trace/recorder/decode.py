"""Turn the recorder's dumps into a Trace: put all calls in order, and compact the tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import TraceFileError
from ..ragged import Index, offsets_of
from ..signature import NO_DEVICE, Signatures
from ..trace import (
    BUILTIN,
    EXTERN,
    FUNCTION,
    KERNEL,
    Device,
    Invocations,
    Thread,
    Trace,
    check,
)
from .dumps import Dumps
from .records import Clock, Records, Share, ThreadTable, rank_of

_NAME_BUILTIN, _NAME_FUNCTION, _NAME_GLOBAL = 1, 2, 4  # names.h

# Code generators whose functions TVM names "<fused ops>_<generator>" (relax/backend), beside those
# that registered themselves in this process: see `extern_suffixes`.
_GENERATORS = (
    "clml",
    "coreml",
    "cublas",
    "cudnn",
    "cutlass",
    "dnnl",
    "hipblas",
    "nnapi",
    "tensorrt",
)


def extern_suffixes(registered: Iterable[str]) -> tuple[str, ...]:
    """Name endings of external functions, given the names of the registered global functions.

    The Relax code generator ``x`` is the global function ``relax.ext.x``.
    """
    found = {
        name.removeprefix("relax.ext.") for name in registered if name.startswith("relax.ext.")
    }
    return tuple(f"_{generator}" for generator in sorted(found | set(_GENERATORS)))


@dataclass(frozen=True)
class Labels:
    """What a dump doesn't say about itself, since only Python knows it."""

    vms: Mapping[int, str]  # names of the VMs, by number
    threads: Mapping[int, str]  # better names than the operating system's, by thread id
    suffixes: tuple[str, ...]  # of external functions, see extern_suffixes()
    process: str
    configuration: dict[str, str]


def to_trace(dumps: Dumps, share: Share, labels: Labels) -> Trace:
    """A recording's share of what the dumps hold.

    Raises ``TraceFileError`` where records point outside the tables they came with.
    """
    return to_trace_and_calls(dumps, share, labels)[0]


def to_trace_and_calls(
    dumps: Dumps, share: Share, labels: Labels
) -> tuple[Trace, NDArray[np.void]]:
    """The same, with the record of each row of ``trace.invocations``."""
    threads = [ThreadTable.of(records, dumps) for records in dumps.threads.values()]
    threads = [kept for kept in (table.keep(share) for table in threads) if len(kept.calls)]
    records = Records.of(threads)
    start, end, call_start, call_end = Clock.of(dumps).times(records)
    order = _in_order(start, records.ops["depth"])
    call_order = np.lexsort((records.calls["number"], call_start))
    parent = records.parent if order is _AS_IS else rank_of(order)[records.parent[order]]
    call_rank = rank_of(call_order)
    ops, calls = records.ops[order], records.calls[call_order]
    names, kinds, name, function = _names(dumps, labels.suffixes, ops["name"], calls["function"])
    errors, error = _errors(dumps, calls["error"])
    signatures, signature = _signatures(dumps, ops["signature"])
    invocation = call_rank[records.row[order]]
    devices, device = _devices(signatures, signature, invocation, len(calls))
    vms = sorted(set(calls["vm"].tolist()))
    trace = Trace(
        start=start[order],
        end=end[order],
        name=name,
        signature=signature,
        device=device,
        thread=records.thread[order],
        invocation=invocation,
        parent=parent.astype(np.int32, copy=False),
        flags=ops["flags"].astype(np.uint16),
        names=names,
        kinds=kinds,
        signatures=signatures,
        devices=devices,
        threads=tuple(
            Thread(dumps.pid, table.tid, labels.threads.get(table.tid, table.name))
            for table in threads
        ),
        vms=tuple(labels.vms.get(number, f"vm{number}") for number in vms),
        errors=errors,
        invocations=Invocations(
            start=call_start[call_order],
            end=call_end[call_order],
            function=function,
            vm=np.searchsorted(vms, calls["vm"]).astype(np.int32),
            thread=records.call_thread[call_order],
            parent=call_rank[records.call_parent[call_order]],
            error=error,
            flags=calls["flags"].astype(np.uint16),
            trace_id=np.ascontiguousarray(calls["trace_id"]),
            span_id=calls["span_id"].astype(np.uint64),
        ),
        process=labels.process,
        configuration=labels.configuration,
        losses=dumps.losses,
    )
    check(trace)
    return trace, calls


def _used(
    numbers: NDArray[np.uint32], known: int, what: str
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """The distinct numbers, and for each of ``numbers`` its place among them."""
    if len(numbers) and int(numbers.max()) > known:
        raise TraceFileError(f"the recorder's dump is damaged: it has no {what} {numbers.max()}")
    used = np.zeros(known + 1, bool)
    used[numbers] = True
    place = (np.cumsum(used) - 1).astype(np.int32)
    return np.flatnonzero(used), place[numbers]


_AS_IS = slice(None)  # as an index it gives a view, which costs nothing


def _in_order(start: Index, depth: NDArray[np.uint16]) -> Any:
    """Index that puts calls in order of their start, outer ones first; most come so already."""
    if (start[1:] > start[:-1]).all():
        return _AS_IS
    return np.lexsort((depth, start))


def _names(
    dumps: Dumps, suffixes: tuple[str, ...], ops: NDArray[np.uint32], functions: NDArray[np.uint32]
) -> tuple[tuple[str, ...], NDArray[np.uint8], NDArray[np.int32], NDArray[np.int32]]:
    used, place = _used(np.concatenate([ops, functions]), len(dumps.name_texts), "name")
    if len(used) and used[0] == 0:
        raise TraceFileError("the recorder's dump is damaged: a record without a name")
    named = [
        (
            dumps.name_texts[number - 1],
            _kind(dumps.name_flags[number - 1], dumps.name_texts[number - 1], suffixes),
        )
        for number in used.tolist()
    ]
    distinct = {entry: i for i, entry in enumerate(dict.fromkeys(named))}
    place = np.array([distinct[entry] for entry in named], np.int32)[place]
    kinds = np.array([kind for _, kind in distinct], np.uint8)
    return tuple(text for text, _ in distinct), kinds, place[: len(ops)], place[len(ops) :]


def _kind(flags: int, text: str, suffixes: tuple[str, ...]) -> int:
    if flags & _NAME_FUNCTION:
        return FUNCTION
    if flags & _NAME_BUILTIN:
        return BUILTIN
    return EXTERN if flags & _NAME_GLOBAL or text.endswith(suffixes) else KERNEL


def _errors(dumps: Dumps, numbers: NDArray[np.uint32]) -> tuple[tuple[str, ...], NDArray[np.int32]]:
    used, place = _used(np.append(numbers, np.uint32(0)), len(dumps.name_texts), "error text")
    # number 0 is in every table, and says that there was none
    return tuple(dumps.name_texts[number - 1] for number in used[1:].tolist()), place[
        :-1
    ] - np.int32(1)


def _signatures(dumps: Dumps, numbers: NDArray[np.uint32]) -> tuple[Signatures, NDArray[np.int32]]:
    used, place = _used(np.append(numbers, np.uint32(0)), dumps.signature_count, "signature")
    lengths = np.concatenate([np.zeros(1, np.int64), *dumps.word_counts])
    words = np.concatenate([np.empty(0, np.uint64), *dumps.words])
    return Signatures(words, offsets_of(lengths)).take(used), place[:-1]


def _devices(
    signatures: Signatures, signature: NDArray[np.int32], invocation: NDArray[np.int32], count: int
) -> tuple[tuple[Device, ...], NDArray[np.int32]]:
    """Device of each op: its last tensor argument's, else the first seen in its invocation."""
    codes = np.unique(signatures.devices[signatures.devices != NO_DEVICE])
    place = np.searchsorted(codes, signatures.devices).astype(np.int32)
    place[signatures.devices == NO_DEVICE] = -1
    device = place[signature]
    known = np.flatnonzero(device >= 0)
    first = np.full(count, -1, np.int32)
    first[invocation[known[::-1]]] = device[known[::-1]]  # the first op is written last, and stays
    device = np.where(device < 0, first[invocation], device)
    return tuple(Device(code >> 32, code & 0xFFFFFFFF) for code in codes.tolist()), device
