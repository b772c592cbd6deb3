"""Act on how invocations ended, on a thread of its own: the recorder says it through a pipe.

So a call that ends a cycle, fails or takes long waits for nothing: neither for the interpreter nor
for what is then done with the trace.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import select
import struct
import termios
import threading
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from .recorder.native import load

FAILED, SLOW, CYCLE = 1, 2, 4  # reasons, wishes.h

_NOTICE = np.dtype(
    [
        ("start", "<u8"),
        ("end", "<u8"),
        ("slot", "<u4"),
        ("reason", "<u4"),
        ("vm", "<u4"),
        ("function", "<u4"),
    ]
)
_log = logging.getLogger("relax_trace")

_MOST = 2048  # notices that a pipe holds, 64 KiB
_NOW = (1 << 64) - 1  # ticks, later than any recording's beginning

Act = Callable[[NDArray[np.void]], None]


class Notices:
    """Takes the recorder's notices to ``act``, one after the other."""

    def __init__(self, act: Act) -> None:
        self._act = act
        self._reader = self._writer = -1
        self._start_over()

    def _start_over(self) -> None:
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._taken = self._done = 0  # notices read from the pipe, and acted on

    def listen(self) -> None:
        """Have the recorder tell, and a thread listen; a second call does nothing."""
        if self._thread:
            return
        if self._reader < 0:
            self._reader, self._writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        thread = threading.Thread(target=self._run, name="relax_trace", daemon=True)
        thread.start()
        self._thread = thread
        load().set_notify(self._writer)

    def deliver(self, slot: int | None = None, timeout: float | None = None) -> None:
        """Wait until what was told by now has been acted on; not where that waits for itself.

        With a ``slot``, look for cycles of its recording in any case: a pipe that was full may not
        have taken the word of the last one. Don't wait beyond ``timeout`` seconds.
        """
        if self._thread in (None, threading.current_thread()):
            return
        if slot is not None:
            self._tell(slot)
        with self._changed:
            told = self._taken + self._waiting()
            self._changed.wait_for(lambda: self._done >= told, timeout)

    def _tell(self, slot: int) -> None:
        notice = np.zeros(1, _NOTICE)
        notice["start"], notice["slot"], notice["reason"] = _NOW, slot, CYCLE
        room = select.poll()
        room.register(self._writer, select.POLLOUT)
        written = False
        while not written:
            room.poll()
            with contextlib.suppress(BlockingIOError):  # the recorder was faster
                written = os.write(self._writer, notice.tobytes()) > 0

    def _waiting(self) -> int:
        """Number of notices in the pipe."""
        size = fcntl.ioctl(self._reader, termios.FIONREAD, bytes(struct.calcsize("i")))
        return int(struct.unpack("i", size)[0]) // _NOTICE.itemsize

    def _run(self) -> None:
        told = select.poll()  # select() takes no file above 1023
        told.register(self._reader, select.POLLIN)
        while True:
            told.poll()
            with self._changed:
                notices = np.frombuffer(os.read(self._reader, _MOST * _NOTICE.itemsize), _NOTICE)
                self._taken += len(notices)
            for notice in _condensed(notices):
                self._try_to_act(notice)
            with self._changed:
                self._done += len(notices)
                self._changed.notify_all()

    def _try_to_act(self, notice: NDArray[np.void]) -> None:
        try:
            self._act(notice)
        except BaseException:  # the user's own code, or no memory; this thread has to go on
            _log.exception("a recording's trace could not be handed over")

    def after_fork(self, listen: bool) -> None:
        """In a child process: the pipe is the parent's, and the thread isn't there."""
        if self._reader >= 0:
            os.close(self._reader)
            os.close(self._writer)
            self._reader = self._writer = -1
        self._start_over()
        if listen:
            self.listen()


def _condensed(notices: NDArray[np.void]) -> NDArray[np.void]:
    """One word about cycles is enough for all that are complete by then: the last in each slot."""
    kept = notices.copy()
    cycles = (kept["reason"] & CYCLE) > 0
    for slot in np.unique(kept["slot"][cycles]):
        earlier = np.flatnonzero(cycles & (kept["slot"] == slot))[:-1]
        kept["reason"][earlier] &= np.uint32(~CYCLE & 0xFFFFFFFF)
    left: NDArray[np.void] = kept[kept["reason"] > 0]
    return left
