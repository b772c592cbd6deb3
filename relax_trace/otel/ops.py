"""The ops of invocations: recorded as they run, made spans of afterwards, off the request's path.

How many spans an invocation gets is settled as it ends, so that its own span can say how many are
left out; which ones, and the spans themselves, are the worker's to make.
"""

from __future__ import annotations

import atexit
import threading
from typing import Any

import numpy as np
from opentelemetry.trace import (
    Span,
    Tracer,
    TracerProvider,
    get_tracer_provider,
)

from . import conventions as names
from .budgets import Budgets
from .capture import Capture, Captured, Counts, try_to_add
from .losses import QUEUE, RATE, RING, SHUTDOWN, Losses
from .op_spans import Ended, Finished, make_spans
from .op_totals import OpTotals
from .settings import Settings
from .worker import Worker

# The SDK's queue holds 2048 spans and drops the oldest beyond: these would be the application's.
_FLUSH_AFTER = 512  # op spans
_FLUSH_MILLISECONDS = 30_000
_EXIT_SECONDS = 5.0  # that a process is held up for at its end


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
        self._tracer = tracer
        self._provider = provider  # None: the global one, which may be set later
        self._losses = losses
        self._totals = totals
        self._budgets = Budgets(settings)
        self._capture = Capture(self._after_fork)
        self._worker: Worker[Finished] = Worker(self._work, settings.queue)
        self._unflushed = 0
        self._at_exit_registered = False

    def add(self, vm: Any) -> None:
        """Record this VM's ops, where that can be."""
        try_to_add(self._capture, vm)

    def remove(self, vm: Any) -> None:
        """Record them no more."""
        self._capture.remove(vm)

    def stop(self) -> None:
        """Make the spans that are still to be made, and leave all VMs alone."""
        atexit.unregister(self._finish)
        self._at_exit_registered = False
        self._finish()
        self._capture.stop()

    def flush(self, seconds: float) -> bool:
        """Wait until the op spans of what has ended are made; False if that takes too long."""
        return self._worker.flush(seconds)

    def wanted(self, span: Span) -> bool:
        """Whether the ops of the invocation with this span are to be recorded."""
        return self._settings.ops == "all" or span.is_recording()

    def begin(self) -> tuple[int, bytes]:
        """Record what this thread invokes from now on."""
        return self._capture.begin()

    def end(self, begun: tuple[int, bytes], span: Span, invocation: Ended) -> None:
        """Say on the invocation's span what ran in it, and have the ops' spans made."""
        tag, before = begun
        counts = self._capture.end(before)
        calls = counts.calls if self._settings.calls == "all" else counts.tensors
        granted = self._budgets.take(span.get_span_context().trace_id, calls)
        self._losses.add(RATE, calls - granted)
        thread = threading.current_thread().name
        if not self._put(Finished(invocation, tag, granted, threading.get_ident(), thread)):
            self._capture.forget(tag)
            self._losses.add(QUEUE, granted)
            granted = 0
        if span.is_recording():
            span.set_attributes(self._summary(counts, calls, granted))

    def _summary(self, counts: Counts, calls: int, granted: int) -> dict[str, str | int | float]:
        return {
            names.OP_COUNT: calls,
            names.OP_TIME: counts.time_ns / 1e9,
            names.OP_DROPPED: calls - granted,
            names.CAPTURE_REASON: self._settings.ops,
            names.TIMING: "host",
        }

    def _put(self, finished: Finished) -> bool:
        if not self._at_exit_registered:  # now: the provider's own, which runs after, is there
            self._at_exit_registered = True
            atexit.register(self._finish)
        return self._worker.put(finished)

    # ---- on the worker ----

    def _work(self, finished: list[Finished]) -> None:
        captured = self._capture.take(one.tag for one in finished)
        self._losses.add(RING, captured.lost)
        self._add_up(captured, finished)
        every_call = self._settings.calls == "all"
        for span in make_spans(captured, finished, every_call, self._tracer):
            self._unflushed += span.get_span_context().trace_flags.sampled
            if self._unflushed >= _FLUSH_AFTER:
                self._flush_provider()

    def _add_up(self, captured: Captured, finished: list[Finished]) -> None:
        models = list(dict.fromkeys(one.invocation.model for one in finished))
        of_tag = {one.tag: models.index(one.invocation.model) for one in finished}
        of_call = [of_tag.get(tag, -1) for tag in captured.tags.tolist()]
        self._totals.add(captured.trace, np.array(of_call, np.int32), models)

    def _flush_provider(self) -> None:
        flush = getattr(self._provider or get_tracer_provider(), "force_flush", None)
        self._unflushed = 0
        if flush:
            flush(_FLUSH_MILLISECONDS)

    # ---- the ends ----

    def _finish(self) -> None:
        if not self._worker.flush(_EXIT_SECONDS):
            self._losses.add(SHUTDOWN, sum(one.granted for one in self._worker.clear()))

    def _after_fork(self) -> None:
        self._worker.after_fork()
        self._budgets.after_fork()
        self._losses.after_fork()
        self._totals.after_fork()
