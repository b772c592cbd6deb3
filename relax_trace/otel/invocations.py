"""The span of each invocation."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextvars import Token
from dataclasses import dataclass
from typing import Any

from opentelemetry import context as contexts
from opentelemetry.context import Context
from opentelemetry.instrumentation.utils import is_instrumentation_enabled
from opentelemetry.trace import Span, Status, StatusCode, Tracer

from . import conventions as names
from .batches import inside, links_of
from .ops import Ops

_log = logging.getLogger("relax_trace")


@dataclass(frozen=True)
class _Begun:
    span: Span
    around: Context
    token: Token[Context]
    start: int  # ns since the Unix epoch
    ops: Ops | None  # where they are recorded
    recorded: tuple[int, bytes] | None  # what that needs at the end


class InvocationSpans:
    """Puts a span around calls; whatever fails in that, the call itself goes on."""

    def __init__(self, tracer: Tracer, ops: Ops | None, enabled: bool) -> None:
        self.use(tracer, ops, enabled)

    def use(self, tracer: Tracer, ops: Ops | None, enabled: bool) -> None:
        """Make spans from now on by this tracer, or none; op spans where there are ``ops``."""
        self._tracer = tracer
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
                name,
                context=around,
                attributes={names.MODEL_NAME: model, names.FUNCTION: name},
                links=links_of(around),
                start_time=start,
            )
            token = contexts.attach(inside(span, around))
        except Exception:  # the application's sampler, or a processor of its
            self._complain()
            return None
        ops = self.ops  # it may be replaced meanwhile
        return _Begun(span, around, token, start, ops, self._begin_ops(ops, span))

    def _begin_ops(self, ops: Ops | None, span: Span) -> tuple[int, bytes] | None:
        try:
            return ops.begin() if ops and ops.wanted(span) else None
        except Exception:
            self._complain()
            return None

    def _end(self, begun: _Begun, error: BaseException | None) -> None:
        end = time.time_ns()
        try:
            contexts.detach(begun.token)
            try:
                error_type = None if error is None else _type_name(error)
                if begun.ops and begun.recorded:
                    times = begun.start, end
                    begun.ops.end(begun.recorded, begun.span, begun.around, times, error_type)
                if begun.span.is_recording():
                    _describe(begun.span, error, error_type)
            finally:
                begun.span.end(end)
        except Exception:
            self._complain()

    def _complain(self) -> None:
        if not self._complained:
            self._complained = True
            _log.exception(
                "spans of VirtualMachines are missing from your traces; this is said only once"
            )


def _describe(span: Span, error: BaseException | None, error_type: str | None) -> None:
    span.set_attribute(names.THREAD_ID, threading.get_ident())
    span.set_attribute(names.THREAD_NAME, threading.current_thread().name)
    if error is not None and error_type is not None:
        span.set_attribute(names.ERROR_TYPE, error_type)
        span.set_status(Status(StatusCode.ERROR, f"{type(error).__name__}: {error}"))
        span.record_exception(error)


def _type_name(error: BaseException) -> str:
    module, name = type(error).__module__, type(error).__qualname__
    return name if module == "builtins" else f"{module}.{name}"
