"""All that collector-config/ has for a laptop, running, after an application has run there."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import ReadableSpan

from backends import jaeger_backend, prometheus_backend, service
from backends.application import application
from backends.collector import Configured, configured
from backends.jaeger_backend import Jaeger
from backends.prometheus_backend import Prometheus
from integration.small_vms import callback, small, tensor, vm_of
from relax_trace.otel import RelaxVMInstrumentor

SERVICE, MODEL = "shop", "recommender"
ROUNDS = 10  # each with a request that calls `main` twice, and one that fails in `call`


@dataclass(frozen=True)
class Laptop:
    """What runs, and the spans that the application made, its ops apart."""

    collector: Configured
    jaeger: Jaeger
    prometheus: Prometheus
    spans: list[ReadableSpan]
    ops: list[ReadableSpan]
    seconds: tuple[float, float]  # from when to when


@contextmanager
def running(otelcol: Path, jaeger: Path, prometheus: Path, folder: Path) -> Iterator[Laptop]:
    """All of it, once everything that the application sent has arrived."""
    with (
        jaeger_backend.running(jaeger, folder) as traces,
        configured(
            otelcol,
            "laptop",
            folder,
            JAEGER=f"127.0.0.1:{traces.grpc}",
            SPAN_METRICS_INTERVAL="500ms",
        ) as collector,
        prometheus_backend.running(
            prometheus,
            folder,
            {"applications": collector.metrics, "collectors": collector.own_metrics},
        ) as metrics,
    ):
        start = time.time()
        spans, ops = _run(collector.grpc)
        _wait(traces, metrics, spans, ops)
        yield Laptop(collector, traces, metrics, spans, ops, (start, time.time()))


def _run(port: int) -> tuple[list[ReadableSpan], list[ReadableSpan]]:
    """Requests for some seconds, so that there are rates."""
    vm = vm_of(small())
    with application(port, SERVICE) as made:
        RelaxVMInstrumentor().instrument_vm(vm, name=MODEL)
        for _ in range(ROUNDS):
            with made.live.tracer.start_as_current_span("request"):
                vm["main"](tensor(1, 2, 3, 4))
                vm["main"](tensor(1, 2, 3, 4))
            with (
                made.live.tracer.start_as_current_span("failing request"),
                callback(_fail),
                pytest.raises(ValueError, match="no"),
            ):
                vm["call"](tensor(1, 2, 3, 4))
            made.flush()
            time.sleep(0.5)
        return made.live.spans, made.live.ops


def _fail(_: object) -> None:
    raise ValueError("no")


def _wait(
    traces: Jaeger, metrics: Prometheus, spans: list[ReadableSpan], ops: list[ReadableSpan]
) -> None:
    count = f'sum(tvm_vm_invocation_duration_seconds_count{{job="{SERVICE}"}})'
    in_spans = f'sum(traces_span_metrics_calls_total{{job="{SERVICE}"}})'
    everything = (3 * ROUNDS, len(ops), len(spans) + len(ops))
    arrived = service.eventually(
        lambda: (
            metrics.number(count),
            metrics.number(in_spans),
            len(traces.spans(SERVICE)),
        ),
        lambda now: now == everything,
    )
    assert arrived == everything
