"""record() and profile(): what a user holds while op calls are recorded."""

from __future__ import annotations

import os
import sys
import threading
import warnings
import weakref
from dataclasses import replace
from types import TracebackType
from typing import Any, Literal

from .attach import Attachment, activate, attach, deactivate, detach, instrument_was_taken
from .errors import InstrumentError, RelaxTraceWarning
from .recorder.decode import Labels, extern_suffixes, to_trace
from .recorder.dumps import Dumps
from .recorder.native import load
from .report import Report
from .trace import Trace

Timing = Literal["host", "synchronized"]

MEMORY_LIMIT = 256 << 20  # bytes: room for some 8 million ops
SMALLEST_LIMIT = 1 << 20  # bytes: below, a thread's own tables leave no room for its ops
_LARGEST_LIMIT = (1 << 63) - 1  # what an argument of the recorder can hold
_DUMP_BYTES = 16 << 20  # handed over at a time, so that draining needs little memory of its own


class _Hub:
    """The recordings that run now, all fed by the one recorder of the process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: list[Recording] = []
        self._tables = Dumps()  # names and signatures known so far, which the recorder sends once

    def join(self, recording: Recording) -> None:
        """Let ``recording`` have every dump from now on; the largest limit asked for holds."""
        with self._lock:
            if self._running:
                self._drain()
            else:
                load().begin()
            recording.dumps = self._tables.tables()
            load().set_limit(max(other.memory_limit for other in (recording, *self._running)))
            self._running.append(recording)

    def leave(self, recording: Recording) -> None:
        """Hand ``recording`` what was recorded until now, and no more."""
        with self._lock:
            try:
                self._drain()
            finally:
                self._running.remove(recording)

    def _drain(self) -> None:
        more = True
        while more:
            known_names, known_signatures = self._tables.counts
            dump = bytes(load().dump(known_names, known_signatures, _DUMP_BYTES))
            for dumps in (self._tables, *(recording.dumps for recording in self._running)):
                dumps.add(dump)
            more = self._tables.more
            self._tables.threads.clear()

    def after_fork(self) -> None:
        """In a child process: a thread that the child lacks may have held the lock."""
        self._lock = threading.Lock()


_hub = _Hub()
os.register_at_fork(after_in_child=_hub.after_fork)


class Recording:
    """A recording of one VM, made by :func:`record`; a context manager.

    ``trace`` holds what was recorded once the ``with`` is left, or :meth:`stop` was called.
    """

    def __init__(self, vm: Any, timing: Timing, memory_limit: int) -> None:
        if timing not in ("host", "synchronized"):
            raise ValueError(f"timing must be 'host' or 'synchronized', not {timing!r}")
        if not isinstance(memory_limit, int):
            raise TypeError(f"memory_limit must be an integer, not a {type(memory_limit).__name__}")
        if memory_limit < SMALLEST_LIMIT:
            raise ValueError(
                f"memory_limit must be at least {SMALLEST_LIMIT} bytes (1 MiB), not {memory_limit}"
            )
        self.memory_limit = min(memory_limit, _LARGEST_LIMIT)
        self.dumps = Dumps()
        self._attachment: Attachment = attach(vm)
        self._vm = weakref.ref(vm)  # a recording keeps no VM alive
        self._synchronized = timing == "synchronized"
        self._windows: list[tuple[int, int]] = []
        self._since: int | None = None
        self._labels: Labels | None = None  # once it has ended
        self._trace: Trace | None = None
        try:
            _hub.join(self)
            self.resume()
        except BaseException:
            detach(vm)
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
        if self._since is None:
            return
        deactivate(self._vm(), self._attachment, self._synchronized)
        self._windows.append((self._since, load().now()))
        self._since = None

    def resume(self) -> None:
        """Record the invocations that begin from now on."""
        vm = self._vm()
        if self._since is not None or self._labels or vm is None:
            return
        self._since = load().now()
        activate(vm, self._attachment, self._synchronized)

    def stop(self) -> None:
        """End the recording and leave the VM as it was; a second call does nothing.

        Raises ``InstrumentError`` if something else took the VM's instrument meanwhile; ``trace``
        then holds what was recorded before.
        """
        if self._labels:
            return
        self._labels = _labels(self._attachment)  # now, while the threads are there to be named
        self.pause()
        _hub.leave(self)
        vm = self._vm()
        if vm is None:
            return
        detach(vm)
        if instrument_was_taken(vm, self._attachment):
            raise InstrumentError(
                "something replaced the instrument of this VirtualMachine during the recording "
                "(a set_instrument() on its module?): ops after that are missing from the trace"
            )

    @property
    def trace(self) -> Trace:
        """What was recorded. Raises ``RuntimeError`` while the recording runs."""
        if self._trace is None:
            if not self._labels:
                raise RuntimeError(
                    "the trace is there once the recording has ended: leave the `with`"
                )
            self._trace = to_trace(self.dumps, self._windows, _with_suffixes(self._labels))
            self.dumps = Dumps()  # as large as the trace, and of no more use
            _warn_if_empty(self._trace)
        return self._trace


def record(vm: Any, *, timing: Timing = "host", memory_limit: int = MEMORY_LIMIT) -> Recording:
    """Record the op calls of ``vm``, a ``tvm.relax.VirtualMachine``, until the ``with`` is left.

    ``timing="host"`` takes times around each call as the host sees it: on an asynchronous device
    those of the launch. ``"synchronized"`` waits for the device before and after each call.
    ``memory_limit`` in bytes holds for the process (the largest of those that record at a time):
    beyond it calls are dropped, and counted in ``trace.losses``.

    Raises ``TypeError`` for anything but a VM, ``InstrumentError`` if its instrument is in use,
    ``RecorderError`` if the native recorder can't be loaded, ``ValueError`` below 1 MiB.
    """
    return Recording(vm, timing, memory_limit)


def profile(
    vm: Any, function: str = "main", *args: Any, number: int = 1, repeat: int = 1
) -> Report:
    """Run ``vm[function](*args)`` once to warm up, then ``number * repeat`` times, and add it up.

    Times are synchronized with the device. Arguments may be tensors, numpy arrays, numbers, and
    tuples or lists of them. Raises what the call raises, and what :func:`record` does.
    """
    return profile_trace(vm, function, *args, number=number, repeat=repeat).report()


def profile_trace(
    vm: Any, function: str = "main", *args: Any, number: int = 1, repeat: int = 1
) -> Trace:
    """The calls that :func:`profile` adds up, one by one."""
    if number < 1 or repeat < 1:
        raise ValueError(f"number and repeat must be at least 1, not {number} and {repeat}")
    recording = record(vm, timing="synchronized")
    with recording:
        recording.pause()
        arguments: list[Any] = []
        for argument in args:
            vm._convert(argument, arguments)
        call = vm[function]
        call(*arguments)
        recording.resume()
        for _ in range(number * repeat):
            call(*arguments)
    return recording.trace


def _labels(attachment: Attachment) -> Labels:
    import tvm_ffi

    threads = tvm_ffi.get_global_func("runtime.NumThreads", allow_missing=True)
    configuration = {"Number of threads": str(threads())} if threads else {}
    return Labels(
        vms={attachment.number: "vm"},
        threads={
            thread.native_id: thread.name for thread in threading.enumerate() if thread.native_id
        },
        suffixes=(),
        process=os.path.basename(sys.argv[0]) or "python",
        configuration={**configuration, "Executor": "VM"},
    )


def _with_suffixes(labels: Labels) -> Labels:
    """The same with the endings of external functions' names: listing all names takes 5 ms."""
    import tvm_ffi

    suffixes = extern_suffixes(tvm_ffi.registry.list_global_func_names())
    return replace(labels, suffixes=suffixes)


def _warn_if_empty(trace: Trace) -> None:
    if len(trace.invocations) and not len(trace) and not trace.losses.ops:
        warnings.warn(
            "the VM ran and reported no op call, as one built with exec_mode='compiled' does: "
            "build the model with exec_mode='bytecode' (the default of tvm.compile) to see its ops",
            RelaxTraceWarning,
            stacklevel=3,
        )
