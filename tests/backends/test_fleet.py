"""An agent and a gateway, the real ones, between an application and what keeps its traces."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import set_span_in_context

from backends import jaeger_backend, prometheus_backend, service
from backends.application import Application, application
from backends.collector import configured, running
from backends.prometheus_backend import Prometheus
from integration.live_spans import OPS_SCOPE, scope_of
from integration.small_vms import callback, small, tensor, vm_of
from relax_trace.otel import RelaxVMInstrumentor

X = (1, 2, 3, 4)
SLOW, FAILED, FAST, REST_PERCENT = 8, 8, 200, 20
SHORTEST_OP_NS = 50_000_000  # only the op that waits is longer


def test_slow_and_failed_traces_arrive_whole_and_a_share_of_the_rest(
    otelcol: Path, prometheus: Path, tmp_path: Path
) -> None:
    """But for short ops, which the agent has counted before it leaves them out."""
    with running(otelcol, tmp_path) as far:
        gateway_settings = {
            "TRACES": f"127.0.0.1:{far.grpc}",
            "TRACES_INSECURE": "true",
            "SLOW_MS": "60000",
            "REST_PERCENT": str(REST_PERCENT),
        }
        with configured(otelcol, "gateway", tmp_path, **gateway_settings) as gateway:
            agent_settings = {
                "GATEWAY": f"127.0.0.1:{gateway.grpc}",
                "GATEWAY_INSECURE": "true",
                "SHORTEST_OP_NS": str(SHORTEST_OP_NS),
                "SPAN_METRICS_INTERVAL": "200ms",
            }
            with configured(otelcol, "agent", tmp_path, **agent_settings) as agent:
                with application(agent.grpc, "fleet", ops_per_second=100_000) as made:
                    serve(made)
                    made.flush()
                    ops = made.live.ops
                targets = {"applications": agent.metrics, "collectors": agent.own_metrics}
                with prometheus_backend.running(prometheus, tmp_path, targets) as asked:
                    counted = op_counts_in(asked, len(ops))
    assert counted == Counter(span.name for span in ops)

    sent = by_trace([*made.live.spans, *ops])
    arrived: dict[str, set[str]] = defaultdict(set)
    for span in spans_of(far.resources()):
        assert span["spanId"] not in arrived[span["traceId"]]
        arrived[span["traceId"]].add(span["spanId"])
    for trace_id, ids in arrived.items():
        assert ids == {span_id for span_id, span in sent[trace_id].items() if passes(span)}
    names = {trace_id: root_of(spans).name for trace_id, spans in sent.items()}
    kept = Counter(names[trace_id] for trace_id in arrived)
    assert (kept["slow"], kept["failed"]) == (SLOW, FAILED)
    assert FAST * 0.05 < kept["fast"] < FAST * 0.4  # less than 1 in a million runs is outside
    ops_kept = Counter(
        (names[trace_id], sent[trace_id][span_id].name)
        for trace_id, ids in arrived.items()
        for span_id in ids
        if is_op(sent[trace_id][span_id])
    )
    callback_op = "relax_trace_tests.callback"
    assert ops_kept["slow", callback_op] == SLOW
    assert ops_kept["failed", callback_op] == ops_kept["failed", "call"] == FAILED
    assert ops_kept.total() < len(ops)


def test_ops_that_come_after_the_decision_go_the_way_of_their_trace(
    otelcol: Path, jaeger: Path, tmp_path: Path
) -> None:
    """As where an exporter was slow: those of a kept trace arrive, those of another don't."""
    with jaeger_backend.running(jaeger, tmp_path) as traces:
        settings = {
            "TRACES": f"127.0.0.1:{traces.grpc}",
            "TRACES_INSECURE": "true",
            "SLOW_MS": "60000",
            "REST_PERCENT": "0",
            "DECISION_WAIT": "1s",
        }
        with (
            configured(otelcol, "gateway", tmp_path, **settings) as gateway,
            application(gateway.grpc, "late") as made,
        ):
            tracer = made.live.tracer
            fast, slow = tracer.start_span("fast"), tracer.start_span("slow", start_time=long_ago())
            fast.end()
            slow.end()
            made.flush()
            service.eventually(lambda: traces.spans("late"), bool)
            for of in (fast, slow):
                tracer.start_span(f"op of {of.name}", context=set_span_in_context(of)).end()
            made.flush()
            found = service.eventually(lambda: traces.spans("late"), lambda spans: len(spans) > 1)
    assert {span["operationName"] for span in found.values()} == {"slow", "op of slow"}


def long_ago() -> int:
    """Two minutes ago, in ns."""
    return time.time_ns() - 120 * 10**9


def serve(made: Application) -> None:
    """Slow requests, some that fail, and many fast ones."""
    vm = vm_of(small())
    RelaxVMInstrumentor().instrument_vm(vm, name="fleet")

    def wait(_: Any) -> None:
        time.sleep(SHORTEST_OP_NS / 1e9)

    def fail(_: Any) -> None:
        raise ValueError("no")

    for _ in range(SLOW):
        with callback(wait), made.live.tracer.start_as_current_span("slow", start_time=long_ago()):
            vm["call"](tensor(*X))
    for _ in range(FAILED):
        with (
            made.live.tracer.start_as_current_span("failed"),
            callback(fail),
            pytest.raises(ValueError, match="no"),
        ):
            vm["nested_call"](tensor(*X))
    for i in range(FAST):
        with made.live.tracer.start_as_current_span("fast"):
            vm["main"](tensor(*X))
        if i % 50 == 0:  # no more than may wait
            RelaxVMInstrumentor().force_flush()


def op_counts_in(asked: Prometheus, enough: int) -> Counter[str]:
    """Calls of each op as span_metrics counts them, once these are enough."""
    calls = 'sum by (span_name) (traces_span_metrics_calls_total{service_name="fleet"})'

    def look() -> Counter[str]:
        found = asked.query(calls)
        return Counter({dict(labels)["span_name"]: int(value) for labels, value in found.items()})

    return service.eventually(look, lambda found: found.total() >= enough)


def is_op(span: ReadableSpan) -> bool:
    """Whether it is of the scope of ops."""
    return scope_of(span) == OPS_SCOPE


def passes(span: ReadableSpan) -> bool:
    """What agent.yaml says of a span, said again."""
    assert span.start_time is not None
    assert span.end_time is not None
    failed = not span.status.is_ok
    return not is_op(span) or failed or span.end_time - span.start_time >= SHORTEST_OP_NS


def by_trace(spans: list[ReadableSpan]) -> dict[str, dict[str, ReadableSpan]]:
    """Spans by trace id and span id, as text."""
    found: dict[str, dict[str, ReadableSpan]] = defaultdict(dict)
    for span in spans:
        found[f"{span.context.trace_id:032x}"][f"{span.context.span_id:016x}"] = span
    return found


def root_of(spans: dict[str, ReadableSpan]) -> ReadableSpan:
    """The one span of a trace without a parent."""
    (root,) = [span for span in spans.values() if span.parent is None]
    return root


def spans_of(resources: Any) -> list[dict[str, Any]]:
    """All spans in ``ResourceSpans`` of OTLP's JSON."""
    return [
        span
        for resource in resources
        for scope in resource["scopeSpans"]
        for span in scope["spans"]
    ]
