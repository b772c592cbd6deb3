"""LIVE: spans and metrics of Relax VMs in the application's own OpenTelemetry traces.

``opentelemetry-instrument python app.py`` needs no code; otherwise::

    from relax_trace.otel import RelaxVMInstrumentor

    RelaxVMInstrumentor().instrument()

Every invocation of a VirtualMachine is then a span, a child of the one that is current. Seen are
the functions that are taken from a VM meanwhile, ``vm["main"]``, and its ``invoke_stateful``,
``invoke_closure`` and ``time_evaluator`` (one span for each evaluation); a function that was taken
before, or comes from ``vm.module``, is not.

The ops of an invocation become spans under its own once it has ended, on a thread that takes its
time: a server calls ``RelaxVMInstrumentor().force_flush()`` before its provider's as it shuts down.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .batches import batch
    from .instrumentor import RelaxVMInstrumentor
    from .settings import Settings
    from .timeline import TimelineSpanProcessor

__all__ = ["RelaxVMInstrumentor", "Settings", "TimelineSpanProcessor", "batch"]

_PLACES = {
    "RelaxVMInstrumentor": "instrumentor",
    "Settings": "settings",
    "TimelineSpanProcessor": "timeline",
    "batch": "batches",
}


def __getattr__(name: str) -> Any:
    """Import what is asked for: the names in conventions.py need no OpenTelemetry."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_PLACES[name]}", __name__), name)
