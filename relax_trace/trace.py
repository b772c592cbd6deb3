"""Trace: the recorded op calls as columns, beside small tables of what they refer to."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from .errors import TraceFileError
from .ragged import Index
from .signature import Signatures
from .spans import Spans, check_spans, no_spans

if TYPE_CHECKING:
    from .exporters.otlp.sending import Sent
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
SAMPLED = 8  # the OpenTelemetry trace that it ran in is

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
    """The calls from outside into a VM, one row each; arrays are of shape ``(n,)`` but for one.

    ``start`` and ``end`` are int64 nanoseconds since the Unix epoch. ``function`` indexes
    ``Trace.names``, ``vm`` ``Trace.vms``, ``thread`` ``Trace.threads``; ``parent`` is the row of
    the one inside which it ran, or -1; ``error`` indexes ``Trace.errors``, or is -1; ``flags``
    holds ``FAILED``, ``IMPLICIT``, ``OPEN`` and ``SAMPLED``. ``trace_id``, ``(n, 16)``, and
    ``span_id`` are those of the OpenTelemetry span that was current as it began, zeros where there
    was none.
    """

    start: NDArray[np.int64]
    end: NDArray[np.int64]
    function: NDArray[np.int32]
    vm: NDArray[np.int32]
    thread: NDArray[np.int32]
    parent: NDArray[np.int32]
    error: NDArray[np.int32]
    flags: NDArray[np.uint16]
    trace_id: NDArray[np.uint8]
    span_id: NDArray[np.uint64]

    def __len__(self) -> int:
        return len(self.start)


@dataclass(frozen=True)
class Losses:
    """What a recording could not keep, each a number; all 0 in a whole trace."""

    ops: int = 0  # calls dropped at the byte limit, or below the deepest nesting recorded
    invocations: int = 0  # invocations dropped at the byte limit
    signatures: int = 0  # calls kept without their arguments
    overwritten: int = 0  # calls that newer ones took the place of, in ring mode
    spans: int = 0  # of the application's own, beyond 65,536

    def __add__(self, other: Losses) -> Losses:
        return Losses(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def __sub__(self, other: Losses) -> Losses:
        return Losses(*(getattr(self, f.name) - getattr(other, f.name) for f in fields(self)))


@dataclass(frozen=True)
class Trace:
    """Every recorded op call, as columns of shape ``(n,)`` ordered by start, parents first.

    ``start``, ``end``: int64 ns since the Unix epoch. ``name`` indexes ``names``, ``signature``
    ``signatures`` (0: no argument), ``device`` ``devices`` (-1: unknown), ``thread`` ``threads``,
    ``invocation`` ``invocations``. ``parent`` is the row of the enclosing call, or -1 right under
    the invocation. ``flags``: ``ABORTED``, ``SYNCHRONIZED``, ``SIGNATURE_LOST``.
    ``kinds[name]`` indexes :data:`KINDS`. ``configuration`` are the lines under the classic table.
    ``spans`` are the application's own, where it has a ``relax_trace.otel.TimelineSpanProcessor``.
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
    spans: Spans = field(default_factory=no_spans)

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
        if len(self.spans):
            text += f", {len(self.spans):,} spans of the application"
        if replace(self.losses, overwritten=0, spans=0) != Losses():
            text += f", dropped {self.losses.ops:,} ops"
        if self.losses.overwritten:
            text += f", overwrote {self.losses.overwritten:,} older ops"
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
        """Add the calls up to TVM's classic per-op table, statistics, or pandas DataFrames.

        ``calls="tensors"`` lists the calls with a tensor among their arguments, ``"all"`` all.
        ``inclusive=True`` counts the time of nested calls in the calls around them as well.
        """
        from .report import Report

        return Report.from_trace(self, calls=calls, inclusive=inclusive)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the trace to ``path`` in the form its suffix names, whole or not at all.

        ``.npz`` is the native form, ``.json`` and ``.json.gz`` Chrome's, ``.otlp.json`` and
        ``.otlp.pb`` OpenTelemetry's. Raises ``TraceFileError`` for another suffix, ``OSError``
        where the file can't be written, ``ExportError`` where OpenTelemetry is not installed.
        """
        from .exporters import save

        save(self, path)

    def send(
        self,
        *,
        endpoint: str | None = None,
        protocol: Literal["grpc", "http/protobuf"] | None = None,
        patience: float = 30.0,
        progress: Callable[[int, int, str], None] | None = None,
    ) -> Sent:
        """Send every call and invocation as a span to an OpenTelemetry receiver, and count them.

        Goes through OpenTelemetry's exporters: ``OTEL_EXPORTER_OTLP_*`` variables say where, unless
        ``endpoint`` (a base URL) and ``protocol`` do. A request that fails is tried again for
        ``patience`` seconds. ``progress(accepted, total, problem)`` is called as spans are taken,
        and before another try. Raises ``ExportError`` where a request can't be delivered.
        """
        from .exporters.otlp.sending import send

        return send(
            self, endpoint=endpoint, protocol=protocol, patience=patience, progress=progress
        )

    def filter(
        self,
        *,
        invocation: int | Sequence[int] | None = None,
        kind: str | None = None,
        name: str | None = None,
        device: str | None = None,
    ) -> Trace:
        """The calls that meet every condition given; tables and ``spans`` stay as they are.

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
            return self.take_ops(keep)
        wanted = np.zeros(len(self.invocations), bool)
        wanted[np.asarray(invocation, np.int64)] = True
        return self.take_invocations(wanted, keep)

    def take_invocations(
        self, wanted: NDArray[np.bool_], keep: NDArray[np.bool_] | None = None
    ) -> Trace:
        """The invocations where the mask ``wanted`` is true, with their calls."""
        inside = wanted[self.invocation]
        trace = self.take_ops(inside if keep is None else keep & inside)
        kept = Invocations(
            *(getattr(self.invocations, f.name)[wanted] for f in fields(Invocations))
        )
        parent = kept_parents(self.invocations.parent, wanted)
        kept = replace(kept, parent=parent.astype(np.int32))
        invocation = (np.cumsum(wanted) - 1)[trace.invocation]
        return replace(trace, invocation=invocation.astype(np.int32), invocations=kept)

    def take_ops(self, keep: NDArray[np.bool_]) -> Trace:
        """The calls where the mask ``keep`` is true, each under its nearest ancestor that stays."""
        if keep.all():
            return self
        columns = ("start", "end", "name", "signature", "device", "thread", "invocation", "flags")
        taken = {column: getattr(self, column)[keep] for column in columns}
        parent = kept_parents(self.parent, keep)
        return replace(self, **taken, parent=parent.astype(np.int32))


def kept_parents(parent: NDArray[np.integer[Any]], keep: NDArray[np.bool_]) -> Index:
    """For each row kept, the nearest of its ancestors that is, by its row among these; or -1."""
    outside = np.append(~keep, False)  # the last entry answers for a parent of -1
    nearest = parent[keep]
    while outside[nearest].any():
        nearest = np.where(outside[nearest], parent[nearest], nearest)
    rows: Index = np.append(np.cumsum(keep) - 1, -1)[nearest]
    return rows


def load(path: str | os.PathLike[str]) -> Trace:
    """Read a trace that :meth:`Trace.save` wrote: ``.npz``, ``.json`` or ``.json.gz``, by suffix.

    Raises ``TraceFileError`` for a file that is damaged or not one of ours, ``OSError`` where it
    can't be read.
    """
    from .exporters import load

    return load(path)


def check(trace: Trace) -> None:
    """Raise ``TraceFileError`` where a column points outside its table, or lengths differ.

    What comes from a file or from another machine passes here before anything else reads it.
    """
    ops, calls = trace, trace.invocations
    for f in fields(Trace)[:9]:
        if getattr(ops, f.name).shape != ops.start.shape:
            raise TraceFileError(f"column {f.name!r} does not have {len(ops)} rows like the others")
    for f in fields(Invocations):
        row = (16,) if f.name == "trace_id" else ()
        if getattr(calls, f.name).shape != (*calls.start.shape, *row):
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
    check_spans(trace.spans, len(trace.threads))


def _check_range(column: str, values: NDArray[Any], low: int, high: int) -> None:
    if len(values) and (values.min() < low or values.max() >= high):
        raise TraceFileError(f"column {column!r} points outside its table of {high} entries")
