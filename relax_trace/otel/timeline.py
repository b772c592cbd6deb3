"""TimelineSpanProcessor: the application's own spans beside its invocations, in every recording."""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import TypeAlias

from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.trace import StatusCode, TraceFlags

from .. import surroundings
from ..spans import OF_INVOCATION
from ..surroundings import Seen
from ..trace import FAILED, OPEN, SAMPLED
from . import conventions as names

_log = logging.getLogger("relax_trace")

_OPEN_MOST = 1 << 14  # spans; an application that never ends some loses sight of the oldest
_LATEST_NS = (1 << 63) - 1


_Thread: TypeAlias = "tuple[int, str]"  # the operating system's id, and the name


class TimelineSpanProcessor(SpanProcessor):  # type: ignore[misc]
    """Puts the application's spans into the Trace of every recording that runs meanwhile.

    ``provider.add_span_processor(TimelineSpanProcessor())``, at any time. ``Trace.spans`` then has
    those that overlap the recording: the ended ones, and with the flag ``OPEN`` those that had not
    ended when the trace was taken. Seen are spans that are recorded by the SDK: of an unsampled
    trace there are none. Of ops there are no spans in it, and those of invocations are marked
    ``OF_INVOCATION``: the trace has both already, but what is around them would be lost without.

    While no recording runs only the open spans are held. A recording holds 65,536 spans, the first
    ones, or the newest in ring mode and with a schedule; ``Trace.losses.spans`` counts the others.
    """

    def __init__(self) -> None:
        self._complained = False
        self._after_fork()
        self._forget = surroundings.open_spans_from(self._open_now)
        os.register_at_fork(after_in_child=self._after_fork)

    def _after_fork(self) -> None:
        """In a child process: the spans that were open are the parent's; so is the thread's id."""
        self._open: dict[int, tuple[ReadableSpan, _Thread]] = {}
        self._threads = threading.local()

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Hold the span while it is open, with the thread that began it."""
        try:
            scope = span.instrumentation_scope
            if scope and scope.name == names.OPS_SCOPE:
                return
            if len(self._open) >= _OPEN_MOST:
                self._open.pop(next(iter(self._open)), None)
            try:
                thread = self._threads.own
            except AttributeError:
                thread = self._threads.own = threading.get_native_id(), _thread_name()
            self._open[span.context.span_id] = span, thread
        except Exception:
            self._complain()

    def on_end(self, span: ReadableSpan) -> None:
        """Hand it to the recordings that run."""
        try:
            begun = self._open.pop(span.context.span_id, None)
            watches = surroundings.watches()
            if watches and begun:
                seen = _seen(span, begun[1], span.end_time or 0, 0)
                for watch in watches:
                    watch.add(seen)
        except Exception:
            self._complain()

    def shutdown(self) -> None:
        """Collect no more; what recordings have they keep."""
        self._forget()
        self._open.clear()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Nothing waits here."""
        return True

    def _open_now(self) -> list[Seen]:
        now = time.time_ns()
        return [_seen(span, thread, now, OPEN) for span, thread in self._open.copy().values()]

    def _complain(self) -> None:
        if not self._complained:
            self._complained = True
            _log.exception("spans are missing from recordings; this is said only once")


def _thread_name() -> str:
    """The name of this thread; asking Python for a thread it doesn't know would make up one."""
    own = threading.get_ident()
    return next((thread.name for thread in threading.enumerate() if thread.ident == own), "")


def _seen(span: ReadableSpan, thread: _Thread, end: int, flags: int) -> Seen:
    context, parent, scope = span.context, span.parent, span.instrumentation_scope
    if context.trace_flags & TraceFlags.SAMPLED:
        flags |= SAMPLED
    if span.status.status_code is StatusCode.ERROR:
        flags |= FAILED
    if scope and scope.name == names.SCOPE:
        flags |= OF_INVOCATION
    start = span.start_time or 0
    if not 0 <= start <= end <= _LATEST_NS:  # the application may give any times
        start = min(max(int(start), 0), _LATEST_NS)
        end = min(max(int(end), start), _LATEST_NS)
    return Seen(
        start,
        end,
        str(span.name),
        *thread,
        context.trace_id,
        context.span_id,
        parent.span_id if parent else 0,
        flags,
    )
