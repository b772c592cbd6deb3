"""The instruments: how long invocations take, what their ops add up to, what was left out."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterable

from opentelemetry.metrics import (
    CallbackOptions,
    Meter,
    MeterProvider,
    Observation,
    get_meter,
)

from . import conventions as names
from .finished import Ended
from .losses import Losses
from .op_totals import MOST, OTHERS, Key, OpTotals

_BOUNDS_S = [
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
]


class Metrics:
    """The instruments of one MeterProvider, and what they count from its first use on.

    Another one begins anew, in this process or in a child, as with the SDK's own instruments.
    """

    def __init__(self, meter: Meter, losses: Losses) -> None:
        self.totals = OpTotals()
        self.losses = Losses(within=losses)
        self._lock = threading.Lock()
        self._active: dict[str, int] = {}
        self._duration = meter.create_histogram(
            names.INVOCATION_DURATION,
            unit="s",
            description="Duration of invocations of a Relax VM",
            explicit_bucket_boundaries_advisory=_BOUNDS_S,
        )
        # Observed: two calls into the SDK would cost each invocation as much as its span.
        meter.create_observable_up_down_counter(
            names.ACTIVE_INVOCATIONS,
            [self._running],
            unit="{invocation}",
            description="Invocations that run now",
        )
        meter.create_observable_counter(
            names.OP_TIME_TOTAL, [self._op_time], unit="s", description="Own time of recorded ops"
        )
        meter.create_observable_counter(
            names.OP_CALLS, [self._op_calls], unit="{call}", description="Calls of recorded ops"
        )
        meter.create_observable_counter(
            names.DROPPED, [self._dropped], unit="{record}", description="Ops without a span"
        )

    def after_fork(self) -> None:
        """In a child process: the invocations of the parent's threads are not there."""
        self._lock = threading.Lock()
        self._active = {}
        self.totals.after_fork()
        self.losses.after_fork()

    def begin(self, model: str) -> None:
        """An invocation begins."""
        with self._lock:  # a name that is known stays known: the end finds it again
            name = model if model in self._active or len(self._active) < MOST else OTHERS
            self._active[name] = self._active.get(name, 0) + 1

    def end(self, invocation: Ended) -> None:
        """It has ended; exemplars lead to its span."""
        with self._lock:
            name = invocation.model if invocation.model in self._active else OTHERS
            if self._active.get(name):  # not begun in a parent process
                self._active[name] -= 1
        attributes = {names.MODEL_NAME: invocation.model, names.FUNCTION: invocation.function}
        if invocation.error_type:
            attributes[names.ERROR_TYPE] = invocation.error_type
        self._duration.record(invocation.seconds, attributes, context=invocation.inside)

    def _running(self, _: CallbackOptions) -> Iterable[Observation]:
        with self._lock:
            active = list(self._active.items())
        return [Observation(count, {names.MODEL_NAME: model}) for model, count in active]

    def _op_time(self, _: CallbackOptions) -> Iterable[Observation]:
        for key, (time, _calls) in self.totals.now():
            yield Observation(time / 1e9, _attributes(key))

    def _op_calls(self, _: CallbackOptions) -> Iterable[Observation]:
        for key, (_time, calls) in self.totals.now():
            yield Observation(calls, _attributes(key))

    def _dropped(self, _: CallbackOptions) -> Iterable[Observation]:
        for reason, count in self.losses.counts.items():
            yield Observation(count, {names.DROPPED_REASON: reason})


def _attributes(key: Key) -> dict[str, str | int]:
    model, name, kind, device_type, device_id = key
    found: dict[str, str | int] = {names.MODEL_NAME: model, names.OP_NAME: name}
    if kind:
        found[names.OP_KIND] = kind
    if device_type:
        found |= {names.DEVICE_TYPE: device_type, names.DEVICE_ID: device_id}
    return found


class _Global:
    """Stands for whichever MeterProvider the application sets as the global one."""


_GLOBAL = _Global()
_made: weakref.WeakKeyDictionary[object, Metrics] = weakref.WeakKeyDictionary()


def metrics_of(provider: MeterProvider | None, version: str | None, losses: Losses) -> Metrics:
    """The provider's instruments, made once: the SDK ignores the callbacks of a second one."""
    key = provider or _GLOBAL
    if key not in _made:
        _made[key] = Metrics(get_meter(names.SCOPE, version or "", provider), losses)
    return _made[key]


def _after_fork() -> None:
    for metrics in list(_made.values()):
        metrics.after_fork()


os.register_at_fork(after_in_child=_after_fork)
