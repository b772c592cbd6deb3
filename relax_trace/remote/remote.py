"""The recorder behind an RPC session: its hub, the calls made through it, drained as it goes.

A server's process dies with its connection, and takes along what was not handed over. So a thread
drains the recorder shortly after each call; no call waits for that, and none makes a round trip
more than without.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from ..errors import LostError
from ..hub import Hub
from ..notices import CYCLE, FAILED, SLOW, Act, Notice
from ..options import Options
from ..recorder.native import Native, load
from ..surroundings import current_context
from .calls import RemoteCall
from .clock import Ping, ping
from .sessions import is_remote, name_of, session_of
from .shipping import native_behind

_log = logging.getLogger("relax_trace")

_DRAIN_SECONDS = 0.5  # after a call: what a connection that dies can take along
_IDLE_SECONDS = 10.0  # after which the thread ends
_LATEST = (1 << 64) - 1  # ticks, later than any recording's beginning


class Remote:
    """One server's process, for as long as its session lives.

    The connection is open as long as anything holds one of the recorder's functions: nothing here
    holds one for longer than a VM, or a recording that runs.
    """

    def __init__(self, session: Any) -> None:
        native = native_behind(session, name_of(session))
        self.name = name_of(session)
        self.native: Native = native
        self.configuration = _configuration(session)
        self._calls = Calls()
        self.hub = Hub(lambda: native, self._calls.told_to)
        self._calls.drains(self.hub)

    def ping(self) -> Ping | None:
        """How its clock stands against ours; None where it is lost."""
        try:
            return ping(self.native.now)
        except LostError as error:
            self.hub.lost = self.hub.lost or str(error)
            return None

    def listen(self, listener: Callable[[RemoteCall], Notice | None]) -> None:
        """Have ``listener`` told of each call; what it returns is acted on, on another thread."""
        self._calls.listeners.append(listener)

    def forget(self, listener: Callable[[RemoteCall], Notice | None]) -> None:
        """Undo :meth:`listen`."""
        if listener in self._calls.listeners:
            self._calls.listeners.remove(listener)
        if not self._calls.listeners:
            self._calls.rest()

    def wrap(self, function: Any, vm: int, name: str) -> Any:
        """A remote function whose calls are told."""
        return _Function(function, self._calls, vm, name)


class Calls:
    """Tells of calls, and does what has to follow on a thread of its own; a hub's ``Tell``."""

    def __init__(self) -> None:
        self.listeners: list[Callable[[RemoteCall], Notice | None]] = []
        self._hub: Callable[[], Hub | None] = lambda: None
        self._act: Callable[[], Act | None] = lambda: None
        self._start_over()

    def _start_over(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[Notice | None] = deque()  # None: there is something to drain
        self._put = self._done = 0
        self._resting = False
        self._thread: threading.Thread | None = None

    def told_to(self, act: Act) -> Calls:
        """Take notices to ``act``, a method; not held, as it holds the connection."""
        self._act = weakref.WeakMethod(act)
        return self

    def drains(self, hub: Hub) -> None:
        """Have the hub drained after calls."""
        self._hub = weakref.ref(hub)

    def told(self, call: RemoteCall) -> None:
        """A call has ended."""
        for listener in tuple(self.listeners):
            self._leave(listener(call))

    def _leave(self, notice: Notice | None) -> None:
        with self._changed:
            self._resting = False
            if notice or not self._waiting:
                self._waiting.append(notice)
                self._put += 1
            if not self._thread:
                self._thread = threading.Thread(target=self._run, name="relax_trace", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def rest(self) -> None:
        """Let the thread end."""
        with self._changed:
            self._resting = True
            self._changed.notify_all()

    def listen(self) -> None:
        """Nothing has to be told to the recorder: calls are seen here."""

    def deliver(self, slot: int | None = None, timeout: float | None = None) -> None:
        """Wait until what ended by now has been acted on; not where that waits for itself."""
        if self._thread is threading.current_thread():
            return
        if slot is not None:
            self._leave(Notice(slot, CYCLE, _LATEST))
        with self._changed:
            put = self._put
            self._changed.wait_for(lambda: self._done >= put, timeout)

    def after_fork(self, listen: bool) -> None:
        """In a child process: the connection is the parent's."""
        self._start_over()
        hub = self._hub()
        if hub:
            hub.lost = "the connection belongs to the parent process"

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._resting, _IDLE_SECONDS)
                if not self._waiting:
                    self._thread = None
                    return
                if self._waiting[0] is None:
                    self._changed.wait_for(
                        lambda: len(self._waiting) > 1 or self._resting, _DRAIN_SECONDS
                    )
                notices = list(self._waiting)
                self._waiting.clear()
            for notice in notices:
                self._follow(notice)
            with self._changed:
                self._done += len(notices)
                self._changed.notify_all()

    def _follow(self, notice: Notice | None) -> None:
        try:
            act, hub = self._act(), self._hub()
            if notice and act:
                act(notice)
            elif hub:
                hub.drain()
        except BaseException:  # the user's own code, or no memory; this thread has to go on
            _log.exception("a recording's trace could not be handed over")


class _Function:
    """A function of a remote VM; as the one it stands for, but that its calls are told."""

    def __init__(self, function: Any, calls: Calls, vm: int, name: str) -> None:
        functools.update_wrapper(self, function, updated=())
        self._function = function
        self._calls = calls
        self._vm = vm
        self._name = name

    def __call__(self, *args: Any) -> Any:
        if not self._calls.listeners:
            return self._function(*args)
        context = current_context()
        start = time.time_ns()
        error: str | None = None
        try:
            return self._function(*args)
        except BaseException as raised:
            error = f"{type(raised).__name__}: {str(raised).strip()}"
            raise
        finally:
            end = max(start, time.time_ns())
            name = self._name
            if name == "invoke_stateful" and args and isinstance(args[0], str):
                name = args[0]
            thread = threading.current_thread()
            self._calls.told(
                RemoteCall(
                    self._vm,
                    name,
                    start,
                    end,
                    threading.get_native_id(),
                    thread.name,
                    error,
                    context,
                )
            )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._function, name)


def notice_of(call: RemoteCall, options: Options, slot: int) -> Notice | None:
    """What a recording in ``slot`` asked to be told of how this call ended."""
    took = call.end - call.start
    reason = CYCLE * (options.on_ready is not None)
    said = ""
    if options.snapshots is not None and call.error:
        reason, said = reason | FAILED, f"{call.function!r} failed"
    elif options.slow_ns is not None and took > options.slow_ns:
        reason, said = reason | SLOW, f"{call.function!r} took {took / 1e6:.3f} ms"
    return Notice(slot, reason, _LATEST, said=said) if reason else None


_remotes: weakref.WeakKeyDictionary[Any, Remote] = weakref.WeakKeyDictionary()
_lock = threading.RLock()


def recorder_of(vm: Any) -> tuple[Native, Remote | None]:
    """The recorder where a VM runs, and the remote, if that is another process.

    Raises ``RecorderError`` where there is no recorder, and none can be brought there.
    """
    if not is_remote(vm):
        return load(), None
    from tvm.rpc.client import LocalSession

    session = session_of(vm)
    with _lock:
        if isinstance(session, LocalSession):  # this process, but the VM is known to it by handle
            return native_behind(session, "rpc.LocalSession()"), None
        if session not in _remotes or _remotes[session].hub.lost:
            _remotes[session] = Remote(session)
        return _remotes[session].native, _remotes[session]


def _configuration(session: Any) -> dict[str, str]:
    """What the server says of itself, as the classic table shows it."""
    try:
        return {"Number of threads": str(session.get_function("runtime.NumThreads")())}
    except AttributeError:
        return {}


def _after_fork() -> None:
    global _lock  # noqa: PLW0603
    _lock = threading.RLock()
    for remote in list(_remotes.values()):
        remote.hub.after_fork_in_child()


os.register_at_fork(after_in_child=_after_fork)
