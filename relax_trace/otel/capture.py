"""Record the ops of the invocations whose thread has a tag, beside whatever else is recorded."""

from __future__ import annotations

import itertools
import logging
import struct
import threading
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import attach
from ..attach import Attachment
from ..errors import InstrumentError
from ..hub import hub
from ..labels import with_suffixes
from ..options import Options
from ..recorder.decode import Labels, to_trace_and_calls
from ..recorder.dumps import Dumps
from ..recorder.native import load
from ..recorder.records import Share
from ..trace import Trace

_log = logging.getLogger("relax_trace")

_TAGGED = 16  # flag of a wish, wishes.h
_WISH = (_TAGGED, 0, 0, 0, 0, 0, "")
_MEMORY = 64 << 20  # bytes, for what waits to be read
_TAG = struct.Struct("=5Q")  # tags.h: number, calls, calls with a tensor, ticks, ns
_NO_TAG = (0, 0, 0, 0)


@dataclass(frozen=True)
class Counts:
    """What ran under a tag: calls, those with a tensor among their arguments, time in ops."""

    calls: int
    tensors: int
    time_ns: int


# Of the process: an instrumentation may take the place of another in the middle of an invocation.
_tags = itertools.count(1)
# Tags that have not ended; what ran under each before another took its place.
_open: dict[int, Counts] = {}


@dataclass(frozen=True)
class Captured:
    """Ops of tagged invocations; ``tags`` and ``shift_ns`` have an entry for each invocation.

    ``shift_ns`` leads from the trace's clock to the wall clock as the invocation began.
    """

    trace: Trace
    tags: NDArray[np.uint32]
    shift_ns: NDArray[np.int64]
    lost: int  # ops, since the last time


class Capture:
    """A recording without an end, read as it goes on; ``Member`` of the hub."""

    def __init__(self, after_fork: Callable[[], None]) -> None:
        self.options = Options(memory_limit=_MEMORY, mode="ring")
        self.slot = -1
        self.since = 0
        self.dumps = Dumps()
        self._vms: weakref.WeakKeyDictionary[Any, Attachment] = weakref.WeakKeyDictionary()
        self._lock = threading.RLock()
        self._joined = False
        self._lost = 0
        self._forgotten: list[int] = []
        self._labels: Labels | None = None
        self._after_fork = after_fork

    def add(self, vm: Any) -> None:
        """Record this VM's tagged invocations; raises what ``attach.recordable`` does."""
        with self._lock:
            if vm in self._vms:
                return
            attach.recordable(vm)
            attachment = attach.attach(vm, self._give_up)
            try:
                if not self._joined:
                    hub.join(self)
                    self._joined = True
                attach.want(vm, attachment, self.slot, _WISH)
            except BaseException:
                attach.detach(vm, self._give_up)
                raise
            self._vms[vm] = attachment

    def remove(self, vm: Any) -> None:
        """Leave the VM alone; harmless where it is."""
        with self._lock:
            attachment = self._vms.pop(vm, None)
            if attachment:
                attach.unwant(vm, attachment, self.slot)
                attach.detach(vm, self._give_up)

    def stop(self) -> None:
        """Leave every VM alone."""
        with self._lock:
            for vm in list(self._vms):
                self.remove(vm)
            if self._joined:
                hub.leave(self)
                self._joined = False

    def begin(self) -> tuple[int, bytes]:
        """Tag what this thread invokes from now on; gives what :meth:`end` needs, the tag first."""
        tag = next(_tags) & 0xFFFFFFFF or next(_tags) & 0xFFFFFFFF
        before = load().tag(tag, *_NO_TAG[1:])
        around, calls, tensors, _, time_ns = _TAG.unpack(before)
        if around in _open:
            _open[around] = Counts(calls, tensors, time_ns)
        _open[tag] = Counts(0, 0, 0)
        return tag, before

    def end(self, begun: tuple[int, bytes]) -> Counts:
        """Undo :meth:`begin`; what ran meanwhile.

        Greenlets need not end in the order in which they began: where the thread has the tag of
        another by now, that stays, and what ran is known until then.
        """
        tag, before = begun
        ran = _open.pop(tag)
        around = _TAG.unpack(before)[:4]
        last = load().tag(*(around if around[0] in _open else _NO_TAG))
        now, calls, tensors, ticks, time_ns = _TAG.unpack(last)
        if now == tag:
            return Counts(calls, tensors, time_ns)
        load().tag(now, calls, tensors, ticks)
        return ran

    def forget(self, tag: int) -> None:
        """Nobody will ask for what ran under this tag."""
        self._forgotten.append(tag)

    def take(self, tags: Iterable[int]) -> Captured:
        """What ran under these tags, and has ended."""
        forgotten, self._forgotten = self._forgotten, []
        dumps = hub.take_tagged(self, np.array([*tags, *forgotten], np.uint32))
        trace, calls = to_trace_and_calls(dumps, Share(self.slot, self.since), self._labels_now())
        shift = calls["wall_ns"].astype(np.int64) - trace.invocations.start
        shift[calls["wall_ns"] == 0] = 0
        lost = dumps.losses.ops + dumps.losses.overwritten
        lost, self._lost = lost - self._lost, lost
        return Captured(trace, calls["tag"], shift, lost)

    def _labels_now(self) -> Labels:
        if self._labels is None:
            self._labels = with_suffixes(Labels({}, {}, (), "", {}))
        return self._labels

    def _give_up(self, vm: Any) -> None:
        """The application sets an instrument of its own."""
        self.remove(vm)
        _log.warning("a VirtualMachine was given an instrument: its invocations have no op spans")

    def notice(self, notice: NDArray[np.void]) -> None:
        """Nothing is asked for that would be told here."""

    def after_fork(self) -> None:
        """In a child process: without the parent's threads, and what they had recorded."""
        self._lock = threading.RLock()
        self.dumps.threads.clear()
        self._after_fork()


def try_to_add(capture: Capture, vm: Any) -> None:
    """Record the VM's ops if that can be; its invocations have spans in any case."""
    try:
        capture.add(vm)
    except (InstrumentError, TypeError) as reason:
        _log.warning("a VirtualMachine has no op spans: %s", reason)
