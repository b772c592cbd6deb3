"""Which invocations are slow: against a threshold, and against the earlier ones of their kind."""

from __future__ import annotations

import threading

import numpy as np
from numpy.typing import NDArray

from .finished import Ended
from .settings import Settings

FAILED, SLOW = "failed", "slow"

_FEWEST = 200  # earlier ones that a percentile is taken of
_MOST = 1000  # the latest of them
_AGAIN = 50  # how many more until it is taken anew
_KINDS = 256  # models and functions that are told apart; further ones have the threshold alone


class Slowness:
    """Remembers how long the invocations of each model and function took."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._known: dict[tuple[str, str], _Durations] = {}
        self.after_fork()

    def after_fork(self) -> None:
        """In a child process: a thread that it lacks may have held the lock."""
        self._lock = threading.Lock()

    def reason(self, invocation: Ended) -> str | None:
        """``"failed"``, ``"slow"``, or None; and learn how long it took."""
        seconds = invocation.seconds
        limit = self._settings.slow_seconds
        slow = limit > 0 and seconds > limit
        with self._lock:
            earlier = self._earlier(invocation)
            if earlier:
                slow = slow or seconds > earlier.limit
                earlier.add(seconds)
        if invocation.error_type:
            return FAILED
        return SLOW if slow else None

    def _earlier(self, invocation: Ended) -> _Durations | None:
        key = (invocation.model, invocation.function)
        found = self._known.get(key)
        if found is None and self._settings.slow_percentile > 0 and len(self._known) < _KINDS:
            found = self._known[key] = _Durations(self._settings.slow_percentile)
        return found


class _Durations:
    """The latest durations in seconds, and the ``limit`` that their percentile sets."""

    def __init__(self, percentile: float) -> None:
        self.limit = float("inf")
        self._percentile = percentile
        self._latest: NDArray[np.float64] = np.empty(_MOST)
        self._count = 0

    def add(self, seconds: float) -> None:
        self._latest[self._count % _MOST] = seconds
        self._count += 1
        if self._count >= _FEWEST and self._count % _AGAIN == 0:
            known = self._latest[: min(self._count, _MOST)]
            self.limit = float(np.percentile(known, self._percentile))
