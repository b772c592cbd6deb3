"""Act on how invocations ended, on a thread of its own: the recorder says it through a pipe.

So a call that ends a cycle, fails or takes long waits for nothing: neither for the interpreter nor
for what is then done with the trace.
"""

from __future__ import annotations

import logging
import os
import select
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

Act = Callable[[NDArray[np.void]], None]


class Notices:
    """Takes the recorder's notices to ``act``, one after the other."""

    def __init__(self, act: Act) -> None:
        self._act = act
        self._acting = threading.RLock()  # what acts may end a recording, which delivers
        self._reader = -1
        self._writer = -1

    def listen(self) -> None:
        """Have the recorder tell, and a thread listen; a second call does nothing."""
        if self._reader >= 0:
            return
        self._reader, self._writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        load().set_notify(self._writer)
        threading.Thread(target=self._run, name="relax_trace", daemon=True).start()

    def deliver(self) -> None:
        """Act on what was told until now; back when it is done, by whichever thread."""
        if self._reader < 0:
            return
        with self._acting:
            while told := self._read():
                self._try_to_act(np.frombuffer(told, _NOTICE)[0])

    def _try_to_act(self, notice: NDArray[np.void]) -> None:
        try:
            self._act(notice)
        except Exception:  # the user's own code, or no memory
            _log.exception("a recording's trace could not be handed over")

    def _read(self) -> bytes:
        try:
            return os.read(self._reader, _NOTICE.itemsize)
        except BlockingIOError:
            return b""

    def _run(self) -> None:
        while True:
            select.select([self._reader], [], [])
            self.deliver()

    def after_fork(self) -> None:
        """In a child process: the pipe is the parent's, and the thread isn't there."""
        self._acting = threading.RLock()
        if self._reader >= 0:
            os.close(self._reader)
            os.close(self._writer)
            self._reader = self._writer = -1
            self.listen()
