"""Recording and record(): what a user holds while op calls are recorded."""

from __future__ import annotations

import fnmatch
import logging
import os
import threading
import time
import warnings
import weakref
from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import attach, reach, surroundings
from .alarms import Alarms
from .attach import Attachment
from .errors import InstrumentError, RelaxTraceWarning
from .hub import hub
from .labels import labels_now, with_suffixes
from .notices import CYCLE, FAILED, SLOW
from .options import MEMORY_LIMIT, Mode, OnReady, Options, Timing
from .recorder.decode import Labels, to_trace
from .recorder.dumps import Dumps
from .recorder.records import Clock, Share
from .schedules import Schedule
from .trace import ABORTED, Trace

_log = logging.getLogger("relax_trace")


class Recording:
    """A recording of one VM or of all, made by :func:`record`; a context manager.

    ``trace`` holds what was recorded once the ``with`` is left, or :meth:`stop` was called.
    """

    def __init__(self, vm: Any | None, name: str | None, options: Options) -> None:
        self.options = options
        self.dumps = Dumps()
        self.slot = -1
        self.since = 0
        self._everywhere = vm is None
        self._lock = threading.RLock()
        self._targets: dict[int, tuple[weakref.ref[Any], Attachment]] = {}
        self._attached: weakref.WeakSet[Any] = weakref.WeakSet()  # a recording keeps no VM alive
        self._module = None  # but a VM's module, which nothing else may hold
        self._alarms = Alarms(options.snapshots) if options.snapshots is not None else None
        self._paused = False
        self._labels: Labels | None = None  # once stop() was called
        self._ended = False
        self._ready: deque[Dumps] = deque()  # complete cycles
        self._trace: Trace | None = None
        if vm is None and name is not None:
            raise ValueError("name is what one VM is called: say which, with record(vm, name=...)")
        target = None if vm is None else attach.recordable(vm)
        if isinstance(target, attach.BareModule):
            if not options.held:
                raise ValueError("schedule and functions need a VirtualMachine, not its module")
            self._module = target
        hub.join(self)
        newest = options.mode == "ring" or options.schedule is not None
        self._watch = surroundings.watch(newest=newest)
        try:
            if target is None:
                reach.listen(self._add)
            else:
                self._take(target, name)
        except BaseException:
            self.stop()
            raise

    def __enter__(self) -> Recording:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.stop()
        except InstrumentError as taken:
            if error is None:
                raise
            warnings.warn(str(taken), RelaxTraceWarning, stacklevel=2)  # the user's own comes first

    def pause(self) -> None:
        """Leave out the invocations that begin from now on; they run the bare VM."""
        with self._lock:
            if not self._paused and not self._labels:
                self._paused = True
                self._unwant()

    def resume(self) -> None:
        """Record the invocations that begin from now on; a schedule begins anew."""
        with self._lock:
            if not self._paused or self._labels:
                return
            self._paused = False
            for vm in tuple(self._attached):
                self._want(vm)

    def stop(self) -> None:
        """End the recording and leave the VMs as they were; a second call does nothing.

        Cycles of a schedule that are complete have been handed to ``on_ready`` by then, unless
        that is what calls this: then they are in ``trace``. Raises ``InstrumentError`` if something
        else took the VM's instrument meanwhile; ``trace`` then holds what was recorded before.
        """
        with self._lock:
            if not self._labels:
                self._labels = self._labels_now()  # while the threads are there to be named
                if self._everywhere:
                    reach.forget(self._add)
                self._unwant()
        try:
            hub.leave(self)  # a second call too: it is not to return before the first is done
        finally:
            with self._lock:
                self._ended = True
                self._watch.close()
                taken = [vm for vm in tuple(self._attached) if self._detach(vm)]
        if taken:
            self._say_taken()

    def snapshot(self) -> Trace:
        """What was recorded until now, from any thread; the recording goes on.

        An invocation that is running has the flag ``OPEN``.
        """
        with self._lock:
            if self._ended:
                return self.trace
            dumps = hub.snapshot(self)
        return self._to_trace(dumps, with_suffixes(self._labels or self._labels_now()))

    @property
    def trace(self) -> Trace:
        """What was recorded, but for what ``on_ready`` was given.

        Raises ``RuntimeError`` while the recording runs.
        """
        with self._lock:
            if self._trace is None:
                if not self._ended or not self._labels:
                    raise RuntimeError(
                        "the trace is there once the recording has ended: leave the `with`, "
                        "or take a snapshot()"
                    )
                for cycle in self._ready:
                    self.dumps.put_back(cycle)
                self._trace = self._to_trace(self.dumps, with_suffixes(self._labels))
                self.dumps = Dumps()  # as large as the trace, and of no more use
                self._warn_if_empty(self._trace)
            return self._trace

    # ---- VMs come and go ----

    def _add(self, vm: Any) -> None:
        """One more VM of the process."""
        with self._lock:
            if self._labels or vm in self._attached:
                return
            try:
                self._take(attach.recordable(vm), None)
            except (InstrumentError, TypeError) as reason:
                _log.warning("a VirtualMachine is not recorded: %s", reason)

    def _take(self, vm: Any, name: str | None) -> None:
        attachment = attach.attach(vm, self._give_up if self._everywhere else None)
        attachment.name = name or attachment.name
        self._targets[attachment.number] = (weakref.ref(vm), attachment)
        self._attached.add(vm)
        if not self._paused:
            try:
                self._want(vm)
            except BaseException:
                self._detach(vm)
                raise

    def _want(self, vm: Any) -> None:
        attachment = attach.attachment_of(vm)
        attach.want(vm, attachment, self.slot, self.options.wish(held=not self._everywhere))

    def _unwant(self) -> None:
        for reference, attachment in self._targets.values():
            vm = reference()
            if vm is None or vm in self._attached:
                attach.unwant(vm, attachment, self.slot)

    def _detach(self, vm: Any) -> bool:
        """Leave the VM alone; whether somebody put another instrument in the place of ours."""
        self._attached.discard(vm)
        attach.detach(vm, self._give_up if self._everywhere else None)
        return attach.instrument_was_taken(vm)

    def _give_up(self, vm: Any) -> None:
        """The program sets an instrument of its own on a VM that it didn't ask us to record."""
        with self._lock:
            if vm not in self._attached:
                return  # it ended meanwhile
            attach.unwant(vm, attach.attachment_of(vm), self.slot)
            self._detach(vm)
        _log.warning("a VirtualMachine was given an instrument: its ops are recorded no more")

    def _say_taken(self) -> None:
        text = (
            "something replaced the instrument of this VirtualMachine during the recording "
            "(a set_instrument() on its module?): ops after that are missing from the trace"
        )
        if not self._everywhere:
            raise InstrumentError(text)
        warnings.warn(text, RelaxTraceWarning, stacklevel=3)

    # ---- what an invocation's end asks for ----

    def notice(self, notice: NDArray[np.void]) -> None:
        """Act on how an invocation ended: hand over a cycle, or write a file."""
        labels = self._labels or self._labels_now()
        try:  # the file first: what is handed over is no longer there
            if notice["reason"] & (FAILED | SLOW) and self._alarms and self._alarms.wanted():
                dumps = hub.snapshot(self)
                trace = self._to_trace(dumps, with_suffixes(labels))
                self._alarms.write(trace, self._why(dumps, notice))
        finally:
            if notice["reason"] & CYCLE and self.options.on_ready:
                cycles = hub.take_cycles(self)
                self._hand_over(self.options.on_ready, cycles, with_suffixes(labels))

    def _hand_over(self, on_ready: OnReady, cycles: list[Dumps], labels: Labels) -> None:
        self._ready.extend(cycles)
        while self._ready and not self._ended:  # on_ready may end it: then the rest is in `trace`
            if time.monotonic() > hub.deadline:
                left = len(self._ready)
                _log.warning("the program ended before on_ready was given the last %d cycles", left)
                return
            dumps = self._ready.popleft()
            try:
                on_ready(self._to_trace(dumps, labels, cycle=True))
            except BaseException:  # the user's own code: the next cycle is another one
                _log.exception("on_ready failed; the cycle that it was given is lost")

    def _why(self, dumps: Dumps, notice: NDArray[np.void]) -> str:
        number = int(notice["function"])
        function = dumps.name_texts[number - 1] if number else "(unknown)"
        if notice["reason"] & FAILED:
            return f"{function!r} failed"
        took = int(notice["end"] - notice["start"]) * Clock.of(dumps).rate
        return f"{function!r} took {took / 1e6:.3f} ms"

    def after_fork(self) -> None:
        """In a child process: a thread that the child lacks may have held the lock."""
        self._lock = threading.RLock()

    # ---- dumps to a trace ----

    def _labels_now(self) -> Labels:
        with self._lock:  # VMs may come meanwhile
            attachments = [attachment for _, attachment in self._targets.values()]
        return labels_now(attachments)

    def _to_trace(self, dumps: Dumps, labels: Labels, *, cycle: bool = False) -> Trace:
        trace = to_trace(dumps, Share(self.slot, self.since), labels)
        names, shortest = self.options.names, self.options.shortest_ns
        keep = np.ones(len(trace), bool)
        if names:
            matches = [
                any(fnmatch.fnmatchcase(known, name) for name in names) for known in trace.names
            ]
            keep &= np.array(matches, bool)[trace.name]
        if shortest:
            keep &= (trace.duration >= shortest) | (trace.flags & ABORTED > 0)
        return self._watch.put_into(trace.take_ops(keep), cycle=cycle)

    def _warn_if_empty(self, trace: Trace) -> None:
        options = self.options
        if len(trace) or trace.losses.ops or options.names or options.shortest_ns:
            return
        if len(trace.invocations):
            warnings.warn(
                "the VM ran and reported no op call, as one built with exec_mode='compiled' does: "
                "build the model with relax.build(..., exec_mode='bytecode'), which is the "
                "default, to see its ops",
                RelaxTraceWarning,
                stacklevel=3,
            )
        elif self._everywhere and self._targets and options.held:
            warnings.warn(
                "no invocation was seen: record() without a VM sees functions that are taken from "
                "a VM while it runs; record(vm) also sees those that were taken before",
                RelaxTraceWarning,
                stacklevel=3,
            )


def record(  # noqa: PLR0913 - each is one word to say about a recording
    vm: Any | None = None,
    *,
    name: str | None = None,
    timing: Timing = "host",
    memory_limit: int = MEMORY_LIMIT,
    mode: Mode = "stop",
    schedule: Schedule | None = None,
    on_ready: OnReady | None = None,
    functions: str | None = None,
    names: str | Sequence[str] = (),
    shortest_ns: int = 0,
    snapshots: str | os.PathLike[str] | None = None,
    slow_ns: int | None = None,
) -> Recording:
    """Record op calls until the ``with`` is left: those of ``vm``, or of every VM of the process.

    ``vm``: a ``tvm.relax.VirtualMachine``, or a VM's module. Without one, VMs that are made
    meanwhile are recorded as well, through the functions that are taken from them meanwhile.
    ``name`` is what the VM is called in timeline and report.

    ``timing="host"`` takes times around each call as the host sees it: on an asynchronous device
    those of the launch. ``"synchronized"`` waits for the device before and after each call.

    ``memory_limit`` in bytes holds for the process (the largest of those that record at a time).
    With ``mode="stop"`` calls beyond it are dropped; with ``"ring"`` they take the place of the
    oldest ones, as in a flight recorder (where only recordings of that mode run). Both are counted
    in ``trace.losses``.

    ``schedule``: which invocations to record, see :func:`schedule`; ``on_ready(trace)`` is called,
    on a thread of its own, with each cycle of a function on a VM (with several as one, where it
    falls thousands behind). ``functions``: record only
    invocations of the entry functions that match this shell pattern. ``names``: keep only calls
    that match one of these patterns. ``shortest_ns``: keep only calls that took this long, in ns.

    ``snapshots``: a folder that gets a file, at most every ten seconds, of all that is held when an
    invocation raises or, with ``slow_ns``, takes more than that many ns; the log says where.

    Raises ``TypeError`` for anything but a VM, ``InstrumentError`` if its instrument is in use,
    ``RecorderError`` if the native recorder can't be loaded, ``ValueError`` for other values.
    """
    options = Options(
        timing=timing,
        memory_limit=memory_limit,
        mode=mode,
        schedule=schedule,
        on_ready=on_ready,
        functions=functions,
        names=(names,) if isinstance(names, str) else tuple(names),
        shortest_ns=shortest_ns,
        snapshots=snapshots,
        slow_ns=slow_ns,
    )
    return Recording(vm, name, options)
