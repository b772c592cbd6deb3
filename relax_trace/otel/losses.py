"""What could not become a span: counted by reason, and said once for each."""

from __future__ import annotations

import logging
import threading

_log = logging.getLogger("relax_trace")

RING = "ring"  # newer ops took their place in memory before they were read, or there was no room
QUEUE = "queue"  # too many invocations waited for their spans
RATE = "rate"  # beyond a budget
SHUTDOWN = "shutdown"  # the process ended
EXPORT = "export"  # they could not be made, or sent

_ADVICE = {
    RING: "the recorder's memory was full before they were read",
    QUEUE: "too many invocations waited for their op spans: is the exporter slow? See `queue`",
    RATE: "there were more than `ops_per_invocation`, `ops_per_trace` or `ops_per_second` allow",
    SHUTDOWN: "the process ended before they were made",
    EXPORT: "they could not be made, or not be sent; why was logged before",
}


class Losses:
    """Ops that have no span, by reason: of the process or, ``within`` those, a part of them."""

    def __init__(self, within: Losses | None = None) -> None:
        self.counts = dict.fromkeys(_ADVICE, 0)
        self._within = within
        self._lock = threading.Lock()

    def after_fork(self) -> None:
        """In a child process, which counts on: a thread that it lacks may have held the lock."""
        self._lock = threading.Lock()
        if self._within:
            self._within.after_fork()

    def add(self, reason: str, count: int) -> None:
        """``count`` more ops."""
        if count <= 0:
            return
        with self._lock:
            first = not self.counts[reason]
            self.counts[reason] += count
        if self._within:
            self._within.add(reason, count)
        elif first:
            _log.warning("op spans are left out: %s. This is said only once", _ADVICE[reason])
