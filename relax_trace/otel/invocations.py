"""The span of each invocation."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextvars import Token
from typing import Any

from opentelemetry import context as contexts
from opentelemetry.context import Context
from opentelemetry.instrumentation.utils import is_instrumentation_enabled
from opentelemetry.trace import Span, Status, StatusCode, Tracer

from . import conventions as names
from .batches import inside, links_of

_log = logging.getLogger("relax_trace")

_Begun = tuple[Span, "Token[Context]"]


class InvocationSpans:
    """Puts a span around calls; whatever fails in that, the call itself goes on."""

    def __init__(self, tracer: Tracer, enabled: bool) -> None:
        self.use(tracer, enabled)

    def use(self, tracer: Tracer, enabled: bool) -> None:
        """Make spans from now on by this tracer, or none."""
        self._tracer = tracer
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
            attributes = {names.MODEL_NAME: model, names.VM_FUNCTION: name}
            span = self._tracer.start_span(
                name, context=around, attributes=attributes, links=links_of(around)
            )
            return span, contexts.attach(inside(span, around))
        except Exception:  # the application's sampler, or a processor of its
            self._complain()
            return None

    def _end(self, begun: _Begun, error: BaseException | None) -> None:
        span, token = begun
        try:
            contexts.detach(token)
            try:
                if span.is_recording():
                    _describe(span, error)
            finally:
                span.end()
        except Exception:
            self._complain()

    def _complain(self) -> None:
        if not self._complained:
            self._complained = True
            _log.exception(
                "spans of VirtualMachines are missing from your traces; this is said only once"
            )


def _describe(span: Span, error: BaseException | None) -> None:
    span.set_attribute(names.THREAD_ID, threading.get_ident())
    span.set_attribute(names.THREAD_NAME, threading.current_thread().name)
    if error is not None:
        span.record_exception(error)
        span.set_attribute(names.ERROR_TYPE, _type_name(error))
        span.set_status(Status(StatusCode.ERROR, f"{type(error).__name__}: {error}"))


def _type_name(error: BaseException) -> str:
    module, name = type(error).__module__, type(error).__qualname__
    return name if module == "builtins" else f"{module}.{name}"
