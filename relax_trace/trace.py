"""Trace: the recorded op calls as columns, beside small tables of what they refer to."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from .errors import TraceFileError
from .signature import Signatures

if TYPE_CHECKING:
    from .report import Report

KINDS = ("kernel", "builtin", "function", "extern")
KERNEL, BUILTIN, FUNCTION, EXTERN = range(4)

# Flags of an op call.
ABORTED = 1  # it threw (or was left by a throw); its end is when that was noticed
SYNCHRONIZED = 2  # the device was synchronised before and after: its times are the device's
SIGNATURE_LOST = 4  # its arguments are unknown: the byte limit left no room for a new signature

# Flags of an invocation.
FAILED = 1  # it raised; `error` says what
IMPLICIT = 2  # its function was taken before the recording: only its ops were seen
OPEN = 4  # it had not returned when the trace was taken; its end is that moment

# DLDeviceType of DLPack 1.1; the names are those that TVM prints.
_DEVICE_TYPES = {
    1: "cpu",
    2: "cuda",
    3: "cuda_host",
    4: "opencl",
    7: "vulkan",
    8: "metal",
    9: "vpi",
    10: "rocm",
    11: "rocm_host",
    12: "ext_dev",
    13: "cuda_managed",
    14: "oneapi",
    15: "webgpu",
    16: "hexagon",
    17: "maia",
    18: "trn",
}
CPU = 1


@dataclass(frozen=True)
class Device:
    """A device of the machine that ran the op: DLPack's ``device_type`` code, and its index."""

    type: int
    index: int

    @property
    def type_name(self) -> str:
        """``cpu``, ``cuda``, …, as TVM spells it."""
        return _DEVICE_TYPES.get(self.type, f"device_type{self.type}_")

    def __str__(self) -> str:
        """``cuda0``, as in TVM's report."""
        return f"{self.type_name}{self.index}"


@dataclass(frozen=True)
class Thread:
    """A thread that ran ops: its process, its id there (the operating system's), its name."""

    pid: int
    tid: int
    name: str


@dataclass(frozen=True)
class Invocations:
    """The calls from outside into a VM, one row each; all arrays are of shape ``(n,)``.

    ``start`` and ``end`` are int64 nanoseconds since the Unix epoch. ``function`` indexes
    ``Trace.names``, ``vm`` ``Trace.vms``, ``thread`` ``Trace.threads``; ``parent`` is the row of
    the one inside which it ran, or -1; ``error`` indexes ``Trace.errors``, or is -1; ``flags``
    holds ``FAILED``, ``IMPLICIT`` and ``OPEN``.
    """

    start: NDArray[np.int64]
    end: NDArray[np.int64]
    function: NDArray[np.int32]
    vm: NDArray[np.int32]
    thread: NDArray[np.int32]
    parent: NDArray[np.int32]
    error: NDArray[np.int32]
    flags: NDArray[np.uint16]

    def __len__(self) -> int:
        return len(self.start)


@dataclass(frozen=True)
class Losses:
    """What a recording could not keep, each a number; all 0 in a whole trace."""

    ops: int = 0  # calls dropped at the byte limit, or below the deepest nesting recorded
    invocations: int = 0  # invocations dropped at the byte limit
    signatures: int = 0  # calls kept without their arguments

    def __add__(self, other: Losses) -> Losses:
        return Losses(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))


@dataclass(frozen=True)
class Trace:
    """Every recorded op call, as columns of shape ``(n,)`` ordered by start, parents first.

    ``start``, ``end``: int64 ns since the Unix epoch. ``name`` indexes ``names``, ``signature``
    ``signatures`` (0: no argument), ``device`` ``devices`` (-1: unknown), ``thread`` ``threads``,
    ``invocation`` ``invocations``. ``parent`` is the row of the enclosing call, or -1 right under
    the invocation. ``flags``: ``ABORTED``, ``SYNCHRONIZED``, ``SIGNATURE_LOST``.
    ``kinds[name]`` indexes :data:`KINDS`. ``configuration`` are the lines under the classic table.
    """

    start: NDArray[np.int64]
    end: NDArray[np.int64]
    name: NDArray[np.int32]
    signature: NDArray[np.int32]
    device: NDArray[np.int32]
    thread: NDArray[np.int32]
    invocation: NDArray[np.int32]
    parent: NDArray[np.int32]
    flags: NDArray[np.uint16]
    names: tuple[str, ...]
    kinds: NDArray[np.uint8]
    signatures: Signatures
    devices: tuple[Device, ...]
    threads: tuple[Thread, ...]
    vms: tuple[str, ...]
    errors: tuple[str, ...]
    invocations: Invocations
    process: str = "python"
    configuration: dict[str, str] = field(default_factory=dict)
    losses: Losses = Losses()

    def __len__(self) -> int:
        """Number of op calls."""
        return len(self.start)

    def __repr__(self) -> str:
        devices = ", ".join(map(str, self.devices)) or "no device"
        functions = sorted({self.names[i] for i in self.invocations.function.tolist()})
        shown = ", ".join(map(repr, functions[:3])) + (", ..." if len(functions) > 3 else "")
        text = f"{len(self):,} ops in {len(self.invocations):,} invocations"
        text += (f" of {shown}" if functions else "") + f", {devices}, {len(self.threads)} threads"
        if len(self.invocations):
            span = self.invocations.end.max() - self.invocations.start.min()
            text += f", {span / 1e6:.3f} ms"
        if self.losses != Losses():
            text += f", dropped {self.losses.ops:,} ops"
        return f"<Trace: {text}>"

    @property
    def duration(self) -> NDArray[np.int64]:
        """Length of each call in ns, what it called included."""
        return self.end - self.start

    @property
    def kind(self) -> NDArray[np.uint8]:
        """Kind of each call, an index into :data:`KINDS`."""
        return self.kinds[self.name]

    def report(
        self, *, calls: Literal["tensors", "all"] = "tensors", inclusive: bool = False
    ) -> Report:
        """Add the calls up to TVM's classic per-op table.

        ``calls="tensors"`` lists the calls with a tensor among their arguments, ``"all"`` all.
        ``inclusive=True`` counts the time of nested calls in the calls around them as well.
        """
        from .report import Report

        return Report.from_trace(self, calls=calls, inclusive=inclusive)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the trace to ``path`` in the form its suffix names, whole or not at all.

        ``.npz`` is the native form, ``.json`` and ``.json.gz`` Chrome's. Raises ``TraceFileError``
        for another suffix, ``OSError`` where the file can't be written.
        """
        from .exporters import save

        save(self, path)

    def filter(
        self,
        *,
        invocation: int | Sequence[int] | None = None,
        kind: str | None = None,
        name: str | None = None,
        device: str | None = None,
    ) -> Trace:
        """The calls that meet every condition given; tables stay as they are.

        ``invocation``: a row of ``invocations``, or several; the others are dropped from the table.
        ``kind``: one of :data:`KINDS`. ``name``: a shell pattern, as ``"*conv2d*"``. ``device``: as
        ``"cpu0"``. A call whose parent goes is put under its nearest ancestor that stays.
        Raises ``ValueError`` for a kind or a device that the trace can't have.
        """
        keep = np.ones(len(self), bool)
        if kind is not None:
            if kind not in KINDS:
                raise ValueError(f"kind must be one of {', '.join(KINDS)}, not {kind!r}")
            keep &= self.kind == KINDS.index(kind)
        if name is not None:
            matches = [fnmatch.fnmatchcase(known, name) for known in self.names]
            keep &= np.array(matches, bool)[self.name]
        if device is not None:
            names = [str(known) for known in self.devices]
            if device not in names:
                raise ValueError(f"no device {device!r} in this trace; it has {', '.join(names)}")
            keep &= self.device == names.index(device)
        if invocation is None:
            return self._take_ops(keep)
        wanted = np.zeros(len(self.invocations), bool)
        wanted[np.asarray(invocation, np.int64)] = True
        return self.take_invocations(wanted, keep)

    def take_invocations(
        self, wanted: NDArray[np.bool_], keep: NDArray[np.bool_] | None = None
    ) -> Trace:
        """The invocations where the mask ``wanted`` is true, with their calls."""
        inside = wanted[self.invocation]
        trace = self._take_ops(inside if keep is None else keep & inside)
        renumbered = np.append(np.cumsum(wanted, dtype=np.int32) - 1, np.int32(-1))
        kept = Invocations(
            *(getattr(self.invocations, f.name)[wanted] for f in fields(Invocations))
        )
        parent = kept.parent
        outside = np.append(~wanted, False)  # the last entry answers for a parent of -1
        while outside[parent].any():
            parent = np.where(outside[parent], self.invocations.parent[parent], parent)
        kept = replace(kept, parent=renumbered[parent].astype(np.int32))
        return replace(
            trace, invocation=renumbered[trace.invocation].astype(np.int32), invocations=kept
        )

    def _take_ops(self, keep: NDArray[np.bool_]) -> Trace:
        if keep.all():
            return self
        outside = np.append(~keep, False)
        parent = self.parent[keep]
        while outside[parent].any():
            parent = np.where(outside[parent], self.parent[parent], parent)
        renumbered = np.append(np.cumsum(keep, dtype=np.int32) - 1, np.int32(-1))
        columns = ("start", "end", "name", "signature", "device", "thread", "invocation", "flags")
        taken = {column: getattr(self, column)[keep] for column in columns}
        return replace(self, **taken, parent=renumbered[parent].astype(np.int32))


def load(path: str | os.PathLike[str]) -> Trace:
    """Read a trace that :meth:`Trace.save` wrote: ``.npz``, ``.json`` or ``.json.gz``, by suffix.

    Raises ``TraceFileError`` for a file that is damaged or not one of ours, ``OSError`` where it
    can't be read.
    """
    from .exporters import load

    return load(path)


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
        rows["flags"].append(table.flags)
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
    )


def _merged_signatures(tables: list[Signatures]) -> tuple[Signatures, list[NDArray[np.int32]]]:
    spellings = []
    for table in tables:
        raw, bounds = table.words.tobytes(), (table.offsets * 8).tolist()
        spellings.append(tuple(raw[a:b] for a, b in zip(bounds[:-1], bounds[1:], strict=True)))
    distinct, maps = _merged(spellings)
    words = np.frombuffer(b"".join(distinct), np.uint64)
    lengths = np.fromiter((len(spelling) // 8 for spelling in distinct), np.int64, len(distinct))
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])
    return Signatures(words, offsets), maps


def check(trace: Trace) -> None:
    """Raise ``TraceFileError`` where a column points outside its table, or lengths differ.

    What comes from a file or from another machine passes here before anything else reads it.
    """
    ops, calls = trace, trace.invocations
    for f in fields(Trace)[:9]:
        if getattr(ops, f.name).shape != ops.start.shape:
            raise TraceFileError(f"column {f.name!r} does not have {len(ops)} rows like the others")
    for f in fields(Invocations):
        if getattr(calls, f.name).shape != calls.start.shape:
            raise TraceFileError(
                f"column {f.name!r} of the invocations is not {len(calls)} rows long"
            )
    if trace.kinds.shape != (len(trace.names),) or (trace.kinds >= len(KINDS)).any():
        raise TraceFileError("the table of names is damaged: a name without a known kind")
    _check_range("name", ops.name, 0, len(trace.names))
    _check_range("signature", ops.signature, 0, len(trace.signatures))
    _check_range("device", ops.device, -1, len(trace.devices))
    _check_range("thread", ops.thread, 0, len(trace.threads))
    _check_range("invocation", ops.invocation, 0, len(calls))
    _check_range("parent", ops.parent, -1, len(ops))
    _check_range("function", calls.function, 0, len(trace.names))
    _check_range("vm", calls.vm, 0, len(trace.vms))
    _check_range("invocations' thread", calls.thread, 0, len(trace.threads))
    _check_range("invocations' parent", calls.parent, -1, len(calls))
    _check_range("error", calls.error, -1, len(trace.errors))
    if (ops.parent >= np.arange(len(ops))).any():
        raise TraceFileError("column 'parent' is damaged: a call comes before its parent")
    if (ops.end < ops.start).any() or (calls.end < calls.start).any():
        raise TraceFileError("column 'end' is damaged: a call ends before it starts")
    if (np.diff(ops.start) < 0).any():
        raise TraceFileError("column 'start' is damaged: calls are not in order of their start")
    if len(trace.signatures) and trace.signatures.offsets[1] != 0:
        raise TraceFileError("the table of signatures is damaged: number 0 is not the empty one")
    if (calls.parent >= np.arange(len(calls))).any():
        raise TraceFileError("column 'parent' of the invocations is damaged: a parent comes later")


def _check_range(column: str, values: NDArray[Any], low: int, high: int) -> None:
    if len(values) and (values.min() < low or values.max() >= high):
        raise TraceFileError(f"column {column!r} points outside its table of {high} entries")
