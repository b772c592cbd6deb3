"""batch(): say for which requests a batch of them is run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import cast

from opentelemetry import context as contexts
from opentelemetry.context import Context
from opentelemetry.trace import Link, NonRecordingSpan, Span, SpanContext, set_span_in_context

_LINKS = contexts.create_key("relax_trace.links")


@contextmanager
def batch(
    *, parent: Context | Span | SpanContext | None = None, links: Iterable[Span | SpanContext] = ()
) -> Iterator[None]:
    """Have the invocations inside this ``with`` be children of ``parent``, and linked to ``links``.

    A server that runs many requests as one batch, on a thread of its own, says here which requests
    these are: each invocation's span links to theirs. Without a ``parent``, the current context
    holds. Raises ``TypeError`` for anything that is no span.
    """
    found = tuple(link for link in map(_link_to, links) if link.context.is_valid)
    token = contexts.attach(contexts.set_value(_LINKS, found, _context_of(parent)))
    try:
        yield
    finally:
        contexts.detach(token)


def links_of(context: Context) -> tuple[Link, ...]:
    """The links that an invocation in this context begins with."""
    return cast("tuple[Link, ...]", contexts.get_value(_LINKS, context) or ())


def inside(span: Span, context: Context) -> Context:
    """The context inside an invocation's span: what it calls has no links of its own."""
    inner = set_span_in_context(span, context)
    return contexts.set_value(_LINKS, (), inner) if links_of(context) else inner


def _link_to(target: Span | SpanContext) -> Link:
    if isinstance(target, Span):
        return Link(target.get_span_context())
    if isinstance(target, SpanContext):
        return Link(target)
    raise TypeError(f"links has Spans or SpanContexts, no {type(target).__name__}")


def _context_of(parent: Context | Span | SpanContext | None) -> Context:
    if parent is None:
        return contexts.get_current()
    if isinstance(parent, Context):
        return parent
    if isinstance(parent, SpanContext):
        return set_span_in_context(NonRecordingSpan(parent))
    if isinstance(parent, Span):
        return set_span_in_context(parent)
    raise TypeError(f"parent is a Context, a Span or a SpanContext, not a {type(parent).__name__}")
