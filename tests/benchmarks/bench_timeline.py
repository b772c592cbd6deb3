"""What the trace context and the application's own spans cost: an invocation, a span, a file.

    python tests/benchmarks/bench_timeline.py

Variants run in turn, round after round, and the best round of each counts.
"""

from __future__ import annotations

import io
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import Tracer

sys.path.insert(0, str(Path(__file__).parents[1]))

import relax_trace
from benchmarks.bench_chrome import made_up
from benchmarks.bench_recorder import Recordings, Variant, measure, ones
from integration.small_vms import chain, vm_of
from relax_trace import Trace, surroundings
from relax_trace.exporters import chrome
from relax_trace.otel import TimelineSpanProcessor, contexts
from relax_trace.spans import COLUMNS, spans_of


def context() -> None:
    """A recorded invocation of one kernel, with the hook and without, in a span and outside."""
    vm, x = vm_of(chain(1)), ones(4)
    recordings = Recordings(vm)
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("application")

    def variant(source: surroundings.Source | None) -> Variant:
        def prepare() -> None:
            surroundings.use_context(source)
            recordings.start()

        return Variant(lambda: vm["main"](x), prepare, recordings.stop)

    def times() -> list[float]:
        return measure([variant(None), variant(contexts.current_context)], 200)

    none, outside = times()
    with tracer.start_as_current_span("request"):
        bare, inside = times()
    surroundings.use_context(contexts.current_context)
    print(f"the trace context around a recorded invocation ({none:.0f} ns without)")
    print(f"  outside of a span     +{outside - none:8.0f} ns")
    print(f"  in a span             +{inside - bare:8.0f} ns")


def spans() -> None:
    """A span of the application's: without the processor, with it, and in a recording."""
    plain = TracerProvider(shutdown_on_exit=False)
    timed = TracerProvider(shutdown_on_exit=False)
    timed.add_span_processor(TimelineSpanProcessor())
    vm = vm_of(chain(1))
    recordings = Recordings(vm)

    def variant(tracer: Tracer, record: bool) -> Variant:
        def one() -> None:
            tracer.start_span("request").end()

        return Variant(one, recordings.start, recordings.stop) if record else Variant(one)

    one, other = plain.get_tracer("application"), timed.get_tracer("application")
    none, idle, recorded = measure(
        [variant(one, False), variant(other, False), variant(other, True)], 500
    )
    print(f"a span ({none:.0f} ns without the processor)")
    print(f"  no recording runs     +{idle - none:8.0f} ns")
    print(f"  into one              +{recorded - none:8.0f} ns")


def with_spans(trace: Trace, count: int, concurrent: int) -> Trace:
    """``count`` spans on one event loop, of which so many overlap."""
    start = np.linspace(trace.start[0], trace.end[-1], count).astype(np.int64)
    step = int(start[1] - start[0])
    columns = {
        "start": start,
        "end": start + concurrent * step - step // 2,
        "span_id": np.arange(1, count + 1),
        "trace_id": np.ones(16 * count),
    }
    columns = {
        name: np.asarray(columns.get(name, np.zeros(count)), dtype)
        for name, dtype in COLUMNS.items()
    }
    loop = relax_trace.Thread(4321, 4321, "event loop")
    columns["thread"] += np.int32(len(trace.threads))
    return replace(trace, threads=(*trace.threads, loop), spans=spans_of(columns, ("request",)))


def file() -> None:
    """A Chrome file of a million ops, without spans and with as many as a recording holds."""
    trace = made_up(1_000_000)
    count = surroundings.SPANS_MOST
    traces = [trace, *(with_spans(trace, count, concurrent) for concurrent in (1, 10, 1000))]
    best = [float("inf")] * len(traces)
    for _ in range(3):
        for i, each in enumerate(traces):
            began = time.process_time()
            chrome.write(each, io.BytesIO())
            best[i] = min(best[i], time.process_time() - began)
    print(f"a Chrome file of 1,000,000 ops ({best[0]:.2f} s)")
    for concurrent, seconds in zip((1, 10, 1000), best[1:], strict=True):
        cost = (seconds - best[0]) / count * 1e6
        print(f"  {count:,} spans, {concurrent:4} at a time  +{cost:6.2f} us a span")


if __name__ == "__main__":
    context()
    spans()
    file()
