"""What is known of an invocation that has ended, and is left to make of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from opentelemetry.context import Context
from opentelemetry.trace import SpanContext, get_current_span


class Ended(NamedTuple):  # made in a fraction of a frozen dataclass's time
    """An invocation that has ended; times in ns since the Unix epoch."""

    model: str
    function: str
    inside: Context  # with its span
    start: int
    end: int
    error_type: str | None

    @property
    def span_context(self) -> SpanContext:
        """Of its span."""
        return get_current_span(self.inside).get_span_context()

    @property
    def seconds(self) -> float:
        """Its duration; the clock may have been set back meanwhile."""
        return max(0, self.end - self.start) / 1e9


@dataclass(frozen=True)
class Finished:
    """One whose ops are recorded."""

    invocation: Ended
    tag: int
    granted: int  # op spans
    to_file: bool  # whether its ops are written to one
    thread_id: int  # Python's
    thread_name: str
