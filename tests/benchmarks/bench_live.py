"""What live spans cost: an invocation against the SDK alone, and an op by either road, in one run.

Run: python tests/benchmarks/bench_live.py
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, ParentBased, Sampler

from integration.small_vms import chain, small, tensor, vm_of
from relax_trace.exporters.otlp.outcome import Outcome
from relax_trace.otel import RelaxVMInstrumentor, direct

CALLS = 2000  # of the smallest function, a run
OPS = 300  # of a larger one, which is called REQUESTS times a run
REQUESTS = 20
RUNS = 7
X = tensor(1, 2, 3, 4)


class Serialized(SpanExporter):
    """Does all that an exporter does but send."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Serialize them."""
        encode_spans(spans).SerializeToString()
        return SpanExportResult.SUCCESS


class Nowhere:
    """A receiver that takes all, at no cost."""

    endpoint = "nowhere"

    def attempt(self, _: bytes) -> Outcome:
        """Take it."""
        return Outcome()

    def close(self) -> None:
        """Do nothing."""


def providers(sampler: Sampler) -> dict[str, Any]:
    """Fresh ones, as keywords of ``instrument()``."""
    tracers = TracerProvider(sampler=ParentBased(sampler), shutdown_on_exit=False)
    tracers.add_span_processor(BatchSpanProcessor(Serialized()))
    meters = MeterProvider([InMemoryMetricReader()], shutdown_on_exit=False)
    return {"tracer_provider": tracers, "meter_provider": meters}


def by_hand(function: Callable[..., Any], made: dict[str, Any]) -> Callable[..., Any]:
    """The least that somebody would write: a span, and a histogram's record."""
    tracer = made["tracer_provider"].get_tracer("by hand")
    histogram = made["meter_provider"].get_meter("by hand").create_histogram("duration", "s")

    def call(*args: Any) -> Any:
        begin = time.time_ns()
        with tracer.start_as_current_span("main", attributes={"model": "vm", "function": "main"}):
            try:
                return function(*args)
            finally:
                histogram.record((time.time_ns() - begin) / 1e9, {"model": "vm"})

    return call


def measured(run: Callable[[], object], after: Callable[[], object] = lambda: None) -> float:
    """Processor time in s of a run and what follows it on other threads."""
    begin = time.process_time()
    run()
    after()
    return time.process_time() - begin


def best(ways: dict[str, Callable[[], float]]) -> dict[str, float]:
    """The least of some runs of each, which take turns: the machine's moods hit all alike."""
    found = dict.fromkeys(ways, float("inf"))
    for _ in range(RUNS):
        for name, way in ways.items():
            found[name] = min(found[name], way())
    return found


def invoke(function: Callable[..., Any]) -> float:
    """Processor time of a call in us."""

    def run() -> None:
        for _ in range(CALLS):
            function(X)

    return measured(run) / CALLS * 1e6


def instrumented(vm: Any, settings: dict[str, Any], made: dict[str, Any]) -> float:
    """The same of an instrumented VM."""
    instrumentor = RelaxVMInstrumentor()
    instrumentor.instrument(**made, **settings)
    try:
        instrumentor.instrument_vm(vm, name="vm")
        return invoke(vm["identity"])
    finally:
        instrumentor.uninstrument()


def invocations() -> None:
    """Print what an invocation costs."""
    vm = vm_of(small())
    bare = vm["identity"]
    off, on = providers(ALWAYS_OFF), providers(ALWAYS_ON)
    found = best(
        {
            "bare": partial(invoke, bare),
            "switched off": partial(instrumented, vm, {"enabled": False}, off),
            "by hand, not sampled": partial(invoke, by_hand(bare, off)),
            "instrumented, not sampled": partial(instrumented, vm, {}, off),
            "by hand, sampled": partial(invoke, by_hand(bare, on)),
            "instrumented, sampled, no ops": partial(instrumented, vm, {"ops": "none"}, on),
        }
    )
    print("an invocation, us of processor time over the bare one:")
    for name, value in found.items():
        print(f"  {name:32}{value - found['bare']:8.1f}")


def ops_by(vm: Any, settings: dict[str, Any]) -> float:
    """Processor time of an op in ns, its span made and serialized, over the same without ops."""
    made = providers(ALWAYS_ON)
    instrumentor = RelaxVMInstrumentor()
    wide = dict.fromkeys(("ops_per_invocation", "ops_per_trace", "ops_per_second"), 10**9)
    instrumentor.instrument(**made, **settings, **wide, queue=10**6)
    try:
        function = vm["main"]
        function(X)
        instrumentor.force_flush()

        def run() -> None:
            for _ in range(REQUESTS):
                function(X)

        def after() -> None:
            assert instrumentor.force_flush()
            made["tracer_provider"].force_flush()

        return measured(run, after) / REQUESTS / OPS * 1e9
    finally:
        instrumentor.uninstrument()
        made["tracer_provider"].shutdown()


def ops() -> None:
    """Print what an op costs by either road."""
    vm = vm_of(chain(OPS))
    found = best(
        {
            "none": partial(ops_by, vm, {"ops": "none"}),
            "sdk": partial(ops_by, vm, {"road": "sdk"}),
            "direct": partial(ops_by, vm, {"road": "direct"}),
        }
    )
    sdk, direct_road = (found[name] - found["none"] for name in ("sdk", "direct"))
    print(f"an op of {OPS} sampled ones, ns of processor time, its span serialized:")
    print(f"  by the SDK's road {sdk:8,.0f}\n  by the direct one {direct_road:8,.0f}")
    print(f"  ratio {sdk / direct_road:20.1f}")


def main() -> None:
    """Print all."""
    direct.connect = Nowhere  # type: ignore[assignment]
    invocations()
    ops()


if __name__ == "__main__":
    main()
