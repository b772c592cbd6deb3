"""An instrumented process whose spans are kept in memory, for tests of live spans."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from relax_trace.otel import RelaxVMInstrumentor

OPS_SCOPE = "relax_trace.ops"


def scope_of(span: ReadableSpan) -> str:
    """The name of its instrumentation scope."""
    assert span.instrumentation_scope is not None
    return span.instrumentation_scope.name


class Live:
    """The application's side: its provider, and the spans that ended, in that order."""

    def __init__(self, **provider: Any) -> None:
        self.provider = TracerProvider(**provider, shutdown_on_exit=False)
        self.tracer = self.provider.get_tracer("application")
        self._exporter = InMemorySpanExporter()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    @property
    def spans(self) -> list[ReadableSpan]:
        """What ended by now, but for ops."""
        return [span for span in self._exporter.get_finished_spans() if scope_of(span) != OPS_SCOPE]

    @property
    def ops(self) -> list[ReadableSpan]:
        """The op spans of what ended by now, in the order of their starts."""
        assert RelaxVMInstrumentor().force_flush()
        found = [one for one in self._exporter.get_finished_spans() if scope_of(one) == OPS_SCOPE]
        return sorted(found, key=lambda span: span.start_time or 0)

    def named(self, name: str) -> ReadableSpan:
        """The one span of this name."""
        (span,) = [span for span in self.spans if span.name == name]
        return span


def attributes(span: ReadableSpan) -> dict[str, Any]:
    """Its attributes, each with its type."""
    return {name: (type(value), value) for name, value in (span.attributes or {}).items()}


@contextmanager
def live(settings: dict[str, Any] | None = None, **provider: Any) -> Iterator[Live]:
    """Instrument the process with a provider of its own while this ``with`` lasts."""
    made = Live(**provider)
    RelaxVMInstrumentor().instrument(tracer_provider=made.provider, **(settings or {}))
    try:
        yield made
    finally:
        RelaxVMInstrumentor().uninstrument()


def is_child(child: ReadableSpan, parent: ReadableSpan) -> bool:
    """Whether a span is right under another, in the same trace and within its times."""
    assert child.parent is not None
    assert child.start_time is not None
    assert child.end_time is not None
    assert parent.start_time is not None
    assert parent.end_time is not None
    same = child.context.trace_id == parent.context.trace_id
    inside = parent.start_time <= child.start_time <= child.end_time <= parent.end_time
    return same and inside and child.parent.span_id == parent.context.span_id
