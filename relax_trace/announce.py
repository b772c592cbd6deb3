"""What the command line says of a trace that it wrote."""

from __future__ import annotations

import shlex

from .trace import Trace


def written(trace: Trace, path: str) -> str:
    """Where it is, and how much is in it."""
    calls, runs = len(trace), len(trace.invocations)
    plural = "" if runs == 1 else "s"
    return f"wrote {path}: {calls:,} calls in {runs:,} invocation{plural}"


def next_steps(path: str) -> str:
    """How to look at it: two lines, or one for a file that is for other programs."""
    if path.lower().endswith((".otlp.json", ".otlp.pb")):
        return "it holds OTLP, for an OpenTelemetry Collector or a tracing backend"
    timeline = (
        "open that file in https://ui.perfetto.dev"
        if path.endswith((".json", ".json.gz"))
        else f"relax-trace convert {shlex.quote(path)} trace.json"
    )
    return (
        f"see the timeline:  {timeline}\n"
        f"see every call:    relax-trace report {shlex.quote(path)} --calls all"
    )
