"""The trace context around each invocation that is recorded, from OpenTelemetry's current span.

``surroundings`` imports this once the application has imported OpenTelemetry.
"""

from __future__ import annotations

import atexit
import struct

from opentelemetry.trace import SpanContext, get_current_span

from ..surroundings import use_context

_NONE = b""
_pack = struct.Struct(">QQQB").pack
_last: tuple[SpanContext | None, bytes] = (None, _NONE)  # many run in the same span


def current_context() -> bytes:
    """Trace id, span id, trace flags: 25 bytes; none outside a span. See recorder/contexts.h."""
    global _last  # noqa: PLW0603
    try:
        context = get_current_span().get_span_context()
        if not context.is_valid:
            return _NONE
        last, told = _last
        if context is not last:
            high, low = divmod(context.trace_id, 1 << 64)
            told = _pack(high, low, context.span_id, context.trace_flags)
            _last = context, told
        return told
    except Exception:  # a span that is not OpenTelemetry's own
        return _NONE


use_context(current_context)
atexit.register(use_context, None)  # native threads may go on when Python has ended
