"""The ops of invocations: recorded as they run, made spans of afterwards, off the request's path.

How many spans an invocation gets is settled as it ends, so that its own span can say how many are
left out; which ones, and the spans themselves, are the worker's to make.
"""

from __future__ import annotations

import atexit
import threading
from typing import Any, Protocol

import numpy as np
from opentelemetry.trace import Span, SpanContext, Tracer, TracerProvider

from ..alarms import Alarms
from ..exporters.otlp.templates import text
from . import conventions as names
from .budgets import Budgets
from .capture import Capture, Captured, Counts, try_to_add
from .finished import Ended, Finished
from .losses import EXPORT, QUEUE, RATE, RING, SHUTDOWN, Losses
from .op_spans import SdkRoad
from .op_totals import OpTotals
from .selection import Selection, select
from .settings import Settings
from .slow_files import trace_of
from .slowness import Slowness
from .worker import Worker

_EXIT_SECONDS = 5.0  # that a process is held up for at its end


class Road(Protocol):
    """How op spans get to where they are collected."""

    def take(self, selection: Selection) -> int:
        """Make the spans; the number of those that could not be made, or sent."""

    def after_fork(self) -> None:
        """In a child process: do without what a thread of the parent may hold."""


class Ops:
    """What becomes of the ops of all instrumented VMs."""

    def __init__(
        self,
        settings: Settings,
        tracer: Tracer,
        provider: TracerProvider | None,
        losses: Losses,
        totals: OpTotals,
    ) -> None:
        self._settings = settings
        self._road = _road(settings, tracer, provider)
        self._slowness = Slowness(settings)
        self._files = Alarms(settings.slow_folder) if settings.slow_folder else None
        self._losses = losses
        self._totals = totals
        self._budgets = Budgets(settings)
        self._capture = Capture(self._after_fork)
        self._worker: Worker[Finished] = Worker(self._work, settings.queue)
        self._at_exit_registered = False
        self._stopped = False

    def add(self, vm: Any) -> None:
        """Record this VM's ops, where that can be."""
        try_to_add(self._capture, vm)

    def remove(self, vm: Any) -> None:
        """Record them no more."""
        self._capture.remove(vm)

    def stop(self) -> None:
        """Make the spans that are still to be made, and leave all VMs alone."""
        self._stopped = True  # what is still running has no spans of ops
        atexit.unregister(self._finish)
        self._at_exit_registered = False
        self._finish()
        self._capture.stop()

    def flush(self, seconds: float) -> bool:
        """Wait until the op spans of what has ended are made; False if that takes too long."""
        return self._worker.flush(seconds)

    def wanted(self, span: Span) -> bool:
        """Whether the ops of the invocation with this span are to be recorded."""
        ops = self._settings.ops
        unsampled_too = ops == "all" or (ops == "slow" and self._files is not None)
        return unsampled_too or span.is_recording()

    def begin(self) -> tuple[int, bytes]:
        """Record what this thread invokes from now on."""
        return self._capture.begin()

    def end(self, begun: tuple[int, bytes], span: Span, invocation: Ended) -> None:
        """Say on the invocation's span what ran in it, and have the ops' spans made."""
        tag, _ = begun
        counts = self._capture.end(begun)
        calls = counts.calls if self._settings.calls == "all" else counts.tensors
        context = span.get_span_context()
        reason = self._reason(invocation)
        wanted = calls if reason and self._has_spans(context) else 0
        granted = self._budgets.take(context.trace_id, wanted)
        self._losses.add(RATE, wanted - granted)
        finished = Finished(
            invocation,
            tag,
            granted,
            bool(reason and self._files and not context.trace_flags.sampled),
            threading.get_ident(),
            text(threading.current_thread().name),
        )
        if not self._put(finished):
            self._capture.forget(tag)
            self._losses.add(SHUTDOWN if self._stopped else QUEUE, granted or calls)
            granted = 0
        if span.is_recording():
            span.set_attributes(_summary(counts, calls, wanted - granted, reason))

    def _reason(self, invocation: Ended) -> str | None:
        """Why the invocation's ops become spans; None where they don't."""
        ops = self._settings.ops
        return self._slowness.reason(invocation) if ops == "slow" else ops

    def _has_spans(self, context: SpanContext) -> bool:
        """Whether op spans can be made under the one with this context."""
        always = self._settings.road == "sdk" and self._settings.ops == "all"  # the sampler's word
        return always or context.trace_flags.sampled

    def _put(self, finished: Finished) -> bool:
        if self._stopped:
            return False
        if not self._at_exit_registered:  # now: the provider's own, which runs after, is there
            self._at_exit_registered = True
            atexit.register(self._finish)
        return self._worker.put(finished, weighty=bool(finished.granted) or finished.to_file)

    # ---- on the worker ----

    def _work(self, finished: list[Finished]) -> None:
        captured = self._capture.take(one.tag for one in finished)
        self._losses.add(RING, captured.lost)
        self._add_up(captured, finished)
        granted = [one for one in finished if one.granted]
        if granted:
            every_call = self._settings.calls == "all"
            self._losses.add(EXPORT, self._road.take(select(captured, granted, every_call)))
        for one in finished:
            if one.to_file and self._files and self._files.wanted():
                self._files.write(*trace_of(captured, one))

    def _add_up(self, captured: Captured, finished: list[Finished]) -> None:
        models = list(dict.fromkeys(one.invocation.model for one in finished))
        of_tag = {one.tag: models.index(one.invocation.model) for one in finished}
        of_call = [of_tag.get(tag, -1) for tag in captured.tags.tolist()]
        self._totals.add(captured.trace, np.array(of_call, np.int32), models)

    # ---- the ends ----

    def _finish(self) -> None:
        if not self._worker.flush(_EXIT_SECONDS):
            self._losses.add(SHUTDOWN, sum(one.granted for one in self._worker.clear()))

    def _after_fork(self) -> None:
        self._worker.after_fork()
        self._budgets.after_fork()
        self._slowness.after_fork()
        self._road.after_fork()
        self._losses.after_fork()
        self._totals.after_fork()


def _road(settings: Settings, tracer: Tracer, provider: TracerProvider | None) -> Road:
    if settings.road == "sdk":
        return SdkRoad(tracer, provider)
    from .direct import DirectRoad  # needs the OTLP exporters

    return DirectRoad(provider)


def _summary(
    counts: Counts, calls: int, dropped: int, reason: str | None
) -> dict[str, str | int | float]:
    """What an invocation's span says of its ops."""
    found: dict[str, str | int | float] = {
        names.OP_COUNT: calls,
        names.OP_TIME: counts.time_ns / 1e9,
        names.OP_DROPPED: dropped,
        names.TIMING: "host",
    }
    if reason:
        found[names.CAPTURE_REASON] = reason
    return found
