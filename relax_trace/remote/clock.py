"""A remote recorder's clock against this process's: pings at the start and at the end."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from ..recorder.dumps import Dumps
from ..recorder.records import Clock

_PINGS = 50


@dataclass(frozen=True)
class Ping:
    """The quickest of some: the remote's clock in ticks, ours in ns since 1970, and the error.

    ``error_ns`` is half of the round trip: the answer was made at any moment of it.
    """

    ticks: int
    wall_ns: int
    error_ns: float


def ping(now: Callable[[], int]) -> Ping:
    """Ask the remote's clock some 50 times."""
    best = None
    for _ in range(_PINGS):
        before = time.time_ns()
        ticks = int(now())
        after = time.time_ns()
        if best is None or after - before < 2 * best.error_ns:
            best = Ping(ticks, (before + after) // 2, (after - before) / 2)
    assert best is not None
    return best


def clock_of(dumps: Dumps, first: Ping, last: Ping) -> tuple[Clock, float]:
    """The remote's ticks on our wall clock, and by how many ns that may be wrong.

    The rate is the remote's own, unless the pings prove that its clock drifts from ours.
    """
    own = Clock.of(dumps)
    best = min((first, last), key=lambda ping: ping.error_ns)
    ticks = last.ticks - first.ticks
    passed = last.wall_ns - first.wall_ns
    drift = passed - ticks * own.rate
    rate = own.rate
    if ticks > 0 and abs(drift) > first.error_ns + last.error_ns:
        rate = passed / ticks
    return Clock(best.ticks, best.wall_ns, rate, follows_wall=False), best.error_ns
