"""The trace context around each invocation that is recorded, from OpenTelemetry's current span.

``surroundings`` imports this once the application has imported OpenTelemetry.
"""

from __future__ import annotations

import atexit

from opentelemetry.trace import get_current_span

from ..surroundings import use_context

_NONE = b""


def current_context() -> bytes:
    """Trace id, span id, trace flags: 25 bytes; none outside a span. See recorder/contexts.h."""
    try:
        context = get_current_span().get_span_context()
        if not context.is_valid:
            return _NONE
        ids: int = context.trace_id << 64 | context.span_id
        flags: int = context.trace_flags & 0xFF
        return (ids << 8 | flags).to_bytes(25, "big")
    except Exception:  # a span that is not OpenTelemetry's own
        return _NONE


use_context(current_context)
atexit.register(use_context, None)  # native threads may go on when Python has ended
