"""Time and calls of each op so far, which metrics read when they are collected."""

from __future__ import annotations

import threading
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from ..exporters.templates import distinct
from ..report.self_time import self_time
from ..trace import KINDS, Trace

MOST = 1000  # distinct ones, and as many models; the SDK's own limit for an instrument is 2,000
OTHERS = "(others)"  # all beyond that

# Model, op, kind, device type and id (-1: unknown).
Key = tuple[str, str, str, str, int]


class OpTotals:
    """Adds up the recorded ops: their own time, without that of calls inside them, in ns."""

    def __init__(self) -> None:
        self._totals: dict[Key, tuple[int, int]] = {}
        self.after_fork()

    def after_fork(self) -> None:
        """In a child process, which counts on: a thread that it lacks may have held the lock."""
        self._lock = threading.Lock()

    def add(self, trace: Trace, models: NDArray[np.int32], names: list[str]) -> None:
        """Add ops; ``models`` has for each invocation the place of its model's name, or -1."""
        model = models[trace.invocation]
        ours = np.flatnonzero(model >= 0)
        columns = (model[ours], trace.name[ours], trace.device[ours])
        rows, which = distinct(*columns)
        calls = np.bincount(which, minlength=len(rows)).tolist()
        times = np.zeros(len(rows), np.int64)
        np.add.at(times, which, self_time(trace)[ours])
        with self._lock:
            for of_model, name, device, time, number in zip(
                *(column[rows].tolist() for column in columns), times.tolist(), calls, strict=True
            ):
                self._add(_key(trace, names[of_model], name, device), time, number)

    def _add(self, key: Key, time: int, calls: int) -> None:
        if key not in self._totals and len(self._totals) >= MOST:
            key = (OTHERS, OTHERS, "", "", -1)
        before = self._totals.get(key, (0, 0))
        self._totals[key] = (before[0] + time, before[1] + calls)

    def now(self) -> Iterable[tuple[Key, tuple[int, int]]]:
        """Time in ns and number of calls of each."""
        with self._lock:
            return list(self._totals.items())


def _key(trace: Trace, model: str, name: int, device: int) -> Key:
    kind = KINDS[trace.kinds[name]]
    if device < 0:
        return model, trace.names[name], kind, "", -1
    where = trace.devices[device]
    return model, trace.names[name], kind, where.type_name, where.index
