"""How many op spans may be made: of an invocation, of a trace, and each second."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict

from .settings import Settings

_TRACES = 4096  # that are remembered; a trace rarely runs beside so many others


class Budgets:
    """Gives out room for op spans as invocations end."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._used: OrderedDict[int, int] = OrderedDict()  # spans of each trace
        self._left = float(settings.ops_per_second)
        self._at = time.monotonic()
        self.after_fork()

    def after_fork(self) -> None:
        """In a child process: a thread that it lacks may have held the lock."""
        self._lock = threading.Lock()

    def take(self, trace: int, wanted: int) -> int:
        """How many of the ``wanted`` spans may be made in the trace with this id."""
        with self._lock:
            self._refill()
            used = self._used.pop(trace, 0)
            of_trace = max(0, self._settings.ops_per_trace - used)
            taken = min(wanted, self._settings.ops_per_invocation, of_trace, int(self._left))
            self._used[trace] = used + taken
            if len(self._used) > _TRACES:
                self._used.popitem(last=False)
            self._left -= taken
            return taken

    def _refill(self) -> None:
        now = time.monotonic()
        most = self._settings.ops_per_second
        self._left = min(float(most), self._left + (now - self._at) * most)
        self._at = now
