"""A remote's ticks on this process's wall clock."""

from __future__ import annotations

import numpy as np
import pytest

from relax_trace.recorder.dumps import _READING, Dumps
from relax_trace.recorder.records import Clock
from relax_trace.remote import clock
from relax_trace.remote.clock import Ping, clock_of


def dumps_at(rate: float) -> Dumps:
    """Readings of a clock whose tick takes ``rate`` ns, a second apart."""
    first, now = np.zeros(2, _READING)
    first["ticks"], now["ticks"] = 1000, 1000 + round(1e9 / rate)
    first["monotonic_ns"], now["monotonic_ns"] = 5, 5 + 10**9
    return Dumps(first=first, now=now)


@pytest.mark.parametrize(
    ("drift_ns", "errors", "rate", "best"),
    [
        (0, (50, 40), 0.5, 1),
        (90, (50, 40), 0.5, 1),  # no more than the pings may be wrong by
        (-90, (40, 50), 0.5, 0),
        (91, (50, 40), 0.5 * (1 + 91e-9), 1),  # in a second
        (-1000, (50, 60), 0.5 * (1 - 1000e-9), 0),
    ],
)
def test_the_rate_is_the_remotes_own_unless_the_pings_prove_a_drift(
    drift_ns: int, errors: tuple[float, float], rate: float, best: int
) -> None:
    """And the better ping says which moment is which."""
    pings = [
        Ping(2000, 10**18, errors[0]),
        Ping(2000 + 2 * 10**9, 10**18 + 10**9 + drift_ns, errors[1]),
    ]
    found, error = clock_of(dumps_at(0.5), *pings)
    assert (found.ticks, found.wall_ns) == (pings[best].ticks, pings[best].wall_ns)
    assert found.rate == pytest.approx(rate, rel=1e-12)
    assert (error, found.follows_wall) == (min(errors), False)


def test_the_quickest_answer_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its middle is the moment, half its length the error."""
    times = iter([0, 100, 1000, 1020, 2000, 2060])
    monkeypatch.setattr(clock, "_PINGS", 3)
    monkeypatch.setattr(clock.time, "time_ns", lambda: next(times))
    ticks = iter([7, 8, 9])
    assert clock.ping(lambda: next(ticks)) == Ping(8, 1010, 10.0)


def test_nothing_recorded_yet() -> None:
    """Without a reading the remote's clock is taken to tick in ns."""
    found, _ = clock_of(Dumps(), Ping(10, 500, 3.0), Ping(10, 500, 3.0))
    assert found == Clock(10, 500, 1.0, follows_wall=False)
