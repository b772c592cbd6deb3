"""What an application's tracing tells of where a recording runs: otel/ fills it in, if it is used.

A recording knows nothing of OpenTelemetry; here it finds the trace context around an invocation,
and the application's own spans. Until the application imports OpenTelemetry nothing is asked.
"""

from __future__ import annotations

import importlib
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from .import_hook import after_import
from .recorder.native import load
from .spans import COLUMNS, spans_of
from .trace import Thread, Trace

_log = logging.getLogger("relax_trace")

SPANS_MOST = 1 << 16  # of one recording: some 25 MB

# ---- the trace context around an invocation ----

Source = Callable[[], bytes]  # 25 bytes, see recorder/contexts.h; or none

_source: Source | None = None
_told: Source | None = None


def use_context(source: Source | None) -> None:
    """Ask ``source`` for the trace context around each invocation that is recorded from now on."""
    global _source  # noqa: PLW0603
    _source = source
    if load.cache_info().currsize:  # the recorder is there
        tell_recorder()


def tell_recorder() -> None:
    """Have the recorder ask, once it is loaded."""
    global _told  # noqa: PLW0603
    if _source is not _told:
        load().set_context_hook(_source)
        _told = _source


def _fill(_: Any) -> None:
    try:
        importlib.import_module("relax_trace.otel.contexts")
    except Exception:  # the application's import of OpenTelemetry must not fail for it
        _log.exception("invocations are recorded without their trace contexts")


after_import("opentelemetry.trace", _fill)

# ---- the application's own spans ----


class Seen(NamedTuple):
    """A span of the application's; times in ns since the Unix epoch, flags as in ``Spans``."""

    start: int
    end: int
    name: str
    tid: int
    thread_name: str
    trace_id: int
    span_id: int
    parent_id: int
    flags: int


class Watch:
    """Holds the spans that end while it is open: the first ones, or the ``newest``."""

    def __init__(self, *, newest: bool) -> None:
        self._newest = newest
        self._open = True
        self._still: list[Seen] = []  # open when it was closed
        self.after_fork()

    def after_fork(self) -> None:
        """In a child process: what ended before was the parent's."""
        self._lock = threading.Lock()
        self._ended: deque[Seen] = deque()
        self._lost, self._lost_until = 0, 0

    def add(self, span: Seen) -> None:
        """Take in a span that ended."""
        with self._lock:
            if len(self._ended) >= SPANS_MOST:
                gone = self._ended.popleft() if self._newest else span
                self._lost, self._lost_until = self._lost + 1, max(self._lost_until, gone.end)
                if not self._newest:
                    return
            self._ended.append(span)

    def close(self) -> None:
        """Take in the spans that are still open, and no more; a second call does nothing."""
        global _watches  # noqa: PLW0603
        with _lock:
            _watches = tuple(watch for watch in _watches if watch is not self)
        if self._open:
            self._still = _open_spans()
            self._open = False

    def put_into(self, trace: Trace, *, cycle: bool = False) -> Trace:
        """``trace`` with the spans that overlap it, or those of the whole recording.

        Where the newest are kept, from the first invocation on; in a ``cycle`` of a schedule until
        the last one's end.
        """
        still = _open_spans() if self._open else self._still
        with self._lock:
            ended, lost, until = list(self._ended), self._lost, self._lost_until
        # one may have ended just then, or two processors may have seen it
        seen = list({(span.trace_id, span.span_id): span for span in (*still, *ended)}.values())
        calls = trace.invocations
        if self._newest and len(calls):
            first, last = int(calls.start.min()), int(calls.end.max())
            lost = lost if until >= first else 0
            seen = [s for s in seen if s.end >= first and not (cycle and s.start > last)]
        return _with_spans(trace, seen, lost)


_lock = threading.Lock()
_watches: tuple[Watch, ...] = ()  # replaced as a whole: it is read without the lock
_sources: list[Callable[[], Sequence[Seen]]] = []  # each says which spans are open


def watch(*, newest: bool) -> Watch:
    """Hold the spans that end from now on."""
    global _watches  # noqa: PLW0603
    made = Watch(newest=newest)
    with _lock:
        _watches = (*_watches, made)
    return made


def watches() -> tuple[Watch, ...]:
    """Those that are open."""
    return _watches


def open_spans_from(source: Callable[[], Sequence[Seen]]) -> Callable[[], None]:
    """Ask ``source`` for the spans that are open; the function returned takes it back."""
    _sources.append(source)
    return lambda: _sources.remove(source) if source in _sources else None


def _open_spans() -> list[Seen]:
    return [span for source in tuple(_sources) for span in source()]


def _with_spans(trace: Trace, seen: Sequence[Seen], lost: int) -> Trace:
    losses = replace(trace.losses, spans=lost)
    if not seen:
        return replace(trace, losses=losses) if lost else trace
    seen = sorted(seen, key=lambda span: (span.start, -span.end))
    threads = {(thread.pid, thread.tid): thread for thread in trace.threads}
    rows = {key: row for row, key in enumerate(threads)}
    pid = trace.threads[0].pid if trace.threads else os.getpid()
    for span in seen:
        rows.setdefault((pid, span.tid), len(rows))
        if span.thread_name:  # that of a thread that has ended is known to nobody else
            threads[pid, span.tid] = Thread(pid, span.tid, span.thread_name)
        threads.setdefault((pid, span.tid), Thread(pid, span.tid, ""))
    names = {name: row for row, name in enumerate(dict.fromkeys(span.name for span in seen))}
    values = {
        "start": [span.start for span in seen],
        "end": [span.end for span in seen],
        "name": [names[span.name] for span in seen],
        "thread": [rows[pid, span.tid] for span in seen],
        "trace_id": list(b"".join(span.trace_id.to_bytes(16, "big") for span in seen)),
        "span_id": [span.span_id for span in seen],
        "parent_id": [span.parent_id for span in seen],
        "flags": [span.flags for span in seen],
    }
    columns = {name: np.array(values[name], dtype) for name, dtype in COLUMNS.items()}
    return replace(
        trace,
        threads=tuple(threads.values()),
        spans=spans_of(columns, tuple(names)),
        losses=losses,
    )


def _after_fork() -> None:
    """In a child process: a thread that the child lacks may have held the lock."""
    global _lock  # noqa: PLW0603
    _lock = threading.Lock()
    for each in _watches:
        each.after_fork()


os.register_at_fork(after_in_child=_after_fork)
