"""The span of each invocation."""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable
from contextvars import Token
from typing import Any, NamedTuple

from opentelemetry import context as contexts
from opentelemetry.context import Context
from opentelemetry.instrumentation.utils import is_instrumentation_enabled
from opentelemetry.trace import Span, Status, StatusCode, Tracer

from ..exporters.otlp import templates
from . import conventions as names
from .batches import inside, links_of
from .finished import Ended
from .metrics import Metrics
from .ops import Ops

_log = logging.getLogger("relax_trace")

text = functools.lru_cache(1024)(templates.text)  # what OTLP can't hold loses a whole request


class _Begun(NamedTuple):  # made in a fraction of a frozen dataclass's time
    model: str
    function: str
    span: Span
    inside: Context  # with the span
    token: Token[Context] | None
    start: int  # ns since the Unix epoch
    ops: Ops | None  # where they are recorded
    recorded: tuple[int, bytes] | None  # what that needs at the end


class InvocationSpans:
    """Puts a span around calls; whatever fails in that, the call itself goes on."""

    def __init__(self, tracer: Tracer, metrics: Metrics, ops: Ops | None, *, enabled: bool) -> None:
        self.use(tracer, metrics, ops, enabled=enabled)

    def use(self, tracer: Tracer, metrics: Metrics, ops: Ops | None, *, enabled: bool) -> None:
        """Make spans and metrics by these from now on; op spans where there are ``ops``."""
        self._tracer = tracer
        self._metrics = metrics
        self.ops = ops
        self.enabled = enabled
        self._complained = False

    def call(
        self,
        model: str,
        name: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """``function(*args, **kwargs)`` inside a span, a child of the current context."""
        begun = self._begin(model, name) if self.enabled else None
        if begun is None:
            return function(*args, **kwargs)
        try:
            result = function(*args, **kwargs)
        except BaseException as error:
            self._end(begun, error)
            raise
        self._end(begun, None)
        return result

    def _begin(self, model: str, name: str) -> _Begun | None:
        try:
            if not is_instrumentation_enabled():
                return None
            around = contexts.get_current()
            start = time.time_ns()
            span = self._tracer.start_span(
                text(name),
                context=around,
                attributes={names.MODEL_NAME: model, names.FUNCTION: text(name)},
                links=links_of(around),
                start_time=start,
            )
            within = inside(span, around)
        except Exception:  # the application's sampler, or a processor of its
            self._complain()
            return None
        ops = self.ops  # it may be replaced meanwhile
        token = recorded = None
        try:
            self._try(self._metrics.begin, model)
            recorded = self._begin_ops(ops, span)
            token = contexts.attach(within)
            return _Begun(model, text(name), span, within, token, start, ops, recorded)
        except BaseException as error:  # Ctrl-C: it must leave nothing behind
            begun = _Begun(model, text(name), span, within, token, start, ops, recorded)
            self._end(begun, error)
            raise

    def _begin_ops(self, ops: Ops | None, span: Span) -> tuple[int, bytes] | None:
        try:
            return ops.begin() if ops and ops.wanted(span) else None
        except Exception:
            self._complain()
            return None

    def _end(self, begun: _Begun, error: BaseException | None) -> None:
        end = time.time_ns()
        if begun.token:
            contexts.detach(begun.token)  # what fails in this it logs itself
        error_type = None if error is None else _type_name(error)
        ended = Ended(begun.model, begun.function, begun.inside, begun.start, end, error_type)
        if begun.ops and begun.recorded:
            self._try(begun.ops.end, begun.recorded, begun.span, ended)
        if begun.span.is_recording():
            self._try(_describe, begun.span, end, error, error_type)
        self._try(begun.span.end, end)
        self._try(self._metrics.end, ended)

    def _try(self, step: Callable[..., object], *args: Any) -> None:
        try:
            step(*args)
        except Exception:
            self._complain()

    def _complain(self) -> None:
        if not self._complained:
            self._complained = True
            _log.exception(
                "spans of VirtualMachines are missing from your traces; this is said only once"
            )


def _describe(span: Span, end: int, error: BaseException | None, error_type: str | None) -> None:
    span.set_attribute(names.THREAD_ID, threading.get_ident())
    span.set_attribute(names.THREAD_NAME, text(threading.current_thread().name))
    if error is not None and error_type is not None:
        span.set_attribute(names.ERROR_TYPE, error_type)
        span.set_status(
            Status(StatusCode.ERROR, templates.text(f"{type(error).__name__}: {error}"))
        )
        span.record_exception(error, timestamp=end)


def _type_name(error: BaseException) -> str:
    module, name = type(error).__module__, type(error).__qualname__
    return name if module == "builtins" else f"{module}.{name}"
